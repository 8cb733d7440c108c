"""What a page of docs/ asks its reader to run.

A block of sh is run, one of python is saved under the name that the text before it says (Save ... as `NAME.py`), or else run. A block of
console shows what the run block before it prints. Marks, each a line of its own before the block:

    <!-- not run: REASON -->           the block is not run; of console: it is not compared
    <!-- runs until Ctrl-C: TEXT -->   it runs on while the next blocks do; these begin when it has printed TEXT (a regular expression)
    <!-- after Ctrl-C -->              what runs on gets SIGINT and ends before this block
"""

import dataclasses
import re

BLOCK = re.compile(r"^(?P<indent> *)```(?P<language>sh|bash|python|console)\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
ANY_BLOCK = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"^ *<!-- (not run|runs until Ctrl-C|after Ctrl-C|output)(?:: (.*?))? -->\s*\Z", re.MULTILINE)
SAVE = re.compile(r"\b[Ss]ave [^.`]*as `([\w-]+\.py)`")
WANTS_TORCH = re.compile(r"\blockstep run\b|\blockstep compare\b|\btorchrun\b|\bpython3? |\.py\b")


@dataclasses.dataclass
class Block:
    line: int
    language: str
    body: str
    mark: str = ""
    said: str = ""  # in the mark
    name: str = ""  # of the file that it is saved in

    def runs(self):
        return self.language != "console" and self.mark != "not run"

    def wants_torch(self):
        return self.language == "python" or WANTS_TORCH.search(self.body) is not None


def blocks(text):
    end = 0
    for match in BLOCK.finditer(text):
        before = text[end:match.start()]
        mark = MARK.search(before)
        name = SAVE.findall(ANY_BLOCK.sub("", before)) if match["language"] == "python" else ()
        body = re.sub(rf"^{match['indent']}", "", match["body"], flags=re.MULTILINE)
        yield Block(text.count("\n", 0, match.start()) + 1, match["language"], body, mark[1] if mark else "", mark[2] or "" if mark else "",
                    name[-1] if name else "")
        end = match.end()


def mistakes(found):
    """Of a page: marks without what belongs to them, and scripts that nobody runs."""
    running = False
    for block in found:
        if block.mark in ("not run", "runs until Ctrl-C") and not block.said:
            yield f"line {block.line}: the mark '{block.mark}' has no text"
        if block.mark == "after Ctrl-C" and not running:
            yield f"line {block.line}: nothing runs that could get a Ctrl-C"
        running = block.mark == "runs until Ctrl-C" or (running and block.mark != "after Ctrl-C")
        if block.name and block.runs() and not any(block.name in other.body for other in found if other is not block and other.runs()):
            yield f"line {block.line}: no block runs {block.name}"


def lines(text, folder=""):
    """To be compared: numbers, times, the folder and for whom a round waits differ from run to run."""
    for line in text.splitlines():
        line = re.sub(r"\d+(?:[.,:]\d+)*", "0", line.replace(f"{folder}/", "") if folder else line)
        line = re.sub(r"(: waiting for) .*", r"\1", line)
        line = re.sub(r"\b0 (?:ns|us|ms|s|min)\b", "0 s", re.sub(r"\b0 [kM] samples", "0 samples", line))
        yield " ".join(line.split())


def missing(shown, printed, folder):
    """The lines of a console block that its run did not print. A line of dots stands for any."""
    had = set(lines(printed, folder))
    return [line for line, compared in zip(shown.splitlines(), lines(shown), strict=True) if compared and compared != "..." and compared not in had]
