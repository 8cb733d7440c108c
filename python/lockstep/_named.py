"""Looks at the names in the script's code: whether it handles gradients, rates or the state of its optimizer by itself.

Between the backward pass and opt.step() such a script sees the gradient of the whole update only if its own optimizer makes the
updates. That is settled before the first batch, so the code is read. A name that is there for something else costs speed alone:
the updates come out the same.
"""

import dis
import os
import sys
import sysconfig
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import torch

_GRADIENTS = ("clip_grad_norm_", "clip_grad_value_", "grad")
_FOLDERS = tuple(
    os.path.join(os.path.realpath(folder), "")
    for folder in {
        *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        os.path.dirname(__file__),
        os.path.dirname(os.path.dirname(torch.__file__)),
    }
)
_MOST_CLASSES = 8  # one within another


def why_own_optimizer() -> str:
    """Says what in the script's code wants its own optimizer to make the updates; empty: nothing."""
    for code in _codes():
        for name in _GRADIENTS:
            if name in code.co_names:
                return f"the script handles gradients ({name})"
        if "param_groups" in code.co_names and "lr" in code.co_consts and _sets_rate(code):
            return 'the script sets rates (param_groups[...]["lr"])'
        if "state_dict" in code.co_names and _saves_optimizer(code):
            return "the script saves the state of its optimizer (state_dict)"
    return ""


def _sets_rate(code: CodeType) -> bool:
    before = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "STORE_SUBSCR" and before is not None and (before.argval == "lr" or before.opname == "SWAP"):
            return True
        before = instruction
    return False


def _saves_optimizer(code: CodeType) -> bool:
    before = None
    for instruction in dis.get_instructions(code):
        if instruction.argval == "state_dict" and before is not None and "opt" in str(before.argval).lower():
            return True
        if instruction.opname != "PUSH_NULL":
            before = instruction
    return False


def _codes() -> Iterator[CodeType]:
    """Of the functions that are on their way, and of all functions of the script's modules, but those of its optimizers."""
    seen: set[CodeType] = set()
    spaces: dict[int, dict[str, Any]] = {}
    frame = sys._getframe(1)
    while frame is not None:
        if _is_scripts(frame.f_code.co_filename):
            spaces[id(frame.f_globals)] = frame.f_globals
            yield from _within(frame.f_code, seen, frame.f_globals)
        frame = frame.f_back  # type: ignore[assignment]
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and _is_scripts(file):
            spaces[id(vars(module))] = vars(module)
    for space in spaces.values():
        for value in list(space.values()):
            if getattr(value, "__module__", None) == space.get("__name__"):
                for function in _functions(value, _MOST_CLASSES):
                    yield from _within(function.__code__, seen, space)


def _is_scripts(file: str) -> bool:
    return not file.startswith("<frozen") and not os.path.realpath(file).startswith(_FOLDERS)


def _functions(value: Any, depth: int) -> Iterator[FunctionType]:
    value = getattr(value, "__wrapped__", value)
    value = getattr(value, "__func__", getattr(value, "fget", value))
    if isinstance(value, FunctionType):
        yield value
    elif isinstance(value, type) and depth > 0 and not _is_optimizer(value):
        for part in list(vars(value).values()):
            yield from _functions(part, depth - 1)


def _is_optimizer(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, torch.optim.Optimizer)


def _within(code: CodeType, seen: set[CodeType], space: dict[str, Any]) -> Iterator[CodeType]:
    if code in seen:
        return
    seen.add(code)
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and not _is_optimizer(space.get(constant.co_name)):
            yield from _within(constant, seen, space)
