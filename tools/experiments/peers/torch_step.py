"""Runs torch.distributed's all_reduce with the Gloo backend, and a step, measured as in tools/experiments/peers/measure.h. Arguments: RANK
SIZE FOLDER BYTES:ROUNDS ..."""

import json
import os
import sys
import time

import torch
import torch.distributed as dist

WARM_UP = 3


def main():
    rank, size, folder, work = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size)
    for one in work:
        count, rounds = (int(part) for part in one.split(":"))
        gradient = torch.full((count // 4,), float(rank + 1))
        parameters = torch.zeros(count // 4)
        dist.all_reduce(gradient)
        if gradient[-1].item() != size * (size + 1) / 2:
            sys.exit(f"the all-reduce gave {gradient[-1].item()}")
        gradient.zero_()
        times = []
        for number in range(rounds + WARM_UP):
            dist.barrier()
            ready = time.monotonic_ns()
            dist.all_reduce(gradient)
            parameters.add_(gradient, alpha=-0.1 / size)
            stamps = [torch.zeros(2, dtype=torch.int64) for _ in range(size)]
            dist.all_gather(stamps, torch.tensor([ready, time.monotonic_ns()]))
            if number >= WARM_UP:
                times.append((max(s[1].item() for s in stamps) - max(s[0].item() for s in stamps)) / 1e3)
        if rank == 0:
            print(json.dumps({"bytes": count, "times_us": times}), flush=True)
        del gradient, parameters
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
