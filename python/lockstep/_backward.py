"""`loss.backward()` of a batch in hand is the job's, so a loop, or a trainer of somebody else, need not say `job.backward`.

A job must know the loss beside its gradients, and make their sum of their mean, so hooks of parameters would not do: they see
gradients alone. `torch.Tensor.backward` is replaced while there is a job. It takes a loss that comes from the job's parameters,
which the graph behind it tells, and leaves all others, and calls with further arguments, to torch. The job refuses gradients of a
pass that gets around it (`torch.autograd.backward`).
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from lockstep import _scaler
from lockstep._errors import UsageError

_torch_backward: Callable[..., None] = torch.Tensor.backward
_taking: list["Taker"] = []
_CHECKPOINT = "CheckpointFunctionBackward"  # of torch.utils.checkpoint, and of those that were made after it


class Taker:
    """Of a job's losses, from `begin` to `end`. `in_hand`: whether there is a batch; `backward`: of the mean over it."""

    def __init__(self, in_hand: Callable[[], bool], backward: Callable[[torch.Tensor, bool], None]) -> None:
        self.in_hand = in_hand
        self.backward = backward
        self._wanted: set[int] = set()

    def begin(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._wanted = {id(p) for p in parameters}
        _taking.append(self)
        torch.Tensor.backward = _replacement  # type: ignore[method-assign]
        _scaler.watch()

    def end(self) -> None:
        """May be called again."""
        if self in _taking:
            _taking.remove(self)
        if not _taking and torch.Tensor.backward is _replacement:  # else somebody has done the same since
            torch.Tensor.backward = _torch_backward  # type: ignore[method-assign]
        if not _taking:
            _scaler.unwatch()

    def reached_from(self, loss: torch.Tensor) -> bool:
        """Searches depth first, as the first leaf is mostly a parameter of the job. The graph does not show the inside of a
        checkpoint with use_reentrant=True, so a loss with one counts as one from the job's parameters."""
        seen: set[Any] = set()
        stack: list[Any] = [loss.grad_fn]
        hidden = False
        while stack:
            node = stack.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if id(getattr(node, "variable", None)) in self._wanted:
                return True
            hidden = hidden or type(node).__name__ == _CHECKPOINT
            stack.extend(behind for behind, _ in node.next_functions)
        return hidden


def _backward(
    self: torch.Tensor,
    gradient: torch.Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    if gradient is None and inputs is None:
        for taker in _taking:
            if taker.in_hand() and taker.reached_from(self):
                if create_graph:
                    raise UsageError("loss.backward(create_graph=True) is not supported")
                taker.backward(self, bool(retain_graph))
                return
    _torch_backward(self, gradient, retain_graph, create_graph, inputs)


_replacement: Callable[..., None] = _backward


def keep_from_compiler() -> None:
    """torch.compile looks into what a compiled step calls, and warns of all that it cannot take. It is not loaded for this."""
    global _replacement
    if "torch._dynamo" in sys.modules and _replacement is _backward and torch.Tensor.backward is _backward:
        _replacement = torch._dynamo.disable(_backward)  # type: ignore[no-untyped-call]
        torch.Tensor.backward = _replacement  # type: ignore[method-assign]
