"""A loop as DCGAN has it: two nets, two optimizers, three backward passes for each batch. usage: torch_gan.py FOLDER [key=value ...]

every=N: the generator steps in every N-th update. norm=1: with BatchNorm. die=FILE: worker 1 is killed in the middle of an epoch, once, and
FILE says that it was. With alone=1 no lockstep: torch alone, which makes both steps behind the last backward pass, as a job does, with
the samples that the rounds of as=RUN_DIR have had. Compares the parameters with those that the workers have saved.
"""

import json
import os
import pathlib
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

folder = pathlib.Path(sys.argv[1])
options = dict(word.split("=", 1) for word in sys.argv[2:])
alone, every, epochs, samples, batch_size = "alone" in options, int(options.get("every", 1)), 3, 96, 16
criterion = nn.BCEWithLogitsLoss()
real_label, fake_label = 1.0, 0.0


class Deferred:
    """An optimizer whose step is made later, with the gradients of now."""

    waiting = []  # noqa: RUF012

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def step(self):
        Deferred.waiting.append((self, [None if p.grad is None else p.grad.clone() for p in self.parameters]))

    @staticmethod
    def make_all():
        for one, gradients in Deferred.waiting:
            for p, gradient in zip(one.parameters, gradients, strict=True):
                p.grad = gradient
            one.optimizer.step()
        Deferred.waiting.clear()


def net(inputs, hidden, outputs):
    return nn.Sequential(nn.Linear(inputs, hidden), *([nn.BatchNorm1d(hidden)] if "norm" in options else []), nn.LeakyReLU(0.2), nn.Linear(hidden, outputs))


def make_data():
    draw = torch.Generator().manual_seed(7)
    return TensorDataset(torch.randn(samples, 6, generator=draw) + 1, torch.randn(samples, 3, generator=draw))


if not alone:
    import lockstep

    job = lockstep.init(seed=4, settings={"optimizer.linear_scaling": False})
else:
    torch.manual_seed(4)
netG, netD = net(3, 8, 6), net(6, 8, 1)
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.999), eps=1e-5)
optimizerG = torch.optim.SGD(netG.parameters(), lr=0.05, momentum=0.9)
dataloader = DataLoader(make_data(), batch_size=batch_size, shuffle=True)
if not alone:
    (netD, netG), (optimizerD, optimizerG), dataloader = job.prepare([netD, netG], [optimizerD, optimizerG], dataloader, epochs=epochs)
else:
    optimizerD, optimizerG = Deferred(optimizerD), Deferred(optimizerG)


def batches(epoch):
    if not alone:
        yield from dataloader
        return
    from lockstep._order import epoch_order

    order = torch.tensor(epoch_order(4, epoch, samples).tolist())
    rounds = [json.loads(line) for line in (pathlib.Path(options["as"]) / "rounds.jsonl").read_text().splitlines()]
    for of_round in (record for record in rounds if record["epoch"] == epoch):
        part = torch.cat([order[first:end] for one in of_round["contributors"] for first, end in one["ranges"]])
        yield [tensor[part] for tensor in dataloader.dataset.tensors]
        Deferred.make_all()


update = 0
for epoch in range(epochs):
    for data in batches(epoch):
        if not alone:
            update = job.round
            if "die" in options and job.rank == 1 and epoch == 1 and not os.path.exists(options["die"]):
                open(options["die"], "w").close()
                os.kill(os.getpid(), 9)
        netD.zero_grad()
        real, noise = data
        label = torch.full((real.size(0),), real_label)
        errD_real = criterion(netD(real).view(-1), label)
        errD_real.backward()
        fake = netG(noise)
        label.fill_(fake_label)
        errD_fake = criterion(netD(fake.detach()).view(-1), label)
        errD_fake.backward()
        errD = errD_real + errD_fake
        optimizerD.step()
        if update % every == 0:
            netG.zero_grad()
            label.fill_(real_label)
            errG = criterion(netD(fake).view(-1), label)
            errG.backward()
            optimizerG.step()
        update += 1
after = [*netD.state_dict().values(), *netG.state_dict().values()]
if not alone:
    print(f"losses {errD.item():.4f} {errG.item():.4f} of the round {job.metrics['loss']:.4f}", flush=True)
    torch.save(after, folder / f"{job.rank}.pt")
    sys.exit(0)
saved = [torch.load(path) for path in sorted(folder.glob("*.pt"))]
largest = max((a.double() - b.double()).abs().max().item() for one in saved for a, b in zip(one, after, strict=True) if a.is_floating_point())
print(f"{len(saved)} workers, largest difference {largest:.1e}")
sys.exit(0 if saved and largest < 1e-5 else 1)
