"""SIGINT and SIGTERM during a job: they end the job in good order, with a checkpoint, and then the script.

Launchers send them to all workers alike (Ctrl-C, Slurm's warning before a time limit), and worker 0 passes them on to its
coordinator. The script continues until its round is closed. It is interrupted when the loop sees the end of the job, or soon after
that end, wherever it is then. A second signal ends the script at once. The script's own handlers and ignored signals stay as they
are.
"""

import queue
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

PATIENCE_S = 10.0  # that a job may go on in spite of a signal, before it is taken for one to this worker alone
# Some launchers signal a process and then its process group: signals so close together are one.
_ONE_SIGNAL_S = 0.5
_LOOK_S = 0.1
_GRACE_S = 1.0  # in which the loop sees the end of the job by itself


class Interrupts:
    """Handlers, from `begin` to `end`. `tell` is called with the name of the first signal, within the handler. `has_ended`: whether
    the job has, so many seconds after it; by another thread. `leave` is called with a reason before the script is interrupted
    wherever it is."""

    def __init__(self, tell: Callable[[str], None], has_ended: Callable[[float], bool], leave: Callable[[str], None]) -> None:
        self._tell, self._has_ended, self._leave = tell, has_ended, leave
        self._before: dict[int, Any] = {}
        self._to_watch: queue.SimpleQueue[int | None] = queue.SimpleQueue()  # a handler may put something into it
        self._first: int | None = None
        self._at = 0.0
        self._job_is_on = False
        self._is_due = False
        self.twice = False

    def begin(self) -> None:
        """May be called again, by any thread: only the main thread may set handlers."""
        if self._job_is_on or threading.current_thread() is not threading.main_thread():
            return
        self._job_is_on = True
        threading.Thread(target=self._watch, name="lockstep signals", daemon=True).start()
        for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
            if signal.getsignal(number) == usual:
                self._before[number] = signal.signal(number, self._on)

    def job_has_ended(self) -> None:
        """The loop has seen it, and calls `heed` soon."""
        self._to_watch.put(None)

    def end(self) -> None:
        """May be called again."""
        self._job_is_on = False
        self._to_watch.put(None)
        if threading.current_thread() is not threading.main_thread():
            return
        before, self._before = self._before, {}
        for number, handler in before.items():
            if signal.getsignal(number) == self._on:
                signal.signal(number, handler)

    @property
    def ends_in_order(self) -> bool:
        """A signal has come, and none after it that cannot wait."""
        return self._first is not None and not self.twice

    def heed(self) -> None:
        """Ends the script, where a signal has come."""
        number, self._first = self._first, None
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        if number is not None:
            raise SystemExit(128 + number)  # as shells show it, and `finally` and atexit come first

    def _on(self, number: int, _: FrameType | None) -> None:
        if not self._job_is_on:  # another thread has seen its end
            self.end()
            signal.raise_signal(number)
        elif self._first is None:
            self._first, self._at = number, time.monotonic()
            self._tell(signal.Signals(number).name)
            self._to_watch.put(number)
        elif self._is_due:
            self._leave(f"interrupted ({signal.Signals(self._first).name})")
            self.heed()
        # A launcher that was told SIGINT may pass SIGTERM on.
        elif number in (signal.SIGINT, self._first) and time.monotonic() - self._at > _ONE_SIGNAL_S:
            self.twice = True
            self.end()
            signal.raise_signal(number)

    def _watch(self) -> None:
        """Sends the first signal again when it is time to interrupt the script wherever it is."""
        number = self._to_watch.get()
        if number is None:
            return
        while not self._has_ended(time.monotonic() - self._at):
            if self._is_over(_LOOK_S):
                return
        if not self._is_over(_GRACE_S):
            self._is_due = True
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, number)

    def _is_over(self, seconds: float) -> bool:
        """Waits so long at most."""
        try:
            self._to_watch.get(timeout=seconds)
        except queue.Empty:
            return False
        return True
