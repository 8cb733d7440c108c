"""A worker's training loop without torch: how it finds its job, passes of batches, and how it ends. lockstep.jax and
lockstep.keras build on it.

Each pass over the loop is an epoch of the job. A batch is one unit, so that all batches have one size; a smaller one is padded. The
updates are the worker's own (optimizer.name = custom). Everything on the script's thread.
"""

import atexit
import contextlib
import hashlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from lockstep import _errors, _interrupts, _launchers, _session, _settings
from lockstep._errors import JobFailed, UsageError
from lockstep._own import OwnCoordinator
from lockstep._session import Kind, Reduction, Session, Work

_LOOK_S = 0.2  # how long Ctrl-C may have to wait for the session
_MOST_AWAY_S = 3600.0
_EVALUATED = 512  # test samples at once
_COMPILING = "5min"  # that the first batch and the first update may take


class Batch:
    """Samples of the data set that belong together. `len(batch)` is how many there are, without the padding."""

    def __init__(self, samples: Sequence[int], size: int, seed: str, epoch: int, round: int) -> None:
        self._count = len(samples)
        self.indices = np.full(size, samples[-1], np.int64)
        """Which samples, always as many. The padding repeats the last one, and has the weight 0."""
        self.indices[: self._count] = samples
        self.epoch = epoch
        self.round = round
        self._seed = seed
        self._weighed = self._count == size

    def __len__(self) -> int:
        return self._count

    @property
    def weights(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """1 for each sample and 0 for the padding: the mean is that with these weights."""
        self._weighed = True
        weights = np.zeros(len(self.indices), np.float32)
        weights[: self._count] = 1
        return weights

    @property
    def seed(self) -> int:
        """For dropout and the like: the same for these samples in this epoch, whichever worker has them. Below 2^32."""
        return int.from_bytes(hashlib.sha256(self._seed.encode()).digest()[:4], "little")


def check_counts(**counts: int | None) -> None:
    """None: not given."""
    for name, value in counts.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise UsageError(f"{name}: {value!r} is not a whole number from 1 on")


class Loop:
    """A job that this process is a worker of, from `_begin` on."""

    def __init__(self, *, run_dir: str | None, resume: bool | Literal["auto"], settings: Mapping[str, object] | None) -> None:
        address = os.environ.get("LOCKSTEP_COORDINATOR")
        if address and run_dir is not None:
            raise UsageError("run_dir is for a job whose coordinator the script starts: lockstep run has --run-dir")
        if resume not in (False, True, "auto"):
            raise UsageError(f"resume: {resume!r} is neither True nor False nor 'auto'")
        if resume and run_dir is None:
            raise UsageError(
                "resume is for the program that starts the coordinator: use lockstep run --resume"
                if address
                else "resume needs the run_dir of the job to continue"
            )
        launched = None if address else _launchers.launched(os.environ)
        if launched is not None:
            raise UsageError(
                f"{launched.launcher} has started {launched.workers} workers of this script: use lockstep run -n {launched.workers}"
            )
        if not address and (warning := _launchers.warning(os.environ)):
            _errors.say(warning)
        self._address, self._run_dir, self._resume = address, run_dir, resume
        self._given = _settings.checked(settings or {})
        _settings.refuse_unused(self._given)
        if self._given.get("optimizer.name", "custom") != "custom":
            raise UsageError("settings: optimizer.name is custom here, because the script's optimizer makes the updates")
        self._own: OwnCoordinator | None = None
        self._session: Session | None = None
        self._interrupts = _interrupts.Interrupts(self._interrupted, self._coordinator_has_ended, self._fail)
        self._work = Work(Kind.NONE)  # the run in hand, or the last one
        self._batch: Batch | None = None  # in hand, before its step
        self._held: Work | None = None  # a run that waits for its pass, or an epoch's end
        self._away = False
        self._passes = 0
        self._size = 0  # of batches, so far
        self._end: Work | None = None
        self._failed = False
        self._counted: _session.Counted | None = None

    # --- what the script asks

    @property
    def rank(self) -> int:
        """This worker's number."""
        return self._rank

    @property
    def size(self) -> int:
        """Workers that the job has."""
        return self._workers

    @property
    def epoch(self) -> int:
        """Of the batch in hand, or of the last one."""
        return self._work.epoch

    @property
    def round(self) -> int:
        """Of the batch in hand, or of the last one: how many updates the parameters have had."""
        return self._work.round

    @property
    def ended_early(self) -> bool:
        """The job is over, in good order, before all of its epochs were."""
        return self._end is not None and self._end.early

    @property
    def params_digest(self) -> str:
        """Of the parameters with which the job has ended; empty before."""
        return "" if self._end is None else self._end.params_digest

    @property
    def metrics(self) -> dict[str, float]:
        """Of the last round that is known to be closed, the same on all workers: `loss`, and what `log` was given."""
        if self._counted is None:
            return {}
        return {name: value for name, _, value in self._counted.metrics} | {"loss": self._counted.loss}

    def log(self, values: Mapping[str, Any]) -> None:
        """Numbers about the batch in hand, means over its samples, before its step. `metrics` has those of whole rounds."""
        if self._batch is None:
            raise UsageError("job.log is for the batch in hand, before job.step")
        for name, value in values.items():
            self._joined().log(name, Reduction.MEAN, float(value), len(self._batch))

    def __iter__(self) -> Iterator[Batch]:
        """The batches of this worker in the next epoch."""
        if self._batch is not None:
            raise UsageError("the loop was left before job.step was called for its batch")
        if self._passes >= self._epochs:
            raise UsageError(f"the job has {self._epochs} epochs, and this is one pass more: give epochs={self._epochs + 1}")
        if self._end is None:
            self._joined()
        self._passes += 1
        return self._batches(self._passes - 1)

    def away(self, reason: str, *, at_most: float = _MOST_AWAY_S) -> contextlib.AbstractContextManager[None]:
        """Put `with job.away("validation"):` around work that takes long and is no training. For so many seconds this worker is not
        lost for its lack of progress. Between two passes a worker is away by itself."""
        return self._absent(reason, at_most)

    def stop(self, reason: str) -> None:
        """Ends the job for all its workers, completed, with the round that was committed last. Passes are empty from then on."""
        if self._end is not None:
            return
        session = self._joined()
        self._come_back()
        session.stop(reason)
        run = self._work if self._batch is not None else self._held
        self._held = self._batch = None
        while self._end is None:
            if run is not None and run.kind is Kind.TRAIN:
                session.done(len(run.samples), 0.0)
            run = self._next_work()

    def close(self) -> None:
        """Ends the job, if it is still on, as `stop` does. After an exception this worker leaves it, and the others go on."""
        try:
            if self._session is not None and not self._session.is_parents and not self._failed and not _errors.ends_badly():
                self._come_back()
                if self._end is None and self._work.kind is Kind.TRAIN:
                    self.stop("its script has come to its end")
        except BaseException as error:
            self._fail(str(error) or type(error).__name__)
            raise
        finally:
            self._leave()

    # --- what the framework says

    def _begin(
        self,
        *,
        tensors: Sequence[_session.Tensor],
        initial: Any,
        digest: str,
        state_tensors: int,
        samples: int,
        test_samples: int,
        epochs: int,
        settings: Mapping[str, object],
        averages: bool = False,
    ) -> None:
        """Joins. `initial`: a NumPy array of FP32 that stays as it is until the first run."""
        self._epochs, self._tests = epochs, test_samples
        said = {key: _settings.text_of(value) for key, value in settings.items()}
        said = {"liveness.timeout": _COMPILING, "optimizer.name": "custom", "optimizer.lr": "1.0"} | said | self._given
        atexit.register(self._at_exit)
        _errors.last_words.add(self._fail)
        secret, wanted = os.environ.get("LOCKSTEP_SECRET_FILE") or None, os.environ.get("LOCKSTEP_WORKER", "")
        _session.log(f"worker {wanted}" if wanted else "worker", os.environ.get("LOCKSTEP_LOG_LEVEL", "warn"))
        if not self._address:
            if self._run_dir is None:  # nobody could read them
                said = {"checkpoint.every_epochs": "0", "checkpoint.rescue": "false"} | said
            self._own = OwnCoordinator(self._run_dir, resume=self._resume)
            self._interrupts.begin()
        session = Session(
            self._own.address if self._own else self._address or "",
            secret_file=self._own.secret_file if self._own else secret,
            settings=_settings.to_ini(said),
            slowdowns=os.environ.get("LOCKSTEP_SLOWDOWN") or None,
            wanted=int(wanted) if wanted.isdecimal() else None,
        )
        self._session = session
        self._rank, self._workers = session.worker, session.workers
        config = _settings.from_ini(session.config)
        if config["optimizer.name"] != "custom":
            raise UsageError(
                f"the job's optimizer is {config['optimizer.name']}, as its config says, and this script makes the updates: leave "
                "optimizer.name out of the config"
            )
        self._check(config)
        self._seed = config["job.seed"]
        if config["job.units"].isdecimal() and int(config["job.units"]) > 0:  # else all units of a whole round have one size
            self._size = -(-int(config["job.global_batch"]) // int(config["job.units"]))
        if int(config["job.epochs"]) > 0:
            self._epochs = max(epochs, int(config["job.epochs"]))
        if self._rank == 0:
            for line in _settings.differences(said, config) + _settings.unused(config):
                print(f"lockstep: {line}", flush=True)
        session.begin(
            _session.Job(
                tensors,
                initial.ctypes.data,
                digest,
                train_samples=samples,
                test_samples=test_samples,
                state_tensors=state_tensors,
                max_run_units=1,
                own_parameters=self._workers > 1,
                averages=averages,
                epoch_ends=True,
            )
        )
        self._initial = initial

    def _floats(self, address: int, *, state: bool = False) -> "np.ndarray[Any, np.dtype[np.float32]]":
        """A view of the session's memory."""
        return np.ctypeslib.as_array(self._joined().array(address, state=state))

    def _check(self, config: Mapping[str, str]) -> None:
        """Refuses a job that the framework cannot serve."""

    def _use(self, work: Work) -> None:
        """The script sees the parameters of this work from here on."""
        raise NotImplementedError

    def _make_update(self, work: Work) -> None:
        raise NotImplementedError

    def _evaluate(self, work: Work, batch: Batch) -> tuple[float, int]:
        """The sum of the losses, and how many samples are right. Only with test samples."""
        raise NotImplementedError

    def _done(self, loss_sum: float, counts_for: int | None) -> None:
        """The gradient of the batch in hand is added."""
        batch, self._batch = self._batch, None
        assert batch is not None
        if not math.isfinite(loss_sum):
            shown = ", ".join(map(str, batch.indices[: min(len(batch), 8)])) + (", ..." if len(batch) > 8 else "")
            where = f"worker {self.rank} in round {batch.round}"
            _errors.say(f"the loss of {where} is {loss_sum}, of the samples {shown} of the data set")
        self._joined().done(len(batch), loss_sum, counts_for)

    # --- passes

    def _batches(self, epoch: int) -> Iterator[Batch]:
        while (work := self._next_run(epoch)) is not None:
            self._work = work
            self._use(work)
            self._size = max(self._size, len(work.samples))
            self._batch = Batch(
                work.samples, self._size, f"{self._seed} {work.epoch} {work.ranges[0][0]}", work.epoch, work.round
            )
            try:
                yield self._batch
            except GeneratorExit:
                self._go_away("its script has left the loop")
                raise
            if self._batch is not None:
                raise UsageError("job.step(grads, loss) was not called for this batch")

    def _next_run(self, epoch: int) -> Work | None:
        """None: the epoch has no more."""
        self._come_back()
        work, self._held = self._held, None
        if work is not None and work.kind is Kind.TRAIN and self._end is None and self._joined().cancelled():
            self._joined().done(len(work.samples), 0.0)  # others have computed it
            work = None
        while self._end is None and (work := work or self._next_work()) is not None:
            if work.kind is Kind.TRAIN and work.epoch <= epoch:
                return work
            if work.kind is Kind.TRAIN or work.epoch >= epoch:
                self._held = work
                self._use(work)
                self._go_away("between two epochs")
                return None
            work = None
        return None

    def _next_work(self) -> Work | None:
        """The next run or epoch's end; None: the job has ended."""
        session = self._joined()
        while True:
            work = session.next(_LOOK_S)
            if work.counted is not None:
                self._counted = work.counted
            if work.kind in (Kind.TRAIN, Kind.EPOCH_END):
                return work
            if work.kind is Kind.UPDATE:
                try:
                    self._make_update(work)
                except BaseException as error:  # with a part of it the parameters are nobody's
                    self._fail(f"{type(error).__name__} within the update of round {work.round}: {error}".splitlines()[0])
                    raise
                session.update_done()
            elif work.kind is Kind.EVALUATE:
                self._evaluate_all(work)
            elif work.kind is Kind.END:
                if work.final_parameters:
                    self._use(work)
                self._end = work
                self._ended(work)
                return None

    def _evaluate_all(self, work: Work) -> None:
        first, end = work.evaluate
        loss, right = 0.0, 0
        while first < end:
            part = range(first, min(first + _EVALUATED, end))
            size = min(_EVALUATED, self._tests)
            found = self._evaluate(work, Batch(part, size, f"{self._seed} test {first}", work.epoch, work.round))
            loss, right, first = loss + found[0], right + found[1], part.stop
        self._joined().evaluation_done(loss, right)

    # --- its end

    def _ended(self, work: Work) -> None:
        self._interrupts.job_has_ended()
        reason = work.reason
        if work.failed and self._own is not None:
            reason = self._own.last_line() or reason
        self._leave()
        if work.unfit:
            raise UsageError(reason)
        if work.failed:
            raise JobFailed(reason)
        self._interrupts.heed()
        if work.left:
            _errors.say(f"{reason}; the job goes on without this worker, which ends with status 0")
            raise SystemExit(0)
        if not work.final_parameters:
            raise JobFailed(f"the job has ended, and the parameters of this worker are not its last ones: {work.not_final}")

    def _leave(self) -> None:
        session, self._session = self._session, None
        own, self._own = self._own, None
        try:
            if session is not None:
                session.end()
            if own is not None:
                if self._end is None:
                    own.interrupt(at_once=self._interrupts.twice)
                own.finish()
        finally:
            self._interrupts.end()
            atexit.unregister(self._at_exit)
            _errors.last_words.discard(self._fail)

    def _at_exit(self) -> None:
        try:
            self.close()
        except (_errors.Error, KeyboardInterrupt, SystemExit) as error:
            _errors.end_with(error)

    def _fail(self, reason: str) -> None:
        self._failed = True
        session = self._session
        if session is not None and not session.is_parents:
            session.interrupt(reason)

    def _interrupted(self, name: str) -> None:
        """In the handler of a signal."""
        own = self._own
        if own is not None:
            line = f"lockstep: {name}: the job ends with the round that is open; Ctrl-C once more ends it at once\n"
            with contextlib.suppress(OSError):
                os.write(2, line.encode())
            own.interrupt()

    def _coordinator_has_ended(self, _: float) -> bool:
        own = self._own
        return own is None or own.has_ended()

    # --- within

    def _joined(self) -> Session:
        if self._session is None:
            raise UsageError("the job is over" if self._end is not None else "there is no job yet")
        return self._session

    @contextlib.contextmanager
    def _absent(self, reason: str, at_most: float) -> Iterator[None]:
        was = self._away
        if self._session is not None:
            self._session.away(at_most, reason)
        try:
            yield
        finally:
            if self._session is not None and not was:
                self._session.back()

    def _go_away(self, reason: str) -> None:
        if self._session is not None and not self._failed and not _errors.ends_badly():
            self._session.away(_MOST_AWAY_S, reason)
            self._away = True

    def _come_back(self) -> None:
        away, self._away = self._away, False
        if away and self._session is not None:
            self._session.back()
