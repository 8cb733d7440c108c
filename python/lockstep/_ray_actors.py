"""The actors of lockstep.ray: one with the job's coordinator, and one for each worker, whose function runs in its process.

    the caller (_ray_job.py) -> Coordinator -> lockstep-coordinator (_own.py)
                             -> Worker -> the function -> lockstep.init()

A worker finds the coordinator as one of `lockstep run` does: by the environment. The secret and the initial model travel
over Ray's own channel.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ray

from lockstep import _channel, _errors, _place
from lockstep._called import failure
from lockstep._errors import JobFailed, UsageError
from lockstep._own import OwnCoordinator
from lockstep._private import PrivateFolder

ANSWER_S = 60.0  # that an actor may take for an answer
POLL_S = 1.0
_CTL_S = 20.0
_MODEL, _STATE = "model.safetensors", "state.json"
# What a job without any of this has is null.
_SUMMARY = ("train_loss", "test_loss", "test_accuracy", "rounds", "epochs", "samples_counted", "wall_seconds")


@dataclass(frozen=True)
class Outcome:
    """Of a call in an actor. `value`: the result of the call, or its Failure."""

    how: Literal["returned", "left", "failed"]  # left: a drained worker
    value: Any = None


@dataclass(frozen=True)
class Job:
    """As a worker needs to know it."""

    worker: int
    workers: int  # that it begins with
    coordinator: str
    secret: bytes
    actor: Any  # of the coordinator


@dataclass(frozen=True)
class Ended:
    """The remains of a job. `summary`: of the run directory; empty: there is none."""

    summary: dict[str, Any]
    reported: dict[str, Any]
    checkpoint: str | None
    last_line: str


def _outcome(call: Callable[[], Any]) -> Outcome:
    try:
        return Outcome("returned", call())
    except SystemExit as error:
        if error.code in (None, 0):
            return Outcome("left")
        return Outcome("failed", failure(UsageError(f"sys.exit({error.code!r}) was called")))
    except Exception as error:
        found = failure(_explained(error))
        for tell in list(_errors.last_words):
            tell(found.line)
        return Outcome("failed", found)


def _explained(error: Exception) -> Exception:
    """Replaces an exception of Ray Train, which does not know that the function is a worker."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    inner = "" if at is None else at.tb_frame.f_code.co_filename
    if isinstance(error, RuntimeError) and "/ray/train/" in inner:
        return UsageError(
            "ray.train.report, get_context and the like are for Ray's own trainers: write lockstep.ray.report(metrics), job.rank "
            "and job.size, and leave prepare_model and prepare_data_loader out"
        )
    return error


