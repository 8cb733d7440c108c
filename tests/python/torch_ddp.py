"""Scripts for DistributedDataParallel: each trains by DDP, and again as a job, where it differs in Lockstep's three lines alone.

usage: torch_ddp.py OUT POLICY CASE ...    (RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as for torch.distributed)

Rank 0 writes a JSON object to OUT: by case the greatest difference of the two's parameters, and what the two have printed.
"""

import contextlib
import io
import json
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import lockstep

EPOCHS, BATCH = 2, 8
out, policy, names = sys.argv[1], sys.argv[2], sys.argv[3:]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
job = None


def make_model():
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def make_data(samples=128):
    draw = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(samples, 6, generator=draw), torch.randint(3, (samples,), generator=draw))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


class Parts:
    """What a script makes before its loop, and the three lines where there is a job."""

    def __init__(self, by_job, optimizer=sgd, scheduler=None, sampler=True, samples=128, **prepare):
        global job
        torch.manual_seed(1)
        job = lockstep.init(settings={"policy.name": policy, "optimizer.linear_scaling": False}) if by_job else None
        data = make_data(samples)
        self.model = DistributedDataParallel(make_model())
        self.opt = optimizer(self.model)
        self.sampler = DistributedSampler(data, seed=4) if sampler else None
        self.loader = DataLoader(data, batch_size=BATCH, sampler=self.sampler)
        self.sched = None if scheduler is None else scheduler(self.opt)
        if by_job:
            prepared = (self.model, self.opt, self.loader) + (() if self.sched is None else (self.sched,))
            prepared = job.prepare(*prepared, epochs=EPOCHS, **prepare)
            self.model, self.opt, self.loader = prepared[:3]
            self.sched = prepared[3] if len(prepared) > 3 else None

    def all(self):
        return self.model, self.opt, self.loader, self.sched


def plain(by_job):
    parts = Parts(by_job)
    model, opt, loader, _ = parts.all()
    for epoch in range(EPOCHS):
        parts.sampler.set_epoch(epoch)
        for x, y in loader:
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
    return model


def adam_without_set_epoch(by_job):
    """Each epoch has the same order then."""
    model, opt, loader, _ = Parts(by_job, adamw).all()
    for _ in range(EPOCHS):
        for x, y in loader:
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
    return model


def tutorial(by_job):
    """As the tutorial series of pytorch/examples: it looks at a batch in each epoch, and saves by model.module."""
    parts = Parts(by_job)
    model, opt, loader, _ = parts.all()
    for epoch in range(EPOCHS):
        size = len(next(iter(loader))[0])
        assert size == BATCH or by_job, size
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
        assert [f"module.{name}" for name in model.module.state_dict()] == list(model.state_dict())
    return model


def join_and_no_sync(by_job):
    parts = Parts(by_job)
    model, opt, loader, _ = parts.all()
    for epoch in range(EPOCHS):
        parts.sampler.set_epoch(epoch)
        with model.join():
            for x, y in loader:
                opt.zero_grad()
                with model.no_sync():
                    model(x).sum()  # a pass without a backward
                F.cross_entropy(model(x), y).backward()
                opt.step()
    return model


results = {}
for name in names:
    said = {}
    trained = {}
    for by_job in (False, True):
        text = io.StringIO()
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            model = globals()[name](by_job)
            trained[by_job] = [p.detach().clone() for p in model.parameters()]
            if by_job:
                job.close()
        said[by_job] = text.getvalue()
    apart = max(float((one - other).abs().max()) for one, other in zip(trained[False], trained[True], strict=True))
    results[name] = {"apart": apart, "said": said[True], "ddp said": said[False], "moved": float(trained[False][0].std())}
    dist.barrier()
with open(out + f".{rank}", "w", encoding="utf-8") as file:
    json.dump(results, file)
