"""Which samples an epoch has and in which order: position -> sample of the dataset.

Coordinator and session use positions. DataLoader(shuffle=True) is the session's own order, from the job's seed. Every other order
is a list that is made here, the same on every worker. With drop_last it is the session's order without its end. A sampler gives
its list at the beginning of each pass, on every worker, also on one that comes late; all random generators are seeded from (seed,
epoch). Where a batch sampler of the script's own gives batches, positions are batches (_batch_order.py).

If lists differed, samples would count twice or never. So the first list is compared before round 0, and at a resume with that of
the old job. Each round compares its list by two metrics: the least and the greatest digest that workers have.
"""

import copy
import dataclasses
import hashlib
import itertools
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from lockstep import _given
from lockstep._errors import JobFailed, UsageError
from lockstep._samples import seed_all, seed_of
from lockstep._session import Counted, Work
from lockstep._stream import is_stream

_MASK = (1 << 64) - 1
_MOST_SAMPLES = 1 << 26  # of which one would know what comes next: the order takes seconds and 4 bytes of memory for each
_DRAWN = -2  # in the place of a position, for seeds
_DIGEST_BYTES = 6  # what a double holds exactly
LEAST, GREATEST = "lockstep.order_min", "lockstep.order_max"
"""Metrics of the job."""


