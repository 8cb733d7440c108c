"""Ray: a function as the workers of a job on a Ray cluster. docs/guides/ray.md has an example.

The job takes new nodes while it runs, and goes on without those that are lost or drained.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lockstep import _call, _errors, _settings
from lockstep._errors import Error, JobFailed, UsageError

try:
    import ray
    import ray.train
except ModuleNotFoundError as error:
    if error.name not in ("ray", "pyarrow", "pandas", "fsspec", "tensorboardX", "pydantic", "requests"):  # it is there, and broken
        raise
    _errors.end_with_one_line()
    raise UsageError(f"lockstep.ray is for Ray Train, and this Python has no {error.name}: pip install 'ray[train]'") from None

from lockstep import _ray_actors, _ray_job

_RESULTS = "~/ray_results"


@dataclass(frozen=True)
class Result:
    """As of Ray Train. `metrics`: of the job, and above them what the functions have reported. `path`: the run directory.
    `checkpoint`: a folder with model.safetensors. `return_value`: of the function on the worker of the lowest number."""

    metrics: dict[str, Any]
    checkpoint: "ray.train.Checkpoint | None"
    path: str
    error: Exception | None = None
    return_value: Any = None


def report(metrics: Mapping[str, Any]) -> None:
    """Within the function: metrics for Result.metrics. The last report counts, of the worker with the lowest number. Without a
    checkpoint: the job writes its own."""
    here = _ray_actors.here
    if here is None:
        raise UsageError("lockstep.ray.report is for the function of a lockstep.ray.Trainer")
    if not isinstance(metrics, Mapping):
        raise UsageError(f"lockstep.ray.report: {metrics!r} is no mapping of names to values")
    _ray_actors.ask(here.coordinator.report, here.worker, dict(metrics))


class Trainer:
    """`fit` calls `function(config)`, or `function()` without a config, in each worker's process; the function calls
    `lockstep.init()`. All must be able to import lockstep.

    `scaling`: the number of workers, or (least, most). The job begins with those that have a place then, and takes further ones
    as nodes come. It goes on without lost ones while the least are there. `resources`: of each worker, as {"CPU": 4, "GPU": 1}.
    `coordinator_resources`: of the coordinator, whose node the job does not outlive. `placement_strategy`: of the least workers, as
    of a placement group. `placement_timeout`: how many seconds to wait for places and processes before the job begins.

    `storage_path`: a folder that all nodes share, as for Ray Train; `name`: of the run directory in it. `resume`: go on from the
    newest checkpoint there; "auto": if there is one. `policy`, `settings`: of the job, and stronger than what the function says.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        config: Mapping[str, Any] | None = None,
        *,
        scaling: int | tuple[int, int] = 1,
        resources: Mapping[str, float] | None = None,
        coordinator_resources: Mapping[str, float] | None = None,
        placement_strategy: str = "PACK",
        placement_timeout: float = 300.0,
        policy: str | None = None,
        storage_path: str | os.PathLike[str] | None = None,
        name: str | None = None,
        resume: bool | Literal["auto"] = False,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        _errors.end_with_one_line()
        if not callable(function):
            raise UsageError(f"Trainer: {function!r} is no function: give the function itself, and its argument as config={{...}}")
        least, most = scaling if isinstance(scaling, tuple) and len(scaling) == 2 else (scaling, scaling)
        if any(isinstance(n, bool) or not isinstance(n, int) for n in (least, most)) or not 1 <= least <= most:
            raise UsageError(f"scaling: {scaling!r} is neither a number of workers nor (least, most)")
        if not placement_timeout > 0:
            raise UsageError(f"placement_timeout: {placement_timeout!r} is not a number of seconds above 0")
        if placement_strategy not in _ray_job.STRATEGIES:
            raise UsageError(f"placement_strategy: {placement_strategy!r} is none of {', '.join(_ray_job.STRATEGIES)}")
        if resume not in (False, True, "auto"):
            raise UsageError(f"resume: {resume!r} is neither True nor False nor 'auto'")
        if resume and name is None:
            raise UsageError("resume needs the name of the job to continue")
        if name is not None and (not name or os.sep in name or name.startswith(".")):
            raise UsageError(f"name: {name!r} is no name of a folder")
        where = os.fspath(_RESULTS if storage_path is None else storage_path)
        if "://" in where:
            raise UsageError(
                f"storage_path: {where} is not a folder: the coordinator writes to a file system that the nodes share, as NFS"
            )
        said = _settings.checked(settings or {})
        if policy is not None:
            said["policy.name"] = policy
        self._called = function, () if config is None else (dict(config),)
        self._resume = resume
        self._folder, self._name = Path(os.path.abspath(os.path.expanduser(where))), name
        self._wanted = _ray_job.Wanted(
            least,
            most,
            _checked("resources", resources),
            _checked("coordinator_resources", coordinator_resources),
            placement_strategy,
            placement_timeout,
            tuple(word for key, text in said.items() for word in (f"--{key}", text)),
        )

    def fit(self) -> Result:
        """Waits for the job's end. An exception in a function ends the job, and is the cause of the JobFailed raised here, with its
        traceback; the error's `result` has what the job had. An interrupt ends the job in good order."""
        _call.refuse_worker("lockstep.ray.Trainer.fit")
        name = self._name or f"lockstep_{time.strftime('%Y-%m-%d_%H-%M-%S')}_{os.getpid()}"
        path = str(self._folder / name)
        try:
            called = ray.cloudpickle.dumps(self._called)
        except Exception as error:  # whatever the values' own methods raise
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise UsageError(f"Trainer: the function and its config cannot go to other processes ({reason})") from None
        if not ray.is_initialized():
            ray.init()
        job = _ray_job.RayJob(self._wanted, path, self._resume, called)
        try:
            ended, value = job.run()
        except Error as error:
            if isinstance(error, JobFailed) and job.ended is not None:
                error.result = _result(job.ended, path, error=error)
            raise
        return _result(ended, path, value=value)


def _checked(name: str, resources: Mapping[str, float] | None) -> dict[str, float]:
    found = {"CPU": 1.0} if resources is None else dict(resources)
    for key, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise UsageError(f"{name}: {key}: {value!r} is not a number above 0")
    if not found:
        raise UsageError(f"{name}: name at least one, as {{'CPU': 1}}")
    return found


def _result(ended: _ray_actors.Ended, path: str, *, error: Exception | None = None, value: Any = None) -> Result:
    checkpoint = None if ended.checkpoint is None else ray.train.Checkpoint.from_directory(ended.checkpoint)
    return Result(ended.reported, checkpoint, path, error, value)
