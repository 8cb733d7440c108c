"""A small training script for the tests with torch. usage: torch_worker.py [key=value ...]

Prints the digest and a sum of the parameters at the end, and with save=FILE writes what was trained on and what came of it.
"""

import math
import os
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep

options = dict(word.split("=", 1) for word in sys.argv[1:])
EPOCHS = int(options.get("epochs", 3))
BATCH = int(options.get("batch", 60))
SAMPLES = 500  # no multiple of the batch: the last update of an epoch has fewer


def make_model():
    hidden = int(options.get("hidden", 16))
    return nn.Sequential(nn.Linear(12, hidden), nn.Tanh(), nn.Linear(hidden, 3), *([nn.Dropout(0.2)] if "dropout" in options else []))


class OwnRule(torch.optim.Optimizer):
    """Keeps all that an optimizer may: numbers, tensors of other shapes and kinds, new ones with each step. As FP32 some of it would be no
    number (-1, infinity, bytes of 255)."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr, "seen": 0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["seen"] += 1
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=0, trust=1.0, last=-1, best=math.inf, mean=torch.zeros_like(p), on=torch.ones(3, dtype=torch.bool),
                                 rows=torch.zeros(p.shape[0], dtype=torch.float64), codes=torch.full_like(p, 255, dtype=torch.uint8))
                state["step"] += 1
                state["trust"] *= 0.99
                state["last"] -= 1
                state["codes"].sub_(state["step"] % 2)
                assert state["best"] == math.inf and state["last"] == -1 - state["step"] and bool(state["on"].all())
                state["mean"] = 0.9 * state["mean"] + p.grad
                state["rows"].mul_(0.9).add_(p.grad.double().square().reshape(p.shape[0], -1).mean(1), alpha=0.1)
                spread = (state["rows"] / (1 - 0.9 ** state["step"])).sqrt().float().reshape(-1, *[1] * (p.dim() - 1)) + 0.1
                p.data = p.data - group["lr"] * state["trust"] / (1 + 0.1 * group["seen"]) * state["mean"] / spread * (1 + state["codes"] / 2550)


def make_optimizer(model):
    kind = options.get("optimizer", "sgd")
    others = {
        "own": lambda: OwnRule(model.parameters(), lr=float(options.get("lr", 0.05))),
        "groups": lambda: torch.optim.SGD([{"params": model[0].parameters(), "lr": 0.02},
                                           {"params": model[2].parameters(), "momentum": 0.5}], lr=0.1, momentum=0.9),
        "decay": lambda: torch.optim.AdamW([{"params": [p for p in model.parameters() if p.dim() > 1]},
                                            {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0, "lr": 0.02}],
                                           lr=0.01, weight_decay=0.1),
        "adagrad": lambda: torch.optim.Adagrad(model.parameters(), lr=0.05, initial_accumulator_value=0.1),
        "nadam": lambda: torch.optim.NAdam(model.parameters(), lr=0.01),
        "adafactor": lambda: torch.optim.Adafactor(model.parameters(), lr=0.05),
    }
    if kind in others:
        return others[kind]()
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3)
    assert kind == "adamw", kind
    return torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.85, 0.95), weight_decay=0.05)


def loss_of(model, x, y):
    with torch.autocast("cpu", torch.bfloat16, enabled="autocast" in options):
        result = model(x)
        assert result.dtype is (torch.bfloat16 if "autocast" in options else torch.float32), result.dtype
        return F.cross_entropy(result, y)


def make_scheduler(opt):
    kind = options.get("scheduler")
    if kind == "step":
        return torch.optim.lr_scheduler.StepLR(opt, 4, gamma=0.5)
    if kind == "cosine":
        return torch.optim.lr_scheduler.CosineAnnealingLR(opt, EPOCHS * -(-SAMPLES // BATCH), eta_min=0.001)
    if kind == "onecycle":
        return torch.optim.lr_scheduler.OneCycleLR(opt, 0.05, total_steps=EPOCHS * -(-SAMPLES // BATCH) + 1)
    if kind == "lambda":
        return torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 1 / (1 + 0.1 * step))
    if kind == "exponential":
        return torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.5)
    return None


def make_data():
    draw = torch.Generator().manual_seed(7)
    x = torch.randn(SAMPLES, 12, generator=draw)
    y = (x @ torch.randn(12, 3, generator=draw)).argmax(1)
    return TensorDataset(x, y)


def main():
    settings = {"optimizer.linear_scaling": False} if "full_steps" in options else {}
    if "dtype" in options:
        settings["exchange.dtype"] = options["dtype"]
    if "checkpoint" in options:
        settings |= {"checkpoint.every_rounds": options["checkpoint"], "checkpoint.every_epochs": 0,
                     "emulate.unit_time": "10ms"}  # so that it can be killed meanwhile
    job = lockstep.init(seed=5, run_dir=options.get("run_dir"), resume="auto" if "resume" in options else False, settings=settings)
    model = make_model()
    before = [p.detach().clone() for p in model.parameters()]
    opt = make_optimizer(model)
    sched = make_scheduler(opt)
    loader = DataLoader(make_data(), batch_size=BATCH, shuffle=True)
    prepared = job.prepare(model, opt, loader, sched, epochs=EPOCHS, clip_grad_norm=float(options["clip"]) if "clip" in options else None,
                           scheduler_steps=options.get("steps", "update"))
    model, opt, loader = prepared[:3]
    runs, rates, addresses = [], [], set()
    for epoch in range(EPOCHS):
        for x, y in loader:
            if options.get("die") == str(job.rank) and epoch == 1 and not os.path.exists(options["mark"]):
                open(options["mark"], "w").close()
                os.kill(os.getpid(), 9)
            if options.get("raise") == str(job.rank):
                raise ValueError("something of the script's own")
            assert job.epoch == epoch
            runs.append((job.epoch, job.round, x.clone(), y.clone()))
            opt.zero_grad()
            job.backward(loss_of(model, x, y))
            opt.step()
            addresses.add(model[0].weight.data_ptr())
            if sched is not None:
                if options.get("steps", "update") == "update":
                    prepared[3].step()
                assert opt.param_groups[0]["lr"] == prepared[3].get_last_lr()[0]
                rates.append(prepared[3].get_last_lr()[0])
        if options.get("steps") == "epoch":
            prepared[3].step()
    print(f"samples {sum(len(x) for _, _, x, _ in runs)} addresses {len(addresses)} runs {len(runs)} rule {job.config['optimizer.name']}", flush=True)
    print("parameters", *(f"{p.double().sum().item():.12f}" for p in model.parameters()), flush=True)
    if "save" in options and job.rank == 0:
        torch.save({"before": before, "runs": runs, "rates": rates, "after": [p.detach() for p in model.parameters()]}, options["save"])


if __name__ == "__main__":
    main()
