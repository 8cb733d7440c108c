#!/usr/bin/env bash
# accelerate's save_model and save_state drop a parameter whose only fault is to lie in the same buffer as another one.
#
# Versions: accelerate 1.15.0, safetensors 0.8.0, torch 2.15.0 (PyPI).
# One would guess: parameters that are views of one flat buffer, side by side, are all saved, as torch.save and safetensors do.
# What happens: the file has the first of them only. A log line says "Removed shared tensor {'bias'}" and that this should be fine.
# Source: accelerate/utils/other.py, clean_state_dict_for_safetensors(): tensors count as shared if their storage is the same, and
#   it does not ask whether they overlap.
# Why it matters: frameworks that exchange gradients keep parameters in flat buffers, so a checkpoint may hold one tensor of many.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_python accelerate==1.15.0 safetensors==0.8.0 torch==2.15.0 numpy==2.4.6
cat >"$finding_folder/views.py" <<'PYTHON'
import sys

import torch
from accelerate import Accelerator
from safetensors.torch import load_file, save_file

folder = sys.argv[1]
flat = torch.arange(6.0)
model = torch.nn.Linear(2, 2)
model.weight.data, model.bias.data = flat[:4].view(2, 2), flat[4:]


def show(name, path):
    print(name, *sorted(load_file(path)), sep=" ")


accelerator = Accelerator(cpu=True)
accelerator.save_model(model, f"{folder}/model")
show("save_model:", f"{folder}/model/model.safetensors")
accelerator.prepare(model)
accelerator.save_state(f"{folder}/state")
show("save_state:", f"{folder}/state/model.safetensors")
save_file(model.state_dict(), f"{folder}/plain.safetensors")
show("safetensors:", f"{folder}/plain.safetensors")
PYTHON
"$python" -W ignore "$finding_folder/views.py" "$finding_folder" >"$finding_folder/output" 2>"$finding_folder/log"
seen() {
  sed -n "s/^$1: //p" "$finding_folder/output"
}

echo "accelerate 1.15.0: weight and bias are the two parts of one buffer"
finding_check "save_model writes" "$(seen save_model)" "weight"
finding_check "save_state writes" "$(seen save_state)" "weight"
finding_check "safetensors itself writes" "$(seen safetensors)" "bias weight"
