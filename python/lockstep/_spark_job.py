"""A job of lockstep.spark.run on the driver: its coordinator beside one Spark job after another, until one ends with the job."""

import importlib
import json
import pickle
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from pyspark import SparkContext

from lockstep import _call, _own
from lockstep._errors import JobFailed, UsageError
from lockstep._own import OwnCoordinator
from lockstep._spark_stage import Outcomes, Stage, reason_of, refuse_what_repeats
from lockstep._spark_task import LOST, Outcome, Task

PICKLER = "pyspark.cloudpickle"
LOOK_S = 0.1
_SAY_S = 10.0  # that may pass without a word
_AGAIN_S = 60.0  # until the same word
_BUSY_S = 3600.0  # for the tasks to begin, if other Spark jobs have the slots
_ORDER_S = 30.0  # for a job to end in good order, before it ends at once
_TASKS_S = 15.0  # for the functions to end after a job that has not completed; a worker may still look for its coordinator
_ONE_SIGNAL_S = 0.5  # in which two signals count as one: some programs send it to a process and to its group
_KILLED_S = 30.0  # for Spark to end the tasks of a job that was cancelled


def say(text: str) -> None:
    print(f"lockstep: {text}", flush=True)


class Interrupts:
    """Ctrl-C, counted: PySpark's own handler would cancel all Spark jobs at once, and with them the checkpoint. Another handler of
    the script stays, and ends `run` by what it raises."""

    def __init__(self) -> None:
        self.count = 0
        self._at = -_ONE_SIGNAL_S  # the last one that counts
        self._before: Any = None
        self._set = False

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            if before is signal.default_int_handler or (getattr(before, "__module__", None) or "").startswith("pyspark."):
                self._before, self._set = signal.signal(signal.SIGINT, self._on), True
        return self

    def _on(self, _: int, __: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._at >= _ONE_SIGNAL_S:
            self.count += 1
            self._at = now

    def __exit__(self, *_: object) -> None:
        if self._set:
            signal.signal(signal.SIGINT, self._before)


@dataclass(frozen=True)
class Job:
    """`called`: a broadcast of the pickled (function, args, kwargs). `where`: the run directory. `options`: of the coordinator.
    `wait_for_slots`: of the executors, some of which have been lost."""

    context: SparkContext
    called: Any
    workers: int
    where: Path
    restarts: int
    port: int
    options: Sequence[str]
    wait_for_slots: Callable[[], None]

    def run(self, resume: bool | Literal["auto"], interrupts: Interrupts) -> list[Any]:
        attempts = int(self.context.getConf().get("spark.stage.maxConsecutiveAttempts", "4") or 4)
        attempt = 1
        while True:
            own, stage, said = self._begin(resume)
            try:
                _Watch(own, stage, said, self.workers, interrupts).follow()
            finally:
                _end(own, stage)
            status = own.status
            if interrupts.count > 0:
                raise KeyboardInterrupt
            if stage.error is None or stage.cancelled:
                return self._results(stage.outcomes or said.value, status)
            reason = reason_of(stage.error)
            if status == UsageError.status:
                raise UsageError(own.last_line() or self._why())
            refuse_what_repeats(stage.error, reason)
            if attempt >= attempts:
                raise JobFailed(f"Spark has lost tasks in {attempt} attempts (spark.stage.maxConsecutiveAttempts): {reason}")
            attempt += 1
            resume = "auto"
            how = "begins anew" if _own.lacks_checkpoint(self.where) else "goes on from its last checkpoint"
            say(f"Spark has lost tasks ({reason}); the job {how}, attempt {attempt} of {attempts}")
            self.wait_for_slots()

    def _begin(self, resume: bool | Literal["auto"]) -> tuple[OwnCoordinator, Stage, Any]:
        """The coordinator, the tasks, and the accumulator of their outcomes."""
        conf = self.context.getConf()
        local = self.context._jsc.sc().isLocal()
        told = "127.0.0.1" if local else conf.get("spark.driver.host") or "127.0.0.1"
        listens = told if local else conf.get("spark.driver.bindAddress") or told
        own = OwnCoordinator(
            *(str(self.where), self.workers, listens, None, resume), port=self.port, options=self.options, log_level="info"
        )
        try:
            said = self.context.accumulator([], Outcomes())
            secret = Path(own.secret_file).read_bytes()
            address = f"{f'[{told}]' if ':' in told else told}:{own.address.rpartition(':')[2]}"
            task = Task(address, secret, self.workers, self.restarts, self.called, PICKLER, said)
            return own, Stage(self.context, self.workers, task), said
        except BaseException:
            own.stop()
            raise

    def _results(self, outcomes: list[Outcome], status: int) -> list[Any]:
        failures = {one.worker: _failure(one) for one in outcomes if one.kind == _call.ERROR}
        lost = {one.worker: one.line for one in outcomes if one.kind == LOST}
        if status == 0:  # a worker may be lost without the job
            lost |= {worker: f"worker {worker}: {failure.line}" for worker, failure in failures.items() if failure.is_of_job()}
            failures = {worker: failure for worker, failure in failures.items() if not failure.is_of_job()}
        none_joined = not failures and not (self.where / "config.ini").exists()
        if none_joined:
            raise JobFailed(lost[min(lost)] if lost else "no worker has joined the job: does the function call lockstep.init()?")
        _call.raise_first(failures, status, self._why())
        for _, line in sorted(lost.items()):
            say(f"{line}; its result is None")
        pickler = importlib.import_module(PICKLER)
        found = {one.worker: pickler.loads(one.data) for one in outcomes if one.kind == _call.RESULT and one.data}
        return [found.get(worker) for worker in range(self.workers)]

    def _why(self) -> str:
        """The job has ended as it has."""
        try:
            summary = json.loads((self.where / "summary.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return ""
        return f"the job has {summary.get('status')}: {summary.get('reason')}"


class _Watch:
    """From the start of the tasks to their end."""

    def __init__(self, own: OwnCoordinator, stage: Stage, said: Any, workers: int, interrupts: Interrupts) -> None:
        self._own, self._stage, self._said = own, stage, said
        self._workers, self._interrupts = workers, interrupts
        self._began = time.monotonic()
        self._has_begun = False  # the tasks
        self._heeded = 0  # interrupts
        self._ending: float | None = None  # since when the job is to end
        self._over: float | None = None  # since when the coordinator has ended
        self._next_word = self._began + _SAY_S

    def follow(self) -> None:
        while self._stage.is_on(LOOK_S):
            _pass_on(self._own)
            now = time.monotonic()
            if self._heeded < self._interrupts.count:
                self._interrupted(now)
            elif self._ending is None:
                self._heed_failure(now)
            self._bound_the_end(now)
            if now >= self._next_word:
                self._next_word = now + _AGAIN_S
                self._say_what_is_awaited(now)

    def _interrupted(self, now: float) -> None:
        self._heeded = self._interrupts.count
        how = "the job is to end in good order (a second interrupt ends it at once)"
        say(f"interrupted: {how}" if self._heeded == 1 else "interrupted again: the job ends at once")
        self._own.interrupt(at_once=self._heeded > 1)
        if self._heeded > 1 or not self._begun():
            self._stage.cancel()
        self._ending = self._ending or now

    def _heed_failure(self, now: float) -> None:
        errors = (one for one in self._said.value if one.kind == _call.ERROR)
        bad = next((one for one in errors if not _failure(one).is_of_job()), None)
        if bad is not None and not self._own.has_ended():
            say(f"worker {bad.worker} has failed, and the job ends: {bad.line}")
            self._own.interrupt()
            self._ending = now

    def _bound_the_end(self, now: float) -> None:
        if self._ending is not None and now - self._ending > _ORDER_S and not self._own.has_ended():
            self._own.interrupt(at_once=True)
        if self._over is None and self._own.has_ended():
            self._over = now
            self._next_word = now + _SAY_S
        completed = self._ending is None and self._own.has_ended() and self._own.status == 0
        if self._over is not None and not completed and now - self._over > _TASKS_S:
            self._stage.cancel()

    def _say_what_is_awaited(self, now: float) -> None:
        if self._over is not None:
            open_ = sorted(set(range(self._workers)) - {one.worker for one in self._said.value})
            who = ", ".join(map(str, open_))
            say(f"the job is over; waiting for the functions of worker {who} to end (Ctrl-C ends them)")
        elif not self._begun():
            if now - self._began > _BUSY_S:
                raise JobFailed(f"Spark has given the job no {self._workers} slots at once in {_BUSY_S / 60:.0f} minutes")
            say(f"waiting for Spark to give the job {self._workers} slots at once, which other Spark jobs may have")

    def _begun(self) -> bool:
        self._has_begun = self._has_begun or self._stage.has_begun()
        return self._has_begun


def _failure(outcome: Outcome) -> _call.Failure:
    failure: _call.Failure = pickle.loads(outcome.data)
    return failure


def _pass_on(own: OwnCoordinator) -> None:
    for line in own.lines():
        print(f"coordinator | {line}", flush=True)


def _end(own: OwnCoordinator, stage: Stage) -> None:
    """The tasks have ended, or are to end. So is the job: in good order, if its workers live for long enough."""
    if stage.is_on():
        stage.cancel()
    if not own.has_ended():
        own.interrupt()
    if not own.has_ended(_ORDER_S):
        own.interrupt(at_once=True)
    _pass_on(own)
    if stage.is_on(_KILLED_S):
        say(f"Spark has not ended the tasks of the job in {_KILLED_S:.0f} s; they end with their executors")
    own.finish()
