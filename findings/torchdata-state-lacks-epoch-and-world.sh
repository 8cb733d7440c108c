#!/usr/bin/env bash
# The state of torchdata's loader and StatefulDistributedSampler holds neither the epoch nor the number of ranks.
#
# Versions: torchdata 0.11.0, torch 2.15.0 (PyPI).
# One would guess: a state that is loaded goes on with the samples that were left, or is refused where the ranks are others.
# What happens: in epoch 3 two ranks have taken two of their samples each and save. Loaded on two ranks, without set_epoch, the
#   rest is that of epoch 0: of twelve samples three never come and three come twice. Loaded on three ranks, each rank skips two
#   samples of its own new share, so two samples that nobody has seen are lost. There is no warning.
# Source: torchdata/stateful_dataloader/sampler.py, StatefulDistributedSampler.state_dict: one number, the samples it has yielded.
# Why it matters: an elastic job changes its ranks all the time, and "stateful" reads as if that were covered. Positions have to
#   be those of the epoch's whole order, with the epoch and the seed beside them.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_python torch==2.15.0 numpy==2.4.6 torchdata==0.11.0
cat >"$finding_folder/finding.py" <<'PYTHON'
import collections

from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

SAMPLES, TAKEN = 12, 2


def loaders(ranks, epoch, shuffle):
    for rank in range(ranks):
        sampler = StatefulDistributedSampler(range(SAMPLES), num_replicas=ranks, rank=rank, shuffle=shuffle)
        sampler.set_epoch(epoch)
        yield StatefulDataLoader(range(SAMPLES), batch_size=1, sampler=sampler)


def account(epoch, resumed_epoch, resumed_ranks, shuffle):
    """How many samples never come and how many come twice in an epoch that two ranks begin."""
    seen, states = collections.Counter(), []
    for loader in loaders(2, epoch, shuffle):
        batches = iter(loader)
        for _ in range(TAKEN):
            seen[next(batches).item()] += 1
        states.append(loader.state_dict())
    for rank, loader in enumerate(loaders(resumed_ranks, resumed_epoch, shuffle)):
        loader.load_state_dict(states[rank % 2])
        seen.update(batch.item() for batch in loader)
    return f"{SAMPLES - len(seen)} lost {sum(count > 1 for count in seen.values())} repeated"


print(account(3, 3, 2, True), account(3, 0, 2, True), account(0, 0, 3, False), sep="; ")
PYTHON

echo "torchdata 0.11.0: twelve samples, of which two ranks have taken two each"
finding_check "resumed as it was; in epoch 3, without set_epoch; on three ranks, without shuffling" \
  "$("$python" -W ignore "$finding_folder/finding.py")" "0 lost 0 repeated; 3 lost 3 repeated; 2 lost 0 repeated"
