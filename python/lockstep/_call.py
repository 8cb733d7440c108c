"""launch: a function as the workers of a job, from a notebook or a script.

    the caller -> lockstep run (_cli.call) -> the workers (_called.py)

The function, its arguments and its results travel by files in a private folder. A worker imports the caller's script under another
name, as 'spawn' of multiprocessing does, and finds the function there. A notebook has no file to import: cloudpickle sends what the
cells define.
"""

import importlib
import io
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import current_process, spawn
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Literal

from lockstep import _errors, _launchers, _own, _settings
from lockstep._errors import JobFailed, TryAgain, UsageError, WorkerTraceback
from lockstep._private import PrivateFolder

CALL, RESULT, ERROR = "call", "result-{}", "error-{}"
_KILLED_S = 20.0  # that the job may take to end after it was told to do so at once
_PICKLERS = ("cloudpickle", "joblib.externals.cloudpickle")  # scikit-learn brings the second one

# The package from where the caller has it, and nothing from the working directory in its place.
IMPORT = """
import sys
package = sys.argv.pop(1)
sys.path[:] = [path for path in sys.path if path]
if package not in sys.path:
    sys.path.insert(0, package)
"""
PACKAGE = str(Path(__file__).resolve().parent.parent)

# Ends in good order with the caller, also where that is killed (prctl's 1 is PR_SET_PDEATHSIG).
_PROGRAM = """
import ctypes, os, signal
ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    from lockstep import _cli
    sys.exit(_cli.call(sys.argv[2], sys.argv[3:]))
"""


@dataclass(frozen=True)
class Call:
    """As the workers read it. `prepared`: the caller's process, as multiprocessing describes it to a process that it spawns.
    `function`: the pickled (function, args, kwargs). `pickler`: the module that reads and writes values; plain pickle without."""

    prepared: dict[str, Any]
    function: bytes
    pickler: str


@dataclass(frozen=True)
class Failure:
    """Of a worker's function."""

    status: int  # of our errors; 0: the exception is another one
    line: str
    trace: str
    at: float  # by the clock of its host

    def is_of_job(self) -> bool:
        """The job has failed or has ended without this worker."""
        return self.status in (JobFailed.status, TryAgain.status)


def launch(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    workers: int = 4,
    policy: str | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    resume: bool | Literal["auto"] = False,
    settings: Mapping[str, object] | None = None,
    options: Sequence[str] = (),
) -> list[Any]:
    """Calls `function(*args, **kwargs)` in each of `workers` new processes of a job on this machine, and waits for its end. The
    function calls `lockstep.init()`. Returns what the functions have returned, by worker; None for a worker that was lost.

    In a notebook the function may stand in a cell, with cloudpickle installed. In a script put the call within
    `if __name__ == "__main__":`, and the function at the top level.

    The output of the workers appears with a prefix. An interrupt ends the job in good order; a second one ends it at once. An
    exception in a function ends the job, and is the cause of the JobFailed raised here.

    `policy`, `run_dir`, `settings`: of the job, and stronger than what the function gives to `lockstep.init`. `resume`: continue
    from the newest checkpoint in `run_dir`; "auto": if there is one. `options`: further ones of `lockstep run`, as ["--http",
    "127.0.0.1:8080"].
    """
    _errors.end_with_one_line()
    refuse_worker()
    if not callable(function):
        raise UsageError(f"launch: {function!r} is no function: give the function itself, and its arguments as args=(...)")
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise UsageError(f"launch: workers={workers!r} is not a whole number from 1 on")
    if resume not in (False, True, "auto"):
        raise UsageError(f"resume: {resume!r} is neither True nor False nor 'auto'")
    if resume and run_dir is None:
        raise UsageError("resume needs the run_dir of the job to continue")
    if isinstance(options, str):
        raise UsageError(f"launch: options is a list of words, as {options.split()}")
    said = _settings.checked(settings or {})
    words = ["-n", str(workers), *(word for key, text in said.items() for word in ("--set", f"{key}={text}"))]
    words += [] if policy is None else ["--policy", policy]
    words += [] if run_dir is None else ["--run-dir", os.fspath(run_dir)]
    if resume == "auto":
        _own.set_aside(Path(run_dir or ""))
    if resume is True or (resume and not _own.lacks_checkpoint(Path(run_dir or ""))):
        words.append("--resume")
    call = _pickled(function, tuple(args), dict(kwargs or {}))
    folder = PrivateFolder()
    try:
        folder.write(CALL, pickle.dumps(call))
        status, last = _run(folder, [*words, *options])
        failures = {worker: _read(folder, ERROR.format(worker)) for worker in range(workers)}
        found = {worker: pickle.loads(data) for worker, data in failures.items() if data is not None}
        # A worker may be lost without the job.
        raise_first({worker: failure for worker, failure in found.items() if status != 0 or not failure.is_of_job()}, status, last)
        pickler = importlib.import_module(call.pickler)
        results = [_read(folder, RESULT.format(worker)) for worker in range(workers)]
        return [None if data is None else pickler.loads(data) for data in results]
    finally:
        folder.remove()


