"""The texts in sources that people read: help, errors, log lines, docstrings. Each is (line, text); a blank line or a line break in a text
ends a sentence."""

import ast
import re

# A comment, a raw string, a character and a string of C++; whichever begins first counts.
CPP = re.compile(r"""(?P<comment>//[^\n]*|/\*.*?\*/)
  |(?:u8|[uUL])?R"(?P<mark>[^()\s\\]{0,16})\(.*?\)(?P=mark)"
  |(?<![0-9A-Za-z_])'(?:[^'\\\n]|\\.)+'
  |"(?P<string>(?:[^"\\\n]|\\.)*)"
  |(?P<other>\S)""", re.VERBOSE | re.DOTALL)
INCLUDE = re.compile(r"^\s*#\s*include[^\n]*", re.MULTILINE)
ESCAPE = re.compile(r"\\(.)")
# `  --name TEXT   explanation`: the name is no part of the sentence.
ITEM = re.compile(r"\s+\S.*?\s{2,}(\S.*)")
HERE_DOCUMENT = re.compile(r"<<-?\s*(['\"]?)(\w+)\1[^\n]*\n(.*?)^\t*\2$", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"""(?P<comment>(?:^|(?<=\s))\#[^\n]*)|'(?P<plain>[^']*)'|"(?P<double>(?:[^"\\]|\\.)*)"|\\.""", re.MULTILINE | re.DOTALL)


def strings_of_cpp(source):
    """String literals; adjacent ones are one text. Raw strings are pages, tables and code, so they are left out."""
    source = INCLUDE.sub("", source)
    begin, parts = 0, []
    for found in CPP.finditer(source):
        if found["string"] is not None:
            begin = begin if parts else source.count("\n", 0, found.start()) + 1
            parts.append(ESCAPE.sub(lambda escape: "\n" if escape[1] == "n" else escape[1], found["string"]))
        elif parts and found["comment"] is None:
            yield begin, "".join(parts)
            parts = []
    if parts:
        yield begin, "".join(parts)


def text_of(node):
    """The text of a Python string, an f-string or a sum of them, with {} for values; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or "{}" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = text_of(node.left), text_of(node.right)
        return None if left is None and right is None else (left or "{}") + (right or "{}")
    return None


def strings_of_python(source):
    """Docstrings and all other strings of a Python source."""
    pending = [ast.parse(source)]
    while pending:
        node = pending.pop()
        text = text_of(node)
        if text is None:
            pending.extend(ast.iter_child_nodes(node))
            continue
        if isinstance(node, ast.Constant) and "\n" in text:
            # The lines of a docstring begin where its quotes do.
            text = text.replace("\n" + " " * node.col_offset, "\n")
        yield node.lineno, text


def strings_of_shell(source):
    """Quoted words and here-documents, which hold usage texts. Those of Python or awk code have no sentences."""
    for found in HERE_DOCUMENT.finditer(source):
        yield source.count("\n", 0, found.start(3)) + 1, found[3]
    source = HERE_DOCUMENT.sub(lambda found: "\n" * found[0].count("\n"), source)
    for found in SHELL.finditer(source):
        text = found["plain"] or found["double"]
        if text:
            yield source.count("\n", 0, found.start()) + 1, re.sub(r"\$\(.*?\)|\$\{.*?\}|\$\w+", "{}", text)


def paragraphs_of_string(text):
    """(line, text) of each paragraph of a help text or docstring, and of each item of its lists. Synopses (`usage:`) and
    examples are left out."""
    begin, words = 0, []
    usage = False
    for number, line in enumerate([*text.split("\n"), ""]):
        bare = line.strip()
        usage = bool(bare) and (usage or bare.startswith(("usage:", "examples:")))
        item = ITEM.fullmatch(line) or re.match(r"\s*[-*] (\S.*)", line)
        if words and (not bare or usage or item):
            yield begin, " ".join(words)
            words = []
        if bare and not usage:
            begin = begin if words else number
            words.append(item[1] if item else bare)
