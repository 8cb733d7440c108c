"""A loader process: reads samples for the training process (_processes.py) until that wants nothing any more."""

import fcntl
import os
import pickle
import resource
import select
import signal
import socket
import stat
import threading
import traceback
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing  # shares tensors of a dataset with processes that are not forked

from lockstep._packed import pack
from lockstep._samples import EVALUATION, Call, Samples, seed_all, seed_of

START = 0  # the ticket of the first answer: it is ready, or why it is not
OF_THE_GROUP = (signal.SIGINT, signal.SIGTERM)  # signals that loader processes do not heed
_MOST_FILES = 65536


class Error:
    """An exception on its way, as itself where it can be pickled."""

    def __init__(self, error: BaseException, where: str) -> None:
        self._text = f"\n\n{where}:\n" + "".join(traceback.format_exception(type(error), error, error.__traceback__))
        self._line = f"{type(error).__name__}: {error}"
        try:
            self._pickled = pickle.dumps(error)
            pickle.loads(self._pickled)
        except Exception:
            self._pickled = b""

    def get(self) -> Exception:
        error: Exception = RuntimeError(self._line)
        try:
            itself = pickle.loads(self._pickled)
        except Exception:
            itself = None
        if isinstance(itself, Exception):  # and not one that would end the script, as SystemExit
            error = itself
        error.__cause__ = _Original(self._text)
        return error


class _Original(Exception):
    """The traceback of a loader process, for the eyes."""

    def __str__(self) -> str:
        return str(self.args[0])


class Unsendable(Exception):
    pass


class Carried:
    """Something of the script, for a process that may be of another interpreter; unpickled where it can be said what is wrong."""

    def __init__(self, what: str, value: Any) -> None:
        self._what, self._value, self._pickled = what, value, b""

    def __reduce__(self) -> Any:
        try:
            return Carried._received, (self._what, bytes(ForkingPickler.dumps(self._value)))
        except Exception as error:
            raise Unsendable(f"the {self._what} cannot be sent to loader processes ({error})") from error

    @staticmethod
    def _received(what: str, pickled: bytes) -> "Carried":
        carried = Carried(what, None)
        carried._pickled = pickled
        return carried

    def get(self) -> Any:
        return pickle.loads(self._pickled) if self._pickled else self._value


def _own_positions() -> None:
    """A forked process shares the position of each open file with all others: reopens those that are read, where they are."""
    for name in os.listdir("/proc/self/fd"):
        file = int(name)
        try:
            if file <= 2 or not stat.S_ISREG(os.fstat(file).st_mode):
                continue
            if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
                continue
            again = os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # closed, or one that may not be opened any more
            continue
        try:
            os.lseek(again, os.lseek(file, 0, os.SEEK_CUR), os.SEEK_SET)
            os.dup2(again, file, inheritable=os.get_inheritable(file))
        except OSError:  # one without positions
            pass
        finally:
            os.close(again)


def _end_with(trainer: int, link: socket.socket) -> None:
    """Ends this process with the training process, whatever it is doing."""
    poll = select.poll()
    try:
        poll.register(os.pidfd_open(trainer), select.POLLIN)
    except ProcessLookupError:
        os._exit(1)
    except OSError:  # a kernel that has no such thing
        poll.register(link, 0)
    poll.poll()
    os._exit(1)