def _mixed(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def _signed(x: int) -> int:
    return x - (1 << 64) if x >> 63 else x


def _all_mixed(x: torch.Tensor) -> torch.Tensor:
    """The same of 64-bit words; torch's are signed, so a shift to the right brings copies of the sign along."""

    def shifted(x: torch.Tensor, bits: int) -> torch.Tensor:
        return (x >> bits) & ((1 << (64 - bits)) - 1)

    x = x + _signed(0x9E3779B97F4A7C15)
    x = (x ^ shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ shifted(x, 31)


def epoch_order(seed: int, epoch: int, size: int) -> "array[int]":
    """The session's order (base/permutation.h), except that words which its generator rejects, fewer than one in 2^38, are not
    looked for. Samples read ahead are compared with those of the run. With drop_last this order counts, not that of the
    session."""
    key = _mixed(_mixed(_mixed(seed) ^ 0x73616D706C65) ^ epoch)
    order = array("I", range(size))
    if size < 2:
        return order
    words = _all_mixed(_all_mixed(torch.arange(size - 1)) ^ _signed(key))
    below = torch.arange(size, 1, -1)
    # An unsigned word modulo a bound of less than 31 bits, in signed arithmetic.
    high, low = (words >> 32) & 0xFFFFFFFF, words & 0xFFFFFFFF
    drawn = ((high % below) * ((1 << 32) % below) + low) % below
    for i, j in zip(range(size - 1, 0, -1), drawn.tolist(), strict=True):
        order[i], order[j] = order[j], order[i]
    return order


class Lists:
    """The samples of the epochs that the script's sampler has given, and what shows whether all workers have the same."""

    def __init__(self) -> None:
        self._lists: dict[int, array[int]] = {}
        self._digests: dict[int, int] = {}
        self._seed = 0

    def metrics(self, epoch: int) -> dict[str, float]:
        """To be logged with each run."""
        digest = self._digests.get(epoch)
        return {} if digest is None else {LEAST: digest, GREATEST: digest}

    def check(self, counted: Counted) -> None:
        """A round that is committed."""
        values = {name: value for name, _, value in counted.metrics}
        if values.get(LEAST) != values.get(GREATEST):
            raise UsageError(
                f"the workers' samplers have given different samples for epoch {counted.epoch}, as round {counted.round} shows. "
                "Let a sampler draw from torch, random or numpy, which the job seeds alike on all workers, and give it the same "
                "settings on every worker"
            )

    def _seed_all(self, epoch: int) -> None:
        """For what the sampler draws when it gives the list of that epoch."""
        seed_all(seed_of(self._seed, epoch, _DRAWN))

    def _keep(self, epoch: int, drawn: "array[int]", more: bytes = b"") -> None:
        """With `more`, which is compared, too."""
        self._lists[epoch] = drawn
        digest = hashlib.sha256(drawn.tobytes() + more).digest()
        self._digests[epoch] = int.from_bytes(digest[:_DIGEST_BYTES], "little")

    def _kept(self, epoch: int) -> "array[int]":
        if epoch not in self._lists:
            raise JobFailed(f"the job has gone back to epoch {epoch}, whose order of samples is not kept any more")
        return self._lists[epoch]

    def _forget(self, before: int) -> None:
        for epoch in [epoch for epoch in self._lists if epoch < before]:
            del self._lists[epoch]
            self._digests.pop(epoch, None)


class _AllReplicas:
    """The samples of all replicas of a DistributedSampler in its order, with its seed and the epoch that the script has set last.
    Consecutive ones are what its replicas have at the same time."""

    def __init__(self, sampler: "DistributedSampler[Any]") -> None:
        self._sampler = sampler
        self.replicas = sampler.num_replicas
        samples = len(sampler.dataset)  # type: ignore[arg-type]
        self._size = min(sampler.total_size, samples)  # less with drop_last=True
        self.padding = sampler.total_size - self._size

    def set_epoch(self, epoch: int) -> None:
        self._sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[int]:
        whole = copy.copy(self._sampler)
        whole.num_replicas, whole.rank = 1, 0
        whole.num_samples = whole.total_size = self._size
        return iter(whole)


class Order(Lists):
    """Of the script's loader, whose batches the job makes."""

    def __init__(self, loader: DataLoader[Any], samples: int | None = None) -> None:
        """`samples`: of a stream, which has no order: positions mean nothing there, but are counted."""
        super().__init__()
        self._stream = is_stream(loader)
        if self._stream and samples is None:
            raise UsageError(
                "the dataset is an IterableDataset: give samples=, the number of the stream's items in an epoch of the job. Some "
                "items may not count exactly once; a map-style dataset has no such gaps"
            )
        if not self._stream and samples is not None:
            raise UsageError("samples= is for an IterableDataset, but this dataset knows its number of samples")
        batches: Any = loader.batch_sampler
        if batches is None:
            raise UsageError(
                "the DataLoader has batch_size=None, and a job shares out samples: let the dataset give them one by one, "
                f"{_given.LOADER}"
            )
        self.batch_size: int = batches.batch_size
        self._drop_last: bool = batches.drop_last
        sampler: Any = batches.sampler
        self._dataset_size = length_of(loader.dataset, "dataset") if samples is None else samples
        self.replicas = 1
        """Ranks that a DistributedSampler shares the samples out to, whose batch size is that of one."""
        self.padding = 0
        """The samples that it would repeat so that all ranks have as many."""
        self._sampler: Any = None  # None: shuffled from the job's seed
        self._size = self._dataset_size
        plain = is_one_of(sampler, RandomSampler) and not sampler.replacement and sampler.num_samples == self._size
        if not plain and not self._stream:
            self._kind = type(sampler).__name__
            if type(sampler) is DistributedSampler and sampler.num_replicas > 1:
                sampler = _AllReplicas(sampler)
                self.replicas, self.padding = sampler.replicas, sampler.padding
            self._size = length_of(sampler, f"sampler, {self._kind},")
            self._sampler = sampler
            refuse_replicas(sampler, "samples", "say shuffle=True instead")
        # Nothing to be drawn or compared.
        self._sequential = type(sampler) is SequentialSampler
        self._positions = 0
        # Of torchdata's samplers each has one.
        drawn_from = plain and type(sampler) is RandomSampler and sampler.generator is not None
        self.has_unused_generator = loader.generator is not None or drawn_from
        """A sampler of the script's own draws from its generator, as in torch."""

    @property
    def streams(self) -> bool:
        return self._stream

    def is_sessions(self, positions: int) -> bool:
        """The session has the same order, where an epoch has so many positions."""
        return self.shuffled and positions == self._size

    @property
    def shuffled(self) -> bool:
        return self._sampler is None

    def positions(self, batch: int) -> int:
        """Samples that an epoch trains on, in updates of so many."""
        if self._size == 0:
            raise UsageError("the dataset has no samples" if self.shuffled else "the sampler has no samples")
        positions = self._size // batch * batch if self._drop_last else self._size
        if positions == 0:
            raise UsageError(
                f"an epoch has {self._size} samples, an update {batch}, and drop_last=True leaves out what is less than an update, "
                "so nothing is left"
            )
        return positions

    def begin(self, seed: int, batch: int, *, warns: bool = False) -> str:
        """Takes the job's seed and batch, which are known now. Returns a text about the order for the workers' digest, which all
        must have in common."""
        del warns  # of lists whose number of batches changes
        self._seed, self._positions = seed, self.positions(batch)
        if self.shuffled:
            return ""
        if self._sequential:
            return "; samples in the dataset's order"
        self._draw(0)
        return f"; samples in the order of {self._kind} {self._digests[0]:012x}"

    def begin_pass(self, epoch: int) -> None:
        """All of them in turn, also those of which this worker has no part: a sampler may go on from one to the next."""
        # With set_epoch the script may have said only now which epoch it is.
        if not self.shuffled and not self._sequential and (epoch > 0 or hasattr(self._sampler, "set_epoch")):
            self._draw(epoch)

    def reaches(self, epoch: int) -> bool:
        """Whether it is known, or can be, which samples that epoch has."""
        if self.shuffled or self._sequential:
            return self._size <= _MOST_SAMPLES
        return epoch in self._lists

    def samples_of(self, epoch: int, first: int, end: int) -> "array[int]":
        """Which samples those positions are."""
        if self.shuffled and epoch not in self._lists:
            self._lists[epoch] = epoch_order(self._seed, epoch, self._size)
        elif self._sequential:
            return array("I", range(first, end))
        return self._kept(epoch)[first:end]

    def in_order(self, run: Work) -> Work:
        """The same run with the samples that it has by this order."""
        self._forget(run.epoch - 1)
        if self._stream or (self.shuffled and self._positions == self._size):
            return run
        samples = tuple(sample for first, end in run.ranges for sample in self.samples_of(run.epoch, first, end))
        return dataclasses.replace(run, samples=samples)

    def to_read(self, run: Work) -> tuple[Sequence[tuple[int, int]], Sequence[int]]:
        """The positions that the samples of the run are read and seeded by, and which samples those are. `run`: of `in_order`."""
        return run.ranges, run.samples

    def _draw(self, epoch: int) -> None:
        self._seed_all(epoch)
        kind = self._kind
        given = list(itertools.islice(self._sampler, self._size + 1))
        if len(given) != self._size:
            count = "more" if len(given) > self._size else len(given)
            raise UsageError(f"{kind} has given {count} samples for epoch {epoch}, and its length was {self._size}")
        try:
            numbers = array("q", given)
        except (TypeError, OverflowError) as error:
            raise UsageError(f"{kind} has given something else than the numbers of samples ({error})") from None
        least, greatest = min(numbers), max(numbers)
        if least < 0 or greatest >= self._dataset_size:
            wrong = least if least < 0 else greatest
            raise UsageError(f"{kind} has given sample {wrong} of a dataset that has {self._dataset_size}")
        self._keep(epoch, array("I", numbers))


def length_of(of: Any, what: str) -> int:
    try:
        return len(of)
    except TypeError:
        raise UsageError(f"the {what} has no length: how many samples an epoch has is to be known when it begins") from None


def refuse_replicas(sampler: Any, what: str, advice: str) -> None:
    """`what`: the job shares out."""
    replicas = getattr(sampler, "num_replicas", 1)
    if replicas != 1:
        raise UsageError(
            f"the {type(sampler).__name__} is of one of {replicas} replicas, and the job shares {what} out by itself: {advice}"
        )


def is_one_of(sampler: Any, kind: type) -> bool:
    """Of torch's own class, or of that which a StatefulDataLoader of torchdata makes in its place."""
    found = type(sampler)
    return found is kind or (found.__name__ == kind.__name__ and found.__module__.startswith("torchdata."))
