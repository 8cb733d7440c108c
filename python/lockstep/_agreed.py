"""Numbers that each worker's script says of an update, as how it clips the gradient, and that must be the same on all workers.

They travel with the runs, as metrics: the least and the greatest of each. So a worker without a run of the round has them, too,
before it makes the update. Which parameters are clipped is no number: a digest of that travels, and a worker that has not seen the
same cannot make the update.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockstep import _given, _rates
from lockstep._errors import JobFailed, UsageError
from lockstep._session import Counted

PREFIX = "lockstep."
_DIGEST_BYTES = 6  # what a double holds exactly
_MOST_CLIPS = 4  # of a batch
_NO_LIMIT = -1.0
_KEPT = 8  # rounds
_RATES = f"give job.prepare a scheduler that follows updates, {_given.RATES}"
_CLIP = "clip alike in all batches, as job.prepare(..., clip_grad_norm=1.0) does"


@dataclass(frozen=True)
class Clip:
    """A call of clip_grad_norm_ or, without a kind of norm, of clip_grad_value_."""

    limit: float
    norm: float | None
    which: tuple[int, ...]  # parameters of the job, by their numbers

    @property
    def how(self) -> int:
        return _digest((self.norm, self.which))


@dataclass(frozen=True)
class Said:
    """Of one update. `rates`: of the groups, None where the job has them. `micro_batches`: of each worker, whose gradients the
    script adds up. None: nobody has said it."""

    clips: tuple[Clip, ...] | None = None
    rates: tuple[float, ...] | None = None
    accumulates: bool | None = None
    steps_in_update: bool | None = None
    more_clips: bool = False  # further clippings may follow, in the first batch of all


class Agreed:
    """`everything`: the parameters' numbers. `rates`: those that the script sets by itself."""

    def __init__(self, everything: tuple[int, ...], rates: _rates.ByHand) -> None:
        self.rates = rates
        norms = (Clip(0.0, norm, everything) for norm in (2.0, 1.0, math.inf, None))
        self._clips = {clip.how: clip for clip in norms}
        self._by_round: dict[int, Mapping[str, float]] = {}
        self.now = Said()  # what holds as long as nobody says otherwise

    def metrics(self, said: Said, rates: Mapping[str, float] | None) -> tuple[dict[str, float], dict[str, str]]:
        """To be logged with a run, and how they are reduced. `rates`: the claims about them."""
        values: dict[str, float] = {}
        if said.clips is not None:
            if not said.more_clips:
                values["clips"] = len(said.clips)
            for i, clip in enumerate(said.clips):
                self._clips[clip.how] = clip
                values[f"clip{i}"] = clip.limit if math.isfinite(clip.limit) else _NO_LIMIT
                values[f"clip{i}_how"] = clip.how
        values |= rates or {}
        if said.accumulates is not None:
            values["accumulates"] = said.accumulates
        if said.steps_in_update is not None:
            values["scheduled"] = said.steps_in_update
        ends = {name: _rates.ONE_END.get(name, ("min", "max")) for name in values}
        logged = {f"{PREFIX}{name}_{end}": float(value) for name, value in values.items() for end in ends[name]}
        return logged, {name: name[-3:] for name in logged}

    def take(self, counted: Counted) -> None:
        """A round that is committed."""
        mine = {name: value for name, _, value in counted.metrics if name.startswith(PREFIX)}
        self._by_round[counted.round] = mine
        for round_ in [round_ for round_ in self._by_round if round_ <= counted.round - _KEPT]:
            del self._by_round[round_]

    def of(self, round_: int) -> Said:
        """All have said this of the round, which is to be updated now."""
        values = self._by_round.get(round_)
        if values is None:  # this worker was behind
            later = [values for other, values in self._by_round.items() if other > round_]
            if not later or self._read(later[0], round_) == self.now:
                return self.now
            raise JobFailed(
                f"this worker was behind in round {round_} and does not know how the script clips, or its rates there, which change"
            )
        self.now = self._read(values, round_)
        return self.now

    def _read(self, values: Mapping[str, float], round_: int) -> Said:
        now = self.now
        clips, rates, accumulates, scheduled = now.clips, now.rates, now.accumulates, now.steps_in_update
        if f"{PREFIX}clips_min" in values:
            count = int(self._one(values, "clips", round_))
            clips = tuple(self._clip(values, i, round_) for i in range(count))
        elif f"{PREFIX}clip0_min" in values and clips is None:
            clips = (self._clip(values, 0, round_),)
        least, greatest = _ends(values, "min"), _ends(values, "max")
        set_here, differs = self.rates.read(least, greatest)
        if differs:
            why = "have different numbers of batches" if self.rates.drawn else "have made as many steps"
            raise UsageError(
                f"the rate (lr) that the script has set in round {round_} is {least[differs]:g} on one worker and "
                f"{greatest[differs]:g} on another. They {why}: {_RATES}"
            )
        rates = set_here or rates
        if f"{PREFIX}accumulates_max" in values:
            accumulates = bool(values[f"{PREFIX}accumulates_max"])
        if f"{PREFIX}scheduled_max" in values:
            scheduled = bool(values[f"{PREFIX}scheduled_max"])
        return Said(clips, rates, accumulates, scheduled)

    def _clip(self, values: Mapping[str, float], i: int, round_: int) -> Clip:
        limit = self._one(values, f"clip{i}", round_)
        known = self._clips.get(int(self._one(values, f"clip{i}_how", round_)))
        if known is None:
            raise JobFailed(f"this worker had no batch in round {round_} and does not know which parameters the script clips")
        return Clip(math.inf if limit == _NO_LIMIT else limit, known.norm, known.which)

    @staticmethod
    def _one(values: Mapping[str, float], name: str, round_: int) -> float:
        least, greatest = values[f"{PREFIX}{name}_min"], values[f"{PREFIX}{name}_max"]
        if least != greatest:
            raise UsageError(
                f"the limit of clipping that the script has set in round {round_} is {least:g} on one worker and {greatest:g} on "
                f"another. They have different numbers of batches: {_CLIP}"
            )
        return least


def _ends(values: Mapping[str, float], end: str) -> dict[str, float]:
    """The claims about rates."""
    said = (name for name in values if name.startswith(f"{PREFIX}lr") and name.endswith(end))
    return {name[len(PREFIX) : -len(end) - 1]: values[name] for name in said}


def check_count(clips: int) -> None:
    if clips > _MOST_CLIPS:
        raise UsageError(
            f"more than {_MOST_CLIPS} clippings between the backward pass and opt.step(): before job.prepare, let a step hook do "
            "them, opt.register_step_pre_hook(lambda *_: clip_all(model))"
        )


def _digest(value: Any) -> int:
    return int.from_bytes(hashlib.sha256(repr(value).encode()).digest()[:_DIGEST_BYTES], "little")
