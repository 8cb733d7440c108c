"""A dataset that can only be passed over (IterableDataset), as the samples of a job.

The job counts positions, as many in an epoch as the script has said, and a worker fills those that it is given with what comes next
of its own part of the stream. So what a position is depends on who computes it and when: counts are promised, samples are not.

A worker's part is every n-th item, n being how many workers the job has; a dataset that shares itself out is asked for all that it
has for this worker, which it sees as torch's loader processes are seen (get_worker_info). The part begins anew with each epoch, and
where it ends before that. Whatever the dataset draws comes from a state of the generators that is the stream's own and begins alike
on all workers, so those that pass over the same stream see the same items in it.
"""

import random
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from lockstep._errors import UsageError
from lockstep._samples import seed_all, seed_of
from lockstep._session import Work

_BEGUN = -3  # in the place of a position, for seeds
_END = object()


def is_stream(loader: DataLoader[Any]) -> bool:
    return isinstance(loader.dataset, IterableDataset)


def generators() -> Any:
    """The state of all that samples are drawn from, for `set_generators`."""
    numpy: Any = sys.modules.get("numpy")
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    return torch.get_rng_state(), random.getstate(), numpy and numpy.random.get_state(), gpus


def set_generators(state: Any) -> None:
    torch.set_rng_state(state[0])
    random.setstate(state[1])
    if state[2]:
        sys.modules["numpy"].random.set_state(state[2])
    if state[3]:
        torch.cuda.set_rng_state_all(state[3])


class Stream:
    """This worker's part of it."""

    def __init__(self, loader: DataLoader[Any], *, sharded: bool) -> None:
        """`sharded`: the dataset shares itself out."""
        self._dataset = loader.dataset
        self._sharded = sharded
        self._items: Iterator[Any] = iter(())
        self._generators: Any = None
        self._seed, self._worker, self._workers = 0, 0, 1
        self._epoch = -1
        self._taken = 0  # items of the part since it has begun
        if loader.num_workers > 0:
            warnings.warn(f"a stream is read in the training process: num_workers={loader.num_workers} is not used", stacklevel=4)

    def begin(self, seed: int, worker: int, workers: int) -> None:
        """The job's, which is known now."""
        self._seed, self._worker, self._workers = seed, worker % workers, workers

    def read_run(self, run: Work) -> list[Any]:
        """As many items as the run has positions."""
        module = torch.utils.data._utils.worker
        info = module._worker_info
        if self._sharded:
            of_this = seed_of(self._seed, self._worker, _BEGUN, "part")
            module._worker_info = module.WorkerInfo(id=self._worker, num_workers=self._workers, seed=of_this, dataset=self._dataset)
        try:
            if run.epoch != self._epoch:
                self._restart(run.epoch)
            else:
                set_generators(self._generators)
            return [self._next() for _ in run.samples]
        finally:
            self._generators = generators()
            module._worker_info = info

    def _restart(self, epoch: int) -> None:
        self._epoch = epoch
        seed_all(seed_of(self._seed, epoch, _BEGUN))
        self._taken = 0
        self._items = iter(self._dataset)

    def _next(self) -> Any:
        """Asks the dataset for iterators when a part begins and never in it: with some, iter() begins the items anew."""
        item = self._next_of_part()
        if item is _END:
            self._restart(self._epoch)
            item = self._next_of_part()
        if item is _END:
            raise UsageError(f"the stream has nothing for worker {self._worker} of {self._workers}: it has ended before")
        self._taken += 1
        return item

    def _next_of_part(self) -> Any:
        if not self._sharded:
            for _ in range(self._worker if self._taken == 0 else self._workers - 1):
                if next(self._items, _END) is _END:
                    return _END
        return next(self._items, _END)
