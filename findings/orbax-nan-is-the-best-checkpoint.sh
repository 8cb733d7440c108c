#!/usr/bin/env bash
# For Orbax's CheckpointManager a checkpoint whose metric is NaN is the best one, and good ones are deleted in its favour.
#
# Versions: orbax-checkpoint 0.12.8, jax 0.10.2 (PyPI).
# One would guess: NaN is worse than any number, so best_fn with max_to_keep=2 keeps the two best of the steps that have a number.
# What happens: losses of 0.1, 0.2, NaN, NaN and 0.3 leave steps 4 and 5 with best_mode="min". best_step() says 3, 4 and then 5 for
#   the last three saves. Step 1, with the least loss, is deleted. With "max" NaN is taken for the best in the same way.
# Source: orbax/checkpoint/_src/checkpoint_managers/preservation_policy.py, BestN: sorted() by the metric. All comparisons with NaN
#   are false, so sorted() leaves a NaN where it is, at the end, and the end is kept.
# Why it matters: a run that diverges deletes the very checkpoints that it has to return to. best_fn has to map NaN to the worst
#   value.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_venv orbax-checkpoint==0.12.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
cat >"$finding_folder/finding.py" <<'PYTHON'
import logging
import math
import sys

import numpy
import orbax.checkpoint as orbax

logging.disable(logging.WARNING)
mode, *losses = sys.argv[2:]
options = orbax.CheckpointManagerOptions(max_to_keep=2, best_fn=lambda metrics: metrics["value"], best_mode=mode)
with orbax.CheckpointManager(f"{sys.argv[1]}/{mode}", options=options) as manager:
    best = []
    for step, loss in enumerate(losses, 1):
        manager.save(step, args=orbax.args.StandardSave({"weight": numpy.full(3, step)}), metrics={"value": float(loss)})
        manager.wait_until_finished()
        best.append(manager.best_step())
    print("best", *best, "kept", *manager.all_steps())
PYTHON

# kept MODE VALUE...: the best step after each save, and the steps that are kept.
kept() {
  JAX_PLATFORMS=cpu "$python" -W ignore "$finding_folder/finding.py" "$finding_folder" "$@" 2>"$finding_folder/log"
}

echo "orbax-checkpoint 0.12.8: the two best of five steps are kept"
finding_check "losses 0.1 0.2 0.5 0.4 0.3" "$(kept min 0.1 0.2 0.5 0.4 0.3)" "best 1 1 1 1 1 kept 1 2"
finding_check "losses 0.1 0.2 nan nan 0.3" "$(kept min 0.1 0.2 nan nan 0.3)" "best 1 1 3 4 5 kept 4 5"
finding_check "scores 0.9 0.8 nan nan 0.7" "$(kept max 0.9 0.8 nan nan 0.7)" "best 1 1 3 4 5 kept 4 5"
