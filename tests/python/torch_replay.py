"""Trains on what torch_worker.py has saved (one process: all runs of a round are its batch) with torch alone, and compares the
outcome. usage: torch_replay.py FILE key=value ... (as given to torch_worker.py)

Prints "largest difference D", over all parameters, and fails above 1e-4 (with autocast or a dtype 5e-3).
"""

import itertools
import sys

file = sys.argv.pop(1)
import torch  # noqa: E402
import torch_worker as script  # noqa: E402

saved = torch.load(file)
model = script.make_model()
with torch.no_grad():
    for p, value in zip(model.parameters(), saved["before"], strict=True):
        p.copy_(value)
opt = script.make_optimizer(model)
sched = script.make_scheduler(opt)
rounds, epoch_before = 0, 0
for (epoch, _), runs in itertools.groupby(saved["runs"], key=lambda run: run[:2]):
    if sched is not None and script.options.get("steps") == "epoch" and epoch != epoch_before:
        sched.step()
    epoch_before = epoch
    runs = list(runs)
    if sched is not None:
        assert abs(saved["rates"][rounds] - sched.get_last_lr()[0]) < 1e-9, (rounds, saved["rates"][rounds], sched.get_last_lr())
    opt.zero_grad()
    x, y = torch.cat([run[2] for run in runs]), torch.cat([run[3] for run in runs])
    script.loss_of(model, x, y).backward()
    if "clip" in script.options:
        torch.nn.utils.clip_grad_norm_(model.parameters(), float(script.options["clip"]))
    opt.step()
    if sched is not None and script.options.get("steps", "update") == "update":
        sched.step()
    rounds += 1
difference = max((p - q).abs().max().item() for p, q in zip(model.parameters(), saved["after"], strict=True))
moved = max((p - q).abs().max().item() for p, q in zip(saved["before"], saved["after"], strict=True))
print(f"{rounds} updates, largest difference {difference:.2e}, moved {moved:.2e}")
# A job computes the gradient of a sum, which bfloat16 rounds in other places than that of the mean.
most = 5e-3 if {"autocast", "dtype"} & set(script.options) else 1e-4
sys.exit(0 if difference < most and moved > 1e-2 else 1)
