"""A worker's session: lockstep.h in Python's terms, without any library but ctypes."""

import ctypes
import enum
import os
import threading
import weakref
from collections.abc import Sequence
from ctypes import c_float, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, field
from typing import Any

from lockstep import _abi, _hung
from lockstep._errors import UsageError, end_with_one_line, of_status

_LOOK_S = 0.2  # how long Ctrl-C may have to wait for a coordinator


def _check_address(address: int) -> None:
    if not address:
        raise UsageError("there is nothing at address 0: this work has no such values")


def _counted(work: _abi.Work) -> "Counted":
    metrics = tuple((_abi.text(m.name), Reduction(m.reduction), m.value) for m in work.metrics[: work.metric_count])
    slow = tuple(work.slow_workers[: work.slow_worker_count])
    return Counted(
        work.counted_round, work.counted_epoch, work.counted_samples, work.counted_loss, metrics, _abi.text(work.policy), slow
    )


def _join(options: _abi.JoinOptions) -> c_void_p:
    """In a thread of its own, for it waits long for a coordinator that is not there, and Ctrl-C is the main thread's."""
    handle = c_void_p()
    library = _abi.library()
    failed: list[tuple[int, str]] = []
    lock = threading.Lock()  # who has the handle in the end
    given_up = finished = False

    def join() -> None:
        nonlocal finished
        status = library.lockstep_join(ctypes.byref(options), ctypes.byref(handle))
        if status != 0:
            failed.append((status, _abi.text(library.lockstep_error())))
        with lock:
            finished = True
            if given_up:
                library.lockstep_end(handle)

    thread = threading.Thread(target=join, name="lockstep join", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_LOOK_S)
    except BaseException:
        with lock:
            given_up = True
            if finished:
                library.lockstep_end(handle)
        raise
    if failed:
        raise of_status(*failed[0])
    return handle


_open: "weakref.WeakSet[Session]" = weakref.WeakSet()


def any_open() -> bool:
    """Whether this process has threads and sockets of a session."""
    return len(_open) > 0


def version() -> str:
    """Of the library: "0.1.0"."""
    return _abi.text(_abi.library().lockstep_version())


def log(name: str, level: str) -> None:
    """Sets the name in front of the library's own log lines on standard error, and the least level that is shown."""
    _abi.check(_abi.library().lockstep_log(name.encode(), level.encode()))


class Kind(enum.IntEnum):
    NONE = 0
    """The time was up."""
    TRAIN = 1
    """Add the gradient sum over `samples` to `gradient`, then `done`."""
    EVALUATE = 2
    """Evaluate test samples [evaluate[0], evaluate[1]), then `evaluation_done`."""
    END = 3
    UPDATE = 4
    """Change `update` by `gradient`, then `update_done`."""
    EPOCH_END = 5
    """Only with `Job.epoch_ends`: `epoch`, and those before it, have ended. The parameters after its last round stay until `next`
    is called again. It comes before any work of the next epoch, also to a worker that had no units at the epoch's end. `round` is
    the first one of a later epoch. The last epoch ends with END."""


class Reduction(enum.IntEnum):
    """How the numbers are reduced that all workers of a round log under one name."""

    MEAN = 0
    """Over the samples that each was logged for."""
    SUM = 1
    MIN = 2
    MAX = 3


@dataclass(frozen=True)
class Counted:
    """The samples and metrics that a committed round has counted."""

    round: int
    epoch: int
    samples: int
    loss: float
    """Mean over the samples."""
    metrics: tuple[tuple[str, Reduction, float], ...] = ()
    policy: str = ""
    """The policy of the round."""
    slow: tuple[int, ...] = ()
    """Workers whose units took at least 1.5 times the median's time, as the coordinator sees it."""


@dataclass(frozen=True)
class Group:
    """Settings of the job's own update rules for some of the parameters. None: the job's setting."""

    lr_factor: float = 1.0
    """The learning rate, as a multiple of the schedule's rate."""
    weight_decay: float | None = None
    momentum: float | None = None

    def _fields(self) -> _abi.Group:
        return _abi.Group(self.lr_factor, *(-1.0 if value is None else value for value in (self.weight_decay, self.momentum)))


