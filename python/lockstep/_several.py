"""Several optimizers in one job, as of a GAN's two nets: all their parameters make the job's one vector.

The script's loop keeps its backward passes and its steps. Gradients are torch's own, in memory of their own, so zero_grad has its
usual meaning. A step adds the gradients of its optimizer's parameters to the contribution, and passes that come later for the same
batch change them no more. It also marks the contribution, in values that travel with the gradient. So when the round is committed
all workers, also those without a batch, let those optimizers step that have stepped in the loop. The others keep their parameters
and state.

So all losses of a batch are computed with the parameters of its round: a generator's loss does not see the discriminator's step for
the same batch yet.
"""

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any

import torch
from torch import nn

from lockstep import _ddp, _given, _optimizer
from lockstep._errors import UsageError

_NONE, _ALL = 1e-4, 1 - 1e-4  # of a round, as far as its mean is exact


class _States(MutableMapping[Any, Any]):
    """Of all the optimizers, by parameter."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self._parts = parts
        self._owner = {id(p): part for part in parts for group in part.param_groups for p in group["params"]}

    def __getitem__(self, p: Any) -> Any:
        return self._owner[id(p)].state[p]

    def __setitem__(self, p: Any, state: Any) -> None:
        self._owner[id(p)].state[p] = state

    def __delitem__(self, p: Any) -> None:
        del self._owner[id(p)].state[p]

    def __contains__(self, p: object) -> bool:
        return id(p) in self._owner and p in self._owner[id(p)].state

    def __iter__(self) -> Iterator[Any]:
        return (p for part in self._parts for p in part.state)

    def __len__(self) -> int:
        return sum(len(part.state) for part in self._parts)


class Together(torch.optim.Optimizer):
    """The optimizers as one, which the job's updates are made by."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        """Not as another one is made: the groups stay those of `parts`."""
        self.parts = tuple(parts)
        self.param_groups = [group for part in parts for group in part.param_groups]
        self.state: Any = _States(self.parts)
        self.defaults: dict[str, Any] = {}
        self._steps: list[Callable[[], Any]] = [part.step for part in parts]  # with the hooks of the script
        self._stepping = [True] * len(parts)  # in the next update

    def decide(self, marks: Sequence[float]) -> None:
        """Which of them step in the next update. `marks`: the share of the round for which each has stepped in the loop."""
        if any(_NONE < mark < _ALL for mark in marks):
            raise UsageError(
                "in a round other optimizers have stepped on one worker than on another. They have different numbers of batches: "
                "follow the rounds, as if job.round % 5 == 0"
            )
        self._stepping = [mark > _NONE for mark in marks]

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for step, steps in zip(self._steps, self._stepping, strict=True):
            if steps:
                step()

    def plain_step(self) -> None:
        """All of them, without the hooks."""
        for part in self.parts:
            step: Any = type(part).step
            (step.__wrapped__ if getattr(step, "hooked", False) else step)(part)

    def numbers(self, parameters: Sequence[torch.nn.Parameter]) -> list[list[int]]:
        """Of the parameters that each of them has, among these."""
        owns = [{id(p) for group in part.param_groups for p in group["params"]} for part in self.parts]
        return [[number for number, p in enumerate(parameters) if id(p) in own] for own in owns]


class PreparedPart(_optimizer.PreparedOptimizer):
    """Stands in for one of the script's optimizers."""

    def __init__(self, part: torch.optim.Optimizer, whole: _optimizer.PreparedOptimizer, on_step: Callable[[], None]) -> None:
        super().__init__(part, on_step, hooked=True)
        self._whole = whole

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """The round makes the update; this says that the gradients of this optimizer's parameters are complete."""
        if closure is not None:
            raise UsageError("opt.step(closure) is not supported")
        self._whole.note_step()
        self._on_step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for group in self._optimizer.param_groups:
            for p in group["params"]:
                p.grad = None


def taken(model: Any, optimizer: Any, scheduler: Any, workers: int | None) -> tuple[Any, Any, int]:
    """Arguments of job.prepare: lists become one model and one optimizer; others stay. And how many ranks wrappers among the models
    have. `workers`: that the job is to have, if that is known."""
    if not isinstance(optimizer, list | tuple):
        return model, optimizer, 1
    whole = _together(optimizer, scheduler)
    if not isinstance(model, list | tuple):
        return model, whole, 1
    unwrapped = [_ddp.take(_given.model(one), workers) for one in model]
    return nn.ModuleList([one for one, _ in unwrapped]), whole, max((ranks for _, ranks in unwrapped), default=1)


def _together(optimizers: Sequence[Any], scheduler: Any) -> Together:
    for one in optimizers:
        if not isinstance(one, torch.optim.Optimizer):
            raise UsageError(f"job.prepare was given {type(one).__name__} among its optimizers: it takes those of torch.optim")
    owned = [id(p) for one in optimizers for group in one.param_groups for p in group["params"]]
    if len(set(owned)) < len(owned):
        raise UsageError("two of the optimizers that job.prepare was given have the same parameter: give each parameter to one")
    if scheduler is not None:
        raise UsageError(
            "job.prepare takes no scheduler with several optimizers: make one of each optimizer before job.prepare, and step them "
            "in the loop"
        )
    return Together(optimizers)
