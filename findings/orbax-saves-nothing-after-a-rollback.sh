#!/usr/bin/env bash
# After a rollback to an older step Orbax's CheckpointManager saves nothing until the run has passed the step it rolled back from.
#
# Versions: orbax-checkpoint 0.12.8, jax 0.10.2 (PyPI).
# One would guess: a save at step 20 after a restore of step 10 replaces the old step 20, or raises an error.
# What happens: the saves at 20 and 30 return False and write nothing, without a warning. The next job begins at step 30 of the run
#   that was given up. force=True at 20 raises StepAlreadyExistsError.
# Source: orbax/checkpoint/checkpoint_manager.py, CheckpointManager.should_save: no step at or below latest_step() is saved.
# Why it matters: a rollback is what one does after a loss spike. A job that is preempted before it passes its old step loses all of
#   its work and goes back to the spike. Delete the later steps right after the restore, and check what save() returns.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_venv orbax-checkpoint==0.12.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
cat >"$finding_folder/finding.py" <<'PYTHON'
import logging
import sys

import numpy
import orbax.checkpoint as orbax

logging.disable(logging.WARNING)


def save(manager, step, run, force=False):
    try:
        saved = manager.save(step, args=orbax.args.StandardSave({"run": numpy.array([run])}), force=force)
    except Exception as error:
        return f"{step} {type(error).__name__}"
    manager.wait_until_finished()
    return f"{step} {saved}"


with orbax.CheckpointManager(f"{sys.argv[1]}/checkpoints") as manager:
    print("run 1:", *(save(manager, step, 1) for step in (10, 20, 30)), end="; ")
with orbax.CheckpointManager(f"{sys.argv[1]}/checkpoints") as manager:
    manager.restore(10, args=orbax.args.StandardRestore())
    print("run 2 from 10:", *(save(manager, step, 2) for step in (20, 30)), "forced", save(manager, 20, 2, force=True), end="; ")
with orbax.CheckpointManager(f"{sys.argv[1]}/checkpoints") as manager:
    latest = manager.latest_step()
    print("latest:", latest, "of run", *manager.restore(latest, args=orbax.args.StandardRestore())["run"])
PYTHON

echo "orbax-checkpoint 0.12.8: run 2 goes on from step 10 of run 1, which saved up to step 30"
finding_check "what save() returns, and the latest step" \
  "$(JAX_PLATFORMS=cpu "$python" -W ignore "$finding_folder/finding.py" "$finding_folder" 2>"$finding_folder/log")" \
  "run 1: 10 True 20 True 30 True; run 2 from 10: 20 False 30 False forced 20 StepAlreadyExistsError; latest: 30 of run 1"
