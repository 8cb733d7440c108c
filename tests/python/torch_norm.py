"""A convolutional net with BatchNorm. usage: torch_norm.py FOLDER             a worker, which saves there what it was given
                                           torch_norm.py FOLDER replay      the same with torch alone

The second computes the runs of all workers one by one, each from the parameters and running statistics of its round, as DDP does on
each device, and takes the mean weighted by samples, of the gradients and of the running statistics. Both print "largest difference".
"""

import itertools
import pathlib
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep

folder = pathlib.Path(sys.argv[1])
EPOCHS, CLIP = 3, 0.5
options = dict(word.split("=", 1) for word in sys.argv[2:] if "=" in word)


def make_model():
    torch.manual_seed(11)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8, momentum=None),
                         nn.ReLU(), nn.Linear(8, 3))


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train():
    job = lockstep.init(settings={"optimizer.linear_scaling": False, "liveness.timeout": "60s", **options})
    draw = torch.Generator().manual_seed(7)
    x = torch.randn(240, 1, 6, 6, generator=draw) + 2
    y = x.flatten(1)[:, :3].argmax(1)
    model = make_model()
    loader = DataLoader(TensorDataset(x, y), batch_size=48, shuffle=True)
    model, opt, loader = job.prepare(model, make_optimizer(model), loader, epochs=EPOCHS, clip_grad_norm=CLIP)
    runs = []
    for _ in range(EPOCHS):
        for x, y in loader:
            runs.append((job.round, job.rank, x.clone(), y.clone()))
            opt.zero_grad()
            job.backward(F.cross_entropy(model(x), y))
            opt.step()
    torch.save({"runs": runs, "after": model.state_dict()}, folder / f"{job.rank}.pt")


def replay():
    saved = [torch.load(path) for path in sorted(folder.glob("*.pt"))]
    for other in saved[1:]:
        for name, value in saved[0]["after"].items():
            assert torch.equal(value, other["after"][name]), name
    model = make_model()
    opt = make_optimizer(model)
    runs = sorted((run for one in saved for run in one["runs"]), key=lambda run: run[:2])
    assert sum(len(run[2]) for run in runs) == 240 * EPOCHS
    assert len(runs) > len({run[0] for run in runs})  # rounds of several workers
    for _, of_round in itertools.groupby(runs, key=lambda run: run[0]):
        of_round = list(of_round)
        samples = sum(len(run[2]) for run in of_round)
        before = {name: buffer.clone() for name, buffer in model.named_buffers()}
        sums = {name: torch.zeros_like(buffer) for name, buffer in before.items()}
        opt.zero_grad()
        for _, _, x, y in of_round:
            for name, buffer in model.named_buffers():
                buffer.copy_(before[name])
            (F.cross_entropy(model(x), y) * (len(x) / samples)).backward()
            for name, buffer in model.named_buffers():
                sums[name] = sums[name] + buffer * (len(x) / samples)
        for name, buffer in model.named_buffers():
            buffer.copy_(sums[name] if buffer.is_floating_point() else before[name] + 1)
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        opt.step()
    difference = max((value - saved[0]["after"][name]).abs().max().item() for name, value in model.state_dict().items())
    assert int(model[1].num_batches_tracked) == 5 * EPOCHS, model[1].num_batches_tracked
    assert model[1].running_mean.abs().max() > 0.1
    print(f"largest difference {difference:.2e}")
    sys.exit(0 if difference < 1e-4 else 1)


replay() if sys.argv[2:] == ["replay"] else train()
