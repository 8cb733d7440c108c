"""A model on the CPU, a GPU or the imitated device. usage: torch_gpu.py device=cpu|cuda|imitated [optimizer=NAME] [norm=1] [evaluate=1]

Prints what came of it: "losses" of the rounds as worker 0 was told of them, and "parameters", a digest of their bits.
"""

import hashlib
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep

options = dict(word.split("=", 1) for word in sys.argv[1:])
EPOCHS = 3
WIDTH = 256


def imitate():
    import imitated
    from lockstep import _device, _session

    class Imitated(_device.Host):
        """A gradient is one that comes late; all else is there."""

        name = "cuda:0"

        def __init__(self):
            self._late = {}  # by address
            self._in_hand = None
            next_work, done = _session.Session.next, _session.Session.done

            def watched_next(session, seconds=-1):
                work = next_work(session, seconds)
                if work.kind is lockstep.Kind.TRAIN:
                    assert work.device == 0
                    if work.gradient not in self._late:
                        self._late[work.gradient] = imitated.Late(work.gradient, session._count)
                    self._in_hand = self._late[work.gradient]
                    self._in_hand.begin()
                return work

            def watched_done(session, *arguments):
                self._in_hand = None
                done(session, *arguments)

            _session.Session.next, _session.Session.done = watched_next, watched_done

        def floats(self, session, address, *, state=False):
            capsule = session.tensor(address, state=state)
            floats = session._state_count if state else session._count
            if address in self._late:
                array = self._late[address].array
            else:
                array = imitated.host(address, floats)
            array.kept = capsule  # and with it, here for good, the session's memory
            return torch.frombuffer(array, dtype=torch.float32)

        def stream(self):
            return imitated.stream if self._in_hand is None else self._in_hand.ask()

    device = Imitated()
    _device.of = lambda tensors: device


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(5)])
        self.norm = nn.BatchNorm1d(WIDTH) if "norm" in options else nn.Identity()
        self.out = nn.Linear(WIDTH, 4)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.out(self.norm(x))


def main():
    device = torch.device("cuda" if options["device"] == "cuda" else "cpu")
    if options["device"] == "imitated":
        imitate()
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(1024, WIDTH, generator=draw)
    y = (x @ torch.randn(WIDTH, 4, generator=draw)).argmax(1)
    loader = DataLoader(TensorDataset(x, y), batch_size=256, shuffle=True)
    job = lockstep.init(seed=5, settings={"exchange.bucket_bytes": "64KiB", "exchange.piece_bytes": "64KiB"})
    torch.use_deterministic_algorithms(True)
    model = Model().to(device)
    rate = 0.05 if options.get("optimizer", "SGD") == "SGD" else 0.01
    opt = getattr(torch.optim, options.get("optimizer", "SGD"))(model.parameters(), lr=rate)

    def evaluated(model, batch):
        x, y = batch[0].to(device), batch[1].to(device)
        out = model(x)
        return F.cross_entropy(out, y, reduction="sum"), int((out.argmax(1) == y).sum())

    if "evaluate" in options:
        job.evaluate(evaluated, DataLoader(TensorDataset(x, y), batch_size=50))
    model, opt, loader = job.prepare(model, opt, loader, epochs=EPOCHS, clip_grad_norm=1.0 if "clip" in options else None)
    losses, places = [], set()
    for _ in range(EPOCHS):
        for x, y in loader:
            opt.zero_grad()
            F.cross_entropy(model(x.to(device)), y.to(device)).backward()
            places |= {(p.device.type, p.grad.device.type) for p in model.parameters()}
            opt.step()
            losses.append(job.metrics.get("loss"))
    assert places == {(device.type, device.type)}, places
    bits = hashlib.sha256(b"".join(v.cpu().numpy().tobytes() for v in model.state_dict().values())).hexdigest()
    print("losses", *(f"{loss:.9g}" for loss in losses if loss is not None), f"{job.metrics['loss']:.9g}", flush=True)
    print("parameters", bits, flush=True)


main()
