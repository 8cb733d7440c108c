#!/usr/bin/env bash
# torch.distributed.checkpoint saves a state that differs by rank as a mix of the ranks: even tensor by tensor, and inside a dict.
#
# Versions: torch 2.15.0 (PyPI).
# One would guess: each rank gets its own state back, or all get that of rank 0, or the save fails since the ranks disagree.
# What happens: of six tensors of the same name on two ranks, three are rank 0's and three are rank 1's. A loader's state, a dict
#   {"name", "position"}, comes back with the name of rank 0 and the position of rank 1. Save and load succeed on all ranks.
# Source: torch/distributed/checkpoint/_dedup_save_plans.py, dedup_save_plans: an item of which several ranks have a copy is
#   written by the rank with the least to write so far, as if copies were equal. Dicts are flattened first.
# Why it matters: state of a rank (position in the data, random numbers, error feedback) needs the rank in its name. And where a
#   straggler is a step behind as the job saves, the checkpoint is a model that no rank ever had.
set -euo pipefail
# shellcheck source=findings/lib/ranks.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/ranks.sh"

finding_python torch==2.15.0 numpy==2.4.6
cat >"$finding_folder/rank.py" <<'PYTHON'
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint

rank, ranks, folder = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["FOLDER"]
dist.init_process_group("gloo", rank=rank, world_size=ranks, store=dist.FileStore(f"{folder}/store", ranks))


def state(value):
    tensors = {f"layer{each}": torch.full((100,), float(value)) for each in range(6)}
    return tensors | {"loader": {"name": f"rank-{value}", "position": value}}


checkpoint.save(state(rank), checkpoint_id=f"{folder}/checkpoint")
loaded = state(-1)
checkpoint.load(loaded, checkpoint_id=f"{folder}/checkpoint")
print(*(int(loaded[f"layer{each}"].unique().item()) for each in range(6)), loaded["loader"]["name"], loaded["loader"]["position"])
dist.destroy_process_group()
PYTHON

echo "torch 2.15.0: two ranks save, each with its own rank in six tensors and in a loader's state"
finding_check "ranks whose tensors rank 0 loads, the loader's name and position" "$(finding_ranks 2 "$finding_folder/rank.py")" \
  "0 1 0 1 0 1 rank-0 1"
