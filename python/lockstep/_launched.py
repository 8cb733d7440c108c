"""Workers that torchrun, mpirun or srun has started: which of how many this is, and how they find each other.

Their meeting place is that of torch.distributed, the store at MASTER_ADDR and MASTER_PORT: torchrun's agent serves it, under mpirun
and srun worker 0 does. Where those two are not said, what the launcher tells is enough for srun, and for mpirun on one host.
Worker 0 starts the coordinator, which ends with it, and puts its address there. Its initial state goes the same way. So does the
job's secret, unless all workers have one in a file: whoever reaches that store can read it, and what is put there, as of any job
of torch.distributed.
"""

import ipaddress
import json
import os
import re
import socket
import tempfile
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch.distributed

from lockstep._errors import JobFailed, UsageError
from lockstep._own import OwnCoordinator

_PATIENCE_S = 300.0
_LOOK_S = 0.05
_PIECE = 8 << 20  # bytes of a value; the store has many values, none of them large
_PORTS = range(61000, 65000)  # above those that the kernel gives out

# By launcher: the variables for this worker's number and for how many there are, and one that is there in its processes only.
_LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "WORLD_SIZE"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID"),
}
# What is the same for all workers of one start, and another for others: of two that meet at one port none may take the other's job.
_STARTS = {
    "torchrun": ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
    "mpirun": ("PMIX_NAMESPACE",),
    "srun": ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
}


@dataclass(frozen=True)
class Launched:
    """By whom, and where the others are met."""

    launcher: str
    worker: int
    workers: int
    host: str
    port: int
    serves: bool  # this worker serves the store
    job: str  # of _STARTS
    one_host: bool | None = None  # all workers are on one; None: the launcher does not tell
    other_host: str = ""  # one of them that is not worker 0's, where the launcher tells


def launched(environment: Mapping[str, str]) -> Launched | None:
    """None: nobody has started more workers than this one."""
    for launcher, (worker, workers, sign) in _LAUNCHERS.items():
        if sign not in environment:
            continue
        numbers: list[int] = []
        for name in (worker, workers):
            text = environment.get(name, "")
            if not text.isdecimal():
                raise UsageError(f"{launcher} has started this, and {name} is {text!r}: expected a number")
            numbers.append(int(text))
        if numbers[1] <= 1:
            return None
        starts = [environment.get(name, "") for name in _STARTS[launcher]]
        start = "/".join(starts)
        host = environment.get("MASTER_ADDR") or _host_of_worker_0(launcher, environment)
        port = environment.get("MASTER_PORT") or (str(_PORTS[zlib.crc32(start.encode()) % len(_PORTS)]) if any(starts) else "")
        if not host or not port.isdecimal():
            raise UsageError(
                f"{launcher} has started {numbers[1]} workers: say with MASTER_ADDR and MASTER_PORT where they meet, as for "
                "torch.distributed (the host of worker 0, and a port that is free there)"
            )
        agent = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return Launched(
            *(launcher, numbers[0], numbers[1], host, int(port)),
            serves=not agent and numbers[0] == 0,
            job=start,
            one_host=_on_one_host(launcher, environment),
            other_host=_last_host(environment.get("SLURM_STEP_NODELIST", "")) if launcher == "srun" else "",
        )
    return None


def _on_one_host(launcher: str, environment: Mapping[str, str]) -> bool | None:
    if launcher == "srun":
        nodes = environment.get("SLURM_STEP_NUM_NODES")
        return None if nodes is None else nodes == "1"
    prefix = "" if launcher == "torchrun" else "OMPI_COMM_WORLD_"
    here = environment.get(f"{prefix}LOCAL_WORLD_SIZE" if launcher == "torchrun" else f"{prefix}LOCAL_SIZE")
    return None if here is None else here == environment.get(_LAUNCHERS[launcher][1])


def _host_of_worker_0(launcher: str, environment: Mapping[str, str]) -> str:
    """As far as the launcher tells; else nothing."""
    of = environment.get
    if launcher == "mpirun":
        return "127.0.0.1" if of("OMPI_COMM_WORLD_LOCAL_SIZE") == of("OMPI_COMM_WORLD_SIZE") else ""
    if launcher == "srun":
        return "127.0.0.1" if of("SLURM_STEP_NUM_NODES") == "1" else _first_host(of("SLURM_STEP_NODELIST", ""))
    return ""


def _first_host(hosts: str) -> str:
    """Of Slurm's lists: a1,b2; node[003-007,9]; r[1-2]n[01-16]."""
    name = re.match(r"(?:[^,\[]|\[[^\]]*\])*", hosts)
    return re.sub(r"\[([^-,\]]*)[^\]]*\]", r"\1", name.group()) if name else ""


def _last_host(hosts: str) -> str:
    """Of Slurm's lists, likewise."""
    name = re.search(r"(?:[^,\[\]]|\[[^\]]*\])*\Z", hosts)
    return re.sub(r"\[(?:[^\]]*[-,])?([^-,\]]*)\]", r"\1", name.group()) if name else ""


