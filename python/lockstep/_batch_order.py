"""The batches of the script's own batch sampler, as what the job counts: position i of an epoch is batch i of the sampler's list.

The script says which samples are computed together, and the job says which worker computes them. A unit is one batch, and a run is
one unit. Each batch counts once, whatever its size, so a round's gradient is the mean over its batches.

The sampler is iterated once for each epoch, on every worker, with generators that are seeded alike (_order.py). All epochs have the
same number of batches, because the session is told one number before the job begins.

A sample is read and seeded by its own place: the samples of an epoch's batches are numbered one after the other.
"""

import dataclasses
import itertools
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

from torch.utils.data import BatchSampler, DataLoader

from lockstep import _given
from lockstep._errors import UsageError
from lockstep._order import Lists, Order, is_one_of, length_of, refuse_replicas
from lockstep._session import Work


class BatchOrder(Lists):
    """Of the script's loader. Invariant: an epoch with a list has its bounds, too."""

    batch_size = 1  # positions that are computed at once
    replicas, padding = 1, 0

    def __init__(self, loader: DataLoader[Any], batches: int | None) -> None:
        """`batches`: that an epoch has, the first ones of the sampler's list. None: as many as the sampler's length."""
        super().__init__()
        self._sampler: Any = loader.batch_sampler
        self._kind = type(self._sampler).__name__
        self._dataset_size = length_of(loader.dataset, "dataset")
        self._is_cut = batches is not None
        self._size = self._length() if batches is None else batches
        self._bounds: dict[int, array[int]] = {}  # of each batch, in the list of its epoch's samples
        self.has_unused_generator = loader.generator is not None
        for sampler in self._samplers():
            refuse_replicas(sampler, "batches", "let it give the batches of all replicas (num_replicas=1, rank=0)")

    def positions(self, batch: int) -> int:
        """Batches that an epoch trains on."""
        del batch  # an epoch's last round may have fewer
        if self._size == 0:
            raise UsageError("the batch sampler has no batches")
        return self._size

    def begin(self, seed: int, batch: int) -> str:
        """As `Order.begin`."""
        del batch
        self._seed = seed
        self._draw(0)
        return f"; batches in the order of {self._kind} {self._digests[0]:012x}"

    def begin_pass(self, epoch: int) -> None:
        """As `Order.begin_pass`."""
        if epoch > 0:
            self._draw(epoch)

    def reaches(self, epoch: int) -> bool:
        """Whether it is known which batches that epoch has."""
        return epoch in self._bounds

    def in_order(self, run: Work) -> Work:
        """The same run, whose one sample is the number of its batch."""
        self._forget(run.epoch - 1)
        for epoch in self._bounds.keys() - self._lists.keys():
            del self._bounds[epoch]
        assert len(run.samples) == 1, f"a run of {len(run.samples)} batches"
        return dataclasses.replace(run, samples=(run.ranges[0][0],))

    def to_read(self, run: Work) -> tuple[Sequence[tuple[int, int]], Sequence[int]]:
        """As `Order.to_read`: the batch's places among the epoch's samples, and its samples."""
        first, end = self.place(run.epoch, run.samples[0])
        return [(first, end)], tuple(self.samples_of(run.epoch, first, end))

    def place(self, epoch: int, batch: int) -> tuple[int, int]:
        """Where the batch is among the samples of the epoch, half open."""
        self._kept(epoch)
        bounds = self._bounds[epoch]
        return bounds[batch], bounds[batch + 1]

    def batch(self, epoch: int, number: int) -> list[int]:
        """Its samples."""
        first, end = self.place(epoch, number)
        return self._kept(epoch)[first:end].tolist()

    def batch_at(self, epoch: int, place: int) -> int:
        """The batch that has this place."""
        self._kept(epoch)
        return bisect_right(self._bounds[epoch], place) - 1

    def mean(self, epoch: int) -> float:
        """Samples in a batch."""
        return len(self._kept(epoch)) / self._size

    def samples_of(self, epoch: int, first: int, end: int) -> "array[int]":
        """Which samples have those places."""
        return self._kept(epoch)[first:end]

    def _samplers(self) -> Iterator[Any]:
        """The batch sampler, and that which it takes samples from, if it says so."""
        inner = getattr(self._sampler, "sampler", None)
        return iter((self._sampler,) if inner is None else (inner, self._sampler))

    def _length(self) -> int:
        try:
            return len(self._sampler)
        except (TypeError, ValueError, NotImplementedError):
            raise UsageError(
                f"the batch sampler, {self._kind}, has no length: give job.prepare samples=, the number of its batches in an "
                "epoch of the job"
            ) from None

    def _draw(self, epoch: int) -> None:
        self._seed_all(epoch)
        for sampler in self._samplers():
            if callable(getattr(sampler, "set_epoch", None)):
                sampler.set_epoch(epoch)
        drawn, bounds = array("I"), array("Q", [0])
        for number, batch in enumerate(itertools.islice(self._sampler, self._size + (not self._is_cut))):
            if number == self._size:
                self._refuse_count(epoch, "more")
            drawn.extend(self._checked(batch, f"batch {number} of epoch {epoch}"))
            bounds.append(len(drawn))
        if len(bounds) <= self._size:
            self._refuse_count(epoch, str(len(bounds) - 1))
        self._keep(epoch, drawn, bounds.tobytes())
        self._bounds[epoch] = bounds

    def _refuse_count(self, epoch: int, given: str) -> None:
        why = f"job.prepare was told samples={self._size}" if self._is_cut else f"its length was {self._size}"
        advice = "give a smaller number" if self._is_cut else "give job.prepare samples=, and it takes so many of each list"
        raise UsageError(
            f"{self._kind} has given {given} batches for epoch {epoch}, and {why}: all epochs of a job have the same number of "
            f"batches; {advice}"
        )

    def _checked(self, batch: Any, which: str) -> "array[int]":
        try:
            given = iter(batch)
        except TypeError as error:
            raise UsageError(f"{self._kind} has given something else than a list of samples as {which} ({error})") from None
        numbers = list(given)
        if not numbers:
            raise UsageError(f"{self._kind} has given {which} without any sample: leave empty batches out")
        try:
            checked = array("q", numbers)
        except (TypeError, OverflowError) as error:
            raise UsageError(f"{self._kind} has given something else than the numbers of samples in {which} ({error})") from None
        least, greatest = min(checked), max(checked)
        if least < 0 or greatest >= self._dataset_size:
            wrong = least if least < 0 else greatest
            raise UsageError(f"{self._kind} has given sample {wrong} in {which}, of a dataset that has {self._dataset_size}")
        return array("I", checked)


def order_of(loader: DataLoader[Any], samples: int | None) -> Order | BatchOrder:
    """`samples`: that an epoch has, where the loader does not say so; of a batch sampler, batches."""
    _given.check_loader(loader)
    batches: Any = loader.batch_sampler
    if batches is None or is_one_of(batches, BatchSampler):
        return Order(loader, samples)
    return BatchOrder(loader, samples)
