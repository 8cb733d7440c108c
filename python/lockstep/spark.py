"""Apache Spark: `run` calls a function as the workers of a job, in barrier tasks of the executors. docs/guides/spark.md has an
example.

    run, on the driver -> the coordinator, and a Spark job (_spark_job.py, _spark_stage.py)
                       -> a task for each worker (_spark_task.py) -> the worker's process

A worker that dies is started again by its task, and the job goes on meanwhile. If a task is lost with its executor, Spark ends all
tasks of the stage. It does not begin a barrier stage again whose results go to the driver. So `run` does, from the last checkpoint.
"""

import contextlib
import importlib
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from lockstep import _errors, _settings
from lockstep._errors import JobFailed, UsageError
from lockstep._private import PrivateFolder

try:
    import pyspark
except ModuleNotFoundError as error:
    if error.name != "pyspark":  # it is there, and broken
        raise
    _errors.end_with_one_line()
    raise UsageError("lockstep.spark is for Apache Spark, and this Python has no pyspark: pip install pyspark") from None

from pyspark import SparkContext

from lockstep._spark_job import LOOK_S, PICKLER, Interrupts, Job, say
from lockstep._spark_rows import Rows, parquet, rows

__all__ = ["Rows", "parquet", "rows", "run"]

_FORBIDDEN = re.compile(r"--(listen|workers|run-dir|resume|reattach|standby|config-from-workers|secret-file|log-level)\b")


def run(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    num_workers: int,
    policy: str | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    resume: bool | Literal["auto"] = False,
    settings: Mapping[str, object] | None = None,
    restarts: int = 3,
    port: int = 0,
    options: Sequence[str] = (),
) -> list[Any]:
    """Calls `function(*args, **kwargs)` in `num_workers` processes of a job, each a child of one barrier task of the active
    SparkContext, and waits for the job's end. The function calls `lockstep.init()`. Returns what the functions have returned, by
    worker; None for a worker that was lost.

    The coordinator runs on the driver's host, at spark.driver.host (spark.driver.bindAddress) and `port`; 0: a free one. The output
    of the workers goes to the executors' logs, the coordinator's appears here.

    A worker that dies is started again by its task, `restarts` times. If an executor is lost, the job goes on from its last
    checkpoint, with new tasks, in up to spark.stage.maxConsecutiveAttempts (4) attempts in all. An exception in a function ends the
    job, and is the cause of the JobFailed raised here. An interrupt ends the job in good order, a second one at once.

    `policy`, `run_dir` (on the driver's host), `resume`, `settings`: as of `lockstep.launch`. `options`: further ones of
    lockstep-coordinator, as ["--http", "127.0.0.1:8080"].
    """
    _errors.end_with_one_line()
    if not callable(function):
        raise UsageError(f"spark.run: {function!r} is no function: give the function itself, and its arguments as args=(...)")
    _check_number("num_workers", num_workers, 1)
    _check_number("restarts", restarts, 0)
    _check_number("port", port, 0)
    if resume not in (False, True, "auto"):
        raise UsageError(f"resume: {resume!r} is neither True nor False nor 'auto'")
    if resume and run_dir is None:
        raise UsageError("resume needs the run_dir of the job to continue")
    if isinstance(options, str):
        raise UsageError(f"spark.run: options is a list of words, as {options.split()}")
    if taken := next((word for word in options if _FORBIDDEN.match(word)), ""):
        raise UsageError(f"spark.run: options: {taken} is spark.run's own")
    said = _settings.checked(settings or {}) | ({} if policy is None else {"policy.name": policy})
    context = _context()
    called = _pickled(function, tuple(args), dict(kwargs or {}))
    if (slots := _slots(context, num_workers, 0.0 if _is_local(context) else _patience(context))) < num_workers:
        raise UsageError(
            f"spark.run: num_workers={num_workers}, and Spark has {slots} slot{'' if slots == 1 else 's'} for tasks (executors x "
            "spark.executor.cores / spark.task.cpus): start more executors, or ask for fewer workers"
        )
    folder = PrivateFolder()
    broadcast = context.broadcast(called)
    job = Job(
        context=context,
        called=broadcast,
        workers=num_workers,
        where=Path(run_dir) if run_dir is not None else folder.path / "run",
        restarts=restarts,
        port=port,
        options=[*(f"--{key}={text}" for key, text in said.items()), *options],
        wait_for_slots=lambda: _wait_again(context, num_workers),
    )
    try:
        with Interrupts() as interrupts:
            return job.run(resume, interrupts)
    finally:
        with contextlib.suppress(Exception):  # of a SparkContext that has stopped
            broadcast.destroy()
        folder.remove()


