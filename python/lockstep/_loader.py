"""The script's DataLoader, by runs of units: the session says which samples come next, the script how they are read."""

import hashlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)
from torch.utils.data._utils.pin_memory import pin_memory

from lockstep import _given, _position, _torch
from lockstep._ahead import AheadInParts, Guess
from lockstep._batch_order import BatchOrder
from lockstep._errors import UsageError, say
from lockstep._model import digest_inputs
from lockstep._order import Order, is_one_of
from lockstep._processes import Processes
from lockstep._samples import EVALUATION, Samples, seed_all
from lockstep._session import Counted, Work
from lockstep._stream import Stream, generators, is_stream, set_generators

_LOOKED_AT = 16  # samples that the dataset's digest is made of
_READ_AGAIN = 8  # of them: what flips an image or not is the same by chance every other time


def warn_of_unused(loader: DataLoader[Any], order: Order | BatchOrder) -> None:
    """Warns of requests of the script that the job does not follow."""
    if order.has_unused_generator:
        warnings.warn(
            "the DataLoader's generator is not used: the order of the samples, and what is drawn at random, come from the job's "
            "seed",
            stacklevel=3,
        )


def _pins(loader: DataLoader[Any]) -> bool:
    """As torch's own DataLoader decides."""
    if not loader.pin_memory:
        return False
    if _torch.accelerator() in (None, "mps"):  # for which torch cannot do it either
        warnings.warn("the DataLoader's pin_memory is not used: there is no accelerator to pin memory for", stacklevel=4)
        return False
    return True


