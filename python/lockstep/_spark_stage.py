"""A Spark job of one barrier stage, and why it has ended."""

import contextlib
import os
import re
import secrets
import sys

from pyspark import AccumulatorParam, InheritableThread, SparkContext

from lockstep._errors import JobFailed, UsageError
from lockstep._spark_task import Outcome, Task

_CAUSE = re.compile(r"Most recent failure reason: [^\n]*\n(?:org\.apache\.spark\.)?([^\n]+)")


class Outcomes(AccumulatorParam):  # an accumulator's value is the outcomes so far
    def zero(self, value: list[Outcome]) -> list[Outcome]:
        return []

    def addInPlace(self, value1: list[Outcome], value2: list[Outcome]) -> list[Outcome]:  # Spark's name
        return value1 + value2


class Stage:
    """A Spark job of one barrier stage, which a thread waits for."""

    def __init__(self, context: SparkContext, workers: int, task: Task) -> None:
        self._context = context
        self._tag = f"lockstep-{secrets.token_hex(8)}"
        self._workers, self._task = workers, task
        self._stage: int | None = None
        self._group = context.getLocalProperty("spark.jobGroup.id")
        self.outcomes: list[Outcome] | None = None
        self.cancelled = False  # from here
        self.error: Exception | None = None
        self._thread = InheritableThread(target=self._run, name="lockstep spark job", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        context = self._context
        context.addJobTag(self._tag)
        context.setLocalProperty("callSite.short", f"lockstep.spark.run {self._tag}")
        try:
            barrier = context.parallelize(range(self._workers), self._workers).barrier().mapPartitions(self._task)
            self.outcomes = context.runJob(barrier, list)
        except Exception as error:  # Spark's, of any kind
            self.error = error
        finally:
            context.setLocalProperty("callSite.short", None)  # where threads share the properties
            context.removeJobTag(self._tag)

    def is_on(self, seconds: float = 0.0) -> bool:
        self._thread.join(seconds)
        return bool(self._thread.is_alive())

    def cancel(self) -> None:
        """Spark ends the tasks' processes in a few seconds."""
        self.cancelled = True
        with contextlib.suppress(Exception):  # of a SparkContext that has stopped, and with it all jobs
            self._context.cancelJobsWithTag(self._tag)

    def has_begun(self) -> bool:
        """Its tasks run, or did."""
        tracker = self._context.statusTracker()
        if self._stage is None:
            for job in sorted(tracker.getJobIdsForGroup(self._group), reverse=True):
                for stage in (found.stageIds if (found := tracker.getJobInfo(job)) else ()):
                    info = tracker.getStageInfo(stage)
                    if info is not None and self._tag in info.name:
                        self._stage = stage
        if self._stage is None:
            return False
        info = tracker.getStageInfo(self._stage)
        return info is not None and info.numActiveTasks + info.numCompletedTasks + info.numFailedTasks > 0


def _text(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    return str(error) if java is None else str(java.getMessage())


def reason_of(error: Exception) -> str:
    """Spark's, in one line."""
    text = _text(error)
    found = _CAUSE.search(text)
    line = found[1] if found else next(iter(text.splitlines()), type(error).__name__)
    return line.strip().rstrip(":")


def refuse_what_repeats(error: Exception, reason: str) -> None:
    """Another attempt would end alike."""
    text = _text(error)
    if "No module named 'lockstep" in text:
        raise UsageError(
            f"the Python of the executors has no lockstep: install the wheel there, in the Python that PYSPARK_PYTHON names "
            f"({os.environ.get('PYSPARK_PYTHON', sys.executable)} here)"
        )
    if "cancelled" in reason or "SparkContext was shut down" in text:
        raise JobFailed(f"the Spark job was cancelled: {reason}")
    if "PythonException" in text:
        last = [line.strip() for line in text.splitlines() if re.match(r"\w[\w.]*(Error|Exception): ", line.strip())]
        raise JobFailed(f"a task has failed: {last[-1] if last else reason}")
