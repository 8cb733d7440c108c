"""One training script for bench-faults, as a user of each system writes it. Arguments: SYSTEM RANK FOLDER key=value ...

SYSTEM: ddp (under torchrun), torchft (under one torchrun for each worker; RANK says which), lockstep (under lockstep run). Model, data,
batches and the emulated time of a sample are the same in all. Step s of an epoch takes the samples from s * global batch on, so systems
that lose nothing go the same way. `lighthouse` serves torchft's workers, `compare A B START` prints how far apart two snapshots are.

Each process appends what it does to FOLDER/records/PID.jsonl. Each line is one write, so a kill loses none:
  born, made, ready   the process begins; torch is imported; the system's own part of the start is over
  begin, end          a step with its samples, and its end
  saved, probe        a checkpoint; a snapshot with the loss of fixed samples
"""

import datetime
import json
import os
import signal
import sys
import time
from pathlib import Path

PROBE_STEPS, PROBE_SAMPLES = 100, 512
SIZES = {"small": (64, (128,)), "large": (1024, (2048, 2048))}  # features, hidden layers
CLASSES, EPOCH_STEPS, EPOCHS = 10, 128, 10_000
RATE, MOMENTUM = 0.01, 0.9


class Records:
    def __init__(self, folder):
        self.folder = Path(folder)
        self.file = os.open(self.folder / "records" / f"{os.getpid()}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, **values):
        os.write(self.file, (json.dumps({**values, "at": time.monotonic()}) + "\n").encode())


class Run:
    """Has what all systems share."""

    def __init__(self, records, options):
        import torch

        self.records, self.folder = records, records.folder
        self.workers, self.batch, self.seed = (int(options[name]) for name in ("workers", "batch", "seed"))
        self.sample_s, self.slow, self.every = float(options["sample_s"]), float(options["slow"]), int(options["every"])
        self.whole = self.workers * self.batch
        features, hidden = SIZES[options["size"]]
        torch.set_num_threads(1)
        torch.manual_seed(self.seed)
        draw = torch.Generator().manual_seed(self.seed)
        self.x = torch.randn(EPOCH_STEPS * self.whole, features, generator=draw)
        self.y = (self.x @ torch.randn(features, CLASSES, generator=draw)).argmax(1)
        widths = (features, *hidden, CLASSES)
        layers = [layer for a, b in zip(widths, widths[1:]) for layer in (torch.nn.Linear(a, b), torch.nn.ReLU())]
        self.model = torch.nn.Sequential(*layers[:-1])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE, momentum=MOMENTUM)

    def ready(self, rank):
        self.rank = rank
        self.records.write(ready=rank)

    def share(self, step):
        """The samples of this rank, where each has the same number of them."""
        first = step % EPOCH_STEPS * self.whole + self.rank * self.batch
        return first, first + self.batch

    def compute(self, model, x, y):
        """The emulated accelerator takes its time, and the last rank, if it is to be slow, a multiple of it."""
        import torch.nn.functional as F

        time.sleep(len(y) * self.sample_s * (self.slow if self.rank == self.workers - 1 else 1))
        F.cross_entropy(model(x), y).backward()

    def snapshot(self, step):
        """One process saves the parameters before a step, and the loss that they have."""
        import torch
        import torch.nn.functional as F

        if step % PROBE_STEPS != 0:
            return
        path = self.folder / "snapshots" / f"{step}.pt"
        try:
            os.close(os.open(path.with_suffix(".claim"), os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return
        with torch.no_grad():
            loss = F.cross_entropy(self.model(self.x[:PROBE_SAMPLES]), self.y[:PROBE_SAMPLES]).item()
            torch.save(torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()]), path.with_suffix(".part"))
        os.rename(path.with_suffix(".part"), path)
        self.records.write(probe=step, loss=loss)


