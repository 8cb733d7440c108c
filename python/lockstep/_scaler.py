"""Losses that a GradScaler of torch has scaled, for float16, whose small gradients are zero and whose large ones are infinite.

Each worker has its own scale. A batch's gradient is divided by it before it is added to the contribution, so sums do not depend on
scales. A batch whose gradient has overflowed with its scale is not added. Its worker's scaler is told, as after a step that it left
out, and lowers the scale.

`GradScaler.scale` is replaced while there is a job, so that the scaled loss knows its scaler, and `unscale_`, which finds no scale.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from lockstep._errors import UsageError

_Scaler: Any = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler  # the former from torch 2.3 on
_torch_scale: Callable[[Any, Any], Any] = _Scaler.scale
_torch_unscale: Callable[[Any, Any], None] = _Scaler.unscale_
_OptState: Any = sys.modules[_Scaler.__module__].OptState
_MARK = "_lockstep_scaler"


def _scale(self: Any, outputs: Any) -> Any:
    scaled = _torch_scale(self, outputs)
    if self.is_enabled() and isinstance(scaled, torch.Tensor):
        setattr(scaled, _MARK, (self, outputs.detach()))
    return scaled


def _unscale(self: Any, optimizer: Any) -> None:
    unscale = getattr(type(optimizer), "unscale", None)
    if unscale is None or not type(optimizer).__module__.startswith("lockstep."):
        _torch_unscale(self, optimizer)
    elif self.is_enabled():
        unscale(optimizer, self)


def watch() -> None:
    _Scaler.scale, _Scaler.unscale_ = _scale, _unscale


def unwatch() -> None:
    """May be called again."""
    if _Scaler.scale is _scale:  # else somebody has done the same since
        _Scaler.scale = _torch_scale
    if _Scaler.unscale_ is _unscale:
        _Scaler.unscale_ = _torch_unscale


def of(loss: torch.Tensor) -> tuple[Any, torch.Tensor] | None:
    """The scaler whose `scale` has returned this loss, and what it was given; None: it is as the script has computed it."""
    found: tuple[Any, torch.Tensor] | None = getattr(loss, _MARK, None)
    return found


def backward(loss: torch.Tensor, parameters: Sequence[nn.Parameter], scale: float, counts_for: int, *, retain_graph: bool) -> bool:
    """Adds the gradient of the mean `loss` / `scale`, so many times, to the gradients that the parameters have; nothing, where
    a value of it is not finite. Whether it was added."""
    sums = [p.grad for p in parameters]
    for p in parameters:
        p.grad = None
    try:
        torch.autograd.backward(loss, retain_graph=retain_graph)
        pairs = [(into, p.grad) for into, p in zip(sums, parameters, strict=True) if into is not None and p.grad is not None]
    finally:
        for into, p in zip(sums, parameters, strict=True):
            p.grad = into
    with torch.no_grad():
        finite = not pairs or bool(torch.stack([torch.isfinite(found).all() for _, found in pairs]).all())
        if finite:
            for into, found in pairs:
                into.add_(found, alpha=counts_for / scale)
    return finite


def note_unscaled(scaler: Any, optimizer: object, *, overflow: bool) -> None:
    """As its `unscale_` leaves its state."""
    try:
        state = scaler._per_optimizer_states[id(optimizer)]
        if state["stage"] is not _OptState.READY:
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update().")
        state["found_inf_per_device"] = {scaler._scale.device: torch.full((), float(overflow), device=scaler._scale.device)}
        state["stage"] = _OptState.UNSCALED
    except (AttributeError, KeyError) as error:
        raise UsageError(f"this version of torch has another GradScaler than is known here ({error})") from error


def tell(scaler: Any, optimizer: object, overflow: bool) -> None:
    """Tells `scaler.update` of an overflow. The sums do not show it, because the batch was not added to them."""
    try:
        for found in scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values():
            found.fill_(float(overflow))
    except (AttributeError, KeyError) as error:
        raise UsageError(f"this version of torch has another GradScaler than is known here ({error})") from error
