"""A worker whose loss is a mean over tokens, for test_torch_weights.py. usage: torch_weights.py [key=value ...]

alone=FILE: torch alone, with the batches in there: a list of positions for each update, as JSON. say=weight|weigh: how a batch is
weighed; no: not at all. optimizer=sgd|rmsprop (the second one's updates are torch's own). save=FILE: the parameters, and of torch alone
the loss and the tokens of each update, as JSON.
"""

import json
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, SequentialSampler, TensorDataset

options = dict(word.split("=", 1) for word in sys.argv[1:])
EPOCHS, SAMPLES, BATCH, LENGTH, WORDS = 3, 120, 24, 12, 50


def data():
    draw = torch.Generator().manual_seed(7)
    words = torch.randint(WORDS, (SAMPLES, LENGTH), generator=draw)
    labels = (words * 7 + 3) % WORDS
    lengths = torch.randint(1, LENGTH + 1, (SAMPLES,), generator=draw)
    lengths[::10] = LENGTH
    lengths[::11] = 0  # nothing to predict in them
    labels[torch.arange(LENGTH) >= lengths[:, None]] = -100
    return TensorDataset(words, labels)


torch.manual_seed(3)
model = nn.Sequential(nn.Embedding(WORDS, 16), nn.Linear(16, WORDS))
if options.get("optimizer", "sgd") == "sgd":
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
else:
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01, eps=1e-3)
dataset = data()
counted = []
job = None
if "alone" in options:
    with open(options["alone"], encoding="utf-8") as file:
        loader = DataLoader(dataset, batch_sampler=json.load(file))
else:
    import lockstep

    loader = DataLoader(dataset, batch_size=BATCH, sampler=SequentialSampler(dataset))
    job = lockstep.init()
    model, optimizer, loader = job.prepare(model, optimizer, loader, epochs=EPOCHS)
for _ in range(1 if job is None else EPOCHS):
    for x, y in loader:
        tokens = (y != -100).sum()
        # Of no token a mean is no number.
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum") / tokens.clamp(min=1)
        say = options.get("say", "weight")
        if job is None:
            optimizer.zero_grad()
            loss.backward()
            counted.append((loss.item(), tokens.item()))
        elif say == "weight":
            job.backward(loss, weight=tokens)
        else:
            if say == "weigh":
                job.weigh(int(tokens))
            loss.backward()
        optimizer.step()
if job is None or job.rank == 0:
    found = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
    with open(options["save"], "w", encoding="utf-8") as file:
        json.dump({"parameters": found, "counted": counted}, file)
print(f"tokens {sum(tokens for _, tokens in counted)}", flush=True)
