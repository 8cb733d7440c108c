"""Functions that the script wants called after each update (`job.after_update`), as for an average of the parameters.

A function is a part of the update: every worker calls it behind the optimizer's step, and its changes of the parameters are the
job's. The values that it keeps from one update to the next lie in the session's memory, beside the optimizer's state
(_update.py). So checkpoints have them, and a worker that copies the job's state gets them, too. A round that is computed again
begins with those before it.

Changes elsewhere would be each worker's own. So objects that a function names in its code and that could be kept have to be given
to `job.after_update`.
"""

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lockstep import _safetensors
from lockstep._errors import UsageError

_NUMBERS = (bool, int, float)
_WRITE = "job.after_update(lambda n: ema.update_parameters(model), ema)"
# What averages parameters, by module and class, and the call that does it.
_AVERAGES = (
    ("torch.optim.swa_utils", "AveragedModel", "update_parameters"),
    ("timm.utils.model_ema", "ModelEmaV2", "update"),
    ("timm.utils.model_ema", "ModelEmaV3", "update"),
)


class After:
    """The functions, in the order of the calls, and the objects that keep something for them."""

    def __init__(self) -> None:
        self._functions: list[Callable[[int], object]] = []
        self._kept: list[Any] = []
        self._shape: list[str] = []  # of what they keep: names, and what is no value

    def add(self, function: Callable[[int], object], kept: Sequence[Any]) -> None:
        if not callable(function):
            raise UsageError(
                f"job.after_update was given {type(function).__name__}, and wants a function of the number of updates: {_WRITE}"
            )
        for one in kept:
            if not _could_keep(one):
                raise UsageError(
                    f"job.after_update: {type(one).__name__} has no state_dict and load_state_dict, so the job cannot keep it: put "
                    "tensors into a module, as register_buffer of torch.nn.Module does"
                )
        self._functions.append(function)
        self._kept += [one for one in kept if all(one is not other for other in self._kept)]

    @property
    def there_is(self) -> bool:
        return bool(self._functions)

    @property
    def keeps(self) -> bool:
        return bool(self._kept)

    def check(self, model: nn.Module, trained: Sequence[nn.Parameter]) -> None:
        """Before the job. `model`: with its wrapper, if it has one. `trained`: its parameters that are."""
        of_job = set(map(id, trained))
        for one in self._kept:
            if any(id(tensor) in of_job for tensor in _tensors(one)):
                raise UsageError(
                    f"job.after_update: {type(one).__name__} has parameters that the job trains and keeps: give it the others"
                )
        known = {id(tensor) for one in (model, *self._kept) for tensor in _tensors(one)}
        own = set(map(id, self._kept))
        for function in self._functions:
            for name, value in _named(function):
                if id(value) in own or not _could_keep(value) or isinstance(value, (Optimizer, LRScheduler)):
                    continue
                if isinstance(value, nn.Module) and {id(tensor) for tensor in _tensors(value)} <= known:
                    continue
                raise UsageError(
                    f"the function of job.after_update uses {name}, which checkpoints and workers that join later would not have: "
                    f"let the job keep it, job.after_update(function, {name})"
                )
        self._shape = self._shape_now()

    def tensors(self) -> list[torch.Tensor]:
        """That are kept and may be parts of the model, too."""
        return [tensor for one in self._kept for tensor in _tensors(one)]

    @contextlib.contextmanager
    def shared(self) -> Iterator[dict[str, torch.Tensor]]:
        """The tensors, by name, to be given worker 0's values."""
        named = dict(self._named_values())
        shared = {name: value for name, value in named.items() if isinstance(value, torch.Tensor) and _safetensors.holds(value)}
        yield shared
        self.put(list((named | shared).values()))

    def values(self) -> list[Any]:
        """Tensors and numbers, in an order that stays."""
        if (shape := self._shape_now()) != self._shape:
            differ = next((name for name, was in zip(shape, self._shape, strict=False) if name != was), "something")
            raise UsageError(f"job.after_update keeps something else than at job.prepare ({differ}): make it before that")
        return [value for _, value in self._named_values()]

    def put(self, values: Sequence[Any]) -> None:
        """As `values` has returned them."""
        left = iter(values)
        with torch.no_grad():
            for one in self._kept:
                if isinstance(one, nn.Module):
                    for tensor in _tensors(one):
                        tensor.copy_(next(left))
                else:
                    one.load_state_dict(_rebuilt(one.state_dict(), left))

    def call(self, updates: int) -> None:
        """After so many updates."""
        with torch.no_grad():
            for function in self._functions:
                function(updates)

    def _named_values(self) -> Iterator[tuple[str, Any]]:
        for number, one in enumerate(self._kept):
            for name, value in _leaves(one):
                if isinstance(value, (torch.Tensor, *_NUMBERS)):
                    yield f"lockstep.kept {number} {name}", value

    def _shape_now(self) -> list[str]:
        shape = []
        for one in self._kept:
            for name, value in _leaves(one):
                kind = "a value" if isinstance(value, (torch.Tensor, *_NUMBERS)) else repr(value)
                shape.append(f"{name} of {type(one).__name__}: {kind}")
        return shape


