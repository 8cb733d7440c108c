#!/usr/bin/env bash
# optax.clip_by_global_norm makes finite float16 gradients zero if their norm is above 255, without a NaN or a warning.
#
# Versions: optax 0.2.8, jax 0.10.2 (PyPI), on the CPU.
# One would guess: gradients of norm 400 are scaled to norm 1, as torch.nn.utils.clip_grad_norm_ does, or turn into NaN, which
#   apply_if_finite and a dynamic loss scale look for.
# What happens: the sum of squares is taken in float16 and is infinite above 65504. Each gradient is divided by infinity, so the
#   update is zero. All values are finite, so apply_if_finite counts the step as a good one. In bfloat16 there is no infinity.
# Source: optax/transforms/_clipping.py and optax/tree_utils/_tree_math.py, tree_norm: squares and sums in the type of the gradients.
# Why it matters: a loss scale multiplies gradients by 2**15, so clipping before unscaling stops the training, and the step counter,
#   the schedule and the logged loss go on. Cast gradients to float32 before clip_by_global_norm.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_python optax==0.2.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
cat >"$finding_folder/clip.py" <<'PYTHON'
import jax.numpy as jnp
import optax

optimizer = optax.apply_if_finite(optax.clip_by_global_norm(1.0), 1)
for dtype in (jnp.float32, jnp.float16):
    for each in (100, 200):
        grads = jnp.full(4, each, dtype)
        update, state = optimizer.update(grads, optimizer.init(grads))
        print(grads.dtype, "norm", 2 * each, "update", *update.tolist(), "refused", int(state.total_notfinite))
PYTHON

echo "optax 0.2.8: four equal gradients, clipped to norm 1"
finding_check "updates" "$(JAX_PLATFORMS=cpu "$python" "$finding_folder/clip.py")" \
  $'float32 norm 200 update 0.5 0.5 0.5 0.5 refused 0\nfloat32 norm 400 update 0.5 0.5 0.5 0.5 refused 0\nfloat16 norm 200 update 0.5 0.5 0.5 0.5 refused 0\nfloat16 norm 400 update 0.0 0.0 0.0 0.0 refused 0'
