#!/usr/bin/env bash
# After a restart by torchrun, ranks that use Gloo may connect to the addresses of the ranks before them, and fail.
#
# Versions: torch 2.15.0 (PyPI), on CPU.
# One would guess: with --max-restarts a rank that was killed costs one restart, and then the group forms again.
# What happens: a restarted rank that is earlier than another one takes that one's old address. If Gloo has it connect (by the order
#   of their addresses), init_process_group fails: "Connection refused" by a port of a rank that has ended. That uses up a restart,
#   and the next one may fail alike. Under TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 none fails.
# Source: torch/distributed/elastic/rendezvous/dynamic_rendezvous.py, use_agent_store: the ranks share the agent's own store, which
#   outlives them. torch/distributed/rendezvous.py adds no prefix for an attempt: "We create a new TCPStore for every retry".
#   Gloo's addresses are under the same keys in each attempt, and gloo/transport/tcp/pair.cc lets one side of each pair connect.
# Why it matters: --max-restarts is how a job of DistributedDataParallel survives a lost worker. On CPU each loss may use up several
#   restarts, of ten seconds each.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_python torch==2.15.0 numpy==2.4.6
cat >"$finding_folder/rank.py" <<'PYTHON'
import os
import signal
import sys
import time
from datetime import timedelta

import torch.distributed as dist

start = os.environ["TORCHELASTIC_RESTART_COUNT"]
if start != "0" and os.environ["RANK"] == "1":
    time.sleep(1)
try:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
except RuntimeError:
    open(f"{sys.argv[1]}/{start}.failed", "w").close()
    raise
dist.barrier()
if start == "0" and os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
open(f"{sys.argv[1]}/{start}.trained", "w").close()
PYTHON

# outcome JOBS: whether a restart has failed so in one of so many jobs.
outcome() {
  local folder number
  for ((number = 0; number < $1; number++)); do
    folder=$(mktemp -d "$finding_folder/XXXXXX")
    OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo "$python" -m torch.distributed.run --standalone --nproc-per-node 2 --max-restarts 1 \
      "$finding_folder/rank.py" "$folder" >"$folder.log" 2>&1 || true
    if [[ -e $folder/1.failed ]] && grep -q "connectFullMesh failed .*Connection refused" "$folder.log"; then
      echo "connection refused"
      return
    fi
    [[ -e $folder/1.trained ]] || { cat "$folder.log" >&2 && return 1; }
  done
  echo "all trained"
}

echo "torch 2.15.0: torchrun --max-restarts 1, rank 1 of 2 is killed once and restarted a second after rank 0, Gloo"
finding_check "one of at most 12 jobs" "$(outcome 12)" "connection refused"
finding_check "4 jobs under TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" "$(TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 outcome 4)" "all trained"
