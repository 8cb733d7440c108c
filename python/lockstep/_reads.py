"""Reads of `p.grad` between the backward pass and the step: there it is a part of a sum, not the gradient of an update.

A norm that a script logs there would depend on the number of workers. So the attribute is watched from the end of a backward pass
to the step, on torch.nn.Parameter as a whole. The first read by the script is reported, and `clip_grad_value_` is refused.
"""

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch
from torch import nn

from lockstep._errors import UsageError

_plain: Any = torch.Tensor.grad  # the attribute itself
_NOT_THE_SCRIPT = ("torch.", "lockstep.")  # a GradScaler, deepcopy, zero_grad
_OF_CLIPPING = "torch.nn.utils.clip_grad"
_HOOK = "opt.register_step_pre_hook(lambda *_: {})"
CLIP_VALUE = _HOOK.format("torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)")
LOOK = _HOOK.format("print(model.weight.grad.norm())")


class Watch:
    """Of a job's parameters. `said`: is called once, with a line."""

    def __init__(self, parameters: Sequence[nn.Parameter], say: Callable[[str], None]) -> None:
        self._watched = set(map(id, parameters))
        self._say: Callable[[str], None] | None = say

    def open(self) -> None:
        """From here on the script reads what is not meant for it."""
        nn.Parameter.grad = property(self._read, _plain.__set__, _plain.__delete__)  # type: ignore[assignment]

    @staticmethod
    def close() -> None:
        """May be called again."""
        if "grad" in vars(nn.Parameter):
            del nn.Parameter.grad

    def _read(self, p: nn.Parameter) -> torch.Tensor | None:
        value: torch.Tensor | None = _plain.__get__(p)
        if value is None or id(p) not in self._watched:
            return value
        frame: FrameType | None = sys._getframe(1)
        where = str(frame.f_globals.get("__name__", "")) if frame is not None else ""
        if where.startswith(_OF_CLIPPING):
            while frame is not None and frame.f_globals.get("__name__") == where:
                if frame.f_code.co_name == "clip_grad_value_":
                    raise UsageError(
                        "clip_grad_value_ between the backward pass and opt.step() would clip a part of a sum: before job.prepare, "
                        f"let it clip the gradient of each update, {CLIP_VALUE}"
                    )
                frame = frame.f_back
        elif self._say is not None and not where.startswith(_NOT_THE_SCRIPT):
            say, self._say = self._say, None
            say(
                "p.grad was read between the backward pass and opt.step(): it is this worker's part of a sum over the round there, "
                f"and not the gradient of the update. To look at that one, before job.prepare: {LOOK}"
            )
        return value
