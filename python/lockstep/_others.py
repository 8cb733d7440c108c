"""Optimizers that step beside the job's: each worker would train a model of its own with them, and nobody would notice.

One that lives for a single batch, as of an inner loop or of an input that is attacked, is the script's own business. So is one that
steps where no batch is in hand, as in an evaluation. One that steps in two rounds trains something.
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from lockstep import _given
from lockstep._errors import UsageError


class Watch:
    """From `begin` to `end`. `round_in_hand`: None where there is none."""

    def __init__(self, round_in_hand: Callable[[], int | None]) -> None:
        self._round_in_hand = round_in_hand
        self._first: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
        self._own: torch.optim.Optimizer | None = None
        self._handle: Any = None

    def begin(self, own: torch.optim.Optimizer) -> None:
        self._own = own
        self._handle = register_optimizer_step_pre_hook(self._before_step)

    def end(self) -> None:
        """May be called again."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        round_ = self._round_in_hand()
        if round_ is None or optimizer is self._own:
            return
        first = self._first.setdefault(optimizer, round_)
        if first != round_:
            raise UsageError(
                f"an optimizer that job.prepare was not given, {type(optimizer).__name__}, has stepped in round {first} and round "
                f"{round_}: each worker would train a copy of its own. Give it all models and optimizers, {_given.LISTS}"
            )
