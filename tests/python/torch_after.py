"""An average of the parameters that follows the updates, and weights that are clamped. usage: torch_after.py [key=value ...]

Prints digests of the average and of the parameters, and how many updates they have had. average=torch|timm|state: an AveragedModel, a
ModelEmaV3, or an object with state_dict and load_state_dict. die=FILE: worker 1 is killed in the middle of an epoch, once, and FILE says
that it was. With alone=1 no lockstep: the same updates with torch alone, saved as save=FILE does it, to be compared.
"""

import hashlib
import os
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

options = dict(word.split("=", 1) for word in sys.argv[1:])
EPOCHS, SAMPLES, BATCH, LIMIT = int(options.get("epochs", 3)), 160, 16, 0.2


class Shadow:
    """Keeps tensors that are made anew with each update, numbers and words."""

    def __init__(self, model):
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.updates, self.warm, self.name = 0, False, "shadow"

    def update(self, model):
        self.updates += 1
        self.warm = self.updates > 3
        decay = 0.9 if self.warm else 0.5
        self.shadow = {name: decay * self.shadow[name] + (1 - decay) * p.detach() for name, p in model.named_parameters()}

    def state_dict(self):
        return {"shadow": dict(self.shadow), "numbers": [self.updates, self.warm], "name": self.name}

    def load_state_dict(self, state):
        self.shadow, self.name = dict(state["shadow"]), state["name"]
        self.updates, self.warm = state["numbers"]
        assert type(self.updates) is int and type(self.warm) is bool, state


def make_model():
    norm = [nn.BatchNorm1d(8)] if "norm" in options else []
    return nn.Sequential(nn.Linear(4, 8), *norm, nn.Tanh(), nn.Linear(8, 2))


def make_average(model):
    """The average, what makes it, and its tensors."""
    kind = options.get("average", "torch")
    if kind == "torch":
        ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers="norm" in options)
        return ema, lambda n: ema.update_parameters(model), lambda: [*ema.parameters(), *ema.buffers()]
    if kind == "timm":
        from timm.utils import ModelEmaV3  # perhaps it is not there

        ema = ModelEmaV3(model, decay=0.9, use_warmup=True)
        return ema, lambda n: ema.update(model, step=n), lambda: [*ema.parameters(), *ema.buffers()]
    assert kind == "state", kind
    ema = Shadow(model)
    return ema, lambda n: ema.update(model), lambda: [*ema.shadow.values(), torch.tensor([ema.updates, ema.warm])]


def clamp(model):
    for p in model[-1].parameters():
        p.clamp_(-LIMIT, LIMIT)


def make_data():
    draw = torch.Generator().manual_seed(7)
    x = torch.randn(SAMPLES, 4, generator=draw)
    return TensorDataset(x, (x.sum(1) > 0).long())


def digest(tensors):
    return hashlib.sha256(b"".join(t.detach().contiguous().numpy().tobytes() for t in tensors)).hexdigest()


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def in_a_job():
    import lockstep

    settings = {"optimizer.linear_scaling": False}
    if "checkpoint" in options:
        settings |= {"checkpoint.every_rounds": options["checkpoint"], "checkpoint.every_epochs": 0, "emulate.unit_time": "10ms"}
    job = lockstep.init(seed=5, settings=settings)
    model = make_model()
    ema, average, tensors = make_average(model)
    seen = []
    job.after_update(lambda n: clamp(model))
    job.after_update(average, ema)
    job.after_update(seen.append)
    prepared, opt, loader = job.prepare(model, make_optimizer(model), DataLoader(make_data(), batch_size=BATCH, shuffle=True), epochs=EPOCHS)
    for epoch in range(EPOCHS):
        for x, y in loader:
            F.cross_entropy(model(x), y).backward()
            if options.get("die") and job.rank == 1 and epoch == 1 and not os.path.exists(options["die"]):
                open(options["die"], "w").close()
                os.kill(os.getpid(), 9)
            opt.step()
        print(f"epoch {epoch} average {digest(tensors())} of {job.next_round}", flush=True)
    print("average", digest(tensors()), "parameters", digest(prepared.parameters()), flush=True)
    assert seen == list(range(seen[0], EPOCHS * SAMPLES // BATCH + 1)), seen  # each update once, in order, up to the last one
    print("calls", len(seen), flush=True)
    assert max(p.abs().max().item() for p in model[-1].parameters()) <= LIMIT + 1e-7
    if "save" in options and job.rank == 0:
        torch.save([*model.parameters(), *tensors()], options["save"])


def alone():
    from lockstep._order import epoch_order

    torch.manual_seed(5)
    model, data = make_model(), make_data()
    _, average, tensors = make_average(model)
    opt = make_optimizer(model)
    updates = 0
    for epoch in range(EPOCHS):
        order = torch.tensor(epoch_order(5, epoch, SAMPLES).tolist())
        for part in order.split(BATCH):
            x, y = (tensor[part] for tensor in data.tensors)
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
            updates += 1
            with torch.no_grad():
                clamp(model)
                average(updates)
    theirs, mine = torch.load(options["alone"], weights_only=False), [*model.parameters(), *tensors()]
    largest = max((a.double() - b.double()).abs().max().item() for a, b in zip(theirs, mine, strict=True))
    print(f"largest difference {largest:.1e}")
    sys.exit(0 if largest < 1e-5 else 1)


if __name__ == "__main__":
    alone() if "alone" in options else in_a_job()
