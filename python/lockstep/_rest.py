"""The parts of a model that the job does not train, frozen parameters and buffers. Each worker has its own, so they must not
change.

They are compared from the beginning of a run to its end. A change is one that torch has seen, or another tensor with other values
in the place of the old one. Changes that `data` hides from torch are found in a sample of the values.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lockstep._errors import UsageError

_LOOKED_AT = 1024  # values in all; at least so many of each tensor:
_LOOKED_AT_OF_EACH = 2
_PLAIN = (torch.Tensor, nn.Parameter)  # others have values of their own kind
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}  # by the bytes of a value


@dataclass(frozen=True)
class Part:
    """A parameter, or a buffer. `norm`: the norm that has it, if that was in eval mode at job.prepare."""

    name: str
    owner: nn.Module
    key: str
    is_buffer: bool
    norm: str = ""

    def now(self) -> torch.Tensor | None:
        """None: it is not there any more."""
        return (self.owner._buffers if self.is_buffer else self.owner._parameters).get(self.key)

    @property
    def is_cache(self) -> bool:
        """A buffer outside the model's state may be made anew to suit a batch, as tables of positions are for longer samples."""
        return self.is_buffer and self.key in self.owner._non_persistent_buffers_set


@dataclass(frozen=True)
class _Kept:
    """A part at the beginning of a run. `data`: None if the values are not looked at."""

    tensor: torch.Tensor | None
    version: int
    data: torch.Tensor | None
    some: torch.Tensor | None


class Rest:
    def __init__(self, parts: list[Part]) -> None:
        """Parameters first."""
        self._parts = parts
        self._each = max(_LOOKED_AT_OF_EACH, _LOOKED_AT // max(len(parts), 1))
        self._kept: list[_Kept] = []
        self._sample: dict[Any, torch.Tensor] = {}

    def values(self) -> list[tuple[str, torch.Tensor]]:
        return [(part.name, tensor.data) for part in self._parts if (tensor := part.now()) is not None]

    def note(self) -> None:
        """A run begins."""
        before = self._kept or [_Kept(None, 0, None, None)] * len(self._parts)
        self._kept = [self._keep(part.now(), old) for part, old in zip(self._parts, before, strict=True)]
        self._sample = self._look()

    def check(self) -> None:
        """It ends."""
        for part in self._changed():
            _refuse(part)

    def check_but(self, kept: Iterable[torch.Tensor]) -> None:
        """The functions of `job.after_update` have been called, and may have changed these."""
        may = set(map(id, kept))
        for part in self._changed():
            if id(part.now()) not in may:
                raise UsageError(
                    f"a function of job.after_update changes {part.name}, which checkpoints and workers that join later would not "
                    f"have: let the job keep it, job.after_update(function, model.{part.name.rpartition('.')[0] or '<its module>'})"
                )

    def _changed(self) -> Iterator[Part]:
        for part, kept in zip(self._parts, self._kept, strict=True):
            if _replaced(part, kept) or (part.now() is kept.tensor and _version(kept.tensor) != kept.version):
                yield part
        now = self._look()
        if all(torch.equal(values, self._sample[kind]) for kind, values in now.items()):
            return
        ends = dict.fromkeys(now, 0)
        for part, kept in zip(self._parts, self._kept, strict=True):
            if kept.some is None:
                continue
            kind = _kind(kept)
            first, ends[kind] = ends[kind], ends[kind] + kept.some.numel()
            if not torch.equal(now[kind][first : ends[kind]], self._sample[kind][first : ends[kind]]):
                yield part

    def forget(self) -> None:
        """Keeps no tensor."""
        self._kept, self._sample = [], {}

    def _keep(self, tensor: torch.Tensor | None, old: _Kept) -> _Kept:
        version = _version(tensor)
        if tensor is not None and tensor is old.tensor and old.data is not None and _is_at(tensor, old.data):
            return old if old.version == version else _Kept(tensor, version, old.data, old.some)
        if tensor is None or type(tensor) not in _PLAIN or tensor.layout is not torch.strided:
            return _Kept(tensor, version, None, None)
        if tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor.device.type == "meta":
            return _Kept(tensor, version, None, None)
        data = tensor.detach()
        return _Kept(tensor, version, data, _some(data, self._each))

    def _look(self) -> dict[Any, torch.Tensor]:
        """At some of the values, by the kind of the tensors: their bits."""
        views: dict[Any, list[torch.Tensor]] = {}
        for kept in self._kept:
            if kept.some is not None:
                views.setdefault(_kind(kept), []).append(kept.some)
        return {kind: torch.cat(of_kind) for kind, of_kind in views.items()}


def parts_of(model: nn.Module) -> Iterator[tuple[Part, torch.Tensor]]:
    """Each parameter and buffer once, by the first of its names; parameters first."""
    for is_buffer in (False, True):
        seen: set[int] = set()
        for prefix, module in model.named_modules():
            for key, tensor in (module._buffers if is_buffer else module._parameters).items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield Part(f"{prefix}.{key}" if prefix else key, module, key, is_buffer), tensor


def _kind(kept: _Kept) -> Any:
    assert kept.some is not None
    return kept.some.dtype, kept.some.device


def _version(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None or tensor.is_inference() else tensor._version


def _some(data: torch.Tensor, count: int) -> torch.Tensor | None:
    """A view of so many of the values, or less; None: it has none, or they do not lie one behind the other."""
    ordered = data.permute(sorted(range(data.dim()), key=data.stride, reverse=True))
    if data.numel() == 0 or not ordered.is_contiguous():
        return None
    bits = ordered.view(-1).view(_BITS[data.element_size()])
    return bits[:: -(-bits.numel() // count) | 1]  # odd, for rows are often of an even length


def _replaced(part: Part, kept: _Kept) -> bool:
    """Another tensor, or another memory, with other values."""
    now = part.now()
    if now is not kept.tensor and part.is_cache:
        return False
    if now is None or kept.tensor is None:
        return now is not kept.tensor
    if kept.data is None or type(now) not in _PLAIN or _is_at(now, kept.data):
        return False
    return now.shape != kept.data.shape or now.dtype is not kept.data.dtype or not torch.equal(_bits(now), _bits(kept.data))


def _is_at(tensor: torch.Tensor, memory: torch.Tensor) -> bool:
    return tensor.dtype is memory.dtype and tensor.device == memory.device and tensor.is_set_to(memory)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().view(-1).view(_BITS[tensor.element_size()])


def _refuse(part: Part) -> None:
    if part.norm:
        raise UsageError(f"{part.norm} was in eval mode at job.prepare: call model.train() before it")
    if part.is_buffer:
        raise UsageError(
            f"the buffer {part.name} changes in training, so it would differ between workers: not supported (a table that is made "
            "anew to suit a batch is for register_buffer(..., persistent=False))"
        )
    raise UsageError(
        f"{part.name} changes in training and is none of the optimizer's parameters, so each worker would have its own (a second "
        "optimizer, an average of the trained ones?). Give job.prepare one optimizer of all trained parameters, and keep averages "
        "apart from the model"
    )
