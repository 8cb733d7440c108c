#!/usr/bin/env bash
# NumPy's sum of a thousand bfloat16 ones is 256, and their mean is 0.256.
#
# Versions: numpy 2.4.6, ml_dtypes 0.6.0 (PyPI; the bfloat16 of JAX, Keras, TensorFlow and safetensors in NumPy).
# One would guess: 1000 and 1, as with float16 and with PyTorch, or an error that is small in relation to the sum.
# What happens: each partial sum is rounded to bfloat16. At 256 the next number is 258, so adding 1 changes nothing any more. The
#   dot product of the same arrays is 1000, and the sum of as many float16 ones is exact.
# Source: NumPy adds float16 in float32 and by pairs (numpy/_core/src/umath/loops_utils.h.src). A type from outside gets a plain
#   loop over its own addition (ml_dtypes/_src/ufuncs.h).
# Why it matters: a mean loss, a sum of gradients or a norm over arrays out of a bfloat16 checkpoint stops growing without a
#   warning. A sum on the host needs a wider accumulator: x.sum(dtype=numpy.float32).
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_venv numpy==2.4.6 ml_dtypes==0.6.0
cat >"$finding_folder/finding.py" <<'PYTHON'
import numpy as np
from ml_dtypes import bfloat16

ones = np.ones(1000, bfloat16)
print(float(ones.sum()), round(float(ones.mean()), 3), float(np.dot(ones, ones)), float(ones.sum(dtype=np.float32)),
      float(np.ones(1000, np.float16).sum()))
PYTHON

echo "numpy 2.4.6, ml_dtypes 0.6.0: a thousand ones of type bfloat16"
finding_check "sum, mean, dot product, sum with dtype=float32, sum of float16" "$("$python" "$finding_folder/finding.py")" \
  "256.0 0.256 1000.0 1000.0 1000.0"
