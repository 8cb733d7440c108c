"""Finds the tree's source files and takes comments and literals out of C++."""

import os
import re
from pathlib import Path

CPP_ENDINGS = (".h", ".cc", ".cu", ".cuh")
SKIPPED_FOLDERS = re.compile(r"^(\..+|build.*|runs|__pycache__)$")
SKIPPED_TEXT = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<fence>[^\s()\\]{0,16})\(.*?\)(?P=fence)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
DIGIT_SEPARATOR = re.compile(r"(?<=[0-9a-fA-F])'(?=[0-9a-fA-F])")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]', re.MULTILINE)


def files(root, endings=CPP_ENDINGS):
    """Paths relative to the root, with slashes, in order."""
    found = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if not SKIPPED_FOLDERS.match(name))
        found += [Path(folder, name).relative_to(root).as_posix() for name in names if name.endswith(endings)]
    return sorted(found)


def code_only(text):
    """The same lines, with comments and literals made blank."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match.group())

    return SKIPPED_TEXT.sub(blank, DIGIT_SEPARATOR.sub(" ", text))


def includes(text):
    """(line, whether in quotes, name) of each include that is not commented out."""
    code = code_only(text)
    return [(text.count("\n", 0, match.start()) + 1, match.group(1) == '"', match.group(2))
            for match in INCLUDE.finditer(text)
            if "#" in code[match.start():match.end()]]


def line_of(text, position):
    return text.count("\n", 0, position) + 1
