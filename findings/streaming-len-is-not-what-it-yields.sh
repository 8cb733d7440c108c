#!/usr/bin/env bash
# A StreamingDataset yields more or fewer samples than its len() says, by the order that it shuffles in.
#
# Versions: mosaicml-streaming 0.13.0, torch 2.15.0, numpy 2.1.3 (PyPI).
# One would guess: of 1,000 samples each of three ranks has len() 334 and yields 334, two samples repeated, whatever the order.
# What happens: len() is 334 always. With shuffle_algo py1s (or py2s) each rank yields 342, and 26 samples come twice. With
#   batching_method stratified (or per_stream) and batches of 32 each rank yields 320, and 40 samples do not come in that epoch: a
#   line of the log says that batches are dropped, nothing says that samples are repeated.
# Source: streaming/base/partition/orig.py repeats the last sample of each canonical node whose share is not full, and py1s has 64
#   of them for a machine. streaming/base/batching/stratified.py drops batches that are not full. __len__ knows of neither.
# Why it matters: len(loader) is what people give to schedulers, progress bars and accumulation, and an epoch in which each sample
#   counts once is what runs are compared by. How many count twice depends on the ranks, so it changes when a job grows.
set -euo pipefail
# shellcheck source=findings/lib/ranks.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/ranks.sh"

# The others are pinned for pip, which would try many versions of them.
finding_python mosaicml-streaming==0.13.0 torch==2.15.0 numpy==2.1.3 transformers==4.57.6 oci==2.189.0 google-cloud-storage==3.2.0
cat >"$finding_folder/finding.py" <<'PYTHON'
import collections
import os

import torch.distributed as dist
from streaming import MDSWriter, StreamingDataset

SAMPLES = 1000
folder, rank, ranks = os.environ["FOLDER"], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)}  # as torchrun sets them
data = f"{folder}/data"
if rank == 0:
    with MDSWriter(out=data, columns={"i": "int"}, size_limit=4096) as writer:
        for i in range(SAMPLES):
            writer.write({"i": i})
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)
dist.barrier()
lines = []
for arguments in ({"shuffle_algo": "py1e"}, {"shuffle_algo": "py1s"}, {"batching_method": "stratified"}):
    dataset = StreamingDataset(local=data, batch_size=32, shuffle=True, **arguments)
    said, mine = len(dataset), [sample["i"] for sample in dataset]
    everybody = [None] * ranks
    dist.all_gather_object(everybody, mine)
    seen = collections.Counter(i for one in everybody for i in one)
    lines.append(f"{said} said {len(mine)} came {sum(seen.values()) - len(seen)} repeated {SAMPLES - len(seen)} missing")
if rank == 0:
    print("; ".join(lines))
dist.destroy_process_group()
PYTHON

echo "mosaicml-streaming 0.13.0: three ranks read 1,000 samples"
finding_check "py1e; py1s; stratified" "$(finding_ranks 3 "$finding_folder/finding.py")" \
  "334 said 334 came 2 repeated 0 missing; 334 said 342 came 26 repeated 0 missing; 334 said 320 came 0 repeated 40 missing"
