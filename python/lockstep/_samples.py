"""How samples are read out of a dataset: alike in the training process and in loader processes, whoever reads which.

Samples are asked for by *calls*, ranges of positions in the epoch's order. Everything random is seeded from (seed, epoch, first
position) before each call, so the samples of a call depend on nothing else. A call is a single position, so neither runs nor
processes change a sample. If a dataset fetches many at once (`__getitems__`), a call is the part of a run in one cell of
positions.
"""

import hashlib
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset, Subset

_CELL = 64  # positions, for datasets that fetch many at once
EVALUATION = -2  # stands for an epoch: positions of what is evaluated


class Call(NamedTuple):
    """Positions of an epoch (or EVALUATION), half open, that are read together."""

    epoch: int
    first: int
    end: int


def seed_of(seed: int, epoch: int, position: int, purpose: str = "") -> int:
    """For what is drawn at random: of a position, so whoever computes it. Draws for another purpose are other ones."""
    digest = hashlib.blake2b(f"{seed} {epoch} {position} {purpose}".rstrip().encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_all(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # else torch.manual_seed keeps a note of who has asked, which takes long
        torch.cuda.manual_seed_all(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % (1 << 32))


class Samples:
    """Of a map-style dataset."""

    def __init__(self, dataset: Dataset[Any], *, whole: bool = False) -> None:
        """`whole`: a range is what the script wants to have together, so one call where many are fetched at once."""
        self.dataset: Any = dataset
        self._whole = whole
        inner: Any = dataset
        while type(inner) is Subset:  # fetches many at once only where what it is a part of does
            inner = inner.dataset
        self._together = callable(getattr(inner, "__getitems__", None))

    def calls(self, epoch: int, ranges: Sequence[tuple[int, int]]) -> Iterator[Call]:
        """The calls that read these positions, in their order."""
        cell = _CELL if self._together else 1
        for first, end in ranges:
            if self._together and self._whole:
                yield Call(epoch, first, end)
                continue
            at = first
            while at < end:
                to = min(end, (at // cell + 1) * cell)
                yield Call(epoch, at, to)
                at = to

    def read(self, seed: int, call: Call, samples: Sequence[int]) -> list[Any]:
        """`samples`: which those positions are."""
        seed_all(seed_of(seed, call.epoch, call.first))
        if self._together:
            return list(self.dataset.__getitems__(list(samples)))
        return [self.dataset[index] for index in samples]