def ddp(run, _rank):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    path, step = run.folder / "checkpoint.pt", 0
    if path.exists():
        kept = torch.load(path)
        run.model.load_state_dict(kept["model"])
        run.optimizer.load_state_dict(kept["optimizer"])
        step = kept["step"]
    model = torch.nn.parallel.DistributedDataParallel(run.model)
    run.ready(dist.get_rank())
    while True:
        run.snapshot(step)
        if step % run.every == 0 and run.rank == 0:
            torch.save({"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict(), "step": step}, path.with_suffix(".part"))
            os.rename(path.with_suffix(".part"), path)
            run.records.write(saved=step)
        first, end = run.share(step)
        run.records.write(begin=step, ranges=[[first, end]])
        run.optimizer.zero_grad()
        run.compute(model, run.x[first:end], run.y[first:end])
        run.optimizer.step()
        run.records.write(end=step)
        step += 1


def torchft(run, rank):
    """As its example: a replica group for each worker, a lighthouse that goes on with whom there is. The step says which samples are next,
    so a step that is not committed is tried again with the same ones."""
    import torchft as ft

    def load(state):
        run.model.load_state_dict(state["model"])
        run.optimizer.load_state_dict(state["optimizer"])

    manager = ft.Manager(pg=ft.ProcessGroupGloo(timeout=datetime.timedelta(seconds=5)), min_replica_size=1, load_state_dict=load,
                         state_dict=lambda: {"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()},
                         replica_id=f"worker_{rank}", timeout=datetime.timedelta(seconds=30), hostname="127.0.0.1")
    model = ft.DistributedDataParallel(manager, run.model)
    optimizer = ft.Optimizer(manager, run.optimizer)
    run.ready(rank)
    run.snapshot(manager.current_step())
    while True:
        step = manager.current_step()
        first, end = run.share(step)
        run.records.write(begin=step, ranges=[[first, end]])
        optimizer.zero_grad()  # starts the quorum, which goes on beside the forward pass
        run.compute(model, run.x[first:end], run.y[first:end])
        # One that has just come back takes the others' state, and its gradient does not count.
        step, parts, counts = manager.current_step(), manager.num_participants(), manager.is_participating()
        optimizer.step()
        if manager.current_step() > step:
            run.records.write(end=step, parts=parts, counts=counts)
            run.snapshot(manager.current_step())


def lockstep(run, _rank):
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    import lockstep

    job = lockstep.init(seed=run.seed)
    loader = DataLoader(TensorDataset(run.x, run.y, torch.arange(len(run.y))), batch_size=run.whole)
    model, optimizer, loader = job.prepare(run.model, run.optimizer, loader, epochs=EPOCHS)
    run.ready(job.rank)
    for _ in range(EPOCHS):
        for x, y, samples in loader:
            run.snapshot(job.round)
            run.records.write(begin=job.round, ranges=ranges_of(samples.tolist()))
            optimizer.zero_grad()
            run.compute(model, x, y)
            optimizer.step()
            run.records.write(end=job.round)


def ranges_of(samples):
    """Half open ranges of consecutive numbers."""
    ranges = []
    for sample in samples:
        if ranges and ranges[-1][1] == sample:
            ranges[-1][1] += 1
        else:
            ranges.append([sample, sample + 1])
    return ranges


def lighthouse(folder, heartbeat_ms):
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=10_000, quorum_tick_ms=100, heartbeat_timeout_ms=heartbeat_ms)
    part = Path(folder) / "lighthouse.part"
    part.write_text(server.address())
    part.rename(Path(folder) / "lighthouse")
    signal.pause()


def compare(first, second, start):
    import torch

    a, b, c = (torch.load(path).double() for path in (first, second, start))
    print(json.dumps({"equal": torch.equal(a, b), "distance": ((a - b).norm() / (a - c).norm()).item()}))


def main():
    system, words = sys.argv[1], sys.argv[2:]
    if system == "compare":
        compare(*words)
    elif system == "lighthouse":
        lighthouse(words[0], int(words[1]))
    else:
        records = Records(words[1])
        records.write(born=os.getpid(), restart=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))
        run = Run(records, dict(word.split("=", 1) for word in words[2:]))
        records.write(made=system)
        {"ddp": ddp, "torchft": torchft, "lockstep": lockstep}[system](run, int(words[0]))


if __name__ == "__main__":
    main()
