"""The batches of the script's own batch sampler, as what the job counts: position i of an epoch is batch i of the sampler's list.

The script says which samples are computed together, and the job says which worker computes them. A unit is one batch, and a run is
one unit. Each batch counts once, whatever its size, so a round's gradient is the mean over its batches.

The sampler is iterated once for each epoch, on every worker, with generators that are seeded alike (_order.py). All epochs of the
job have the same number of batches, because the session is told one number before the job begins: the sampler's length. Its lists
may have other lengths, as those of token budgets have. The job's epochs go through them one behind the other. The rest of a list
comes first in the next epoch, and a list that is too short is followed by the next one. So each batch still comes once. With
samples= an epoch has the first batches of each list, and no others.

A sample is read and seeded by its own place: the samples of an epoch's batches are numbered one after the other.
"""

import dataclasses
import itertools
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from torch.utils.data import BatchSampler, DataLoader

from lockstep import _given
from lockstep._errors import UsageError
from lockstep._order import Lists, Order, is_one_of, length_of, refuse_replicas
from lockstep._session import Work

_MOST_LENGTHS = 4  # that a list has; more is taken for one without an end


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
        self._epochs = 0  # that have their batches
        self._passes = 0  # of the sampler
        self._left: deque[array[int]] = deque()  # batches of its passes that no epoch has yet
        self._warns = False
        self.has_unused_generator = loader.generator is not None
        for sampler in self._samplers():
            refuse_replicas(sampler, "batches", "let it give the batches of all replicas (num_replicas=1, rank=0)")

    def positions(self, batch: int) -> int:
        """Batches that an epoch trains on."""
        del batch  # an epoch's last round may have fewer
        if self._size == 0:
            raise UsageError("the batch sampler has no batches")
        return self._size

    def begin(self, seed: int, batch: int, *, warns: bool = False) -> str:
        """As `Order.begin`."""
        del batch
        self._seed, self._warns = seed, warns
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
        if epoch < self._epochs:
            return  # it has its batches
        batches: list[array[int]] = []
        while self._epochs <= epoch:
            while len(self._left) < self._size:
                self._left.extend(self._of_pass(self._passes))
                self._passes += 1
            batches = [self._left.popleft() for _ in range(self._size)]
            self._epochs += 1
        drawn, bounds = array("I"), array("Q", [0])
        for batch in batches:
            drawn.extend(batch)
            bounds.append(len(drawn))
        self._keep(epoch, drawn, bounds.tobytes())
        self._bounds[epoch] = bounds

    def _of_pass(self, number: int) -> list["array[int]"]:
        """The batches of the sampler's pass of that number, as many as an epoch may have."""
        self._seed_all(number)
        for sampler in self._samplers():
            if callable(getattr(sampler, "set_epoch", None)):
                sampler.set_epoch(number)
        most = self._size if self._is_cut else _MOST_LENGTHS * self._size + 1
        given = itertools.islice(self._sampler, most)
        batches = [self._checked(batch, f"batch {i} of epoch {number}") for i, batch in enumerate(given)]
        if self._is_cut and len(batches) < self._size:
            raise UsageError(
                f"{self._kind} has given {len(batches)} batches for epoch {number}, and job.prepare was told samples={self._size}: "
                "all epochs of a job have the same number of batches; give a smaller number"
            )
        if not self._is_cut and len(batches) in (0, most):
            raise UsageError(
                f"{self._kind} has given {'no' if not batches else f'{most} or more'} batches for epoch {number}, and its length "
                f"was {self._size}: with samples= of job.prepare an epoch has the first ones of each list"
            )
        if len(batches) != self._size and self._warns:
            self._warns = False  # once
            print(
                f"lockstep: {self._kind} has given {len(batches)} batches for epoch {number}, and its length was {self._size}: "
                f"epochs of the job have {self._size}, and go through its lists one behind the other. With samples=N each has the "
                "first N of its list",
                flush=True,
            )
        return batches

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
