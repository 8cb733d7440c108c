"""The coordinator that a script starts for itself when nobody else has: for a job of one, or as worker 0 of several."""

import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal

from lockstep import _place
from lockstep._errors import JobFailed, UsageError

_START_S = 30.0
_READ_S = 3600.0  # a coordinator that resumes reads the checkpoint and all records first
_END_S = 10.0
_POLL_S = 0.005
_CHECKPOINT = re.compile(r"round-[0-9]+\.json")
_WARNING = re.compile(rb"\S+ coordinator warning (.*)")


# Becomes a program that ends with its parent (prctl's 1 is PR_SET_PDEATHSIG, 9 is SIGKILL), whatever becomes of that one. Not
# between fork and exec: this process has threads.
_DIE_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def _lacks_checkpoint(run_dir: Path) -> str:
    """Why there is none to go on from; empty: there is one."""
    try:
        if any(map(_CHECKPOINT.fullmatch, os.listdir(run_dir / "checkpoints"))):
            return ""
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return "holds no checkpoint (resume='auto' begins a job where there is none)"


def _written(path: Path) -> int | None:
    """When; None: it is not there, or the coordinator says what is wrong with where it would be."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


class OwnCoordinator:
    """Runs until the job's end or `stop`. Its records go to `run_dir`; None: a folder that is removed afterwards. `secret_file`: of
    the job; None: one of its own is made. `resume`: goes on from the newest checkpoint there; "auto": if there is one."""

    def __init__(
        self,
        run_dir: str | None,
        workers: int = 1,
        host: str = "127.0.0.1",
        secret_file: str | None = None,
        resume: bool | Literal["auto"] = False,
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="lockstep-"))  # for this user alone
        self.secret_file = secret_file or str(self._folder / "secret")
        if secret_file is None:
            with open(os.open(self.secret_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(secrets.token_bytes(32))
        where = Path(run_dir) if run_dir is not None else self._folder / "run"
        lacks = _lacks_checkpoint(where)
        if resume is True and lacks:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise UsageError(f"resume: {where} {lacks}")
        resume = bool(resume) and not lacks
        address = where / "coordinator.address"
        # Of an earlier job in that directory; looked at before the coordinator may have written its own.
        stale = _written(address)
        self._log = self._folder / "coordinator.log"
        with open(self._log, "wb") as log:
            # In a session of its own: the terminal's Ctrl-C is for the script, which ends the job.
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid())),
                    str(_place.program("lockstep-coordinator")),
                    *("--listen", f"[{host}]:0" if ":" in host else f"{host}:0", "--workers", str(workers)),
                    *("--run-dir", str(where)),
                    *(("--resume",) if resume else ()),
                    *("--config-from-workers", "--secret-file", self.secret_file, "--log-level", "warn"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        self._said = open(self._log, "rb")  # noqa: SIM115
        self._unfinished = b""  # of its last line
        self.address = self._wait_for_address(address, stale, self.patience(resume))

    @staticmethod
    def patience(resume: object) -> float:
        """Seconds that it may take to listen."""
        return _READ_S if resume else _START_S

    def _wait_for_address(self, path: Path, stale: int | None, bound: float) -> str:
        end = time.monotonic() + bound
        while time.monotonic() < end:
            try:
                self._process.wait(_POLL_S)
            except subprocess.TimeoutExpired:
                pass
            else:
                message = self.last_line()
                self.stop()
                raise UsageError(message or "the coordinator has ended before the job began")
            if _written(path) not in (None, stale):
                return path.read_text(encoding="utf-8").strip()
        self.stop()
        raise JobFailed("the coordinator has not begun to listen")

    def last_line(self) -> str:
        """What it has said last, without its name in front."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1].removeprefix("lockstep-coordinator: ") if lines else ""

    def warnings(self) -> list[str]:
        """What it has warned of since the last call."""
        *lines, self._unfinished = (self._unfinished + self._said.read()).split(b"\n")
        found = (_WARNING.match(line) for line in lines)
        return [warning.group(1).decode(errors="replace") for warning in found if warning]

    def finish(self) -> None:
        """After the job's end: it ends by itself."""
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            pass
        self.stop()

    def stop(self) -> None:
        """Ends it if it is still there. May be called again."""
        for end in (self._process.terminate, self._process.kill):
            if self._process.poll() is not None:
                break
            end()
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                continue
        self._said.close()
        shutil.rmtree(self._folder, ignore_errors=True)
