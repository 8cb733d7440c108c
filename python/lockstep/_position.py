"""The job's position, which a script saves by the `state_dict` of the prepared loader. It is there if the script's loader has one,
as torchdata's StatefulDataLoader.

The job owns its position: a worker is given runs, and cannot ask for others. So a state that is loaded is compared with where the
job begins, and moves nothing. A job that goes on from its checkpoint is there by itself.
"""

from collections.abc import Callable
from typing import Any

from lockstep._errors import UsageError

_VERSION = 1
_KEY = "lockstep"  # has the version; states of torchdata have no such key
_TORCHDATA_KEY = "_iterator_finished"  # in each state of torchdata's loader
_LOAD = "loader.load_state_dict"
_LEAVE_OUT = f"leave {_LOAD} out"
_RESUME = 'lockstep run --resume, or lockstep.init(run_dir="runs/a", resume=True)'


class LoaderState:
    """Of one job. `data`: the digest of the dataset and its order; `samples`: of an epoch. `position`: the epoch of the last batch,
    and the number of updates that the model has; None: it is not known yet. `has_begun`: this worker has had a batch."""

    def __init__(
        self,
        *,
        data: str,
        samples: int,
        global_batch: int,
        seed: int,
        position: Callable[[], tuple[int, int] | None],
        has_begun: Callable[[], bool],
    ) -> None:
        # In the order in which they are compared, for the later ones follow from those before.
        self._own = {"seed": seed, "global_batch": global_batch, "data": data, "samples": samples}
        self._position, self._has_begun = position, has_begun
        self._loaded: dict[str, Any] | None = None
        self._began: tuple[int, bool] | None = None  # the round of this worker's first work, and whether the job was on by then

    def state_dict(self) -> dict[str, Any]:
        """Strings and numbers, the same on every worker whose model has as many updates. `epoch` is that of the last batch. Before
        the first batch it is what was loaded."""
        if self._loaded is not None and not self._has_begun():
            return dict(self._loaded)
        at = self._position()
        if at is None:
            raise UsageError(
                "loader.state_dict: where the job begins is known with the first batch: call it in the loop or later"
            )
        return {_KEY: _VERSION} | self._own | {"epoch": at[0], "round": at[1]}

    def load_state_dict(self, state: Any) -> None:
        """Before the first batch. The job is compared with it as soon as this worker has work. As with torchdata an empty one says
        nothing."""
        if state == {}:
            return
        if not isinstance(state, dict) or (_KEY not in state and _TORCHDATA_KEY not in state):
            raise UsageError(f"{_LOAD} takes what state_dict of a prepared loader has returned, and this is something else")
        if _KEY not in state:
            raise UsageError(
                f"{_LOAD}: this state is torchdata's own, of a loader without a job, and a job cannot begin there: {_LEAVE_OUT}. "
                f"Later the job goes on from its own checkpoint: {_RESUME}"
            )
        if state[_KEY] != _VERSION:
            raise UsageError(
                f"{_LOAD}: the state has version {state[_KEY]!r}, and this release of lockstep reads version {_VERSION}: "
                f"{_LEAVE_OUT}, and let the job go on from its checkpoint: {_RESUME}"
            )
        self._compare(state)
        if self._has_begun():
            at = self._position()
            raise UsageError(
                f"{_LOAD} comes before the first batch, and the job has come to round {at[1] if at else 0}: it goes back only when "
                f"it is started again from its checkpoint: {_RESUME}"
            )
        self._loaded = dict(state)
        self._check()

    def begin(self, round_: int, *, was_on: bool) -> None:
        """This worker's first work is of that round. `was_on`: it has joined a job that others were in. All others begin together,
        where the job begins or its checkpoint is."""
        if self._began is None:
            self._began = round_, was_on
            self._check()

    def _compare(self, state: dict[str, Any]) -> None:
        """With what the order of the samples follows from."""
        for key, own in self._own.items():
            if (its := state.get(key)) == own:
                continue
            wrong, instead = {
                "seed": (f"seed {its}, and the job has {own}", f"begin with lockstep.init(seed={its})"),
                "global_batch": (f"a global batch of {its}, and the job has {own}", f"give job.prepare global_batch={its}"),
                "data": ("another dataset, or another order of its samples", "give job.prepare the same loader as then"),
                "samples": (f"epochs of {its} samples, and the job has {own}", "give job.prepare the same loader as then"),
            }[key]
            raise UsageError(f"{_LOAD}: the state is of {wrong}: {instead}, or {_LEAVE_OUT}")
        if not isinstance(state.get("round"), int):
            raise UsageError(f"{_LOAD}: the state has no round: {_LEAVE_OUT}")

    def _check(self) -> None:
        """As soon as both are known."""
        if self._loaded is None or self._began is None:
            return
        begins, was_on = self._began
        round_ = self._loaded["round"]
        if round_ == begins or (was_on and round_ < begins):
            return
        if begins == 0:
            raise UsageError(
                f"{_LOAD}: the state is of round {round_}, and this job begins anew. Let it go on from its checkpoint: {_RESUME}"
            )
        raise UsageError(
            f"{_LOAD}: the state is of round {round_}, and the job goes on from round {begins}, where its checkpoint is: "
            f"{_LEAVE_OUT}. To have both of one round, save states whose 'round' is a multiple of checkpoint.every_rounds"
        )
