"""A worker whose loader has a batch sampler of its own, for test_torch_batches.py. usage: torch_batches.py [key=value ...]

sampler=NAME, batch=B the batches in a round. alone=B: no job, but a plain loop that averages B batches as DDP does with B ranks; prints
the list of each epoch's batches, too. workers=K loader processes. save=FOLDER: each batch that worker W has is a line of W.jsonl there, as
it comes: epoch, round, number of the batch, its samples. die=W: worker W kills itself in epoch 1, once (mark=FILE). Prints a sum of the
parameters and what the sampler was told.
"""

import json
import os
import pathlib
import signal
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, Sampler

options = dict(word.split("=", 1) for word in sys.argv[1:])
EPOCHS = int(options.get("epochs", 3))
SAMPLES = 400
WORDS = 20
BUDGET = 64  # words of a batch, padding included


class Data(Dataset):
    """Sentences whose lengths have a heavy tail. With draws=1 a sample differs by what is drawn for it."""

    def __init__(self):
        draw = torch.Generator().manual_seed(7)
        self.lengths = torch.rand(SAMPLES, generator=draw).pow(-0.8).long().clamp(1, 64).tolist()
        self.words = [torch.randint(WORDS, (length,), generator=draw) for length in self.lengths]
        self.main = os.getpid()

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        shift = torch.rand(()) if "draws" in options else torch.zeros(())
        return self.words[index], self.words[index].sum() % 3, index, shift, os.getpid() == self.main


class Together(Data):
    """Is asked for a whole batch at once, and each sample knows how many came with it."""

    def __getitems__(self, indices):
        shift = torch.rand(())
        return [(*self[index][:3], shift + len(indices), os.getpid() == self.main) for index in indices]


def collate(samples):
    words, classes, indices, shift, here = zip(*samples, strict=True)
    assert set(here) == {"workers" not in options}
    if "together" in options:
        assert {int(one) for one in shift} == {len(samples)}, (shift, len(samples))
    return nn.utils.rnn.pad_sequence(words, batch_first=True, padding_value=WORDS), torch.stack(classes), indices, torch.stack(shift)


class Told(Sampler):
    """Keeps what it was told."""

    def __init__(self):
        self.told = []

    def set_epoch(self, epoch):
        self.told.append(epoch)

    @property
    def generator(self):
        return torch.Generator().manual_seed(100 + self.told[-1])

    def __len__(self):
        return SAMPLES

    def __iter__(self):
        return iter(torch.randperm(SAMPLES, generator=self.generator).tolist())


class TokenBudget(Told):
    """Sentences of about one length together, as many as the budget has; the order of the batches is another one in each epoch."""

    def __init__(self, lengths):
        super().__init__()
        self.batches = [[]]
        for index in sorted(range(SAMPLES), key=lengths.__getitem__):
            if (len(self.batches[-1]) + 1) * lengths[index] > BUDGET:
                self.batches.append([])
            self.batches[-1].append(index)

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        for number in torch.randperm(len(self.batches), generator=self.generator).tolist():
            yield self.batches[number]


class Packed(Told):
    """As many sentences as the budget has, of another order in each epoch, and so another number of batches."""

    def __init__(self, lengths):
        super().__init__()
        self.lengths = lengths

    def __len__(self):
        return len(list(self.pack(0)))

    def pack(self, epoch):
        batch = []
        for index in torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(100 + epoch)).tolist():
            if (len(batch) + 1) * max(self.lengths[i] for i in (*batch, index)) > BUDGET:
                yield batch
                batch = []
            batch.append(index)
        yield batch

    def __iter__(self):
        return self.pack(self.told[-1])


class Balanced(Sampler):
    """Draws with replacement, from generators that the job has seeded, and gives tensors."""

    def __len__(self):
        return 22

    def __iter__(self):
        for _ in range(22):
            yield torch.cat((torch.randint(100, (3,)), torch.randint(100, SAMPLES, (2,))))


