"""Training data without a DataLoader: a function of the script that makes a batch, mostly of samples that it draws at random.

Each call is a sample of the job, and a unit. The job's one epoch has as many as all its updates take. Generators of torch, random
and numpy are seeded from a call's position, so a batch is the same whichever worker makes it.
"""

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.utils.data import DataLoader, Dataset

from lockstep import _errors
from lockstep._errors import UsageError

_WRITE = 'job.prepare(model, opt, lambda: get_batch("train"), updates=1000)'


def is_function(loader: Any) -> bool:
    """Takes the place of the DataLoader."""
    return callable(loader) and not isinstance(loader, type | nn.Module | DataLoader)


def loader_of(function: Any, epochs: int | None, updates: int | None, global_batch: int) -> DataLoader[Any]:
    """For so many updates. The others are arguments of job.prepare, too."""
    if epochs not in (None, 1):
        raise UsageError(
            f"epochs={epochs}: a function that makes batches has no epochs. Say how many updates the job has, {_WRITE}"
        )
    if updates is None:
        raise UsageError(f"job.prepare was not told how many updates the job has, for which the function makes batches: {_WRITE}")
    return DataLoader(_Calls(function, updates * global_batch), batch_size=1, collate_fn=lambda made: made[0])


class _Calls(Dataset[Any]):
    def __init__(self, function: Callable[[], Any], calls: int) -> None:
        self._function = function
        self._calls = calls

    def __len__(self) -> int:
        return self._calls

    def __getitem__(self, index: int) -> Any:
        return self._function()


class Drawn:
    """Stands in for the script's function: each call returns this worker's next batch. A loop over it ends with the job."""

    def __init__(self, loader: Any, why_over: Callable[[], str]) -> None:
        """`loader`: makes the job's one pass. `why_over`: has ended the job early; empty: nothing has."""
        self._loader = loader
        self._why_over = why_over
        self._pass: Iterator[Any] | None = None

    def __call__(self) -> Any:
        for batch in self:
            return batch
        if why := self._why_over():
            _errors.say(
                f"the job has ended ({why}), and the script asks for another batch: it ends with status 0. A loop `for batch in "
                "get_batch` would go on behind it"
            )
            raise SystemExit(0)
        raise UsageError("the job's updates are all made, as many as job.prepare was told, and the script asks for another batch")

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._pass is None:
            self._pass = iter(self._loader)
        return next(self._pass)

    def __len__(self) -> int:
        """Updates of the job."""
        return len(self._loader)
