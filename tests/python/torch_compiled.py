"""A worker with a model that torch.compile has been over, for test_torch_compiled.py. usage: torch_compiled.py [key=value ...]

how=NAME,... what is compiled, a job for each in turn; norm=1: with a norm. Prints of each a sum of its parameters, the names that they
have in checkpoints, and the job's liveness.timeout.
"""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep

options = dict(word.split("=", 1) for word in sys.argv[1:])
EPOCHS, BATCH, SAMPLES = 3, 60, 500


def train(how):
    draw = torch.Generator().manual_seed(7)
    x = torch.randn(SAMPLES, 12, generator=draw)
    y = (x @ torch.randn(12, 3, generator=draw)).argmax(1)
    unseen = {"liveness.timeout": "300s"} if how == "step" else {}  # by job.prepare
    job = lockstep.init(seed=5, settings=unseen)
    norm = [nn.BatchNorm1d(16)] if "norm" in options else []
    model = nn.Sequential(nn.Linear(12, 16), *norm, nn.Tanh(), nn.Linear(16, 3))
    if how == "model":
        model = torch.compile(model)
    elif how == "in-place":
        model.compile()
    elif how == "part":
        model[0] = torch.compile(model[0])
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    job.evaluate(lambda model, batch: (F.cross_entropy(model(batch[0]), batch[1], reduction="sum"), 0),
                 DataLoader(TensorDataset(x[:100], y[:100]), batch_size=50), every_epochs=2)
    model, opt, loader = job.prepare(model, opt, DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True), epochs=EPOCHS)

    def step(a, b):
        loss = F.cross_entropy(model(a), b)
        loss.backward()

    if how == "step":
        step = torch.compile(step)
    for _ in range(EPOCHS):
        for a, b in loader:
            opt.zero_grad()
            step(a, b)
            opt.step()
    print(f"{how}: timeout {job.config['liveness.timeout']}", flush=True)
    print(f"{how}: names", *(tensor.name for tensor in job._parameters.tensors), flush=True)
    print(f"{how}: parameters", *(f"{p.double().sum().item():.12f}" for p in model.parameters()), flush=True)


if __name__ == "__main__":
    for name in options["how"].split(","):
        train(name)
