"""A dataset that can only be passed over (IterableDataset), as the samples of a job.

The job counts positions, as many in an epoch as the script has said. A worker fills its positions with the next items of its own
part of the stream. So the item of a position depends on who computes it and when. The counts are exact; the choice of samples is
not.

In a job of n workers, a worker's part is every n-th item. A dataset that shares itself out is asked for all items of this worker;
it sees the worker as it sees a loader process of torch (get_worker_info). While the stream is read, nothing else tells of other
workers: the launcher's variables say that there is one process. The part begins anew with each epoch, and when it ends before
that. The stream has its own state of the random generators, which begins alike on all workers. So workers that pass over the same
stream see the same items in it.

Whether a dataset shares itself out shows in the first items: they are the same on all workers, or, with `sharded`, others. So in
its first epoch a worker logs a digest of them with each run, and the least and the greatest of a round tell.
"""

import hashlib
import random
import sys
import warnings
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from lockstep import _errors
from lockstep._errors import UsageError
from lockstep._libraries import refuse_parts
from lockstep._model import digest_inputs
from lockstep._samples import seed_all, seed_of
from lockstep._session import Counted, Work
from lockstep._undivided import undivided

_BEGUN = -3  # in the place of a position, for seeds
_COMPARED = 4  # items at the beginning of a stream
_PARTS = 1 << 13  # that a metric tells apart, in a double beside the digest:
_DIGEST_BYTES = 5
_END = object()
LEAST, GREATEST = "lockstep.stream_min", "lockstep.stream_max"
"""Metrics of the job."""


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

    def __init__(self, loader: DataLoader[Any], *, sharded: bool, samples: int) -> None:
        """`sharded`: the dataset shares itself out. `samples`: of an epoch of the job."""
        self._dataset = loader.dataset
        self._sharded = sharded
        self._samples = samples
        self._items: Iterator[Any] = iter(())
        self._first: deque[Any] = deque()  # items that were read to be compared, and are still to come
        self._generators: Any = None
        self._seed, self._worker, self._workers = 0, 0, 1
        self._epoch = -1
        self._first_epoch = -1  # of this worker
        self._digest: int | None = None  # of the stream's first items in that epoch
        self._taken = 0  # items of the part since it has begun
        self._is_shared_warned = self._is_short_warned = False
        if loader.num_workers > 0:
            warnings.warn(f"a stream is read in the training process: num_workers={loader.num_workers} is not used", stacklevel=4)

    def begin(self, seed: int, worker: int, workers: int) -> None:
        """The job's, which is known now."""
        self._seed, self._worker, self._workers = seed, worker % workers, workers
        refuse_parts(self._dataset, sharded=self._sharded, workers=workers)

    def read_run(self, run: Work) -> list[Any]:
        """As many items as the run has positions."""
        module = torch.utils.data._utils.worker
        info = module._worker_info
        if self._sharded:
            of_this = seed_of(self._seed, self._worker, _BEGUN, "part")
            module._worker_info = module.WorkerInfo(id=self._worker, num_workers=self._workers, seed=of_this, dataset=self._dataset)
        try:
            with undivided():
                if run.epoch != self._epoch:
                    self._begin_epoch(run.epoch)
                else:
                    set_generators(self._generators)
                return [self._next() for _ in run.samples]
        finally:
            self._generators = generators()
            module._worker_info = info

    def metrics(self) -> dict[str, float]:
        """To be logged with the run that was read last, the least and the greatest of a round."""
        if self._digest is None or self._epoch != self._first_epoch:
            return {}
        told = float(self._digest * _PARTS + self._worker % _PARTS)
        return {LEAST: told, GREATEST: told}

    def check(self, counted: Counted) -> None:
        """A round that is committed: whether its workers have the parts of one stream."""
        values = {name: int(value) for name, _, value in counted.metrics}
        least, greatest = values.get(LEAST), values.get(GREATEST)
        if least is None or greatest is None or least == greatest:  # one part, so there is nothing to compare
            return
        is_same = least // _PARTS == greatest // _PARTS
        if self._sharded and is_same:
            raise UsageError(
                f"with sharded=True the dataset shares its items out by get_worker_info(), but the first {self._to_compare()} "
                "items are the same on all workers. Leave sharded=True out, or take every num_workers-th item from id on"
            )
        if not self._sharded and not is_same and not self._is_shared_warned and self._worker == 0:
            self._is_shared_warned = True
            _errors.say(
                f"the stream begins with other items on other workers, but each worker takes one of every {self._workers} items, "
                "so some may never be read. If the dataset shares itself out, give sharded=True; if it draws from a generator of "
                "its own, seed that alike on all workers"
            )

    def _begin_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self._restart()
        if self._first_epoch < 0:
            self._first_epoch = epoch
            if self._workers > 1:
                self._look_at_first()

    def _restart(self) -> None:
        seed_all(seed_of(self._seed, self._epoch, _BEGUN))
        self._taken = 0
        self._first.clear()
        self._items = iter(self._dataset)

    def _to_compare(self) -> int:
        """No more than the part is to have in any case, since to read more may take for ever."""
        return min(_COMPARED, self._samples // self._workers)

    def _look_at_first(self) -> None:
        while len(self._first) < self._to_compare():
            item = next(self._items, _END)
            if item is _END:
                self._items = iter(())  # it is not asked again what comes next
                break
            self._first.append(item)
        digests = [hashlib.sha256(b"".join(digest_inputs([item]))).digest() for item in self._first]
        if not self._sharded or len(set(digests)) > 1:  # where all items are alike, so are those of all parts
            self._digest = int.from_bytes(hashlib.sha256(b"".join(digests)).digest()[:_DIGEST_BYTES], "little")

    def _next(self) -> Any:
        """Asks the dataset for iterators when a part begins and never in it: with some, iter() begins the items anew."""
        item = self._next_of_part()
        if item is _END:
            self._warn_if_short()
            self._restart()
            item = self._next_of_part()
        if item is _END:
            advice = ": give the dataset a shard for each worker, or leave sharded=True out" if self._sharded else ""
            raise UsageError(f"the stream has nothing for worker {self._worker} of {self._workers}: it has ended before{advice}")
        self._taken += 1
        return item

    def _next_of_part(self) -> Any:
        if not self._sharded:
            for _ in range(self._worker if self._taken == 0 else self._workers - 1):
                if self._next_of_stream() is _END:
                    return _END
        return self._next_of_stream()

    def _next_of_stream(self) -> Any:
        return self._first.popleft() if self._first else next(self._items, _END)

    def _warn_if_short(self) -> None:
        share = self._samples // self._workers
        if self._is_short_warned or not 0 < self._taken < share:
            return
        self._is_short_warned = True
        why = "leave out what else shares it out" if self._sharded else "if the dataset shares itself out, say sharded=True"
        _errors.say(
            f"the stream of worker {self._worker} has ended after {self._taken} items, and its share of samples={self._samples} is "
            f"{share}, so items come again" + (f": {why}; else lower samples=" if self._workers > 1 else ": lower samples=")
        )
