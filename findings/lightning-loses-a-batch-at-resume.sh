#!/usr/bin/env bash
# A Lightning run that resumes with torchdata's StatefulDataLoader over a dataset without a length loses a batch.
#
# Versions: lightning 2.6.6, torchdata 0.11.0, torch 2.15.0 (PyPI).
# One would guess: Lightning saves the state of a loader that has one, so the run goes on with the next batch.
# What happens: after four batches of two the checkpoint is taken, and the run that resumes begins with samples 10 and 11. Nobody trains
#   on 8 and 9. If the dataset has a length, nothing is lost.
# Source: lightning/pytorch/loops/fetchers.py, _PrefetchDataFetcher: without a length it fetches one batch ahead, to know which is the
#   last. The loader's state counts that batch as taken, and the batch itself is not saved.
# Why it matters: a stream has no length, and it is why one takes a stateful loader. Each resume of each rank loses a batch without
#   a warning. A stream with __len__ keeps Lightning from fetching ahead.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_python torch==2.15.0 numpy==2.4.6 lightning==2.6.6 torchdata==0.11.0
cat >"$finding_folder/finding.py" <<'PYTHON'
import sys

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torchdata.stateful_dataloader import StatefulDataLoader

SAMPLES = 20


class Stream(torch.utils.data.IterableDataset):
    def __init__(self):
        self.position = 0

    def __iter__(self):
        while self.position < SAMPLES:
            self.position += 1
            yield torch.tensor([float(self.position - 1)])
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


class Sized(Stream):
    def __len__(self):
        return SAMPLES


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), []

    def training_step(self, batch, _):
        self.seen += [int(sample) for sample in batch.flatten()]
        return self.layer(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train(dataset, folder, steps, resume_from=None):
    model = Model()
    trainer = lightning.Trainer(
        max_epochs=1, max_steps=steps, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[ModelCheckpoint(dirpath=folder, every_n_train_steps=4, filename="{step}")])
    trainer.fit(model, StatefulDataLoader(dataset(), batch_size=2), ckpt_path=resume_from)
    return model.seen


results = []
for dataset in (Stream, Sized):
    folder = f"{sys.argv[1]}/{dataset.__name__}"
    before, after = train(dataset, folder, 4), train(dataset, folder, -1, f"{folder}/step=4.ckpt")
    results.append(f"{dataset.__name__} trained on 0 to {before[-1]}, then on {after[0]} to {after[-1]}")
print("; ".join(results))
PYTHON

echo "lightning 2.6.6, torchdata 0.11.0: 20 samples, a checkpoint after four batches of two"
finding_check "first run, then the one that resumes" \
  "$(OMP_NUM_THREADS=1 "$python" -W ignore "$finding_folder/finding.py" "$finding_folder" 2>"$finding_folder/log")" \
  "Stream trained on 0 to 7, then on 10 to 19; Sized trained on 0 to 7, then on 8 to 19"
