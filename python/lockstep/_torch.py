"""Which torch there is. From 2.1 on it has what a backward pass is watched with (hooks behind a parameter's accumulated gradient);
what came later is done without where it is missing."""

import re

from lockstep._errors import UsageError

OLDEST = (2, 1)


def check() -> None:
    """Before anything else of the package takes torch."""
    oldest = ".".join(map(str, OLDEST))
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":  # it is there, and broken
            raise
        raise UsageError(
            f"lockstep.init is for PyTorch, and this Python has no torch: install {oldest} or later, or use lockstep.jax or "
            "lockstep.keras"
        ) from None
    version = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if version and (int(version[1]), int(version[2])) < OLDEST:
        raise UsageError(f"torch {torch.__version__} is too old: lockstep wants {oldest} or later")


def accelerator() -> str | None:
    """The kind of device that there is beside the CPU, as torch's own DataLoader sees it; None: there is none."""
    import torch

    if not hasattr(torch, "accelerator"):  # before 2.6
        return "cuda" if torch.cuda.is_available() else None
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return None if device is None else device.type
