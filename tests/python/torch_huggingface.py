"""Trainings by transformers' Trainer, alone or as a worker of a job, for test_torch_huggingface.py. usage: torch_huggingface.py OUT ALONE CASE ...

ALONE: 1, or 0 for a job of the workers that RANK and WORLD_SIZE tell of. Rank R writes what each training has come to into OUT.R, as JSON.
"""

import json
import os
import sys

import torch
import transformers
from torch.utils.data import Dataset
from transformers import EarlyStoppingCallback, GPT2Config, GPT2LMHeadModel, TrainerCallback, TrainingArguments


class Data(Dataset):
    """Items with different numbers of tokens to predict."""

    def __len__(self):
        return 24

    def __getitem__(self, i):
        if i >= len(self):
            raise IndexError(i)
        words = (torch.arange(8) * (1 + i % 3) + i) % 16
        labels = words.clone()
        labels[: i % 5] = -100
        return {"input_ids": words, "labels": labels}


class Regression(torch.nn.Module):
    """Takes no number of items, so each batch of those that are accumulated weighs the same."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.net = torch.nn.Linear(8, 1)

    def forward(self, input_ids, labels):
        found = self.net(input_ids / 16)
        return {"loss": torch.nn.functional.mse_loss(found[:, 0], labels[:, -1] / 16), "logits": found}


class Counts(TrainerCallback):
    def __init__(self):
        self.steps, self.epochs, self.saves = [], 0, 0

    def on_step_end(self, args, state, control, **_):
        self.steps.append(state.global_step)

    def on_epoch_end(self, args, state, control, **_):
        self.epochs += 1

    def on_save(self, args, state, control, **_):
        self.saves += 1


def gpt2():
    torch.manual_seed(5)
    return GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=2, use_cache=False, bos_token_id=0,
                                      eos_token_id=0, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))


def train(by_job, where, model=None, callbacks=(), **more):
    model = model or gpt2()
    counts = Counts()
    given = {}
    if by_job:
        import lockstep
        from lockstep.huggingface import Trainer

        given["job"] = lockstep.init(settings={"liveness.timeout": "120s"})
    else:
        from transformers import Trainer
    arguments = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "train_sampling_strategy": "sequential",
                 "num_train_epochs": 2, "report_to": [], "use_cpu": True, "disable_tqdm": True, "save_strategy": "no", "logging_steps": 1,
                 "learning_rate": 1e-2, "lr_scheduler_type": "cosine", **more}
    trainer = Trainer(model, TrainingArguments(where, **arguments), train_dataset=Data(), eval_dataset=Data(), callbacks=[counts, *callbacks],
                      **given)
    trainer.train()
    state = trainer.state
    return trainer, {
        "parameters": [v for p in model.parameters() for v in p.flatten().tolist()],
        "losses": [entry["loss"] for entry in state.log_history if "loss" in entry],
        "rates": [entry["learning_rate"] for entry in state.log_history if "learning_rate" in entry],
        "evaluated": [[entry["step"], entry["eval_loss"]] for entry in state.log_history if "eval_loss" in entry],
        "counted": [counts.steps, counts.epochs, counts.saves],
        "state": [state.global_step, state.max_steps, state.epoch, state.best_global_step],
        "saved": sorted(name for name in os.listdir(where) if name.startswith("checkpoint")) if os.path.isdir(where) else [],
    }


def accumulates(by_job, where):
    return train(by_job, where, max_grad_norm=0.2)[1]


def accumulates_means(by_job, where):
    return train(by_job, where, Regression(), gradient_accumulation_steps=3, max_steps=7)[1]


def bf16(by_job, where):
    return train(by_job, where, bf16=True)[1]


def best(by_job, where):
    """The rate is too high, so the last parameters are not the best."""
    trainer, found = train(by_job, where, Regression(), num_train_epochs=4, learning_rate=0.5, optim="sgd", lr_scheduler_type="constant",
                           max_grad_norm=0, eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True,
                           metric_for_best_model="loss", save_total_limit=2)
    again = trainer.evaluate()["eval_loss"]
    predicted = trainer.predict(Data())
    return found | {"evaluated again": [again, predicted.metrics["test_loss"], float(abs(predicted.predictions).sum())]}


def stops_early(by_job, where):
    stops = EarlyStoppingCallback(early_stopping_patience=2, early_stopping_threshold=10.0)
    return train(by_job, where, callbacks=[stops], num_train_epochs=9, eval_strategy="steps", eval_steps=2, metric_for_best_model="loss")[1]


def main():
    out, alone, *names = sys.argv[1:]
    transformers.logging.set_verbosity_error()
    found = {name: globals()[name](alone == "0", f"{out}-{name}") for name in names}
    with open(f"{out}.{os.environ.get('RANK', 0)}", "w", encoding="utf-8") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
