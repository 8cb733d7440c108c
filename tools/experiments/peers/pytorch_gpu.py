"""One training script on a GPU for gpu-check, as a user of each system writes it. Arguments: SYSTEM RANK SIZE FOLDER key=value ...; as a
worker of Lockstep, whose launcher says the rank, SYSTEM is lockstep and RANK 0.

SYSTEM: alone, ddp (over Gloo: NCCL has no two ranks on one GPU), lockstep. Model, data, batches and precision are the same in all: a
transformer of the size of GPT-2's smallest by default, bfloat16 by autocast, AdamW. Rank 0 prints {"step_ms": ...} once: the time of a
step, measured over `steps` steps after some to warm up.
"""

import json
import os
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

SYSTEM, RANK, SIZE, FOLDER = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
OPTIONS = dict(word.split("=", 1) for word in sys.argv[5:])
LAYERS, WIDTH, TOKENS, VOCABULARY = (int(OPTIONS.get(name, value)) for name, value in
                                     (("layers", 12), ("width", 768), ("tokens", 512), ("vocabulary", 50257)))
BATCH, STEPS, WARM_UP = (int(OPTIONS.get(name, value)) for name, value in (("batch", 8), ("steps", 20), ("warm_up", 8)))
SAMPLES = 2048
RATE = 1e-4
HEAD = 64


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(b, t, 3, w // HEAD, HEAD).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, w))
        return x + self.wide(self.norms[1](x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Parameter(torch.zeros(TOKENS, WIDTH))
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x):
        return self.out(self.norm(self.blocks(self.words(x) + self.places)))


def make():
    torch.manual_seed(5)
    data = torch.randint(VOCABULARY, (SAMPLES, TOKENS + 1))
    return Model().cuda(), TensorDataset(data)


def loss_of(model, batch):
    batch = batch.cuda(non_blocking=True)
    with torch.autocast("cuda", torch.bfloat16):
        out = model(batch[:, :-1])
    return F.cross_entropy(out.flatten(0, 1).float(), batch[:, 1:].flatten())


class Clock:
    def __init__(self):
        self.steps, self.begin, self.ms = 0, 0.0, None

    def stepped(self):
        self.steps += 1
        if self.steps in (WARM_UP, WARM_UP + STEPS):
            torch.cuda.synchronize()
            now = time.monotonic()
            if self.steps == WARM_UP:
                self.begin = now
            else:
                self.ms = (now - self.begin) / STEPS * 1e3
        return self.steps < WARM_UP + STEPS


def with_steps(model, data):
    clock = Clock()
    opt = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    sampler = DistributedSampler(data, SIZE, RANK, seed=5)
    while True:
        for (batch,) in DataLoader(data, batch_size=None, sampler=BatchSampler(sampler, BATCH, drop_last=True)):
            opt.zero_grad(set_to_none=SYSTEM != "ddp")
            loss_of(model, batch).backward()
            opt.step()
            if not clock.stepped():
                return clock.ms


def alone():
    return with_steps(*make())


def ddp():
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{FOLDER}/rendezvous", rank=RANK, world_size=SIZE)
    model, data = make()
    ms = with_steps(nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True), data)
    dist.barrier()
    dist.destroy_process_group()
    return ms


def lockstep():
    import lockstep

    job = lockstep.init(seed=5)
    model, data = make()
    opt = torch.optim.AdamW(model.parameters(), lr=RATE)
    steps = WARM_UP + STEPS
    epochs = -(-steps * BATCH * SIZE // len(data))
    loader = DataLoader(data, batch_size=BATCH * SIZE, shuffle=True)
    model, opt, loader = job.prepare(model, opt, loader, epochs=epochs, updates=steps)
    clock = Clock()
    for _ in range(epochs):
        for (batch,) in loader:
            opt.zero_grad()
            loss_of(model, batch).backward()
            opt.step()
            clock.stepped()
    return clock.ms if job.rank == 0 else None


if __name__ == "__main__":
    took = {"alone": alone, "ddp": ddp, "lockstep": lockstep}[SYSTEM]()
    if took is not None and RANK == 0:
        print(json.dumps({"step_ms": took, "memory_mib": torch.cuda.max_memory_allocated() >> 20}), flush=True)