class _Reader:
    """Serves requests in a loader process: the urgent piece first, else the oldest request."""

    def __init__(self, link: socket.socket, name: str, samples: Samples) -> None:
        self._link, self._name, self._samples = link, name, samples
        self._asked: dict[int, tuple[int, list[tuple[Call, tuple[int, ...]]]]] = {}
        self._urgent: dict[int, None] = {}  # in order
        self._message = bytearray(1 << 18)  # more than a socket takes

    def run(self) -> None:
        while self._listen(wait=not self._asked):
            if not self._asked:
                continue
            ticket = next(iter(self._urgent or self._asked))
            self._urgent.pop(ticket, None)
            seed, calls = self._asked.pop(ticket)
            answer(self._link, ticket, self._read(seed, calls))

    def _listen(self, *, wait: bool) -> bool:
        """Takes the messages that are there. False: the training process wants nothing any more."""
        while True:
            try:
                size = self._link.recv_into(self._message, 0, 0 if wait else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            except ConnectionError:
                return False
            if size == 0:
                return False
            wait = False
            what, ticket, *more = pickle.loads(memoryview(self._message)[:size])
            if what == "read":
                urgent, seed, calls = more
                self._asked[ticket] = seed, calls
                if urgent:
                    self._urgent[ticket] = None
            elif what == "first" and ticket in self._asked:
                self._urgent[ticket] = None
            elif what == "drop":
                self._asked.pop(ticket, None)
                self._urgent.pop(ticket, None)

    def _read(self, seed: int, calls: list[tuple[Call, tuple[int, ...]]]) -> tuple[list[list[Any]], Error | None]:
        """The samples of each call, up to the first call that fails."""
        results: list[list[Any]] = []
        for call, samples in calls:
            try:
                values = self._samples.read(seed, call, samples)
                if len(values) != len(samples):
                    raise RuntimeError(f"__getitems__ returned {len(values)} samples for {len(samples)} indices")
            except BaseException as error:
                one = f"sample {samples[0]}" if len(samples) == 1 else f"samples {', '.join(map(str, samples))}"
                at = f"position {call.first}" if len(samples) == 1 else f"positions {call.first} to {call.end - 1}"
                of = "the evaluation" if call.epoch == EVALUATION else f"epoch {call.epoch}"
                return results, Error(error, f"In {self._name}, {one} ({at} of {of})")
            results.append(values)
        return results, None


def answer(link: socket.socket, ticket: int, value: Any) -> None:
    try:
        file = pack(value)
    except Exception as error:  # samples that cannot be pickled
        where = "A sample of the dataset cannot be sent to the training process (num_workers=0 reads it there)"
        file = pack(([], Error(error, where)))
    try:
        socket.send_fds(link, [ticket.to_bytes(8, "little")], [file])
    except ConnectionError:  # it has gone; the next look at the socket says so
        pass
    finally:
        os.close(file)


def main(
    *,
    link: socket.socket,
    others: list[socket.socket],
    forked: bool,
    trainer: int,
    place: tuple[int, int, int],
    dataset: Carried,
    init: Carried,
) -> None:
    """A loader process. `others`: ends of the sockets that a fork has copied. `place`: number, how many, seed."""
    # Terminals and launchers send them to the whole process group, and the training process needs samples until the job has ended
    # in good order; then it ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)  # not ignored, which programs that the dataset starts would inherit
    signal.pthread_sigmask(signal.SIG_UNBLOCK, OF_THE_GROUP)
    for other in others:
        other.close()
    if forked:
        _own_positions()
    # As many files may be on their way to training processes.
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(now, min(most, _MOST_FILES)), most))
    threading.Thread(target=_end_with, args=(trainer, link), daemon=True).start()
    torch.set_num_threads(1)  # the threads of OpenMP are not there after a fork
    number, count, seed = place
    name = f"loader process {number}"
    try:
        of_script, function = dataset.get(), init.get()
    except Exception as error:
        answer(link, START, f"{type(error).__name__}: {error}")
        return
    try:
        seed = seed_of(seed, -1, number)
        worker = torch.utils.data._utils.worker
        worker._worker_info = worker.WorkerInfo(id=number, num_workers=count, seed=seed, dataset=of_script)
        seed_all(seed)
        if function is not None:
            function(number)
        samples = Samples(worker._worker_info.dataset)
    except BaseException as error:
        answer(link, START, Error(error, f"In {name}, before its first sample"))
        return
    answer(link, START, None)
    _Reader(link, name, samples).run()
