#!/usr/bin/env bash
# batch_sampler="no_duplicates" of sentence-transformers gives more batches than its length, and the Trainer trains on none of the further ones.
#
# Versions: sentence-transformers 6.2.0, transformers 5.24.0, torch 2.15.0 (PyPI).
# One would guess: without dropping last batches an epoch has each pair once; a pair that would be a duplicate in its batch comes in a later one.
# What happens: it does come in a later one, behind the number of batches that the sampler's length tells. The Trainer ends its epoch at that length. 96
#   pairs with 12 different anchors, in batches of 16: 8 batches of 12, and 72 pairs of an epoch are trained on.
# Source: sentence_transformers/base/sampler.py, NoDuplicatesBatchSampler: __len__ is the number of samples by the batch size; a batch that cannot be filled
#   is given as it is.
# Why it matters: a quarter of the data is left out, of pairs whose values are frequent. Nothing says so, and the loss goes down as usual. An epoch or a job
#   that is sized by len() has the same fault.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_python sentence-transformers==6.2.0 transformers==5.24.0 accelerate==1.15.0 datasets==5.2.0 torch==2.15.0
cat >"$finding_folder/finding.py" <<'PYTHON'
import sys

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer import losses, modules
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

PAIRS, ANCHORS, BATCH, EPOCHS = 96, 12, 16, 2
folder = sys.argv[1]
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"a{i}" for i in range(PAIRS)), *(f"p{i}" for i in range(PAIRS))]
tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]").save_pretrained(folder)
BertModel(BertConfig(vocab_size=len(words), hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)).save_pretrained(folder)


def trained(drop_last, anchors):
    """The batches that the sampler gives, its length, and the sizes of those that are trained on in each epoch."""
    model = SentenceTransformer(modules=[modules.Transformer(folder), modules.Pooling(8)], device="cpu")
    data = Dataset.from_dict({"anchor": [f"a{i % anchors}" for i in range(PAIRS)], "positive": [f"p{i}" for i in range(PAIRS)]})
    arguments = SentenceTransformerTrainingArguments(
        folder, per_device_train_batch_size=BATCH, num_train_epochs=EPOCHS, batch_sampler="no_duplicates", dataloader_drop_last=drop_last,
        report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no", logging_strategy="no")
    trainer = SentenceTransformerTrainer(model, arguments, train_dataset=data, loss=losses.MultipleNegativesRankingLoss(model))
    step, sizes = trainer.training_step, []

    def training_step(model, inputs, *more, **named):
        sizes.append(max(len(value) for value in inputs.values() if isinstance(value, torch.Tensor)))
        return step(model, inputs, *more, **named)

    trainer.training_step = training_step
    trainer.train()
    sampler = trainer.get_train_dataloader().batch_sampler
    return f"{len(list(sampler))} batches, length {len(sampler)}, trained on {len(sizes)} with {sum(sizes)} of {EPOCHS * PAIRS} pairs"


print(trained(False, PAIRS), trained(False, ANCHORS), sep="; ")
PYTHON

finding_check "all anchors different; 12 different ones" \
  "$(PYTHONWARNINGS=ignore TRANSFORMERS_VERBOSITY=error HF_HUB_OFFLINE=1 "$python" "$finding_folder/finding.py" "$finding_folder/model" 2>"$finding_folder/log" | tail -1)" \
  "6 batches, length 6, trained on 12 with 192 of 192 pairs; 8 batches, length 6, trained on 12 with 144 of 192 pairs"
