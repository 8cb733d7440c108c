"""A barrier task of Spark (spark.py): one worker, as a process of its own that is started again where it dies.

Secret, function and result travel in memory of the kernel (memfd) that ends with the last process that has it. So a task that Spark
kills leaves no file behind.
"""

import dataclasses
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import IO, Any

from lockstep import _called
from lockstep._call import ERROR, IMPORT, PACKAGE, RESULT, Call, Failure
from lockstep._errors import TryAgain, UsageError

LOST = "lost"
WAITS_S = (1.0, 10.0, 20.0, 40.0, 60.0)  # before a worker is started again, as tools/launch has it
_TRY_AGAIN_S = 1.0
_NO_PLACE_S = 600.0  # that the job may have no place for a worker
_LOOK_S = 0.5
_PROBE_S = 5.0
_SHOWN = 5  # of the last lines of a worker that has ended without a word

# Ends with its task at once, also where Spark kills that (prctl's 1 is PR_SET_PDEATHSIG).
_PROGRAM = """
import ctypes, os, signal
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    from lockstep import _spark_task
    sys.exit(_spark_task.main(int(sys.argv[2]), int(sys.argv[3])))
"""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Of a worker: RESULT with the pickled value, ERROR with the Failure, or LOST with the reason in `line`."""

    worker: int
    kind: str
    line: str = ""
    data: bytes = b""

    def in_short(self) -> "Outcome":
        """Without what may be large."""
        return dataclasses.replace(self, data=b"") if self.kind == RESULT else self


@dataclasses.dataclass(frozen=True)
class Task:
    """Sent to each barrier task. `function`: a broadcast of the pickled (function, args, kwargs). `said`: an
    accumulator, by which the driver hears of an outcome before the stage ends."""

    coordinator: str
    secret: bytes
    workers: int
    restarts: int
    function: Any
    pickler: str
    said: Any

    def __call__(self, _: Iterator[Any]) -> Iterator[Outcome]:
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        gpu = context.resources().get("gpu")
        outcome = _Worker(self, context.partitionId(), None if gpu is None else gpu.addresses).outcome()
        self.said.add([outcome.in_short()])
        yield outcome


class _Worker:
    """On the executor. A parent that goes ends this process (`Gone`)."""

    def __init__(self, task: Task, number: int, gpus: list[str] | None) -> None:
        self._task, self._number, self._parent = task, number, os.getppid()
        self._environment = {
            **os.environ,
            "LOCKSTEP_COORDINATOR": task.coordinator,
            "LOCKSTEP_WORKER": str(number),
            "LOCKSTEP_WORKERS": str(task.workers),
            "LOCKSTEP_LAUNCHER": "Spark",
        }
        if gpus is not None:
            self._environment.setdefault("CUDA_VISIBLE_DEVICES", ",".join(gpus))
        self._last: deque[str] = deque(maxlen=_SHOWN)

    def outcome(self) -> Outcome:
        restarts, short, no_place_since = self._task.restarts, 0, None
        while True:
            began = time.monotonic()
            status, kind, data = self._run()
            now = time.monotonic()
            failure: Failure | None = pickle.loads(data) if kind == ERROR else None
            if kind == RESULT or (kind is None and status == 0):
                return Outcome(self._number, RESULT, data=data)
            if failure is not None and not failure.is_of_job():
                return Outcome(self._number, ERROR, failure.line, data)
            line = self._described(status) if failure is None else failure.line
            if failure is None and status == UsageError.status:
                told = Failure(UsageError.status, line, "", time.time())
                return Outcome(self._number, ERROR, line, pickle.dumps(told))
            # The job has ended if its coordinator has, and nobody waits for this worker.
            if restarts == 0 or not self._job_is_on():
                return Outcome(self._number, LOST if failure is None else ERROR, line, data)
            if failure is not None and failure.status == TryAgain.status:
                no_place_since = no_place_since or now
                if now - no_place_since < _NO_PLACE_S:
                    self._wait(_TRY_AGAIN_S)
                    continue
            no_place_since = None
            restarts -= 1
            short = short + 1 if now - began < WAITS_S[-1] else 0
            wait = WAITS_S[min(max(short - 1, 0), len(WAITS_S) - 1)]
            self._say(f"{line}; restarting it in {wait:g} s ({restarts} restart{'' if restarts == 1 else 's'} left)")
            self._wait(wait)

    def _run(self) -> tuple[int, str | None, bytes]:
        """One process: its status, and the kind of its answer, if there is one."""
        call = Call({"sys_path": sys.path, "dir": os.getcwd()}, self._task.function.value, self._task.pickler)
        memory = [_memory("secret", self._task.secret), _memory("call", pickle.dumps(call)), _memory("answer", b"")]
        secret, called, answer = memory
        try:
            process = subprocess.Popen(
                [sys.executable, "-u", "-c", IMPORT + _PROGRAM, PACKAGE, str(os.getpid()), str(called), str(answer)],
                env={**self._environment, "LOCKSTEP_SECRET_FILE": f"/proc/self/fd/{secret}"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=memory,
            )
            try:
                status = self._followed(process)
            finally:
                process.kill()
                process.wait()
            found = _content(answer)
        finally:
            for one in memory:
                os.close(one)
        kind, _, data = found.partition(b"\n")
        return status, kind.decode() or None, data

    def _followed(self, process: "subprocess.Popen[bytes]") -> int:
        assert process.stdout is not None
        self._last.clear()
        reader = threading.Thread(target=self._pass_on, args=(process.stdout,), daemon=True)
        reader.start()
        while True:
            try:
                status = process.wait(_LOOK_S)
                break
            except subprocess.TimeoutExpired:
                self._look_for_parent()
        reader.join(_PROBE_S)  # what the worker has started may still hold its output
        return status

    def _pass_on(self, output: IO[bytes]) -> None:
        for line in output:
            text = line.decode(errors="replace").rstrip("\n")
            self._last.append(text)
            self._write(text)

    def _say(self, text: str) -> None:
        self._write(f"lockstep: {text}")

    def _write(self, text: str) -> None:
        """To the executor's log."""
        print(f"worker {self._number} | {text}\n", end="", file=sys.stderr, flush=True)

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_S))
            self._look_for_parent()

    def _look_for_parent(self) -> None:
        """Spark's own process that has started this one."""
        if os.getppid() != self._parent:
            raise SystemExit(1)

    def _described(self, status: int) -> str:
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"has ended with status {status}"
        said = f": {' / '.join(self._last)}" if status > 0 and self._last else ""
        return f"worker {self._number} {how}{said}"

    def _job_is_on(self) -> bool:
        """A coordinator that has ended is refused by its host's kernel."""
        host, _, port = self._task.coordinator.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _PROBE_S).close()
        except OSError:
            return False
        return True


def _memory(name: str, data: bytes) -> int:
    """A file of this user alone, without a name in a folder."""
    file = os.memfd_create(f"lockstep-{name}")
    os.fchmod(file, 0o600)
    with open(file, "wb", closefd=False) as writer:
        writer.write(data)
    return file


def _content(file: int) -> bytes:
    with open(file, "rb", closefd=False) as reader:
        reader.seek(0)
        return reader.read()


def main(called: int, answer: int) -> int:
    """The worker's process."""
    call: Call = pickle.loads(_content(called))
    kind, data, status = _called.answered(call, os.environ["LOCKSTEP_WORKER"])
    with open(answer, "wb", closefd=False) as writer:
        writer.write(kind.encode() + b"\n" + data)
    if kind == ERROR:
        _called.tell(data)
    return status
