"""The run in hand: its batch is the script's, from the loader to the step.

    asked for -> in hand -> backward -> stepped -> done

`backward` adds the sum of the batch's gradients to the session's memory. Calls that a script cannot mean are refused where they
happen. Everything is on the script's thread.
"""

import contextlib
import enum
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from lockstep import (
    _agreed,
    _errors,
    _final,
    _hooks,
    _metrics,
    _optimizer,
    _preparing,
    _rates,
    _reads,
    _reduction,
    _samples,
    _scaler,
    _update,
)
from lockstep._errors import UsageError
from lockstep._session import Session, Work

_SHOWN = 8  # of the samples with a loss that is no number


class State(enum.Enum):
    IN_HAND = "in hand"
    FAILED = "failed"
    BACKWARD = "backward"
    STEPPED = "stepped"
    DONE = "done"
    UPDATING = "updating"  # between two runs


class RunInHand:
    """At most one run. `joined` is the session, or raises where there is none; `ended` says whether the job is over."""

    def __init__(self, joined: Callable[[], Session], ended: Callable[[], bool]) -> None:
        self._joined, self._ended = joined, ended
        self.work: Work | None = None  # the run in hand, or the last one
        self.state = State.DONE
        self._loss_sum = 0.0
        self._weight: int | None = None  # what its loss is a mean over; None: its samples
        self._weighs: bool | None = None  # whether the script says so; None: there was no batch yet
        self._gradient_version = 0
        self._loss_looked_at = False  # whether it is a mean
        self.schedule_steps = 0  # of the script's scheduler
        self._steps_at_run = 0  # when the run was handed out
        self._log = _metrics.Log()
        self._delivered = False  # the run's result is the session's, before its step
        self._drawn = False  # a function makes the batches
        self._for_k = ""  # the advice for a script that steps after k batches
        self._so_far = 0  # that this worker has added up for the round
        self._several: list[list[int]] | None = None  # parameters of each of several optimizers
        self._stepped: set[int] = set()  # those of them that have stepped for the batch
        self._accumulates = False  # the script steps after several batches
        self._unstepped = 0  # batches of this pass since the last step

    def prepare(
        self,
        parts: _preparing.Preparation,
        optimizer: _optimizer.PreparedOptimizer,
        *,
        rank: int,
        global_batch: int,
        in_epoch: int,
        settle: Callable[[], list[torch.Tensor]],
        stepped: Callable[[tuple[_agreed.Clip, ...] | None], None],
    ) -> None:
        """From here on there may be runs. `settle`: hands the batch in before its step, and returns the gradients that the
        script is to see. `stepped`: after its step."""
        self._parameters, self._schedule = parts.parameters, parts.rule.schedule
        self._optimizer, self._rank = optimizer, rank
        self._order, self._own_batches, self._drawn = parts.order, parts.own_batches, parts.drawn
        self._for_k = f"give job.prepare global_batch={parts.base_batch} * k"
        self._global_batch, self._batch_size = global_batch, parts.order.batch_size
        custom = parts.rule.updates is not None
        by_hand = _rates.ByHand(tuple(optimizer.factors), in_epoch, drawn=parts.drawn)
        self.agreed = _agreed.Agreed(tuple(range(len(parts.parameters.list))), by_hand)
        agreed = self.agreed
        shown = settle if custom and parts.several is None else None
        self.reads = _reads.Watch(parts.parameters.list, self._say_for_all, shown, lambda: agreed.now.clips)
        self._after_step = stepped
        self.micro_batches = parts.micro_batches if custom and parts.several is None else 1
        self._several = None if parts.several is None else parts.several.numbers(parts.parameters.list)
        self.reads.refuses_clipping = self._several is not None

    def shares(self, base_batch: int, for_k: str) -> None:
        """For a library that gives each worker the loader's batch: so many samples they compute together before they go on.
        `for_k`: its words for updates of k batches, as an advice."""
        if self.micro_batches > 1:  # else the optimizer or the batches do not allow it
            self.micro_batches = self._global_batch // base_batch if self._global_batch % base_batch == 0 else 1
        self._for_k = for_k

    # --- its states

    def is_on(self) -> bool:
        """Its batch is the script's, before the step."""
        if self._several is not None and self.state is State.STEPPED and not self._delivered:  # others may step
            return not self._ended()
        return self.work is not None and not self._ended() and self.state in (State.IN_HAND, State.FAILED, State.BACKWARD)

    def begin_pass(self, epoch: int) -> None:
        self._unstepped = 0
        self.agreed.rates.begin_pass(epoch)

    def hand_out(self, work: Work) -> None:
        if self.work is None or self.work.gradient != work.gradient or self.work.round != work.round:
            self._so_far = 0
        self.work, self.state = work, State.IN_HAND
        self._delivered = False
        self._log.begin()
        self._weight = None
        self._stepped = set()
        self._steps_at_run = self.schedule_steps
        self.agreed.rates.begin_batch(work.schedule_position)

    def take_back(self) -> None:
        """The batch was not used. Its run is handed out again."""
        self.state = State.DONE

    def seed(self, seed: int) -> None:
        """Everything random is as when the batch was handed out."""
        if self.work is not None:
            # Other draws than those of its first sample, which was read with the seed of the same position.
            _samples.seed_all(_samples.seed_of(seed, self.work.epoch, self.work.ranges[0][0], "run"))

    def stepped(self) -> None:
        if self.work is None or self.state is not State.BACKWARD:
            self._parameters.check_in_model()
            raise UsageError("opt.step() was called without a backward of the loss before it (loss.backward(), job.backward(loss))")
        clips = self.reads.step()
        self.state = State.STEPPED
        self._unstepped = 0
        self.agreed.rates.stepped(self._optimizer.at_step)
        self._after_step(clips)

    def part_stepped(self, number: int) -> None:
        """One of several optimizers."""
        run = self.work
        assert self._several is not None
        if run is None or self._ended() or self._delivered or self.state not in (State.BACKWARD, State.STEPPED):
            raise UsageError("opt.step() was called without a backward of the loss before it (loss.backward())")
        if number in self._stepped:
            raise UsageError("one optimizer has stepped twice for one batch: step once, and take the next batch for the next step")
        self.reads.step()
        counts_for = len(run.samples) if self._weight is None else self._weight
        self._gradient_version = self._parameters.add_gradients(run.gradient, self.floats, self._several[number], counts_for)
        self._stepped.add(number)
        self.state = State.STEPPED
        if len(self._stepped) == 1:
            self.agreed.rates.stepped(self._optimizer.at_step)

    def schedule_stepped(self, passes: int) -> None:
        """`passes`: over the loader, that have begun."""
        assert self._schedule is not None
        if self.undecided is not None:
            self.undecided.decide(steps_in_epoch=self.state is not State.STEPPED)
        if self._schedule.steps_in_epoch:
            if self.schedule_steps >= passes:
                raise UsageError(
                    "sched.step() was called more than once a pass over the loader, or before it: call it once after each pass, or "
                    "once after each opt.step() with scheduler_steps='update'"
                )
        elif self.state is not State.STEPPED or self.schedule_steps > self._steps_at_run:
            raise UsageError(
                "sched.step() was called without opt.step() before it: call it once after each opt.step(), or once after each pass "
                "over the loader with scheduler_steps='epoch'"
            )
        self.schedule_steps += 1

    def finish(self, session: Session, *, goes_on: bool = True) -> None:
        """Its result goes to the session. `goes_on`: the script has come to the end of its loop's body."""
        assert self.work is not None
        if self.state is State.IN_HAND:
            raise UsageError("neither loss.backward() nor job.backward(loss) was called for this batch")
        if self.state is State.FAILED:
            raise UsageError("job.backward has failed for this batch, and the loop went on")
        if self.state is State.BACKWARD:
            self._accumulate()
        if self.undecided is not None and goes_on and self.state is State.STEPPED:
            self.undecided.decide(steps_in_epoch=True)
        scheduled = self._schedule is None or self._schedule.steps_in_epoch or self.schedule_steps > self._steps_at_run
        if goes_on and not scheduled and self.state is State.STEPPED:
            raise UsageError(
                "sched.step() was not called after opt.step(): call it there each time, or once after each pass over the loader "
                "with scheduler_steps='epoch'"
            )
        if not self._delivered:
            self.deliver(session)
        self.reads.end()
        self._delivered = False
        self.state = State.DONE

    @property
    def undecided(self) -> _update.Schedule | None:
        """The schedule, if it is not known yet when the script steps its scheduler."""
        schedule = self._schedule
        return schedule if isinstance(schedule, _update.Schedule) and schedule.steps_in_epoch is None else None

    @property
    def settled(self) -> bool:
        """The run's result is the session's, and its step is still to come."""
        return self._delivered and self.state is State.BACKWARD

    def forget(self) -> None:
        """The script has left a batch that is settled."""
        self.reads.close()
        self.reads.end()
        self._delivered = False
        self.state = State.DONE

    def _accumulate(self) -> None:
        """The script goes on without a step."""
        if self.micro_batches <= 1 or self._delivered:
            raise UsageError(
                f"opt.step() was not called for this batch. To accumulate gradients over k batches, {self._for_k}; with that a "
                "step after each batch does as well"
            )
        self._unstepped += 1
        if self._unstepped >= self.micro_batches:  # the mean gradient is multiplied by that number
            fewer = f", or step after {self.micro_batches} (`gradient_accumulation_steps //= job.size`)" if self._drawn else ""
            raise UsageError(
                f"opt.step() was not called after {self._unstepped} batches, and with global_batch={self._global_batch} a worker "
                f"adds up {self.micro_batches}: to step after k batches {self._for_k}{fewer}"
            )
        self.reads.close()
        self._accumulates = True

    def hand_in(self, session: Session) -> None:
        """After the step, before the script has come to the end of its loop's body."""
        if not self._delivered:
            self.deliver(session)

    def deliver(self, session: Session) -> None:
        """The run's result goes to the session."""
        assert self.work is not None
        if self._weighs is not None and self._weighs is not (self._weight is not None):
            raise UsageError(
                f"this batch has {'no weight' if self._weighs else 'a weight'} (job.weigh), and those before it "
                f"{'had one' if self._weighs else 'had none'}: their means would be of different things"
            )
        self._weighs = self._weight is not None
        self._optimizer.check_unchanged()
        if self._several is not None:
            self.reads.close()
            counts_for = len(self.work.samples) if self._weight is None else self._weight
            self._parameters.add_statistics(counts_for)
            self._gradient_version = self._parameters.mark(self._stepped, counts_for)
            self._parameters.device.settle(session)
        self._parameters.check_untouched(self._gradient_version, in_place=self._several is None)
        self._parameters.release_gradient()
        self._log_said()
        for metric in self._log.all():
            session.log(*metric)
        session.done(len(self.work.samples), self._loss_sum, self._weight)
        self._delivered = True

    def _log_said(self) -> None:
        """All workers must do this alike in the update."""
        said = _agreed.Said(
            clips=None if self.state is State.BACKWARD and self._accumulates and not self.reads.clips else self.reads.announce(),
            more_clips=self.reads.more_to_come,
            steps_in_update=self._steps_in_update(),
            accumulates=self._accumulates if self.micro_batches > 1 else None,
        )
        values, how = self.agreed.metrics(said, self._rates_by_hand())
        if values:
            assert self.work is not None
            self._log.add(values, how, len(self.work.samples), len(self.work.samples))

    def _rates_by_hand(self) -> dict[str, float] | None:
        stepped = self.state is State.STEPPED
        rates = self._optimizer.rates_by_hand(stepped=stepped)
        if rates is None:
            return None
        assert self.work is not None
        return self.agreed.rates.said(self.work.epoch, self.work.schedule_position, rates, stepped=stepped)

    def _steps_in_update(self) -> bool | None:
        schedule = self._schedule
        if not isinstance(schedule, _update.Schedule) or not schedule.tells or schedule.steps_in_epoch is None:
            return None
        return not schedule.steps_in_epoch

    def own_gradients(self) -> list[torch.Tensor]:
        """A copy of those of the batch in hand, and of what this worker has had of its round before."""
        return self._parameters.own_gradients(self._so_far)

    def give_up(self, session: Session, work: Work) -> None:
        """A run that counts for nothing any more: this one, or one that was not handed out."""
        self._parameters.device.settle(session)
        self._parameters.release_gradient()
        session.done(len(work.samples), 0.0)
        self.state = State.DONE

    # --- what the script does with its batch

    def log(self, values: Mapping[str, float | torch.Tensor], reduce: str | Mapping[str, str], samples: int | None) -> None:
        run = self.work
        if run is None or not self.is_on() or self.state is State.FAILED:
            raise UsageError("job.log is for a batch of the prepared loader, before opt.step()")
        if samples is not None and self._own_batches:
            raise UsageError(
                "job.log: samples= has no use with batches of a batch sampler or a function: they count one each, of any size"
            )
        self._log.add(values, reduce, len(run.samples) if samples is None else samples, len(run.samples))

    def log_reading(self, metrics: dict[str, float]) -> None:
        """Of the loader."""
        if metrics and self.work is not None:
            self._log.add(metrics, _metrics.HOW, len(self.work.samples), len(self.work.samples))

    def weigh(self, weight: int | torch.Tensor) -> None:
        if not self.is_on() or self.state is not State.IN_HAND:
            raise UsageError("job.weigh is for a batch of the prepared loader, before its backward pass")
        self._weight = _metrics.weight(weight)
        if self._weight == 0 and self._parameters.averaged:
            raise UsageError(
                f"job.weigh: a batch of weight 0, and {self._parameters.averaged[0]} is averaged over what the batches count for"
            )

    def backward(self, loss: torch.Tensor, reduction: str, weight: int | torch.Tensor | None, *, retain_graph: bool) -> None:
        run = self.work
        if run is None or self._ended():
            raise UsageError("job.backward is for a batch of the prepared loader")
        if self.state is State.FAILED:
            raise UsageError("job.backward has failed for this batch and cannot be tried again")
        if self._several is not None:
            self._backward_of_several(run, loss, reduction, weight, retain_graph=retain_graph)
            return
        if self.state is not State.IN_HAND:
            raise UsageError("job.backward was called twice for one batch: add the losses up instead")
        if loss.numel() != 1:
            raise UsageError(f"the loss has {loss.numel()} values: job.backward wants their mean or their sum")
        if reduction not in ("mean", "sum"):
            raise UsageError(f"reduction: {reduction!r} is neither 'mean' nor 'sum'")
        if weight is not None:
            self.weigh(weight)
        if reduction == "sum" and self._own_batches and self._weight is None:
            raise UsageError(
                "reduction='sum': batches of a batch sampler or a function count one each, whatever their size. Give job.backward "
                "the mean, or weight=len(x), so that the samples count one each"
            )
        if reduction == "mean":
            self._look_at_loss(loss, len(run.samples))
        counts_for = len(run.samples) if self._weight is None else self._weight
        self._so_far += counts_for
        scaled = _scaler.of(loss)
        if scaled is not None:
            if reduction != "mean":
                raise UsageError("a loss that a GradScaler has scaled is to be a mean: reduction='sum' is not supported")
            self._scaled_backward(run, loss, scaled, counts_for, retain_graph=retain_graph)
            return
        total = loss.reshape(()).float() * (counts_for if reduction == "mean" else 1)
        session, device = self._joined(), self._parameters.device
        if device.stream() is None:
            self._take_loss(run, total, loss)
        self._parameters.attach_gradient(run.gradient, self.floats)
        self.state = State.FAILED  # if it is left in the middle: a part of the gradient is in the sum then
        hooked = reduction == "mean" and self._parameters.hooked()
        of = loss.reshape(()).float() if hooked else total
        with _hooks.of_mean(self._parameters.list, counts_for) if hooked else contextlib.nullcontext():
            if run.tells_final:
                _final.backward(
                    of, self._parameters.list, lambda place: session.block_final(place, device.stream()), retain_graph=retain_graph
                )
            else:
                torch.autograd.backward(of, retain_graph=retain_graph)
        self._gradient_version = self._parameters.check_gradient(counts_for)
        if device.stream() is not None:  # before the pass it would have to wait for what is under way
            self._take_loss(run, total, loss)
        device.settle(session)
        self._summed()

    def _backward_of_several(
        self, run: Work, loss: torch.Tensor, reduction: str, weight: int | torch.Tensor | None, *, retain_graph: bool
    ) -> None:
        """One pass of those that the script makes for its batch, as torch makes it."""
        if reduction != "mean" or loss.numel() != 1 or _scaler.of(loss) is not None:
            raise UsageError("with several optimizers losses are means, of one value, and without a GradScaler")
        if self._delivered or self.state not in (State.IN_HAND, State.BACKWARD, State.STEPPED):
            raise UsageError("loss.backward() is for a batch of the prepared loader")
        first = self.state is State.IN_HAND
        if weight is not None:
            self.weigh(weight)
        self._look_at_loss(loss, len(run.samples))
        counts_for = len(run.samples) if self._weight is None else self._weight
        before = 0.0 if first else self._loss_sum
        state, self.state = self.state, State.FAILED
        torch.autograd.backward(loss, retain_graph=retain_graph)
        self.state = State.BACKWARD if first else state
        self._take_loss(run, loss.reshape(()).float() * counts_for, loss)
        self._loss_sum += before
        self.reads.open()

    def _scaled_backward(
        self, run: Work, loss: torch.Tensor, scaled: tuple[Any, torch.Tensor], counts_for: int, *, retain_graph: bool
    ) -> None:
        """`scaled`: `_scaler.of` it. The gradient comes to the contribution when the pass is done, and is known to be finite."""
        scaler, true = scaled
        self._take_loss(run, true.reshape(()).float() * counts_for, true)
        scale = float(scaler.get_scale())
        self._parameters.attach_gradient(run.gradient, self.floats)
        self.state = State.FAILED
        added = _scaler.backward(loss, self._parameters.list, scale, counts_for, retain_graph=retain_graph)
        if not self._parameters.averaged:  # else the batch counts, with a gradient of zero: its statistics are as good as any
            self._weight = counts_for if added else 0
            if not added and math.isfinite(self._loss_sum):
                self._loss_sum = 0.0
        self._gradient_version = self._parameters.check_gradient(counts_for)
        self._parameters.device.settle(self._joined())
        self._optimizer.scaled(scaler, overflow=not added)
        self._summed()

    def _summed(self) -> None:
        """The batch's gradient is in the contribution."""
        self.state = State.BACKWARD
        self.reads.open()

    def _look_at_loss(self, loss: torch.Tensor, samples: int) -> None:
        """Of the first batch in which a sum differs from a mean."""
        if self._loss_looked_at or samples < 2:
            return
        self._loss_looked_at = True
        batch = self._global_batch
        if line := _reduction.doubt(loss, samples, batch, {self._batch_size, batch} if self._weight is None else ()):
            self._say_for_all(line)

    def _say_for_all(self, line: str) -> None:
        """Of a script that is the same on all workers."""
        if self._rank == 0:
            _errors.say(line)

    def _take_loss(self, run: Work, total: torch.Tensor, loss: torch.Tensor) -> None:
        """`total`: over the samples of the run. A loss that is not a number goes to the coordinator as it is, and job.on_nan
        applies there. The coordinator knows only positions in the epoch's order, so this prints the samples of the dataset."""
        self._loss_sum = float(total.detach())
        if not math.isfinite(self._loss_sum):
            _, samples = self._order.to_read(run)
            shown = ", ".join(map(str, samples[:_SHOWN])) + (", ..." if len(samples) > _SHOWN else "")
            value = float(loss.detach())
            _errors.say(f"the loss of worker {self._rank} in round {run.round} is {value}, of the samples {shown} of the dataset")

    def floats(self, address: int) -> torch.Tensor:
        """A view of the session's memory."""
        return self._parameters.device.floats(self._joined(), address)
