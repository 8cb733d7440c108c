"""A worker whose loop is a library's: the blocks of docs/guides/loop-libraries.md as they stand there. usage: torch_loops.py KEY=VALUE ...

library=ignite, skorch or fastai. page=FILE: the guide. save=FOLDER: the parameters at the end go there, into WORKER.pt, and the batches that this
worker had in each pass into WORKER.json. schedule=1: with the library's way of changing rates. alone=1: the library by itself, without Lockstep.
killed=1: worker 0 begins its third pass when there is another worker 1 in the place of the first.
"""

import json
import pathlib
import re
import sys
import threading

import torch
import torch.nn.functional as F  # noqa: F401 - for the blocks
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

options = dict(word.split("=", 1) for word in sys.argv[1:])
LIBRARY, PAGE, FOLDER = options["library"], pathlib.Path(options["page"]).read_text(), pathlib.Path(options["save"])
EPOCHS, BATCH, SAMPLES, HELD = 4, 64, 512, 128
TITLES = {"ignite": "Ignite", "skorch": "skorch", "fastai": "fastai"}

job = None
if "alone" not in options:
    import lockstep

    job = lockstep.init()
draw = torch.Generator().manual_seed(5)
samples = torch.randn(SAMPLES + HELD, 16, generator=draw)
labels = (samples @ torch.randn(16, 4, generator=draw)).argmax(1)
torch.manual_seed(5)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
counts = []


class Counted:
    """The job's loader; how many batches come of each pass is counted."""

    def __init__(self, loader):
        self._loader = loader

    def __len__(self):
        return len(self._loader)

    def __iter__(self):
        if "killed" in options and job.rank == 0 and len(counts) == 2:
            with job.away("waiting for worker 1", at_most=300):
                while not (FOLDER / "again").exists():
                    threading.Event().wait(0.02)
        counts.append(0)
        for batch in self._loader:
            counts[-1] += 1
            yield batch

    def __getattr__(self, name):
        return getattr(self._loader, name)


if job is not None:
    plain_prepare = job.prepare

    def prepare(*arguments, **more):
        model, opt, loader, *rest = plain_prepare(*arguments, **more)
        if job.rank == 1:
            (FOLDER / ("again" if (FOLDER / "first").exists() else "first")).touch()
        return model, opt, Counted(loader), *rest

    job.prepare = prepare


def blocks():
    section = re.search(rf"^## {TITLES[LIBRARY]}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL).group(1)
    found = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    if job is None:
        # As the script was before.
        found[0] = re.sub(r"^model, opt, loader = job\.prepare.*\n", "", found[0], flags=re.MULTILINE)
        found[0] = re.sub(r"^@trainer\.on\(Events\.EPOCH_STARTED.*?(?=^@trainer\.on\(Events\.EPOCH_COMPLETED\))", "", found[0], flags=re.MULTILINE | re.DOTALL)
        found[0] = re.sub(r"^class Net.*?(?=^net = )", "Net = NeuralNetClassifier\n", found[0], flags=re.MULTILINE | re.DOTALL)
        assert "job" not in found[0], found[0]
    return found


first, *more = blocks()
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(TensorDataset(samples[:SAMPLES], labels[:SAMPLES]), batch_size=BATCH)
held = DataLoader(TensorDataset(samples[SAMPLES:], labels[SAMPLES:]), batch_size=BATCH)
x, y = samples.numpy(), labels.numpy()  # for skorch, which holds the same number of them out
if "schedule" in options:
    if LIBRARY == "fastai":
        sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.2, total_steps=2 * EPOCHS * len(loader))
        first = first.replace("model, opt, loader = job.prepare(model, opt, loader, epochs=EPOCHS)",
                              'model, opt, loader, sched = job.prepare(model, opt, loader, sched, epochs=EPOCHS, scheduler_steps="update")')
        first = first.replace("metrics=accuracy", "metrics=accuracy, cbs=Step()")
        first = more[0] + first
    elif LIBRARY == "skorch":
        first = "from skorch.callbacks import LRScheduler\n" + first
        first = first.replace("max_epochs=EPOCHS)\nnet.fit", "max_epochs=EPOCHS, callbacks=[LRScheduler(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5)])\nnet.fit")
        assert "StepLR" in first
exec(compile(first, f"{LIBRARY} of the guide", "exec"))
name = "alone" if job is None else str(job.rank)
torch.save(model.state_dict(), FOLDER / f"{name}.pt")
(FOLDER / f"{name}.json").write_text(json.dumps(counts))
print(f"accuracy {(model(samples).argmax(1) == labels).float().mean().item():.3f}", flush=True)
