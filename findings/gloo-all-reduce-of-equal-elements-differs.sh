#!/usr/bin/env bash
# Gloo's all-reduce of vectors whose elements are all equal gives a vector whose elements are not.
#
# Versions: torch 2.15.0 (PyPI), backend gloo.
# One would guess: each element is the sum of the same four numbers, so all elements of the result have the same bits.
# What happens: with four ranks the result has four different values, one for each quarter of the vector. With three ranks it has
#   two. All ranks agree on them.
# Source: the ring of gloo/allreduce.cc: each rank's segment of the buffer starts at another rank, so each is summed in another
#   order.
# Why it matters: a gradient's bits depend on its place in the bucket. A new bucket size, a new parameter in front or a split of
#   the buffer changes the results of a run that is otherwise the same. Lockstep sums by worker id everywhere.
set -euo pipefail
# shellcheck source=findings/lib/ranks.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/ranks.sh"

finding_python torch==2.15.0 numpy==2.4.6
cat >"$finding_folder/rank.py" <<'PYTHON'
import os

import torch
import torch.distributed as dist

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", rank=rank, world_size=ranks, store=dist.FileStore(f"{os.environ['FOLDER']}/store", ranks))
vector = torch.full((1000,), [1e8, 3.0, 3.0, -1e8][rank])
dist.all_reduce(vector)
values, counts = vector.unique(return_counts=True)
everywhere = [None] * ranks
dist.all_gather_object(everywhere, vector.tolist())
print(*(f"{int(count)}x{float(value):.0f}" for value, count in zip(values, counts)),
      "equal" if everywhere.count(everywhere[0]) == ranks else "unequal")
dist.destroy_process_group()
PYTHON

echo "torch 2.15.0, gloo: a thousand elements of 1e8, 3, 3 and -1e8, one number a rank"
finding_check "result of four ranks, and how it is across ranks" "$(finding_ranks 4 "$finding_folder/rank.py")" \
  "250x0 250x3 250x6 250x8 equal"
finding_check "result of the first three" "$(finding_ranks 3 "$finding_folder/rank.py")" "666x100000000 334x100000008 equal"
