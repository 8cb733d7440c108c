"""Whether a loss is a sum over the batch, where a job takes it for the mean: the graph behind it tells, as far as it is torch's.

A worker's batch is a part of the round's batch, so its sum becomes smaller with more workers. Such a job would train differently
with each number of workers. A loss that cannot be told (compiled, or of functions of the script's own) is taken for a mean.
"""

from collections.abc import Collection
from typing import Any

import torch

_MEAN, _SUM = 1, 2  # as torch's losses note their reduction
_MOST_NODES = 64
_THROUGH = {"Add", "Sub", "Rsub", "Mul", "Div", "Neg", "View", "ReshapeAlias", "Squeeze", "Unsqueeze", "ToCopy", "Clone"}
_MOST_WEIGHT = 2.0  # of all samples together, where a sum is weighted to be a mean


def doubt(loss: torch.Tensor, samples: int, batch: int, divisors: Collection[int]) -> str:
    """Before the backward pass: why the loss of so many samples is no mean over them, and what to write; empty: nothing says so.
    `batch`: samples of an update. `divisors`: batch sizes by which a script may divide instead of the samples in hand. If one of
    several terms is a mean, that decides."""
    found = ""
    nodes: list[Any] = [loss.grad_fn] if samples > 1 else []
    for _ in range(_MOST_NODES):
        if not nodes:
            break
        node = nodes.pop()
        name, reduction = _name(node), getattr(node, "_saved_reduction", None)
        if reduction == _MEAN or name == "Mean":
            return ""
        if reduction == _SUM or (name == "Sum" and torch.Size(node._saved_self_sym_sizes).numel() >= samples):
            if not any(_makes_a_mean(inner, samples) for inner in _within(node)):
                found = found or (
                    f"the loss is a sum over the {samples} samples of the batch in hand, and is taken for their mean: write "
                    f'job.backward(loss, reduction="sum"). The update is that of the mean over {batch} samples all the same: for '
                    f"that of their sum, multiply the learning rate by {batch}"
                )
        elif name in _THROUGH:
            divisor = _divisor(node)
            if divisor in divisors and divisor != samples:
                found = (
                    f"the loss is divided by {divisor:g}, and the batch in hand has {samples} samples, so it is no mean over them: "
                    "divide by len(x)"
                )
            elif divisor is not None and abs(divisor) > 1:
                return ""
            elif not _makes_a_mean(node, samples):
                nodes += _behind(node)
    return found


def _name(node: Any) -> str:
    """Mul of MulBackward0."""
    return type(node).__name__.rstrip("0123456789").removesuffix("Backward")


def _behind(node: Any) -> list[Any]:
    return [behind for behind, _ in node.next_functions if behind is not None]


def _within(node: Any) -> list[Any]:
    """The factors and divisors within a sum, such as a mean of weights."""
    found: list[Any] = []
    while (inner := _behind(node)[:1]) and _name(inner[0]) in _THROUGH and len(found) < _MOST_NODES:
        node = inner[0]
        found.append(node)
    return found


def _makes_a_mean(node: Any, samples: int) -> bool:
    """It divides by a count of all samples, or multiplies with weights that are shares of a whole."""
    if _name(node) == "Div":
        return abs(_divisor(node) or 0) >= samples
    if _name(node) != "Mul":
        return False
    weights = _constants(node, "_saved_other", "_saved_self")
    return any(by.abs().sum().item() * (samples if by.numel() == 1 else 1) <= _MOST_WEIGHT for by in weights)


def _divisor(node: Any) -> float | None:
    """Of a division by one number."""
    by = _constants(node, "_saved_other") if _name(node) == "Div" else []
    return float(by[0].item()) if by and by[0].numel() == 1 else None


def _constants(node: Any, *keys: str) -> list[torch.Tensor]:
    """Those of what an operation has kept that nothing is trained in."""
    found = []
    for key in keys:
        try:
            value = getattr(node, key, None)
        except RuntimeError:  # it went with an earlier pass
            continue
        if value is not None and not (isinstance(value, torch.Tensor) and value.requires_grad):
            found.append(torch.as_tensor(value, dtype=torch.float64))
    return found
