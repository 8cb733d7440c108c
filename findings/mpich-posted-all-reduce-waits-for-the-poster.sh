#!/usr/bin/env bash
# With MPICH, a rank that has posted MPI_Iallreduce and then computes holds up all others until it calls MPI again.
#
# Versions: mpich 5.0.2, mpi4py 4.1.2, numpy 2.4.6 (PyPI).
# One would guess: a contribution that is posted without blocking is on its way, as one sent with MPI_Isend is.
# What happens: of two ranks, one posts 4 KB and is busy for a second. The other receives a message of 4 KB from MPI_Isend at
#   once, but the all-reduce of 4 KB ends only after that second. An all-reduce of 4 bytes ends at once, so a small test shows
#   nothing.
# Source: from some size on, the all-reduce is a schedule of several steps (src/mpi/coll/iallreduce, src/mpid/common/sched), and a
#   rank advances its schedule only inside MPI calls.
# Why it matters: "posted" is not "delivered". A rank that overlaps communication with its own work is a straggler for the others,
#   although its gradient has been ready for long. Lockstep has a thread of its own for what peers ask for.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_venv mpich==5.0.2 mpi4py==4.1.2 numpy==2.4.6
cat >"$finding_folder/job.py" <<'PYTHON'
import time

import numpy as np
from mpi4py import MPI

BUSY = 2.0  # seconds
world = MPI.COMM_WORLD


def waited(start, elements):
    """Whether rank 0 waits until rank 1 is done with its own work."""
    mine, theirs = np.ones(elements, np.float32), np.empty(elements, np.float32)
    world.Barrier()
    begin = time.monotonic()
    request = start(mine, theirs)
    if world.rank == 1:
        time.sleep(BUSY)
    request.Wait()
    return time.monotonic() - begin > BUSY / 2


def message(mine, theirs):
    return world.Isend(mine, dest=0) if world.rank == 1 else world.Irecv(theirs, source=1)


answers = [waited(message, 1000), waited(world.Iallreduce, 1), waited(world.Iallreduce, 1000)]
if world.rank == 0:
    print(*("waits" if answer else "at-once" for answer in answers))
PYTHON

echo "mpich 5.0.2: rank 1 posts and is busy for two seconds"
finding_check "rank 0 gets a message of 4 KB, an all-reduce of 4 bytes, an all-reduce of 4 KB" \
  "$("$(dirname "$python")/mpiexec" -n 2 "$python" "$finding_folder/job.py")" "at-once at-once waits"
