"""Which gradients the backward pass of a run has finished while it goes on: they may travel then.

torch calls a parameter's post-accumulate hooks when it has added to its gradient, once in a pass, whatever uses the parameter. The
hooks here are added for one pass only, so they run after all hooks of the script, and a gradient is final with the script's
changes. Parameters that the loss does not depend on are final with the first one that is.

A pass may run another pass within itself, which adds to gradients for a second time. A function whose backward is written in
Python may do so (checkpoints with use_reentrant=True do). If the graph has one, nothing is reported, and all is final when the run
is done.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.function import BackwardCFunction

from lockstep._errors import UsageError


def order_of(trained: int, count: int) -> list[int]:
    """The order in which `count` tensors should become final. The trained ones come first, in the reverse of the model's order. All
    others follow; they are final at the end of the run."""
    return [*reversed(range(trained)), *range(trained, count)]


def backward(
    loss: torch.Tensor, parameters: Sequence[nn.Parameter], report: Callable[[int], None], *, retain_graph: bool = False
) -> None:
    """`report` is called with the place of each of the parameters that is final, at most once, by the thread that runs the pass."""
    used = _used(loss)
    if used is None:
        torch.autograd.backward(loss, retain_graph=retain_graph)
        return
    unused = [place for place, p in enumerate(parameters) if id(p) not in used]
    said: set[int] = set()

    def hook(place: int) -> Callable[[torch.Tensor], None]:
        def is_final(_: torch.Tensor) -> None:
            if place in said:
                raise UsageError("a second backward pass has run within that of the loss, and added to the same gradients")
            said.add(place)
            while unused:
                report(unused.pop())
            report(place)

        return is_final

    hooks = [
        p.register_post_accumulate_grad_hook(hook(place))  # type: ignore[no-untyped-call]
        for place, p in enumerate(parameters)
        if id(p) in used
    ]
    try:
        torch.autograd.backward(loss, retain_graph=retain_graph)
    finally:
        for handle in hooks:
            handle.remove()


def _used(loss: torch.Tensor) -> set[int] | None:
    """The leaves behind the loss, by identity; None: the graph does not show all additions to their gradients."""
    leaves: set[int] = set()
    seen: set[Any] = {None}
    stack: list[Any] = [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        if isinstance(node, BackwardCFunction):
            return None
        seen.add(node)
        following = node.next_functions
        if following:
            stack.extend(behind for behind, _ in following)
        else:
            leaves.add(id(getattr(node, "variable", None)))
    return leaves
