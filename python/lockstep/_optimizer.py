"""Maps optimizers of torch.optim to the job's own update rules, and stands in for the script's optimizer and schedule.

The update is made when the round is committed, on every worker alike. The session makes it if it has a rule for the optimizer, else
the script's optimizer does (_update.py). Either way `step` in the loop only marks that the script meant one.
"""

import copy
import math
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.optim import lr_scheduler

from lockstep import _given, _scaler
from lockstep._errors import Missing, UsageError
from lockstep._session import Group
from lockstep._settings import Settings, differences, text_of


def settings_of(optimizer: torch.optim.Optimizer) -> Settings | None:
    """The session's rule that does the same; None where it has none."""
    kind = type(optimizer)
    options = _options(optimizer)
    if options is None or optimizer.state or kind not in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        return None
    if any(options.get(name) for name in ("maximize", "amsgrad", "differentiable", "dampening")):
        return None
    if kind is torch.optim.Adam and any(group["weight_decay"] for group in optimizer.param_groups):  # of the gradient
        return None
    common = {"optimizer.lr": float(options["lr"]), "optimizer.weight_decay": float(options["weight_decay"])}
    if kind is torch.optim.SGD:
        special = {
            "optimizer.name": "sgd",
            "optimizer.momentum": float(options["momentum"]),
            "optimizer.nesterov": options["nesterov"],
        }
    else:
        beta1, beta2 = (float(beta) for beta in options["betas"])
        special = {
            "optimizer.name": "adamw",
            "optimizer.beta1": beta1,
            "optimizer.beta2": beta2,
            "optimizer.epsilon": float(options["eps"]),
        }
    return {key: text_of(value) for key, value in {**common, **special}.items()}


def own_step(optimizer: torch.optim.Optimizer) -> str:
    """Names the script's own code around the optimizer's step, which each update must call; empty: there is none."""
    if _hooks(optimizer) or any(not _home(hook).startswith(("torch.", "lockstep.")) for hook in _hooks_of_all()):
        return "the optimizer has step hooks"
    step: Any = vars(optimizer).get("step")
    while _home(step) == lr_scheduler.__name__ and hasattr(step, "__wrapped__"):
        step = step.__wrapped__
    plain = step is None or getattr(step, "__func__", step) is type(optimizer).step
    return "" if plain else "the optimizer's step is a function of the script's own"


def has_scheduler(optimizer: torch.optim.Optimizer) -> bool:
    """One of torch was made of it."""
    return hasattr(vars(optimizer).get("step"), "_wrapped_by_lr_sched")


def _hooks(optimizer: torch.optim.Optimizer) -> list[Any]:
    names = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    return [hook for name in names for hook in getattr(optimizer, name, {}).values()]


def _hooks_of_all() -> list[Any]:
    """Those of every optimizer."""
    module = sys.modules[torch.optim.Optimizer.__module__]
    names = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
    return [hook for name in names for hook in getattr(module, name, {}).values()]


def _home(function: Any) -> str:
    """The module in which it was defined; a wrapper may say that it is of the one of what it wraps."""
    return str(getattr(function, "__globals__", {}).get("__name__", ""))


def moves_without_gradient(optimizer: torch.optim.Optimizer) -> bool:
    """Of one that `settings_of` has a rule for: whether a parameter whose gradient is zero changes."""
    moving = any(group.get(key) for group in optimizer.param_groups for key in ("momentum", "weight_decay"))
    return not isinstance(optimizer, torch.optim.SGD) or moving


_OF_A_GROUP = ("lr", "weight_decay", "momentum")  # what a parameter group may have of its own


