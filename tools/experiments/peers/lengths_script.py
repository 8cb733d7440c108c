"""A job of text whose lengths have a heavy tail, for bench-lengths. usage: lengths_script.py SYSTEM RANK SIZE FOLDER [key=value ...]

SYSTEM: ddp, lockstep, or table, which prints the batches of each epoch as a JSON list. A batch has texts of like length, as many as its
budget of tokens has room for. The options are below. `each`: batches of a worker in a step. `slow`: rank 0 takes so many times as long
for each batch. DDP's rank 0 prints the times at which epochs ended, as JSON.
"""

import contextlib
import json
import random
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

SYSTEM, RANK, SIZE, FOLDER = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
OPTIONS = {"each": 4, "slow": 1.0, "epochs": 4, "texts": 4096, "budget": 1024, "costs": 0, "seed": 1}
OPTIONS.update((key, type(OPTIONS[key])(value)) for key, _, value in (word.partition("=") for word in sys.argv[5:]))
WORDS, WIDTH, CLASSES, LONGEST = 200, 64, 5, 512


class Texts(Dataset):
    def __init__(self):
        draw = torch.Generator().manual_seed(OPTIONS["seed"])
        uniform = torch.rand(OPTIONS["texts"], generator=draw)
        self.lengths = (8 * (1 - uniform).pow(-1 / 1.1)).long().clamp(1, LONGEST).tolist()
        self.texts = [torch.randint(1, WORDS, (length,), generator=draw) for length in self.lengths]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return self.texts[index], int(self.texts[index].sum()) % CLASSES


class TokenBudget:
    """The same batches in each epoch, in an order of its own."""

    def __init__(self, lengths):
        self.batches, batch = [], []
        for index in sorted(range(len(lengths)), key=lengths.__getitem__):
            if batch and (len(batch) + 1) * lengths[index] > OPTIONS["budget"]:
                self.batches.append(batch)
                batch = []
            batch.append(index)
        self.batches.append(batch)
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        order = list(range(len(self.batches)))
        random.Random(self.epoch).shuffle(order)
        return (self.batches[i] for i in order)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, texts):
        padding = texts == 0
        found = self.layers(self.words(texts), src_key_padding_mask=padding).masked_fill(padding.unsqueeze(-1), 0.0)
        return self.out(found.sum(1) / (~padding).sum(1, keepdim=True))


def collate(samples):
    texts, classes = zip(*samples, strict=True)
    return nn.utils.rnn.pad_sequence(texts, batch_first=True), torch.tensor(classes)


def cost_of(lengths):
    """Of a batch: tokens, padding included, and what attention takes."""

    def cost(batch):
        longest = max(lengths[index] for index in batch)
        return len(batch) * longest * (1 + longest / 256)

    return cost


def gradient(model, batch, share, backward):
    began = time.monotonic()
    loss = F.cross_entropy(model(batch[0]), batch[1])
    backward(loss * share)
    if RANK == 0 and OPTIONS["slow"] > 1:
        time.sleep((OPTIONS["slow"] - 1) * (time.monotonic() - began))


def with_ddp(data, sampler):
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{FOLDER}/rendezvous", rank=RANK, world_size=SIZE)
    model = nn.parallel.DistributedDataParallel(Model())
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    ends = []
    for epoch in range(OPTIONS["epochs"]):
        sampler.set_epoch(epoch)
        batches = list(sampler)
        batches = batches[: len(batches) // (SIZE * OPTIONS["each"]) * SIZE * OPTIONS["each"]]
        for first in range(0, len(batches), SIZE * OPTIONS["each"]):
            mine = batches[first + RANK : first + SIZE * OPTIONS["each"] : SIZE]
            opt.zero_grad()
            for number, batch in enumerate(mine):
                last = number == len(mine) - 1
                with contextlib.nullcontext() if last else model.no_sync():
                    gradient(model, collate([data[i] for i in batch]), 1 / len(mine), lambda loss: loss.backward())
            opt.step()
        ends.append(time.monotonic())
    dist.destroy_process_group()
    if RANK == 0:
        print(json.dumps({"ends": ends}))


def with_lockstep(data, sampler):
    import lockstep

    global RANK
    job = lockstep.init(seed=1)
    model = Model()
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    count = len(sampler) // (SIZE * OPTIONS["each"]) * SIZE * OPTIONS["each"]
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=collate)
    model, opt, loader = job.prepare(model, opt, loader, epochs=OPTIONS["epochs"], global_batch=SIZE * OPTIONS["each"], samples=count,
                                     cost=cost_of(data.lengths) if OPTIONS["costs"] else None)
    RANK = job.rank
    for _ in range(OPTIONS["epochs"]):
        for batch in loader:
            opt.zero_grad()
            gradient(model, batch, 1.0, lambda loss: loss.backward())
            opt.step()


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = Texts()
    sampler = TokenBudget(data.lengths)
    if SYSTEM == "table":
        count = len(sampler) // (SIZE * OPTIONS["each"]) * SIZE * OPTIONS["each"]
        table = []
        for epoch in range(OPTIONS["epochs"]):
            sampler.set_epoch(epoch)
            table.append([len(batch) for batch in sampler][:count])
        print(json.dumps(table))
    else:
        {"ddp": with_ddp, "lockstep": with_lockstep}[SYSTEM](data, sampler)


if __name__ == "__main__":
    main()
