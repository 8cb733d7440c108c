"""The calls of a Horovod script: `import lockstep.horovod as hvd` in place of `import horovod.torch as hvd`.

A layer on lockstep.init and job.prepare. The job begins when the loop asks the training loader for its first batch: the first
DataLoader that is read, after DistributedOptimizer, while the model is in training mode. From then on that loader hands out the
job's batches, and a DistributedSampler in it stands for all of its data. The script ends the job by its own end.

`allreduce` and the like are for what a script tells after a pass, as an accuracy. They go through what the job's workers share, and
not through the exchange of gradients. A worker that was killed is left out.
"""

import contextlib
import gc
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

import lockstep
from lockstep import _channel, _errors, _initial, _launched, _safetensors
from lockstep._errors import JobFailed, Missing, UsageError
from lockstep._job import Job

_NO_END = 1_000_000  # epochs: the script ends the job
_PATIENCE_S = 600.0
_LOOK_S = 0.02
_LOCAL_RANKS = (
    *("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_RANK"),
    *("PALS_LOCAL_RANKID", "FLUX_TASK_LOCAL_ID", "MPI_LOCALRANKID", "SLURM_LOCALID"),
)
_LOCAL_SIZES = (
    *("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "JSM_NAMESPACE_LOCAL_SIZE"),
    *("PMI_LOCAL_SIZE", "MPI_LOCALNRANKS"),
)
_INSTEAD = {
    "elastic": "a job of Lockstep goes on without a lost worker by itself: call train(state) without hvd.elastic.run",
    "SyncBatchNorm": "use torch.nn.BatchNorm2d: its running statistics are the job's mean",
    "join": "leave it out: epochs end together",
    "alltoall": "use torch.distributed for it",
    "reducescatter": "use torch.distributed for it",
    "grouped_allreduce": "call hvd.allreduce for each tensor",
    "allreduce_async_": "call hvd.allreduce",
    "synchronize": "call hvd.allreduce, which returns the result",
}

Average, Sum, Min, Max, Adasum = "Average", "Sum", "Min", "Max", "Adasum"


class Compression:
    """Of the gradients that travel."""

    none = "fp32"
    fp16 = "fp16"
    bf16 = "bf16"


def __getattr__(name: str) -> NoReturn:
    if name in _INSTEAD:
        raise Missing(f"hvd.{name} is not supported: {_INSTEAD[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# --- where this worker is


def init(*_: Any, **__: Any) -> None:
    """May be called again."""
    global _state
    _errors.end_with_one_line()
    if _state is None:
        _state = _State()


def shutdown() -> None:
    """Ends the job, as the script's end does."""
    global _state
    state, _state = _state, None
    if state is not None:
        state.close()


def is_initialized() -> bool:
    return _state is not None


def rank() -> int:
    return _known().rank


def size() -> int:
    return _known().size


def local_rank() -> int:
    """On this host; under `lockstep run` on one host the rank."""
    return _known().here(_LOCAL_RANKS, _known().rank)


def local_size() -> int:
    return _known().here(_LOCAL_SIZES, _known().size)


def job() -> Job:
    """The job behind it, for what Horovod does not have: `hvd.job().log({"accuracy": right / len(batch)})`."""
    state = _known()
    if state.job is None:
        raise UsageError("hvd.job() is there from hvd.DistributedOptimizer on")
    return state.job


def mpi_threads_supported() -> bool:
    return False


def mpi_built() -> bool:
    return False


def gloo_built() -> bool:
    return False


def nccl_built() -> bool:
    return False


# --- what all begin with


def broadcast_parameters(params: Any, root_rank: int = 0) -> None:
    """Nothing is left to do: a job begins with the model of worker 0."""
    _root(root_rank)


def broadcast_optimizer_state(optimizer: Any, root_rank: int = 0, model: Any = None) -> None:
    """Nothing is left to do: all begin without a state, or resume the job's."""
    _root(root_rank)


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """The object of worker 0: numbers, strings, lists and dicts."""
    _root(root_rank)
    state = _known()
    found = state.exchanged(_as_json(obj) if state.rank == 0 else b"", f"broadcast of {name}")
    if 0 not in found:
        raise JobFailed("hvd.broadcast_object: worker 0 has ended")
    return json.loads(found[0])


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> torch.Tensor:
    """The tensor of worker 0."""
    _root(root_rank)
    found = _known().tensors(tensor, f"broadcast of {name}")
    if 0 not in found:
        raise JobFailed("hvd.broadcast: worker 0 has ended")
    return found[0].to(tensor.device)


# --- numbers about a pass


def allreduce(
    tensor: torch.Tensor, average: bool | None = None, name: str | None = None, compression: Any = None, op: str | None = None
) -> torch.Tensor:
    """Over the workers that are there, in the order of their ranks. Between two passes over the training loader."""
    op = op or (Sum if average is False else Average)
    if op not in (Average, Sum, Min, Max):
        raise UsageError(f"hvd.allreduce: op={op} is not supported: take hvd.Average, hvd.Sum, hvd.Min or hvd.Max")
    found = _known().tensors(tensor, f"allreduce of {name}")
    if len({value.shape for value in found.values()}) > 1:
        raise UsageError("hvd.allreduce: the workers' tensors have different shapes: use hvd.allgather")
    stacked = torch.stack([found[worker] for worker in sorted(found)])
    if op in (Min, Max):
        return (stacked.amin(0) if op == Min else stacked.amax(0)).to(tensor.device)
    total = stacked.sum(0)
    if op == Average:
        total = total / len(found) if total.is_floating_point() else total // len(found)
    return total.to(tensor.device, tensor.dtype)


def allgather(tensor: torch.Tensor, name: str | None = None) -> torch.Tensor:
    """The tensors of the workers that are there, one behind the other."""
    found = _known().tensors(tensor, f"allgather of {name}")
    return torch.cat([found[worker] for worker in sorted(found)]).to(tensor.device)


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Of the workers that are there, in the order of their ranks."""
    found = _known().exchanged(_as_json(obj), f"allgather of {name}")
    return [json.loads(found[worker]) for worker in sorted(found)]


def barrier() -> None:
    _known().exchanged(b"", "barrier")


# --- training


def DistributedOptimizer(  # noqa: PLR0917
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, nn.Parameter]] | None = None,
    compression: str = Compression.none,
    backward_passes_per_step: int = 1,
    op: str = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: Any = None,
    *,
    clip_grad_norm: float | None = None,
    global_batch: int | None = None,
) -> "_Optimizer":
    """As Horovod's. `clip_grad_norm`, `global_batch`: of job.prepare; the latter is `size()` batches of the loader if left out."""
    state = _known()
    if state.job is not None:
        raise UsageError("hvd.DistributedOptimizer was called twice, and a job has one optimizer: give it all parameters")
    if op != Average:
        raise UsageError(f"hvd.DistributedOptimizer: op={op} is not supported: leave it out (for a sum: lr * hvd.size())")
    if backward_passes_per_step != 1:
        raise UsageError(
            "hvd.DistributedOptimizer: leave backward_passes_per_step out, call optimizer.step() after each batch, and give "
            f"global_batch={backward_passes_per_step} * hvd.size() * batch_size"
        )
    if sparse_as_dense or process_set is not None:
        raise UsageError("hvd.DistributedOptimizer: sparse_as_dense and process_set are not supported: leave them out")
    if compression not in (Compression.none, Compression.fp16, Compression.bf16):
        raise UsageError("hvd.DistributedOptimizer: take hvd.Compression.none, fp16 or bf16 as compression")
    settings = {} if compression == Compression.none else {"exchange.dtype": compression}
    state.job = lockstep.init(seed=torch.initial_seed() % (1 << 63), settings=settings)
    state.optimizer = _Optimizer(optimizer)
    state.more = {"clip_grad_norm": clip_grad_norm, "global_batch": global_batch}
    state.watch()
    return state.optimizer


class _Optimizer(torch.optim.Optimizer):
    """The script's optimizer until the loop begins, and the job's from then on."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._now: Any = optimizer

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "step":
            raise UsageError(
                "a scheduler was made of hvd.DistributedOptimizer's optimizer, which is not supported: write "
                "model, opt, loader, sched = job.prepare(model, opt, loader, sched, epochs=10) instead"
            )
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_now"], name)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        groups: list[dict[str, Any]] = self._now.param_groups
        return groups

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._now.zero_grad()

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self._now.step(closure)

    def state_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = self._now.state_dict()
        return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._now.load_state_dict(state)

    def synchronize(self) -> NoReturn:
        raise UsageError(
            "optimizer.synchronize() is not supported, as gradients are summed after optimizer.step(): leave it and "
            "skip_synchronize() out, and to clip write hvd.DistributedOptimizer(..., clip_grad_norm=1.0)"
        )

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        self.synchronize()
        yield


# --- within


class _State:
    """Of this process, from `init` to `shutdown`."""

    def __init__(self) -> None:
        self.job: Job | None = None
        self.optimizer: _Optimizer | None = None
        self.more: dict[str, Any] = {}
        self._loader: Any = None  # the script's, and the job's
        self._prepared: Any = None
        self._reads: Callable[[Any], Any] | None = None  # of DataLoader, before `watch`
        self._preparing = False
        self._passes = 0
        self._calls = 0  # of exchanged, since the last pass began
        launched = _launched.surroundings()
        if address := os.environ.get("LOCKSTEP_COORDINATOR"):
            wanted, workers = os.environ.get("LOCKSTEP_WORKER", ""), os.environ.get("LOCKSTEP_WORKERS", "")
            if not wanted.isdecimal() or not workers.isdecimal():
                raise UsageError(
                    f"hvd.init: the job at {address} gives this worker no number: start the workers with lockstep run, or set "
                    "LOCKSTEP_WORKER and LOCKSTEP_WORKERS"
                )
            self.rank, self.size = int(wanted), int(workers)
        else:
            self.rank, self.size = (launched.worker, launched.workers) if launched else (0, 1)
        self._channel: _channel.Channel | None = None
        self._folder = os.environ.get("LOCKSTEP_INITIAL") if address else None
        if self._folder:
            self._channel = _initial.Folder(self._folder)
            self._channel.put(f"hvd-{self.rank}-process", str(os.getpid()).encode())
        elif launched is not None:
            self._channel = _launched.Meeting(launched, os.environ.get("LOCKSTEP_SECRET_FILE"))

    def close(self) -> None:
        if self._reads is not None:
            DataLoader.__iter__ = self._reads  # type: ignore[method-assign]
        if self.job is not None:
            self.job.close()

    def here(self, names: Iterable[str], otherwise: int) -> int:
        for name in names:
            if os.environ.get(name, "").isdecimal() and "LOCKSTEP_COORDINATOR" not in os.environ:
                return int(os.environ[name])
        return otherwise

    # --- the training loader

    def watch(self) -> None:
        """Looks at each DataLoader that is read, until the training one is found, and takes that one's passes."""
        state, reads = self, DataLoader.__iter__

        def watched(loader: Any) -> Any:
            if state._preparing or state.optimizer is None:
                return reads(loader)
            if state._loader is None:
                model = _model_of(state.optimizer._now)
                if not model.training:
                    return reads(loader)
                state._prepare(model, loader)
            if loader is not state._loader:
                return reads(loader)
            state._passes, state._calls = state._passes + 1, 0
            return iter(state._prepared)

        self._reads = reads
        DataLoader.__iter__ = watched  # type: ignore[method-assign]

    def _prepare(self, model: nn.Module, loader: Any) -> None:
        sampler = loader.sampler
        distributed = isinstance(sampler, DistributedSampler)
        if self.size > 1 and not distributed:
            raise UsageError(
                "the DataLoader that is read in training mode has no DistributedSampler: give it "
                "sampler=DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank()), or call model.eval() before"
            )
        if loader.batch_size is None:
            raise UsageError("the training DataLoader has no batch_size: give it one in place of its batch_sampler")
        whole = loader
        if distributed:
            copied = ("num_workers", "collate_fn", "pin_memory", "drop_last", "timeout", "worker_init_fn", "persistent_workers")
            more = {name: getattr(loader, name) for name in (*copied, "multiprocessing_context", "prefetch_factor")}
            whole = DataLoader(loader.dataset, batch_size=loader.batch_size, shuffle=sampler.shuffle, **more)
        assert self.job is not None and self.optimizer is not None
        batch = self.more["global_batch"] or self.size * loader.batch_size
        self._preparing = True
        try:
            _, prepared, self._prepared = self.job.prepare(
                model, self.optimizer._now, whole, epochs=_NO_END, global_batch=batch, clip_grad_norm=self.more["clip_grad_norm"]
            )
        finally:
            self._preparing = False
        self._loader, self.optimizer._now = loader, prepared

    # --- what workers tell each other

    def tensors(self, tensor: Any, what: str) -> dict[int, torch.Tensor]:
        value = torch.as_tensor(tensor)
        if not _safetensors.holds(value):
            raise UsageError(f"hvd: a tensor of {value.dtype} is not supported: convert it to float32")
        found = self.exchanged(_safetensors.pack({"value": value}), what)
        return {worker: _safetensors.unpack(data)["value"] for worker, data in found.items()}

    def exchanged(self, data: bytes, what: str) -> dict[int, bytes]:
        """By rank. The n-th call after a pass meets those of the other workers, also that of one that was there long before."""
        if self.size == 1:
            return {0: data}
        if self._channel is None:
            raise UsageError("hvd.allreduce and the like want one host, or torchrun or mpirun: use hvd.job().log instead")
        if self.job is not None and self._prepared is not None and self.job._run.is_on():
            raise UsageError(
                "hvd.allreduce and the like are not for the loop, in which workers have unlike numbers of batches: use "
                'hvd.job().log({"loss": loss.item()}) there'
            )
        place = f"hvd-{self._passes}-{self._calls}-{{}}"
        self._calls += 1
        away = self.job.away(what, at_most=_PATIENCE_S) if self.job is not None else contextlib.nullcontext()
        with away:
            mine = place.format(self.rank)
            if not self._channel.restarts or self._channel.get(mine) is None:
                self._channel.put(mine, what.encode() + b"\0" + data)
            found = {}
            for worker in range(self.size):
                if (other := self._other(worker, place.format(worker), what)) is not None:
                    found[worker] = other
        return found

    def _other(self, worker: int, place: str, what: str) -> bytes | None:
        """None: it has ended without it."""
        assert self._channel is not None
        end = time.monotonic() + _PATIENCE_S
        while True:
            gone = self._gone(worker)  # looked at first: it may have been the last that it did
            data = self._channel.get(place)
            if data is not None:
                theirs, _, value = data.partition(b"\0")
                if theirs != what.encode():
                    raise UsageError(f"hvd: worker {self.rank} calls the {what}, and worker {worker} the {theirs.decode()}")
                return value
            if gone:
                return None
            if time.monotonic() > end:
                raise JobFailed(f"hvd: worker {worker} has not come to the {what} in {_PATIENCE_S:.0f} s")
            time.sleep(_LOOK_S)

    def _gone(self, worker: int) -> bool:
        """Only on this host."""
        process = self._channel.get(f"hvd-{worker}-process") if self._folder and self._channel else None
        if process is None:
            return False
        try:
            os.kill(int(process), 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        with contextlib.suppress(OSError), open(f"/proc/{int(process)}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"  # its parent has not looked yet
        return False


_state: _State | None = None


def _known() -> _State:
    if _state is None:
        raise UsageError("call hvd.init() first")
    return _state


def _root(root_rank: int) -> None:
    _known()
    if root_rank != 0:
        raise UsageError(f"hvd: root_rank={root_rank} is not supported: a job begins with what worker 0 has, so leave root_rank=0")


def _as_json(value: Any) -> bytes:
    with contextlib.suppress(TypeError, ValueError):
        text = json.dumps(value)
        if json.loads(text) == value:
            return text.encode()
    raise UsageError(f"hvd: an object of {type(value).__name__} is not supported: send numbers, strings, lists and dicts of them")


def _model_of(optimizer: torch.optim.Optimizer) -> nn.Module:
    """The module that holds the optimizer's parameters, and is in no other one."""
    wanted = {id(p) for group in optimizer.param_groups for p in group["params"]}
    modules: list[nn.Module] = [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]
    holders = [each for each in modules if wanted <= {id(p) for p in each.parameters()}]
    within = {id(part) for each in holders for part in each.modules() if part is not each}
    outer = [each for each in holders if id(each) not in within]
    if len(outer) != 1:
        raise UsageError(
            f"hvd.DistributedOptimizer: {len(outer)} modules hold the parameters of the optimizer, and a job trains one: use "
            "job.prepare, which takes the model"
        )
    return outer[0]
