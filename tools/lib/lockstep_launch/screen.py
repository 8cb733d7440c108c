"""The output for people: lines with a prefix for each process, and the coordinator's progress line."""

import os
import re
import shutil
import sys

LONGEST_LINE = 1 << 16  # characters; a longer one is cut into several lines
COLOURS = (36, 32, 33, 35, 34, 96, 92, 93, 95, 94)
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
ERASURES = re.compile(r"\x1b\[[0-9]*[JK]")


class Screen:
    """Writes lines with a prefix for each process, above the coordinator's progress line where there is a terminal."""

    def __init__(self, workers, reader_gone):
        """`reader_gone()` is called once nobody reads this any more."""
        self.reader_gone = reader_gone
        self.terminal = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self.colour = self.terminal and not os.environ.get("NO_COLOR")
        self.width = max(len("coordinator"), len(f"worker {workers - 1}"))
        self.progress = ""

    def prefix(self, name, number):
        text = f"{name:<{self.width}} | "
        return f"\x1b[{COLOURS[number % len(COLOURS)]}m{text}\x1b[0m" if self.colour else text

    def line(self, prefix, text):
        if not self.colour:
            text = ESCAPES.sub("", text)
        self._write(f"\r\x1b[K{prefix}{text}\n" if self.terminal else f"{prefix}{text}\n")
        self._draw_progress()

    def set_progress(self, prefix, text):
        if not self.terminal:
            return
        columns = shutil.get_terminal_size().columns - self.width - 4
        visible = ESCAPES.sub("", text)
        self.progress = prefix + (text if self.colour and len(visible) <= columns else visible[:columns])
        self._draw_progress()

    def end_progress(self):
        if self.progress:
            self._write("\r\x1b[K")
            self.progress = ""

    def _draw_progress(self):
        if self.progress:
            self._write(f"\r\x1b[K{self.progress}")

    def _write(self, text):
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError:
            # A pipe without a reader, a closed terminal, a full disk: nobody reads any later output.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self.reader_gone()


class Output:
    """Reads the output of one process: whole lines with its prefix, and a possible progress line."""

    def __init__(self, name, number, screen):
        self.name = name
        self.screen = screen
        self.heed = None  # gets each line, without colours
        self.prefix = screen.prefix(name, number)
        self.pending = ""
        self.shows_progress = False
        self.unsettled = ""  # the text that may become the progress line
        self.last = ""  # the last line that was not empty

    def take(self, text):
        text = (self.pending + text).replace("\r\n", "\n")
        parts = re.findall(r"[^\r\n]*[\r\n]|[^\r\n]+", text)
        # The end of the last line is still to come; after a \r it may be the \n that belongs to it.
        unfinished = bool(parts) and not parts[-1].endswith("\n") and len(parts[-1]) < LONGEST_LINE
        self.pending = parts[-1] if unfinished else ""
        if parts:
            self.unsettled = ""
        for number, part in enumerate(parts):
            body = ERASURES.sub("", part.rstrip("\r\n"))
            if part.endswith("\r") or (unfinished and number == len(parts) - 1):
                if self.shows_progress and body:
                    self.unsettled = body
            else:
                self.unsettled = ""
                self.last = body.strip() or self.last
                self.screen.line(self.prefix, body)
                if self.heed:
                    self.heed(ESCAPES.sub("", body))

    def settle(self):
        """Nothing followed: the text at the end is the progress line."""
        self.screen.set_progress(self.prefix, self.unsettled)
        self.unsettled = ""

    def finish(self, text=""):
        """No output comes after it."""
        self.take(text + ("\n" if self.pending else ""))
