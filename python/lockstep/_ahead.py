"""Which positions a worker is likely to be given next. A wrong guess costs time, never a sample.

The session tells a run only when it is to be computed. But rounds go through an epoch's positions in order. A worker's share of a
round begins and ends where its share of the round before did, unless somebody becomes slower or faster.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import Protocol

from lockstep._batch_order import BatchOrder
from lockstep._order import Order

_PARTS = 4  # that an evaluation has for each worker


class Guess(Protocol):
    """Told each run as it comes; says what may come behind it."""

    @property
    def share(self) -> int:
        """Samples of which `prefetch_factor` times as many are read ahead."""

    @property
    def longest(self) -> int:
        """Of the runs of late."""

    def saw(self, epoch: int, round_: int, ranges: Sequence[tuple[int, int]]) -> None:
        """A run, which is to be computed now."""

    def next(self, count: int) -> Iterator[tuple[int, int, int]]:
        """(epoch, first, end) of at most so many samples, in the order in which they will be wanted."""

    def samples_of(self, epoch: int, first: int, end: int) -> Sequence[int]:
        """Which samples those positions are."""


class Ahead:
    """Of what is trained on."""

    def __init__(self, *, order: Order | BatchOrder, samples: int, batch: int, epochs: int, workers: int) -> None:
        """`samples`: of an epoch."""
        self._order, self._samples, self._batch, self._epochs = order, samples, min(batch, samples), epochs
        # Of the round in hand. Positions that were given back and come again lie before `_fresh` and tell nothing of what is next.
        self._epoch = self._round = -1
        self._taken: list[tuple[int, int]] = []
        self._fresh = 0
        # Of the last whole round: the share's ranges, from where it began; where in the round that was, and how far behind the one
        # before.
        self._share: list[tuple[int, int]] = [(0, max(1, self._batch // workers))]
        self._offset = -1
        self._begun = -1
        self._stride = self._batch
        self.longest = 0  # run of the round in hand

    @property
    def share(self) -> int:
        """Samples in a round that this worker usually has."""
        return sum(end - first for first, end in self._share)

    def saw(self, epoch: int, round_: int, ranges: Sequence[tuple[int, int]]) -> None:
        """A run, which is to be computed now."""
        if (epoch, round_) != (self._epoch, self._round):
            self._next_round(epoch, round_)
        self.longest = max(self.longest, sum(end - first for first, end in ranges))
        for first, end in ranges:
            if self._taken and self._taken[-1][1] == first:
                self._taken[-1] = self._taken[-1][0], end
            elif first >= self._fresh:
                self._taken.append((first, end))

    def _next_round(self, epoch: int, round_: int) -> None:
        if self._taken:
            begun = self._taken[0][0]
            step = begun - self._begun
            self._stride = step if self._begun >= 0 and 0 < step <= self._batch else self._batch
            self._begun, self._fresh = begun, max(end for _, end in self._taken)
            offset = begun % self._batch
            if begun - offset + self._batch <= self._samples:  # else it was an epoch's last, which may be smaller
                self._offset = offset
                self._share = [(first - begun, end - begun) for first, end in self._taken if first >= begun]
        if epoch != self._epoch:
            self._begun, self._fresh, self._stride = -1, 0, self._batch
        self._epoch, self._round, self._taken, self.longest = epoch, round_, [], 0

    def next(self, count: int) -> Iterator[tuple[int, int, int]]:
        """(epoch, first, end) of at most so many samples, in the order in which they will be wanted."""
        if not self._taken or not self._order.reaches(self._epoch):
            return
        for epoch, first, end in self._rounds():
            to = min(end, first + count)
            if first < to:
                yield epoch, first, to
                count -= to - first
            if count <= 0:
                return

    def _rounds(self) -> Iterator[tuple[int, int, int]]:
        epoch, begun = self._epoch, self._taken[0][0]
        reached = max(end for _, end in self._taken)
        offset = begun % self._batch
        base = begun - offset
        if base + self._batch > self._samples and self._offset >= 0:
            offset = self._offset
        for first, end in self._of_round(base, offset, self._share):  # what is left of this one
            yield epoch, max(reached, first), end
        share = self._share
        if sum(end - first for first, end in self._taken) > self.share:  # more already
            share = [(first - begun, end - begun) for first, end in self._taken if first >= begun]
        while True:
            base += self._stride
            if base >= self._samples:
                epoch, base = epoch + 1, 0
                if epoch >= self._epochs or not self._order.reaches(epoch):
                    return
            for first, end in self._of_round(base, offset, share):
                yield epoch, first, end

    def _of_round(self, base: int, offset: int, share: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Of one that begins at `base`. The last one of an epoch may have less, of which a share is the same part."""
        left = min(self._batch, self._samples - base)
        for first, end in share:
            if left == self._batch:
                yield base + offset + first, min(base + offset + end, self._samples)
            else:
                yield base + left * (offset + first) // self._batch, base + left * min(offset + end, self._batch) // self._batch

    def samples_of(self, epoch: int, first: int, end: int) -> "array[int]":
        """Which samples those positions are."""
        return self._order.samples_of(epoch, first, end)