class Watch:
    """Refuses averages that the script makes in its loop, from `begin` to `end`. The model lacks the update there, and workers have
    different numbers of batches. `in_loop`: whether the script is there."""

    def __init__(self, in_loop: Callable[[], bool]) -> None:
        self._in_loop = in_loop
        self._replaced: list[tuple[type, str, Any]] = []

    def begin(self) -> None:
        for module, name, call in _AVERAGES:
            kind = getattr(sys.modules.get(module), name, None)
            if kind is not None:
                self._replaced.append((kind, call, vars(kind)[call]))
                setattr(kind, call, self._watched(vars(kind)[call], name, call))

    def end(self) -> None:
        """May be called again."""
        while self._replaced:
            kind, call, plain = self._replaced.pop()
            setattr(kind, call, plain)

    def _watched(self, plain: Callable[..., Any], name: str, call: str) -> Callable[..., Any]:
        @functools.wraps(plain)
        def watched(*arguments: Any, **named: Any) -> Any:
            if self._in_loop():
                raise UsageError(
                    f"{name}.{call} was called in the loop, where the model has no update of the batch in hand yet: before "
                    f"job.prepare, let it follow the updates, {_WRITE.replace('update_parameters', call)}"
                )
            return plain(*arguments, **named)

        return watched


def _could_keep(value: Any) -> bool:
    """Something may be kept in it, and the job can read and set that."""
    methods = (getattr(value, name, None) for name in ("state_dict", "load_state_dict"))
    return not isinstance(value, type) and all(map(callable, methods))


def _tensors(of: Any) -> list[torch.Tensor]:
    if isinstance(of, nn.Module):
        return [*of.parameters(), *of.buffers()]
    return [value for _, value in _leaves(of) if isinstance(value, torch.Tensor)]


def _leaves(of: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(of, nn.Module):
        yield from of.named_parameters()
        yield from of.named_buffers()
    else:
        yield from _within(of.state_dict(), "")


def _within(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        parts = [(f"{name}.{key}".lstrip("."), part) for key, part in value.items()]
    elif isinstance(value, (list, tuple)):
        parts = [(f"{name}[{at}]", part) for at, part in enumerate(value)]
    else:
        yield name, value
        return
    for part_name, part in parts:
        yield from _within(part, part_name)


def _rebuilt(value: Any, left: Iterator[Any]) -> Any:
    """The same with other values."""
    if isinstance(value, Mapping):
        return {key: _rebuilt(part, left) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_rebuilt(part, left) for part in value)
    if not isinstance(value, (torch.Tensor, *_NUMBERS)):
        return value
    now = next(left)
    return now.clone() if isinstance(now, torch.Tensor) else now


def _named(function: Any) -> Iterator[tuple[str, Any]]:
    """Objects that the code of the function names outside of itself, and those that it is bound to."""
    if isinstance(function, functools.partial):
        for value in (*function.args, *function.keywords.values()):
            yield type(value).__name__, value
        yield from _named(function.func)
        return
    bound = getattr(function, "__self__", None)
    if bound is not None:
        yield type(bound).__name__, bound
    function = getattr(function, "__func__", function)
    if not inspect.isfunction(function):
        if bound is None:
            yield type(function).__name__, function
        return
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield type(value).__name__, value
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # nothing was put there yet
            yield name, cell.cell_contents
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield name, function.__globals__[name]
