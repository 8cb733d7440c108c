"""Rates that the script sets by itself, as it counts its steps.

Where work moves, or a worker is lost, a worker has other numbers of batches than there are rounds, so what its script counts is
ahead or behind. Each worker therefore remembers which rates its script has set at which of its steps. With a batch it says those of
the step that has the round's number, both in the epoch and in the job. All who have come so far say the same.

By which of the two the script counts shows in the first round of an epoch. If workers have made different numbers of steps by then
and the script counts them all, their rates differ, though for all it is the epoch's first step. All may have made the same number,
and more than there were rounds. The rates of a script that goes by epochs then stay the same within one, or they are those that it
had set behind the epoch's end.

All this travels as metrics do (_agreed.py), and a round's rates follow from its metrics alone, so they are the same everywhere.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

from lockstep._errors import JobFailed

Rates = tuple[float, ...]  # of the optimizer's groups

_EXACT, _BEHIND, _LATE = "", "_behind", "_late"
_IN_EPOCH, _IN_JOB = "lr", "lr_count"
_BY_JOB, _BEGAN = "lr_by_count", "lr_began"
_STEPS, _TORN = "lr_steps", "lr_torn"  # of all before an epoch; the two kinds of count lead to other rates
ONE_END = {_BEGAN: ("min",), _BY_JOB: ("max",), _TORN: ("max",)}  # of what all say of these, for a round has few metrics
_NEARLY = 1e-6  # a position is a sum of fractions
_KEPT = 8  # steps before the one that was asked for last: a round may be computed again
_MOST_GROUPS = 4  # that are said one by one
_SAME = 1e-6
_DIGITS = 9  # of the proportions of more groups than that
_DIGEST_BYTES = 6  # what a double holds exactly


class _Steps:
    """The rates at each step of a stretch of the job, as far as they may still be asked for."""

    def __init__(self, began: int) -> None:
        self.began = began  # in rounds
        self._first = 0  # the number of the first that is kept
        self._rates: list[Rates] = []

    def __len__(self) -> int:
        return self._first + len(self._rates)

    @property
    def last(self) -> Rates | None:
        return self._rates[-1] if self._rates else None

    def add(self, rates: Rates) -> None:
        last = self.last
        self._rates.append(last if last == rates else rates)

    def at(self, number: int, hand: Rates | None) -> tuple[Rates | None, bool]:
        """`hand`: of the step that is still to come. Whether they are of that step; else of the last one before it."""
        number = max(number, self._first)
        rates: Rates | None
        if number < len(self):
            rates, exact = self._rates[number - self._first], True
        else:
            rates = hand or self.last
            exact = hand is not None and number == len(self)
        return rates, exact

    def forget(self, number: int) -> None:
        """Nobody will ask for those long before it."""
        drop = min(number - self._first, len(self._rates)) - _KEPT
        if drop > 0:
            del self._rates[:drop]
            self._first += drop


class ByHand:
    """`factors`: of the groups' rates, beside the first one's, as the script began. `in_epoch`: rounds. `drawn`: a function makes
    the batches. The script's loop then ends by its own count, too, so all have to count alike: each says the rates of its step.
    """

    def __init__(self, factors: Rates, in_epoch: int, *, drawn: bool = False) -> None:
        self._factors = factors
        self.drawn = drawn
        self._in_epoch = in_epoch
        self._in_job: _Steps | None = None
        self._passes: dict[int, _Steps] = {}
        self._epoch = 0
        self._varies = False  # within a pass
        self._began_first: int | None = None  # of all workers
        self._by_job = False
        self._proportions: dict[int, Rates] = {}

    def begin_pass(self, epoch: int) -> None:
        self._epoch = epoch
        if self._in_job is not None:
            self._passes[epoch] = _Steps(epoch * self._in_epoch)
        for old in [old for old in self._passes if old < epoch - 1]:
            del self._passes[old]

    def begin_batch(self, position: float) -> None:
        if self._in_job is None:
            began = int(position + _NEARLY)
            self._in_job = _Steps(began)
            self._passes[self._epoch] = _Steps(began)
        self._in_job.forget(int(position + _NEARLY) - self._in_job.began)

    def stepped(self, rates: Rates) -> None:
        for steps in (self._in_job, self._passes.get(self._epoch)):
            if steps is not None:
                self._varies = self._varies or (steps is not self._in_job and steps.last not in (None, rates))
                steps.add(rates)

    def counts(self, position: float) -> tuple[int, int]:
        """The steps that this worker's script has made, and the job's rounds between its first batch and this position."""
        job = self._in_job
        return (0, 0) if job is None else (len(job), int(position + _NEARLY) - job.began)

    def said(self, epoch: int, position: float, rates: Rates, *, stepped: bool) -> dict[str, float]:
        """For a batch of this epoch, of the round at this position. `rates`: at its step, which may have been made."""
        job = self._in_job
        if self.drawn:
            return self._encode(_IN_EPOCH, rates)
        assert job is not None
        round_ = int(position + _NEARLY)
        steps = self._passes.get(epoch)
        values: dict[str, float] = {_BEGAN: job.began}
        first_step = False
        late = job.began > (0 if self._began_first is None else self._began_first)
        if steps is not None:
            in_hand = None if stepped or epoch != self._epoch else rates
            first_step = epoch == self._epoch and len(steps) == int(stepped)
            its, exact = steps.at(round_ - steps.began, in_hand)
            first_pass = steps.began == job.began
            values |= self._encode(_IN_EPOCH + (_LATE if late and first_pass else _EXACT if exact else _BEHIND), its or rates)
            if first_pass:  # both counts are the same
                return values
        its, exact = job.at(round_ - job.began, None if stepped else rates)
        values |= self._encode(_IN_JOB + (_LATE if late else _EXACT if exact else _BEHIND), its or rates)
        if first_step and not late:
            values[_STEPS] = len(job) - int(stepped)
            if self._varies and not self._goes_on(epoch, rates):
                values[_TORN] = 1.0
        if self._by_job:
            values[_BY_JOB] = 1.0
        return values

    def read(self, least: Mapping[str, float], greatest: Mapping[str, float]) -> tuple[Rates | None, str]:
        """Of a round, by what was said of it; None: nothing was. If the workers do not agree, the name of what they differ in."""
        if not self.drawn and _BEGAN in least:
            self._began_first = int(least[_BEGAN] if self._began_first is None else min(self._began_first, least[_BEGAN]))
        in_epoch, in_job = _best(_IN_EPOCH, least), _best(_IN_JOB, least)
        if in_epoch is None and in_job is None:
            return None, ""
        differs = _differs(in_epoch, least, greatest)
        name = in_epoch
        torn = bool(differs) or (_TORN in greatest and least.get(_STEPS) == greatest.get(_STEPS))
        if in_job is not None and (name is None or torn or _BY_JOB in greatest):
            self._by_job = self._by_job or torn
            name, differs = in_job, _differs(in_job, least, greatest)
        assert name is not None
        return self._decode(name, least), differs

    def _goes_on(self, epoch: int, rates: Rates) -> bool:
        """The pass begins with these, which the script had also set at that step of the pass before, if that had so many."""
        before = self._passes.get(epoch - 1)
        if before is None:
            return True
        its, exact = before.at(epoch * self._in_epoch - before.began, None)
        return not exact or its is None or _same(its, rates)

    def _encode(self, name: str, rates: Rates) -> dict[str, float]:
        values = {name: rates[0]}
        if rates == _times(rates[0], self._factors):
            return values
        if len(rates) <= _MOST_GROUPS:
            return values | {f"{name}.{i}": rates[i] for i in range(1, len(rates))}
        proportions = tuple(float(f"{rate / rates[0]:.{_DIGITS}g}") for rate in rates) if rates[0] else rates
        how = int.from_bytes(hashlib.sha256(repr(proportions).encode()).digest()[:_DIGEST_BYTES], "little")
        self._proportions[how] = proportions
        return values | {f"{name}.how": how}

    def _decode(self, name: str, values: Mapping[str, float]) -> Rates:
        first = values[name]
        if f"{name}.how" in values:
            proportions = self._proportions.get(int(values[f"{name}.how"]))
            if proportions is None:
                raise JobFailed("this worker has had no batch with such proportions of the rates that the script sets")
            return _times(first, proportions) if first else proportions
        if f"{name}.1" in values:
            others = [values.get(f"{name}.{i}") for i in range(1, len(self._factors))]
            if None in others:
                raise JobFailed("a round has so many metrics that rates which the script sets were left out")
            return (first, *(rate for rate in others if rate is not None))
        return _times(first, self._factors)


def _best(name: str, said: Mapping[str, Any]) -> str | None:
    return next((name + kind for kind in (_EXACT, _BEHIND, _LATE) if name + kind in said), None)


def _differs(name: str | None, least: Mapping[str, float], greatest: Mapping[str, float]) -> str:
    """Of those that are behind the least counts: they are at different steps."""
    if name is None or name.endswith((_BEHIND, _LATE)):
        return ""
    claims = (one for one in least if one == name or one.startswith(f"{name}."))
    return next((one for one in claims if least[one] != greatest.get(one, least[one])), "")


def _same(one: Rates, other: Rates) -> bool:
    return all(abs(a - b) <= _SAME * max(abs(a), abs(b)) for a, b in zip(one, other, strict=True))


def _times(first: float, factors: Rates) -> Rates:
    return tuple(first * factor for factor in factors)
