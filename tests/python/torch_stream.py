"""A worker whose dataset can only be passed over, for test_torch_stream.py. usage: torch_stream.py [key=value ...]

length=N items of the stream, samples=N of an epoch of the job. shuffled=1: the dataset draws its order; sharded=1: it shares itself out.
save=FOLDER: the items of each epoch go there, into WORKER.json. die=W: worker W kills itself in epoch 1, once (mark=FILE).
"""

import json
import os
import pathlib
import signal
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import lockstep

options = dict(word.split("=", 1) for word in sys.argv[1:])
EPOCHS = int(options.get("epochs", 3))
LENGTH = int(options.get("length", 200))
SAMPLES = int(options.get("samples", 200))


class Stream(IterableDataset):
    def __iter__(self):
        items = torch.randperm(LENGTH).tolist() if "shuffled" in options else range(LENGTH)
        if "sharded" in options:
            worker = get_worker_info()
            items = items[worker.id :: worker.num_workers]
        else:
            assert get_worker_info() is None
        for item in items:
            noise = torch.rand(()).item()
            yield torch.tensor([item / LENGTH, noise]), item % 2, item, noise


def main():
    settings = {"checkpoint.every_rounds": 4, "checkpoint.every_epochs": 0, "emulate.unit_time": "20ms"} if "checkpoint" in options else {}
    job = lockstep.init(seed=5, settings=settings)
    model = nn.Linear(2, 2)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Stream(), batch_size=30)
    model, opt, loader = job.prepare(model, opt, loader, epochs=EPOCHS, samples=SAMPLES, sharded="sharded" in options)
    items = [[] for _ in range(EPOCHS)]
    for epoch in range(EPOCHS):
        for x, y, which, noise in loader:
            if options.get("die") == str(job.rank) and epoch == 1 and not os.path.exists(options["mark"]):
                pathlib.Path(options["mark"]).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            torch.rand(int(job.rank) + 1)  # what the script draws is none of the stream's
            items[epoch] += zip(which.tolist(), noise.tolist(), strict=True)
            F.cross_entropy(model(x), y).backward()
            opt.step()
    print("parameters", *(f"{p.double().sum().item():.12f}" for p in model.parameters()), flush=True)
    if "save" in options:
        (pathlib.Path(options["save"]) / f"{job.rank}.json").write_text(json.dumps(items))


if __name__ == "__main__":
    main()
