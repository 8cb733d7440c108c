"""A worker whose loader has an order of its own, for test_torch_samples.py. usage: torch_samples.py [key=value ...]

order=NAME,... the loaders, a job of each in turn; torch=1: no job, the loaders alone. save=FOLDER: what each worker was given goes
there, into NAME-WORKER.json: [epoch, position, sample] of each position, [epoch, round, samples] of each run; of torch the batches of
each epoch (NAME-torch.json). die=W: worker W kills itself in epoch 1, once (mark=FILE). Prints "NAME: samples COUNT of UPDATES updates"
and a sum of the parameters.
"""

import json
import os
import pathlib
import signal
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, Sampler, SubsetRandomSampler, WeightedRandomSampler

import lockstep

options = dict(word.split("=", 1) for word in sys.argv[1:])
EPOCHS = int(options.get("epochs", 3))
BATCH = 40
SAMPLES = 500


class Data(Dataset):
    def __init__(self):
        draw = torch.Generator().manual_seed(7)
        self.x = torch.randn(SAMPLES, 12, generator=draw)
        self.y = (self.x @ torch.randn(12, 3, generator=draw)).argmax(1)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return self.x[index], self.y[index], index


class ByEpoch(Sampler):
    """As those of DDP, told by the script which epoch it is."""

    epoch = 0

    def __len__(self):
        return 330

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        yield from torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(100 + self.epoch))[:330]


class GoesOn(Sampler):
    """Each pass begins where the one before has ended."""

    at = 0

    def __len__(self):
        return 210

    def __iter__(self):
        for _ in range(210):
            yield self.at
            self.at = (self.at + 7) % SAMPLES


def make_loader(kind):
    """The loader, and what has a `set_epoch` to be called."""
    data, seeded = Data(), torch.Generator().manual_seed(11)
    more = {"num_workers": int(options.get("workers", 0))}
    weights = torch.linspace(0.1, 2, SAMPLES)
    by_epoch = ByEpoch()
    make = {
        "shuffle": lambda: {"shuffle": True, "drop_last": True},
        "sequential": lambda: {},
        "sequential-drop": lambda: {"drop_last": True},
        "weighted": lambda: {"sampler": WeightedRandomSampler(weights, 330, generator=seeded)},
        "weighted-drop": lambda: {"sampler": WeightedRandomSampler(weights, 330), "drop_last": True},
        "subset": lambda: {"sampler": SubsetRandomSampler(range(100, 410), generator=seeded), "drop_last": True},
        "replacement": lambda: {"sampler": RandomSampler(data, replacement=True, num_samples=210, generator=seeded)},
        "by-epoch": lambda: {"sampler": by_epoch},
        "goes-on": lambda: {"sampler": GoesOn()},
        "batches": lambda: {"batch_sampler": BatchSampler(GoesOn(), BATCH, drop_last=True)},
    }[kind]()
    if "batch_sampler" not in make:
        more["batch_size"] = BATCH
    return DataLoader(data, **make, **more), by_epoch if kind == "by-epoch" else None


def save(kind, who, value):
    if "save" in options:
        (pathlib.Path(options["save"]) / f"{kind}-{who}.json").write_text(json.dumps(value))


def train(kind):
    settings = {"checkpoint.every_rounds": 4, "checkpoint.every_epochs": 0,
                "emulate.unit_time": "20ms"} if "checkpoint" in options else {}  # so that it can be killed meanwhile
    job = lockstep.init(seed=5, settings=settings)
    model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader, told = make_loader(kind)
    model, opt, loader = job.prepare(model, opt, loader, epochs=EPOCHS)
    positions, runs = [], []
    for epoch in range(EPOCHS):
        if told is not None:
            told.set_epoch(epoch + 5)
        for x, y, indices in loader:
            if options.get("die") == str(job.rank) and epoch == 1 and not os.path.exists(options["mark"]):
                pathlib.Path(options["mark"]).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            run = job._run.work
            assert tuple(indices.tolist()) == run.samples
            where = [p for first, end in run.ranges for p in range(first, end)]
            positions += [(run.epoch, p, sample) for p, sample in zip(where, run.samples, strict=True)]
            runs.append((run.epoch, run.round, run.samples))
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            job.log({"size": float(len(x))}, reduce="sum")
            opt.step()
        assert set(job.metrics) in ({"loss", "size"}, set()), set(job.metrics)  # none of the package's own
    print(f"{kind}: samples {sum(len(which) for _, _, which in runs)} of {len(loader)} updates", flush=True)
    print("parameters", *(f"{p.double().sum().item():.12f}" for p in model.parameters()), flush=True)
    save(kind, job.rank, {"positions": positions, "runs": runs})


def by_torch(kind):
    """What torch alone trains on: batches, by epoch."""
    loader, told = make_loader(kind)
    epochs = []
    for epoch in range(EPOCHS):
        if told is not None:
            told.set_epoch(epoch + 5)
        epochs.append([tuple(indices.tolist()) for _, _, indices in loader])
    assert all(len(batches) == len(loader) for batches in epochs)
    save(kind, "torch", epochs)


if __name__ == "__main__":
    for name in options["order"].split(","):
        by_torch(name) if "torch" in options else train(name)
