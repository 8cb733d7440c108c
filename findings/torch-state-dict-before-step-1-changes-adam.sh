#!/usr/bin/env bash
# Reading a new optimizer's state with torch.distributed.checkpoint changes the training that follows.
#
# Versions: torch 2.15.0 (PyPI).
# One would guess: get_state_dict reads. A run that saves a checkpoint before its first step trains like one that does not.
# What happens: with Adam the first update is a quarter shorter, and the state's step is 3 after two steps. With SGD, momentum 0.9 and
#   dampening 0.9 the first update is a tenth of what it was.
# Source: torch/distributed/checkpoint/state_dict.py, _init_optim_state: to have a state to show, it takes a step with zero gradients
#   and a learning rate of zero, and leaves it at that.
# Why it matters: runs that should be equal differ by when they save: one with a checkpoint of step 0, or one that looks for a
#   checkpoint and finds none, is another run. Workers of which only some have called it drift apart where each has its own
#   optimizer. Take the optimizer's own state_dict() for step 0.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_python torch==2.15.0 numpy==2.4.6
cat >"$finding_folder/finding.py" <<'PYTHON'
import torch
from torch.distributed.checkpoint.state_dict import get_state_dict


def weights(read_first, kind, **settings):
    """A weight after each of two steps with a gradient of -1."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = kind(model.parameters(), lr=0.1, **settings)
    if read_first:
        get_state_dict(model, optimizer)
    found = []
    for _ in range(2):
        model.weight.grad = -torch.ones(1, 1)
        optimizer.step()
        optimizer.zero_grad()
        found.append(f"{model.weight.item():.4f}")
    return " ".join(found)


for kind, settings in ((torch.optim.Adam, {}), (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.9})):
    print(kind.__name__, weights(False, kind, **settings), "or", weights(True, kind, **settings), end="; ")
PYTHON

echo "torch 2.15.0: a weight after each of two steps, without and with get_state_dict before the first"
finding_check "weights" "$("$python" -W ignore "$finding_folder/finding.py")" \
  "Adam 0.1000 0.2000 or 0.0744 0.1603; SGD 0.1000 0.2000 or 0.0100 0.0290; "