class Coordinator:
    """Has several threads: `poll` waits."""

    def __init__(self) -> None:
        self._own: OwnCoordinator | None = None
        self._run_dir = Path()
        self._said: dict[str, bytes] = {}
        self._reported: dict[int, dict[str, Any]] = {}

    def where(self) -> str:
        return str(ray.get_runtime_context().get_node_id())

    def start(self, run_dir: str, workers: int, resume: bool | Literal["auto"], options: list[str]) -> Outcome:
        """The address and the secret."""
        return _outcome(lambda: self._start(run_dir, workers, resume, options))

    def _start(self, run_dir: str, workers: int, resume: bool | Literal["auto"], options: list[str]) -> tuple[str, bytes]:
        self._run_dir = Path(run_dir)
        try:
            self._run_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"storage_path: {run_dir}: {error.strerror}") from None
        host = ray.util.get_node_ip_address()
        # For `drain`, on this host alone.
        own = self._own = OwnCoordinator(run_dir, workers, host=host, resume=resume, options=[*options, "--http", "127.0.0.1:0"])
        return own.address, Path(own.secret_file).read_bytes()

    def poll(self) -> tuple[bool, list[str]]:
        """Whether the coordinator has ended, and its warnings since the last call."""
        own = self._own
        if own is None:
            return True, []
        ended = own.has_ended(within=POLL_S)
        return ended, own.warnings()

    def put(self, name: str, data: bytes) -> None:
        self._said[name] = data

    def get(self, name: str) -> bytes | None:
        return self._said.get(name)

    def report(self, worker: int, metrics: dict[str, Any]) -> None:
        self._reported[worker] = metrics

    def drain(self, worker: int) -> str:
        """Asks the worker to leave. Empty, or why it does not."""
        command = [sys.executable, str(_place.tool("ctl")), "drain", str(worker), "--run-dir", str(self._run_dir)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_CTL_S, check=False)
        except subprocess.TimeoutExpired:
            return f"the coordinator has not answered in {_CTL_S:.0f} s"
        return "" if done.returncode == 0 else done.stderr.strip().removeprefix("ctl: ")

    def interrupt(self) -> None:
        """The job ends in good order."""
        if self._own is not None:
            self._own.interrupt()

    def ended(self) -> Ended:
        """After the end."""
        try:
            summary = json.loads((self._run_dir / "summary.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            summary = {}
        said = dict(self._reported[min(self._reported)]) if self._reported else {}
        last = "" if self._own is None else self._own.last_line()
        return Ended(summary, _metrics_of(summary) | said, self._checkpoint(summary.get("checkpoint_round")), last)

    def _checkpoint(self, round_: int | None) -> str | None:
        """A folder with the newest checkpoint alone, which stays when its files are removed for newer ones."""
        name = f"round-{round_:010d}" if round_ is not None else self._newest()
        if name is None:
            return None
        folder, files = self._run_dir / f"checkpoint_{name}", self._run_dir / "checkpoints"
        folder.mkdir(exist_ok=True)
        for source, target in ((files / f"{name}.safetensors", folder / _MODEL), (files / f"{name}.json", folder / _STATE)):
            if target.exists():
                continue
            try:
                os.link(source, target)
            except OSError:  # a file system without links
                shutil.copyfile(source, target)
        return str(folder)

    def _newest(self) -> str | None:
        return max((path.stem for path in (self._run_dir / "checkpoints").glob("round-*.json")), default=None)

    def close(self) -> None:
        """At once."""
        if self._own is not None:
            self._own.interrupt(at_once=True)
            self._own.interrupt(at_once=True)
            self._own.stop()


def _metrics_of(summary: dict[str, Any]) -> dict[str, Any]:
    found = {name: summary[name] for name in _SUMMARY if summary.get(name) is not None}
    for name, values in (summary.get("metrics") or {}).items():
        for reduction, value in values.items():
            found[name if reduction == "mean" else f"{name}_{reduction}"] = value
    return found


# --- a worker


@dataclass(frozen=True)
class _Here:
    worker: int
    coordinator: Any


here: _Here | None = None  # in the process of a worker


class _Channel:
    """Between the workers (_channel.py)."""

    restarts = True

    def __init__(self, coordinator: Any) -> None:
        self._coordinator = coordinator

    def put(self, name: str, data: bytes) -> None:
        ask(self._coordinator.put, name, data)

    def get(self, name: str) -> bytes | None:
        found: bytes | None = ask(self._coordinator.get, name)
        return found


def ask(call: Any, *arguments: Any, seconds: float = ANSWER_S) -> Any:
    """Calls a method of the coordinator's actor."""
    try:
        return ray.get(call.remote(*arguments), timeout=seconds)
    except ray.exceptions.GetTimeoutError:
        raise JobFailed(f"the actor of the job's coordinator has not answered in {seconds:.0f} s") from None
    except ray.exceptions.RayActorError:
        raise JobFailed("the actor of the job's coordinator is gone, with its node or its process") from None


class Worker:
    def where(self) -> str:
        """The id of its node."""
        return str(ray.get_runtime_context().get_node_id())

    def run(self, job: Job, called: bytes) -> Outcome:
        """The pickled (function, arguments)."""
        return _outcome(lambda: _run(job, called))


def _run(job: Job, called: bytes) -> bytes:
    """No method, because Ray puts frames of its own around those."""
    global here
    folder = PrivateFolder()
    try:
        os.environ.update(
            LOCKSTEP_COORDINATOR=job.coordinator,
            LOCKSTEP_SECRET_FILE=folder.write("secret", job.secret),
            LOCKSTEP_WORKER=str(job.worker),
            LOCKSTEP_WORKERS=str(job.workers),
            LOCKSTEP_LAUNCHER="lockstep.ray.Trainer",
        )
        _channel.given = _Channel(job.actor)
        here = _Here(job.worker, job.actor)
        function, arguments = ray.cloudpickle.loads(called)
        result = function(*arguments)
        try:
            return bytes(ray.cloudpickle.dumps(result))
        except Exception as error:  # whatever the value's own methods raise
            raise UsageError(
                f"the function returns {type(result).__name__}, which cannot go to another process ({error}): return numbers, "
                "tensors or a state_dict"
            ) from None
    finally:
        folder.remove()
