"""The common parts of the tools' command lines."""

import argparse
import errno
import io
import math
import os
import signal
import stat
import sys
from pathlib import Path

BAD_USAGE = 2  # the exit status, here and of the programs, for a user's mistakes
VERSION = "0.1.0"  # as in CMakeLists.txt; a test compares them


MOST_BYTES = 16 << 20  # of a file that a user names; no meaningful one is that large


def complain(message):
    """Writes one line to standard error, which nobody may read any more."""
    try:
        print(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr, flush=True)
    except OSError:
        pass


def refusal(message):
    """Writes one line, and returns its status."""
    complain(message)
    return BAD_USAGE


def bad_usage(message):
    sys.exit(refusal(message))


def open_regular(path):
    """Opens a file that a user names, to be read as bytes. A FIFO would wait and a device may have no end, so whatever is no regular
    file is an OSError, like all other errors."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError:  # a null byte
        raise OSError(errno.EINVAL, "is no name of a file", path) from None
    mode = os.fstat(file).st_mode
    if stat.S_ISREG(mode):
        return open(file, "rb")
    os.close(file)
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "is not a regular file", path)


def read_regular(path, most=MOST_BYTES):
    """Reads all of it; more than so many bytes are an OSError, too."""
    with open_regular(path) as opened:
        data = opened.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"has more than {most} bytes", path)
    return data


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line; it knows --version."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        # Output of others is passed on in any locale; standard error does so by itself.
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")
        self.add_argument("--version", action="version", version=f"{Path(sys.argv[0]).name} {VERSION}", help="print the version and exit")

    def error(self, message):
        complain(message)
        sys.exit(BAD_USAGE)

    def check_settings(self, settings, option="--set"):
        for setting in settings:
            key, equals, _ = setting.partition("=")
            if not key or not equals:
                self.error(f"{option} {setting}: expected KEY=VALUE")

    def check_writable(self, option, path):
        """Checks, before the work, that its result can be written there; makes nothing."""
        there = os.path.lexists(path)
        try:
            with open(path, "a", encoding="utf-8"):
                pass
            if not there:
                os.unlink(path)
        except OSError as error:
            self.error(f"{option} {path}: {error.strerror}")


def asked_to_end():
    """The signals that ask a tool to end. A tool that ignores a closed terminal (nohup) continues to do so."""
    signals = [signal.SIGINT, signal.SIGTERM]
    return signals if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [*signals, signal.SIGHUP]


def finite(text):
    """A type of arguments: a number. It is not nan, which is on no side of any bound, nor inf."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text}: expected a number")
    return value


def numbers(text):
    """A type of arguments: whole numbers from 1 on with commas between them."""
    try:
        values = [int(word) for word in text.split(",")]
    except ValueError:
        values = [0]
    if min(values) < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected whole numbers from 1 on with commas between them")
    return values
