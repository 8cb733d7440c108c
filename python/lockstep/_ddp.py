"""Scripts that are written for DistributedDataParallel: the wrapper, and its way to count a batch.

`job.prepare` gives the wrapper back, so `model.module`, `model.no_sync()` and the keys of `model.state_dict()` are as before. It
only passes calls on to the module: the job exchanges the gradients, and DDP's reducer, with its memory and its hooks, is gone.

A DDP script gives the batch size of one rank, where a job gives that of all workers together. A wrapper, or a DistributedSampler
with several replicas, tells such a script.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.utils import _to_kwargs
from torch.nn.parallel import DistributedDataParallel

from lockstep._errors import UsageError

_OF_THE_GROUP = ("process_group", "reducer", "logger")


class Unwrapped(DistributedDataParallel):
    """A wrapper that exchanges nothing. Never made: `take` turns a DistributedDataParallel into one."""

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if self.device_ids:  # DDP moves inputs to the module's GPU
            device = torch.device(self.device_type, self.device_ids[0])
            moved, named = _to_kwargs(inputs, kwargs, device, self.use_side_stream_for_tensor_copies)
            inputs, kwargs = moved[0], named[0]
        return self.module(*inputs, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def join(self, *_: Any, **__: Any) -> Iterator[None]:
        """Workers have different numbers of batches anyway."""
        yield

    def register_comm_hook(self, *_: Any) -> None:
        raise UsageError(
            "register_comm_hook: the job exchanges the gradients, without DDP's hooks. For less traffic write "
            'lockstep.init(settings={"exchange.dtype": "bf16"})'
        )

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in _OF_THE_GROUP}

    def __setstate__(self, state: dict[str, Any]) -> None:
        nn.Module.__setstate__(self, state)  # type: ignore[no-untyped-call]


def is_wrapper(model: Any) -> bool:
    return isinstance(model, DistributedDataParallel)


def take(model: nn.Module, workers: int | None) -> tuple[nn.Module, int]:
    """The module that is trained, inside of the wrapper if there is one, and how many ranks the wrapper has. `workers`: that the
    job is to have, if that is known."""
    if not isinstance(model, DistributedDataParallel):
        return model, 1
    ranks: int = model.process_group.size()
    if isinstance(model, Unwrapped):  # of an earlier job of this script
        return model.module, ranks
    if workers not in (None, ranks):
        raise UsageError(
            f"DistributedDataParallel is over {ranks} ranks and the job has {workers} workers: give it no process_group"
        )
    if getattr(model, "mixed_precision", None) is not None:
        raise UsageError("DistributedDataParallel(mixed_precision=...) is not supported: use torch.autocast in the loop")
    if getattr(model, "_comm_hooks", None):
        Unwrapped.register_comm_hook(model)  # type: ignore[arg-type]
    model.__class__ = Unwrapped
    model.__dict__.update(reducer=None, logger=None)
    return model.module, ranks


def lines(wrapped: bool, ranks: int, order: Any, batch: int) -> list[str]:
    """One line for each thing that the job does otherwise than DDP. `ranks`: that share a round's `batch`, each with the loader's;
    1 where the script has said how large it is."""
    found = []
    if wrapped:
        found.append(
            "DistributedDataParallel is unwrapped: the job exchanges the gradients, and the wrapper passes calls on to its module"
        )
    if ranks > 1 and batch == ranks * order.batch_size:
        found.append(
            f"batch_size={order.batch_size} is taken for that of one worker, as DDP has it: a round has {batch} samples, of "
            f"{ranks} workers together. For another size give job.prepare global_batch=, as global_batch={order.batch_size}"
        )
    if order.padding:
        found.append(
            f"DistributedSampler would repeat {order.padding} samples in each epoch, so that all ranks have as many. In the job "
            "each sample counts once"
        )
    return found
