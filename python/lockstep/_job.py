"""A worker of a job, for a training loop in PyTorch.

`Job` is what the script asks; it joins the job and leaves it. _preparing.py takes the script's description of the job. The
session's work becomes batches in _passes.py, and _run.py has the batch in hand. Everything on the script's thread.

Invariant: parameters are views of the session's memory from the first run to the end, and of their own before and after.
"""

import atexit
import contextlib
import functools
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, overload

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from lockstep import (
    _after,
    _ahead,
    _backward,
    _beside,
    _costs,
    _drawn,
    _entry,
    _errors,
    _given,
    _interrupts,
    _loader,
    _metrics,
    _optimizer,
    _others,
    _passes,
    _position,
    _preparing,
    _reads,
    _run,
    _settings,
    _several,
    _update,
    loggers,
)
from lockstep._errors import JobFailed, UsageError
from lockstep._run import State
from lockstep._session import Session, Work

_NO_PROGRESS = re.compile("this worker out: no unit finished for")  # as the coordinator has it
_NAME_AWAY = '; around what takes long and is no training, as a save or a test, put `with job.away("..."):`'


class Job:
    """A job that this process is a worker of, as `lockstep.init` returns it."""

    def __init__(self, entry: _entry.Entry, *, seed: int, settings: _settings.Settings) -> None:
        self._entry = entry
        self._seed = seed
        self._settings = settings
        self._session: Session | None = None
        self._model: nn.Module | None = None
        self._evaluation: _loader.Evaluation | None = None
        self._batches: _loader.Batches | None = None
        self._config: _settings.Settings = {}
        self._place: tuple[int, int] | None = None  # this worker's number, and how many there are
        self._run = _run.RunInHand(self._joined, lambda: self._passes.end is not None)
        self._passes = _passes.Passes(
            self._run,
            session=lambda: self._session,
            joined=self._joined,
            stays=self._stays,
            heed_signals=self._heed_signals,
            pass_on=entry.pass_on,
            ended=self._ended,
            fail=self._fail,
            waiting=self._waiting,
        )
        self._begun = False  # `prepare` has come to its end
        self._failed = False  # this worker has said why it leaves
        self._interrupts = _interrupts.Interrupts(self._interrupted, self._has_ended, self._fail)
        self._taker = _backward.Taker(self._run.is_on, lambda loss, retain: self.backward(loss, retain_graph=retain))
        self._beside = _beside.Watch(self._passes.beside)
        self._others = _others.Watch(lambda: self.round if self._in_loop() else None)
        self._after = _after.After()
        self._averages = _after.Watch(self._in_loop)
        torch.manual_seed(seed)

    # --- what the script asks

    @property
    def rank(self) -> int:
        """This worker's number."""
        return self._known()[0]

    @property
    def size(self) -> int:
        """Workers that the job has."""
        return self._known()[1]

    @property
    def wanted(self) -> int | None:
        """The number that a launcher has given this worker, which is its `rank`, as a rule, once it has joined; 0 in a job of one.
        None: it was started by hand and without one (LOCKSTEP_COORDINATOR without LOCKSTEP_WORKER)."""
        return self._entry.wanted

    @property
    def joined(self) -> bool:
        """Whether `rank` and `size` are known."""
        return self._place is not None

    @property
    def epoch(self) -> int:
        """Of the run in hand, or of the last one."""
        return self._run.work.epoch if self._run.work else 0

    @property
    def round(self) -> int:
        """Of the run in hand, or of the last one: how many updates the parameters have had."""
        return self._run.work.round if self._run.work else 0

    @property
    def next_round(self) -> int | None:
        """Between two passes over the loader: the round that the next one begins in, with whose parameters the model is left
        meanwhile. None: it is not known, in a pass, or where the job has ended."""
        return self._passes.next_round

    @property
    def running(self) -> bool:
        """From `prepare` to the job's end."""
        return self._session is not None

    @property
    def ended_early(self) -> bool:
        """The job is over, in good order, before all of its epochs were: somebody has stopped it (Ctrl-C, `stop`)."""
        return self._passes.end is not None and self._passes.end.early

    @property
    def policy(self) -> str:
        """In the last round that is over; somebody may change it while the job runs (`ctl policy`)."""
        return self._passes.metrics.policy or self._config.get("policy.name", "")

    @property
    def slow_workers(self) -> tuple[int, ...]:
        """The workers whose share of work took at least 1.5 times the usual time for its size, in the last round that is over. The
        coordinator measures it, so it is the same on all workers."""
        return self._passes.metrics.slow_workers

    @property
    def config(self) -> dict[str, str]:
        """The job's, every key."""
        return dict(self._config)

    @property
    def metrics(self) -> _metrics.Metrics:
        """The metrics of the last round, by name, on all workers alike: `loss`, and the numbers given to `log`. Within a run it is
        the round before that of the run (a newer one, where the run does not count any more); after the last epoch the job's
        last."""
        return self._passes.metrics

    def log(
        self, values: Mapping[str, float | torch.Tensor], *, reduce: str | Mapping[str, str] = "mean", samples: int | None = None
    ) -> None:
        """Numbers about the batch in hand, to be reduced over all that its round counts, whoever computes it: `metrics`, and the
        run directory. `reduce`: "mean" over the samples, "sum", "min" or "max"; of all, or by name (a mean where it is not said),
        and the same for the whole job. `samples`: of how many of the batch's samples the numbers are means, if not of all. Before
        opt.step(); each name once for a batch."""
        self._run.log(values, reduce, samples)

    def evaluate(
        self, function: Callable[[nn.Module, Any], tuple[float, int]], loader: DataLoader[Any], *, every_epochs: int = 1
    ) -> None:
        """Evaluates the loader's dataset after every `every_epochs` epochs (0: not) and at the job's end. All workers take a part
        of it, on a copy of the parameters of one round. `function(model, batch)` is called without gradients and in eval mode. It
        returns the sum of the losses over the samples of the batch, and the number of right ones.

        Call it before `prepare`. The results are in the run directory (evaluations.jsonl, summary.json), not here.
        """
        if self._model is not None:
            raise UsageError("job.evaluate comes before job.prepare")
        if not isinstance(every_epochs, int) or every_epochs < 0:
            raise UsageError(f"every_epochs: {every_epochs!r} is not a whole number from 0 on")
        self._evaluation = _loader.Evaluation(function, loader)
        self._settings = {"evaluation.every_epochs": str(every_epochs)} | self._settings

    def after_update(self, function: Callable[[int], object], *keeps: Any) -> None:
        """`function(n)` is called in each update of the job, on every worker, behind the optimizer's step, without gradients. `n`:
        the number of updates that the parameters have then had. It may change the parameters, as by a clamp, alike on all workers.

        `keeps`: modules, or objects with state_dict and load_state_dict, that it changes and needs in later updates, as an average
        of the parameters. Checkpoints have their values and workers that join are given them. A worker that copies the parameters
        copies these, too, in place of the calls. A round that is computed again begins with those before it.

        Call it before `prepare`. The script's optimizer makes the updates then.
        """
        if self._model is not None:
            raise UsageError("job.after_update comes before job.prepare")
        self._after.add(function, keeps)

    # --- the three lines

    @overload
    def prepare(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        loader: DataLoader[Any],
        scheduler: None = None,
        *,
        epochs: int,
        updates: int | None = None,
        global_batch: int | None = None,
        units: int | None = None,
        fixed_batch: bool = False,
        clip_grad_norm: float | None = None,
        samples: int | None = None,
        cost: _costs.Cost | None = None,
        max_cost: float | None = None,
        sharded: bool = False,
        scheduler_steps: Literal["update", "epoch"] | None = None,
    ) -> tuple[nn.Module, _optimizer.PreparedOptimizer, _loader.Loader]: ...
    @overload
    def prepare(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        loader: DataLoader[Any],
        scheduler: LRScheduler,
        *,
        epochs: int,
        updates: int | None = None,
        global_batch: int | None = None,
        units: int | None = None,
        fixed_batch: bool = False,
        clip_grad_norm: float | None = None,
        samples: int | None = None,
        cost: _costs.Cost | None = None,
        max_cost: float | None = None,
        sharded: bool = False,
        scheduler_steps: Literal["update", "epoch"] | None = None,
    ) -> tuple[nn.Module, _optimizer.PreparedOptimizer, _loader.Loader, _optimizer.PreparedScheduler]: ...
    @overload
    def prepare(
        self,
        model: Sequence[nn.Module],
        optimizer: Sequence[Optimizer],
        loader: DataLoader[Any],
        scheduler: None = None,
        *,
        epochs: int,
        updates: int | None = None,
        global_batch: int | None = None,
        units: int | None = None,
        fixed_batch: bool = False,
        samples: int | None = None,
    ) -> tuple[Sequence[nn.Module], Sequence[_optimizer.PreparedOptimizer], _loader.Loader]: ...
    @overload
    def prepare(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        loader: Callable[[], Any],
        scheduler: None = None,
        *,
        updates: int,
        global_batch: int | None = None,
        clip_grad_norm: float | None = None,
    ) -> tuple[nn.Module, _optimizer.PreparedOptimizer, _drawn.Drawn]: ...
    def prepare(
        self,
        model: nn.Module | Sequence[nn.Module],
        optimizer: Optimizer | Sequence[Optimizer],
        loader: DataLoader[Any] | Callable[[], Any] | None = None,
        scheduler: LRScheduler | None = None,
        *,
        epochs: int | None = None,
        updates: int | None = None,
        global_batch: int | None = None,
        units: int | None = None,
        fixed_batch: bool = False,
        clip_grad_norm: float | None = None,
        samples: int | None = None,
        cost: _costs.Cost | None = None,
        max_cost: float | None = None,
        sharded: bool = False,
        scheduler_steps: Literal["update", "epoch"] | None = None,
    ) -> Any:
        """Joins the job with this model. Returns (model, optimizer, loader[, scheduler]), for the loop to use instead. In place of
        a loader there may be a function that makes a batch, and `updates`: it gets one back whose calls are this worker's batches.
        There may be a list of optimizers, each of its own parameters, and one of models: a list of optimizers comes back.

        `epochs`: number of passes over the loader. `updates`: number of updates after which the job ends, if that is before.
        `global_batch`: samples in an update, of all workers together; without it the loader's batch size. A worker is never handed
        more than the loader's batch size at once. With a batch sampler of the script's own, batches in an update; without it one
        for each worker.
        `units`: pieces of a global batch, the smallest work that moves; without it as many as the policy can use.
        `fixed_batch`: each batch is a single unit, so that all have one size, for models that are compiled or captured for it.
        `clip_grad_norm`: largest norm of the whole update's gradient.
        `scheduler_steps`: the script steps its scheduler after each "update", or each "epoch"; without it the first steps tell.
        `samples`: for an IterableDataset, the number of its items in an epoch; `sharded`: it shares them out between the workers by
        itself. For a batch sampler of the script's own `samples` is the number of batches, the first ones of each list.
        `cost`: the costs of samples beside each other, as their lengths. It is a number for each sample of the dataset, or a
        function of the samples that are computed together (one, or a batch of the script's own batch sampler). Where the policy
        moves work it is shared out by that. `max_cost`: the most that a worker is handed at once costs, as a batch that is padded:
        its samples times the cost of the dearest one.
        """
        if self._session is not None:
            raise UsageError(f"job.prepare was called twice: give it all models and optimizers at once, {_given.LISTS}")
        self._parts = parts = _preparing.Preparation(
            model,
            optimizer,
            loader,
            scheduler,
            epochs=epochs,
            updates=updates,
            global_batch=global_batch,
            units=units,
            fixed_batch=fixed_batch,
            clip_grad_norm=clip_grad_norm,
            samples=samples,
            cost=cost,
            max_cost=max_cost,
            sharded=sharded,
            scheduler_steps=scheduler_steps,
            seed=self._seed,
            own=self._settings,
            workers=self._entry.workers(),
            after=self._after,
        )
        loader, whole = parts.loader, parts.optimizer
        self._order, self._parameters, self._rule = parts.order, parts.parameters, parts.rule
        given, self._model = model, parts.model
        model = parts.model
        self._batches = parts.batches
        self._passes.prepare(parts, model, self._evaluation)
        self._join(model, parts)
        self._seed = int(self._config["job.seed"])
        batch = int(self._config["job.global_batch"])
        samples = self._order.positions(batch)
        in_epoch = math.ceil(samples / batch)
        if self.rank == 0:
            parts.tell(self._config["job.units"], batch, samples, 1 if global_batch else self.size)
        rate = _optimizer.Rate(self._config, in_epoch)
        ahead = _ahead.Ahead(order=self._order, samples=samples, batch=batch, epochs=parts.epochs, workers=self.size)
        self._batches.begin(self._seed, *self._known(), _ahead.of_training(ahead, self._order))
        digest = data = _loader.dataset_digest(loader.dataset, self._seed, warns=self.rank == 0) + self._order.begin(
            self._seed, batch, warns=self.rank == 0
        )
        if self._evaluation is not None:
            self._evaluation.begin(self._seed, *self._known())
            digest += f"; to evaluate {_loader.dataset_digest(self._evaluation.dataset, self._seed)}"
        self._begin(digest + self._rule.digest() + self._parameters.digest_of_the_rest(), samples)
        prepared = _optimizer.PreparedOptimizer(
            whole, self._run.stepped, hooked=parts.rule.updates is not None, scheduled=parts.rule.schedule is not None
        )
        if isinstance(parts.rule.schedule, _update.Schedule):
            parts.rule.schedule.begin(in_epoch)
        self._run.prepare(
            parts,
            prepared,
            rank=self.rank,
            global_batch=batch,
            in_epoch=in_epoch,
            settle=self._passes.settle,
            stepped=self._passes.step,
        )
        state = _position.LoaderState(
            data=data,
            samples=samples,
            global_batch=batch,
            seed=self._seed,
            position=self._passes.position,
            has_begun=lambda: self._run.work is not None,
        )
        self._passes.begin(prepared, rate, self._seed, samples, state)
        for logger in self._passes.loggers:
            self._begin_logger(logger)
        # What the script does with losses and optimizers, as long as the job is on:
        self._others.begin(whole)
        self._averages.begin()
        self._beside.begin()
        _errors.explanations.append(_given.explain_wrapper(model))
        self._taker.begin(self._parameters.list)
        mine: _loader.Loader | _drawn.Drawn = _loader.Loader(loader, in_epoch, self._passes.next_pass, state)
        if parts.drawn:
            mine = _drawn.Drawn(mine, self._why_ended_early)
        if parts.several is not None:
            steppers = enumerate(parts.several.parts)
            several = [_several.PreparedPart(part, prepared, functools.partial(self._run.part_stepped, i)) for i, part in steppers]
            return given, several, mine
        if scheduler is None or parts.rule.schedule is None:
            return given, prepared, mine
        return (
            given,
            prepared,
            mine,
            _optimizer.PreparedScheduler(
                scheduler,
                lambda: self._run.schedule_stepped(self._passes.begun),
                self._passes.rates,
                lambda: self._run.schedule_steps,
            ),
        )

    def weigh(self, weight: int | torch.Tensor) -> None:
        """The loss of the batch in hand is no mean over its samples, but over so many tokens, pixels or whatever: a whole number.
        The round's gradient and loss are the means over those of all its batches then, however its samples are cut into batches
        and whoever computes them. Before the backward pass; for each batch of the job or for none. 0: the batch counts for
        nothing, and its loss has to be a number all the same."""
        self._run.weigh(weight)

    def backward(
        self,
        loss: torch.Tensor,
        *,
        reduction: Literal["mean", "sum"] = "mean",
        weight: int | torch.Tensor | None = None,
        retain_graph: bool = False,
    ) -> None:
        """`loss` is the mean (or the sum) over the samples of the batch in hand, or over what `weight` says, which is `weigh`'s.
        With a mean `loss.backward()` does the same, also of what a GradScaler has scaled."""
        self._run.backward(loss, reduction, weight, retain_graph=retain_graph)

    def seed_run(self) -> None:
        """Everything random is as when the batch in hand was handed out, so that what the model draws depends on nothing else. The
        loader does it; to be called again by who has drawn since, before the model is computed."""
        self._run.seed(self._seed)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """A copy of the model's state, which stays as it is. Within a run its parameters are those that the run is computed with,
        after the last epoch those that the job has ended with."""
        if self._model is None:
            raise UsageError("there is no job yet: job.prepare joins it")
        return {name: tensor.detach().clone() for name, tensor in self._model.state_dict().items()}

    def stop(self, reason: str) -> None:
        """Ends the job for all its workers, completed: the script has reached its goal. The model then has the parameters after
        the round that was committed last. A batch in hand counts if its step was done. One worker or all may call it, also again.
        Passes over the loader are empty from then on, and the job is `ended_early`."""
        self._passes.stop(reason)

    def away(self, reason: str, *, at_most: float = _passes.MOST_AWAY_S) -> contextlib.AbstractContextManager[None]:
        """Put `with job.away("validation"):` around work that takes long and is no training. For `at_most` seconds this worker is
        not lost for its lack of progress, and with a policy that moves work the others go on without it. The model keeps its
        parameters meanwhile. A batch in hand counts as before, unless others have computed it by then. Between two passes over the
        loader a worker is away by itself. Without a running job it does nothing."""
        return self._passes.away(reason, at_most)

    def leave(self, reason: str) -> None:
        """Says why this worker leaves the job, one line; `close` follows."""
        self._fail(reason)

    def close(self) -> None:
        """Ends the job, if it is still on, as `stop` does; after `leave`, or with an exception on its way, this worker leaves it
        and the others go on. The model keeps the parameters that it has. May be called again."""
        self._close("its script has closed the job")

    # --- within

    def _close(self, reason: str) -> None:
        if self._session is not None and self._session.is_parents:
            return
        try:
            if self._ends_well():
                self._passes.close(reason)
        except BaseException as error:
            self._fail(str(error) or type(error).__name__)
            raise
        finally:
            self._leave_session()

    def _ends_well(self) -> bool:
        """The script has ended or closed the job in good order, so it has what it wants."""
        if self._session is None or not self._begun or self._failed or self._passes.refused or _errors.ends_badly():
            return False
        return self._run.state in (State.IN_HAND, State.BACKWARD, State.STEPPED, State.DONE)

    def _at_exit(self) -> None:
        late = self._run.state is State.STEPPED and self._passes.lacks_update and self._ends_well()
        try:
            self._close("its script has come to its end")
        except (_errors.Error, KeyboardInterrupt, SystemExit) as error:
            _errors.end_with(error)
            return
        if late:
            _errors.say(
                "the script has ended within its loop, so the model that it has seen lacks the last update. Leave the loop by "
                "break, or call job.stop before you use the model"
            )

    def _leave_session(self) -> None:
        self._taker.end()
        self._others.end()
        self._averages.end()
        self._beside.end()
        _reads.Watch.close()
        session, self._session = self._session, None
        try:
            if session is not None:
                self._parameters.detach()
                self._rule.detach()
                try:
                    self._parameters.device.settle(session)
                except JobFailed:  # the GPU's: who works with the model will hear of it
                    pass
                session.end()
            self._passes.close_pass()
            self._close_loaders()
            end = self._passes.end
            # Where this worker alone has failed, its coordinator serves the others.
            alone = end is not None and end.failed and (end.unfit or self._entry.launched is None)
            self._entry.close(ended=end is not None and not alone, at_once=self._interrupts.twice)
        finally:
            for logger in self._passes.loggers:
                logger._end()
            self._interrupts.end()
            atexit.unregister(self._at_exit)
            _errors.last_words.discard(self._fail)

    def _follow(self, logger: loggers.Logger) -> None:
        """Called by the logger."""
        if self._run.work is not None:
            raise UsageError(f"lockstep.loggers.{type(logger).__name__}: make it before the loop over the loader, on every worker")
        self._passes.loggers.append(logger)
        if self._session is not None:
            self._begin_logger(logger)

    def _begin_logger(self, logger: loggers.Logger) -> None:
        session = self._joined()
        logger._begin(session.worker, session.incarnation)

    def _why_ended_early(self) -> str:
        return self._passes.end.reason if self._passes.end is not None and self._passes.end.early else ""

    def _in_loop(self) -> bool:
        """The script has a batch in hand, or has stepped and not asked for the next one."""
        return self._run.is_on() or self._run.state is State.STEPPED

    def _stays(self) -> bool:
        """This process is a worker of the job and has not said that it leaves."""
        return self._session is not None and not self._session.is_parents and not self._failed

    def _has_ended(self, seconds: float) -> bool:
        """So long after a signal; in another thread."""
        return self._entry.has_ended() if self._entry.has_coordinator else seconds > _interrupts.PATIENCE_S

    def _heed_signals(self) -> None:
        if self._session is not None and self._entry.shares_signals:
            self._interrupts.begin()

    def _interrupted(self, name: str) -> None:
        """In the handler of a signal, which may have come in the middle of anything."""
        if self._session is not None and self._session.is_parents:
            return
        if self._entry.has_coordinator:
            line = f"lockstep: {name}: the job ends with the round that is open; Ctrl-C once more ends it at once\n"
            with contextlib.suppress(OSError):
                os.write(2, line.encode())
            self._entry.interrupt()

    def _close_loaders(self) -> None:
        for loaders in (self._batches, self._evaluation):
            if loaders is not None:
                loaders.close()

    def _fail(self, reason: str) -> None:
        self._failed = True
        self._passes.forget_left()
        if self._session is None or self._session.is_parents:
            return
        # The same signal has ended loader processes of the script's own, say: that does not keep the job from its checkpoint.
        if self._interrupts.ends_in_order and self._run.state is not State.UPDATING:
            self._interrupts.job_has_ended()
            self._entry.wait_for_end()
        self._session.interrupt(reason)

    def _waiting(self, where: str) -> contextlib.AbstractContextManager[Callable[[], None]]:
        return self._beside.waiting(where)

    def _known(self) -> tuple[int, int]:
        if self._place is None:
            raise UsageError("there is no job yet: job.prepare joins it (before, job.wanted tells this worker's number)")
        return self._place

    def _joined(self) -> Session:
        if self._session is None:
            raise UsageError("the job is over" if self._passes.end is not None else "there is no job yet: job.prepare joins it")
        return self._session

    def _join(self, model: nn.Module, parts: _preparing.Preparation) -> None:
        atexit.register(self._at_exit)
        _errors.last_words.add(self._fail)
        try:
            parts.batches.start(self._seed)  # what follows makes threads and sockets
            if self._evaluation is not None:
                self._evaluation.start(self._seed)
            self._session = self._entry.join(model, self._after, parts.settings, parts.parameters.device.name)
            self._heed_signals()
            parts.parameters.recount()
        except UsageError as error:
            self._close_loaders()
            raise parts.explained(error, self._entry.workers()) from None
        except BaseException:
            self._close_loaders()
            raise
        self._config = _settings.from_ini(self._session.config)
        self._place = self._session.worker, self._session.workers
        parts.check(self._config, self.size)

    def _begin(self, digest: str, samples: int) -> None:
        self._initial = self._parameters.begin()  # the session reads it until there is work
        self._joined().begin(
            self._parts.description(
                self._initial.data_ptr(),
                digest,
                samples=samples,
                to_evaluate=0 if self._evaluation is None else len(self._evaluation.dataset),
                own_parameters=not self._entry.shared and self.size > 1,
            )
        )
        self._begun = True

    def _ended(self, work: Work) -> None:
        """Raises where this worker does not have the job's last parameters; SystemExit where it was asked to leave (drain)."""
        self._interrupts.job_has_ended()
        reason = work.reason
        self._entry.pass_on()
        if work.failed:
            reason = self._entry.last_words() or reason
        if _NO_PROGRESS.search(reason):
            reason += _NAME_AWAY
        self._leave_session()
        if work.unfit:
            raise UsageError(reason)
        if work.failed:
            raise JobFailed(reason)
        self._interrupts.heed()
        if work.left:
            # The rest of the script is for a worker that has the trained model, and the job goes on without this one.
            _errors.say(f"{reason}; the job goes on without this worker, which ends with status 0")
            raise SystemExit(0)
        if not work.final_parameters:
            raise JobFailed(f"the job has ended, and the parameters of this worker are not its last ones: {work.not_final}")
