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


def clipped_norm(by_job):
    """Norms are those of the whole update's gradient. The order is one that only a step shows: the norm is read before it is clipped."""
    parts = Parts(by_job)
    model, opt, loader, _ = parts.all()
    for epoch in range(EPOCHS):
        parts.sampler.set_epoch(epoch)
        for x, y in loader:
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            after = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            opt.step()
            print(f"norm {norm:.4f} {after:.4f}")
    return model


def clipped_values(by_job):
    model, opt, loader, _ = Parts(by_job, adamw).all()
    clip = torch.nn.utils.clip_grad_value_
    for _ in range(EPOCHS):
        for x, y in loader:
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            clip(model.parameters(), 0.02)
            opt.step()
    return model


def clipped_in_parts(by_job):
    """Two limits for two parts, by another norm, the one of them from the count of epochs."""
    model, opt, loader, _ = Parts(by_job).all()
    for epoch in range(EPOCHS):
        for x, y in loader:
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            torch.nn.utils.clip_grad_norm_(model.module[0].parameters(), 0.1 / (1 + epoch), norm_type=float("inf"))
            torch.nn.utils.clip_grad_norm_(list(model.module[2].parameters()), 0.3)
            opt.step()
    return model


def looked_at(by_job):
    """As a script that logs norms, and clips behind that."""
    model, opt, loader, _ = Parts(by_job).all()
    for _ in range(EPOCHS):
        for x, y in loader:
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            print(f"norm {sum(p.grad.square().sum() for p in model.parameters() if p.grad is not None).sqrt():.4f}")
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            opt.step()
    return model


def scaled(by_job):
    model, opt, loader, _ = Parts(by_job).all()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(EPOCHS):
        for x, y in loader:
            opt.zero_grad()
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            scaler.unscale_(opt)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            scaler.step(opt)
            scaler.update()
            print(f"norm {norm:.4f}")
    return model


def rates_by_hand(by_job):
    """As nanoGPT: each iteration sets the rate, here of two groups with different ones."""
    def groups(model):
        return torch.optim.SGD([{"params": model.module[0].parameters()}, {"params": model.module[2].parameters(), "lr": 0.05}], lr=0.1, momentum=0.9)
    model, opt, loader, _ = Parts(by_job, groups).all()
    step = 0
    for _ in range(EPOCHS):
        for x, y in loader:
            for i, group in enumerate(opt.param_groups):
                group["lr"] = 0.2 / (i + 1 + step)
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
            step += 1
    return model


def rates_by_epoch(by_job):
    """As older scripts (adjust_learning_rate)."""
    model, opt, loader, _ = Parts(by_job).all()
    for epoch in range(EPOCHS):
        opt.param_groups[0]["lr"] = 0.1 * 0.1**epoch
        for x, y in loader:
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
    return model


def rates_by_epoch_and_step(by_job):
    """As the fine-tuning scripts of vision models (MAE, ConvNeXt): from the pass and the place in it, with a scale for each group."""
    def groups(model):
        return torch.optim.SGD([{"params": [one], "scale": 0.5**i} for i, one in enumerate(model.parameters())], lr=0.1, momentum=0.9)
    model, opt, loader, _ = Parts(by_job, groups).all()
    for epoch in range(EPOCHS):
        for i, (x, y) in enumerate(loader):
            for group in opt.param_groups:
                group["lr"] = 0.2 / (1 + epoch + i / 8) * group["scale"]
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
    return model


def rates_and_clipped(by_job):
    """Clipping asks for the gradient before the step, so the rates of a batch are said before it, too."""
    model, opt, loader, _ = Parts(by_job).all()
    step = 0
    for _ in range(EPOCHS):
        for x, y in loader:
            opt.param_groups[0]["lr"] = 0.2 / (1 + step)
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            opt.step()
            step += 1
    return model


def scheduler_of_its_own(by_job):
    """That job.prepare is not given."""
    parts = Parts(by_job, lambda model: with_scheduler(sgd(model)))
    model, opt, loader, _ = parts.all()
    for _ in range(EPOCHS):
        for x, y in loader:
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
            schedulers[-1].step()
    return model


schedulers = []


def with_scheduler(opt):
    schedulers.append(torch.optim.lr_scheduler.CosineAnnealingLR(opt, 12))
    return opt


def stepped_each_epoch(by_job):
    """Saves as scripts do, too."""
    model, opt, loader, sched = Parts(by_job, scheduler=lambda opt: torch.optim.lr_scheduler.StepLR(opt, 1, 0.1)).all()
    for _ in range(EPOCHS):
        for x, y in loader:
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
        sched.step()
        state, steps = opt.state_dict(), sched.state_dict()
        print(f"saved {state['state'][0]['momentum_buffer'].norm():.4f} {steps['last_epoch']} {steps['_last_lr'][0]:.4f} {opt.param_groups[0]['lr']:.4f}")
    return model


def stepped_each_update(by_job):
    model, opt, loader, sched = Parts(by_job, scheduler=lambda opt: torch.optim.lr_scheduler.StepLR(opt, 3, 0.5)).all()
    for _ in range(EPOCHS):
        for x, y in loader:
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
            sched.step()
    return model


def stepped_and_clipped(by_job):
    model, opt, loader, sched = Parts(by_job, scheduler=lambda opt: torch.optim.lr_scheduler.LambdaLR(opt, lambda t: 1 / (1 + t))).all()
    for _ in range(EPOCHS):
        for x, y in loader:
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            opt.step()
        sched.step()
    return model


def accumulated(by_job):
    """Four batches for each step, whose losses are divided by four."""
    model, opt, loader, _ = Parts(by_job, **({"global_batch": 4 * world * BATCH} if by_job else {})).all()
    for _ in range(EPOCHS):
        for i, (x, y) in enumerate(loader):
            (F.cross_entropy(model(x), y) / 4).backward()
            if (i + 1) % 4 == 0:
                opt.step()
                opt.zero_grad()
    return model


def accumulated_sum(by_job):
    """Two batches, whose gradients add up, with no_sync, clipped."""
    model, opt, loader, _ = Parts(by_job, adamw, **({"global_batch": 2 * world * BATCH} if by_job else {})).all()
    for _ in range(EPOCHS):
        for i, (x, y) in enumerate(loader):
            if i % 2 == 0:
                with model.no_sync():
                    F.cross_entropy(model(x), y).backward()
                continue
            F.cross_entropy(model(x), y).backward()
            print(f"norm {torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2):.4f}")
            opt.step()
            opt.zero_grad()
    return model


def collectives(by_job):
    """Beside the training, in each iteration and each epoch."""
    model, opt, loader, _ = Parts(by_job).all()
    for epoch in range(EPOCHS):
        total = torch.zeros(2)
        for x, y in loader:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            seen = torch.tensor([loss.item() * len(x), len(x)])
            dist.all_reduce(seen)
            total += seen
        told = [(epoch, rank) if rank == 0 else None]
        dist.broadcast_object_list(told)
        found = [None] * world
        dist.all_gather_object(found, rank)
        dist.barrier()
        print(f"loss {total[0] / total[1]:.4f} {told} {found}")
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
