"""Where a model's parameters are, and with them the session's memory: on the host or on one GPU.

On a GPU gradients and parameters stay in the session's memory there, which torch views as it views the host's memory. Calls of
torch return while kernels are under way on a stream. The session is told which stream, and reads nothing before they are done.
"""

from collections.abc import Iterable

import torch
import torch.utils.dlpack

from lockstep._errors import UsageError
from lockstep._session import Session


class Host:
    """The host's memory. When torch returns, its work is done."""

    name = "cpu"

    def floats(self, session: Session, address: int, *, state: bool = False) -> torch.Tensor:
        """A view of the session's memory, which stays as long as the view does."""
        return torch.utils.dlpack.from_dlpack(session.tensor(address, state=state))

    def stream(self) -> int | None:
        """The stream on which this thread asks for work now; None: nothing is under way."""
        return None

    def settle(self, session: Session) -> None:
        """Has the session wait for all work that this thread has asked for."""
        stream = self.stream()
        if stream is not None:
            session.await_stream(stream)


class Gpu(Host):
    """A GPU's memory."""

    def __init__(self, index: int) -> None:
        self._index = index
        self.name = f"cuda:{index}"

    def stream(self) -> int | None:
        return int(torch.cuda.current_stream(self._index).cuda_stream)


def of(tensors: Iterable[tuple[str, torch.Tensor]]) -> Host:
    """Of a model's parameters, with their names."""
    places = [(name, tensor.device) for name, tensor in tensors]
    first, place = places[0]
    for name, device in places:
        if device.type not in ("cpu", "cuda"):
            raise UsageError(f"{name} is on {device}: lockstep trains PyTorch models on the CPU and on CUDA GPUs")
        if device != place:
            raise UsageError(f"{first} is on {place} and {name} on {device}: all trained parameters must be on one device")
    return Host() if place.type == "cpu" else Gpu(place.index or 0)
