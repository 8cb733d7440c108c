#!/usr/bin/env bash
# Loading an optimizer's state in PyTorch casts all of it to the parameter's type: counters and float32 residuals become bfloat16.
#
# Versions: torch 2.15.0 (PyPI).
# One would guess: load_state_dict restores what state_dict gave, bit for bit.
# What happens: for a bfloat16 parameter, a count of 257 samples (int64) becomes 256 (bfloat16), and a float32 residual of 1.001
#   becomes 1. The file has the right values. Only an entry named "step" is left alone.
# Source: torch/optim/optimizer.py, Optimizer._process_value_according_to_param_policy.
# Why it matters: error feedback, master weights and counters that a custom optimizer keeps are in float32 or int64 on purpose. A
#   run that resumes differs from one that did not stop, by an error that looks like noise. Keep such state out of optimizer.state,
#   or restore it afterwards.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_python torch==2.15.0 numpy==2.4.6
cat >"$finding_folder/finding.py" <<'PYTHON'
import sys

import torch

parameter = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
optimizer = torch.optim.SGD([parameter], lr=0.1)
optimizer.state[parameter] = {"samples": torch.tensor(257), "residual": torch.tensor([1.001]), "step": torch.tensor(257)}
torch.save(optimizer.state_dict(), sys.argv[1])
optimizer.load_state_dict(torch.load(sys.argv[1]))
for name, value in optimizer.state[parameter].items():
    print(name, f"{value.item():g}", str(value.dtype).removeprefix("torch."), end="; ")
PYTHON

echo "torch 2.15.0: samples 257 int64, residual 1.001 float32 and step 257 int64 of a bfloat16 parameter, saved and loaded"
finding_check "after the load" "$("$python" "$finding_folder/finding.py" "$finding_folder/state.pt")" \
  "samples 256 bfloat16; residual 1 bfloat16; step 257 int64; "
