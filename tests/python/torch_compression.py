"""A worker whose gradients go as factors of low rank, for test_torch_compression.py. usage: torch_compression.py OPTIMIZER
[EPOCHS [norm]].

Prints the losses of the epochs, and the sum of each parameter."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.003),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.02),  # makes its updates itself
    "plain": lambda parameters: torch.optim.SGD(parameters, lr=0.02),  # has no state of its own
}


def main():
    epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 6
    job = lockstep.init(seed=3)
    torch.manual_seed(1)
    norm = [nn.BatchNorm2d(32)] if "norm" in sys.argv else []
    model = nn.Sequential(nn.Conv2d(4, 32, 3), *norm, nn.ReLU(), nn.Flatten(), nn.Linear(32 * 36, 48), nn.ReLU(), nn.Linear(48, 4))
    opt = OPTIMIZERS[sys.argv[1]](model.parameters())
    x = torch.rand(256, 4, 8, 8)
    y = x.mean(dim=(2, 3)).argmax(dim=1)
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
    model, opt, loader = job.prepare(model, opt, loader, epochs=epochs, global_batch=32)
    losses = []
    for _ in range(epochs):
        losses.append(0.0)
        for a, b in loader:
            loss = F.cross_entropy(model(a), b)
            loss.backward()
            opt.step()
            losses[-1] += loss.item() * len(b)
    print("losses", *losses, flush=True)
    print("parameters", *(f"{p.double().sum().item():.15f}" for p in model.parameters()), flush=True)


if __name__ == "__main__":
    main()
