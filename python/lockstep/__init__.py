"""Straggler-tolerant synchronous SGD: a worker of a Lockstep job.

With PyTorch, three lines:

    import lockstep
    job = lockstep.init()
    model, opt, loader = job.prepare(model, opt, loader, epochs=10)

and a loop that stays as it is. `docs/reference/pytorch-api.md` says what that means and what is not supported.
`lockstep.jax` is for JAX, `lockstep.keras` for Keras. Without these, `lockstep.Session` is the bare interface: runs of units in,
gradient sums out, as memoryviews.
"""

import os

from lockstep._call import launch
from lockstep._errors import Error, JobFailed, TryAgain, UsageError, end_with_one_line
from lockstep._init import init
from lockstep._session import Counted, Kind, Reduction, Session, Tensor, Work, version
from lockstep._session import Job as JobDescription
from lockstep._undivided import undivided

if "LOCKSTEP_WORKER" in os.environ:  # what the script does before lockstep.init may be wrong for a worker of lockstep run, too
    end_with_one_line()

__version__ = "0.1.0"
__all__ = [
    "Counted",
    "Error",
    "JobDescription",
    "JobFailed",
    "Kind",
    "Reduction",
    "Session",
    "Tensor",
    "TryAgain",
    "UsageError",
    "Work",
    "init",
    "launch",
    "undivided",
    "version",
]
