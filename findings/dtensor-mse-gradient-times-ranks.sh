#!/usr/bin/env bash
# The gradient of mse_loss of a sharded DTensor is too large by the number of ranks. The same formula with mean() is right.
#
# Versions: torch 2.15.0 (PyPI), two ranks with Gloo.
# One would guess: an operation on a DTensor gives what it gives on the whole tensor, as mean() and l1_loss do.
# What happens: for errors of 1, 2, 3 and 4, sharded over two ranks, the loss is right and each element of the gradient is twice
#   what it should be. Where the shards are uneven, as with a fifth error, the loss is wrong too: it is the mean of the ranks' means.
# Source: torch/distributed/tensor/_decompositions.py: mse_loss and its backward have no rule of their own. One is derived from a
#   decomposition that knows the whole size, on a stand-in mesh of one rank. Then each rank runs the operation itself on its own
#   shard, which divides by the size of the shard. smooth_l1_loss, huber_loss and binary_cross_entropy do the same.
# Why it matters: the loss curve looks right, and the learning rate grows with the ranks. Adam hides it, SGD does not.
#   Use reduction="sum" and divide, or mean() of the elements.
set -euo pipefail
# shellcheck source=findings/lib/ranks.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/ranks.sh"

finding_python torch==2.15.0 numpy==2.4.6
cat >"$finding_folder/rank.py" <<'PYTHON'
import os

import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
from torch.nn import functional

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", rank=rank, world_size=ranks, store=dist.FileStore(f"{os.environ['FOLDER']}/store", ranks))
mesh = init_device_mesh("cpu", (ranks,))


def found(name, loss, errors):
    """The loss of these errors, sharded by rank, and its gradient."""
    errors = distribute_tensor(torch.tensor(errors), mesh, [Shard(0)]).requires_grad_()
    target = distribute_tensor(torch.zeros(errors.shape), mesh, [Shard(0)])
    value = loss(errors, target)
    value.backward()
    gradient = errors.grad.full_tensor().tolist()
    return f"{name} {value.full_tensor().item():.2f} gradient {' '.join(f'{each:.2f}' for each in gradient)}"


def mean(errors, target):
    return ((errors - target) ** 2).mean()


four, five = [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0, 5.0]
results = [found(f"{name} of {len(errors)}", loss, errors)
           for errors in (four, five) for name, loss in (("mean", mean), ("mse_loss", functional.mse_loss))]
print("; ".join(results))
dist.destroy_process_group()
PYTHON

echo "torch 2.15.0: mean squared error of a DTensor over two ranks"
finding_check "loss" "$(finding_ranks 2 "$finding_folder/rank.py")" \
  "mean of 4 7.50 gradient 0.50 1.00 1.50 2.00; mse_loss of 4 7.50 gradient 1.00 2.00 3.00 4.00; \
mean of 5 11.00 gradient 0.40 0.80 1.20 1.60 2.00; mse_loss of 5 12.58 gradient 0.67 1.33 2.00 4.00 5.00"
