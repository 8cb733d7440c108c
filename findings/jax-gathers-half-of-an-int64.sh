#!/usr/bin/env bash
# JAX's process_allgather drops the upper 32 bits of NumPy integers, and assert_equal fails for equal ones.
#
# Versions: jax 0.10.2 (PyPI), two processes on CPUs with Gloo.
# One would guess: jax.experimental.multihost_utils takes NumPy arrays, gives NumPy arrays back and moves int64 and float64 as bytes.
# What happens: of sample counts of 5000000001 and 5000000002, int64, both ranks get 705032705 and 705032706, int32. A broadcast gives
#   705032705 too. assert_equal of 5000000001 raises on both ranks although both have it. There is no warning.
# Source: jax/experimental/multihost_utils.py, _handle_array_process_allgather: device_put, which makes 32 bits of 64 unless
#   jax_enable_x64 is set. assert_equal compares what comes back with what it was given.
# Why it matters: these functions are for what is no array of the model: counts of samples and tokens, seeds, byte offsets. A count
#   that passes 2**31 turns into another one on all ranks alike. Split such numbers in two, or set jax_enable_x64.
set -euo pipefail
# shellcheck source=findings/lib/ranks.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/ranks.sh"

finding_venv jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
cat >"$finding_folder/rank.py" <<'PYTHON'
import os
import pathlib
import socket
import time

import jax
import numpy
from jax.experimental import multihost_utils

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
file = pathlib.Path(os.environ["FOLDER"]) / "address"
if rank == 0:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    file.with_suffix(".new").write_text(address)
    file.with_suffix(".new").rename(file)
for _ in range(1200):  # a minute, while rank 0 chooses the port
    if file.exists():
        break
    time.sleep(0.05)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(file.read_text(), ranks, rank)

count = numpy.array([5_000_000_001 + rank])
gathered = multihost_utils.process_allgather(count, tiled=True)
sent = multihost_utils.broadcast_one_to_all(count)
try:
    multihost_utils.assert_equal(numpy.array([5_000_000_001]))
    verdict = "equal"
except AssertionError:
    verdict = "unequal"
print("\ncounts", *gathered, gathered.dtype, "broadcast", *sent, sent.dtype, "equal counts are", verdict)
jax.distributed.shutdown()
PYTHON

echo "jax 0.10.2: ranks 0 and 1 have counted 5000000001 and 5000000002 samples, int64"
finding_check "on rank 0" "$(JAX_PLATFORMS=cpu finding_ranks 2 "$finding_folder/rank.py" | grep '^counts')" \
  "counts 705032705 705032706 int32 broadcast 705032705 int32 equal counts are unequal"
