#!/usr/bin/env bash
# iter() of an iterator of litdata begins at the first item again, so a for loop over it does not go on.
#
# Versions: litdata 0.2.76, torch 2.15.0 (PyPI).
# One would guess: iter() of an iterator changes nothing, as the protocol of Python has it. After three calls of next() a for loop, or
#   itertools.islice, goes on with item 3.
# What happens: each for loop, islice, zip or enumerate over the iterator reads items 0, 1, ... again. A loop that takes one item at a
#   time by "for item in iterator: break" reads item 0 for ever.
# Source: litdata/streaming/dataset.py, StreamingDataset.__iter__: it returns the dataset itself, which is its own iterator, and sets
#   all positions back. torch's DataLoader calls iter() once and next() from then on, so it shows in no training loop.
# Why it matters: a loader of one's own that takes items as it needs them may call iter() once for each pass and no more. Lockstep
#   called it for each item and trained on the first one only.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet litdata==0.2.76 torch==2.15.0

cat >"$folder/finding.py" <<'PYTHON'
import itertools
import sys

import litdata


def item(number):
    return number


def first(iterator):
    for one in iterator:
        return one


if __name__ == "__main__":
    litdata.optimize(fn=item, inputs=list(range(20)), output_dir=sys.argv[1], num_workers=1, chunk_size=10)
    iterator = iter(litdata.StreamingDataset(sys.argv[1]))
    by_next = [next(iterator) for _ in range(3)]
    with open(sys.argv[2], "w") as file:
        print("next", by_next, "then islice", list(itertools.islice(iterator, 3)), "then for", [first(iterator) for _ in range(3)], file=file)
PYTHON

export OMP_NUM_THREADS=1
"$folder/venv/bin/python" "$folder/finding.py" "$folder/data" "$folder/seen" >"$folder/log" 2>&1 || { cat "$folder/log" >&2 && exit 1; }

echo "litdata 0.2.76: three items of one iterator in three ways"
seen=$(cat "$folder/seen")
echo "$seen"
if [[ $seen != "next [0, 1, 2] then islice [0, 1, 2] then for [0, 0, 0]" ]]; then
  echo "the behaviour has changed: islice and for began at item 0 before" >&2
  exit 1
fi
echo "as before: iter() begins the items anew"
