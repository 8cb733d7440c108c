#!/usr/bin/env python3
"""A job with gigabytes of state, through everything that moves state: checkpoints and evaluations while it trains, a worker that is
drained, one that joins and copies the state, the end, and a resume over TLS. Prints how long each took and the most memory that each
process has had. By hand: it takes about 18 times the parameters for each worker (docs/reference/memory.md).

    tests/cluster/large_state.py --state 2GiB --transport tcp
"""

import argparse
import math
import sys
import threading
import time

from harness import Job, TOOLS, wait_for

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
TENSORS = 3  # parameters and AdamW's two
FEATURES, CLASSES = 32, 10


def size(text):
    for unit, factor in UNITS.items():
        if text.endswith(unit):
            return int(float(text[:-len(unit)]) * factor)
    return int(text)


class Peaks:
    """VmHWM of each process, looked at until it ends."""

    def __init__(self, job):
        self.job = job
        self.kib = {}
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self):
        while not self.stop.wait(0.1):
            for name, process in list(self.job.processes.items()):
                try:
                    with open(f"/proc/{process.pid}/status", encoding="ascii") as status:
                        lines = dict(line.split(":", 1) for line in status if ":" in line)
                    self.kib[(name, process.pid)] = int(lines["VmHWM"].split()[0])
                except (OSError, KeyError):
                    pass


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state", type=size, default=size("2GiB"), help="parameters and optimizer state, all of a checkpoint")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--transport", choices=("mapped", "tcp", "ucx"), default="mapped")
    parser.add_argument("--patience", type=float, default=900, help="seconds for each part")
    options = parser.parse_args()
    parameters = options.state // (4 * TENSORS)
    # width^2 + (FEATURES + 1 + 1 + CLASSES) * width + CLASSES parameters
    linear = FEATURES + 2 + CLASSES
    width = int((-linear + math.sqrt(linear ** 2 + 4 * parameters)) / 2)
    config = {
        "model.name": "mlp", "model.widths": f"{width},{width}", "optimizer.name": "adamw", "optimizer.lr": 0.0001,
        "job.global_batch": 2 * options.workers, "job.units": options.workers, "job.rounds": 10, "job.min_workers": 1,
        "data.synthetic_train": 256, "data.synthetic_test": 16, "checkpoint.every_rounds": 4, "evaluation.every_rounds": 4,
        "job.join_timeout": "900s", "liveness.timeout": "30s",
        "exchange.mapping": "auto" if options.transport == "mapped" else "off",
        "exchange.transport": "tcp" if options.transport == "mapped" else options.transport,
    }
    with Job(options.workers, config) as job:
        secret = job.folder / "secret"
        secret.write_text("s" * 32)
        secret.chmod(0o600)
        job.coordinator_args += ["--secret-file", secret, "--http", "127.0.0.1:0"]
        peaks = Peaks(job)
        times = []

        def timed(what, do):
            start = time.monotonic()
            do()
            times.append((what, time.monotonic() - start))
            print(f"{what}: {times[-1][1]:.1f} s", file=sys.stderr, flush=True)

        job.start_coordinator()
        for index in range(options.workers):
            job.start_worker(index, "--secret-file", secret)
        timed("start, and the first 5 rounds with a checkpoint and an evaluation", lambda: job.wait_for_rounds(5, options.patience))
        if options.workers > 1:
            http = (job.run_dir / "http.address").read_text().strip()

            def drain():
                job.start_tool("ctl", "--http", http, "--secret-file", secret, "drain", 1)
                job.wait("ctl", options.patience)
                job.wait("worker1", options.patience)

            def catch_up():
                job.start_worker(1, "--secret-file", secret, name="worker1-again")
                wait_for("the newcomer to be level",
                         lambda: "worker 1 is level" in job.log("coordinator") or job.processes["coordinator"].poll() is not None,
                         options.patience)

            timed("drain of worker 1", drain)
            timed("another worker 1 until it is level", catch_up)
        timed("the rest, with the last checkpoint", lambda: job.wait("coordinator", options.patience))
        first = job.summary()
        for name in list(job.processes):
            job.wait(name, options.patience)
        job.start_coordinator("--resume", "--job.rounds=12")
        for index in range(options.workers):
            job.start_worker(index, "--secret-file", secret, name=f"worker{index}-resumed")
        timed("resume, until a round is closed", lambda: job.wait_for_rounds(first["rounds"] + 1, options.patience))
        timed("the rest, with the last checkpoint", lambda: job.wait("coordinator", options.patience))
        second = job.summary()
        peaks.stop.set()
        peaks.thread.join()
        state = sum(path.stat().st_size for path in job.run_dir.glob("checkpoints/*.safetensors")) / len(
            list(job.run_dir.glob("checkpoints/*.safetensors")))
        print(f"{options.transport}: {options.workers} workers, {state / (1 << 30):.2f} GiB of state; {first['status']}, "
              f"{second['status']}, checkpoint after round {second['checkpoint_round']}, paths "
              f"{sorted({path['path'] for path in second['paths']})}")
        print("| process | most memory |\n|---|---|")
        for (name, _), kib in peaks.kib.items():
            print(f"| {name} | {kib / (1 << 20):.2f} GiB |")
        sound = first["status"] == second["status"] == "completed" and not first["digest_differs"] + second["digest_differs"]
        return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
