#!/usr/bin/env bash
# One step() of a scheduler that accelerate has prepared is as many steps as there are processes.
#
# Versions: accelerate 1.15.0, torch 2.15.0 (PyPI).
# One would guess: scheduler.step() once after each optimizer.step() moves the schedule by one update, on one process as on eight.
# What happens: after three updates, a schedule that halves the learning rate in each step has halved it three times with one
#   process and six times with two.
# Source: accelerate/scheduler.py, AcceleratedScheduler.step: unless split_batches is set, it takes num_processes steps, as if the
#   schedule counted batches.
# Why it matters: a schedule in updates ends early by the number of processes. A job that resumes with fewer or more workers goes
#   on along another curve, and the checkpointed position means something else. Schedules have to count samples or updates.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_python torch==2.15.0 numpy==2.4.6 accelerate==1.15.0
cat >"$finding_folder/rank.py" <<'PYTHON'
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
for _ in range(3):
    accelerator.backward(model(torch.ones(1, 1)).mean())
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
if accelerator.is_main_process:
    print(f"1/{1 / schedule.get_last_lr()[0]:g}")
accelerator.end_training()
PYTHON

# rate PROCESSES: the learning rate after three updates.
rate() {
  OMP_NUM_THREADS=1 "$python" -W ignore -m torch.distributed.run --standalone --nproc-per-node "$1" \
    "$finding_folder/rank.py" 2>"$finding_folder/log"
}

echo "accelerate 1.15.0: three updates under a schedule that halves a learning rate of 1 in each step"
finding_check "learning rate with one process" "$(rate 1)" "1/8"
finding_check "learning rate with two processes" "$(rate 2)" "1/64"
