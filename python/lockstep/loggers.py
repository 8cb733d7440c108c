"""Loggers: one run for the whole job in TensorBoard, Weights & Biases or MLflow, whatever the number of workers.

    job = lockstep.init()
    lockstep.loggers.TensorBoard(job, "runs/tensorboard")

Each worker makes the logger, before the first batch. One worker writes; if it is lost, another goes on (_lead.py). Points stand at
the job's rounds: the loss, the numbers given to `job.log`, `learning_rate`, `samples_per_second` and `slow_workers`. A round in
which the writing worker had no work may be missing, and so may those of its last second if it is killed; the run directory has all.

A logger writes in a thread of its own: to import its library may take longer than a worker may stand still. If it fails, it says so
once, and the job goes on.
"""

import importlib
import importlib.util
import queue
import re
import threading
import time
from typing import TYPE_CHECKING, Any

from lockstep import _errors
from lockstep._errors import UsageError
from lockstep._lead import CLAIM, Lead, Point
from lockstep._metrics import Metrics
from lockstep._session import Counted

if TYPE_CHECKING:
    from lockstep._job import Job

_EVERY_S = 1.0  # points are written together


class Logger:
    """Base class. `open` is called once, before the first points are written, on the worker that writes. One thread calls all
    three."""

    _needs: tuple[str, ...] = ()  # modules, of which one is enough
    _advice = ""

    def __init__(self, job: "Job") -> None:
        if not any(importlib.util.find_spec(name) for name in self._needs):
            raise UsageError(f"lockstep.loggers.{type(self).__name__}: {self._needs[0]} is missing: {self._advice}")
        self._job = job
        self._lead: Lead | None = None
        self._rates: dict[int, float] = {}  # of the rounds of this worker's runs
        self._before: tuple[int, float] | None = None  # the round seen before, and when
        self._points: list[Point] = []  # to be written
        self._written = 0.0
        self._queue: queue.SimpleQueue[tuple[str, list[Point]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None  # that writes
        job._follow(self)

    # --- what a logger of a kind does

    def open(self, number: str, first: int) -> None:
        """`number`: the same on all workers of the job, and different for any other; `first`: the round of the first point."""
        raise NotImplementedError

    def write(self, points: list[Point], policy: str | None) -> None:
        """`policy`: where it has changed."""
        raise NotImplementedError

    def close(self) -> None:
        """Only after `open`."""

    # --- of the job

    def _begin(self, worker: int, incarnation: int) -> None:
        self._lead = Lead(worker, incarnation)

    def _claim(self, round_: int, rate: float) -> dict[str, float]:
        """With each run of this worker."""
        assert self._lead is not None
        self._rates[round_] = rate
        return self._lead.claim(round_)

    def _counted(self, counted: Counted) -> None:
        """The newest round; the same one may come again."""
        if self._lead is None or (self._before is not None and counted.round <= self._before[0]):
            return
        now = time.monotonic()
        values: dict[str, float] = dict(Metrics(counted))
        rate = self._rates.get(counted.round)
        if rate is not None:
            values["learning_rate"] = rate
        self._rates = {round_: rate for round_, rate in self._rates.items() if round_ > counted.round}
        if self._before is not None and counted.round == self._before[0] + 1 and now > self._before[1]:
            values["samples_per_second"] = counted.samples / (now - self._before[1])
        values["slow_workers"] = len(counted.slow)
        self._before = counted.round, now
        claim = {name: value for name, _, value in counted.metrics}.get(CLAIM)
        self._points += self._lead.take(Point(counted.round, values, counted.policy), claim)
        if now - self._written >= _EVERY_S:
            self._flush()

    def _end(self) -> None:
        """May be called again."""
        if self._lead is not None:
            self._points += self._lead.finish()
            self._flush()
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join()

    def _flush(self) -> None:
        points, self._points = self._points, []
        self._written = time.monotonic()
        if not points:
            return
        assert self._lead is not None
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"lockstep {type(self).__name__}", daemon=True)
            self._thread.start()
        self._queue.put((f"{self._lead.number:010x}", points))

    def _run(self) -> None:
        try:
            self._write_all()
        except Exception as error:  # whatever the library raises: no job ends for its log
            reason = (str(error).splitlines() or [""])[0]
            _errors.say(
                f"lockstep.loggers.{type(self).__name__}: {type(error).__name__}: {reason}; it writes no more, and the job goes on"
            )

    def _write_all(self) -> None:
        is_open, last = False, ""
        while (told := self._queue.get()) is not None:
            number, points = told
            if not is_open:
                self.open(number, points[0].round)
                is_open = True
            for policy in dict.fromkeys(point.policy for point in points):
                some = [point for point in points if point.policy == policy]
                self.write(some, policy if policy != last else None)
                last = policy
        self.close()


class TensorBoard(Logger):
    """Scalars in a folder, with torch.utils.tensorboard or tensorboardX. A job that resumes in the same folder replaces the points
    of the rounds that it does again."""

    _needs = ("tensorboard", "tensorboardX")
    _advice = "pip install tensorboard"

    def __init__(self, job: "Job", folder: str) -> None:
        self._folder = str(folder)
        super().__init__(job)

    def open(self, number: str, first: int) -> None:
        has = importlib.util.find_spec("tensorboard") is not None
        module = importlib.import_module("torch.utils.tensorboard" if has else "tensorboardX")
        # TensorBoard then drops what other files of the folder have of these rounds.
        self._writer = module.SummaryWriter(self._folder, purge_step=first)

    def write(self, points: list[Point], policy: str | None) -> None:
        if policy is not None:
            self._writer.add_text("policy", policy, points[0].round)
        for point in points:
            for name, value in point.values.items():
                self._writer.add_scalar(name, value, point.round)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandB(Logger):
    """A run of Weights & Biases. `init`: arguments of wandb.init, as project, name, mode, dir. With an `id` a job that resumes goes
    on in the same run. The x-axis is `round`."""

    _needs = ("wandb",)
    _advice = "pip install wandb"

    def __init__(self, job: "Job", **init: Any) -> None:
        self._init = init
        super().__init__(job)

    def open(self, number: str, first: int) -> None:
        wandb = importlib.import_module("wandb")
        given = {"id": f"lockstep-{number}", "resume": "allow", "reinit": "create_new"} | self._init
        self._made = wandb.init(**given)
        self._made.config.update({"lockstep": self._job.config}, allow_val_change=True)
        # Steps of its own never go back: W&B drops points whose step does.
        self._made.define_metric("round")
        self._made.define_metric("*", step_metric="round")

    def write(self, points: list[Point], policy: str | None) -> None:
        if policy is not None:
            self._made.summary["policy"] = policy
        for point in points:
            self._made.log({"round": point.round, **point.values})

    def close(self) -> None:
        self._made.finish()


class MLflow(Logger):
    """A run of MLflow. Without `tracking_uri` it is MLflow's own (MLFLOW_TRACKING_URI). With an `id` a job that resumes goes on in
    the same run, which then has two points of a round that was done twice."""

    _needs = ("mlflow",)
    _advice = "pip install mlflow"

    def __init__(
        self,
        job: "Job",
        *,
        experiment: str = "Default",
        name: str | None = None,
        tracking_uri: str | None = None,
        id: str | None = None,
    ) -> None:
        self._experiment, self._name, self._uri, self._id = experiment, name, tracking_uri, id
        super().__init__(job)

    def open(self, number: str, first: int) -> None:
        self._entities = importlib.import_module("mlflow.entities")
        self._client = importlib.import_module("mlflow").MlflowClient(tracking_uri=self._uri)
        found = self._client.get_experiment_by_name(self._experiment)
        experiment = found.experiment_id if found is not None else self._client.create_experiment(self._experiment)
        tag = self._id or number
        runs = self._client.search_runs([experiment], f"tags.`lockstep.id` = '{tag}'")
        if runs:  # of the worker that has led before, or of the job before
            self._run_id = runs[0].info.run_id
            self._client.set_terminated(self._run_id, "RUNNING")
            return
        made = self._client.create_run(experiment, tags={"lockstep.id": tag}, run_name=self._name)
        self._run_id = made.info.run_id
        for key, value in self._job.config.items():
            self._client.log_param(self._run_id, key, value)

    def write(self, points: list[Point], policy: str | None) -> None:
        if policy is not None:
            self._client.set_tag(self._run_id, "lockstep.policy", policy)
        now = int(time.time() * 1000)
        metrics = [
            self._entities.Metric(re.sub(r"[^\w\-. /]", "_", name), value, now, point.round)
            for point in points
            for name, value in point.values.items()
        ]
        for at in range(0, len(metrics), 1000):  # at most, of one call
            self._client.log_batch(self._run_id, metrics=metrics[at : at + 1000])

    def close(self) -> None:
        self._client.set_terminated(self._run_id)
