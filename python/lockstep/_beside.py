"""Calls of torch.distributed beside the training, as an all_reduce of a metric, in the script's own process group.

They go on as they are. But a worker that waits in one for another is not training meanwhile, and that other may wait for its part
of the round. So before the wait a batch whose step was done is handed in, and during the wait the worker is away.

Where work moves, workers have different numbers of batches. Calls for each batch then do not match, and in the end all wait for
each other. Workers that wait long, in a call or in the loader, say so in the group's store. If all do, and not in the same, they
end with one line. Else the group's own time-out bounds the wait.

`Work.wait` of torch is replaced while there is a job: all blocking calls end there.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NoReturn

import torch.distributed

from lockstep._errors import JobFailed, UsageError

_SLICE = timedelta(seconds=0.2)
_TELL_S = 2.0  # of waiting, before it is told to the others
_LOOK_S = 1.0
_JUDGE_S = 15.0  # that all workers wait so
_NO_TIMEOUT = timedelta()
_ADVICE = "To average numbers over all workers use job.log and job.metrics, which need no call of all of them at once"
_Work: Any = torch._C._distributed_c10d.Work if torch.distributed.is_available() else None
_torch_wait: Callable[..., Any] | None = None if _Work is None else _Work.wait
_watching: list["Watch"] = []


class Watch:
    """From `begin` to `end`. `away`: within it this worker waits for others, and has handed in what it has."""

    def __init__(self, away: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        self.away = away
        self.thread = 0
        self.is_waiting = False
        self._waits = 0

    def begin(self) -> None:
        self.thread = threading.get_ident()
        if _Work is not None:
            _watching.append(self)
            _Work.wait = _wait

    def end(self) -> None:
        """May be called again."""
        if self in _watching:
            _watching.remove(self)
        if _Work is not None and not _watching and _Work.wait is _wait:
            _Work.wait = _torch_wait

    def wait(self, work: Any, timeout: timedelta) -> Any:
        self.is_waiting = True
        try:
            with self.away():
                return self._wait_long(work, timeout)
        except RuntimeError as error:
            line = (str(error).splitlines() or [type(error).__name__])[0]
            raise JobFailed(
                f"a call of torch.distributed has failed, since not all workers have made it, or one has ended: {line}. {_ADVICE}"
            ) from error
        finally:
            self.is_waiting = False

    def _wait_long(self, work: Any, timeout: timedelta) -> Any:
        assert _torch_wait is not None
        if timeout != _NO_TIMEOUT or torch.distributed.get_backend() != "gloo":
            return _torch_wait(work, timeout)
        with self.waiting(_name()) as look:
            while not work.is_completed():  # in slices, for Ctrl-C
                look()
                try:
                    _torch_wait(work, _SLICE)
                except RuntimeError:
                    if work.is_completed():
                        raise
        return _torch_wait(work)

    @contextlib.contextmanager
    def waiting(self, call: str) -> Iterator[Callable[[], None]]:
        """To be called now and then while this worker waits. It raises where all workers wait for each other."""
        self._waits += 1
        this = f"{self._waits} {call}"
        told = False
        before: list[str] = []
        judge, look = 0.0, time.monotonic() + _TELL_S

        def at() -> None:
            nonlocal told, before, judge, look
            if self not in _watching or time.monotonic() < look or not _is_group():
                return
            told = True
            now = _waits(this)
            if now != before or not all(now) or len({wait.split(" ", 1)[1] for wait in now}) == 1:
                before, judge = now, time.monotonic() + _JUDGE_S
            elif time.monotonic() > judge:
                _refuse(now)
            look = time.monotonic() + _LOOK_S

        yield at
        if told:
            _store().set(_key(torch.distributed.get_rank()), "-")


def _is_group() -> bool:
    """Workers of a group of the script."""
    return torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1


def _waits(this: str) -> list[str]:
    """The call that each worker waits in; empty: none, or not for long. `this`: of this one."""
    store, workers = _store(), torch.distributed.get_world_size()
    store.set(_key(torch.distributed.get_rank()), this)
    keys = [_key(worker) for worker in range(workers)]
    return [store.get(key).decode().strip("-") if store.check([key]) else "" for key in keys]


def _refuse(waits: list[str]) -> NoReturn:
    names = sorted({wait.split(" ", 1)[1] for wait in waits})
    raise UsageError(
        f"all workers wait for each other, in {' and '.join(names)}: where work moves they have different numbers of batches, so "
        f"calls of torch.distributed for each batch do not match. {_ADVICE}"
    )


def _store() -> Any:
    return torch.distributed.distributed_c10d._get_default_store()


def _key(worker: int) -> str:
    return f"lockstep/waits/{worker}"


def _name() -> str:
    """Of the call of torch.distributed that waits."""
    frame: Any = sys._getframe(1)
    name = ""
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.distributed.distributed_c10d":
            name = frame.f_code.co_name
        frame = frame.f_back
    return name or "Work.wait"


def _wait(self: Any, timeout: timedelta = _NO_TIMEOUT) -> Any:
    assert _torch_wait is not None
    for watch in _watching:
        if watch.thread == threading.get_ident() and not watch.is_waiting:
            return watch.wait(self, timeout)
    return _torch_wait(self, timeout)
