#!/usr/bin/env bash
# Grain's window shuffle of a dataset repeats samples of its start and loses samples of its end.
#
# Versions: grain 0.2.18 (PyPI), WindowShuffleMapDataset.
# One would guess: a shuffle gives each sample once. Its documentation promises a one-to-one mapping inside a window.
# What happens: of 103 samples in windows of 10, two of the last three are lost, and two of the first window come twice. The
#   length is right: 103. With 100 samples all is well.
# Source: grain/_src/python/dataset/transformations/shuffle.py: the last window is permuted as if it were full, so some of its
#   indices are past the end. There the parent takes them modulo its length, as the start of the next epoch.
# Why it matters: nothing fails, since counts and shapes are right. Samples of the end are never trained on or never evaluated,
#   and a check for "each sample once" is the only one that sees it. IterDataset's window shuffle has no such loss.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_venv grain==0.2.18 numpy==2.4.6
cat >"$finding_folder/finding.py" <<'PYTHON'
import collections

import grain
from grain import experimental


def account(samples, shuffled):
    seen = collections.Counter(int(sample) for sample in shuffled)
    lost = [str(sample) for sample in range(samples) if sample not in seen]
    twice = [str(sample) for sample in sorted(seen) if seen[sample] > 1]
    return f"{seen.total()} read, lost {' '.join(lost) or 'none'}, twice {' '.join(twice) or 'none'}"


for samples in (100, 103):
    dataset = grain.MapDataset.range(samples)
    print(account(samples, experimental.WindowShuffleMapDataset(dataset, window_size=10, seed=1)), end="; ")
dataset = grain.MapDataset.range(103).to_iter_dataset()
print(account(103, experimental.WindowShuffleIterDataset(dataset, window_size=10, seed=1)))
PYTHON

echo "grain 0.2.18: samples shuffled in windows of 10"
finding_check "100 samples; 103 samples; 103 samples as an IterDataset" \
  "$("$python" -W ignore "$finding_folder/finding.py" 2>"$finding_folder/log")" \
  "100 read, lost none, twice none; 103 read, lost 101 102, twice 2 5; 103 read, lost none, twice none"
