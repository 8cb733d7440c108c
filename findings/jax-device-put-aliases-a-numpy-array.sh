#!/usr/bin/env bash
# jax.device_put(x, may_alias=False) and jnp.from_dlpack(x, copy=True) share memory with x if its address is a multiple of 64.
#
# Versions: jax 0.10.2 (PyPI), on the CPU.
# One would guess: "If False, `x` will be copied" (may_alias of device_put) and copy=True of the array API give an array of its own.
# What happens: both are views of the NumPy array where XLA can use its memory, so a later write to x changes the jax.Array, which is
#   said to be immutable. Four bytes further on the same call copies. jnp.array copies at either address. NumPy's own allocations
#   lie at multiples of 16, so one of four arrays shares memory, and which one changes from run to run.
# Source: jax/_src/interpreters/pxla.py, _shard_np_array: it is given copy_semantics and does not look at them.
# Why it matters: gradients and parameters that are read from shared or reused memory (a ring of buffers, an arena of peers) turn
#   into others later, on some ranks only. Copy first: device_put(x.copy()), or jnp.array and block_until_ready.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_python jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
cat >"$finding_folder/alias.py" <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy


def zeros(behind):
    """A thousand float32 at an address so many bytes behind a multiple of 64."""
    memory = numpy.zeros(4000 + 128, numpy.uint8)
    begin = -memory.ctypes.data % 64 + behind
    return memory[begin : begin + 4000].view(numpy.float32)


ways = {
    "device_put": lambda x: jax.device_put(x, may_alias=False),
    "from_dlpack": lambda x: jnp.from_dlpack(x, copy=True),
    "array": jnp.array,
}
for name, way in ways.items():
    found = []
    for behind in (0, 4):
        x = zeros(behind)
        copy = way(x).block_until_ready()
        x[:] = 1
        found.append(float(copy[0]))
    print(name, *found)
PYTHON

echo "jax 0.10.2: the first element of a copy of zeros, after ones were written to the original, at 64n and 64n + 4"
finding_check "copies" "$(JAX_PLATFORMS=cpu "$python" "$finding_folder/alias.py")" \
  $'device_put 1.0 0.0\nfrom_dlpack 1.0 0.0\narray 0.0 0.0'
