#!/usr/bin/env bash
# `accelerate launch --cpu --num_processes 4` starts one process, and says nothing of the other three.
#
# Versions: accelerate 1.15.0, torch 2.15.0 (PyPI).
# One would guess: four processes, as torchrun --nproc-per-node 4 starts, or an error.
# What happens: one process, without RANK or WORLD_SIZE. Accelerator().num_processes is 1, and the status is 0.
# Source: accelerate/commands/launch.py, launch_command(): with --cpu none of the branches for several processes applies, and
#   simple_launcher runs the script once, unless --mpirun_hostfile makes it a call of mpirun.
# Why it matters: the run is a quarter of what was asked for, with a quarter of the global batch, and looks fine.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_python accelerate==1.15.0 torch==2.15.0
cat >"$finding_folder/script.py" <<'PYTHON'
import os
import sys

from accelerate import Accelerator

with open(f"{sys.argv[1]}/{os.getpid()}", "w") as file:
    print("num_processes", Accelerator().num_processes, "WORLD_SIZE" in os.environ, file=file)
PYTHON
mkdir "$finding_folder/ranks"
status=0
"$python" -m accelerate.commands.launch --cpu --num_processes 4 --num_machines 1 --mixed_precision no --dynamo_backend no \
  "$finding_folder/script.py" "$finding_folder/ranks" >"$finding_folder/output" 2>&1 || status=$?

echo "accelerate 1.15.0: accelerate launch --cpu --num_processes 4"
finding_check "status" "$status" 0
finding_check "processes and what each sees" "$(find "$finding_folder/ranks" -type f | wc -l), $(cat "$finding_folder"/ranks/*)" "1, num_processes 1 False"
finding_check "lines of output that name num_processes or a process" "$(grep -ci process "$finding_folder/output" || true)" 0
