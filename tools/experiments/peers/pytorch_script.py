"""One training script for bench-pytorch, as a user of each system writes it. Arguments: SYSTEM RANK SIZE FOLDER key=value ...; as a worker
of Lockstep, whose launcher says the rank, SYSTEM is lockstep and RANK 0.

SYSTEM: alone, ddp, torchft, lockstep. Model, data, batches and delays are the same in all. Prints, once, {"ends": [...]} on rank 0: when
each step ended, in seconds; Lockstep's rounds are in its run directory.

A delay is sleep. `late=S`: S seconds for a whole share, less for a part of one, so that each sample of the late rank costs the same
whoever shares out the work. `stall=S`: S seconds before a step, whatever of it this rank computes. `delay=S p=P`: as late, in a step
drawn with probability P, for each rank by itself; the draw is a function of (seed, rank, step) and of nothing else.
"""

import json
import os
import random
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

SYSTEM, RANK, SIZE, FOLDER = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
OPTIONS = dict(word.split("=", 1) for word in sys.argv[5:])
BATCH, STEPS, SEED = int(OPTIONS["batch"]), int(OPTIONS["steps"]), int(OPTIONS["seed"])
LATE, STALL, DELAY, P = (float(OPTIONS.get(name, 0)) for name in ("late", "stall", "delay", "p"))
SAMPLES = 4096 * 4
RATE = 0.01


class Attention(nn.Module):
    """A block of a transformer."""

    def __init__(self, width):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(b, t, 3, 4, w // 4).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, w))
        return x + self.wide(self.norms[1](x))


def make():
    torch.manual_seed(SEED)
    if OPTIONS["model"] == "mlp":
        model = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
        data = torch.rand(SAMPLES, 784)
    elif OPTIONS["model"] == "cnn":
        model = nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(),
                              nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 49, 10))
        data = torch.rand(SAMPLES, 1, 28, 28)
    else:
        model = nn.Sequential(nn.Embedding(256, 128), Attention(128), Attention(128), nn.Flatten(), nn.Linear(16 * 128, 10))
        data = torch.randint(256, (SAMPLES, 16))
    return model, TensorDataset(data, torch.randint(10, (SAMPLES,)))


class Delays:
    def __init__(self, rank):
        self.rank, self.step = rank, -1

    def before(self, step, samples):
        part = samples / BATCH
        seconds = 0.0
        if self.rank == 0:
            seconds += LATE * part
        if self.rank == 0 and step != self.step:
            seconds += STALL
        if P > 0 and random.Random(f"{SEED} {self.rank} {step}").random() < P:
            seconds += DELAY * part
        self.step = step
        if seconds > 0:
            time.sleep(seconds)


def with_steps(model, optimizer, loader, sampler, delays):
    """The loop of alone, ddp and torchft. Batches of tensors are indexed at once, like Lockstep's loader: torch's own collating of
    single samples takes as long as a small model."""
    ends, epoch = [], 0
    while len(ends) < STEPS:
        sampler.set_epoch(epoch)
        for x, y in loader:
            delays.before(len(ends), len(y))
            optimizer.zero_grad(set_to_none=SYSTEM != "ddp")  # ddp: gradients stay views of its buckets
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            ends.append(time.monotonic())
            if len(ends) == STEPS:
                break
        epoch += 1
    return ends


def loader_of(data):
    sampler = DistributedSampler(data, SIZE, RANK, seed=SEED)
    return DataLoader(data, batch_size=None, sampler=BatchSampler(sampler, BATCH, drop_last=True)), sampler


def alone():
    model, data = make()
    return with_steps(model, torch.optim.SGD(model.parameters(), lr=RATE), *loader_of(data), Delays(RANK))


def ddp():
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{FOLDER}/rendezvous", rank=RANK, world_size=SIZE)
    model, data = make()
    model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    ends = with_steps(model, torch.optim.SGD(model.parameters(), lr=RATE), *loader_of(data), Delays(RANK))
    dist.barrier()
    dist.destroy_process_group()
    return ends


def torchft():
    import torch.distributed as dist
    import torchft as ft
    from torchft.coordination import LighthouseServer

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    meeting = dist.FileStore(f"{FOLDER}/meeting", SIZE)
    if RANK == 0:
        lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=SIZE, quorum_tick_ms=1)
        meeting.set("lighthouse", lighthouse.address())
    address = meeting.get("lighthouse").decode()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    model, data = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    # Each process is a replica group of one, as in its examples for DDP; all begin alike, so nothing is copied at first.
    manager = ft.Manager(pg=ft.ProcessGroupGloo(), min_replica_size=SIZE, load_state_dict=model.load_state_dict, state_dict=model.state_dict,
                         replica_id=f"bench_{RANK}", rank=0, world_size=1, store_addr="127.0.0.1", store_port=store.port,
                         lighthouse_addr=address, hostname="127.0.0.1", init_sync=False)
    model = ft.DistributedDataParallel(manager, model, gradient_as_bucket_view=True)
    ends = with_steps(model, ft.Optimizer(manager, optimizer), *loader_of(data), Delays(RANK))
    if manager.current_step() != STEPS:
        sys.exit(f"{manager.current_step()} of {STEPS} steps were committed")
    meeting.set(f"done {RANK}", "1")
    meeting.wait([f"done {rank}" for rank in range(SIZE)])  # the lighthouse is in one of them
    manager.shutdown(wait=False)
    return ends


def lockstep():
    import lockstep

    job = lockstep.init(seed=SEED)
    model, data = make()
    opt = torch.optim.SGD(model.parameters(), lr=RATE)
    epochs = -(-STEPS * BATCH * SIZE // len(data))
    loader = DataLoader(data, batch_size=BATCH * SIZE, shuffle=True)
    model, opt, loader = job.prepare(model, opt, loader, epochs=epochs, updates=STEPS)
    delays = Delays(job.rank)
    for _ in range(epochs):
        for x, y in loader:
            delays.before(job.round, len(y))
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()


if __name__ == "__main__":
    torch.set_num_threads(1)
    ended = {"alone": alone, "ddp": ddp, "torchft": torchft, "lockstep": lockstep}[SYSTEM]()
    if ended is not None and RANK == 0:
        print(json.dumps({"ends": ended}), flush=True)
    if SYSTEM == "torchft":  # its threads outlive it
        sys.stdout.flush()
        os._exit(0)
