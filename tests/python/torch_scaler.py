"""A worker with a GradScaler, for test_torch_scaler.py. usage: torch_scaler.py [key=value ...]

alone=1: torch alone, batches as the sampler has them, without a scaler. scale=N: the first scale. half=1: autocast to float16. norm=1: with
a BatchNorm. optimizer=sgd|rmsprop (the second one's updates are torch's own). save=FILE: parameters and buffers, and the scale of this
worker at its end, as JSON.
"""

import json
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, SequentialSampler, TensorDataset

options = dict(word.split("=", 1) for word in sys.argv[1:])
EPOCHS, SAMPLES, BATCH = 4, 120, 24

draw = torch.Generator().manual_seed(7)
x = torch.randn(SAMPLES, 8, generator=draw)
dataset = TensorDataset(x, (x @ torch.randn(8, 4, generator=draw)).argmax(1))
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32) if "norm" in options else nn.Tanh(), nn.Linear(32, 4))
if options.get("optimizer", "sgd") == "sgd":
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
else:
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.002, eps=1e-3)
loader = DataLoader(dataset, batch_size=BATCH, sampler=SequentialSampler(dataset))
scaler = torch.amp.GradScaler("cpu", init_scale=float(options.get("scale", 2**12)), enabled="alone" not in options)
if "alone" not in options:
    import lockstep

    job = lockstep.init()
    model, optimizer, loader = job.prepare(model, optimizer, loader, epochs=EPOCHS)
for _ in range(EPOCHS):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16, enabled="half" in options):
            loss = 4 * F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
if "save" in options and ("alone" in options or job.rank == 0):
    values = [value for tensor in model.state_dict().values() for value in tensor.double().flatten().tolist()]
    with open(options["save"], "w", encoding="utf-8") as file:
        json.dump({"values": values, "scale": scaler.get_scale()}, file)
