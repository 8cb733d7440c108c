#!/usr/bin/env bash
# With transformers' Trainer, a model whose forward takes **kwargs gets a gradient that is larger by the accumulation steps.
#
# Versions: transformers 5.24.0, accelerate 1.15.0, torch 2.15.0 (PyPI).
# One would guess: an argument that the model ignores changes nothing, and four batches of two samples train as one of eight.
# What happens: two models with the same mean loss take one step of SGD over the same eight samples in four accumulated batches.
#   The gradient of the one with forward(x, labels) has the norm 1, that of the one with forward(x, labels, **kwargs) has 4. The
#   logged loss is four times as large too.
# Source: transformers/trainer.py: a **kwargs in the signature means that the model divides its loss by num_items_in_batch itself
#   (model_accepts_loss_kwargs), so the Trainer does not divide by the number of accumulated batches.
# Why it matters: accumulation is how jobs keep the global batch on fewer workers. Here the effective learning rate changes with
#   the number of workers, and gradient clipping hides it. Set model.accepts_loss_kwargs = False.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_python torch==2.15.0 numpy==2.4.6 transformers==5.24.0 accelerate==1.15.0
cat >"$finding_folder/finding.py" <<'PYTHON'
import contextlib
import io
import sys

import torch
from transformers import Trainer, TrainingArguments


class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x, labels):
        return {"loss": (self.weight * x - labels).mean()}


class WithKwargs(Plain):
    def forward(self, x, labels, **kwargs):
        return super().forward(x, labels)


samples = [{"x": torch.ones(1), "labels": torch.ones(1)}] * 8
for model in (Plain(), WithKwargs()):
    for batches in (1, 4):
        arguments = TrainingArguments(
            sys.argv[1], per_device_train_batch_size=8 // batches, gradient_accumulation_steps=batches, num_train_epochs=1,
            learning_rate=1.0, lr_scheduler_type="constant", optim="sgd", max_grad_norm=0, use_cpu=True, report_to=[],
            save_strategy="no", logging_steps=1, remove_unused_columns=False, disable_tqdm=True)
        trainer = Trainer(model=model, args=arguments, train_dataset=samples)
        with contextlib.redirect_stdout(io.StringIO()):
            trainer.train()
        print(type(model).__name__, batches, f"{float(trainer.state.log_history[0]['grad_norm']):g}", end="; ")
PYTHON

echo "transformers 5.24.0: eight samples in one batch, and in four accumulated ones"
finding_check "model, batches, norm of the gradient" \
  "$(OMP_NUM_THREADS=1 "$python" -W ignore "$finding_folder/finding.py" "$finding_folder/run" 2>"$finding_folder/log")" \
  "Plain 1 1; Plain 4 1; WithKwargs 1 1; WithKwargs 4 4; "
