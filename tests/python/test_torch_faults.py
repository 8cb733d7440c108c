"""What goes wrong in one worker: the others go on without it, and a loss that is no number is what job.on_nan says."""

import json
import math
import os
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import harness  # noqa: E402
from torch_test import PYTHON, TorchTest, lockstep_run  # noqa: E402

SAMPLES, BATCH, EPOCHS, RATE = 64, 16, 2, 0.5

SCRIPT = f"""
import os, signal, sys
import torch, lockstep
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
second = os.environ.get("LOCKSTEP_WORKER") == "1"
class Data(Dataset):
    def __len__(self):
        return {SAMPLES}
    def __getitem__(self, i):
        #read
        return torch.tensor([i / {SAMPLES}]), torch.tensor(i % 2), torch.tensor(i)
def here():
    return second and job.round == 1
processes, more = 0, ()
job = lockstep.init(seed=5, settings={{"optimizer.linear_scaling": False}})
model = nn.Linear(1, 2)
print("begin", *(v for p in model.parameters() for v in p.flatten().tolist()), flush=True)
opt = torch.optim.SGD(model.parameters(), lr={RATE})
#change
loader = DataLoader(Data(), batch_size={BATCH}, num_workers=processes)
model, opt, loader, *sched = job.prepare(model, opt, loader, *more, epochs={EPOCHS})
for epoch in range({EPOCHS}):
    for x, y, samples in loader:
        #batch
        loss = F.cross_entropy(model(x), y)
        #loss
        loss.backward()
        opt.step()
        for each in sched:
            each.step()
print("end", *(v for p in model.parameters() for v in p.flatten().tolist()), flush=True)
"""


class FaultsTest(TorchTest):
    def job(self, name, *options, **parts):
        self.run_dir = self.folder / name.replace(" ", "-")
        script = SCRIPT
        for part, text in parts.items():
            script = script.replace(f"#{part}\n", text + "\n")
        return lockstep_run("-n", 2, "--policy", "full", "--run-dir", self.run_dir, *options, self.script(script))

    def summary(self):
        return json.loads((self.run_dir / "summary.json").read_text())