class AheadInBatches:
    """Which samples a worker is likely to be given next: those of the batches that `ahead` expects."""

    def __init__(self, ahead: Ahead, order: BatchOrder) -> None:
        self._ahead, self._order = ahead, order
        self._epoch = 0
        self.longest = 0  # of the last batch: the next ones are like it, or they are not

    @property
    def share(self) -> int:
        """Samples in a round that this worker usually has."""
        return max(1, round(self._ahead.share * self._order.mean(self._epoch)))

    def saw(self, epoch: int, round_: int, ranges: Sequence[tuple[int, int]]) -> None:
        """A run, which is to be computed now."""
        ((first, end),) = ranges
        batch = self._order.batch_at(epoch, first)
        self._epoch, self.longest = epoch, end - first
        self._ahead.saw(epoch, round_, [(batch, batch + 1)])

    def next(self, count: int) -> Iterator[tuple[int, int, int]]:
        """(epoch, first, end) of whole batches, the last of which may go beyond so many samples."""
        for epoch, begin, end in self._ahead.next(count):
            for batch in range(begin, end):
                if count <= 0:
                    return
                first, to = self._order.place(epoch, batch)
                yield epoch, first, to
                count -= to - first

    def samples_of(self, epoch: int, first: int, end: int) -> Sequence[int]:
        """Which samples have those places."""
        return self._order.samples_of(epoch, first, end)


def of_training(ahead: Ahead, order: Order | BatchOrder) -> Guess:
    """`ahead`: of the order's positions."""
    return AheadInBatches(ahead, order) if isinstance(order, BatchOrder) else ahead


class AheadInParts:
    """Of what is evaluated, in its own order. The coordinator cuts it into parts and gives a worker one at a time, to whoever asks;
    a part comes in pieces, one behind the other."""

    def __init__(self, *, samples: int, workers: int, share: int) -> None:
        self._samples, self._parts, self.share = samples, min(samples, _PARTS * workers), share
        self._step = workers  # parts from one of this worker to its next, while nobody is slow
        self._part = -1  # none yet
        self._end = self.longest = 0

    def saw(self, epoch: int, round_: int, ranges: Sequence[tuple[int, int]]) -> None:
        del round_
        self._epoch = epoch
        (first, self._end) = ranges[0]
        self.longest = self._end - first
        part = ((first + 1) * self._parts - 1) // self._samples
        if 0 <= self._part < part:
            self._step = part - self._part
        self._part = part

    def next(self, count: int) -> Iterator[tuple[int, int, int]]:
        first = self._end
        for part in range(self._part, self._parts, self._step):
            end = min(self._begin_of(part + 1), first + count)
            if first < end:
                yield self._epoch, first, end
                count -= end - first
            if count <= 0:
                return
            first = self._begin_of(part + self._step)

    def samples_of(self, epoch: int, first: int, end: int) -> Sequence[int]:
        del epoch
        return range(first, end)

    def _begin_of(self, part: int) -> int:
        return self._samples * part // self._parts
