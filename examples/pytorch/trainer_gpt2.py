"""A small GPT-2 on the bytes of a text, with the Trainer of transformers.

    python examples/pytorch/trainer_gpt2.py                                                    one process
    lockstep run -n 4 --policy auto --slowdown worker=3,factor=5 examples/pytorch/trainer_gpt2.py

Nothing is downloaded: the model is made out of a config.
"""

import argparse
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

import lockstep
from lockstep.huggingface import Trainer  # was: from transformers import Trainer

TOKENS = 64


class Bytes(torch.utils.data.Dataset):
    """Pieces of a text, each half of the next one's beginning."""

    def __init__(self, path):
        self.text = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).long()

    def __len__(self):
        return 2 * (len(self.text) // TOKENS) - 2

    def __getitem__(self, i):
        piece = self.text[i * TOKENS // 2 :][:TOKENS]
        return {"input_ids": piece, "labels": piece}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", type=Path, default=Path(__file__))
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--output", default="trainer-output")
    options = parser.parse_args()

    job = lockstep.init()  # before the model is made
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=TOKENS, n_embd=64, n_layer=2, n_head=4, use_cache=False,
                                       bos_token_id=0, eos_token_id=0))
    data = Bytes(options.text)
    trainer = Trainer(
        model,
        TrainingArguments(options.output, per_device_train_batch_size=16, learning_rate=1e-3, num_train_epochs=options.epochs,
                          logging_steps=5, eval_strategy="epoch", save_strategy="epoch", report_to=[], use_cpu=True, disable_tqdm=True),
        train_dataset=data,
        eval_dataset=torch.utils.data.Subset(data, range(8)),
        job=job,
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
