#!/usr/bin/env bash
# In torchft's first step only one replica group's gradient counts, and the mean still divides by all groups.
#
# Versions: torchft 0.2.0, torch 2.15.0 (PyPI), Manager with its default settings and ProcessGroupGloo.
# One would guess: groups that start together from nothing take part in the first step alike, as in all later ones.
# What happens: two groups give gradients of 10 and 20. The mean of the first step is 5 = (10 + 0) / 2, that of the second is 15.
#   Both groups commit the first step, and batches_committed() counts two batches.
# Source: torchft/manager.py. At step 0 all groups but one heal from that one (init_sync). With the quorum in the background
#   (use_async_quorum=True) a healing group gives zeros in allreduce, and num_participants() counts it nevertheless.
# Why it matters: the first update is shorter by the number of groups, and the first batches of all other groups are lost without
#   a record. An account of samples that relies on batches_committed() is wrong from the start.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_python torch==2.15.0 numpy==2.4.6 torchft==0.2.0
cat >"$finding_folder/group.py" <<'PYTHON'
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torchft import Manager, ProcessGroupGloo

name, os.environ["TORCHFT_LIGHTHOUSE"] = sys.argv[1:]
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
model = torch.nn.Linear(1, 1)
manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=60)), min_replica_size=2, replica_id=name, rank=0, world_size=1,
    store_addr="127.0.0.1", store_port=store.port, timeout=timedelta(seconds=60), state_dict=model.state_dict,
    load_state_dict=model.load_state_dict)
for _ in range(2):
    manager.start_quorum()
    gradient = torch.tensor([{"a": 10.0, "b": 20.0}[name]])
    manager.allreduce(gradient).wait()
    print("committed" if manager.should_commit() else "refused", gradient.item(), manager.batches_committed(), end="; ")
manager.shutdown()
PYTHON
cat >"$finding_folder/job.py" <<'PYTHON'
import subprocess
import sys

from torchft.coordination import LighthouseServer

lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=60000)
address = f"http://127.0.0.1:{lighthouse.address().rsplit(':', 1)[1]}"
groups = [subprocess.Popen([sys.executable, "-W", "ignore", sys.argv[1], name, address], stdout=subprocess.PIPE, text=True)
          for name in "ab"]
outputs = {group.communicate(timeout=120)[0].strip() for group in groups}
lighthouse.shutdown()
print(" / ".join(sorted(outputs)))
PYTHON

echo "torchft 0.2.0: two replica groups give gradients of 10 and 20 in each of two steps"
finding_check "both groups: verdict, mean, batches committed" \
  "$(OMP_NUM_THREADS=1 "$python" -W ignore "$finding_folder/job.py" "$finding_folder/group.py" 2>"$finding_folder/log")" \
  "committed 5.0 2; committed 15.0 4;"