class OneWorkerEndsTest(FaultsTest):
    """In the middle of the job, one way or another, where nobody has said job.min_workers."""

    def test_the_others_do_its_work(self):
        no_file = "if second and i > 16 and i % 4 == 1: raise KeyError('no such file')"  # not one that its digest is made of
        closed = ".*[Cc]onnection"  # in whatever words whoever sees it first has it
        for name, status, why, parts in (
                ("raises", "ended with status 1", "it leaves: ValueError: of the script", {"batch": "if here(): raise ValueError('of the script')"}),
                ("scheduler", "ended with status 1", "it leaves: ZeroDivisionError within the update of round",
                 {"change": "more = (torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 1 / (not second or step < 2)),)"}),
                ("dataset", "ended with status 1", "it leaves: KeyError", {"read": no_file}),
                ("loader process", "ended with status 1", "it leaves: KeyError", {"read": no_file, "change": "processes = 1"}),
                ("loader process killed", "ended with status", "it leaves: ",
                 {"read": no_file.replace("raise KeyError('no such file')", "os._exit(9)"), "change": "processes = 1"}),
                ("exit", "ended with status 3", "it leaves: the worker ends", {"batch": "if here(): sys.exit(3)"}),
                ("silent exit", None, closed, {"batch": "if here(): os._exit(0)"}),
                ("killed", "was ended by SIGKILL", closed, {"batch": "if here(): os.kill(os.getpid(), signal.SIGKILL)"})):
            with self.subTest(name):
                done = self.job(name, **parts)
                self.assertEqual(done.returncode, 0, done)
                self.assertEqual(self.summary()["status"], "completed")
                rounds = self.rounds(self.run_dir)
                harness.check_epochs(self, rounds, SAMPLES)
                self.assertEqual(sum(line["samples"] for line in rounds), EPOCHS * SAMPLES)
                self.assertRegex(done.stdout, f"worker 1 is out: ({why})")
                if status:
                    self.assertRegex(done.stdout, rf"launch +\| worker 1 {status}")

    def test_rates_that_the_script_sets_are_those_of_the_rounds(self):
        """Worker 0 has all batches from the second round on, so it counts twice as many steps; and the loss differs in nothing."""
        for name, rate in (("by all steps", "0.5 / (1 + steps)"), ("by the epoch", "0.5 * 0.1**epoch"),
                           ("by the place in it", f"0.5 / (1 + epoch + i / {SAMPLES // BATCH})")):
            with self.subTest(name):
                sets = f"opt.param_groups[0]['lr'] = {rate}\n        steps, i = steps + 1, i + 1"
                ends = []
                for killed in ("", "if here(): os.kill(os.getpid(), signal.SIGKILL)\n        "):
                    script = SCRIPT.replace("    for x, y, samples in loader:\n", "    i = 0\n    for x, y, samples in loader:\n")
                    self.run_dir = self.folder / f"{name.replace(' ', '-')}-{len(ends)}"
                    done = lockstep_run("-n", 2, "--policy", "full", "--run-dir", self.run_dir,
                                        self.script(script.replace("#change\n", "steps = 0\n").replace("#batch\n", killed + sets + "\n")))
                    self.assertEqual(done.returncode, 0, done)
                    ends.append([float(value) for value in re.search(r"\| end (.*)", done.stdout)[1].split()])
                self.assertIn("was ended by SIGKILL", done.stdout)
                for value, its in zip(*ends, strict=True):
                    self.assertAlmostEqual(value, its, 5)

    def test_a_killed_coordinator_costs_no_bit(self):
        """Killed by a worker of its own, in the midst of a batch; the launcher restarts it."""
        kill = """
        if second and job.round in (2, 5) and not os.path.exists(f"{sys.argv[0]}.{job.round}"):
            open(f"{sys.argv[0]}.{job.round}", "w").close()
            children = open(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read().split()
            names = {pid: open(f"/proc/{pid}/comm").read() for pid in children}
            os.kill(next(int(pid) for pid in names if names[pid].startswith("lockstep-coord")), signal.SIGKILL)
"""
        quiet = self.job("quiet")
        wanted = self.summary()
        killed = self.job("killed-coordinator", batch=kill.strip())
        self.assertEqual((quiet.returncode, killed.returncode), (0, 0), killed)
        self.assertEqual(len(re.findall("the coordinator was ended by SIGKILL; restarting it", killed.stdout)), 2, killed.stdout)
        self.assertEqual(len(re.findall("whose parameters 2 workers held", killed.stdout)), 2, killed.stdout)
        harness.check_epochs(self, self.rounds(self.run_dir), SAMPLES)
        self.assertEqual(self.summary()["params_digest"], wanted["params_digest"])
        self.assertEqual(*(sorted(re.findall(r"\| end .*", done.stdout)) for done in (quiet, killed)))

    def test_the_job_begins_without_who_ends_before_it_has_joined(self):
        done = self.job("never-joins", "--set", "job.join_timeout=40s", change="if second: raise ValueError('too early')")
        self.assertEqual(done.returncode, 0, done)
        self.assertRegex(done.stdout, r"the job starts with 1 of 2 workers: worker 1 is not there after 40s \(job.join_timeout\); a later worker joins")
        self.assertEqual(self.summary()["samples_counted"], EPOCHS * SAMPLES)

    def test_nobody_waits_for_a_model_that_never_comes(self):
        done = self.job("no-model", change="if not second: raise ValueError('too early')")
        self.assertEqual(done.returncode, 1, done)
        self.assertRegex(done.stdout, r"worker 1 +\| lockstep: worker 0 has ended before it came to job.prepare, so there is no state to begin with")
        self.assertEqual(done.stdout.count("Traceback"), 1, done.stdout)

    def test_worker_0_says_what_the_coordinator_that_it_has_started_warns_of(self):
        step = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1"}
        script = self.script(SCRIPT.replace("#batch\n", "if job.rank == 1 and job.round == 1: raise ValueError('of the script')\n"))
        workers = [package.start(script, python=PYTHON, SLURM_PROCID=str(i), **step) for i in (0, 1)]
        try:
            said = [worker.communicate(timeout=package.TIMEOUT_S) for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
                worker.communicate()
        self.assertEqual([worker.returncode for worker in workers], [0, 1], said)
        self.assertIn("lockstep: worker 1 is out: it leaves: ValueError: of the script\n", said[0][1])
        self.assertRegex(said[0][1], r"\A(lockstep: .*\n)+\Z")

    def test_who_wants_all_workers_says_so_and_they_are_waited_for_so_long(self):
        done = self.job("waits", "--set", "job.min_workers=2", "--set", "job.quorum_timeout=1s", batch="if here(): raise ValueError('of the script')")
        self.assertEqual(done.returncode, 1, done)
        self.assertEqual(self.summary()["status"], "failed")
        self.assertEqual(self.summary()["reason"], "1 of at least 2 workers have been there for 1s (job.quorum_timeout); missing: worker 1 "
                         "(it leaves: ValueError: of the script)")
        self.assertEqual(done.stdout.count("Traceback"), 1, done.stdout)


class StatusTest(FaultsTest):
    """Of `lockstep run`, where the job has completed."""

    def test_a_script_that_fails_after_the_job(self):
        done = lockstep_run("-n", 2, "--run-dir", self.folder / "run",
                            self.script(SCRIPT + "if second: torch.save(model.state_dict(), '/no/such/folder/model.pt')\n"))
        self.assertEqual(done.returncode, 1, done)
        self.assertIn("the job has completed, but the program of worker 1 has failed after it: exit status 1\n", done.stdout)

    def test_a_worker_that_is_stopped_for_good(self):
        """The launcher ends with the job, and misses the worker that saves."""
        for stopped, status in (("1", 0), ("0", 1)):
            with self.subTest(stopped):
                script = SCRIPT.replace('== "1"', f'== "{stopped}"').replace("#batch\n", "if here(): os.kill(os.getpid(), signal.SIGSTOP)\n")
                done = lockstep_run("-n", 2, "--run-dir", self.folder / f"run{stopped}", "--set", "liveness.timeout=3s", self.script(script))
                self.assertEqual(done.returncode, status, done)
                self.assertIn(f"coordinator warning worker {stopped} is out: no ", done.stdout)
                self.assertRegex(done.stdout, f"launch +\\| worker {stopped} ended with status 1\n")
                self.assertEqual("worker 0, which saves the model in most scripts, has failed: exit status 1" in done.stdout, status == 1, done)


class NotANumberTest(FaultsTest):
    BAD = 37  # its place in each epoch's order, too

    def trained(self, begin, rounds):
        """Softmax regression on one feature, over what the rounds have counted."""
        w, b = list(begin[:2]), list(begin[2:])
        for line in rounds:
            samples = [i for part in line["contributors"] for first, end in part["ranges"] for i in range(first, end)]
            step = [0.0] * 4
            for i in samples:
                x = i / SAMPLES
                powers = [math.exp(w[k] * x + b[k]) for k in (0, 1)]
                for k in (0, 1):
                    error = powers[k] / sum(powers) - (i % 2 == k)
                    step[k] += error * x / len(samples)
                    step[2 + k] += error / len(samples)
            w = [w[k] - RATE * step[k] for k in (0, 1)]
            b = [b[k] - RATE * step[2 + k] for k in (0, 1)]
        return [*w, *b]

    def values(self, done, what):
        found = re.findall(rf"^worker \d *\| {what} (.*)$", done.stdout, re.MULTILINE)
        self.assertEqual(len(found), 2, done.stdout)
        return [[float(word) for word in line.split()] for line in found]

    def test_skip_leaves_the_contribution_out_and_the_worker_goes_on(self):
        for name, poison in (("loss", f"if {self.BAD} in samples: loss = loss * float('nan')"),
                             ("infinite", f"if {self.BAD} in samples: loss = loss * float('inf')"),
                             # The loss is a number, and its gradient is none.
                             ("gradient", f"if {self.BAD} in samples: loss = loss + (model.weight * 0).sum().sqrt()")):
            with self.subTest(name):
                done = self.job(name, "--set", "job.on_nan=skip", loss=poison)
                self.assertEqual(done.returncode, 0, done)
                rounds, summary = self.rounds(self.run_dir), self.summary()
                left_out = []
                for line in rounds:
                    counted = {i for part in line["contributors"] for first, end in part["ranges"] for i in range(first, end)}
                    skipped = {i for part in line.get("skipped", []) for first, end in part["ranges"] for i in range(first, end)}
                    self.assertFalse(counted & skipped)
                    self.assertEqual(len(counted), line["samples"])
                    self.assertEqual(len(counted | skipped), BATCH)
                    self.assertEqual(self.BAD in skipped, bool(skipped))
                    left_out += [(line["epoch"], i) for i in skipped]
                self.assertEqual({epoch for epoch, _ in left_out}, set(range(EPOCHS)))
                self.assertEqual((summary["samples_dropped"], summary["samples_counted"]), (len(left_out), EPOCHS * SAMPLES - len(left_out)))
                self.assertEqual(done.stdout.count("it is left out, and its samples are dropped"), EPOCHS)
                said = re.findall(rf"lockstep: the loss of worker \d in round \d is (?:nan|inf), of the samples .*\b{self.BAD}\b.* of the dataset",
                                  done.stdout)
                self.assertEqual(len(said), 0 if name == "gradient" else EPOCHS, done.stdout)
                ends = self.values(done, "end")
                self.assertEqual(*ends)
                for ours, theirs in zip(ends[0], self.trained(self.values(done, "begin")[0], rounds), strict=True):
                    self.assertAlmostEqual(ours, theirs, delta=1e-4)

    def test_stop_ends_the_job_with_one_line_for_all(self):
        done = self.job("stop", loss=f"if {self.BAD} in samples: loss = loss * float('nan')")
        self.assertEqual(done.returncode, 1, done)
        self.assertEqual(self.summary()["status"], "failed")
        reason = self.summary()["reason"]
        self.assertRegex(reason, r"\Around 2: the loss or gradient of worker \d over the samples \[\d+, \d+\) of epoch 0 is not finite "
                         r"\(job.on_nan = stop\)\Z")
        for worker in (0, 1):
            self.assertRegex(done.stdout, rf"(?m)^worker {worker} *\| lockstep: {re.escape(reason)}$")
        self.assertNotIn("Traceback", done.stdout)


if __name__ == "__main__":
    package.main_with_torch()
