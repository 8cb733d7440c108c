"""Checks the kinds of the arguments of job.prepare. If a job cannot take one, a line says what to write instead."""

import os
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from lockstep._errors import UsageError

LOADER = "DataLoader(data, batch_size=16)"
TOGETHER = (
    'one module, nn.ModuleList([a, b]), one optimizer, torch.optim.SGD([{"params": a.parameters()}, {"params": b.parameters()}], '
    "lr=0.1), and one backward pass of the sum of their losses"
)
LISTS = "job.prepare([a, b], [first, second], loader, epochs=2)"
LATER = (
    'a group of their own, opt = torch.optim.AdamW([{"params": head.parameters()}, {"params": body.parameters()}], lr=0.001), and '
    "a rate of 0 until then, torch.optim.lr_scheduler.LambdaLR(opt, [lambda t: 1.0, lambda t: float(t >= unfreeze_at)])"
)
EARLIER = "torch.optim.lr_scheduler.LambdaLR(opt, [lambda t: 1.0, lambda t: float(t < freeze_at)])"
RATES = "torch.optim.lr_scheduler.LambdaLR(opt, lambda t: rate(t) / lr)"
OWN_UPDATES = 'lockstep.init(settings={"optimizer.name": "custom"})'
RATES_OF_TIMM = "torch.optim.lr_scheduler.LambdaLR(opt, lambda t, of=sched: of._get_lr(t)[0] / of.base_values[0])"
_TORCH = os.path.dirname(torch.__file__) + os.sep
_SEVERAL = (list, tuple, dict, set, nn.ModuleList)


def check(model: Any, optimizer: Any, loader: Any, scheduler: Any, epochs: Any) -> None:
    """Looks at kinds alone."""
    if not isinstance(model, nn.Module):
        if isinstance(model, _SEVERAL):
            raise UsageError(
                f"job.prepare was given a {type(model).__name__} of models, and no list of optimizers: give it lists of both, "
                f"{LISTS}, or one module, nn.ModuleList([a, b])"
            )
        raise UsageError(f"job.prepare was given {_what(model)} as its model: it takes the torch.nn.Module that is trained")
    if not isinstance(optimizer, Optimizer):
        if isinstance(optimizer, _SEVERAL):
            raise UsageError(f"job.prepare was given a {type(optimizer).__name__} of optimizers: give it a list, {LISTS}")
        raise UsageError(
            f"job.prepare was given {_what(optimizer)} as its optimizer: it takes one of torch.optim, as "
            "torch.optim.SGD(model.parameters(), lr=0.1)"
        )
    check_loader(loader)
    if isinstance(scheduler, _SEVERAL):
        raise UsageError(
            f"job.prepare was given a {type(scheduler).__name__} of schedulers, and a job has one: make one of them, "
            "torch.optim.lr_scheduler.ChainedScheduler([first, second])"
        )
    if epochs is None:
        raise UsageError(
            "job.prepare was not told how many passes over the loader the job has: job.prepare(model, opt, loader, epochs=2)"
        )


def model(model: Any) -> nn.Module:
    """One of several."""
    if not isinstance(model, nn.Module):
        raise UsageError(f"job.prepare was given {_what(model)} among its models: it takes the torch.nn.Modules that are trained")
    return model


def explain_wrapper(model: nn.Module) -> Callable[[BaseException], str]:
    """For `_errors.explanations`, of a script that takes the model for one in DistributedDataParallel."""
    of = weakref.ref(model)

    def explain(error: BaseException) -> str:
        if not isinstance(error, AttributeError) or error.name != "module" or error.obj is None or error.obj is not of():
            return ""
        where = traceback.extract_tb(error.__traceback__)
        script = next((frame for frame in reversed(where) if not frame.filename.startswith(_TORCH)), None)
        place = f"{os.path.basename(script.filename)}:{script.lineno}: " if script else ""
        return f"{place}the model that job.prepare has returned is the script's own, in no wrapper: write model for model.module"

    return explain


def check_loader(loader: Any) -> None:
    if not isinstance(loader, DataLoader):
        raise UsageError(f"{_what(loader)} is no torch.utils.data.DataLoader: give the script's own, as {LOADER}")


def check_counts(**counts: int | None) -> None:
    """None: it was not said."""
    for name, value in counts.items():
        if value is not None and (not isinstance(value, int) or value < 1):
            raise UsageError(f"{name}: {value!r} is not a whole number from 1 on")


def _what(value: Any) -> str:
    """Names the kind of a value."""
    if value is None:
        return "None"
    return f"the class {value.__name__}" if isinstance(value, type) else f"{type(value).__name__}"
