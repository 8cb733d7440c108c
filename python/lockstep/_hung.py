"""Writes the stack of each Python thread before the session ends a process whose training thread hangs.

The session raises a signal on a thread of its own. faulthandler's handler runs in that thread and needs no lock of the interpreter.
So it also works when a call into a library hangs and keeps that lock."""

import faulthandler
import signal
import sys

_registered = 0


def stack_signal() -> int:
    """The signal whose handler writes the stacks to stderr; 0: there is none to be had. Registers it at the first call."""
    global _registered
    if _registered == 0:
        _registered = _register()
    return _registered


def _register() -> int:
    # From the last one down: nobody is likely to have taken one of these, and whoever has keeps it.
    for number in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1):
        try:
            if signal.getsignal(number) != signal.SIG_DFL:
                continue
            faulthandler.register(number, file=sys.stderr, all_threads=True, chain=False)
        except (AttributeError, OSError, RuntimeError, ValueError):
            return 0  # stderr is no file: a notebook, or a service without one
        return number
    return 0


def someone_looks() -> bool:
    """A person is at the prompt or in a debugger: a program that stands still is theirs to end."""
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules or sys.gettrace() is not None
