"""Fashion-MNIST in plain PyTorch and three lines of Lockstep.

    python examples/pytorch/fashion_mnist.py                                                    one process
    lockstep run -n 4 --policy auto --slowdown worker=3,factor=5 examples/pytorch/fashion_mnist.py

The data: Debian's and Ubuntu's package dataset-fashion-mnist, or --data with a folder that holds the four usual files.
"""

import argparse
import gzip
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep  # +


def read(folder, name):
    """A file of the IDX format, plain or compressed, as bytes in the shape that it says."""
    for path, opener in ((folder / name, open), (folder / f"{name}.gz", gzip.open)):
        if path.is_file():
            with opener(path, "rb") as file:
                data = bytearray(file.read())
            dimensions = data[3]
            shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(dimensions)]
            return torch.frombuffer(data, dtype=torch.uint8, offset=4 + 4 * dimensions).reshape(shape)
    sys.exit(f"there is no {name} in {folder}: apt-get install dataset-fashion-mnist, or say where the data are with --data")


def split(folder, name):
    images, labels = read(folder, f"{name}-images-idx3-ubyte"), read(folder, f"{name}-labels-idx1-ubyte")
    return TensorDataset(images.flatten(1).float() / 255, labels.long())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()

    job = lockstep.init()  # +
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(split(options.data, "train"), batch_size=256, shuffle=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=options.epochs * len(loader))
    test = split(options.data, "t10k")
    model, opt, loader, sched = job.prepare(model, opt, loader, sched, epochs=options.epochs)  # +

    start = time.monotonic()
    for _ in range(options.epochs):
        for x, y in loader:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            sched.step()

    if job.rank == 0:
        with torch.no_grad():
            images, labels = test.tensors
            accuracy = (model(images).argmax(1) == labels).float().mean().item()
        updates = job.metrics.round + 1  # Ctrl-C ends a job early, and the script goes on here
        print(f"{updates} updates in {time.monotonic() - start:.1f} s, test accuracy {100 * accuracy:.2f} %")


if __name__ == "__main__":
    main()
