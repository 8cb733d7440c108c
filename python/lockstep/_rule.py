"""Decides whether the session makes the job's updates by its own rule, or the script's optimizer does, and checks the job for that.

In: the arguments of job.prepare. Out: settings for the job; then, if the script's optimizer makes the updates, its updates.
"""

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lockstep import _after, _agreed, _model, _optimizer, _reads, _settings, _several, _update
from lockstep._errors import UsageError
from lockstep._session import Session, Work

MOST_UNITS = 4096


class Rule:
    """`settings`: of the job, what follows from it. `schedule`: of the rates, None without a scheduler."""

    def __init__(
        self,
        parameters: _model.Parameters,
        optimizer: Optimizer,
        scheduler: LRScheduler | None,
        *,
        updates: int,
        total: int,
        in_epoch: bool | None,
        clip: float | None,
        own: str | None,
        why: str,
        after: _after.After,
    ) -> None:
        """`updates`: in an epoch. `total`: of the job. `in_epoch`: the scheduler steps once in each; None: that is not known yet.
        `own`: the rule that the script's settings name; custom is its own optimizer, whichever it is. `why`: the script handles its
        gradients or rates, if `own` is None; empty: it does not. `after`: functions of the script for each update."""
        self._parameters = parameters
        self._after = after
        clip = None if clip is None else _limit(clip)
        self._clip: float | None = None  # where it is not the session that clips
        self.schedule: _optimizer.Schedule | _update.Schedule | None = None
        self.updates: _update.Updates | None = None  # None: the session makes them
        self.settings: dict[str, object] = {} if clip is None else {"optimizer.clip": clip}
        if scheduler is not None and getattr(scheduler, "last_epoch", 0) > 0:
            raise UsageError("the scheduler has stepped already: make a new one")
        self._several = optimizer if isinstance(optimizer, _several.Together) else None
        if scheduler is None and not own and _optimizer.has_scheduler(optimizer):
            why = why or "a scheduler of the script's own sets its rates"
        elif scheduler is None and self._several is None:  # what an earlier one began with is nothing to this job
            for group in optimizer.param_groups:
                group.pop("initial_lr", None)
        follows = "job.after_update was called" if after.there_is else ""
        follows = follows or ("the job has several optimizers" if self._several else "")
        own_step = _optimizer.own_step(optimizer) or follows or ("" if own else why)
        rule = None if own == "custom" or parameters.averaged or own_step else _optimizer.settings_of(optimizer)
        self._why = own_step or ("the model has running statistics" if parameters.averaged else "")
        if rule is not None:
            try:
                groups = _optimizer.groups_of(optimizer)
                if scheduler is not None:
                    own_rates = any(group.lr_factor != 1 for group in groups.values())
                    self.schedule = _optimizer.Schedule(scheduler, updates, total, in_epoch, own_rates)
                    self.settings |= self.schedule.settings
                self.settings |= rule
                parameters.set_groups(groups)
                parameters.moves_without_gradient = _optimizer.moves_without_gradient(optimizer)
                return
            except _optimizer.NoSchedule:
                self.schedule = None
        schedule = None if scheduler is None else _update.Schedule(scheduler, optimizer, updates, in_epoch)
        self.schedule = schedule
        self.updates = _update.Updates(optimizer, parameters.list, parameters.count, schedule, after)
        marks = 0 if self._several is None else len(self._several.parts)
        parameters.add_extra(self.updates.extra, self.updates.count_in, marks)
        if parameters.averages:  # running statistics are no gradient
            self.settings.pop("optimizer.clip", None)
            self._clip = clip or None
        self.settings |= {"optimizer.name": "custom", "optimizer.lr": 1.0}

    def explained(self, error: UsageError) -> UsageError:
        """Where the job does without something because the script's optimizer makes the updates: with the reason for that."""
        if self.updates is None or not self._why or "custom" not in str(error):
            return error
        return UsageError(f"{error}. The script's optimizer makes the updates (custom) because {self._why}")

    def check(self, config: _settings.Settings) -> None:
        """The job's config may say otherwise than the script."""
        name = config["optimizer.name"]
        if self.updates is not None:
            self.updates.settle(int(config["job.global_batch"]))
        if self.updates is None and name == "custom":
            raise UsageError(
                "the job's updates are made by its workers, as its config says (optimizer.name = custom), and this script leaves "
                "them to the session: say so in its settings, too"
            )
        if self.updates is not None and name != "custom":
            raise UsageError(
                f"the job's optimizer is {name}, as its config says, and that of this script is none of the session's"
                f"{f' ({self._why})' if self._why else ''}: leave optimizer.name out of the config"
            )

    def check_fewest(self, config: _settings.Settings, workers: int, at_once: int) -> None:
        """Whether a unit has too few samples for the model's norms. `at_once`: samples that are computed so at most."""
        # A rest is cut evenly, so a unit of it may be little more than half as large as the others.
        fewest = self._parameters.fewest_samples()
        if fewest > 1 and _samples_of_a_unit(config, workers, at_once) <= fewest:
            raise UsageError(
                f"job.units = {config['job.units']} of job.global_batch = {config['job.global_batch']} samples may have only one, "
                "and BatchNorm no statistics of it: fewer units, or a larger batch"
            )

    def digest(self) -> str:
        """Describes the updates. All workers must have the same, and so must a job that is resumed."""
        if self.updates is None:
            return ""
        return self.updates.digest() + (f"; clipped to {self._clip}" if self._clip is not None else "")

    def make(
        self,
        work: Work,
        session: Session,
        *,
        clips: tuple[_agreed.Clip, ...],
        rates: tuple[float, ...] | None,
        times: float,
        check: Callable[[list[torch.Tensor]], None],
    ) -> None:
        """The update of a round that is committed, by the script's optimizer. `rates`: of its groups, which the script has set.
        `times`: the mean gradient counts so often. `check` is given the gradients that the update is made by."""
        assert self.updates is not None
        updates = self.updates
        device = self._parameters.device
        state = device.floats(session, work.state, state=True) if work.state else None

        def make(extra: torch.Tensor) -> None:
            if self._several is not None:
                self._several.decide(self._parameters.marks())
            parameters = self._parameters.list
            if self._clip is not None:
                nn.utils.clip_grad_norm_(parameters, self._clip)
            if times != 1:
                for p in parameters:
                    assert p.grad is not None
                    p.grad.mul_(times)
            _reads.clip(parameters, clips, lambda function: function())
            check([p.grad for p in parameters if p.grad is not None])
            factor = work.learning_rate * work.fraction
            position, samples = work.schedule_position, work.update_samples
            updates.make(extra, state, factor, position=position, samples=samples, own_rates=rates)

        self._parameters.update(
            work.update,
            work.gradient,
            lambda address: device.floats(session, address),
            make=make,
            finish=updates.finish if self._after.there_is else None,
            kept=self._after.tensors(),
        )
        device.settle(session)

    def show_kept(self) -> bool:
        """As `_update.Updates.show_kept`, of the parameters in use."""
        return self.updates is None or self.updates.show_kept(self._parameters.extra())

    def detach(self) -> None:
        """The optimizer keeps what it has in memory of its own."""
        if self.updates is not None:
            self.updates.detach()


def _limit(clip: float) -> float:
    """0: there is none."""
    try:
        limit = float(clip)
    except (TypeError, ValueError):
        limit = math.nan
    if not math.isfinite(limit) or limit < 0:
        raise UsageError(f"clip_grad_norm: {clip!r} is not a finite number from 0 on (0: no limit)")
    return limit


def _samples_of_a_unit(config: _settings.Settings, workers: int, at_once: int) -> int:
    """Of a whole round, at least."""
    batch, text = int(config["job.global_batch"]), config["job.units"]
    most = max(min(max(64 * workers, 1), MOST_UNITS), -(-batch // at_once))  # of auto, by whatever policy
    return batch // min(max(most, 4 * workers) if text == "auto" else int(text) or most, batch)
