"""accelerate's state of this process, on which Trainers and scripts base who shares evaluation out, waits for others and writes.

accelerate makes a process group under torchrun, and its calls then wait for all processes. A job's workers have different numbers
of batches, so its calls are to concern this process alone. The group stays, because workers meet in it.
"""

from typing import Any

from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType


def be_alone(process: int, processes: int = 1, *, cpu: bool) -> None:
    """From here on this process has that number, and nothing waits for others. May be called again."""
    PartialState(cpu=cpu)
    states: list[Any] = [PartialState._shared_state, AcceleratorState._shared_state]
    for state in filter(None, states):  # the second one is there later
        state["distributed_type"] = DistributedType.NO
        state["num_processes"] = processes
        state["process_index"] = state["local_process_index"] = process
