#!/usr/bin/env bash
# MPICH's all-reduce with MAX gives the ranks different results if one rank's value is NaN.
#
# Versions: mpich 5.0.2, mpi4py 4.1.2, numpy 2.4.6 (PyPI).
# One would guess: after an all-reduce all ranks hold the same value, be it NaN or the largest number.
# What happens: with four ranks that give 0, 1, NaN and 3, they receive 3, NaN, 3 and 1. Rank 3 receives less than it gave.
# Source: MPICH combines pairs by recursive doubling (src/mpi/coll/allreduce/allreduce_intra_recursive_doubling.c). Each side puts
#   its own value second, and the comparison of MPI_MAX (src/mpi/coll/op/opmax.c) keeps the second value if either is NaN.
# Why it matters: ranks agree by such a maximum on a gradient norm, a loss or a deadline. One NaN makes them take different
#   branches, and they part without an error. Decide in one place and send the decision.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_venv mpich==5.0.2 mpi4py==4.1.2 numpy==2.4.6
cat >"$finding_folder/job.py" <<'PYTHON'
import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
largest = np.empty(1, np.float32)
world.Allreduce(np.array([[0, 1, np.nan, 3][world.rank]], np.float32), largest, op=MPI.MAX)
by_rank = world.gather(float(largest[0]))
if world.rank == 0:
    print(*by_rank)
PYTHON

echo "mpich 5.0.2: MPI_MAX of 0, 1, NaN and 3"
finding_check "results of ranks 0 to 3" "$("$(dirname "$python")/mpiexec" -n 4 "$python" "$finding_folder/job.py")" \
  "3.0 nan 3.0 1.0"
