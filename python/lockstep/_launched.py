"""Workers that one launcher has started: how they find each other, and the coordinator that worker 0 starts.

They meet in a store, as jobs of torch.distributed do. If the script has a process group, it is that group's store. Otherwise it is
a store at MASTER_ADDR and MASTER_PORT (_launchers.py finds both), which torchrun's agent or worker 0 serves. Worker 0 starts the
coordinator, which ends with it, and puts its address there. Its initial state goes the same way.

So does the job's secret, unless all workers have one in a file. Anybody who reaches the store can read the secret there, and write
to the store. With such a file, the workers check that data in the store comes from worker 0.
"""

import hmac
import ipaddress
import json
import os
import socket
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch.distributed

from lockstep import _launchers
from lockstep._errors import JobFailed, UsageError
from lockstep._launchers import Launched, launched, on_one_host
from lockstep._own import OwnCoordinator
from lockstep._private import PrivateFolder

_PATIENCE_S = 300.0
_LOOK_S = 0.05
_PIECE = 8 << 20  # bytes of a value; the store has many values, none of them large
_UNPROVEN = b"-"


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
        f"worker 0's host knows its name {where.host} as {found[0]}, which other hosts do not reach, and has no other address. "
        "Set MASTER_ADDR to the address by which they reach it"
    )


class Meeting:
    """The store, as a Channel of _channel.py too, and worker 0's coordinator. Each worker makes one for each job, in turn."""

    restarts = False  # nobody is started again by itself
    _stores: ClassVar[dict[tuple[str, int], Any]] = {}  # of this process, for all its jobs
    _made = 0

    def __init__(self, where: Launched, secret_file: str | None) -> None:
        """`secret_file`: that all workers have, if they do."""
        self._where = where
        self._secret_file = secret_file
        self._key_of_proof = None if secret_file is None else _read(secret_file)
        self._number = Meeting._made
        Meeting._made += 1
        self._folder: PrivateFolder | None = None
        if where.in_group:
            self._store = _store_of_group()
            return
        at = (where.host, where.port)
        if at not in Meeting._stores:
            Meeting._stores[at] = self._connected(where)
        self._store = Meeting._stores[at]

    @staticmethod
    def _connected(where: Launched) -> Any:
        try:
            return torch.distributed.TCPStore(  # type: ignore[attr-defined]
                *(where.host, where.port),
                is_master=where.serves,
                wait_for_workers=False,
                timeout=timedelta(seconds=_PATIENCE_S),
                multi_tenant=True,  # a process group that the script makes later serves the same port, in this process
            )
        except RuntimeError as error:
            line = str(error).splitlines()[0]
            raise JobFailed(
                f"the workers of {where.launcher} do not meet at {where.host}:{where.port} (MASTER_ADDR and MASTER_PORT say "
                f"another place): {line}"
            ) from None

    def put(self, name: str, data: bytes) -> None:
        """Each name once."""
        key = self._key(name)
        try:
            pieces = [data[at : at + _PIECE] for at in range(0, len(data), _PIECE)]
            for i, piece in enumerate(pieces):
                self._store.set(f"{key}/{i}", piece)
            self._store.set(f"{key}/proof", self._proof(key, data))
            self._store.add(key, len(pieces))
        except RuntimeError as error:
            raise self._gone(error) from None

    def get(self, name: str) -> bytes | None:
        key = self._key(name)
        try:
            # How many pieces there are; a store of older torch cannot say whether it has a key, but it counts from 0.
            count = self._store.add(key, 0)
            if count == 0:
                return None
            data = b"".join(self._store.get(f"{key}/{i}") for i in range(count))
            proof = bytes(self._store.get(f"{key}/proof"))
        except RuntimeError as error:
            raise self._gone(error) from None
        if (proof == _UNPROVEN) != (self._key_of_proof is None):
            has, other = ("worker 0", "this worker") if self._key_of_proof is None else ("this worker", "worker 0")
            raise UsageError(f"LOCKSTEP_SECRET_FILE: {has} has one and {other} has none; let all have the same, or none")
        if not hmac.compare_digest(proof, self._proof(key, data)):
            raise UsageError(
                "LOCKSTEP_SECRET_FILE: worker 0's data in the store was not made with this worker's secret; let all have the same"
            )
        return data

    def coordinator(self, run_dir: str | None, resume: bool | Literal["auto"]) -> tuple[str, str, OwnCoordinator | None]:
        """Its address, a file with its secret, and, on worker 0, what ends it."""
        if self._where.worker == 0:
            own = OwnCoordinator(run_dir, self._where.workers, listen_host(self._where), self._secret_file, resume)
            told = None if self._secret_file else Path(own.secret_file).read_bytes().hex()
            self.put("job", json.dumps([own.address, told]).encode())
            return own.address, own.secret_file, own
        # As long as worker 0 waits for it. Whether it resumes, where resume is "auto", only that one knows.
        patience = OwnCoordinator.patience(resume) + _PATIENCE_S
        end = time.monotonic() + patience
        while (job := self.get("job")) is None:
            if time.monotonic() > end:
                raise JobFailed(f"worker 0 has started no coordinator in {patience:.0f} s")
            time.sleep(_LOOK_S)
        address, secret = json.loads(job)
        if self._secret_file is not None:
            return address, self._secret_file, None
        self._folder = PrivateFolder()
        return address, self._folder.write("secret", bytes.fromhex(secret)), None

    def close(self) -> None:
        """The job is over, and nobody needs its secret any more."""
        if self._folder is not None:
            self._folder.remove()

    def _key(self, name: str) -> str:
        return f"lockstep/{self._where.job}/{self._number}/{name}"

    def _proof(self, key: str, data: bytes) -> bytes:
        """That who has put this under this key has the secret."""
        if self._key_of_proof is None:
            return _UNPROVEN
        made = hmac.new(self._key_of_proof, f"lockstep meeting {key}\0".encode(), "sha256")
        made.update(data)
        return made.hexdigest().encode()

    def _gone(self, error: RuntimeError) -> JobFailed:
        line = (str(error).splitlines() or [type(error).__name__])[0]
        return JobFailed(f"worker 0 or {self._where.launcher}, which serves the store of the workers, has ended: {line}")


def surroundings() -> Launched | None:
    """None: there are no others that this process knows of."""
    found = _group() or launched(os.environ)
    if found is None and (workers := _launchers.of_ray_train()) > 1:
        raise UsageError(
            f"Ray Train has started {workers} workers without a process group, and they have no place to meet: use its "
            "TorchTrainer, or lockstep.ray.Trainer"
        )
    return found


def _group() -> Launched | None:
    """The script's process group, or that of who has started it, as Ray's TorchTrainer."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return None
    worker, workers = distributed.get_rank(), distributed.get_world_size()
    if workers <= 1:
        return None
    store = _store_of_group()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    host = os.environ.get("MASTER_ADDR") or getattr(store, "host", None) or socket.gethostname()
    return Launched(
        *("Ray Train" if _launchers.of_ray_train() == workers else "torch.distributed", worker, workers, host, 0),
        serves=worker == 0,
        job="group",
        one_host=on_one_host(os.environ),
        in_group=True,
    )


def _store_of_group() -> Any:
    store = torch.distributed.distributed_c10d._get_default_store()
    if store is None:
        raise UsageError(
            "the process group of torch.distributed has no store, in which workers meet: begin it with "
            'torch.distributed.init_process_group("gloo")'
        )
    return store


def _read(secret_file: str) -> bytes:
    try:
        return Path(secret_file).read_bytes()
    except OSError as error:
        raise UsageError(f"secret file {secret_file}: {error.strerror}") from None