@dataclass(frozen=True)
class Tensor:
    """A parameter, as checkpoints call it."""

    name: str
    shape: tuple[int, ...]
    group: Group | None = None
    """The same on every worker. None: the job's settings."""


@dataclass(frozen=True)
class Job:
    """The description of the model and the data that the exchange needs."""

    tensors: Sequence[Tensor]
    """In model order."""
    initial: int
    """Address of the FP32 values that a new job starts from, the same on every worker unless `own_parameters`; left as they are
    until there is work."""
    dataset_digest: str
    train_samples: int
    test_samples: int = 0
    finish_order: Sequence[int] = field(default=())
    """The order in which the backward pass should finish the tensors' gradients, the same on every worker; empty: last to first."""
    state_tensors: int | None = None
    """If the job's optimizer.name is custom, the program makes the updates. Their state has this many times the size of the
    parameters, the same on every worker. None: the program makes no updates."""
    max_run_samples: int = 0
    """Most samples that this worker computes at once; a unit is never divided. 0: no bound. A worker's own setting, as the next
    one."""
    max_run_units: int = 0
    """1: each unit is a run of its own."""
    own_parameters: bool = False
    """Each worker has drawn its own `initial`; the job begins with that of the worker with the lowest id. The same on every
    worker."""
    averages: bool = False
    """Some parameters are running statistics, which travel with the gradients: settings that would change them are refused."""
    epoch_ends: bool = False
    """This program gets the end of each epoch as work (`Kind.EPOCH_END`)."""
    costs: Sequence[float] = field(default=())
    """The cost of each training sample beside the others: at least 0 and not all 0. Where the policy moves work it is shared out by
    that. Empty: all cost the same, or `tell_costs` says it."""
    max_run_cost: float = 0
    """Most that this worker computes at once costs, as a batch that is padded: its samples times the dearest one's cost. Until the
    costs of an epoch are told each unit is a run. 0: no bound."""


@dataclass(frozen=True)
class Work:
    """The work that `next` has returned. Addresses are valid until `done`, at the end until `end`, and as long as there is an
    `array` of them."""

    kind: Kind
    epoch: int = 0
    round: int = 0
    ranges: tuple[tuple[int, int], ...] = ()
    """Positions in the epoch's order of samples, half open."""
    samples: tuple[int, ...] = ()
    """Which training samples those are, in that order."""
    units: int = 0
    parameters: int = 0
    """Address of the parameters to use; 0: there are none."""
    gradient: int = 0
    """Address of the sum to add to; of an update, of the mean, which may be written over."""
    device: int = -1
    """Where all that addresses point to lies: the number of a GPU; below 0: in the host's memory."""
    evaluate: tuple[int, int] = (0, 0)
    reason: str = ""
    failed: bool = False
    unfit: bool = False
    """At the end: it has failed because of this worker, which does not suit the job."""
    left: bool = False
    early: bool = False
    """At the end: the job has ended before all of its rounds were done, and has not failed."""
    final_parameters: bool = False
    """At the end: `parameters` are those that the job ended with; else `not_final` says why not."""
    params_digest: str = ""
    not_final: str = ""
    update: int = 0
    """Address of the parameters, to be changed in place, to the same bits on every worker."""
    state: int = 0
    """Address of the state (`Job.state_tensors`), zero before the first update. Checkpoints and workers that join have nothing but
    parameters and state."""
    learning_rate: float = 0
    fraction: float = 0
    """Of a step that the update is."""
    update_samples: int = 0
    steps: int = 0
    """The sum of all fractions so far, this one included, rounded up."""
    schedule_position: float = 0.0
    """Updates of whole rounds before this one, of which those that were made may be fractions."""
    tells_final: bool = True
    """Somebody gains by `block_final` in this run; where all others read the gradient in place, nobody does."""
    late: bool = False
    """At an epoch's end: the parameters may be later ones. This worker has joined since, was behind and copied them, or computed
    asynchronously."""
    counted: Counted | None = None
    """The newest round that is known to be committed. Beside a run of a round it is the one before; with UPDATE it is that of the
    update, if its commit was heard of. Of every kind but NONE."""


