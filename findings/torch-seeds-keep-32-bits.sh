#!/usr/bin/env bash
# torch.manual_seed takes 64 bits and the CPU's generator uses the lower 32, so seeds with the rank above those are one seed.
#
# Versions: torch 2.15.0 (PyPI).
# One would guess: different seeds give different random numbers. initial_seed() gives all 64 bits back, which seems to prove it.
# What happens: the seeds 7, 7 + 2**32 and 7 + 5 * 2**32 give the same numbers, permutation and dropout, on every rank.
# Source: the CPU's generator is an MT19937 that is seeded with one 32-bit word (aten/src/ATen/core/MT19937RNGEngine.h). CUDA's
#   Philox takes all 64, so a test on a GPU passes.
# Why it matters: "(rank << 32) + seed" is a natural way to make one stream for each rank. On CPUs (and that is where samplers and
#   augmentation run) all ranks then draw the same. Mix bits by a hash instead.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_python torch==2.15.0 numpy==2.4.6
cat >"$finding_folder/finding.py" <<'PYTHON'
import torch


def draws(seed):
    torch.manual_seed(seed)
    drawn = torch.rand(4), torch.randperm(100), torch.dropout(torch.ones(64), 0.5, True)
    return torch.initial_seed(), [each.tolist() for each in drawn]


seeds, streams = zip(*(draws((rank << 32) + 7) for rank in (0, 1, 5)))
other = draws(8)[1]
print(len(set(seeds)), "seeds,", 1 if streams[0] == streams[1] == streams[2] else "several", "stream; seed 8",
      "the same" if other == streams[0] else "another")
PYTHON

echo "torch 2.15.0: the seed 7 with ranks 0, 1 and 5 above its lower 32 bits"
finding_check "seeds that initial_seed tells of, streams" "$("$python" "$finding_folder/finding.py")" \
  "3 seeds, 1 stream; seed 8 another"
