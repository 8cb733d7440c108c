"""The memory of a worker where its parameters dominate: what docs/reference/memory.md says, held to what each worker says at its end,
and that to what the kernel says while it lives."""

import os
import pathlib
import threading
import unittest

from harness import ClusterTest, Job
from memory_account import account, copies_for_joiners, shares, staged

# 63.9 MiB of parameters.
LARGE = {"model.widths": "4072,4072", "optimizer.lr": 0.001, "job.global_batch": 16, "job.units": 8, "data.synthetic_train": 256,
         "data.synthetic_test": 16, "job.rounds": 12, "policy.name": "full+none", "optimizer.momentum": 0.9}
WORKERS = 4
S = 1  # tensors of the optimizer's state
# What is no buffer of the exchange, each measured: program, libraries and heap 9 MiB; data and activations of this model 10; and for
# who writes a checkpoint messages on their way, up to 12.
OTHER_MIB = 32


def own_kib(pid):
    """What is not the arenas': heap and buffers that nobody maps, and program and libraries. By the kernel's counters: to have it look at
    each page (smaps) would stop the worker for as long, and another one would stand in for it."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        said = {line.split(":")[0]: int(line.split()[1]) for line in status if line.startswith(("RssAnon:", "RssFile:"))}
    return said.get("RssAnon", 0), said.get("RssFile", 0)


def arenas(pid):
    """{inode: KiB that are allocated} of the arenas that the process holds."""
    found = {}
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        if "lockstep-arena" in os.readlink(fd):
            status = os.stat(fd)
            found[status.st_ino] = status.st_blocks / 2
    return found


class Machine:
    """The most that all workers together have taken of the machine: own pages, and each arena's once, whoever maps it. (Not what the
    kernel calls a process's share of an arena: workers end while one after the other is looked at, and the shares of the others grow.)"""

    def __init__(self, job):
        self.job = job
        self.mib = 0
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self):
        while not self.stop.wait(0.05):
            kib = 0
            programs = 0  # all workers' is the same
            shared = {}
            for name, process in list(self.job.processes.items()):
                if "worker" not in name:
                    continue
                try:
                    own, program = own_kib(process.pid)
                    kib += own
                    programs = max(programs, program)
                    shared.update(arenas(process.pid))
                except OSError:
                    pass  # it has ended
            self.mib = max(self.mib, (kib + programs + sum(shared.values())) / 1024)

    def end(self):
        self.stop.set()
        self.thread.join()
        return self.mib


class Memory(ClusterTest):
    def accounts(self, **options):
        with Job(WORKERS, LARGE, coordinator_args=("--log-level", "debug"), **options) as job:
            machine = Machine(job)
            job.start().finish()
            for index in range(WORKERS):
                job.wait(f"worker{index}")
            mib = machine.end()
            log = job.log("coordinator")
            stood_in = "stands in for" in log
            caught_up = "catches up from" in log
            owned = shares(log, WORKERS)
            at_once = staged(log, WORKERS)
            accounts = [account(job.log(f"worker{index}")) for index in range(WORKERS)]
        for index, one in enumerate(accounts):
            one["stood_in"] = stood_in
            one["caught_up"] = caught_up
            one["owned"] = owned[index]
            one["staged"] = at_once[index]
        said = sum(one["mib"] for one in accounts)
        print(self.id(), f"{mib:.0f} MiB in all, said to be {said:.0f}", *accounts, sep="\n")
        # Peaks of several workers need not meet. What is no buffer: programs, data, activations, messages.
        self.assertLess(mib, said + WORKERS * OTHER_MIB)
        self.assertGreater(mib, said * 0.7)
        writers = [one for one in accounts if one["snapshots"] > 1.01]
        self.assertEqual(len(writers), 1, "the last checkpoint has one writer")
        return accounts

    def check(self, account, **most):
        if account["stood_in"]:
            # On a busy machine: that one's share is staged by another one, too, out of contributions that are kept as long.
            most["staging"] *= 2
            most["contributions"] += 1
        if account["caught_up"]:
            most["copies"] = copies_for_joiners(account, 1 + S)
        for kind, times in most.items():
            self.assertLessEqual(account[kind], times + 0.02, f"{kind} in {account}")

    def test_mapped(self):
        for one in self.accounts():
            # Of the sums what a worker has owned of three rounds, or four where one is late. What is mapped is not given back before the
            # job ends: where the machine was busy and shares have changed, that of each map.
            sums = 4 * min(sum(one["owned"]), 1)
            self.check(one, state=1 + S, contributions=1, sums=sums, staging=0, snapshots=1 + S, copies=0)

    def test_over_a_network(self):
        accounts = self.accounts(exchange__mapping="off", exchange__transport="tcp")
        for one in accounts:
            # Of each other one what this worker owns, its largest share where that has changed between rounds: what it owned before and no
            # more is given back. Of the sums that of three rounds, or four, and what the others have of one, or two where one is late.
            owned = max(one["owned"])
            staging = (WORKERS - 1) * one["staged"]
            self.check(one, state=1 + S, contributions=1, sums=4 * owned + 1 + one["stood_in"], staging=staging, snapshots=1 + S, copies=0)

    def test_with_numbers_of_two_bytes(self):
        # The gradient is summed in FP32, beside the contribution.
        accounts = self.accounts(exchange__dtype="bf16", exchange__mapping="off", exchange__transport="tcp")
        for one in accounts:
            owned = max(one["owned"])
            staging = (WORKERS - 1) * one["staged"] / 2
            self.check(one, state=1 + S, contributions=1 + 1 / 2, sums=(4 * owned + 1 + one["stood_in"]) / 2, staging=staging,
                       snapshots=1 + S, copies=0)
            self.assertGreater(one["contributions"], 1.4)

    def test_with_few_numbers_of_many(self):
        # The gradient and what is kept of those before in FP32; contributions of 1 in 100 and their places. Sums of four parts have at
        # most 44 numbers of 1024, in FP32 beside 88 bytes of places; staged are three contributions at most.
        accounts = self.accounts(exchange__compression="topk", exchange__mapping="off", exchange__transport="tcp")
        for one in accounts:
            self.check(one, state=1 + S, contributions=2 + 0.1, sums=4 * 0.07, staging=0.06, snapshots=1 + S, copies=0)
            self.assertGreater(one["contributions"], 1.9)

    def test_with_factors(self):
        # The same beside factors of little size. The last ones are in a tensor of state of which little is touched.
        accounts = self.accounts(exchange__compression="powersgd", exchange__powersgd_rank=4, exchange__mapping="off", exchange__transport="tcp")
        for one in accounts:
            self.check(one, state=1 + S + 0.05, contributions=2 + 0.1, sums=4 * 0.05, staging=0.05, snapshots=1 + S + 0.05, copies=0)
            self.assertGreater(one["contributions"], 1.9)


if __name__ == "__main__":
    unittest.main()
