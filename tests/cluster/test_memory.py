"""The memory of a worker where its parameters dominate: what docs/operations.md says, held to what each worker says at its end, and that
to what the kernel says while it lives."""

import re
import threading
import unittest

from harness import ClusterTest, Job

# 63.9 MiB of parameters.
LARGE = {"model.widths": "4072,4072", "optimizer.lr": 0.001, "job.global_batch": 16, "job.units": 8, "data.synthetic_train": 256,
         "data.synthetic_test": 16, "job.rounds": 12, "policy.name": "full+none", "optimizer.momentum": 0.9}
WORKERS = 4
S = 1  # tensors of the optimizer's state
OTHER_MIB = 48
ACCOUNT = re.compile(r"most memory of the exchange: ([0-9.]+) MiB, ([0-9.]+) times the parameters: (.*)")


def account(log):
    """The worker's own account at its peak: {kind: multiple of the parameters}, with `total` and `mib`."""
    found = ACCOUNT.search(log)
    kinds = {part.split()[1]: float(part.split()[0]) for part in found.group(3).split(", ")}
    kinds["total"] = float(found.group(2))
    kinds["mib"] = float(found.group(1))
    return kinds


class Machine:
    """The most that all workers together have taken of the machine: own pages, and each arena's once, whoever maps it."""

    def __init__(self, job):
        self.job = job
        self.mib = 0
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self):
        while not self.stop.wait(0.05):
            kib = 0
            for name, process in list(self.job.processes.items()):
                try:
                    with open(f"/proc/{process.pid}/smaps_rollup", encoding="ascii") as rollup:
                        kib += int(next(line for line in rollup if line.startswith("Pss:")).split()[1]) if "worker" in name else 0
                except (OSError, StopIteration):
                    pass  # it has ended
            self.mib = max(self.mib, kib / 1024)

    def end(self):
        self.stop.set()
        self.thread.join()
        return self.mib


class Memory(ClusterTest):
    def accounts(self, **options):
        with Job(WORKERS, LARGE, **options) as job:
            machine = Machine(job)
            job.start().finish()
            for index in range(WORKERS):
                job.wait(f"worker{index}")
            mib = machine.end()
            accounts = [account(job.log(f"worker{index}")) for index in range(WORKERS)]
        said = sum(one["mib"] for one in accounts)
        print(self.id(), f"{mib:.0f} MiB in all, said to be {said:.0f}", *accounts, sep="\n")
        # Peaks of several workers need not meet. What is no buffer: programs, data, activations, messages.
        self.assertLess(mib, said + WORKERS * OTHER_MIB)
        self.assertGreater(mib, said * 0.7)
        writers = [one for one in accounts if one["snapshots"] > 1.01]
        self.assertEqual(len(writers), 1, "the last checkpoint has one writer")
        return accounts

    def check(self, account, **most):
        for kind, times in most.items():
            self.assertLessEqual(account[kind], times + 0.02, f"{kind} in {account}")

    def test_mapped(self):
        for one in self.accounts():
            self.check(one, state=1 + S, contributions=5, sums=4, staging=0, snapshots=2 + S, copies=0)

    def test_over_a_network(self):
        staging = 2 * (WORKERS - 1) / WORKERS
        for one in self.accounts(exchange__mapping="off", exchange__transport="tcp"):
            self.check(one, state=1 + S, contributions=2, sums=3, staging=staging, snapshots=2 + S, copies=0)


if __name__ == "__main__":
    unittest.main()
