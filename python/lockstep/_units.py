"""A script's settings of the units of a round, and of the largest run of units that it gets at once."""

import math
from collections.abc import Mapping

from lockstep import _rule
from lockstep._costs import Bound
from lockstep._errors import UsageError

_AUTO = ("auto", "0")
_NORM_SAMPLES = 8  # of a unit, where a model has norms: each run is normalized by itself, and may be one unit


class Units:
    """`at_once`: samples that this worker computes so at most, the batch size of the script's loader. `count`: of a round, None: as
    many as the policy has use for. `fixed`: each by itself, and of one size where that can be. `own_batches`: a round has
    batches of the script's own, and each is a unit. `most_cost`: of a run."""

    def __init__(
        self, at_once: int, count: int | None, fixed: bool, *, own_batches: bool = False, most_cost: Bound | None = None
    ) -> None:
        if not isinstance(fixed, bool):
            raise UsageError(f"fixed_batch: {fixed!r} is neither True nor False")
        self.at_once = at_once
        self.max_in_run = 1 if fixed or own_batches else 0
        self._count = count
        self._fixed = fixed
        self._own_batches = own_batches
        self._most_cost = most_cost or Bound()

    def settings(self, batch: int, *, norms: bool) -> dict[str, object]:
        """Of the job, where a round has so many samples. `norms`: the model normalizes over its batches."""
        if self._own_batches:
            if self._count is not None and self._count != batch:
                raise UsageError(
                    f"units={self._count} of global_batch={batch} batches: a unit is one batch of the batch sampler, so leave "
                    "units= out"
                )
            return {}  # the session makes a unit of each, for a worker computes one at once
        if self._count is not None:
            return {"job.units": self._count}
        units = self._for_norms(batch) if norms else 0
        within = self._most_cost.samples()
        if within is not None:  # no unit is divided, so each is to be within the bound
            units = max(units, self._of_size(batch, within))
        return {"job.units": units} if units else {}

    def check(self, config: Mapping[str, str]) -> None:
        """The job's config may have units of several batches."""
        units, batch = config["job.units"], config["job.global_batch"]
        if self._own_batches and units not in _AUTO and int(units) < int(batch):
            raise UsageError(
                f"job.units = {units} of job.global_batch = {batch} batches, as the job's config says: a unit is one batch of the "
                "batch sampler, so leave job.units out"
            )

    def _of_size(self, batch: int, samples: int) -> int:
        """The fewest units of so many samples at most."""
        least = min(math.ceil(batch / samples), _rule.MOST_UNITS)
        if self._fixed:
            return next((units for units in range(least, min(batch, _rule.MOST_UNITS) + 1) if batch % units == 0), least)
        return least

    def _for_norms(self, batch: int) -> int:
        """Of `_NORM_SAMPLES` or a little more, but no more than are computed at once."""
        least = math.ceil(batch / self.at_once)
        most = max(1, min(batch // _NORM_SAMPLES, _rule.MOST_UNITS), least)
        if self._fixed:
            return next((units for units in range(most, max(most // 2, least) - 1, -1) if batch % units == 0), most)
        return most

    def tell(self, units: str, batch: int, samples: int, workers: int) -> None:
        """Prints what a script may have meant otherwise: batches that are to be of one size and are not; the round's batch, where
        it is the loader's. `units`: as the job's config says. `samples`: of an epoch. `workers`: that share that batch; 1 where the
        script has said how large it is."""
        if self._own_batches:
            return
        for line in self._above_cost(units, batch):
            print(f"lockstep: max_cost: {line}", flush=True)
        if workers > 1 and batch == self.at_once:
            print(
                f"lockstep: a round has {batch} samples, of {workers} workers together; DDP would have {workers * batch}: "
                f"global_batch={workers * batch} of job.prepare keeps that",
                flush=True,
            )
        line = self._not_of_one_size(units, batch, samples)
        if self._fixed and line:
            print(f"lockstep: fixed_batch: {line}", flush=True)

    def _above_cost(self, units: str, batch: int) -> list[str]:
        """Lines on batches that may cost more than the script allows."""
        bound, lines = self._most_cost, []
        if bound.above > 0:
            samples = "1 sample costs" if bound.above == 1 else f"{bound.above} samples cost"
            lines.append(f"{samples} more than {bound.most:g} (up to {bound.dearest:g}), and no sample is divided")
        within = bound.samples()
        size = batch if units in _AUTO else math.ceil(batch / int(units))
        if within is not None and size > within:
            lines.append(
                f"a unit of {size} samples may cost {size * bound.dearest:g}, more than {bound.most:g}, and no unit is divided: "
                f"job.units is to be {math.ceil(batch / within)} or more"
            )
        return lines

    @staticmethod
    def _not_of_one_size(units: str, batch: int, samples: int) -> str:
        if units not in _AUTO:  # of auto the coordinator makes as many as divide the batch
            size = math.ceil(batch / int(units))
            if batch % size != 0:
                return f"job.units = {units} cuts job.global_batch = {batch} into units of different sizes, so batches differ"
            if samples % batch % size == 0:
                return ""
        if samples % batch == 0:
            return ""
        return (
            f"the last update of an epoch has {samples % batch} samples instead of {batch}, so its batches may be of another size "
            "(drop_last=True of the DataLoader leaves them out)"
        )
