#!/usr/bin/env bash
# Grain's loader loses the samples that do not divide among the ranks, also under drop_remainder=False.
#
# Versions: grain 0.2.18 (PyPI).
# One would guess: with ShardOptions(drop_remainder=False) four ranks read all 23 samples: three of them read 6, and one reads 5.
# What happens: each rank reads 5, and three samples are read by nobody. The shards themselves are right: they have 6, 6, 6 and 5.
#   There is no warning. Under drop_remainder=True the same happens, with one.
# Source: grain/_src/python/data_loader.py: the length of a rank's data is the sampler's length divided by the shards, rounded
#   down, whatever drop_remainder says.
# Why it matters: an evaluation over several ranks leaves samples out, always the same ones without shuffling, and the number of
#   ranks changes the score. An account of samples has to count what arrives.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_venv grain==0.2.18 numpy==2.4.6
cat >"$finding_folder/finding.py" <<'PYTHON'
import logging

import grain.python as grain

SAMPLES, RANKS = 23, 4
logging.disable(logging.WARNING)


def share(rank):
    options = grain.ShardOptions(rank, RANKS, drop_remainder=False)
    sampler = grain.IndexSampler(SAMPLES, shard_options=options, num_epochs=1)
    loader = grain.DataLoader(data_source=grain.RangeDataSource(0, SAMPLES, 1), sampler=sampler, worker_count=0)
    return [int(sample) for sample in loader]


shares = [share(rank) for rank in range(RANKS)]
lost = sorted(set(range(SAMPLES)) - {sample for share in shares for sample in share})
print(*(len(share) for share in shares), "lost", *lost)
PYTHON

echo "grain 0.2.18: four ranks read 23 samples under drop_remainder=False"
finding_check "samples of each rank, and those that are lost" \
  "$("$python" -W ignore "$finding_folder/finding.py" 2>"$finding_folder/log")" \
  "5 5 5 5 lost 5 11 17"
