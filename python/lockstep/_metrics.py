"""Metrics of a script's batches, reduced over a round by all workers together.

A number belongs to the run in hand and travels with its contribution, so it counts exactly as often as the run's gradient. If the
round is closed without the contribution, both do not count; the samples come again, and with them the numbers. The reduced values
travel with the round's commit, and are the same on all workers.
"""

import numbers
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from lockstep import _agreed, _lead, _order, _stream
from lockstep._errors import UsageError
from lockstep._session import Counted, Reduction

_MOST = 64  # metrics of a job, as the session has it
_MOST_BYTES = 64  # of a name
_MOST_WEIGHT = 2**31  # of a run, as the session has it
HOW = {_order.LEAST: "min", _order.GREATEST: "max", _stream.LEAST: "min", _stream.GREATEST: "max", _lead.CLAIM: "min"}
"""Internal metrics that the script does not see, and how they are reduced."""


class Metrics(Mapping[str, float]):
    """The metrics of a round, by name. `loss` is the mean loss that `backward` was given, over samples or the weights of `weigh`.
    Empty before the first round is closed."""

    def __init__(self, counted: Counted | None) -> None:
        self._values: dict[str, float] = {}
        self.round = -1
        """The number of the round."""
        self.epoch = -1
        self.samples = 0
        """The samples that the round has counted."""
        self.policy = ""
        """The policy of the round."""
        self.slow_workers: tuple[int, ...] = ()
        """The workers whose units took at least 1.5 times the median time."""
        if counted is not None:
            self.round, self.epoch, self.samples = counted.round, counted.epoch, counted.samples
            self.policy, self.slow_workers = counted.policy, counted.slow
            seen = {name: value for name, _, value in counted.metrics if not name.startswith(_agreed.PREFIX)}
            self._values = seen | {"loss": counted.loss}

    def __getitem__(self, name: str) -> float:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Metrics(round={self.round}, {self._values})"


class Log:
    """The metrics of the run in hand."""

    def __init__(self) -> None:
        self._kinds: dict[str, Reduction] = {}  # of each name, for the whole job
        self._values: dict[str, tuple[float, int]] = {}  # and how many samples it is a mean of

    def begin(self) -> None:
        """Begins a run; the session has the metrics of the one before."""
        self._values = {}

    def add(self, values: Mapping[str, Any], reduce: str | Mapping[str, str], samples: int, run: int) -> None:
        """`run`: samples that it has, of which `samples` are meant."""
        if not 1 <= samples <= run:
            raise UsageError(f"job.log: samples={samples} of a batch that has {run}")
        checked = {name: (self._kind(name, reduce), _number(name, value)) for name, value in values.items()}
        for name, (kind, number) in checked.items():
            if name in self._values:
                raise UsageError(f"job.log: {name} was logged already for this batch")
            if self._kinds.get(name, kind) is not kind:
                raise UsageError(
                    f"job.log: {name} is reduced by {self._kinds[name].name.lower()} so far, and now by {kind.name.lower()}"
                )
            if name not in self._kinds and len(self._kinds) >= _MOST:
                raise UsageError(f"job.log: {name} is one metric more than the {_MOST} that a job can have")
            self._kinds[name] = kind
            self._values[name] = number, samples

    def all(self) -> Iterator[tuple[str, Reduction, float, int]]:
        for name, (value, samples) in self._values.items():
            yield name, self._kinds[name], value, samples

    def _kind(self, name: object, reduce: str | Mapping[str, str]) -> Reduction:
        if not isinstance(name, str) or not 1 <= len(name.encode()) <= _MOST_BYTES or not name.isprintable():
            raise UsageError(f"job.log: {name!r} is no name of 1 to {_MOST_BYTES} printable bytes")
        if name == "loss":
            raise UsageError("job.log: the loss that job.backward is given is logged as loss already: take another name")
        how = reduce if isinstance(reduce, str) else reduce.get(name, "mean")
        if how not in ("mean", "sum", "min", "max"):
            raise UsageError(f"job.log: {name} is to be reduced by {how!r}: expected 'mean', 'sum', 'min' or 'max'")
        return Reduction[how.upper()]


def _number(name: str, value: Any) -> float:
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise UsageError(f"job.log: {name} has {value.numel()} values, and is to be one number")
        value = value.detach().item()
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UsageError(f"job.log: {name} is {type(value).__name__}, and is to be a number") from None


def weight(value: Any) -> int:
    """Checks the argument of job.weigh."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.detach().item()
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not 0 <= value <= _MOST_WEIGHT or value % 1 != 0:
        shown = f"a tensor of {value.numel()} values" if isinstance(value, torch.Tensor) else repr(value)
        raise UsageError(
            f"job.weigh: {shown} is not a whole number from 0 to 2^31: weigh in smaller units, as round(1000 * weight)"
        )
    return int(value)
