"""The training script of the PyTorch jobs of tools/chaos. usage: torch_script.py SAMPLES BATCH EPOCHS FOLDER

A number in the FIFO hold-WORKER of FOLDER stands for seconds. A thread of this process keeps Python's lock for so long, in a call that does
not release it. At the end the script prints the SHA-256 of the model's parameters.
"""

import ctypes
import hashlib
import os
import sys
import threading

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep

SAMPLES, BATCH, EPOCHS = map(int, sys.argv[1:4])
HOLD = os.path.join(sys.argv[4], f"hold-{os.environ['LOCKSTEP_WORKER']}")


def hold_the_interpreter():
    """PyDLL, unlike CDLL, does not release the lock around a call."""
    library = ctypes.PyDLL(None)
    while True:
        with open(HOLD, encoding="ascii") as fifo:
            text = fifo.read().strip()
        if text:
            library.poll(None, 0, int(1000 * float(text)))


def make_data():
    draw = torch.Generator().manual_seed(7)
    x = torch.randn(SAMPLES, 12, generator=draw)
    return TensorDataset(x, (x @ torch.randn(12, 3, generator=draw)).argmax(1))


def main():
    if os.path.exists(HOLD):
        threading.Thread(target=hold_the_interpreter, daemon=True).start()
    job = lockstep.init(seed=5)
    model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 3))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(make_data(), batch_size=BATCH, shuffle=True)
    model, opt, loader = job.prepare(model, opt, loader, epochs=EPOCHS)
    for _ in range(EPOCHS):
        for x, y in loader:
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
    digest = hashlib.sha256(b"".join(p.detach().numpy().astype("<f4").tobytes() for p in model.parameters())).hexdigest()
    print(f"this worker has the job's last parameters, SHA-256 {digest}", flush=True)


if __name__ == "__main__":
    main()
