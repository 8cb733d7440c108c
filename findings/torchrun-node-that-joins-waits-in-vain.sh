#!/usr/bin/env bash
# A node that joins a running elastic job of torchrun ends the job: it waits for an address that nobody writes.
#
# Versions: torch 2.15.0 (PyPI).
# One would guess: with --nnodes 1:2 a second node may join later, and the workers start again as two ranks.
# What happens: the joining agent waits for MASTER_ADDR in the store of the new round, and the first agent waits for the joining
#   one. After 60 seconds both fail, and the job that was fine has ended. Under TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 it works.
# Source: torch/distributed/elastic/rendezvous/dynamic_rendezvous.py, next_rendezvous(): an agent that is rank 0 again keeps the
#   address of its first round and does not call RendezvousStoreInfo.build, which alone writes it for this round.
# Why it matters: growing a job is half of what elasticity is for, and here it takes the job down.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_python torch==2.15.0
cat >"$finding_folder/rank.py" <<'PYTHON'
import os
import sys
import time

folder, world = sys.argv[1], os.environ["WORLD_SIZE"]
open(f"{folder}/up.{world}", "w").close()
while world == "1":  # trains until another node joins
    time.sleep(0.1)
PYTHON
port() {
  "$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# outcome: two agents, the second one after the workers of the first are up.
outcome() {
  local folder agent=() ids=() statuses="" status
  folder=$(mktemp -d "$finding_folder/XXXXXX")
  agent=("$python" -m torch.distributed.run --nnodes 1:2 --nproc-per-node 1 --max-restarts 3 --rdzv-backend c10d
    --rdzv-endpoint "127.0.0.1:$(port)" --rdzv-id job --rdzv-conf last_call_timeout=1 "$finding_folder/rank.py" "$folder")
  OMP_NUM_THREADS=1 "${agent[@]}" >"$folder/output.1" 2>&1 &
  ids+=("$!")
  while [[ ! -e $folder/up.1 ]]; do
    kill -0 "${ids[0]}" || { cat "$folder/output.1" >&2 && return 1; }
    sleep 0.1
  done
  OMP_NUM_THREADS=1 "${agent[@]}" >"$folder/output.2" 2>&1 &
  ids+=("$!")
  for id in "${ids[@]}"; do
    status=0
    wait "$id" || status=$?
    statuses+=" $status"
  done
  printf 'agents end with%s' "$statuses"
  if [[ -e $folder/up.2 ]]; then printf ', two ranks were up'; else printf ', never two ranks'; fi
  if grep -q 'wait timeout after 60000ms, keys: .*/MASTER_ADDR' "$folder/output.2"; then printf ', the second waited for MASTER_ADDR'; fi
  echo
}

echo "torch 2.15.0: torchrun --nnodes 1:2, a second node joins"
finding_check "as it comes" "$(outcome)" "agents end with 1 1, never two ranks, the second waited for MASTER_ADDR"
finding_check "under TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" "$(TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 outcome)" "agents end with 0 0, two ranks were up"
