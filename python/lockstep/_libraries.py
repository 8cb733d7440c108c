"""Streams of other libraries. Such a dataset takes its part when it is made; the job can neither see nor change that part.

litdata and mosaicml-streaming read the environment in the constructor, datasets has a function of its own for it. The job would
share out such a part again. mosaicml-streaming also waits at a barrier in shared memory for all workers of get_worker_info(). With
sharded=True those are processes that do not share this memory, so it would wait for ever.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset

from lockstep._errors import UsageError

_MOST_IN_ONE = 64  # values of a list that are looked at: those that mix datasets hold a few of them


@dataclass(frozen=True)
class _Kept:
    """Where a dataset keeps its part, and what to write instead."""

    attribute: str
    rank: str
    size: str
    remedy: str


_WHOLE = "make it within 'with lockstep.undivided():'"
_PARTS = {  # by package and class
    ("litdata", "StreamingDataset"): _Kept("distributed_env", "global_rank", "world_size", _WHOLE),
    ("streaming", "StreamingDataset"): _Kept("_unique_rank_world", "rank", "num_ranks", _WHOLE),
    ("datasets", "IterableDataset"): _Kept("_distributed", "rank", "world_size", "leave split_dataset_by_node out"),
}


def refuse_parts(dataset: Dataset[Any], *, sharded: bool, workers: int) -> None:
    """Raises where this dataset, or one within it, is a part already, or cannot be shared out by get_worker_info()."""
    for inner in _datasets_in(dataset, set()):
        for kind in type(inner).__mro__:
            package, name = kind.__module__.partition(".")[0], kind.__name__
            kept = _PARTS.get((package, name))
            if kept is None:
                continue
            part = getattr(inner, kept.attribute, None)
            size = getattr(part, kept.size, 1)
            if size > 1:
                raise UsageError(
                    f"the {name} of {package} has been part {getattr(part, kept.rank)} of {size} since it was made, and the job "
                    f"shares its items out again: {kept.remedy}"
                )
            if package == "streaming" and sharded and workers > 1:
                raise UsageError(
                    "mosaicml-streaming cannot share a dataset out between the workers of a job, because it would wait for them at "
                    "a barrier of its own: leave sharded=True out"
                )


def _datasets_in(value: Any, seen: set[int]) -> Iterator[Any]:
    """The dataset, and those that it is made of."""
    if id(value) in seen:
        return
    seen.add(id(value))
    inner: Iterable[Any] = ()
    if isinstance(value, Dataset):
        yield value
        inner = vars(value).values()
    elif isinstance(value, list | tuple):
        inner = value
    elif isinstance(value, dict):
        inner = value.values()
    for one in itertools.islice(inner, None if isinstance(value, Dataset) else _MOST_IN_ONE):
        yield from _datasets_in(one, seen)