def dataset_digest(dataset: Dataset[Any], seed: int, *, warns: bool = False) -> str:
    """To tell whether workers train on the same: of its size and a few of its samples. Nothing of a stream is read for it. `warns`:
    of samples that are not the same when they are read again. All workers read alike, for the dataset may count what it reads."""
    if isinstance(dataset, IterableDataset):
        return f"stream of {type(dataset).__name__}"
    size = len(dataset)  # type: ignore[arg-type]
    state = generators()
    samples = {index: _bytes_of(dataset, seed, index) for index in sorted({size * i // _LOOKED_AT for i in range(_LOOKED_AT)})}
    again = list(samples)[:_READ_AGAIN]
    changed = [index for index in again if _bytes_of(dataset, seed, index) != samples[index]]
    set_generators(state)
    if changed and warns:
        say(
            f"sample {changed[0]} of the dataset differs when it is read again with the same seeds, so it draws from a generator "
            "of its own. After a resume, or on another worker, samples have other augmentations. Let the dataset draw from torch, "
            "random or numpy.random, which the job seeds for each sample"
        )
    return hashlib.sha256(str(size).encode() + b"".join(samples.values())).hexdigest()


def _bytes_of(dataset: Dataset[Any], seed: int, index: int) -> bytes:
    seed_all(seed)
    return b"".join(digest_inputs([dataset[index]]))


class Batches:
    """The dataset's samples, collated as the script's loader does."""

    def __init__(self, loader: DataLoader[Any], *, sharded: bool = False, samples: int = 0, whole: bool = False) -> None:
        """`sharded`: a stream that shares itself out. `samples`: of an epoch, where it is a stream. `whole`: each run is
        one batch of the script's own."""
        self._stream = Stream(loader, sharded=sharded, samples=samples) if is_stream(loader) else None
        if sharded and self._stream is None:
            raise UsageError("sharded= is for an IterableDataset: of others the job shares out the samples")
        self._collate = loader.collate_fn
        # What default_collate makes of tensors one by one can be had at once.
        self._tensors: tuple[torch.Tensor, ...] | None = None
        if type(loader.dataset) is TensorDataset and loader.collate_fn is default_collate:
            self._tensors = loader.dataset.tensors
        self._loader = loader
        self._pins = _pins(loader)
        self._samples = Samples(loader.dataset, whole=whole)
        self._processes: Processes | None = None
        self._seed = 0

    def start(self, seed: int) -> None:
        """The loader processes, if there are to be any. Before this process has the job's threads and sockets."""
        if self._loader.num_workers > 0 and self._tensors is None and self._stream is None:  # else there is nothing for them to do
            self._processes = Processes(self._loader, seed, self._samples)

    def begin(self, seed: int, worker: int, workers: int, ahead: Guess) -> None:
        """The job's, which is known now."""
        self._seed = seed
        if self._stream is not None:
            self._stream.begin(seed, worker, workers)
        if self._processes is not None:
            self._processes.begin(seed, ahead)

    def read_run(self, run: Work, ranges: Sequence[tuple[int, int]], samples: Sequence[int]) -> Any:
        """Reads the run's samples, for `collate`. Random numbers of a sample depend on its position alone. `ranges`: of positions.
        `samples`: which those are."""
        if self._tensors is not None:
            return samples
        if self._stream is not None:
            return self._stream.read_run(run)
        return self._read(run.epoch, run.round, ranges, samples)

    def collate(self, values: Any) -> Any:
        batch = self._collate(values) if self._tensors is None else self._chosen(values)
        return pin_memory(batch) if self._pins else batch  # type: ignore[no-untyped-call]

    def metrics(self) -> dict[str, float]:
        """To be logged with the run that was read last, the least and the greatest of a round."""
        return {} if self._stream is None else self._stream.metrics()

    def check(self, counted: Counted) -> None:
        """A round that is committed."""
        if self._stream is not None:
            self._stream.check(counted)

    @property
    def streams(self) -> bool:
        """Items are there once."""
        return self._stream is not None

    @property
    def ahead(self) -> int | None:
        """Samples that the loader processes have read for later runs; None: there are no such processes."""
        return None if self._processes is None else self._processes.ahead

    def read(self, first: int, end: int) -> Any:
        """A batch of an evaluation."""
        samples = range(first, end)
        return self.collate(samples if self._tensors is not None else self._read(EVALUATION, 0, [(first, end)], samples))

    def close(self) -> None:
        """Ends the processes. May be called again."""
        if self._processes is not None:
            self._processes.close()

    def _read(self, epoch: int, round_: int, ranges: Sequence[tuple[int, int]], samples: Sequence[int]) -> list[Any]:
        if self._processes is not None:
            return self._processes.read(epoch, round_, ranges, samples)
        values: list[Any] = []
        for call in self._samples.calls(epoch, ranges):
            which = samples[len(values) : len(values) + call.end - call.first]
            values += self._samples.read(self._seed, call, which)
        return values

    def _chosen(self, samples: Sequence[int]) -> list[torch.Tensor]:
        assert self._tensors is not None
        chosen = torch.tensor(samples)
        return [tensor[chosen] for tensor in self._tensors]


def _gives_all(sampler: Any, dataset: Any) -> bool:
    """Each sample of the dataset once, in whatever order."""
    kind = type(sampler)
    if is_one_of(sampler, RandomSampler):
        plain = not sampler.replacement
    elif kind is DistributedSampler:
        plain = sampler.num_replicas == 1
    else:
        plain = kind is SequentialSampler
    return plain and len(sampler) == len(dataset)


class Evaluation:
    """Of a dataset, a part at a time, in its own order."""

    def __init__(self, function: Callable[[nn.Module, Any], tuple[float, int]], loader: DataLoader[Any]) -> None:
        _given.check_loader(loader)
        batches: Any = loader.batch_sampler
        if isinstance(loader.dataset, IterableDataset) or batches is None:
            raise UsageError("job.evaluate wants a DataLoader with a map-style dataset and a batch_size")
        self.dataset: Any = loader.dataset
        sampler = batches.sampler if is_one_of(batches, BatchSampler) else batches
        if not _gives_all(sampler, self.dataset):
            raise UsageError(
                f"the DataLoader of job.evaluate has the sampler {type(sampler).__name__}, and all of its dataset is evaluated, "
                "each sample once: give a torch.utils.data.Subset of what is to be"
            )
        self._function = function
        self._batch: int = batches.batch_size
        self._at_once = self._batch * max(1, loader.num_workers)
        self._batches = Batches(loader)

    def start(self, seed: int) -> None:
        """As Batches.start."""
        self._batches.start(seed)

    def begin(self, seed: int, worker: int, workers: int) -> None:
        """As Batches.begin."""
        ahead = AheadInParts(samples=len(self.dataset), workers=workers, share=self._at_once)
        self._batches.begin(seed, worker, workers, ahead)

    def close(self) -> None:
        """As Batches.close."""
        self._batches.close()

    def run(self, model: nn.Module, first: int, end: int) -> tuple[float, int]:
        """The sum of the losses and how many are right of the samples [first, end). Changes nothing that the script draws."""
        training = [module for module in model.modules() if module.training]
        model.eval()
        loss_sum, correct = 0.0, 0
        state = generators()
        with torch.no_grad():
            for at in range(first, end, self._batch):
                to = min(at + self._batch, end)
                loss, right = self._function(model, self._batches.read(at, to))
                if not 0 <= int(right) <= to - at:
                    raise UsageError(f"the function of job.evaluate says that {int(right)} of {to - at} samples are right")
                loss_sum, correct = loss_sum + float(loss), correct + int(right)
        set_generators(state)
        for module in training:
            module.training = True
        return loss_sum, correct


class Loader:
    """Stands in for the script's loader. Each pass over it is an epoch of the job: runs of units, each sample of the epoch once in
    all workers together. Which run comes next is decided when it is asked for."""

    def __init__(
        self, loader: DataLoader[Any], updates: int, runs: Callable[[], Iterator[Any]], state: _position.LoaderState
    ) -> None:
        self._loader = loader
        self._updates = updates
        self._runs = runs
        self._state = state

    def __iter__(self) -> Iterator[Any]:
        return self._runs()

    def __len__(self) -> int:
        """Updates in an epoch; the runs of this worker are as many as it gets."""
        return self._updates

    @property
    def sampler(self) -> Any:
        """The script's own. Of one of torch's `set_epoch` may be called, as with DDP: each epoch has an order of its own anyway."""
        sampler = self._loader.sampler
        if is_one_of(sampler, RandomSampler) or type(sampler) is SequentialSampler:
            return _AnyEpoch(sampler)
        return sampler

    def __getattr__(self, name: str) -> Any:
        own = getattr(self._loader, name)
        # A StatefulDataLoader's are about the passes over it, and there are none.
        return getattr(self._state, name) if name in ("state_dict", "load_state_dict") else own


class _AnyEpoch:
    """A torch sampler with a `set_epoch` that does nothing."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def set_epoch(self, epoch: int) -> None:
        pass

    def __iter__(self) -> Iterator[int]:
        return iter(self._sampler)

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)