def _check_number(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"spark.run: {name}={value!r} is not a whole number from {least} on")


def _context() -> SparkContext:
    if "LOCKSTEP_COORDINATOR" in os.environ:
        raise UsageError("spark.run is called in a worker of a job (LOCKSTEP_COORDINATOR is set): call lockstep.init() there")
    context = SparkContext._active_spark_context
    if context is None:
        connected = "SPARK_REMOTE" in os.environ or "SPARK_CONNECT_MODE_ENABLED" in os.environ
        raise UsageError(
            "spark.run needs the driver's SparkContext, which Spark Connect lacks: run the script with spark-submit"
            if connected
            else "spark.run: there is no SparkContext yet: begin with SparkSession.builder.getOrCreate()"
        )
    if not hasattr(context, "addJobTag"):
        raise UsageError(f"lockstep.spark needs Spark 3.5 or later, and this is {pyspark.__version__}")
    if context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true":
        raise UsageError(
            "spark.run: Spark has no barrier tasks with dynamic allocation: set spark.dynamicAllocation.enabled=false, and the "
            "number of executors"
        )
    return context


def _pickled(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    try:
        return bytes(importlib.import_module(PICKLER).dumps((function, args, kwargs)))
    except Exception as error:  # whatever the values' own methods raise
        name = getattr(function, "__qualname__", repr(function))
        line = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UsageError(f"spark.run: {name} and its arguments cannot go to other processes ({line})") from None


def _slots(context: SparkContext, wanted: int, patience: float) -> int:
    """The slots for tasks, once there are as many as `wanted` or after so many seconds."""
    java = context._jsc.sc()
    began, said = time.monotonic(), False
    while True:
        slots = int(java.maxNumConcurrentTasks(java.resourceProfileManager().defaultResourceProfile()))
        waited = time.monotonic() - began
        if slots >= wanted or waited >= patience:
            return slots
        if not said and waited >= 1:
            said = True
            say(f"waiting for executors, {patience:g} s at most: {wanted} workers want as many slots, and there are {slots}")
        time.sleep(LOOK_S)


def _is_local(context: SparkContext) -> bool:
    return bool(context._jsc.sc().isLocal())


def _patience(context: SparkContext) -> float:
    """For executors that have just been started, in seconds: as long as Spark itself waits."""
    return _seconds(context, "spark.scheduler.maxRegisteredResourcesWaitingTime", "30s")


def _wait_again(context: SparkContext, wanted: int) -> None:
    """For other executors in place of lost ones: as long as Spark tries to begin a barrier stage."""
    tries = int(context.getConf().get("spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures", "40") or 40)
    patience = tries * _seconds(context, "spark.scheduler.barrier.maxConcurrentTasksCheck.interval", "15s")
    if (slots := _slots(context, wanted, patience)) < wanted:
        raise JobFailed(f"no executor has replaced a lost one in {patience:g} s: there are {slots} slots for {wanted} workers")


def _seconds(context: SparkContext, key: str, default: str) -> float:
    utilities = context._jvm.org.apache.spark.network.util.JavaUtils
    return float(utilities.timeStringAsSec(context.getConf().get(key, default) or default))
