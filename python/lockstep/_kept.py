"""Where an optimizer's state lies in the session's memory, for frameworks without torch.

The session's memory for state is a multiple of the parameters' size. State that does not fit lies in an extra tensor behind the
parameters, whose gradient is zero. A value that is not FP32 has each two of its bytes in the low half of a word, because
checkpoints keep finite FP32 values only.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_FEW = 64  # values of state that travel with parameters, however small these are
_MOST_EXTRA = 8  # the part of the parameters that they may be as large as, before there is a whole tensor of state more


@dataclass(frozen=True)
class _Place:
    """In words of four bytes."""

    shape: tuple[int, ...]
    dtype: Any
    extra: bool  # behind the parameters, else in the session's state
    at: int
    words: int


class Kept:
    """The places of some arrays. `extra`: the size of the extra tensor. `state_tensors`: of the session's Job."""

    def __init__(self, arrays: Iterable[tuple[Sequence[int], Any]], count: int, ahead: int) -> None:
        """`arrays`: their shapes and types. `count`: of the parameters. `ahead`: words at the start of the extra tensor that are
        for something else."""
        described = [(tuple(shape), np.dtype(dtype)) for shape, dtype in arrays]
        words = [_words(shape, dtype) for shape, dtype in described]
        tensors = sum(words) // count
        rest = _fill(words, tensors * count)[1]
        if rest > max(_FEW, count // _MOST_EXTRA):
            tensors += 1
        where, rest = _fill(words, tensors * count)
        self.state_tensors, self.extra = tensors, ahead + rest
        self._places, ends = [], [0, ahead]  # in the state, and behind the parameters
        for (shape, dtype), size, extra in zip(described, words, where, strict=True):
            self._places.append(_Place(shape, dtype, extra, ends[extra], size))
            ends[extra] += size

    def read(self, extra: Any, state: Any) -> list[Any]:
        """The arrays. Those of FP32 are views of the session's memory."""
        return [_read(_cut(place, extra, state), place) for place in self._places]

    def write(self, arrays: Iterable[Any], extra: Any, state: Any) -> None:
        for place, array in zip(self._places, arrays, strict=True):
            _write(_cut(place, extra, state), np.asarray(array))


def _cut(place: _Place, extra: Any, state: Any) -> Any:
    return (extra if place.extra else state)[place.at : place.at + place.words]


def _fill(words: list[int], room: int) -> tuple[list[bool], int]:
    """Which arrays do not fit, where the largest come first; and how many words those have."""
    extra = [False] * len(words)
    rest = 0
    for i in sorted(range(len(words)), key=lambda i: -words[i]):
        extra[i] = words[i] > room
        room, rest = (room, rest + words[i]) if extra[i] else (room - words[i], rest)
    return extra, rest


def _words(shape: tuple[int, ...], dtype: Any) -> int:
    size: int = math.prod(shape) * dtype.itemsize
    return size // 4 if dtype == np.float32 else -(-size // 2)


def _read(words: Any, place: _Place) -> Any:
    if place.dtype == np.float32:
        return words.reshape(place.shape)
    size = math.prod(place.shape) * place.dtype.itemsize
    return np.ascontiguousarray(words.view(np.uint16)[::2]).view(np.uint8)[:size].view(place.dtype).reshape(place.shape)


def _write(words: Any, value: Any) -> None:
    if value.dtype == np.float32:
        words[...] = value.reshape(-1)
        return
    data = np.frombuffer(value.tobytes() + b"\0" * (value.nbytes % 2), np.uint16)
    words.view(np.uint32)[...] = data  # the low half of each
