"""A worker that looks at how much it is handed at once, for test_torch_units.py. usage: torch_units.py [key=value ...]

batch=N, of the loader; global=N; units=N; fixed=1; samples=N; epochs=N; policy=NAME; norm=1; compiled=1: an error where the model is
compiled for a second time; leave=RANK: that worker fails in round 1. Prints the sizes of its batches and which samples it has had.
"""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep

options = dict(word.split("=", 1) for word in sys.argv[1:])


def main():
    samples, epochs = int(options.get("samples", 200)), int(options.get("epochs", 2))
    job = lockstep.init(seed=3, settings={"policy.name": options["policy"]} if "policy" in options else {})
    norm = [nn.BatchNorm1d(4)] if "norm" in options else []
    model = nn.Sequential(nn.Linear(1, 4), *norm, nn.Linear(4, 2))
    if "compiled" in options:
        torch._dynamo.config.error_on_recompile = True
        model.compile(backend="eager")  # its guards are those of any backend
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.arange(float(samples)).reshape(-1, 1)
    loader = DataLoader(TensorDataset(x, torch.arange(samples) % 2), batch_size=int(options.get("batch", 8)), shuffle=True)
    units = {"units": int(options["units"])} if "units" in options else {}
    model, opt, loader = job.prepare(model, opt, loader, epochs=epochs, global_batch=int(options.get("global", 64)),
                                     fixed_batch="fixed" in options, **units)
    sizes, had = set(), []
    for _ in range(epochs):
        for a, b in loader:
            if options.get("leave") == str(job.rank) and job.round == 1:
                raise ValueError("it has to go")
            sizes.add(len(a))
            had += (a[:, 0].int() + samples * job.epoch).tolist()
            F.cross_entropy(model(a / samples), b).backward()
            opt.step()
    assert job.size > 1 or sorted(had) == list(range(epochs * samples)), "alone it has each sample once"
    print("sizes", *sorted(sizes), flush=True)
    print("parameters", *(f"{p.double().sum().item():.15f}" for p in model.parameters()), flush=True)


if __name__ == "__main__":
    main()
