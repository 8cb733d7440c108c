"""Scripts of the shapes of Horovod's examples. usage: torch_horovod.py mnist|resume JSON

mnist: sampler with num_replicas, lr times size, broadcasts, test with metric_average. resume: an epoch to begin with from worker 0,
warm-up by size, validation loss by a Metric class, saves by rank 0. Prints "metrics EPOCH VALUE" and "values" of the model.
"""

import json
import sys

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import lockstep.horovod as hvd

shape, said = sys.argv[1], json.loads(sys.argv[2])
SAMPLES, EPOCHS, BATCH, RATE = said.get("samples", 256), said.get("epochs", 3), said.get("batch", 16), 0.02

hvd.init()
torch.manual_seed(42)
torch.set_num_threads(1)
draw = torch.Generator().manual_seed(1)
x = torch.randn(SAMPLES + 64, 8, generator=draw)
y = (x[:, 0] * x[:, 1] > 0).long()
train_dataset, test_dataset = TensorDataset(x[:SAMPLES], y[:SAMPLES]), TensorDataset(x[SAMPLES:], y[SAMPLES:])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 2)

    def forward(self, x):
        return F.log_softmax(self.second(torch.tanh(self.first(x))), dim=1)


def metric_average(value, name):
    return hvd.allreduce(torch.tensor(value), name=name).item()


class Metric:
    def __init__(self, name):
        self.name, self.sum, self.n = name, torch.tensor(0.0), torch.tensor(0.0)

    def update(self, value):
        self.sum += hvd.allreduce(value.detach().cpu(), name=self.name)
        self.n += 1

    @property
    def avg(self):
        return self.sum / self.n


train_sampler = DistributedSampler(train_dataset, num_replicas=hvd.size(), rank=hvd.rank())
train_loader = DataLoader(train_dataset, batch_size=BATCH, sampler=train_sampler)
test_sampler = DistributedSampler(test_dataset, num_replicas=hvd.size(), rank=hvd.rank())
test_loader = DataLoader(test_dataset, batch_size=8, sampler=test_sampler)
model = Net()
if hvd.rank() > 0:  # the broadcast mends it
    nn.init.zeros_(model.first.weight)
optimizer = optim.SGD(model.parameters(), lr=RATE * hvd.size(), momentum=0.9)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(),
                                     compression=getattr(hvd.Compression, said.get("compression", "none")), op=hvd.Average, **said.get("more", {}))
first = 0
if shape == "resume":
    first = hvd.broadcast(torch.tensor(said["from"] if hvd.rank() == 0 else 0), root_rank=0, name="resume_from_epoch").item()
    assert hvd.broadcast_object({"from": first} if hvd.rank() == 0 else None) == {"from": first}
    assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size())) and hvd.allgather(torch.tensor([hvd.rank()])).tolist() == list(range(hvd.size()))


def train(epoch):
    model.train()
    train_sampler.set_epoch(epoch)
    for batch_idx, (data, target) in enumerate(train_loader):
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        if said.get("clips"):
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with optimizer.skip_synchronize():
                optimizer.step()
        elif said.get("averages"):
            metric_average(loss.item(), "loss")
        else:
            optimizer.step()


@torch.no_grad()
def test(epoch):
    model.eval()
    if shape == "resume":
        metric = Metric("val_loss")
        for data, target in test_loader:
            metric.update(F.nll_loss(model(data), target))
        print("metrics", epoch, float(metric.avg), flush=True)
        return
    right = sum((model(data).argmax(1) == target).float().sum().item() for data, target in test_loader)
    print("metrics", epoch, metric_average(right / len(test_sampler), "avg_accuracy"), flush=True)


for epoch in range(first, EPOCHS):
    train(epoch)
    test(epoch)
    if hvd.rank() == 0:
        torch.save(model.state_dict(), "checkpoint.pt")
hvd.shutdown()
with torch.no_grad():
    whole = (model(x[SAMPLES:]).argmax(1) == y[SAMPLES:]).float().mean().item()
print("values", json.dumps([v for p in model.parameters() for v in p.flatten().tolist()]), whole, flush=True)
