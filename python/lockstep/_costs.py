"""The costs of samples beside each other, as the script says them (job.prepare, cost=): a long sequence takes longer than a short
one on any machine. Where the policy moves work it is shared out by that, and a worker with long samples does not count as slow.

The session works with positions. In its own order it has the costs by sample; of a list of the script's sampler it is told by
position, when the list is there.
"""

import math
import numbers
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep._batch_order import BatchOrder
from lockstep._errors import UsageError
from lockstep._order import Order
from lockstep._session import Session

Cost = Sequence[float] | Callable[[list[int]], float]
"""A number for each sample of the dataset, or a function of the samples that are computed together: one sample, or a batch of the
script's own batch sampler."""


@dataclass(frozen=True)
class Bound:
    """The most that a run costs, as a batch that is padded: its samples times the cost of the dearest one. A sample that costs more
    by itself is computed alone."""

    most: float = 0
    """0: no bound."""
    dearest: float = 1
    """Sample of the dataset."""
    above: int = 0
    """Samples that cost more by themselves."""

    def samples(self) -> int | None:
        """So many are within it, whichever they are, or one is alone; None: as many as there are."""
        return None if self.most == 0 else max(1, int(self.most / self.dearest))


class Costs:
    def __init__(self, cost: Any, order: Order | BatchOrder, dataset: Any) -> None:
        """`cost`: None, or a `Cost`; an array or a tensor is a sequence, too."""
        self._order = order
        self._function: Callable[[list[int]], float] | None = cost if callable(cost) else None
        self._of_sample: array[float] | None = None
        if cost is None:
            return
        if isinstance(order, Order) and order.streams:
            raise UsageError("cost= is for a map-style dataset: of a stream nobody knows which sample comes when")
        if self._function is None:
            self._of_sample = _numbers(cost.tolist() if hasattr(cost, "tolist") else cost, "cost")
            if len(self._of_sample) != len(dataset):
                raise UsageError(f"cost: {len(self._of_sample)} numbers, and the dataset has {len(dataset)} samples")
        elif not isinstance(order, BatchOrder):
            function = self._function
            self._of_sample = _numbers((function([sample]) for sample in range(len(dataset))), "cost: of a sample")

    def bound(self, most: Any) -> Bound:
        """`most`: of a run; None: no bound."""
        if most is None:
            return Bound()
        if isinstance(most, bool) or not isinstance(most, numbers.Real) or not math.isfinite(most) or most <= 0:
            raise UsageError(f"max_cost: {most!r} is no number above 0")
        if isinstance(self._order, BatchOrder):
            raise UsageError("max_cost= is for batches that Lockstep makes: these are the batch sampler's, so bound them there")
        if self._of_sample is None:
            raise UsageError(f"max_cost={most:g} needs cost=, what each sample costs")
        return Bound(float(most), max(self._of_sample), sum(cost > most for cost in self._of_sample))

    def by_sample(self, samples: int) -> Sequence[float]:
        """For the session, which has `samples` in an epoch; empty: it is told of each epoch, or there are none."""
        if self._of_sample is None or not isinstance(self._order, Order) or not self._order.is_sessions(samples):
            return ()
        return self._of_sample

    def tell(self, session: Session, epoch: int, samples: int) -> None:
        """Where the order of that epoch is a list; `samples`: that an epoch has."""
        if (self._of_sample is None and self._function is None) or len(self.by_sample(samples)) > 0:
            return
        if isinstance(self._order, BatchOrder):
            costs = _numbers((self._of(self._order.batch(epoch, number)) for number in range(samples)), "cost: of a batch")
        else:
            assert self._of_sample is not None
            of_sample = self._of_sample
            costs = array("f", (of_sample[sample] for sample in self._order.samples_of(epoch, 0, samples)))
        session.tell_costs(epoch, costs)

    def _of(self, batch: list[int]) -> float:
        if self._of_sample is not None:
            return sum(self._of_sample[sample] for sample in batch)
        assert self._function is not None
        return self._function(batch)


def _numbers(given: Any, what: str) -> "array[float]":
    try:
        found = array("f", given)
    except (TypeError, OverflowError) as error:
        raise UsageError(f"{what} is no number ({error})") from None
    for number in found:
        if not math.isfinite(number) or number < 0:
            raise UsageError(f"{what} is {number:g}: it is at least 0")
    if not any(found):
        raise UsageError("cost: all of them are 0")
    return found