def _options(optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
    """Those of its first group; None where others differ in something that is not a group's to have."""
    apart = ("params", "initial_lr", "param_names")
    groups = [{k: v for k, v in group.items() if k not in apart} for group in optimizer.param_groups]
    for group in groups[1:]:
        for key, value in group.items():
            if key not in _OF_A_GROUP and value != groups[0].get(key):
                return None
        if bool(group.get("momentum")) is not bool(groups[0].get("momentum")):  # it would keep other state
            return None
    rates = _rates(optimizer)
    if rates[0] == 0 and any(rates):
        return None
    groups[0]["lr"] = rates[0]
    return groups[0]


def _rates(optimizer: torch.optim.Optimizer) -> list[float]:
    """The learning rates of the groups. A scheduler that was made already may have changed them; the job's own begins anew."""
    return [float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups]


def lr_factors(optimizer: torch.optim.Optimizer) -> list[float]:
    """The learning rate of each group, divided by that of the first one."""
    rates = _rates(optimizer)
    return [rate / rates[0] if rates[0] else 1.0 for rate in rates]


def groups_of(optimizer: torch.optim.Optimizer) -> dict[int, Group]:
    """The groups of parameters (by id) that differ from the first group, if the session has a rule for them."""
    first = optimizer.param_groups[0]
    found: dict[int, Group] = {}
    for group, factor in zip(optimizer.param_groups, lr_factors(optimizer), strict=True):
        own = {key: float(group[key]) for key in ("weight_decay", "momentum") if group.get(key) != first.get(key)}
        if own or factor != 1:
            found |= dict.fromkeys(map(id, group["params"]), Group(factor, **own))
    return found


class NoSchedule(Exception):
    """The job has no schedule that does the same as the scheduler."""


class Schedule:
    """A learning-rate scheduler of torch as the job's schedule: `settings`. `updates`: in an epoch. `steps_in_epoch`: the script
    calls it once in each; None: that is not known yet. `total`: updates of the job. `own_rates`: its groups have other rates.
    NoSchedule where there is none."""

    def __init__(
        self, scheduler: lr_scheduler.LRScheduler, updates: int, total: int, steps_in_epoch: bool | None, own_rates: bool
    ) -> None:
        kind = type(scheduler)
        options: Any = scheduler
        if steps_in_epoch is None:
            if kind is not lr_scheduler.CosineAnnealingLR:  # whose length tells
                raise NoSchedule
            steps_in_epoch = False
        unit = updates if steps_in_epoch else 1
        self.steps_in_epoch = steps_in_epoch
        if kind is lr_scheduler.StepLR:
            every, factor = options.step_size * unit, float(options.gamma)
            self.settings: dict[str, object] = {"schedule.name": "step", "schedule.step_every": every, "schedule.factor": factor}
        elif kind is lr_scheduler.ExponentialLR:
            self.settings = {"schedule.name": "step", "schedule.step_every": unit, "schedule.factor": float(options.gamma)}
        elif kind is lr_scheduler.CosineAnnealingLR:
            # To one end whatever they begin with, so their rates do not stay in proportion.
            if unit != 1 or options.T_max != total or (own_rates and options.eta_min != 0):
                raise NoSchedule
            self.settings = {"schedule.name": "cosine", "schedule.final_lr": float(options.eta_min)}
        else:
            raise NoSchedule

    def check(self, config: Settings, batch: int) -> None:
        """Its epochs were counted in updates of the script's batch; the job's config may say another one."""
        theirs = int(config["job.global_batch"])
        holds = not differences({key: text_of(value) for key, value in self.settings.items()}, config)
        if self.steps_in_epoch and theirs != batch and holds:
            raise UsageError(
                f"the job has global_batch {theirs}, as its config says, and the scheduler's epochs were counted in updates of "
                f"{batch}: give global_batch={theirs} to job.prepare"
            )


class Rate:
    """The job's learning rate, as its config says."""

    def __init__(self, config: Settings, updates: int) -> None:
        """`updates`: in an epoch."""
        section = {key.removeprefix("schedule."): text for key, text in config.items() if key.startswith("schedule.")}
        self._base = float(config["optimizer.lr"])
        self._name = section["name"]
        self._warmup, self._every = float(section["warmup"]), float(section["step_every"])
        self._factor, self._final = float(section["factor"]), float(section["final_lr"])
        self._updates = int(config["job.rounds"]) or max(1, int(config["job.epochs"])) * updates

    def of(self, update: float) -> float:
        rate = self._base
        if self._name == "step":
            rate *= self._factor ** (update // self._every)
        elif self._name == "exponential":
            rate *= self._factor ** (update / self._every)
        elif self._name == "cosine":
            progress = min(1.0, max(0.0, (update - self._warmup) / max(self._updates - self._warmup, 1.0)))
            rate = self._final + (rate - self._final) * 0.5 * (1 + math.cos(math.pi * progress))
        return rate * (update + 1) / self._warmup if update + 1 < self._warmup else rate


class PreparedOptimizer(torch.optim.Optimizer):
    """Stands in for the script's optimizer. One of torch's by name alone, so that who takes it for one, as a scheduler does, comes
    to what is refused here."""

    # Asks a GradScaler to leave the gradients as they are, and to say here what it has found before it calls `step`. What it
    # changes of gradients cannot be seen afterwards: its kernel does not count as a change of a tensor.
    _step_supports_amp_scaling = True
    found_inf: torch.Tensor | None = None

    def __init__(
        self, optimizer: torch.optim.Optimizer, on_step: Callable[[], None], *, hooked: bool, scheduled: bool = False
    ) -> None:
        """`hooked`: the updates are the script's optimizer's, which calls its step hooks itself. `scheduled`: the job has its
        scheduler."""
        self._optimizer = optimizer
        self._hooked = hooked
        self._on_step = on_step
        self._known = _groups(optimizer)
        self.factors = lr_factors(optimizer)
        self._begun = [float(group["lr"]) for group in optimizer.param_groups]
        self._by_hand = False  # the script has set rates
        self.at_step = tuple(self._begun)  # the rates of the script's last step
        self._told: tuple[float, ...] | None = None  # rates of the batch in hand that others know before its step
        self._scheduled = scheduled
        self._scaled: tuple[Any, bool] | None = None
        # Whoever still has the script's own would update parameters behind the job's back.
        optimizer.step = _refuse_step  # type: ignore[method-assign,assignment]
        optimizer._opt_called = True  # type: ignore[attr-defined]  # a scheduler that the job was not given warns otherwise

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "step":
            raise UsageError(
                "a scheduler was made of the optimizer that job.prepare has returned, or its step was replaced: make it of the "
                "script's own before, and give it to job.prepare"
            )
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        raise Missing(f"the optimizer that job.prepare has returned has no {name}: the updates are the job's")

    def add_param_group(self, _: dict[str, Any]) -> None:
        raise UsageError(
            "the optimizer that job.prepare has returned takes no parameter group: give job.prepare all of them. To train some "
            f"later, give it {_given.LATER}"
        )

    def register_step_pre_hook(self, *_: Any) -> NoReturn:
        raise UsageError("the optimizer that job.prepare has returned takes no step hook: give it to the script's own, before that")

    def register_step_post_hook(self, *_: Any) -> NoReturn:
        self.register_step_pre_hook()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """The round makes the update; this only says that the run's gradient is complete. `closure`: computes it first, and returns
        the loss."""
        loss = None
        if closure is not None:
            step = type(self._optimizer).step
            if not step.__module__.startswith("torch."):
                raise UsageError(
                    f"opt.step(closure) of {type(self._optimizer).__name__} is not supported, for it may call the closure more "
                    "than once: an optimizer of torch.optim calls it once"
                )
            with torch.enable_grad():
                loss = closure()
        scaled, self._scaled = self._scaled, None
        if self.found_inf is not None:
            if scaled is None:
                raise UsageError("scaler.step(opt) was called, and the backward pass was of no loss that the scaler has returned")
            _scaler.tell(scaled[0], self, scaled[1])
        self.note_step()
        self._on_step()
        return loss

    def note_step(self) -> None:
        """The script has stepped: with which rates."""
        self.check_unchanged()
        self.at_step = tuple(float(group["lr"]) for group in self._optimizer.param_groups)
        told, self._told = self._told, None
        if told not in (None, self.at_step):
            raise UsageError("the script has set a rate after it has read or clipped gradients: set it before that")

    def scaled(self, scaler: Any, *, overflow: bool) -> None:
        """The backward pass of the batch in hand was of a loss of this scaler's."""
        self._scaled = scaler, overflow

    def unscale(self, scaler: Any) -> None:
        """scaler.unscale_(opt): gradients have no scale here."""
        if self._scaled is None or self._scaled[0] is not scaler:
            raise UsageError("scaler.unscale_(opt) was called, and the backward pass was of no loss that the scaler has returned")
        _scaler.note_unscaled(scaler, self, overflow=self._scaled[1])

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Does nothing: the sum of a contribution begins at zero by itself."""

    def show(self, rate: float) -> None:
        """The job's rate is in the groups, for who logs it."""
        self.check_unchanged()
        for group, of_group in zip(self._optimizer.param_groups, self.rates(rate), strict=True):
            group["lr"] = of_group
        self._known = _groups(self._optimizer)

    def rates(self, rate: float) -> list[float]:
        """Those of the groups, where the job's is this one."""
        return [rate * factor for factor in self.factors]

    def rates_by_hand(self, *, stepped: bool) -> tuple[float, ...] | None:
        """Those of the groups, as the script has set them for the batch in hand; None: it has set none. `stepped`: by its step."""
        if not self._hooked or self._scheduled:
            return None
        now = tuple(float(group["lr"]) for group in self._optimizer.param_groups)
        self._by_hand = self._by_hand or list(now) != self._begun  # behind the step they may be those of the next one
        rates = self.at_step if stepped else now
        self._told = None if stepped else now
        return rates if self._by_hand else None

    def changed_by_update(self) -> None:
        """The update has changed what is in the groups."""
        self._known = _groups(self._optimizer)

    def check_unchanged(self) -> None:
        if _hooks(self._optimizer) and not self._hooked:
            raise UsageError("the optimizer has got a step hook after job.prepare, which nobody would call: register it before")
        now = _groups(self._optimizer)
        if len(now) != len(self._known):
            raise UsageError(
                "the optimizer has got a parameter group behind the job's back: give job.prepare all of them. To train some later, "
                f"give it {_given.LATER}"
            )
        for before, after in zip(self._known, now, strict=True):
            for key, value in after.items():
                if before.get(key) == value:
                    continue
                if key == "lr" and self._hooked and not self._scheduled:
                    continue
                if key == "params":
                    raise UsageError("the optimizer's parameters were changed behind the job's back: give job.prepare all of them")
                how = f"; to change the rate, give job.prepare a scheduler, as {_given.RATES}" if key == "lr" else ""
                if key == "lr" and not self._hooked:  # as a library's scheduler does, which the script's code does not tell
                    how += f", or, if all workers change it alike, {_given.OWN_UPDATES}"
                if key in ("momentum", "betas"):
                    how = "; to let a scheduler change it, give that to job.prepare"
                raise UsageError(
                    f"the optimizer's {key} was changed from {before.get(key)} to {value} by the script: the update is the job's, "
                    f"as it was at job.prepare{how}"
                )

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The script's own, with the rate of the run in hand. To be read: a change of them is refused at the next step."""
        return self._optimizer.param_groups

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        return self._optimizer.defaults

    def state_dict(self) -> dict[str, Any]:
        """A copy, where the script's optimizer makes the updates."""
        if not self._hooked:
            raise UsageError(
                "the optimizer's state is the job's: it is in the checkpoints of the run directory. To have it here, let the "
                'script\'s optimizer make the updates, lockstep.init(settings={"optimizer.name": "custom"})'
            )
        return copy.deepcopy(self._optimizer.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise UsageError("the optimizer's state is the job's: resume the run directory instead")


class PreparedScheduler:
    """Stands in for the script's scheduler: the rate follows the job's updates. Its calls are to be those that were announced."""

    def __init__(
        self,
        scheduler: lr_scheduler.LRScheduler,
        on_step: Callable[[], None],
        rates: Callable[[], list[float]],
        steps: Callable[[], int],
    ) -> None:
        """`steps`: how many the script has made."""
        self._scheduler = scheduler
        self._on_step = on_step
        self._rates = rates
        self._steps = steps

    def step(self, epoch: None = None) -> None:
        """Changes nothing, for the rate follows updates; a call at a time that the job's schedule does not have is refused."""
        self._on_step()

    def get_last_lr(self) -> list[float]:
        """Of the update that is being computed."""
        return self._rates()

    def state_dict(self) -> dict[str, Any]:
        """As torch's own has it after so many steps."""
        steps = self._steps()
        return self._scheduler.state_dict() | {"last_epoch": steps, "_step_count": steps + 1, "_last_lr": self._rates()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise UsageError("the schedule is the job's: resume the run directory instead")


def _groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The settings of the groups that a script can change, by value."""

    def plain(key: str, value: Any) -> Any:
        if key == "params":
            return [id(p) for p in value]
        return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value

    return [{k: plain(k, v) for k, v in group.items() if k != "initial_lr"} for group in optimizer.param_groups]


def _refuse_step(*_: object, **__: object) -> None:
    raise UsageError("this optimizer was given to job.prepare: use the one that it has returned")


_refuse_step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # likewise
