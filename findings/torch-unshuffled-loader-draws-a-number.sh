#!/usr/bin/env bash
# A DataLoader that does not shuffle draws from the global generator each time that it is iterated over.
#
# Version: torch 2.15.0 (PyPI).
# One would guess: with shuffle=False, num_workers=0 and data that draw nothing, nothing is drawn. So a pass over a validation set,
#   with a model in eval mode, changes nothing of the training that follows.
# What happens: each pass draws one number. Two ranks begin with the same seed, and rank 0 alone validates, which takes two batches.
#   The next order of RandomSampler is another one on rank 0: of 100 samples that the ranks share out by position, 27 come twice
#   and 27 never. With a generator of its own for the validation loader both orders are the same.
# Source: torch/utils/data/dataloader.py, _BaseDataLoaderIter.__init__: the base seed for worker processes, with or without workers.
# Why it matters: validation on rank 0 alone is what most scripts have. Where ranks rely on equal seeds (an order of their own, masks
#   that must agree), they part there without a word, and only some time after the cause.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_python torch==2.15.0 numpy==2.4.6
cat >"$finding_folder/finding.py" <<'PYTHON'
import collections

import torch
from torch.utils.data import DataLoader, RandomSampler

SAMPLES = 100


def orders(generator):
    """The second epoch's order, of a rank that validates before it and of one that does not."""
    result = []
    for validates in (True, False):
        torch.manual_seed(0)
        sampler = RandomSampler(range(SAMPLES))
        list(sampler)
        if validates:
            with torch.no_grad():
                for _ in DataLoader(range(8), batch_size=4, shuffle=False, num_workers=0, generator=generator):
                    pass
        result.append(list(sampler))
    return result


for generator in (None, torch.Generator()):
    zero, one = orders(generator)
    seen = collections.Counter(zero[0::2] + one[1::2])
    print(f"{sum(count > 1 for count in seen.values())} twice {SAMPLES - len(seen)} never")
PYTHON

echo "torch 2.15.0: two ranks with the same seed, rank 0 has validated"
finding_check "as it is; with a generator for the validation" "$("$python" -W ignore "$finding_folder/finding.py" | paste -sd';')" \
  "27 twice 27 never;0 twice 0 never"
