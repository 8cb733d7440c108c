"""`p.grad` between the backward pass and opt.step(), as a script for DistributedDataParallel sees it: the gradient of the update.

The attribute is watched there, on torch.nn.Parameter as a whole. If the script's optimizer makes the updates, its first read hands
the batch in (`settle`) and waits until the round is committed. It then gets a copy of the mean gradient, which `clip_grad_norm_`
may clip. A clipping is noted, and all workers clip their gradients so before the update (_agreed.py). Other changes of the copy are
refused, since workers that had no batch in the round would not make them.

Where work moves, a worker may have another batch of the same round to compute. Then its copy is the mean over its own batch.

If the session makes the updates, `p.grad` is a part of a sum. The first read is reported, and clipping is refused.
"""

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch
from torch import nn

from lockstep import _agreed
from lockstep._errors import UsageError

_plain: Any = torch.Tensor.grad  # the attribute itself
_NOT_THE_SCRIPT = ("torch.", "lockstep.")  # a GradScaler, deepcopy, zero_grad
_OF_CLIPPING = "torch.nn.utils.clip_grad"
_HOOK = "opt.register_step_pre_hook(lambda *_: {})"
CLIP_VALUE = _HOOK.format("torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)")
LOOK = _HOOK.format("print(model.weight.grad.norm())")
CHANGE = _HOOK.format("[p.grad.mul_(0.5) for p in model.parameters()] and None")
OWN = 'lockstep.init(settings={"optimizer.name": "custom"})'


