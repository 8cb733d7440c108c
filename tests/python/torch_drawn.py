"""A loop as nanoGPT has it: batches drawn at random out of a memory map, micro-batches, a rate set by hand, clipping, a scaler that is off.

usage: torch_drawn.py FOLDER [key=value ...]   a worker; the lines with a mark at their end differ from those for one process
       torch_drawn.py FOLDER alone             the same with torch alone, which then draws as the job does

Both save the losses of the micro-batches and the parameters. steps=N: of accumulation, of all workers together. clip=LIMIT.
"""

import math
import os
import pathlib
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

folder, alone = pathlib.Path(sys.argv[1]), sys.argv[2:3] == ["alone"]
options = dict(word.split("=", 1) for word in sys.argv[2:] if "=" in word)
if alone:
    options |= torch.load(folder / "options.pt")
batch_size, block_size, max_iters, eval_interval, eval_iters = 4, 16, 12, 5, 3
learning_rate, min_lr, warmup_iters, grad_clip = 1e-2, 1e-3, 3, float(options.get("clip", 0.5))
gradient_accumulation_steps = int(options.get("steps", 6))
updates, rank, world_size = max_iters + 1, 0, 1
ddp = "RANK" in os.environ

if not alone:
    import lockstep  # changed

    job = lockstep.init(seed=9)  # changed
else:
    torch.manual_seed(9)
if ddp:
    torch.distributed.init_process_group("gloo")
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    gradient_accumulation_steps //= world_size
(folder / "train.bin").exists() or (np.arange(4000) * 7 % 50 // 2).astype(np.uint16).tofile(folder / "train.bin")


def get_batch(split):
    data = np.memmap(folder / f"{split}.bin", dtype=np.uint16, mode="r")
    at = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in at])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in at])
    return x, y


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places, self.head = nn.Embedding(64, 32), nn.Embedding(block_size, 32), nn.Linear(32, 64, bias=False)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.head.weight = self.words.weight
        nn.init.normal_(self.words.weight, std=0.1)

    def forward(self, x, y):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        logits = self.head(self.block(self.words(x) + self.places(torch.arange(x.shape[1])), src_mask=mask, is_causal=True))
        return logits, F.cross_entropy(logits.flatten(0, 1), y.flatten())


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    return min_lr + 0.5 * (1 + math.cos(math.pi * (it - warmup_iters) / (max_iters - warmup_iters))) * (learning_rate - min_lr)


@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = [model(*get_batch("train"))[1].item() for _ in range(eval_iters)]
    model.train()
    return sum(losses) / len(losses)


model = Model()
decayed = [p for p in model.parameters() if p.dim() >= 2]
others = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=learning_rate, betas=(0.9, 0.95), eps=1e-5)
scaler = torch.amp.GradScaler("cpu", enabled=False)
if ddp:
    model = nn.parallel.DistributedDataParallel(model)
if not alone:
    steps = gradient_accumulation_steps * world_size
    model, optimizer, draw = job.prepare(model, optimizer, lambda: get_batch("train"), updates=updates, global_batch=steps)  # changed
    if not ddp:
        gradient_accumulation_steps, rank = gradient_accumulation_steps // job.size, job.rank  # changed, without torchrun
else:
    drawn = 0

    def draw():
        global drawn
        from lockstep._samples import seed_all, seed_of

        seed_all(seed_of(9, 0, drawn))
        drawn += 1
        return get_batch("train")


iter_num, seen, estimates, t0 = 0, [], [], time.time()
while True:
    lr = get_lr(iter_num)
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr
    if iter_num % eval_interval == 0 and rank == 0:
        estimates.append(estimate_loss())
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": iter_num}, folder / "ckpt.pt")
    for micro_step in range(gradient_accumulation_steps):
        if ddp:
            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        X, Y = draw()  # changed
        logits, loss = model(X, Y)
        seen.append((iter_num, loss.item()))
        loss = loss / gradient_accumulation_steps
        scaler.scale(loss).backward()
    if grad_clip != 0.0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if iter_num > max_iters:
        break
print(f"rank {rank}: {len(seen)} micro-batches in {time.time() - t0:.1f} s", flush=True)
raw_model = model.module if ddp else model
if grad_clip == 0.0 and not alone:
    job.stop("its last update")  # with clipping the model has that already
if not alone:
    torch.save({"seen": seen, "after": raw_model.state_dict(), "estimates": estimates}, folder / f"{rank}.pt")
    torch.save(options, folder / "options.pt")
    if ddp:
        torch.distributed.destroy_process_group()
    sys.exit(0)
saved = [torch.load(path) for path in sorted(folder.glob("[0-9].pt"))]
theirs = [loss for at in range(updates) for one in saved for number, loss in one["seen"] if number == at]
assert len(theirs) == len(seen) == updates * gradient_accumulation_steps, (len(theirs), len(seen))
losses = max(abs(a - b) for a, (_, b) in zip(sorted(theirs), sorted(seen, key=lambda pair: pair[1]), strict=True))
after = max((value - one["after"][name]).abs().max().item() for one in saved for name, value in model.state_dict().items())
print(f"loss {seen[0][1]:.4f} to {seen[-1][1]:.4f}; largest difference of the losses {losses:.1e}, of the parameters {after:.1e}")
assert len(saved) > 1 and all(abs(a - b) < 0.2 for a, b in zip(saved[0]["estimates"], estimates, strict=True)), (saved[0]["estimates"], estimates)
sys.exit(0 if losses < 1e-4 and after < 1e-4 and seen[-1][1] < seen[0][1] else 1)
