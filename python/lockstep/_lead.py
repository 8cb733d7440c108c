"""Which worker writes what the whole job has to say, as to a logger: one, and another one if it is lost.

No worker knows which others are alive. So the one that leads says so with each of its runs, in a metric of the job, and all
workers see the lowest claim that a round has counted. Worker 0 claims at once. If rounds go by without a claim, the others claim,
the lowest number first. Until a claim is counted each worker keeps the points that nobody may have written yet.

A value, without clock or I/O.
"""

import secrets
from collections import deque
from dataclasses import dataclass

CLAIM = "lockstep.lead"
"""The metric, reduced by "min": a worker's number, and a random number of the job that the first claim has made."""
_BITS = 40  # of the random number, which leaves 13 of a double for the worker's
_PATIENCE = 10  # rounds without a claim
_KEPT = 4096  # points at most


@dataclass(frozen=True)
class Point:
    """The numbers of a round, by name."""

    round: int
    values: dict[str, float]
    policy: str


class Lead:
    """As one worker sees it."""

    def __init__(self, worker: int, incarnation: int) -> None:
        self._worker = worker
        self._is_first = worker == 0 and incarnation == 1
        self._holder: int | None = None
        self._last: int | None = None  # the round of the last claim, or the one that this worker began with
        self._kept: deque[Point] = deque(maxlen=_KEPT)
        self.number = secrets.randbits(_BITS)
        """Of the job, once this worker leads."""

    def claim(self, round_: int) -> dict[str, float]:
        """The metric of this worker's run in that round; empty: it does not claim to lead."""
        if self._last is None:
            self._last = round_
        leads = self._holder == self._worker or (self._holder is None and self._is_first)
        if leads or round_ - self._last > _PATIENCE * max(1, self._worker):
            return {CLAIM: float((self._worker << _BITS) | self.number)}
        return {}

    def take(self, point: Point, claim: float | None) -> list[Point]:
        """With the claim that its round has counted. Returns the points that this worker writes now."""
        self._kept.append(point)
        if claim is None:
            return []
        self._holder, self.number = int(claim) >> _BITS, int(claim) & ((1 << _BITS) - 1)
        self._last = point.round
        points = list(self._kept) if self._holder == self._worker else []
        self._kept.clear()
        return points

    def finish(self) -> list[Point]:
        """The job has ended: the points that are left for this worker to write."""
        points = list(self._kept) if self._holder == self._worker else []
        self._kept.clear()
        return points
