"""A worker whose samples are read by loader processes, for test_torch_loader.py. usage: torch_loader.py [key=value ...]

workers=K loader processes; context=NAME how they start. `raise` and `stop` say at which sample something happens, `end` in which run.
Prints "parameters DIGEST" and, of what the datasets gave for each position, "samples DIGEST COUNT"; save=FOLDER: that goes there, by
worker. With begun=FOLDER each loader process leaves a file there that bears its number. With read_s and compute_s, how long a sample
takes, it is a measurement: "seconds S" from the first run on.
"""

import hashlib
import os
import pathlib
import random
import signal
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, get_worker_info

import lockstep

options = dict(word.split("=", 1) for word in sys.argv[1:])
EPOCHS = int(options.get("epochs", 3))
BATCH = int(options.get("batch", 60))
SAMPLES = 500  # no multiple of the batch
COUNT = int(options.get("workers", 0))


class Data(Dataset):
    """With augmentation by all three generators, and values of all kinds."""

    def __init__(self):
        draw = torch.Generator().manual_seed(7)
        self.x = torch.randn(SAMPLES, 12, generator=draw)
        self.y = (self.x @ torch.randn(12, 3, generator=draw)).argmax(1)
        self.main = os.getpid()

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        worker = get_worker_info()
        if os.getpid() != self.main:
            assert worker.num_workers == COUNT and 0 <= worker.id < COUNT, worker
            assert self is getattr(worker.dataset, "dataset", worker.dataset) and self.begun == worker.id
            if options.get("raise") == str(index):
                raise KeyError(f"no such thing as {index}")
            if options.get("stop") == str(index):
                os.write(1, f"stopped {os.getpid()}\n".encode())
                while True:
                    signal.pause()
        noise = torch.randn(12) * 0.1 + random.random() * 0.01
        if "numpy" in sys.modules:
            noise = noise + sys.modules["numpy"].random.rand() * 0.01
        time.sleep(float(options.get("read_s", 0)))  # as a disk or a network would let it wait
        return {"x": self.x[index] + noise, "y": int(self.y[index]), "index": index}


class Together(Data):
    """One draw for all that are fetched at once."""

    def __getitems__(self, indices):
        noise = torch.randn(12)
        return [{"x": self.x[i] + 0.1 * noise, "y": int(self.y[i]), "index": i} for i in indices]


def begin(number):
    data = get_worker_info().dataset
    getattr(data, "dataset", data).begun = number
    if "begun" in options:
        (pathlib.Path(options["begun"]) / str(os.getpid())).touch()


def main():
    job = lockstep.init(seed=5, run_dir=options.get("run_dir"))
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(12, 16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 3))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = Together() if options.get("data") == "together" else Data()
    if options.get("data") == "subset":
        data = Subset(data, range(SAMPLES))
    loader = DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=COUNT, worker_init_fn=begin, timeout=float(options.get("timeout", 0)),
                        multiprocessing_context=options.get("context"), collate_fn=lambda many: (  # which stays here
                            torch.stack([one["x"] for one in many]), torch.tensor([one["y"] for one in many]),
                            [one["index"] for one in many], torch.randn(1)))
    model, opt, loader = job.prepare(model, opt, loader, epochs=EPOCHS)
    from lockstep import _order
    seen, runs = {}, 0
    began = time.monotonic()
    for epoch in range(EPOCHS):
        order = _order.epoch_order(5, epoch, SAMPLES)
        for x, y, indices, shift in loader:
            runs += 1
            positions = [p for first, end in job._run.work.ranges for p in range(first, end)]
            assert indices == [order[p] for p in positions] == list(job._run.work.samples)
            seen.update(((epoch, p), value.numpy().tobytes()) for p, value in zip(positions, x, strict=True))
            loss = F.cross_entropy(model(x + 0.01 * shift), y)
            time.sleep(float(options.get("compute_s", 0)) * len(x))
            job.backward(loss)
            opt.step()
            if options.get("end") == str(runs):
                print("loop", *(process.process.pid for process in job._batches._processes._processes), flush=True)
                while True:
                    signal.pause()
    seconds = time.monotonic() - began
    if "save" in options:
        torch.save(seen, pathlib.Path(options["save"]) / f"{job.rank}.pt")
    digest = hashlib.sha256()
    for key in sorted(seen):
        digest.update(seen[key])
    values = torch.cat([p.detach().flatten() for p in model.parameters()])
    print(f"parameters {hashlib.sha256(values.numpy().tobytes()).hexdigest()}", flush=True)
    print(f"samples {digest.hexdigest()} {len(seen)}", flush=True)
    print(f"seconds {seconds:.2f}", flush=True)


if __name__ == "__main__":
    main()
