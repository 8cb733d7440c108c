#!/usr/bin/env bash
# Under torchrun every rank reads the same part of a litdata stream, the first, and nobody reads the others.
#
# Versions: litdata 0.2.76, torch 2.15.0 (PyPI).
# One would guess: torchrun sets RANK and WORLD_SIZE, so rank 1 of 2 reads the second half. Or litdata takes neither, and each rank
#   reads everything.
# What happens: without torch.distributed.init_process_group both ranks read items 0 to 49 of 100. len() says 50 on both, as it should.
# Source: litdata/utilities/env.py, _DistributedEnv.detect: the size is WORLD_SIZE of the environment, the rank is that of
#   torch.distributed, or GLOBAL_RANK, which torchrun does not set. RANK is read nowhere.
# Why it matters: a job that meets its workers by other means than a process group, as Lockstep does, loses (n - 1) / n of the data
#   without a word. The first items of the workers are equal, so comparing streams that should be equal does not show it. Lockstep
#   asks the dataset for its part, and has lockstep.undivided() for the line that makes it.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet litdata==0.2.76 torch==2.15.0

cat >"$folder/write.py" <<'PYTHON'
import sys

import litdata


def item(number):
    return number


if __name__ == "__main__":
    litdata.optimize(fn=item, inputs=list(range(100)), output_dir=sys.argv[1], num_workers=1, chunk_size=10)
PYTHON
cat >"$folder/read.py" <<'PYTHON'
import os
import pathlib
import sys

import litdata

dataset = litdata.StreamingDataset(sys.argv[1])
items = list(dataset)
text = f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}: len {len(dataset)}, items {items[0]} to {items[-1]}"
(pathlib.Path(sys.argv[2]) / os.environ["RANK"]).write_text(text + "\n")
PYTHON

export OMP_NUM_THREADS=1
"$folder/venv/bin/python" "$folder/write.py" "$folder/data" >"$folder/log" 2>&1 || { cat "$folder/log" >&2 && exit 1; }
mkdir "$folder/seen"
"$folder/venv/bin/torchrun" --standalone --nproc-per-node 2 "$folder/read.py" "$folder/data" "$folder/seen" >"$folder/log" 2>&1 ||
  { cat "$folder/log" >&2 && exit 1; }

echo "litdata 0.2.76: two ranks of torchrun read 100 items"
seen=$(cat "$folder/seen/0" "$folder/seen/1")
echo "$seen"
if [[ $seen != $'rank 0 of 2: len 50, items 0 to 49\nrank 1 of 2: len 50, items 0 to 49' ]]; then
  echo "the behaviour has changed: both ranks read items 0 to 49 before" >&2
  exit 1
fi
echo "as before: both ranks read the first half"
