#!/usr/bin/env bash
# A checkpoint of torch.distributed.checkpoint that a failed save was to replace loads without an error, half old and half new.
#
# Versions: torch 2.15.0 (PyPI).
# One would guess: a save that fails leaves the old checkpoint as it was, or one that does not load.
# What happens: two ranks save step 1 and then step 2 into the same folder. Rank 1 dies in the second save, and rank 0 gets an
#   error. The load succeeds: half of the tensors are of step 1 and half of step 2.
# Source: torch/distributed/checkpoint/filesystem.py, FileSystemWriter: overwrite is True by default, with a warning, and the data
#   files of the ranks have the same names in each save. Only .metadata is replaced by a rename, at the end, and the old one fits
#   the new files.
# Why it matters: a rank that dies while it saves is the very case that a checkpoint is for. A folder for each step, and a marker
#   that is written last, is the caller's duty.
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


def state(step):
    return {f"layer{each}": torch.full((100,), float(step)) for each in range(6)}


class DiesWriting(checkpoint.FileSystemWriter):
    def write_data(self, plan, planner):
        if rank == 1:
            os._exit(1)
        return super().write_data(plan, planner)


checkpoint.save(state(1), checkpoint_id=f"{folder}/checkpoint")
try:
    checkpoint.save(state(2), storage_writer=DiesWriting(f"{folder}/checkpoint"))
    print("saved", end=" ")
except Exception:
    print("failed", end=" ")
loaded = state(-1)
checkpoint.load(loaded, checkpoint_id=f"{folder}/checkpoint", no_dist=True)
print(*(int(loaded[f"layer{each}"].unique().item()) for each in range(6)), flush=True)
os._exit(0)  # a process group with a dead rank does not end in order
PYTHON

echo "torch 2.15.0: two ranks save step 1, then step 2 over it, and rank 1 dies as it writes"
finding_check "the second save on rank 0, and the steps of the tensors that load then" \
  "$(finding_ranks 2 "$finding_folder/rank.py")"   "failed 2 1 2 1 2 1"
