"""Streams that share their items out in ways of their own, a job of each in turn, for test_torch_stream.py. usage: torch_parts.py KIND,...

Each job has 96 items in an epoch, and two epochs. Prints "KIND WORKER [[items of an epoch], ...]", or "KIND WORKER refused: MESSAGE".
"""

import os
import sys

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import lockstep

ITEMS = 96


def launched():
    """What a library reads of the environment: (rank, size)."""
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def told():
    info = get_worker_info()
    return (info.id, info.num_workers) if info else (0, 1)


class Stream(IterableDataset):
    """`parts`: what say which part of the items is given, each in turn a part of that before."""

    def __init__(self, *parts):
        self.parts = parts

    def __iter__(self):
        items = range(ITEMS)
        for part in self.parts:
            rank, size = part()
            items = items[rank::size]
        yield from items


def fixed():
    """The part that the environment says now."""
    now = launched()
    return lambda: now


def undivided(make):
    with lockstep.undivided():
        return make()


class Own:
    """What the job says, from outside of the stream."""

    def __call__(self):
        return self.job.rank, self.job.size


class Same(IterableDataset):
    """Items that are all alike."""

    def __iter__(self):
        yield from [7] * ITEMS


def train(kind):
    job = lockstep.init()
    own = Own()
    own.job = job
    stream, sharded = {
        "environment": lambda: (Stream(launched), False),
        "environment-and-told": lambda: (Stream(launched, told), True),
        "fixed": lambda: (Stream(fixed()), True),
        "own": lambda: (Stream(own), False),
        "own-sharded": lambda: (Stream(own), True),
        "whole": lambda: (Stream(), True),
        "alike": lambda: (Same(), True),
        "made-undivided": lambda: (Stream(undivided(fixed), told), True),
    }[kind]()
    model = torch.nn.Linear(1, 2)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    who = int(os.environ.get("RANK", 0))
    try:
        model, opt, loader = job.prepare(model, opt, DataLoader(stream, batch_size=24), epochs=2, samples=ITEMS, units=2, sharded=sharded)
        epochs = [[], []]
        for epoch in epochs:
            for items in loader:
                epoch += items.tolist()
                F.cross_entropy(model(items[:, None] / ITEMS), items % 2).backward()
                opt.step()
        print(f"{kind} {who} {epochs}\n", end="", flush=True)
    except lockstep.UsageError as error:
        print(f"{kind} {who} refused: {error}\n", end="", flush=True)
    except lockstep.JobFailed as error:  # the other worker was told first, and has left
        print(f"{kind} {who} failed: {error}\n", end="", flush=True)
    job.close()


if __name__ == "__main__":
    for name in sys.argv[1].split(","):
        train(name)
