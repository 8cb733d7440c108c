"""Real models as workers of a job, and the same with torch alone. usage: torch_models.py model=resnet18|gpt2 [key=value ...]

resnet18: as torchvision builds it (stem of 7 x 7, four stages of two blocks, BatchNorm), its width to choose. gpt2: transformers', out
of a config. Prints the mean loss of each update, as JSON. With alone=PARTS no lockstep: batches are the job's, and with BatchNorm, which
normalizes each run by itself, are computed in so many parts, as by so many workers; with as=RUN_DIR in the very runs of that job, whatever
happened to its workers, rounds of fewer samples included. With die=FILE worker 1 is killed in the middle of a round, once: FILE says that
it was. checkpoint=N: one after every N rounds. unit_time=TIME: a floor under that of a unit.

order=PASSES: no job either. Of so many backward passes of one batch, how much of the gradient could travel at what moment: with buckets in
the order in which the package lays them out, and in the order in which the gradients became final here, as a layout would be that is learned
from a first pass. bucket=BYTES: of a bucket.
"""

import json
import os
import pathlib
import signal
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

options = dict(word.split("=", 1) for word in sys.argv[1:])
SEED = 11
UPDATES = int(options.get("updates", 100))
BATCH = int(options.get("batch", 16))
SAMPLES = BATCH * 10
WIDTH = int(options.get("width", 64))
LAYERS = int(options.get("layers", 4))
TOKENS = int(options.get("tokens", 32))
EPOCHS = -(-UPDATES // 10)


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet18(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        sizes = [width, width, 2 * width, 4 * width, 8 * width]
        self.layers = nn.Sequential(*(nn.Sequential(Block(a, b, 1 if i == 0 else 2), Block(b, b, 1))
                                      for i, (a, b) in enumerate(zip(sizes, sizes[1:], strict=False))))
        self.fc = nn.Linear(8 * width, classes)

    def forward(self, x):
        x = self.layers(self.maxpool(F.relu(self.bn1(self.conv1(x)))))
        return self.fc(x.mean((2, 3)))


def make():
    draw = torch.Generator().manual_seed(7)
    if options["model"] == "resnet18":
        model = ResNet18(WIDTH, 10)
        y = torch.randint(10, (SAMPLES,), generator=draw)
        x = torch.randn(SAMPLES, 3, 64, 64, generator=draw) + torch.randn(10, 3, 64, 64, generator=draw)[y] / 4
        return model, TensorDataset(x, y), lambda x, y: F.cross_entropy(model(x), y)
    from transformers import GPT2Config, GPT2LMHeadModel  # perhaps it is not there
    model = GPT2LMHeadModel(GPT2Config(vocab_size=1000, n_positions=TOKENS, n_embd=WIDTH, n_layer=LAYERS, n_head=4, resid_pdrop=0.0,
                                       embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False))
    # Words of which each follows from the one before, mostly.
    words = [torch.randint(1000, (SAMPLES,), generator=draw)]
    for _ in range(TOKENS - 1):
        words.append((words[-1] * 7 + torch.randint(3, (SAMPLES,), generator=draw)) % 1000)
    return model, TensorDataset(torch.stack(words, 1)), lambda x: model(input_ids=x, labels=x).loss


def make_optimizer(model):
    if options.get("optimizer", "sgd") == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    if options["optimizer"] == "adafactor":
        return torch.optim.Adafactor(model.parameters(), lr=0.02)  # of a value
    kind = {"adamw": torch.optim.AdamW, "nadam": torch.optim.NAdam}[options["optimizer"]]
    return kind(model.parameters(), lr=3e-4, eps=1e-6)


def in_a_job():
    import lockstep

    # A round of fewer samples, as where somebody's share came again in a later one, is a whole step, as in torch.
    settings = {"checkpoint.every_rounds": options.get("checkpoint", 0), "optimizer.linear_scaling": False}
    if "unit_time" in options:
        settings["emulate.unit_time"] = options["unit_time"]  # so that it can be killed meanwhile
    job = lockstep.init(seed=SEED, settings=settings)
    model, data, loss_of = make()
    opt = make_optimizer(model)
    _, opt, loader = job.prepare(model, opt, DataLoader(data, batch_size=BATCH, shuffle=True), epochs=EPOCHS, updates=UPDATES)
    losses = {}
    for _ in range(EPOCHS):
        for batch in loader:
            losses[job.metrics.round] = job.metrics.get("loss")
            loss_of(*batch).backward()
            if "die" in options and job.rank == 1 and job.round == UPDATES // 3 and not os.path.exists(options["die"]):
                pathlib.Path(options["die"]).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            opt.step()
        losses[job.metrics.round] = job.metrics.get("loss")
    losses.pop(-1, None)  # one that comes later knows of a round before its first one
    if job.rank != 0 or 0 not in losses:  # it has come later, or gone on from a checkpoint
        return None
    assert sorted(losses) == list(range(UPDATES)), sorted(losses)
    return [losses[i] for i in range(UPDATES)]


def recorded_updates(run_dir):
    """Of each update its epoch and, of each contribution that counts, the positions of each run."""
    for line in (pathlib.Path(run_dir) / "rounds.jsonl").read_text().splitlines():
        record = json.loads(line)
        contributions = []
        for one in record["contributors"]:
            runs, units = [], 0
            of_it = [entry for entry in record["units"] if entry["worker"] == one["worker"]
                     and any(first <= entry["range"][0] and entry["range"][1] <= end for first, end in one["ranges"])]
            for entry in sorted(of_it, key=lambda entry: entry["start"]):
                if units == 0:  # the last run is whole
                    runs.append([])
                runs[-1] += range(*entry["range"])
                units = (units + entry.get("units", 1)) % entry.get("run", 1)
            assert sum(map(len, runs)) == one["samples"], line
            contributions.append(runs)
        yield record["epoch"], contributions


def updates_of(parts):
    """As a job has them that nothing happens to, with a run of each of so many workers."""
    for update in range(UPDATES):
        at = update % 10 * BATCH
        yield update // 10, [[chunk.tolist()] for chunk in torch.arange(at, at + BATCH).chunk(parts)]


def alone(parts):
    """Adds up as a job does: a norm over few samples makes much of what is rounded otherwise."""
    from lockstep._order import epoch_order

    torch.manual_seed(SEED)
    model, data, loss_of = make()
    opt = make_optimizer(model)
    losses = []
    for epoch, contributions in recorded_updates(options["as"]) if "as" in options else updates_of(parts):
        order = torch.tensor(epoch_order(SEED, epoch, SAMPLES).tolist())
        samples, loss_sum = sum(len(run) for runs in contributions for run in runs), 0.0
        total = [torch.zeros_like(p) for p in model.parameters()]
        for runs in contributions:
            opt.zero_grad()
            for run in runs:
                part = order[run]
                loss = loss_of(*(tensor[part] for tensor in data.tensors)) * len(run)
                loss.backward()
                loss_sum += loss.item()
            for to, p in zip(total, model.parameters(), strict=True):
                to += p.grad
        for mean, p in zip(total, model.parameters(), strict=True):
            p.grad = mean * (1 / samples)
        opt.step()
        losses.append(loss_sum / samples)
    return losses


def buckets_of(sizes, order, most):
    """As worker/layout/layout.cc cuts them: the blocks of each, in the order of the buckets."""
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    buckets = []  # first, end, blocks
    for block in order:
        first, end = starts[block], starts[block] + sizes[block]
        if buckets and buckets[-1][1] - buckets[-1][0] + sizes[block] <= most and (end == buckets[-1][0] or first == buckets[-1][1]):
            buckets[-1] = [min(first, buckets[-1][0]), max(end, buckets[-1][1]), [*buckets[-1][2], block]]
            continue
        while end - first > 0:
            buckets.append([first, min(end, first + most), [block]])
            first = buckets[-1][1]
    return [(end - first, blocks) for first, end, blocks in buckets]


def travels(buckets, final, moments):
    """Of the gradient, the part that is in the first buckets that are final, at each moment. The last bucket goes with the end."""
    total = sum(size for size, _ in buckets)
    at, ready = [], 0.0
    for size, blocks in buckets[:-1]:
        ready = max(ready, *(final[block] for block in blocks))
        at.append((ready, size / total))
    return [sum(part for ready, part in at if ready <= moment) for moment in moments]


def order(passes):
    from lockstep import _final

    torch.manual_seed(SEED)
    model, data, loss_of = make()
    parameters = [p for p in model.parameters() if p.requires_grad]
    sizes = [p.numel() for p in parameters]
    seen, lengths, orders = [[] for _ in parameters], [], []
    for i in range(passes + 1):
        model.zero_grad()
        loss = loss_of(*(tensor[:BATCH] for tensor in data.tensors))
        said = []
        begin = time.monotonic()
        _final.backward(loss, parameters, lambda place: said.append((place, time.monotonic() - begin)))
        length = time.monotonic() - begin
        if i == 0:  # warm
            continue
        lengths.append(length)
        orders.append([place for place, _ in said])
        for place, at in said:
            seen[place].append(at / length)
    final = [statistics.median(times) if times else 1.0 for times in seen]
    most = int(options.get("bucket", 4 << 20)) // 4
    moments = [0.25, 0.5, 0.75, 0.9, 1.0]
    print(f"{sum(sizes) * 4 / 2**20:.1f} MiB in {len(sizes)} blocks; a pass takes {statistics.median(lengths) * 1e3:.1f} ms; "
          f"{100 * statistics.mean(len(found) for found in orders) / len(sizes):.1f} % of the blocks final before its end; "
          f"{len(set(map(tuple, orders)))} order(s) in {passes} passes")
    grid = [i / 200 for i in range(1, 201)]
    for name, which in (("as laid out", _final.order_of(len(sizes), len(sizes))), ("as learned", sorted(range(len(sizes)), key=final.__getitem__))):
        buckets = buckets_of(sizes, which, most)
        parts = ", ".join(f"{100 * part:.1f} % at {100 * moment:.0f} %" for part, moment in
                          zip(travels(buckets, final, moments), moments, strict=True))
        print(f"{name}: {len(buckets)} buckets; could travel: {parts} of the pass; {100 * statistics.mean(travels(buckets, final, grid)):.1f} % "
              "in the mean over it")


if __name__ == "__main__":
    if "order" in options:
        order(int(options["order"]))
        sys.exit(0)
    result = alone(int(options["alone"])) if "alone" in options else in_a_job()
    if result is not None:
        print("losses", json.dumps(result), flush=True)