def _reached(address: str) -> bool:
    """By other hosts, as far as the address alone says."""
    read = ipaddress.ip_address(address)
    return not (read.is_loopback or read.is_link_local or read.is_unspecified)


def _addresses(host: str) -> list[str]:
    """None: the coordinator says what is wrong with the name."""
    try:
        return list(dict.fromkeys(str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)))
    except (OSError, UnicodeError):
        return []


def _address_towards(host: str) -> str | None:
    """This host's, which the way to the other one begins at; nothing is sent."""
    for address in _addresses(host):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as unsent:
                unsent.connect((address, 9))
                own = str(unsent.getsockname()[0])
        except OSError:
            continue
        if _reached(own):
            return own
    return None


_ANYWHERE = ("192.0.2.1", "2001:db8::1")  # addresses that are nobody's: the way there is that to hosts that are not told


def listen_host(where: Launched) -> str:
    """On worker 0: by what its coordinator is reached. On Debian and Ubuntu a host's own name is 127.0.1.1 to itself."""
    found = _addresses(where.host)
    is_said = where.host == "localhost" or where.host in found  # an address
    if where.one_host or is_said or not found:
        return where.host
    reached = [address for address in found if _reached(address)]
    if reached:
        return where.host if len(reached) == len(found) else reached[0]
    for other in (where.other_host, *_ANYWHERE):
        own = _address_towards(other) if other else None
        if own is not None:
            return own
    alone = all(name == "lo" for _, name in socket.if_nameindex())
    if where.one_host is None or alone:
        return where.host
    raise UsageError(
        f"worker 0's host knows its name {where.host} as {found[0]}, where other hosts do not reach it, and no address of its own: "
        "say with MASTER_ADDR the address by which they do"
    )


class Meeting:
    """The store, as the Channel of _initial.py too, and worker 0's coordinator. Each worker makes one for each job, in turn."""

    restarts = False  # nobody is started again by itself
    _stores: ClassVar[dict[tuple[str, int], Any]] = {}  # of this process, for all its jobs
    _made = 0

    def __init__(self, where: Launched) -> None:
        self._where = where
        self._number = Meeting._made
        Meeting._made += 1
        at = (where.host, where.port)
        if at not in Meeting._stores:
            Meeting._stores[at] = self._connected(where)
        self._store = Meeting._stores[at]

    @staticmethod
    def _connected(where: Launched) -> Any:
        try:
            return torch.distributed.TCPStore(  # type: ignore[attr-defined]
                where.host, where.port, is_master=where.serves, wait_for_workers=False, timeout=timedelta(seconds=_PATIENCE_S)
            )
        except RuntimeError as error:
            line = str(error).splitlines()[0]
            raise JobFailed(
                f"the workers of {where.launcher} do not meet at {where.host}:{where.port} (MASTER_ADDR and MASTER_PORT say "
                f"another place): {line}"
            ) from None

    def put(self, name: str, data: bytes) -> None:
        """Each name once."""
        pieces = [data[at : at + _PIECE] for at in range(0, len(data), _PIECE)]
        for i, piece in enumerate(pieces):
            self._store.set(self._key(f"{name}/{i}"), piece)
        self._store.add(self._key(name), len(pieces))

    def get(self, name: str) -> bytes | None:
        # How many pieces there are; a store of older torch cannot say whether it has a key, but it counts from 0.
        count = self._store.add(self._key(name), 0)
        return b"".join(self._store.get(self._key(f"{name}/{i}")) for i in range(count)) if count else None

    def coordinator(
        self, run_dir: str | None, secret_file: str | None, resume: bool | Literal["auto"]
    ) -> tuple[str, str, OwnCoordinator | None]:
        """Its address, a file with its secret, and, on worker 0, what ends it. `secret_file`: that all workers have, if they do."""
        if self._where.worker == 0:
            own = OwnCoordinator(run_dir, self._where.workers, listen_host(self._where), secret_file, resume)
            told = None if secret_file else Path(own.secret_file).read_bytes().hex()
            self.put("job", json.dumps([own.address, told]).encode())
            return own.address, own.secret_file, own
        end = time.monotonic() + _PATIENCE_S
        while (job := self.get("job")) is None:
            if time.monotonic() > end:
                raise JobFailed(f"worker 0 has started no coordinator in {_PATIENCE_S:.0f} s")
            time.sleep(_LOOK_S)
        address, secret = json.loads(job)
        if (secret is None) != (secret_file is not None):
            has, other = ("this worker", "worker 0") if secret_file else ("worker 0", "this worker")
            raise UsageError(f"LOCKSTEP_SECRET_FILE: {has} has one and {other} has none; let all have the same, or none")
        if secret_file:
            return address, secret_file, None
        # For this user alone, as long as this object.
        self._secret = tempfile.NamedTemporaryFile(prefix="lockstep-")  # noqa: SIM115
        self._secret.write(bytes.fromhex(secret))
        self._secret.flush()
        return address, self._secret.name, None

    def _key(self, name: str) -> str:
        return f"lockstep/{self._where.job}/{self._number}/{name}"


def surroundings() -> Launched | None:
    return launched(os.environ)