def refuse_worker(name: str = "lockstep.launch") -> None:
    if getattr(current_process(), "_inheriting", False):
        raise UsageError(f"{name} runs again in a worker, which imports the script: put it within if __name__ == '__main__':")
    if "LOCKSTEP_COORDINATOR" in os.environ:
        raise UsageError(f"{name} is called in a worker of a job (LOCKSTEP_COORDINATOR is set): call lockstep.init() there")
    if launched := _launchers.launched(os.environ):
        raise UsageError(
            f"{name} starts the workers itself, and {launched.launcher} has started {launched.workers}: start the script "
            f"with python, or call lockstep.init() in place of {name}"
        )


# --- the function's way to the workers


class _Defined(Exception):
    """By the cells of a notebook."""


class _Pickler(pickle.Pickler):
    """Takes what a worker can import."""

    def reducer_override(self, value: Any) -> Any:
        named = hasattr(value, "__qualname__") and not isinstance(value, ModuleType)
        if named and getattr(value, "__module__", None) == "__main__" and not _has_file():
            raise _Defined(value.__qualname__)
        return NotImplemented


def _has_file() -> bool:
    """Of the caller's program, which a worker can import."""
    main = sys.modules["__main__"]
    return getattr(main, "__spec__", None) is not None or os.path.isfile(getattr(main, "__file__", None) or "")


def _pickled(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    prepared = {key: value for key, value in spawn.get_preparation_data("MainProcess").items() if key != "authkey"}
    if not _has_file():
        prepared.pop("init_main_from_path", None)
    name = getattr(function, "__qualname__", repr(function))
    called = function, args, kwargs
    try:
        if not _has_file() and (pickler := _by_value()) is not None:
            return Call(prepared, pickler.dumps(called), pickler.__name__)
        file = io.BytesIO()
        _Pickler(file).dump(called)
    except _Defined as defined:
        raise UsageError(
            f"launch: {defined} is defined here and not in a file, and cloudpickle is missing: pip install cloudpickle, or put it "
            "into a module (%%writefile train.py) and import it"
        ) from None
    except Exception as error:  # whatever the values' own methods raise
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        inner = "<locals>" in name or name == "<lambda>"
        raise UsageError(
            f"launch: {name} and its arguments cannot go to other processes ({reason})"
            + (": put it at the top level of the script, and not into another function" if inner else "")
        ) from None
    return Call(prepared, file.getvalue(), "pickle")


def _by_value() -> ModuleType | None:
    for name in _PICKLERS:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


# --- the job


def _run(folder: PrivateFolder, words: list[str]) -> tuple[int, str]:
    """Its status, and the last line with a reason."""
    command = [sys.executable, "-c", IMPORT + _PROGRAM, PACKAGE, str(os.getpid()), str(folder.path), *words]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    assert process.stdout is not None
    try:
        return _followed(process, process.stdout)
    finally:
        _end(process)
        process.stdout.close()


def _followed(process: "subprocess.Popen[bytes]", output: IO[bytes]) -> tuple[int, str]:
    interrupted: KeyboardInterrupt | None = None
    last = ""
    while True:
        try:
            line = output.readline()
            if not line:
                break
            text = line.decode(errors="replace")
            last = _reason(text) or last
            if text.startswith("lockstep: "):  # a refusal, which the caller raises
                continue
            encoding = sys.stdout.encoding or "utf-8"
            sys.stdout.write(text.encode(encoding, "replace").decode(encoding))  # in any locale
            sys.stdout.flush()
        except KeyboardInterrupt as error:
            if interrupted is not None:
                raise
            interrupted = error
            process.send_signal(signal.SIGINT)
    status = process.wait()
    if interrupted is not None:
        raise interrupted
    return status, last


def _reason(line: str) -> str:
    """Of a line of the launcher; empty: it is a worker's, or tells no reason."""
    name, bar, text = line.partition(" | ")
    if not bar:
        return line.strip().removeprefix("lockstep: ").removeprefix("lockstep run: ") if line.startswith("lockstep") else ""
    return text.strip() if name.strip() == "launch" and not text.startswith("run directory: ") else ""


def _end(process: "subprocess.Popen[bytes]") -> None:
    """At once, if it is still on: the second of two signals that are no pair."""
    if process.poll() is not None:
        return
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):
        process.send_signal(number)
        try:
            process.wait(_KILLED_S if number == signal.SIGKILL else 1.0)
            return
        except subprocess.TimeoutExpired:
            continue


def _read(folder: PrivateFolder, name: str) -> bytes | None:
    try:
        return (folder.path / name).read_bytes()
    except FileNotFoundError:
        return None


def raise_first(failures: dict[int, Failure], status: int, last: str) -> None:
    """The first failure that is no consequence of another one."""
    if failures:
        worker, first = min(failures.items(), key=lambda item: (item[1].is_of_job(), item[1].at))
        if first.status:
            raise _errors.of_status(first.status, first.line)
        alike = [other for other, failure in failures.items() if failure.line == first.line and other != worker]
        among = f"worker {worker}" if not alike else f"workers {', '.join(map(str, sorted([worker, *alike])))}"
        raise JobFailed(f"{among}: {first.line}") from WorkerTraceback(first.trace)
    if status != 0:
        raise _errors.of_status(status, last or f"the job has ended with status {status}")
