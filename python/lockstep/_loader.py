"""The script's DataLoader, by runs of units: the session says which samples come next, the script how they are read."""

import hashlib
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset, default_collate

from lockstep._errors import UsageError
from lockstep._model import digest_inputs

_LOOKED_AT = 16  # samples that the dataset's digest is made of


def refuse_unsupported(loader: DataLoader[Any]) -> None:
    """Loaders whose samples or whose order the job cannot give."""
    if not isinstance(loader, DataLoader):
        raise UsageError(f"{type(loader).__name__} is no torch.utils.data.DataLoader")
    if isinstance(loader.dataset, IterableDataset):
        raise UsageError("the dataset is an IterableDataset: samples are given out by their number, so it must be a map-style one")
    if loader.batch_size is None:
        raise UsageError("the DataLoader has a batch_sampler or batch_size=None, which is not supported: give it a batch_size")
    sampler = loader.sampler
    if not isinstance(sampler, RandomSampler) or sampler.replacement or sampler.num_samples != len(loader.dataset):  # type: ignore[arg-type]
        raise UsageError(
            f"the DataLoader's order is that of {type(sampler).__name__}: lockstep shuffles the whole dataset anew in each epoch, "
            "from the job's seed, as DataLoader(shuffle=True) does"
        )
    if loader.drop_last:
        raise UsageError("the DataLoader drops the last samples of an epoch (drop_last=True): lockstep trains on each of them")
    if loader.num_workers > 0:
        warnings.warn(
            f"lockstep reads the data in the training process: num_workers={loader.num_workers} is not used yet", stacklevel=3
        )


def seed_of(seed: int, epoch: int, position: int) -> int:
    """For what is drawn at random in a run: its dropout, its augmentation. Of the run's first position, so whoever computes it."""
    digest = hashlib.blake2b(f"{seed} {epoch} {position}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % (1 << 32))


def dataset_digest(dataset: Dataset[Any], seed: int) -> str:
    """To tell whether workers train on the same: of its size and a few of its samples."""
    size = len(dataset)  # type: ignore[arg-type]
    digest = hashlib.sha256(str(size).encode())
    numpy: Any = sys.modules.get("numpy")
    state = torch.get_rng_state(), random.getstate(), numpy and numpy.random.get_state()
    for index in sorted({size * i // _LOOKED_AT for i in range(_LOOKED_AT)}):
        seed_all(seed)
        for data in digest_inputs([dataset[index]]):
            digest.update(data)
    torch.set_rng_state(state[0])
    random.setstate(state[1])
    if numpy:
        numpy.random.set_state(state[2])
    return digest.hexdigest()


class Batches:
    """The dataset's samples, collated as the script's loader does."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._dataset: Any = loader.dataset
        self._collate = loader.collate_fn
        # What default_collate makes of tensors one by one can be had at once.
        self._tensors: tuple[torch.Tensor, ...] | None = None
        if type(loader.dataset) is TensorDataset and loader.collate_fn is default_collate:
            self._tensors = loader.dataset.tensors

    def read(self, samples: Sequence[int]) -> Any:
        if self._tensors is not None:
            chosen = torch.tensor(samples)
            return [tensor[chosen] for tensor in self._tensors]
        if hasattr(self._dataset, "__getitems__"):
            return self._collate(self._dataset.__getitems__(list(samples)))
        return self._collate([self._dataset[i] for i in samples])


class Evaluation:
    """Of a dataset, a part at a time, in its own order."""

    def __init__(self, function: Callable[[nn.Module, Any], tuple[float, int]], loader: DataLoader[Any]) -> None:
        if not isinstance(loader, DataLoader):
            raise UsageError(f"{type(loader).__name__} is no torch.utils.data.DataLoader")
        if isinstance(loader.dataset, IterableDataset) or loader.batch_size is None:
            raise UsageError("job.evaluate wants a DataLoader with a map-style dataset and a batch_size")
        self.dataset: Any = loader.dataset
        self._function = function
        self._batch = loader.batch_size
        self._batches = Batches(loader)

    def run(self, model: nn.Module, first: int, end: int) -> tuple[float, int]:
        """The sum of the losses and how many are right of the samples [first, end)."""
        training = [module for module in model.modules() if module.training]
        model.eval()
        loss_sum, correct = 0.0, 0
        with torch.no_grad():
            for at in range(first, end, self._batch):
                samples = range(at, min(at + self._batch, end))
                loss, right = self._function(model, self._batches.read(samples))
                if not 0 <= int(right) <= len(samples):
                    raise UsageError(f"the function of job.evaluate says that {int(right)} of {len(samples)} samples are right")
                loss_sum, correct = loss_sum + float(loss), correct + int(right)
        for module in training:
            module.training = True
        return loss_sum, correct


class Loader:
    """Stands in for the script's loader. Each pass over it is an epoch of the job: runs of units, each sample of the epoch once in
    all workers together. Which run comes next is decided when it is asked for, so it is read one at a time."""

    def __init__(self, loader: DataLoader[Any], updates: int, runs: Callable[[], Iterator[Any]]) -> None:
        self._loader = loader
        self._updates = updates
        self._runs = runs

    def __iter__(self) -> Iterator[Any]:
        return self._runs()

    def __len__(self) -> int:
        """Updates in an epoch; the runs of this worker are as many as it gets."""
        return self._updates

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