class Grouped(BatchSampler):
    """Has a sampler of its own that is to be told."""

    def __init__(self):
        super().__init__(Told(), 20, drop_last=False)


def make_sampler(data):
    return {"tokens": lambda: TokenBudget(data.lengths), "packed": lambda: Packed(data.lengths), "balanced": Balanced, "grouped": Grouped,
            "list": lambda: [list(range(i, i + 1 + i % 7)) for i in range(0, 66, 3)],
            "endless": lambda: RandomSampler(range(SAMPLES), replacement=True, num_samples=1 << 40)}[options["sampler"]]()


torch.manual_seed(3)
data = Together() if "together" in options else Data()
sampler = make_sampler(data)
told = getattr(getattr(sampler, "sampler", sampler), "told", None)
model = nn.Sequential(nn.Embedding(WORDS + 1, 8, padding_idx=WORDS), nn.Tanh(), nn.Flatten(0, 1), nn.Linear(8, 3))
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5 if "momentum" in options else 0)
loader = DataLoader(data, batch_sampler=sampler, collate_fn=collate, num_workers=int(options.get("workers", 0)))


def loss_of(batch):
    words, y, indices, shift = batch
    assert words.shape[0] == len(indices) and words.shape[1] == max(data.lengths[index] for index in indices)
    by_word = model(words).reshape(*words.shape, 3)
    return F.cross_entropy(by_word.sum(1) + (shift % 1)[:, None] * torch.arange(3), y)


def show():
    print("parameters", *(f"{p.double().sum().item():.12f}" for p in model.parameters()), flush=True)


def train():
    import lockstep

    settings = {"checkpoint.every_rounds": 4, "checkpoint.every_epochs": 0, "emulate.unit_time": "20ms"} if "checkpoint" in options else {}
    job = lockstep.init(seed=5, settings=settings)
    words = {"global_batch": int(options["batch"])} if "batch" in options else {}
    prepared, optimizer, batches = job.prepare(model, opt, loader, epochs=EPOCHS, **words)
    assert prepared is model
    file = open(pathlib.Path(options["save"]) / f"{job.rank}.jsonl", "a", buffering=1) if "save" in options else None
    for epoch in range(EPOCHS):
        for batch in batches:
            if options.get("die") == str(job.rank) and epoch == 1 and not os.path.exists(options["mark"]):
                pathlib.Path(options["mark"]).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            (first, end), = job._run.work.ranges
            assert end == first + 1 and job.epoch == epoch
            if file is not None:
                file.write(json.dumps([epoch, job.round, first, batch[2]]) + "\n")
            optimizer.zero_grad()
            loss_of(batch).backward()
            job.log({"squares": float(sum(index * index for index in batch[2])), "size": float(len(batch[2]))}, reduce="sum")
            optimizer.step()
    print(f"updates {len(batches)} of {job.config['job.global_batch']} batches", flush=True)
    show()
    print(f"told {told}", flush=True)


def alone(together):
    epochs, left, passes = [], [], 0
    for _ in range(EPOCHS):
        while len(left) < len(sampler):
            for one in (sampler, getattr(sampler, "sampler", None)):
                if hasattr(one, "set_epoch"):
                    one.set_epoch(passes)
            left += list(loader)
            passes += 1
        batches, left = left[:len(sampler)], left[len(sampler):]
        epochs.append([batch[2] for batch in batches])
        for first in range(0, len(batches), together):
            ranks = batches[first:first + together]
            opt.zero_grad()
            for batch in ranks:
                (loss_of(batch) / len(ranks)).backward()
            opt.param_groups[0]["lr"] = 0.1 * len(ranks) / together  # a part of an update is that part of a step
            opt.step()
    show()
    print("batches", json.dumps(epochs), flush=True)


if __name__ == "__main__":
    alone(int(options["alone"])) if "alone" in options else train()
