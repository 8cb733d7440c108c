#!/usr/bin/env bash
# In optax.MultiSteps one gradient that is not finite stays in the accumulator for ever, behind a guard that skips bad updates.
#
# Versions: optax 0.2.8, jax 0.10.2 (PyPI).
# One would guess: MultiSteps(apply_if_finite(sgd), 2) skips the one update that has the NaN, and the next group begins from zero.
# What happens: the NaN is in the second of ten gradients, and none of the five updates is applied. The guard counts on: it takes the
#   NaN for five errors in a row. After as many as it allows, it lets the NaN through to the parameters.
# Source: optax/transforms/_accumulation.py, MultiSteps: the accumulator is reset by a multiplication with 0, and 0 times NaN is NaN.
# Why it matters: one overflow in one microbatch ends the training without an error. The loss just stays where it is. Use
#   should_skip_update_fn=optax.skip_not_finite, which looks at each gradient before it is added.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_venv optax==0.2.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
cat >"$finding_folder/finding.py" <<'PYTHON'
import jax
import jax.numpy as jnp
import optax

GRADIENTS = [1.0, float("nan")] + [1.0] * 8


def weights(optimizer):
    """The weight after each group of two gradients."""
    weight, found = jnp.array(0.0), []
    state, update_of = optimizer.init(weight), jax.jit(optimizer.update)
    for count, gradient in enumerate(GRADIENTS, 1):
        update, state = update_of(jnp.array(gradient), state, weight)
        weight = optax.apply_updates(weight, update)
        if count % 2 == 0:
            found.append(f"{float(weight):g}")
    return " ".join(found)


def guarded(errors):
    return optax.apply_if_finite(optax.sgd(1.0), max_consecutive_errors=errors)


print(weights(optax.MultiSteps(guarded(10), 2)), weights(optax.MultiSteps(guarded(3), 2)),
      weights(optax.MultiSteps(optax.sgd(1.0), 2, should_skip_update_fn=optax.skip_not_finite)), sep="; ")
PYTHON

echo "optax 0.2.8: weight after each two of the gradients 1 NaN 1 1 1 1 1 1 1 1, at a learning rate of 1"
finding_check "ten errors allowed; three errors allowed; skip_not_finite" \
  "$(JAX_PLATFORMS=cpu "$python" -W ignore "$finding_folder/finding.py" 2>"$finding_folder/log")" \
  "0 0 0 0 0; 0 0 0 nan nan; 0 -1 -2 -3 -4"
