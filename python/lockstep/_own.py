"""The coordinator that a script starts for itself when nobody else has: for a job of one, or as worker 0 of several."""

import fcntl
import os
import queue
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from lockstep import _place
from lockstep._errors import JobFailed, UsageError, say
from lockstep._private import PrivateFolder

_START_S = 30.0
_READ_S = 3600.0  # a coordinator that resumes reads the checkpoint and all records first
_SAY_S = 10.0  # that may pass without a word at the end
_POLL_S = 0.005
_LOOK_S = 1.0
_RESTARTS = 3  # of a coordinator that was killed, as tools/launch has it
_CHECKPOINT = re.compile(r"round-[0-9]+\.json")
_NO_CHECKPOINT = "holds no checkpoint (resume='auto' begins a job where there is none)"
_RECORDS = ("rounds.jsonl", "evaluations.jsonl", "timeline.json", "journal", "summary.json", "config.ini")
_LOGGED = re.compile(r"\S+ coordinator \w+ ")
_WARNING = re.compile(r"\S+ coordinator warning (.*)")


# Becomes a program that ends with its parent (prctl's 1 is PR_SET_PDEATHSIG, 9 is SIGKILL), whatever becomes of that one. Not
# between fork and exec: this process has threads. SIGTERM stays blocked: a service manager sends it to all processes at once, and
# a coordinator that got it, and then SIGINT of the script that heeds the same, would take that for the second signal. SIGINT is how
# the job is ended; Ray's processes have it blocked.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def lacks_checkpoint(run_dir: Path) -> str:
    """Why there is none to go on from; empty: there is one, or workers have saved what the coordinator makes one of."""
    try:
        if "rescue.safetensors" in os.listdir(run_dir):
            return ""
        if any(map(_CHECKPOINT.fullmatch, os.listdir(run_dir / "checkpoints"))):
            return ""
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return _NO_CHECKPOINT


