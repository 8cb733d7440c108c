"""A worker of lockstep.launch: calls the function of the caller (_call.py)."""

import importlib
import os
import pickle
import time
import traceback
from multiprocessing import current_process, spawn
from pathlib import Path
from typing import Any

from lockstep import _errors
from lockstep._call import CALL, ERROR, RESULT, Call, Failure
from lockstep._errors import Error, UsageError

_HERE = Path(__file__).parent


def _prepared(call: Call) -> Any:
    """The function, its arguments; the script of the caller is imported for that."""
    process = current_process()
    process._inheriting = True  # type: ignore[attr-defined]
    try:
        spawn.prepare(call.prepared)
        return importlib.import_module(call.pickler).loads(call.function)
    finally:
        del process._inheriting  # type: ignore[attr-defined]


def _write(path: Path, data: bytes) -> None:
    """As a whole or not at all."""
    new = path.with_suffix(".new")
    new.write_bytes(data)
    os.replace(new, path)


def failure(error: BaseException) -> Failure:
    status = error.status if isinstance(error, Error) else 0
    line = str(error) if status else "".join(traceback.format_exception_only(error)).strip()
    # From the caller's own code on.
    inner = error.__traceback__
    while inner is not None and Path(inner.tb_frame.f_code.co_filename).parent == _HERE:
        inner = inner.tb_next
    trace = "".join(traceback.format_exception(type(error), error, inner))
    return Failure(status, line.splitlines()[0], trace.rstrip(), time.time())


def answered(call: Call, worker: str) -> tuple[str, bytes, int]:
    """RESULT or ERROR, what goes to the caller, and the exit status of this process."""
    try:
        function, args, kwargs = _prepared(call)
        result = function(*args, **kwargs)
        try:
            return RESULT, importlib.import_module(call.pickler).dumps(result), 0
        except Exception as error:  # whatever the value's own methods raise
            raise UsageError(
                f"launch: worker {worker} returns {type(result).__name__}, which cannot go to another process ({error}): return "
                "numbers, tensors or a state_dict"
            ) from None
    except Exception as error:
        # On the status of a usage error lockstep run ends the job.
        return ERROR, pickle.dumps(failure(error)), error.status if isinstance(error, Error) else UsageError.status


def main(path: str) -> int:
    folder = Path(path)
    worker = os.environ["LOCKSTEP_WORKER"]
    name, data, status = answered(pickle.loads((folder / CALL).read_bytes()), worker)
    _write(folder / name.format(worker), data)
    if name == ERROR:
        tell(data)
    return status


def tell(failure: bytes) -> None:
    """To the job, why this process ends."""
    for told in list(_errors.last_words):
        told(pickle.loads(failure).line)
