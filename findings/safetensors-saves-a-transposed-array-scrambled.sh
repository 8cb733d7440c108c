#!/usr/bin/env bash
# safetensors.numpy saves a transposed array with its elements in the wrong places, and says nothing.
#
# Versions: safetensors 0.8.0, numpy 2.4.6 (PyPI). Versions 0.4.5, 0.5.3, 0.6.2 and 0.7.0 save the same array rightly.
# One would guess: the array is copied into row order, as by the versions before, or refused, as by safetensors.torch.
# What happens: [[0, 3], [1, 4], [2, 5]], the transpose of [[0, 1, 2], [3, 4, 5]], comes back as [[0, 1], [2, 3], [4, 5]].
# Source: safetensors/numpy.py, _flatten: it hands over the array's address and its number of bytes, and not its strides. The
#   documentation of save asks for contiguous arrays; nothing checks it.
# Why it matters: shapes, types and sizes are right, and training goes on from noise. Tools that convert checkpoints between
#   frameworks transpose weights all the time. Check strides before a save, or digests after it.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_venv numpy==2.4.6 safetensors==0.8.0
cat >"$finding_folder/finding.py" <<'PYTHON'
import sys

import numpy as np
from safetensors.numpy import load_file, save_file

weight = np.arange(6, dtype=np.float32).reshape(2, 3).T
for array in (weight, np.ascontiguousarray(weight)):
    save_file({"weight": array}, sys.argv[1])
    print(load_file(sys.argv[1])["weight"].astype(int).tolist(), end="; ")
print(weight.astype(int).tolist())
PYTHON

echo "safetensors 0.8.0: a transposed array"
finding_check "saved as it is; saved as a copy in row order; before saving" \
  "$("$python" "$finding_folder/finding.py" "$finding_folder/model.safetensors")" \
  "[[0, 1], [2, 3], [4, 5]]; [[0, 3], [1, 4], [2, 5]]; [[0, 3], [1, 4], [2, 5]]"