class Session:
    """A worker of a job. All calls from one thread, but `interrupt`, `cancelled` and `block_final`.

    From the first one on an error of ours that nobody catches ends the process with one line and its status, and no traceback.

    `device`: where the program computes, and parameters and gradients are to be; "cuda:0" is a GPU's memory (`tensor`), without it
    it is the host's.

    >>> session = Session("127.0.0.1:7070")
    >>> session.begin(Job(...))
    >>> while (work := session.next()).kind is not Kind.END:
    ...     ...  # add to session.floats(work.gradient)
    ...     session.done(len(work.samples), loss_sum)
    """

    def __init__(
        self,
        coordinator: str,
        *,
        secret_file: str | None = None,
        data_host: str | None = None,
        settings: str | None = None,
        slowdowns: str | None = None,
        wanted: int | None = None,
        connect_timeout: float = 60,
        device: str | None = None,
    ) -> None:
        end_with_one_line()
        self._process = os.getpid()
        # While one thread ends the session, what others may call waits, and finds that it has ended. A handler of a signal may run
        # in the thread that has it.
        self._staying = threading.RLock()
        self._work = Work(Kind.NONE)  # that is in hand
        self._count = self._state_count = 0
        self._on_host = device in (None, "cpu")
        options = _abi.JoinOptions(
            ctypes.sizeof(_abi.JoinOptions),
            coordinator.encode(),
            _abi.encoded(secret_file),
            _abi.encoded(data_host),
            _abi.encoded(settings),
            _abi.encoded(slowdowns),
            -1 if wanted is None else wanted,
            connect_timeout,
            _abi.encoded(device),
            0 if _hung.someone_looks() else 1,
            _hung.stack_signal(),
        )
        self._handle = _join(options)
        _open.add(self)
        self.worker: int = _abi.library().lockstep_worker(self._handle)
        self.incarnation: int = _abi.library().lockstep_incarnation(self._handle)
        self.workers: int = _abi.library().lockstep_workers(self._handle)
        self.config: str = _abi.text(_abi.library().lockstep_config(self._handle))

    def begin(self, job: Job) -> None:
        """Tells the coordinator that this worker is ready."""
        sizes = []
        tensors = (_abi.Tensor * len(job.tensors))()
        shapes, groups = [], []  # kept until the call is over
        for to, tensor in zip(tensors, job.tensors, strict=True):
            shape = (c_uint64 * len(tensor.shape))(*tensor.shape)
            shapes.append(shape)
            to.name, to.shape, to.dimensions = tensor.name.encode(), shape, len(tensor.shape)
            if tensor.group is not None:
                groups.append(tensor.group._fields())
                to.group = ctypes.pointer(groups[-1])
            size = 1
            for extent in tensor.shape:
                size *= extent
            sizes.append(size)
        if len(job.costs) not in (0, job.train_samples):
            raise UsageError(f"costs of {len(job.costs)} samples, and there are {job.train_samples}")
        order = list(job.finish_order) or list(reversed(range(len(sizes))))
        if len(order) != len(sizes):
            raise UsageError(f"finish_order has {len(order)} entries for {len(sizes)} tensors: it names each once")
        self._count = sum(sizes)
        self._state_count = self._count * (job.state_tensors or 0)
        description = _abi.Job(
            ctypes.sizeof(_abi.Job),
            self._count,
            (c_uint64 * len(sizes))(*sizes),
            (c_uint32 * len(order))(*order),
            len(sizes),
            tensors,
            len(sizes),
            job.initial,
            job.dataset_digest.encode(),
            job.train_samples,
            job.test_samples,
            job.state_tensors is not None,
            job.state_tensors or 0,
            job.max_run_samples,
            job.max_run_units,
            job.own_parameters,
            job.averages,
            job.epoch_ends,
            (c_float * len(job.costs))(*job.costs) if len(job.costs) > 0 else None,
            job.max_run_cost,
        )
        _abi.check(_abi.library().lockstep_begin(self._open(), ctypes.byref(description)))

    def next(self, seconds: float = -1) -> Work:
        """Waits for work or the end, at most so long; below 0: for ever, deaf to Ctrl-C."""
        work = _abi.Work(size=ctypes.sizeof(_abi.Work))
        _abi.check(_abi.library().lockstep_next(self._open(), seconds, ctypes.byref(work)))
        kind = Kind(work.kind)
        if kind is Kind.NONE:
            return Work(kind)
        self._work = Work(
            kind=kind,
            epoch=work.epoch,
            round=work.round,
            ranges=tuple((r.first, r.end) for r in work.ranges[: work.range_count]),
            samples=tuple(work.samples[: work.sample_count]),
            units=work.units,
            parameters=work.parameters or 0,
            gradient=work.gradient or 0,
            device=work.device,
            evaluate=(work.evaluate.first, work.evaluate.end),
            reason=_abi.text(work.reason),
            failed=bool(work.failed),
            unfit=bool(work.unfit),
            left=bool(work.left),
            early=bool(work.early),
            final_parameters=bool(work.final_parameters),
            params_digest=_abi.text(work.params_digest),
            not_final=_abi.text(work.not_final),
            update=work.update or 0,
            state=work.state or 0,
            learning_rate=work.learning_rate,
            fraction=work.fraction,
            update_samples=work.update_samples,
            steps=work.steps,
            schedule_position=work.schedule_position,
            tells_final=bool(work.tells_final),
            late=bool(work.late),
            counted=_counted(work) if work.has_counted else None,
        )
        return self._work

    def array(self, address: int, *, state: bool = False) -> Any:
        """The parameters or the gradient (`state`: the state) of the work in hand as an array of ctypes, with the buffer protocol.

        The memory stays as long as anything refers to it, also beyond `done` and `end`; with it all memory of the session.
        """
        if not self._on_host:
            raise UsageError("values in a GPU's memory are no array: use tensor")
        _check_address(address)
        memory = c_void_p()
        _abi.check(_abi.library().lockstep_keep(self._open(), address, ctypes.byref(memory)))
        array = (c_float * (self._state_count if state else self._count)).from_address(address)
        # Who has taken its buffer (a memoryview, a tensor) refers to the array.
        release = weakref.finalize(array, _abi.library().lockstep_release, memory)
        release.atexit = False  # what is left of it then may still be in use, and goes with the process
        return array

    def tensor(self, address: int, *, state: bool = False) -> Any:
        """The same, in the host's memory or a GPU's, as a capsule of DLPack, for from_dlpack of torch and others, once."""
        _check_address(address)
        tensor = c_void_p()
        count = self._state_count if state else self._count
        _abi.check(_abi.library().lockstep_keep_tensor(self._open(), address, count, ctypes.byref(tensor)))
        return _abi.capsule(tensor)

    def floats(self, address: int) -> "memoryview[float]":
        """The same as a memoryview of FP32 values."""
        return memoryview(self.array(address)).cast("B").cast("f")

    def block_final(self, tensor: int, stream: int | None = None) -> None:
        """Optional, in a run: the gradient of this tensor does not change any more in it, and may travel. Any thread, in any order,
        at most once for a tensor, before `done`. `stream`: of a GPU, as soon as all that was asked of it so far is done."""
        self._open()  # before the lock: in a forked child nobody gives it back
        with self._staying:
            if stream is None:
                _abi.library().lockstep_block_final(self._open(), tensor)
            else:
                _abi.check(_abi.library().lockstep_block_final_after(self._open(), tensor, stream))

    def await_stream(self, stream: int) -> None:
        """Of a GPU: waits until all that was asked of it so far is done. Before `done`, `evaluation_done` and `update_done`."""
        _abi.check(_abi.library().lockstep_await(self._open(), stream))

    def log(self, name: str, reduction: Reduction, value: float, samples: int = 0) -> None:
        """In a run, before `done`: a number about it, a mean about so many of its samples."""
        _abi.check(_abi.library().lockstep_log_metric(self._open(), name.encode(), reduction, value, samples))

    def note_reading(self, waited: float, ahead: int | None = None) -> None:
        """In a run, before `done`: for so many seconds since `next` gave it the program waited for its samples; so many lie ready
        for later runs."""
        _abi.library().lockstep_note_reading(self._open(), waited, -1 if ahead is None else ahead)

    def done(self, samples: int, loss_sum: float, divisor: int | None = None) -> None:
        """`divisor`: the weight of the sums of gradient and loss in the round's mean; without it the number of samples."""
        if divisor is None:
            _abi.check(_abi.library().lockstep_done(self._open(), samples, loss_sum))
        else:
            _abi.check(_abi.library().lockstep_done_weighted(self._open(), samples, divisor, loss_sum))

    def update_done(self) -> None:
        handle = self._open()
        if self._work.kind is not Kind.UPDATE:
            raise UsageError("update_done without an update in hand")
        self._work = Work(Kind.NONE)
        _abi.library().lockstep_update_done(handle)

    def evaluation_done(self, loss_sum: float, correct: int) -> None:
        """`correct`: how many samples of `evaluate` are right."""
        handle = self._open()
        if self._work.kind is not Kind.EVALUATE:
            raise UsageError("evaluation_done without an evaluation in hand")
        first, end = self._work.evaluate
        if not 0 <= correct <= end - first:
            raise UsageError(f"evaluation_done: {correct} samples are right, of {end - first}")
        self._work = Work(Kind.NONE)
        _abi.library().lockstep_evaluation_done(handle, loss_sum, correct)

    def cancelled(self) -> bool:
        """Whether the result of the run in hand cannot count any more. Any thread."""
        self._open()
        with self._staying:
            return bool(_abi.library().lockstep_cancelled(self._open()))

    def interrupt(self, reason: str) -> None:
        """Leaves the job with this reason: `next` returns the end soon. Any thread."""
        if self.is_parents:
            return
        with self._staying:
            if self._handle:
                _abi.library().lockstep_interrupt(self._handle, reason.encode())

    def stop(self, reason: str) -> None:
        """Ends the job for all its workers, completed, with the round that was committed last: `next` returns the end soon. The run
        in hand does not count; `done` must be called for it all the same."""
        _abi.check(_abi.library().lockstep_stop(self._open(), reason.encode()))

    def away(self, seconds: float, reason: str) -> None:
        """From here to `back` this thread does something else, for at most so long: the worker is not lost for it. With a run in
        hand the parameters stay as they are; others may have computed it by then (`cancelled`)."""
        _abi.check(_abi.library().lockstep_away(self._open(), seconds, reason.encode()))

    def back(self) -> None:
        """Without effect where it is not away; `next` and `done` say it by themselves."""
        _abi.check(_abi.library().lockstep_back(self._open()))

    def tell_costs(self, epoch: int, costs: Sequence[float]) -> None:
        """Tells the costs of the samples of that epoch by position, where the program has an order of its own; `Job.costs` has the
        rest. Of this epoch or the next one, on every worker."""
        _abi.check(_abi.library().lockstep_tell_costs(self._open(), epoch, (c_float * len(costs))(*costs), len(costs)))

    @property
    def is_parents(self) -> bool:
        """This process is a forked child, which can do nothing with the session."""
        return os.getpid() != self._process

    def end(self) -> None:
        """Leaves the job if it is still on. May be called again."""
        _open.discard(self)
        if self.is_parents:  # nobody gives the lock back there
            self._handle = c_void_p()
            return
        with self._staying:
            handle, self._handle = self._handle, c_void_p()
            if handle:
                _abi.library().lockstep_end(handle)

    def _open(self) -> c_void_p:
        if not self._handle:
            raise UsageError("the session has ended")
        if self.is_parents:
            raise UsageError("a forked child cannot use its parent's session")
        return self._handle
