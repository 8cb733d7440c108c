"""Launchers, by what their environment tells a worker: its number, how many workers there are, and where they may meet."""

import os
import re
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lockstep._errors import UsageError

_PORTS = range(61000, 65000)  # above those that the kernel gives out
_BY_HAND = "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"


@dataclass(frozen=True)
class _Launcher:
    """The names of its variables."""

    name: str
    sign: str  # its processes have it, and no others
    worker: str
    workers: str  # empty: it does not tell
    here: str = ""  # how many workers this host has
    hosts: str = ""  # how many hosts the workers are on
    start: tuple[str, ...] = ()  # together the same for all workers of one start, and different for any other start


# The first whose sign is there counts: one launcher starts another (mpirun within Slurm's step), and the inner one comes first.
_LAUNCHERS = (
    _Launcher(
        *("torchrun", "WORLD_SIZE", "RANK", "WORLD_SIZE"),
        here="LOCAL_WORLD_SIZE",
        start=("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
    ),
    _Launcher("jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", here="JSM_NAMESPACE_LOCAL_SIZE"),
    _Launcher(
        *("mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        here="OMPI_COMM_WORLD_LOCAL_SIZE",
        start=("PMIX_NAMESPACE",),
    ),
    _Launcher("PALS", "PALS_RANKID", "PALS_RANKID", "PMI_SIZE", here="PMI_LOCAL_SIZE", start=("PALS_APID",)),
    _Launcher(
        *("mpirun_rsh", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
        here="MV2_COMM_WORLD_LOCAL_SIZE",
        start=("MPIRUN_ID",),
    ),
    _Launcher("flux", "FLUX_TASK_RANK", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", hosts="FLUX_JOB_NNODES", start=("FLUX_JOB_ID",)),
    _Launcher("mpiexec", "PMI_RANK", "PMI_RANK", "PMI_SIZE", here="MPI_LOCALNRANKS", start=("I_MPI_HYDRA_UUID",)),
    _Launcher("prterun", "PRTE_LAUNCHED", "PMIX_RANK", ""),
    _Launcher(
        *("srun", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
        hosts="SLURM_STEP_NUM_NODES",
        start=("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
    ),
    _Launcher("a launcher with PMIx", "PMIX_RANK", "PMIX_RANK", ""),
)
# The name of what looks like a worker's number. Slurm sets SLURM_PROCID outside of its steps, too.
_NUMBER = re.compile(r"(?!SLURM_)(?:.*_)?(?:RANK|RANKID|PROCID)|JOB_COMPLETION_INDEX")


@dataclass(frozen=True)
class Launched:
    """The launcher of the workers, and the place where they meet."""

    launcher: str
    worker: int
    workers: int
    host: str
    port: int
    serves: bool  # this worker serves the store
    job: str  # as _Launcher.start
    one_host: bool | None = None  # all workers are on one; None: the launcher does not tell
    other_host: str = ""  # a host of theirs that is not worker 0's, where the launcher tells
    in_group: bool = False  # they meet in the script's process group


def launched(environment: Mapping[str, str]) -> Launched | None:
    """None: no launcher has started more workers than this one."""
    launcher = _launcher(environment)
    if launcher is None:
        return None
    worker = _number(launcher, launcher.worker, environment)
    if not launcher.workers:
        raise UsageError(
            f"{launcher.name} has started this as rank {worker}, but does not tell the number of ranks. Use mpirun, or set "
            f"{_BY_HAND} in each process: export the others, and start sh -c 'RANK=${launcher.worker} exec python train.py'"
        )
    workers = _number(launcher, launcher.workers, environment)
    if workers <= 1:
        return None
    one_host = on_one_host(environment, launcher)
    starts = [environment.get(name, "") for name in launcher.start]
    start = "/".join(starts) if any(starts) else _ancestor("hydra_pmi_proxy") if launcher.name == "mpiexec" and one_host else ""
    hosts = environment.get("SLURM_STEP_NODELIST", "") if launcher.name == "srun" else ""
    host = environment.get("MASTER_ADDR") or ("127.0.0.1" if one_host else _first_host(hosts))
    port = environment.get("MASTER_PORT") or (str(_PORTS[zlib.crc32(start.encode()) % len(_PORTS)]) if start else "")
    if not host or not port.isdecimal():
        raise UsageError(
            f"{launcher.name} has started {workers} workers: say with MASTER_ADDR and MASTER_PORT where they meet, as for "
            "torch.distributed (the host of worker 0, and a port that is free there)"
        )
    agent = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return Launched(
        *(launcher.name, worker, workers, host, int(port)),
        serves=not agent and worker == 0,
        job=start,
        one_host=one_host,
        other_host=_last_host(hosts),
    )


def of_ray_train() -> int:
    """How many workers Ray Train has started, of which this process is one; 0: it is none. Ray puts it into no variable."""
    train = sys.modules.get("ray.train")
    try:
        workers = train.get_context().get_world_size() if train is not None else 0
    except Exception:  # outside of its workers, in different ways
        return 0
    return workers if isinstance(workers, int) else 0


def warning(environment: Mapping[str, str]) -> str:
    """Of a job of one that may not be meant to be one. Empty: nothing looks like that."""
    if _launcher(environment) is not None:
        return ""
    if "ACCELERATE_MIXED_PRECISION" in environment:  # accelerate launch sets it
        on_cpu = environment.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true")
        why = "which accelerate launch has started"
        if on_cpu:
            why = "because accelerate launch --cpu starts one, whatever --num_processes says"
        return f"this is a job of one worker, {why}: for more use lockstep run -n N or torchrun --nproc-per-node N"
    numbers = [f"{name}={value}" for name, value in sorted(environment.items()) if _NUMBER.fullmatch(name) and value.isdecimal()]
    if not numbers:
        return ""
    return (
        f"this is a job of one worker, but {', '.join(numbers)} in the environment may come from an unknown launcher. "
        f"If it has started others, set {_BY_HAND} for each, or use lockstep run"
    )


def started(where: Launched | None, environment: Mapping[str, str], workers: int, coordinator: str) -> str:
    """Which launcher has started the job, how many workers there are, and how they meet: one line. `where`: None in a job whose
    coordinator was there before its workers."""
    count = f"{workers} worker{'' if workers == 1 else 's'}"
    if where is None:
        launcher = environment.get("LOCKSTEP_LAUNCHER", "") if environment.get("LOCKSTEP_COORDINATOR") == coordinator else ""
        if workers == 1:
            return f"{f'{launcher} has started ' if launcher else 'the job has '}{count}; the coordinator is {coordinator}"
        if launcher:
            return f"{launcher} has started {count}, which meet at its coordinator, {coordinator}"
        return f"{count}, started one by one, meet at the coordinator {coordinator}"
    alike = where.launcher == "torchrun" and "TORCHELASTIC_RUN_ID" not in environment  # deepspeed, Kubeflow, a shell
    started_by = f"RANK and WORLD_SIZE tell of {count}" if alike else f"{where.launcher} has started {count}"
    at = f"{started_by}, which meet at {where.host}:{where.port}"
    by = "" if where.launcher == "torch.distributed" else f", started by {where.launcher},"
    meeting = f"{count} in a process group{by} meet in its store" if where.in_group else at
    return f"{meeting}; worker 0 has started the coordinator, {coordinator}"


def on_one_host(environment: Mapping[str, str], launcher: _Launcher = _LAUNCHERS[0]) -> bool | None:
    if launcher.hosts:
        hosts = environment.get(launcher.hosts)
        return None if hosts is None else hosts == "1"
    here = environment.get(launcher.here)
    return None if here is None else here == environment.get(launcher.workers)


def _launcher(environment: Mapping[str, str]) -> _Launcher | None:
    # srun sets PMI_RANK, too, and tells more. Where they differ, an mpiexec has started its proxies by srun, one for each host.
    pairs = (("PMI_RANK", "SLURM_PROCID"), ("PMI_SIZE", "SLURM_STEP_NUM_TASKS"))
    by_srun = "SLURM_STEP_ID" in environment and all(environment.get(pmi) == environment.get(slurm) for pmi, slurm in pairs)
    found = (launcher for launcher in _LAUNCHERS if launcher.sign in environment)
    return next((launcher for launcher in found if not (by_srun and launcher.name == "mpiexec")), None)


def _number(launcher: _Launcher, name: str, environment: Mapping[str, str]) -> int:
    text = environment.get(name, "")
    if not text.isdecimal():
        raise UsageError(f"{launcher.name} has started this, and {name} is {text!r}: expected a number")
    return int(text)


def _ancestor(name: str) -> str:
    """The process of that name that this one descends from, as what no other start has; empty: there is none to be seen. All
    workers that MPICH's mpiexec starts on one host have the same, and its environment has nothing like it."""
    process = os.getppid()
    try:
        while process > 1:
            line = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
            command, rest = line.split(" (", 1)[1].rsplit(") ", 1)
            fields = rest.split()  # from the third on, as proc(5) counts
            if command == name:
                return f"{process}@{fields[19]}"  # a process's number comes again, but not with the same start time
            process = int(fields[1])
    except (OSError, ValueError, IndexError):
        pass
    return ""


def _first_host(hosts: str) -> str:
    """Of Slurm's lists: a1,b2; node[003-007,9]; r[1-2]n[01-16]."""
    name = re.match(r"(?:[^,\[]|\[[^\]]*\])*", hosts)
    return re.sub(r"\[([^-,\]]*)[^\]]*\]", r"\1", name.group()) if name else ""


def _last_host(hosts: str) -> str:
    """Of Slurm's lists, likewise."""
    name = re.search(r"(?:[^,\[\]]|\[[^\]]*\])*\Z", hosts)
    return re.sub(r"\[(?:[^\]]*[-,])?([^-,\]]*)\]", r"\1", name.group()) if name else ""
