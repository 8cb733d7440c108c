"""Loader processes of the script's DataLoader (num_workers): they read samples, the training process makes batches of them.

The session names a run when it is to be computed. Samples of the run that were not read ahead are asked for at once, from all
processes, and go before everything else. Then the processes read the samples that are likely to come next (_ahead.py). Samples
that the worker is not given after all are dropped. It makes no difference to a sample which process reads it, and when
(_samples.py). So a batch is the same with any number of processes.

Between the training process and each loader process is one socket with whole messages. Answers are packed into memory that both
map (_packed.py), so a process that dies at any time leaves nothing behind, and is seen by the end of its socket.

How they start is for multiprocessing to say, as with torch's own DataLoader. A fork comes before the session has threads and
sockets; where another job of this process has them already, it is 'forkserver' instead, unless the script has asked for 'fork'.
"""

import math
import multiprocessing
import os
import pickle
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import Any

from torch.utils.data import DataLoader

from lockstep import _session
from lockstep._ahead import Guess
from lockstep._errors import JobFailed, UsageError
from lockstep._loader_process import OF_THE_GROUP, START, Carried, Error, Unsendable, main
from lockstep._packed import unpack
from lockstep._samples import Call, Samples

_MOST_AT_ONCE = 1024  # samples that one message asks for
_END_S = 2.0  # for what a process is in the middle of, at the end
_PIECES = 4  # of a process's part of a round, at most, where runs are short
_NAME = "lockstep loader"

_links: set[socket.socket] = set()  # of all loader processes; a fork copies them, and a socket has its end with its last copy


def _forget_processes() -> None:
    """In a forked child: at its exit multiprocessing would end the loader processes of its parent, and then fail."""
    ours = {child for child in multiprocessing.process._children if child.name.startswith(_NAME)}  # type: ignore[attr-defined]
    multiprocessing.process._children.difference_update(ours)  # type: ignore[attr-defined]


os.register_at_fork(after_in_child=_forget_processes)


@dataclass
class _Piece:
    """The samples that one message has asked for, while they are on their way."""

    ticket: int
    process: int
    calls: dict[Call, tuple[int, ...]]
    urgent: bool
    size: int


@dataclass
class _Read:
    samples: tuple[int, ...]
    values: list[Any]


@dataclass
class _Failed:
    samples: tuple[int, ...]
    error: Error


class _Died(JobFailed):
    """A loader process."""


class _Process:
    def __init__(self, process: Any, link: socket.socket) -> None:
        self.process, self.link = process, link
        self.to_send: deque[bytes] = deque()
        self.waiting = 0  # samples that it was asked for


