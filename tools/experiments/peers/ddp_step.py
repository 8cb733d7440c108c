"""Runs steps of DistributedDataParallel with the Gloo backend on a multi-layer perceptron over random data. Arguments: RANK SIZE FOLDER
WIDTHS BATCH STEPS, as 784-1024-1024-10 64 30. A step's time starts at the end of the one before it."""

import json
import os
import sys
import time

import torch
import torch.distributed as dist

WARM_UP = 5


def main():
    rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    widths, batch, steps = [int(w) for w in sys.argv[4].split("-")], int(sys.argv[5]), int(sys.argv[6])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size)
    layers = []
    for width_in, width_out in zip(widths, widths[1:]):
        layers += [torch.nn.Linear(width_in, width_out), torch.nn.ReLU()]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers[:-1]), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    samples = torch.rand(20 * batch, widths[0])
    labels = torch.randint(0, widths[-1], (20 * batch,))
    times = []
    before = time.monotonic_ns()
    for number in range(steps + WARM_UP):
        at = (number % 20) * batch
        # Buffers stay, so that gradients remain views of the buckets.
        optimizer.zero_grad(set_to_none=False)
        loss = torch.nn.functional.cross_entropy(model(samples[at:at + batch]), labels[at:at + batch])
        loss.backward()
        optimizer.step()
        loss.item()
        now = time.monotonic_ns()
        if number >= WARM_UP:
            times.append((now - before) / 1e3)
        before = now
    if rank == 0:
        print(json.dumps({"times_us": times}), flush=True)
    dist.barrier()
    # If a group is destroyed while a thread of another rank still waits in it, some ranks end with std::terminate.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
