"""The passes over the prepared loader: the session's work becomes the batches of the script's loop.

`Passes` owns the run that waits for its pass, this worker's absences, the job's last metrics and its end. Between two batches it
does what else the session wants: updates and evaluations. The session itself, signals and leaving are _job.py's, and what a script
does with its batch is _run.py's.

Everything on the script's thread.

Invariants:
- At most one run is in hand or held: the session hands out the next one when this one is done.
- A pass over the loader is an epoch of the job, also for a worker that joins late: earlier ones are empty.
- Between two passes the model has the parameters of the epoch's end; after the job's end it has its last ones.
"""

import atexit
import contextlib
import inspect
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch
from torch import nn

from lockstep import _agreed, _backward, _errors, _loader, _metrics, _optimizer, _position, _preparing, _run, _samples, loggers
from lockstep._errors import JobFailed, UsageError
from lockstep._run import State
from lockstep._session import Kind, Session, Work

MOST_AWAY_S = 3600.0  # that a worker may do something else, if the script does not say how long
_LOOK_S = 0.2  # how long Ctrl-C may have to wait for the session
_LEFT = "its script has left the loop"
_LOOKED = "its script has looked at a batch"


class Passes:
    """The passes of one job.

    `session`: the job's, None before and after it. `joined`: the same, or raises. `stays`: whether this worker is in the job and
    has not said that it leaves. `heed_signals` is called before each pass, `pass_on` between looks for work. `ended` takes the
    job's end and raises if it was no good one. `fail` says why this worker leaves. `waiting`: as
    `_beside.Watch.waiting`.
    """

    def __init__(
        self,
        run: _run.RunInHand,
        *,
        session: Callable[[], Session | None],
        joined: Callable[[], Session],
        stays: Callable[[], bool],
        heed_signals: Callable[[], None],
        pass_on: Callable[[], None],
        ended: Callable[[Work], None],
        fail: Callable[[str], None],
        waiting: Callable[[str], contextlib.AbstractContextManager[Callable[[], None]]],
    ) -> None:
        self._run = run
        self._waiting = waiting
        self._session, self._joined, self._stays = session, joined, stays
        self._heed_signals, self._pass_on, self._ended, self._fail = heed_signals, pass_on, ended, fail
        self.begun = 0  # passes
        self._open: weakref.ref[Generator[Any, None, None]] | None = None  # the last one
        self.end: Work | None = None
        self.metrics = _metrics.Metrics(None)
        self.loggers: list[loggers.Logger] = []
        self.refused = False  # the loop has raised an error, whoever has caught it
        self._held: Work | None = None  # a run that waits for its pass, or the end of this pass's epoch or a later one
        self._absence: tuple[str, float] | None = None  # why this worker is away, and until when at most (time.monotonic)
        self._left: BaseException | None = None  # what has happened when the script left its loop by break
        self._told_late = self._told_kept = self._told_ahead = False
        self._pending: Work | None = None  # the update of the batch in hand, whose step is still to come
        self._clips: tuple[_agreed.Clip, ...] | None = None  # of this worker, for that update
        self.lacks_update = False  # the model, that of the batch in hand
        self._ready: Work | None = None  # work that has come since the batch in hand was settled
        self._looked_at: Any = None  # items of a stream, of a run whose batch was only looked at

    def prepare(self, parts: _preparing.Preparation, model: nn.Module, evaluation: _loader.Evaluation | None) -> None:
        """Before the job is joined."""
        self._parameters, self._order, self._batches = parts.parameters, parts.order, parts.batches
        self._costs = parts.costs
        self._rule, self._schedule, self._updates = parts.rule, parts.rule.schedule, parts.rule.updates
        self._epochs = parts.epochs
        self._model, self._evaluation = model, evaluation

    def begin(
        self,
        optimizer: _optimizer.PreparedOptimizer,
        rate: _optimizer.Rate,
        seed: int,
        samples: int,
        state: _position.LoaderState,
    ) -> None:
        """From here on there may be passes. `seed`: the job's; `samples`: that an epoch has."""
        self._optimizer, self._rate, self._seed, self._samples = optimizer, rate, seed, samples
        self._state = state

    # --- what the script asks

    @property
    def next_round(self) -> int | None:
        """The round that the next pass begins in; None: it is not known."""
        return None if self._held is None else self._held.round

    def position(self) -> tuple[int, int] | None:
        """The epoch of the last batch, or that of the first work, and how many updates the model has. None: there was no work."""
        run, held = self._run.work, self._held
        if self.end is not None:
            last = self.metrics
            return None if last.round < 0 else (last.epoch, last.round + 1)
        if held is not None:
            return (run or held).epoch, held.round
        return None if run is None else (run.epoch, run.round + (not self.lacks_update))

    def rates(self) -> list[float]:
        """Of the update that is being computed."""
        if self._updates is not None:
            return [float(group["lr"]) for group in self._optimizer.param_groups]
        return self._optimizer.rates(self._rate.of(self._run.work.schedule_position if self._run.work else 0.0))

    def next_pass(self) -> Iterator[Any]:
        """One pass over the loader: the runs of this worker in that epoch."""
        if self._left is not None:
            left, self._left = self._left, None
            raise left
        if self.end is None:
            self._joined()
        self._heed_signals()  # where another thread has prepared the job
        if self._run.state is State.STEPPED:  # the script has left the loop by break
            self._finish(self._joined())
        if self._run.state is State.UPDATING:
            raise UsageError("an exception has ended an update of the job in the middle, so this worker has left it")
        if self._run.state is not State.DONE:
            raise UsageError(
                "the loop over the loader was left before the step for its batch was done: break after opt.step(), and look at a "
                "batch by next(iter(loader))"
            )
        epoch = self.begun
        if self._schedule is not None and self._schedule.steps_in_epoch and self._run.schedule_steps < epoch:
            raise UsageError(
                "sched.step() was not called after the last pass over the loader: call it once after each pass, or once after each "
                "opt.step() with scheduler_steps='update'"
            )
        self.begun += 1
        if epoch >= self._epochs:
            raise UsageError(f"the job has {self._epochs} epochs, as job.prepare was told, and this is one more")
        self._order.begin_pass(epoch)
        if (session := self._session()) is not None:
            self._costs.tell(session, epoch, self._samples)
        _backward.keep_from_compiler()
        runs = self._guarded(self._runs(epoch))
        self._open = weakref.ref(runs)
        return runs

    def close_pass(self) -> None:
        """The job is over for this worker: nothing is left to be done for a pass that the script has not gone through."""
        runs = None if self._open is None else self._open()
        if runs is not None and inspect.getgeneratorstate(runs) != inspect.GEN_RUNNING:
            runs.close()

    @contextlib.contextmanager
    def away(self, reason: str, at_most: float) -> Iterator[None]:
        """The script does something else for so many seconds, which is no training. Within another absence, that goes on after."""
        before = self._absence
        self._come_back()
        try:
            self._go_away(reason, at_most)
            yield
        finally:
            self._come_back()
            if before is not None and before[1] > time.monotonic():
                self._go_away(before[0], before[1] - time.monotonic())

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """The script waits for other workers, in a call of torch.distributed. They may wait for the batch that it has done."""
        if not self._stays() or self.end is not None:
            yield
            return
        if self._run.state is State.STEPPED:
            self._run.hand_in(self._joined())
        with self.away("in a call of torch.distributed", MOST_AWAY_S):
            yield

    def stop(self, reason: str) -> None:
        """Ends the job for all workers, with the batch in hand if its step was done."""
        if self.end is not None:
            return
        session = self._joined()
        if self._run.state is State.UPDATING:
            raise UsageError("an exception has ended an update of the job in the middle, so this worker has left it")
        self._come_back()
        self._leave_settled()
        self._complete()
        if self.end is not None:
            return
        self._come_back()
        self._parameters.check_values()
        session.stop(reason)
        run = self._held or (None if self._run.state is State.DONE else self._run.work)
        self._held = None
        while True:
            if run is not None and run.kind is Kind.TRAIN:
                self._run.give_up(session, run)
            run = self._work()
            if run is None:
                return

    def settle(self) -> list[torch.Tensor]:
        """The script wants to see the gradient of the update that its batch belongs to. Hands the batch in, and waits for the
        round's commit; returns a copy of its mean gradient. If the round has another batch for this worker, it is that over its
        own."""
        own = self._run.own_gradients()
        self._run.deliver(self._joined())
        self._ready = self._work(settles=True)
        if self._pending is None:
            self._run.reads.note_partial(own)
            return own
        said = self._run.agreed.of(self._pending.round)
        means = self._parameters.mean_gradients(self._pending.gradient, self._run.floats)
        return [mean * self._factor(said) for mean in means]

    def step(self, clips: tuple[_agreed.Clip, ...] | None) -> None:
        """opt.step() was called: makes the update of a round that is committed. `clips`: of this worker."""
        if self._run.undecided is not None:  # its rate follows from what the script does after this step
            self._clips = clips
            return
        pending, self._pending = self._pending, None
        if pending is not None:
            self._make_update(pending, clips)
            self._run.state = State.STEPPED
            self.lacks_update = False

    def _finish(self, session: Session, *, goes_on: bool = True) -> None:
        """The script has come to the end of its loop's body, or has left the loop after a step."""
        self._run.finish(session, goes_on=goes_on)
        pending, self._pending = self._pending, None
        if pending is not None:
            self._make_update(pending, self._clips)

    def _leave_settled(self) -> None:
        """The script has left a batch between its backward pass and its step. All workers make the update that it belongs to."""
        if self._run.settled:
            pending, self._pending = self._pending, None
            self._run.forget()
            if pending is not None:
                self._make_update(pending)

    def _factor(self, said: _agreed.Said) -> float:
        """Of the mean gradient, where the script adds up those of several batches."""
        return float(self._run.micro_batches) if said.accumulates else 1.0

    def close(self, reason: str) -> None:
        """The script has what it wants: as `stop`, if the job has a model by now that it could end with."""
        self._come_back()
        self._leave_settled()
        self._complete()
        self._note_ahead()
        run = self._held or self._run.work
        if self.end is None and run is not None and run.round > 0:
            self.stop(reason)

    def forget_left(self) -> None:
        """Drops the exception with which the script left its loop: this worker has said why it leaves."""
        self._left = None

    # --- one pass

    def _guarded(self, runs: Iterator[Any]) -> Generator[Any, None, None]:
        error = _errors.Error  # the interpreter may end this where modules have no names any more
        try:
            yield from runs
        except error:
            self.refused = True
            raise

    def _runs(self, epoch: int) -> Iterator[Any]:
        first = True
        self._run.begin_pass(epoch)
        while (given := self._next(epoch)) is not None:
            session = self._joined()
            run = self._order.in_order(given)
            self._run.hand_out(run)
            self.lacks_update = True
            self._parameters.use(run.parameters, self._run.floats)
            if self._updates is None:
                self._optimizer.show(self._rate.of(run.schedule_position))
            else:
                self._optimizer.check_unchanged()
                self._updates.advance(run.schedule_position)
                self._optimizer.changed_by_update()
            asked = time.monotonic()
            values, self._looked_at = self._looked_at, None
            if values is None:
                values = self._batches.read_run(run, *self._order.to_read(run))
            self._run.log_reading(self._order.metrics(run.epoch) | self._batches.metrics() | self._claims(run.round))
            self._run.seed(self._seed)
            batch = self._batches.collate(values)
            once = values if first and self._batches.streams else None
            del values
            ahead = self._batches.ahead
            session.note_reading(time.monotonic() - asked, ahead)
            _errors.goes_on()
            try:
                yield batch
            except GeneratorExit:
                if not (first and self._take_back(given, once)):
                    self._leave_loop()
                raise
            del batch
            first, once = False, None
            self._finish(session)

    def _next(self, epoch: int) -> Work | None:
        """The next run of this epoch; None: there is none any more."""
        self._come_back()
        if self._held is not None and self.end is None:
            self._parameters.check_values()
        work, self._held = self._held, None
        if work is not None and self.end is None and work.kind is Kind.TRAIN and self._joined().cancelled():
            self._joined().done(len(work.samples), 0.0)  # others have computed it
            work = None
        while self.end is None and (work := work or self._work()) is not None:
            if work.kind is Kind.TRAIN and work.epoch <= epoch:
                return work
            if work.kind is Kind.TRAIN or work.epoch >= epoch:
                self._hold(work, "between two epochs")
                self._note_late(work)
                return None
            work = None  # the end of an epoch whose pass is over
        return None

    def _note_late(self, work: Work) -> None:
        if not work.late or self._told_late or self._run.work is None:  # None: it has joined since
            return
        self._told_late = True
        _errors.say(
            f"this worker was behind when epoch {work.epoch} ended, and copied newer parameters: after its pass the model has "
            "those of a later epoch. This may happen in later passes too; job.evaluate sees the parameters of the epoch's end"
        )

    def _claims(self, round_: int) -> dict[str, float]:
        """All loggers have the same."""
        claims: dict[str, float] = {}
        for logger in self.loggers:
            claims |= logger._claim(round_, self.rates()[0])
        return claims

    # --- what the session wants

    def _work(self, *, settles: bool = False) -> Work | None:
        """Waits for the next run or an epoch's end, and does meanwhile what else there is to do; None: the job has ended.
        `settles`: the update of the run in hand is kept for its step, and there is no more work before it."""
        ready, self._ready = self._ready, None
        if ready is not None:
            return ready
        with self._waiting("the loader") as look:
            return self._work_within(look, settles=settles)

    def _work_within(self, look: Callable[[], None], *, settles: bool) -> Work | None:
        while self.end is None:
            work = self._joined().next(_LOOK_S)
            self._pass_on()
            if work.kind is Kind.NONE:
                look()
            if work.counted is not None:
                self._order.check(work.counted)
                self._batches.check(work.counted)
                self._run.agreed.take(work.counted)
                self.metrics = _metrics.Metrics(work.counted)
                for logger in self.loggers:
                    logger._counted(work.counted)
            if work.kind in (Kind.TRAIN, Kind.EPOCH_END):
                self._state.begin(work.round, was_on=work.counted is not None or self._joined().incarnation > 1)
                return work
            if work.kind is Kind.UPDATE:
                if settles and self._run.work is not None and work.round == self._run.work.round:
                    self._pending = work
                    return None
                self._make_update(work)
            elif work.kind is Kind.EVALUATE:
                self._evaluate(work)
            elif work.kind is Kind.END:
                unknown = False
                if work.final_parameters:
                    self._parameters.use(work.parameters, self._run.floats)
                    unknown = not self._rule.show_kept()
                self.end = work
                self._ended(work)
                if unknown:
                    raise JobFailed(
                        "the job has ended, and this worker, which has joined after its last update, does not have what "
                        "job.after_update keeps"
                    )
        return None

    def _make_update(self, work: Work, clips: tuple[_agreed.Clip, ...] | None = None) -> None:
        """The round is committed: the script's optimizer makes its update. `clips`: of this worker; None: those that all agree on.
        """
        session = self._joined()
        _samples.seed_all(_samples.seed_of(self._seed, work.round, -1))  # for optimizers that draw
        self._run.state = State.UPDATING
        try:
            said = self._run.agreed.of(work.round)
            if said.steps_in_update is not None and self._run.undecided is not None:
                self._run.undecided.decide(steps_in_epoch=not said.steps_in_update)
            agreed = self._run.reads.before if said.clips is None else said.clips
            self._rule.make(
                work,
                session,
                clips=agreed if clips is None else clips,
                rates=said.rates,
                times=self._factor(said),
                check=self._run.reads.check,
            )
        except BaseException as error:  # with a part of it the parameters are nobody's: this worker can only leave
            self._fail(f"{type(error).__name__} within the update of round {work.round}: {error}".splitlines()[0])
            raise
        self._optimizer.changed_by_update()
        self._run.state = State.DONE
        session.update_done()

    def _evaluate(self, work: Work) -> None:
        session = self._joined()
        if self._evaluation is None:  # the job's config wants it, and there is nothing to evaluate
            session.evaluation_done(0, 0)
            return
        self._parameters.use(work.parameters, self._run.floats, whole=True)
        found = self._evaluation.run(self._model, *work.evaluate)
        self._parameters.check_values()
        self._parameters.device.settle(session)
        session.evaluation_done(*found)

    # --- between two passes

    def _hold(self, work: Work, reason: str) -> None:
        """The script does something else before this run, or at this epoch's end, with its parameters: those before its round."""
        self._held = work
        self._parameters.use(work.parameters, self._run.floats, whole=True)
        if not self._rule.show_kept() and not self._told_kept:
            self._told_kept = True
            _errors.say(
                "this worker has joined and made no update yet. Until its first one, objects that job.after_update keeps are as at "
                "job.prepare"
            )
        self._go_away(reason, MOST_AWAY_S)

    def _take_back(self, run: Work, items: Any) -> bool:
        """The script has looked at the first batch of a pass, as by next(iter(loader)): that pass has not begun, and its batch
        comes again. `items`: of a stream, which gives them once."""
        if self._run.state is not State.IN_HAND or not self._stays() or _errors.ends_badly():
            return False
        self.begun -= 1
        self._looked_at = items
        self._run.take_back()
        self._hold(run, _LOOKED)
        return True

    def _leave_loop(self) -> None:
        """The script has left its loop by break, or an exception has. An error goes no further from here."""
        if not self._stays() or _errors.ends_badly():
            return
        try:
            self._leave_settled()
            if self._run.state is State.STEPPED:
                self._complete()
                self._note_ahead()
            else:
                self._go_away(_LEFT, MOST_AWAY_S)
        except (_errors.Error, KeyboardInterrupt, SystemExit) as error:
            self._left, self.refused = error, True
            atexit.register(self._tell_left)

    def _tell_left(self) -> None:
        if self._left is not None and not _errors.ends_badly():
            _errors.end_with(self._left)

    def _complete(self) -> None:
        """After a step: the script wants the model with that update, as torch would have left it."""
        if self._run.state is State.STEPPED and self.end is None:
            self._finish(self._joined(), goes_on=False)
            work = self._work()
            if work is not None:
                self._hold(work, _LEFT)

    def _note_ahead(self) -> None:
        """Where the loop was left: a script that goes by its own count may end the job with fewer updates."""
        work = self._held
        if self._told_ahead or self.end is not None or work is None or work.kind is not Kind.TRAIN:
            return
        steps, rounds = self._run.agreed.rates.counts(work.schedule_position)
        if steps > rounds:
            self._told_ahead = True
            _errors.say(
                f"the script has left its loop after {steps} steps of this worker, which were {rounds} updates of the job: where "
                "work moves, or a worker is lost, these differ. A loop that ends by count goes by job.round, or over the loader of "
                "job.prepare(..., updates=N)"
            )

    def _go_away(self, reason: str, at_most: float) -> None:
        session = self._session()
        if session is not None:
            session.away(at_most, reason)
            self._absence = reason, time.monotonic() + at_most

    def _come_back(self) -> None:
        absence, self._absence = self._absence, None
        session = self._session()
        if absence is not None and session is not None:
            session.back()
