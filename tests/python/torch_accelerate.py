"""A script for accelerate, for test_torch_accelerate.py. usage: torch_accelerate.py MODULE OUT CASE ...

MODULE: accelerate or lockstep.accelerate, the one difference. Process R writes what each case has come to into OUT.R, as JSON.
"""

import importlib
import json
import os
import sys

import torch
import torch.nn.functional as F
from accelerate.state import AcceleratorState
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

module, out, *names = sys.argv[1:]
Accelerator = importlib.import_module(module).Accelerator
given = {}
SAMPLES, EPOCHS = 48, 3


def make():
    draw = torch.Generator().manual_seed(3)
    data = TensorDataset(torch.randn(SAMPLES, 6, generator=draw), torch.randint(3, (SAMPLES,), generator=draw))
    torch.manual_seed(7)
    return data, nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def train(last, steps=1, clip=None, value=None, schedule=None, split=False, precision="no", limit=None):
    """The loop of accelerate's examples, with their count of steps."""
    more = {"mixed_precision": precision, "cpu": True, **given}
    if split:
        from accelerate.utils import DataLoaderConfiguration

        more["dataloader_config"] = DataLoaderConfiguration(split_batches=True)
    AcceleratorState._reset_state()  # which holds on to the precision of the case before
    accelerator = Accelerator(gradient_accumulation_steps=steps, **more)
    data, model = make()
    opt = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    batch = 4 * (accelerator.num_processes if split else 1)
    loader, held = DataLoader(data, batch_size=batch), DataLoader(data, batch_size=10)
    sched = schedule(opt, len(loader) * EPOCHS // steps) if schedule else None
    objects = (model, opt, loader, held) + (() if sched is None else (sched,))
    model, opt, loader, held, *rest = accelerator.prepare(*objects)
    step, seen, rates, losses, right = 0, [], [], [], []
    for _ in range(EPOCHS):
        model.train()
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients and clip:
                    accelerator.clip_grad_norm_(model.parameters(), clip)
                if accelerator.sync_gradients and value:
                    accelerator.clip_grad_value_(model.parameters(), value)
                opt.step()
                for one in rest:
                    one.step()
                opt.zero_grad()
            if accelerator.sync_gradients:
                step += 1
                seen.append(float(sum(p.detach().double().abs().sum() for p in model.parameters())))
                rates.append(opt.param_groups[0]["lr"])
            if step == limit:
                break
        if step == limit:
            break
        model.eval()
        guessed = []
        for x, y in held:
            with torch.no_grad():
                guesses, wanted = accelerator.gather_for_metrics((model(x).argmax(1), y))
            guessed += (guesses == wanted).tolist()
        right.append([len(guessed), sum(guessed)])
        losses.append(float(loss.detach()) if accelerator.num_processes == 1 else 0)
    accelerator.wait_for_everyone()
    accelerator.print("main", accelerator.process_index, len(loader))
    found = [p.detach().flatten().tolist() for p in accelerator.unwrap_model(model).parameters()]
    if last or module != "accelerate":  # whose one process group it ends
        accelerator.end_training()
    return {"step": step, "seen": seen, "right": right, "parameters": [x for part in found for x in part], "length": len(loader),
            "processes": accelerator.num_processes}


def linear(opt, steps):
    return torch.optim.lr_scheduler.LambdaLR(opt, lambda t: max(0.0, 1 - t / steps))


CASES = {
    "plain": {},
    "accumulates": {"steps": 2, "clip": 0.4},
    "schedule": {"steps": 2, "schedule": linear},
    "value": {"value": 0.01},
    "split": {"split": True, "schedule": linear},
    "bf16": {"precision": "bf16"},
    "limit": {"steps": 2, "limit": 4},
}


def main():
    found = {case: train(case == names[-1], **CASES[case]) for case in names}
    with open(f"{out}.{os.environ.get('RANK', 0)}", "w", encoding="utf-8") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
