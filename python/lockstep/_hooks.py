"""Shows hooks of the script the gradients of the mean loss over the batch in hand, as the script has computed it.

A job wants the gradient of the sum. To a hook that only scales or masks that is the same, but not to one that limits gradients, or
looks how large they are. So where there are hooks of parameters or modules the pass is of the mean, and what they have made of a
parameter's gradient is multiplied behind them.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn
from torch.nn.modules import module as torch_module


def there_are(parameters: Sequence[nn.Parameter], modules: Sequence[nn.Module]) -> bool:
    return (
        any(p._backward_hooks or p._post_accumulate_grad_hooks for p in parameters)
        or any(getattr(m, "_backward_hooks", None) or getattr(m, "_backward_pre_hooks", None) for m in modules)
        or bool(torch_module._global_backward_hooks or torch_module._global_backward_pre_hooks)
    )


@contextlib.contextmanager
def of_mean(parameters: Sequence[nn.Parameter], counts_for: int) -> Iterator[None]:
    """For one pass: adds so many times what the hooks have made of a gradient. A hook of what is added up has that of this pass in
    p.grad, and not what earlier ones have added."""
    handles = []
    sums: list[tuple[nn.Parameter, torch.Tensor | None]] = []
    lost: set[int] = set()

    def adding(into: torch.Tensor) -> Callable[[torch.Tensor], None]:
        def add(p: torch.Tensor) -> None:
            if p.grad is None:  # a hook has taken it, which is refused after the pass
                lost.add(id(p))
            else:
                into.add_(p.grad, alpha=counts_for)
            p.grad = None  # for a second pass within this one

        return add

    try:
        for p in parameters:
            if not p.requires_grad:
                continue
            if p._post_accumulate_grad_hooks and p.grad is not None:
                sums.append((p, p.grad))
                handles.append(p.register_post_accumulate_grad_hook(adding(p.grad)))  # type: ignore[no-untyped-call]
                p.grad = None
            else:
                handles.append(p.register_hook(lambda gradient: gradient * counts_for))  # type: ignore[no-untyped-call]
        yield
    finally:
        for handle in handles:
            handle.remove()
        for p, into in sums:
            p.grad = None if id(p) in lost else into