def set_aside(run_dir: Path) -> None:
    """Where resume is "auto": records of a job that has ended without a checkpoint make room for the job that begins anew. A
    directory in which a coordinator is at work is left alone; the next one says so."""
    if not os.path.exists(run_dir / "rounds.jsonl") or lacks_checkpoint(run_dir) != _NO_CHECKPOINT:
        return
    try:
        lock = os.open(run_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            number = 1 + sum(1 for name in os.listdir(run_dir) if name.startswith("before-"))
            aside = run_dir / f"before-{number}"
            aside.mkdir()
            for name in _RECORDS:
                if (run_dir / name).exists():
                    (run_dir / name).rename(aside / name)
        finally:
            os.close(lock)
    except BlockingIOError:
        return
    except OSError as error:
        raise UsageError(f"resume='auto': {run_dir}: the records of the job before cannot be moved: {error.strerror}") from None
    say(f"the job before in {run_dir} wrote no checkpoint: its records are in {aside} now, and the job begins anew")


def _written(path: Path) -> int | None:
    """When the file was written; None: it is not there, or the coordinator reports the fault of its place."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


class OwnCoordinator:
    """Runs until the job's end or `stop`. Its records go to `run_dir`; None: a folder that is removed afterwards. `secret_file`: of
    the job; None: one of its own is made. `resume`: goes on from the newest checkpoint there; "auto": if there is one. `options`:
    further ones of lockstep-coordinator.

    A coordinator that is killed is started again, three times at most. The workers keep their parameters and find it at the address
    of the one before. Its journal in the run directory tells it where the job is.

    To the kernel the parent that a process ends with is a thread, and the one that has called job.prepare may end long before the
    job. So one thread starts the coordinators and stays as long as there is one."""

    def __init__(
        self,
        run_dir: str | None,
        workers: int = 1,
        host: str = "127.0.0.1",
        secret_file: str | None = None,
        resume: bool | Literal["auto"] = False,
        *,
        port: int = 0,
        options: Sequence[str] = (),
        log_level: str = "warn",
    ) -> None:
        self._pid = os.getpid()
        self._folder = PrivateFolder()
        self.secret_file = secret_file or self._folder.write("secret", secrets.token_bytes(32))
        where = Path(run_dir) if run_dir is not None else self._folder.path / "run"
        lacks = lacks_checkpoint(where)
        if resume is True and lacks:
            self._folder.remove()
            raise UsageError(f"resume: {where} {lacks}")
        if resume == "auto":
            set_aside(where)
        resume = bool(resume) and not lacks
        self._where = where
        address = where / "coordinator.address"
        # Of an earlier job in that directory; looked at before the coordinator may have written its own.
        stale = _written(address)
        self._log = self._folder.path / "coordinator.log"
        self._over = threading.Event()
        self._ended = threading.Event()  # and no other one follows
        self._changing = threading.RLock()  # guards the next three; a handler of a signal may run in the thread that has it
        self._interrupted = False
        self._restarts = _RESTARTS  # that are left
        self.address = ""  # once it listens
        self._command = [
            *(sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid())),
            str(_place.program("lockstep-coordinator")),
            *("--workers", str(workers), "--run-dir", str(where)),
            *("--config-from-workers", "--secret-file", self.secret_file, "--log-level", log_level),
            *options,
        ]
        listen = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._process = self._start("--listen", listen, *(("--resume",) if resume else ()))
        self._said = open(self._log, "rb")  # noqa: SIM115
        self._unfinished = b""  # of its last line
        listening = self._wait_for_address(address, stale, self.patience(resume))
        with self._changing:
            self.address = listening

    @staticmethod
    def patience(resume: object) -> float:
        """Seconds that it may take to listen."""
        return _READ_S if resume else _START_S

    def _launch(self, *arguments: str) -> "subprocess.Popen[bytes]":
        with open(self._log, "ab") as file:
            # In a session of its own: the terminal's Ctrl-C is for the script, which ends the job.
            nothing = subprocess.DEVNULL
            return subprocess.Popen(
                [*self._command, *arguments], stdin=nothing, stdout=nothing, stderr=file, start_new_session=True
            )

    def _start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """The first one."""
        outcome: queue.SimpleQueue[subprocess.Popen[bytes] | Exception] = queue.SimpleQueue()

        def look_after() -> None:
            try:
                process = self._launch(*arguments)
            except Exception as error:
                self._ended.set()
                outcome.put(error)
                return
            outcome.put(process)
            while True:
                process.wait()
                try:
                    following = self._next_after(process)
                except OSError as error:
                    say(f"the coordinator cannot be started again: {error.strerror}")
                    following = None
                if following is None:
                    break
                process = following
            self._ended.set()

        threading.Thread(target=look_after, name="lockstep coordinator", daemon=True).start()
        try:
            process = outcome.get()
        except BaseException:
            self._over.set()
            started = outcome.get()
            if not isinstance(started, Exception):
                started.kill()
            raise
        if isinstance(process, Exception):
            raise process
        return process

    def _next_after(self, gone: "subprocess.Popen[bytes]") -> "subprocess.Popen[bytes] | None":
        """Starts another one in place of a coordinator that was killed. None: it has ended by itself, or nobody wants another."""
        with self._changing:
            status = gone.returncode
            if status >= 0 or not self.address or self._interrupted or self._over.is_set():
                return None
            if self._restarts == 0:
                (self._where / "coordinator.gone").touch()  # workers look for it no longer
                return None
            self._restarts -= 1
            left = self._restarts
            self._process = self._launch("--listen", self.address, "--reattach")
        say(
            f"the coordinator was ended by {signal.Signals(-status).name}; restarting it ({left} restart{'' if left == 1 else 's'} "
            "left), the workers keep their parameters"
        )
        return self._process

    def _wait_for_address(self, path: Path, stale: int | None, bound: float) -> str:
        end = time.monotonic() + bound
        while time.monotonic() < end:
            if self._ended.wait(_POLL_S):
                message = self.last_line()
                self._end()
                raise UsageError(message or "the coordinator has ended before the job began")
            if _written(path) not in (None, stale):
                return path.read_text(encoding="utf-8").strip()
        self._end()
        raise JobFailed("the coordinator has not begun to listen")

    def last_line(self) -> str:
        """The coordinator's last line, without its name in front; empty: the last line is one of its log, not its last message."""
        try:
            lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:  # somebody cleans up the folder for temporary files
            return ""
        last = lines[-1] if lines else ""
        return "" if _LOGGED.match(last) else last.removeprefix("lockstep-coordinator: ")

    def lines(self) -> list[str]:
        """New ones of the coordinator."""
        *lines, self._unfinished = (self._unfinished + self._said.read()).split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def warnings(self) -> list[str]:
        """Those of `lines`."""
        return [warning.group(1) for line in self.lines() if (warning := _WARNING.match(line))]

    def has_ended(self, within: float = 0.0) -> bool:
        """`within`: so many seconds from now. Any thread."""
        return self._ended.wait(within)

    @property
    def status(self) -> int:
        """Of the coordinator that has ended."""
        return self._process.wait()

    def interrupt(self, *, at_once: bool = False) -> None:
        """Ends the job in good order, with a checkpoint, or at once. Also within a handler of a signal."""
        if os.getpid() != self._pid:
            return
        with self._changing:
            if at_once or not self._interrupted:
                self._interrupted = True
                self._process.send_signal(signal.SIGINT)

    def finish(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """It ends by itself, with the job: waits for that, until Ctrl-C. `meanwhile` is called now and then."""
        if os.getpid() != self._pid:  # to a forked child it is its parent's
            return
        begun, said = time.monotonic(), False
        try:
            while not self._ended.wait(_LOOK_S):
                meanwhile()
                if not said and time.monotonic() - begun > _SAY_S:
                    said = True
                    say("waiting for the job's coordinator, which ends with the job's other workers; Ctrl-C ends the job")
        finally:
            self._end()

    def stop(self) -> None:
        """Ends the job if it is still on, in good order, and with it the coordinator. May be called again."""
        self.interrupt()
        self.finish()

    def _end(self) -> None:
        """At once. May be called again."""
        with self._changing:
            self._over.set()
        if self._process.poll() is None:
            self._process.kill()
        self._ended.wait()
        self._said.close()
        self._folder.remove()