class Processes:
    """Started at once; `read` after `begin`. Invariant: each call that is known is on its way, read or failed, once."""

    def __init__(self, loader: DataLoader[Any], seed: int, samples: Samples) -> None:
        self._pid = os.getpid()
        self._timeout = float(loader.timeout)
        self._depth = 2 if loader.prefetch_factor is None else loader.prefetch_factor
        self._samples = samples
        self._known: dict[Call, _Piece | _Read | _Failed] = {}
        self._ahead_now = 0  # samples that are read: of all that is known, in sum
        self._pieces: dict[int, _Piece] = {}
        self._tickets = START
        self._seed = seed
        self._ahead: Guess | None = None
        self._processes: list[_Process] = []
        try:
            self._start(loader, seed)
        except BaseException:
            self.close()
            raise

    def begin(self, seed: int, ahead: Guess) -> None:
        """The job's, which is known now."""
        self._seed, self._ahead = seed, ahead

    def read(self, epoch: int, round_: int, ranges: Sequence[tuple[int, int]], samples: Sequence[int]) -> list[Any]:
        """The samples of a run, in their order."""
        assert self._ahead is not None
        self._ahead.saw(epoch, round_, ranges)
        needed: dict[Call, tuple[int, ...]] = {}
        at = 0
        for call in self._samples.calls(epoch, ranges):
            needed[call] = tuple(samples[at : at + call.end - call.first])
            at += call.end - call.first
        for call, which in needed.items():
            if (known := self._known.get(call)) is not None and self._samples_of(call, known) != which:
                self._forget(call)  # read by another order than the session's
        self._ask_for_missing(needed)
        self._read_ahead(needed)
        end = time.monotonic() + self._timeout if self._timeout > 0 else math.inf
        while True:
            self._ask_for_missing(needed)
            there = [self._known[call] for call in needed]
            for one in there:
                if isinstance(one, _Failed):
                    raise one.error.get()
            if not any(isinstance(one, _Piece) for one in there):
                break
            if not self._receive(end - time.monotonic()) and time.monotonic() >= end:
                raise JobFailed(f"no samples from the loader processes in {self._timeout:g} s, the timeout of the DataLoader")
        for call in needed:
            self._forget(call)
        return [value for one in there if isinstance(one, _Read) for value in one.values]

    @property
    def ahead(self) -> int:
        """Samples that have been read for later runs."""
        try:
            while self._pieces and self._receive(0):
                pass
        except _Died:  # whoever needs what it was to read is told
            pass
        return self._ahead_now

    def close(self) -> None:
        """Ends the processes. May be called again."""
        processes, self._processes = self._processes, []
        self._known.clear()
        self._ahead_now = 0
        self._pieces.clear()
        if os.getpid() != self._pid:
            return
        for one in processes:
            one.link.close()
            _links.discard(one.link)
        end = time.monotonic() + _END_S
        for one in processes:
            one.process.join(max(0.0, end - time.monotonic()))
            if one.process.is_alive():
                one.process.kill()
            one.process.join()
            one.process.close()

    # --- within

    def _start(self, loader: DataLoader[Any], seed: int) -> None:
        context: Any = loader.multiprocessing_context or multiprocessing.get_context()
        if loader.multiprocessing_context is None and context.get_start_method() == "fork" and _session.any_open():
            context = multiprocessing.get_context("forkserver")
        method = context.get_start_method()
        advice = (
            f"because '{method}' starts it without the script's objects. Define classes and functions at the top of a module, and "
            "open files in worker_init_fn or with the first sample; or give multiprocessing_context='fork'"
        )
        count = loader.num_workers
        links = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(count)]
        dataset, init = Carried("dataset", loader.dataset), Carried("worker_init_fn", loader.worker_init_fn)
        ends = [end for pair in links for end in pair]
        _links.update(mine for mine, _ in links)
        resource_tracker.ensure_running()  # it would unblock what is blocked here
        for number, (mine, its) in enumerate(links):
            forked = method == "fork"
            others = [end for end in {*ends, *_links} if end is not its] if forked else []
            process = context.Process(
                target=main,
                kwargs={
                    "link": its,
                    "others": others,
                    "forked": forked,
                    "trainer": self._pid,
                    "place": (number, count, seed),
                    "dataset": dataset,
                    "init": init,
                },
                name=f"{_NAME} {number}",
                daemon=True,
            )
            mine.setblocking(False)
            # Ctrl-C before a new process ignores it would be a traceback of each.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, OF_THE_GROUP)
            try:
                process.start()
            except Unsendable as error:
                raise UsageError(f"{error}, {advice}") from None
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            self._processes.append(_Process(process, mine))
        for _, its in links:
            its.close()
        # A fork has the files' positions from here; so nobody reads before each has its own.
        begun: set[int] = set()
        while len(begun) < count:
            try:
                answers = self._received(None)
            except JobFailed as error:
                raise UsageError(f"{error}, before its first sample; its own messages are above") from None
            for number, ticket, value in answers:
                assert ticket == START
                begun.add(number)
                if isinstance(value, str):
                    raise UsageError(f"a loader process cannot use the objects that it was sent ({value}), {advice}")
                if value is not None:
                    raise value.get()

    def _samples_of(self, call: Call, known: "_Piece | _Read | _Failed") -> tuple[int, ...]:
        return known.calls[call] if isinstance(known, _Piece) else known.samples

    def _forget(self, call: Call) -> None:
        """Drops a piece of which nothing is known any more."""
        known = self._known.pop(call)
        if isinstance(known, _Read):
            self._ahead_now -= len(known.samples)
        if isinstance(known, _Piece) and not any(self._known.get(other) is known for other in known.calls):
            self._pieces.pop(known.ticket, None)
            self._processes[known.process].waiting -= known.size
            self._send(known.process, "drop", known.ticket)

    def _ask_for_missing(self, needed: dict[Call, tuple[int, ...]]) -> None:
        """All of a run is on its way, at once."""
        missing = [(call, which) for call, which in needed.items() if call not in self._known]
        self._ask(missing, math.ceil(sum(len(which) for _, which in missing) / len(self._processes)), urgent=True)
        for call in needed:
            piece = self._known[call]
            if isinstance(piece, _Piece) and not piece.urgent:
                piece.urgent = True
                self._send(piece.process, "first", piece.ticket)

    def _read_ahead(self, needed: dict[Call, tuple[int, ...]]) -> None:
        """Reads the samples that are likely to come: those of `prefetch_factor` rounds of this worker, so as many of its batches.
        Samples that are not likely any more are dropped, because another worker has them by then."""
        assert self._ahead is not None
        likely: dict[Call, tuple[int, ...]] = {}
        most, size = self._depth * self._ahead.share, 0
        for epoch, first, end in self._ahead.next(most):
            size += end - first
            which = self._ahead.samples_of(epoch, first, end)
            for call in self._samples.calls(epoch, [(first, end)]):
                likely[call] = tuple(which[call.first - first : call.end - first])
        for call in [call for call in self._known if call not in likely and call not in needed]:
            self._forget(call)
        missing = [(call, which) for call, which in likely.items() if call not in self._known and call not in needed]
        # Where runs are short, each brings a little at the far end of what is likely: together it is one message.
        if size < most or sum(len(which) for _, which in missing) >= self._of_each():
            self._ask(missing, self._of_each(), urgent=False)

    def _of_each(self) -> int:
        """Samples that a process reads ahead at a time."""
        assert self._ahead is not None
        count = len(self._processes)
        return max(math.ceil(self._ahead.longest / count), math.ceil(self._ahead.share / count / _PIECES))

    def _ask(self, calls: Sequence[tuple[Call, tuple[int, ...]]], of_each: int, *, urgent: bool) -> None:
        piece: dict[Call, tuple[int, ...]] = {}
        size = 0
        for call, which in calls:
            piece[call] = which
            size += len(which)
            if size >= min(of_each, _MOST_AT_ONCE):
                self._ask_one(piece, size, urgent)
                piece, size = {}, 0
        if piece:
            self._ask_one(piece, size, urgent)

    def _ask_one(self, calls: dict[Call, tuple[int, ...]], size: int, urgent: bool) -> None:
        number = min(range(len(self._processes)), key=lambda i: self._processes[i].waiting)
        self._tickets += 1
        piece = _Piece(self._tickets, number, calls, urgent, size)
        self._pieces[piece.ticket] = piece
        self._known.update((call, piece) for call in calls)
        self._processes[number].waiting += size
        self._send(number, "read", piece.ticket, urgent, self._seed, list(calls.items()))

    def _send(self, number: int, *message: object) -> None:
        self._processes[number].to_send.append(pickle.dumps(message))
        self._flush(number)

    def _flush(self, number: int) -> None:
        one = self._processes[number]
        try:
            while one.to_send:
                one.link.send(one.to_send[0])
                one.to_send.popleft()
        except BlockingIOError:  # goes on when there is room
            pass
        except ConnectionError:
            self._died(number)

    def _receive(self, seconds: float) -> bool:
        """Waits for the next answers, at most so long; False: there was none."""
        some = False
        for number, ticket, value in self._received(None if seconds == math.inf else max(0.0, seconds)):
            some = True
            piece = self._pieces.pop(ticket)
            self._processes[number].waiting -= piece.size
            results, error = value
            calls = iter(piece.calls.items())
            for values, (call, which) in zip(results, calls, strict=False):
                self._settle(call, piece, _Read(which, values))
            if error is not None:  # what is behind it is asked for again, if it is wanted
                rest = list(piece.calls.items())[len(results) :]
                for i, (call, which) in enumerate(rest):
                    self._settle(call, piece, _Failed(which, error) if i == 0 else None)
        return some

    def _settle(self, call: Call, piece: _Piece, to: "_Read | _Failed | None") -> None:
        if self._known.get(call) is not piece:
            return
        if to is None:
            del self._known[call]
        else:
            self._known[call] = to
            if isinstance(to, _Read):
                self._ahead_now += len(to.samples)

    def _received(self, seconds: float | None) -> Iterable[tuple[int, int, Any]]:
        """(process, ticket, value) of the answers that are there."""
        poll = select.poll()
        numbers: dict[int, int] = {}
        for number, one in enumerate(self._processes):
            numbers[one.link.fileno()] = number
            poll.register(one.link, select.POLLIN | (select.POLLOUT if one.to_send else 0))
        answers = []
        for file, events in poll.poll(None if seconds is None else math.ceil(seconds * 1000)):
            number = numbers[file]
            if events & select.POLLOUT:
                self._flush(number)
            if not events & ~select.POLLOUT:
                continue
            try:
                head, files, _, _ = socket.recv_fds(self._processes[number].link, 8, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                continue
            except ConnectionError:
                head, files = b"", []
            if not head:
                self._died(number)
            if not files:
                raise JobFailed("no file descriptor is free for what a loader process has read (ulimit -n)")
            ticket = int.from_bytes(head, "little")
            if ticket != START and ticket not in self._pieces:  # was dropped meanwhile
                os.close(files[0])
                continue
            answers.append((number, ticket, unpack(files[0])))
        return answers

    def _died(self, number: int) -> None:
        process = self._processes[number].process
        process.join(_END_S)
        code = process.exitcode
        if code is None:
            how = "has closed its socket"
        elif code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            if -code == signal.SIGKILL:
                how += " (by the kernel, perhaps, for want of memory: then fewer num_workers, or a smaller prefetch_factor)"
        else:
            how = f"has ended with status {code}"
        raise _Died(f"loader process {number} of {len(self._processes)}, process id {process.pid}, {how}")
