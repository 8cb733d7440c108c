#!/usr/bin/env bash
# A NumPy array that is overwritten right after jnp.array(x), or after a jitted function of it, changes the result.
#
# Versions: jax 0.10.2 (PyPI), on the CPU.
# One would guess: jnp.array copies, as numpy.array does, and a call has read its NumPy arguments when it returns. Only the result
#   comes later.
# What happens: the copy comes later, too. If the script writes to x after the call, the jax.Array has a mix of old and new values,
#   in some of the calls. block_until_ready of the result is the only way to know that x is free.
# Source: jax/_src/interpreters/pxla.py, _shard_np_array: the runtime gets the array's own memory, and the call does not wait for it.
# Why it matters: loaders fill one batch buffer again and again, and gradients go through one staging buffer. A rank then trains on
#   samples of the next batch, without an error and seldom in a test, as small arrays are copied at once.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_python jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
cat >"$finding_folder/later.py" <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy

ways = {"jnp.array": jnp.array, "jit": jax.jit(lambda x: x + 0)}
for name, way in ways.items():
    way(numpy.zeros(1 << 20, numpy.float32)).block_until_ready()  # compiles
    for waits in (False, True):
        changed = 0
        for _ in range(100):
            memory = numpy.zeros((1 << 20) + 32, numpy.float32)
            x = memory[-memory.ctypes.data % 64 // 4 + 1 :][: 1 << 20]  # at no multiple of 64, where JAX copies
            result = way(x)
            if waits:
                result.block_until_ready()
            x[:] = 1
            changed += bool(result.any())
        print(name, "waits" if waits else "does not wait", "changed" if changed else "unchanged")
PYTHON

echo "jax 0.10.2: 100 results of zeros, whose NumPy array gets ones after the call"
finding_check "results" "$(JAX_PLATFORMS=cpu "$python" "$finding_folder/later.py")" \
  $'jnp.array does not wait changed\njnp.array waits unchanged\njit does not wait changed\njit waits unchanged'
