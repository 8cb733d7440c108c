#!/usr/bin/env bash
# random.seed() fixes the order of webdataset's shards and not that of the samples, which .shuffle() seeds from the clock.
#
# Versions: webdataset 1.0.2 (PyPI).
# One would guess: both are drawn from random, so a seed fixes both, or neither is. The parameters are shardshuffle= and .shuffle().
# What happens: after random.seed(1) three processes read the shards in one order. With .shuffle(50) they read the samples in three.
#   WebDataset(..., seed=1) does not change that.
# Source: webdataset/compat.py, WebDataset.__init__ draws the seed of the shard shuffle from random; webdataset/filters.py, _shuffle
#   makes random.Random of the process id and the time where it is given neither rng nor seed.
# Why it matters: Lockstep seeds torch, random and numpy alike on all workers, so that each may take every n-th sample of the same
#   stream. With .shuffle(n) the streams differ, so some samples are read twice and others never. Use detshuffle, or
#   .shuffle(n, seed=...).
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet webdataset==1.0.2

cat >"$folder/write.py" <<'PYTHON'
import sys

import webdataset

with webdataset.ShardWriter(f"{sys.argv[1]}/%02d.tar", maxcount=10, verbose=0) as file:
    for item in range(200):
        file.write({"__key__": f"{item:03}", "cls": item})
PYTHON
cat >"$folder/read.py" <<'PYTHON'
import random
import sys

import webdataset

urls = f"{sys.argv[1]}/{{00..19}}.tar"


def order(buffer, **more):
    random.seed(1)
    return " ".join(sample["__key__"] for sample in webdataset.WebDataset(urls, shardshuffle=100, **more).shuffle(buffer))


print(order(0))
print(order(50))
print(order(50, seed=1))
PYTHON

mkdir "$folder/data"
"$folder/venv/bin/python" -W ignore "$folder/write.py" "$folder/data"
for run in 0 1 2; do
  "$folder/venv/bin/python" -W ignore "$folder/read.py" "$folder/data" >"$folder/run.$run"
done

orders() { # of line $1 of each run: how many there are
  for run in 0 1 2; do sed -n "$1p" "$folder/run.$run"; done | sort -u | wc -l
}
echo "webdataset 1.0.2: 200 samples read by three processes after random.seed(1)"
seen="orders with shardshuffle=100: $(orders 1); with .shuffle(50) too: $(orders 2); with seed=1 too: $(orders 3)"
echo "$seen"
if [[ $seen != "orders with shardshuffle=100: 1; with .shuffle(50) too: 3; with seed=1 too: 3" ]]; then
  echo "the behaviour has changed: random.seed(1) fixed the order of the shards alone before" >&2
  exit 1
fi
echo "as before: .shuffle() does not follow random.seed()"
