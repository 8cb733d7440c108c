"""What the tools' command lines have in common."""

import argparse
import os
import signal
import sys
from pathlib import Path

BAD_USAGE = 2  # the exit status, here and of the programs, for what the user got wrong
VERSION = "0.1.0"  # as CMakeLists.txt says it, to which a test holds this


class Parser(argparse.ArgumentParser):
    """What is wrong is one line; --version is known."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self.add_argument("--version", action="version", version=f"{Path(sys.argv[0]).name} {VERSION}", help="print the version and exit")

    def error(self, message):
        print(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr)
        sys.exit(BAD_USAGE)

    def check_settings(self, settings, option="--set"):
        for setting in settings:
            key, equals, _ = setting.partition("=")
            if not key or not equals:
                self.error(f"{option} {setting}: expected KEY=VALUE")

    def check_writable(self, option, path):
        """Before the work whose outcome goes there; makes nothing."""
        there = os.path.lexists(path)
        try:
            with open(path, "a", encoding="utf-8"):
                pass
            if not there:
                os.unlink(path)
        except OSError as error:
            self.error(f"{option} {path}: {error.strerror}")


def asked_to_end():
    """The signals by which a tool is asked to end. One that was told to ignore a closed terminal (nohup) goes on doing so."""
    signals = [signal.SIGINT, signal.SIGTERM]
    return signals if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [*signals, signal.SIGHUP]


def numbers(text):
    """A type of arguments: whole numbers from 1 on with commas between them."""
    try:
        values = [int(word) for word in text.split(",")]
    except ValueError:
        values = [0]
    if min(values) < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected whole numbers from 1 on with commas between them")
    return values