class Watch:
    """Of a job's parameters. `said`: is called once, with a line. `settle`: hands the batch in, and returns copies of the gradients
    to show; None: the session makes the updates. `agreed`: how all clip; None: nobody has said it yet."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        say: Callable[[str], None],
        settle: Callable[[], list[torch.Tensor]] | None,
        agreed: Callable[[], tuple[_agreed.Clip, ...] | None],
    ) -> None:
        self._parameters = parameters
        self._numbers = {id(p): i for i, p in enumerate(parameters)}
        self._say: Callable[[str], None] | None = say
        self._settle = settle
        self._agreed = agreed
        self._shown: list[torch.Tensor] | None = None  # what the script sees of the batch in hand
        self._base: list[torch.Tensor] | None = None  # the same before it was clipped, where no update comes of it
        self.clips: list[_agreed.Clip] = []  # in this batch
        self._is_settling = False
        self._first = True  # nobody knows yet how the script clips
        self._call: FrameType | None = None  # that clips
        self._before: tuple[_agreed.Clip, ...] | None = None  # in the batch before
        self._announced: tuple[_agreed.Clip, ...] | None = None
        self.refuses_clipping = False  # there are several optimizers, whose gradients are those of the batch in hand

    def open(self) -> None:
        """From here on the script reads what is not meant for it."""
        self._shown = self._base = self._announced = None
        self.clips = []
        nn.Parameter.grad = property(self._read, self._write, _plain.__delete__)  # type: ignore[assignment]

    @staticmethod
    def close() -> None:
        """May be called again."""
        if "grad" in vars(nn.Parameter):
            del nn.Parameter.grad

    def announce(self) -> tuple[_agreed.Clip, ...] | None:
        """How the script clips, as far as it is known when the batch is handed in; None: it does not."""
        before = self._before if self._before is not None else self._agreed()
        self._first = before is None
        if not self.clips and before is None:
            self._announced = None
        elif self._is_settling:  # what comes behind this read is as in the batch before
            self._announced = (*self.clips, *(before or ())[len(self.clips) :])
        else:
            self._announced = tuple(self.clips)
        return self._announced

    @property
    def more_to_come(self) -> bool:
        """There may be more than `announce` has returned."""
        return self._first and self._is_settling

    @property
    def before(self) -> tuple[_agreed.Clip, ...]:
        """How this worker has clipped last."""
        return self._before or ()

    def step(self) -> tuple[_agreed.Clip, ...] | None:
        """opt.step() was called: how this worker has clipped; None: as has been announced."""
        self.close()
        self._call = None
        clips = tuple(self.clips)
        if self._shown is None and self._before is None:
            return None
        self._before = clips
        if self._announced is not None and clips != self._announced and not self._first:
            raise UsageError(
                "p.grad was read before clip_grad_norm_ or clip_grad_value_, which clips otherwise than in the batch before: clip "
                "first, or always alike"
            )
        if self._base is not None:
            shown, self._shown = self._shown, self._base
            clip(self._parameters, clips, self._over_base)
            self._shown = shown
            self.check(self._base)
        return clips

    def check(self, gradients: Sequence[torch.Tensor]) -> None:
        """They are those that the update is made by: the script has changed nothing else of what it has seen."""
        if self._shown is None:
            return
        pairs = zip(self._shown, gradients, strict=True)
        if not all(torch.equal(one.view(torch.int32), other.view(torch.int32)) for one, other in pairs):
            refuse_change()

    def end(self) -> None:
        """The update is made, or there is none."""
        self._shown = self._base = None

    def _over_base(self, function: Callable[[], object]) -> None:
        nn.Parameter.grad = property(lambda p: self._base[self._numbers[id(p)]])  # type: ignore[assignment,index]
        try:
            function()
        finally:
            self.close()

    def _read(self, p: nn.Parameter) -> torch.Tensor | None:
        value: torch.Tensor | None = _plain.__get__(p)
        if id(p) not in self._numbers:
            return value
        frame: FrameType | None = sys._getframe(1)
        where = str(frame.f_globals.get("__name__", "")) if frame is not None else ""
        clips = where.startswith(_OF_CLIPPING)
        if not clips and where.startswith(_NOT_THE_SCRIPT):
            return value
        call = _call_of(frame, where) if clips else None
        if self._settle is None:
            self._refuse_or_say(call)
            return value
        if call is not None and call is not self._call:
            self._call = call
            self.clips.append(self._clip_of(call))
            _agreed.check_count(len(self.clips))
        if self._shown is None:
            self._is_settling = True
            try:
                self._shown = self._settle()
            finally:
                self._is_settling = False
        return self._shown[self._numbers[id(p)]]

    def note_partial(self, own: list[torch.Tensor]) -> None:
        """Within `settle`: no update comes of this batch alone, whose gradients these are."""
        self._base = [one.clone() for one in own]

    def _clip_of(self, call: FrameType) -> _agreed.Clip:
        of = call.f_locals
        given = of.get("parameters")
        given = [given] if isinstance(given, torch.Tensor) else given
        # Older torch leaves a generator as it is, which is that of all parameters as a rule.
        which = [self._numbers.get(id(p)) for p in given] if isinstance(given, list | tuple) else list(range(len(self._parameters)))
        numbers = tuple(number for number in which if number is not None)
        if call.f_code.co_name == "clip_grad_value_":
            return _agreed.Clip(float(of["clip_value"]), None, numbers)
        return _agreed.Clip(float(of["max_norm"]), float(of["norm_type"]), numbers)

    def _refuse_or_say(self, call: FrameType | None) -> None:
        if self.refuses_clipping:
            if call is not None:
                raise UsageError(
                    "clipping with several optimizers would be that of the batch in hand alone: before job.prepare, let each "
                    f"optimizer clip its gradients of the update, {CLIP_VALUE}"
                )
        elif call is not None:
            if call.f_code.co_name == "clip_grad_value_":
                raise UsageError(
                    "clip_grad_value_ between the backward pass and opt.step() would clip a part of a sum: before job.prepare, "
                    f"let it clip the gradient of each update, {CLIP_VALUE}"
                )
        elif self._say is not None:
            say, self._say = self._say, None
            say(
                "p.grad was read between the backward pass and opt.step(): it is this worker's part of a sum over the round there, "
                f"and not the gradient of the update. To look at that one, before job.prepare: {LOOK}"
            )

    def _write(self, p: nn.Parameter, value: torch.Tensor | None) -> None:
        if value is not None and id(p) in self._numbers:
            refuse_change()
        _plain.__set__(p, value)


def clip(
    parameters: Sequence[nn.Parameter],
    clips: Sequence[_agreed.Clip],
    within: Callable[[Callable[[], object]], object],
) -> None:
    """Clips their gradients. `within` calls what it is given."""
    for one in clips:
        which = [parameters[i] for i in one.which]
        if one.norm is None:
            within(lambda which=which, one=one: nn.utils.clip_grad_value_(which, one.limit))  # type: ignore[misc]
        else:
            within(lambda which=which, one=one: nn.utils.clip_grad_norm_(which, one.limit, one.norm))  # type: ignore[misc]


def refuse_change() -> None:
    raise UsageError(
        "the script has changed gradients between the backward pass and opt.step(), otherwise than by clip_grad_norm_ or "
        f"clip_grad_value_. A worker without a batch would not. Before job.prepare, change those of each update, {CHANGE}"
    )


def _call_of(frame: FrameType | None, where: str) -> FrameType | None:
    """The call of clip_grad_norm_ or clip_grad_value_ that reads a gradient."""
    found = None
    while frame is not None and frame.f_globals.get("__name__") == where:
        if frame.f_code.co_name in ("clip_grad_norm_", "clip_grad_value_"):
            found = frame
        frame = frame.f_back
    if found is None:
        raise UsageError(
            "get_total_norm and clip_grads_with_norm_ between the backward pass and opt.step() are not supported: write "
            "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
        )
    return found
