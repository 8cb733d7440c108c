"""The errors of the package, and the status with which a program ends that does not catch them."""

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn


class Error(Exception):
    """One line for people. A program that does not catch it prints that line and ends with `status`."""

    status = 1


class UsageError(Error):
    """A setting or an argument is wrong or not supported, or the coordinator has refused it."""

    status = 2


class Missing(UsageError, AttributeError):
    """For hasattr an attribute that is not there."""


class JobFailed(Error):
    """The job has failed, or has ended without this worker."""

    status = 1
    result: object = None  # where lockstep.ray.Trainer raises it: a Result with what the job had


class TryAgain(Error):
    """Nothing is wrong: the job has no place for this worker now."""

    status = 3


class WorkerTraceback(Exception):
    """The cause of a JobFailed of lockstep.launch: where the function has failed, in a worker. Above the one line."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def of_status(status: int, message: str) -> Error:
    """The error for a lockstep_status."""
    return {2: UsageError, 3: TryAgain}.get(status, JobFailed)(message)


# Told why the program ends, one line, before it does.
last_words: set[Callable[[str], None]] = set()

# Exceptions of the script that Lockstep knows the reason of: a line with what to write instead, or nothing.
explanations: list[Callable[[BaseException], str]] = []

_INTERRUPTED = 130
_first = _before = sys.excepthook  # what was there before the first of our hooks, and before the last one
_hooked = 0  # calls of ours that are under way
_exit = sys.exit
_ends_badly = False


def line_of(error: BaseException) -> str:
    """The error in one line, as it is told to others."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}".splitlines()[0]


def _explained(error: BaseException) -> BaseException:
    """Replaces an exception of torch that comes from how Lockstep has started the script."""
    if isinstance(error, ValueError) and "environment variable RANK expected" in str(error) and "LOCKSTEP_WORKER" in os.environ:
        return UsageError(
            "init_process_group: the workers of lockstep run have no process group of torch.distributed. Leave it out "
            "(use job.rank and job.size), or start the script with torchrun"
        )
    return error


def _hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    global _hooked
    if _hooked:  # another hook, as that of a process group, has ours below it and is below ours
        _first(kind, error, trace)
        return
    _hooked += 1
    try:
        _tell(kind, error, trace)
    finally:
        _hooked -= 1


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    error = _explained(error)
    if explained := next(filter(None, (explain(error) for explain in explanations)), ""):
        error = UsageError(explained)
    line = line_of(error)
    for tell in list(last_words):
        tell(line)
    if not isinstance(error, Error | KeyboardInterrupt):
        _before(kind, error, trace)
        return
    if isinstance(error.__cause__, WorkerTraceback):
        print(error.__cause__, file=sys.stderr)
    say(line)
    raise SystemExit(error.status if isinstance(error, Error) else _INTERRUPTED)  # the interpreter takes the status from here


def say(line: str) -> None:
    """A word on the way, to a program that goes on."""
    sys.stdout.flush()
    # In one piece: what several workers write at once to one file stays apart.
    print(f"lockstep: {line}\n", end="", file=sys.stderr, flush=True)


def end_with_one_line() -> None:
    """From here on an Error or Ctrl-C that nobody catches is one line and its status; anything else is as it was."""
    global _before, _exit
    if sys.excepthook is not _hook:
        _before, sys.excepthook = sys.excepthook, _hook
    if sys.exit is not _noted_exit:
        _exit, sys.exit = sys.exit, _noted_exit


def _noted_exit(status: object = None) -> NoReturn:
    """Stands for sys.exit, because code that runs at the exit cannot see the status."""
    global _ends_badly
    _ends_badly = status not in (None, 0)
    _exit(status)  # type: ignore[arg-type]


def goes_on() -> None:
    """The script has caught what sys.exit has raised."""
    global _ends_badly
    _ends_badly = False


def ends_badly() -> bool:
    """Whether an exception is on its way or has ended the script, or sys.exit with another status than 0."""
    on_its_way = sys.exc_info()[1]
    if on_its_way is not None and not isinstance(on_its_way, GeneratorExit):  # which a loop that is left by break has, too
        return True
    return _ends_badly or getattr(sys, "last_value", None) is not None


def end_with(error: BaseException) -> None:
    """For places where an exception would be shown and go no further, as at the exit. Prints one line; the process ends with the
    status of the exception."""
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else 1
    else:
        say(str(error) if isinstance(error, Error) else "interrupted")
        status = error.status if isinstance(error, Error) else _INTERRUPTED
    # The interpreter has no way to change the status at the exit; a handler of the C library, which runs last, has.
    library = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):
        register = getattr(library, "__cxa_atexit")
        register(ctypes.cast(library._exit, ctypes.c_void_p), ctypes.c_void_p(status), None)
