"""The state that a new job begins with: worker 0's, as with DDP, so that a script need not seed what it makes at random.

Parameters and buffers go from worker 0 to the others before they join, through a folder that `lockstep run` makes for the job, or
the store of torch.distributed. The coordinator compares the models of all workers before round 0. A tensor that does not fit
another worker's model is left alone, as that comparison reports it better. If there is no such way to the others, the coordinator
passes on the parameters (own_parameters in _session.py), and only those.

In: a model. Out: the same model with worker 0's values, also on a worker that was started again.
"""

import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from lockstep import _safetensors
from lockstep._channel import Channel
from lockstep._errors import JobFailed

_LOOK_S = 0.02
_PATIENCE_S = 600.0  # worker 0 may read its data before


class Folder:
    """A Channel on one machine. Nobody but this user may write there. It goes with the job."""

    restarts = True

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def put(self, name: str, data: bytes) -> None:
        try:
            with tempfile.NamedTemporaryFile(dir=self._path, delete=False) as file:
                file.write(data)
            os.replace(file.name, self._path / name)
        except FileNotFoundError:
            raise self._gone() from None
        except OSError as error:
            raise JobFailed(f"the state to begin with cannot be passed on: {self._path}: {error.strerror}") from None

    def get(self, name: str) -> bytes | None:
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            if not self._path.is_dir():
                raise self._gone() from None
            return None

    def _gone(self) -> JobFailed:
        return JobFailed(f"the job that this worker was started for has ended: its folder {self._path} is gone")


def share(channel: Channel, worker: int, model: nn.Module, more: Mapping[str, torch.Tensor] | None = None) -> None:
    """The model, and `more`, have worker 0's values afterwards, if they fit."""
    state = {name: tensor for name, tensor in [*model.named_parameters(), *model.named_buffers()] if _safetensors.holds(tensor)}
    state |= more or {}
    begun = channel.get("initial") if worker != 0 or channel.restarts else None
    if begun is None and worker == 0:
        channel.put("initial", _safetensors.pack(state))
        return
    end = time.monotonic() + _PATIENCE_S
    while begun is None:
        ended = channel.get("ended") is not None  # looked at first: it may have been the last that worker 0 did
        begun = channel.get("initial")
        if begun is not None:
            break
        if ended:
            raise JobFailed("worker 0 has ended before it came to job.prepare, so there is no state to begin with")
        if time.monotonic() > end:
            raise JobFailed(f"worker 0 has not come to job.prepare in {_PATIENCE_S:.0f} s, so there is no state to begin with")
        time.sleep(_LOOK_S)
    try:
        theirs = _safetensors.unpack(begun)
    except ValueError as error:
        raise JobFailed(f"the initial model did not come from worker 0 as it was sent: {error}") from None
    if [(n, t.shape, t.dtype) for n, t in state.items()] != [(n, t.shape, t.dtype) for n, t in theirs.items()]:
        return
    with torch.no_grad():
        for name, tensor in state.items():
            tensor.copy_(theirs[name])
