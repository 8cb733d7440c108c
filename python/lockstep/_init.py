"""init: where the job is, and what the script says of it beside its model."""

import math
import multiprocessing
import os
import random
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from lockstep import _channel, _errors, _settings, _torch, _undivided
from lockstep._errors import UsageError

if TYPE_CHECKING:
    from lockstep._job import Job


def init(
    *,
    seed: int = 1,
    coordinator: str | None = None,
    secret_file: str | None = None,
    data_host: str | None = None,
    run_dir: str | None = None,
    resume: bool | Literal["auto"] = False,
    settings: Mapping[str, object] | None = None,
    log_level: str = "warn",
    connect_timeout: float = 60,
) -> "Job":
    """Makes this process a worker of a job, and returns the job. Call it before you make the model.

    The job is found in this order:

    - `coordinator` ("HOST:PORT"), or LOCKSTEP_COORDINATOR, which `lockstep run` sets.
    - In a process group of torch.distributed, or under torchrun, srun, mpirun or another known launcher
      (docs/reference/pytorch-api.md): a job of those workers. Worker 0 starts its coordinator.
    - Otherwise a job of one worker, with a coordinator that is started here.

    `run_dir`: the folder for the records of a coordinator that is started here. `resume`: True continues from the newest checkpoint
    there; "auto" does so if there is one. With `lockstep run` use its option --resume instead.

    `seed`: seeds torch, random and, if it is loaded, numpy; it is also the job's seed.
    `connect_timeout`: how many seconds to try a coordinator that does not listen yet, as one that resumes and has much to read.
    `settings`: further keys of the configuration, as {"policy.name": "auto"}; all workers must give the same. The job's own config
    and command line take precedence over the script.

    Workers that `lockstep run` or a known launcher has started begin with the model of worker 0. Others begin with the model of
    their script, which must be the same.
    """
    _errors.end_with_one_line()
    _torch.check()
    from lockstep import _entry, _initial  # which take torch
    from lockstep._job import Job

    # Set by multiprocessing as long as it runs the script for what it defines.
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UsageError(
            "the script runs again in a loader process, because 'spawn' and 'forkserver' import it. Begin the job within "
            "if __name__ == '__main__':, or give multiprocessing_context='fork' to the DataLoader"
        )
    if _undivided.inside():
        raise UsageError("lockstep.undivided() is for the line that makes a dataset: call lockstep.init() outside of it")
    if not 0 <= seed < 1 << 63:
        raise UsageError(f"seed: {seed} is not a whole number from 0 to 2^63 - 1")
    environment = os.environ
    address = coordinator or environment.get("LOCKSTEP_COORDINATOR") or None
    wanted = environment.get("LOCKSTEP_WORKER", "")
    if wanted and not wanted.isdecimal():
        raise UsageError(f"LOCKSTEP_WORKER is {wanted!r}: expected a worker's number")
    if address is not None and run_dir is not None:
        raise UsageError("run_dir is for a job whose coordinator the script starts: the coordinator of this job has its own")
    if resume not in (False, True, "auto"):
        raise UsageError(f"resume: {resume!r} is neither True nor False nor 'auto'")
    if resume and run_dir is None:
        raise UsageError(
            "resume needs the run_dir of the job to continue"
            if address is None
            else "resume is for the program that starts the coordinator: use lockstep run --resume"
        )
    if not 0 < connect_timeout < math.inf:
        raise UsageError(f"connect_timeout: {connect_timeout!r} is not a number of seconds above 0")
    said = _settings.checked(settings or {})
    _settings.refuse_unused(said)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % (1 << 32))
    initial = environment.get("LOCKSTEP_INITIAL") or None
    entry = _entry.Entry(
        coordinator=address,
        secret_file=secret_file or environment.get("LOCKSTEP_SECRET_FILE") or None,
        data_host=data_host,
        wanted=int(wanted) if wanted else None,
        slowdowns=environment.get("LOCKSTEP_SLOWDOWN") or None,
        run_dir=run_dir,
        resume=resume,
        channel=_channel.given if initial is None else _initial.Folder(initial),
        log_level=environment.get("LOCKSTEP_LOG_LEVEL", log_level),
        connect_timeout=connect_timeout,
    )
    entry.look()
    return Job(entry, seed=seed, settings=said)
