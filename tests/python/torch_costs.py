"""A worker whose samples take different times, for test_torch_costs.py. usage: torch_costs.py KIND

Of every eight samples the first takes as long as the seven others together. KIND: what the job is told of that: "numbers" (a tensor),
"shuffled" (the same, in the job's own order), "function", "batches" (a function of the batches of a batch sampler), "bounded" (as "numbers", with a bound of what is computed at once)
or "nothing".
"""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, SequentialSampler

import lockstep

SAMPLES, LONG, MILLISECONDS = 640, 7.0, 4e-3
MOST = 14.0
KIND = sys.argv[1]


class Data(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return torch.full((2,), float(index % 5)), index


def cost_of(index):
    return LONG if index % 8 == 0 else 1.0


class Batches:
    """Each has one sample, so that positions are samples."""

    def __len__(self):
        return SAMPLES

    def __iter__(self):
        return iter([[i] for i in range(SAMPLES)])


def cost_of_batch(samples):
    assert len(samples) == 1
    return cost_of(samples[0])


job = lockstep.init()
costs = torch.tensor([cost_of(i) for i in range(SAMPLES)])
cost = {"numbers": costs, "shuffled": costs, "function": cost_of_batch, "batches": cost_of_batch, "bounded": costs,
        "nothing": None}[KIND]
data = Data()
if KIND == "batches":
    loader = DataLoader(data, batch_sampler=Batches())
elif KIND == "shuffled":
    loader = DataLoader(data, batch_size=8, shuffle=True)
else:
    loader = DataLoader(data, batch_size=8, sampler=SequentialSampler(data))
model = nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=1e-3)
model, opt, loader = job.prepare(model, opt, loader, epochs=1, global_batch=8,
                                 units=None if KIND == "bounded" else 8, cost=cost, max_cost=MOST if KIND == "bounded" else None)
largest = 0
for batch, indices in loader:
    largest = max(largest, len(indices))
    if KIND == "bounded":  # as a batch that is padded
        assert len(indices) * max(cost_of(int(i)) for i in indices) <= MOST, indices
    opt.zero_grad()
    model(batch).square().mean().backward()
    time.sleep(MILLISECONDS * sum(cost_of(int(i)) for i in indices))
    opt.step()
print(f"done, largest {largest}")
