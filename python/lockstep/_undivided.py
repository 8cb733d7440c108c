"""Hides other processes, which the environment tells of, from a dataset.

torchrun sets RANK and WORLD_SIZE, and libraries for streams share their items out by them: some when a dataset is made, some with
each pass over it. The job shares items out by itself (_stream.py), so such a dataset would be shared out twice. While a stream is
read the environment therefore says that there is one process; `undivided` says so while a dataset is made.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

# Set also where they are absent: without them some libraries ask torch.distributed, which the script may have initialized.
_ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "GLOBAL_RANK": "0", "NNODES": "1"}
_inside = 0


@contextmanager
def undivided() -> Iterator[None]:
    """Put `with lockstep.undivided():` around the line that makes a streaming dataset. Within it the environment says that this
    process is the only one. So the dataset has all items, and the job shares them out. LOCAL_RANK stays, because it may name a
    GPU."""
    global _inside
    before = {name: os.environ.get(name) for name in _ALONE}
    os.environ.update(_ALONE)
    _inside += 1
    try:
        yield
    finally:
        _inside -= 1
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def inside() -> bool:
    """Whether the environment does not say now what the launcher has said."""
    return _inside > 0
