"""The state of a script's StatefulDataLoader in a job: it is the job's position, on all workers alike, and moves nothing."""

import ast
import collections
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import harness  # noqa: E402
from test_torch_models import has  # noqa: E402
from test_torch_resume import children  # noqa: E402
from torch_test import PYTHON, SCRIPT, TorchTest, lockstep_run  # noqa: E402

SAMPLES, BATCH, EPOCHS = 200, 20, 4

# Saves and loads as a script for torchdata does, beside its model.
WORKER = f"""
import os, signal, sys
import torch, lockstep
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader
file = sys.argv[1]
second = os.environ.get("LOCKSTEP_WORKER") == "1"
job = lockstep.init(seed=5)
x = torch.randn({SAMPLES}, 4, generator=torch.Generator().manual_seed(3))
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 2))
opt = torch.optim.AdamW(model.parameters(), lr=0.02)
loader = StatefulDataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size={BATCH}, shuffle=True)
model, opt, loader = job.prepare(model, opt, loader, epochs={EPOCHS})
def save():
    state = loader.state_dict()
    print("state", state, flush=True)
    if job.rank == 0:
        torch.save({{"model": model.state_dict(), "loader": state}}, file + ".new")
        os.replace(file + ".new", file)
resumed = os.path.exists(file)
if resumed:
    state = torch.load(file)["loader"]
    loader.load_state_dict(state)
    assert loader.state_dict() == state
began = False
for epoch in range({EPOCHS}):
    for x, y in loader:
        if not began:
            began = True
            print("began", job.round, *([state["round"]] if resumed else []), flush=True)
        F.cross_entropy(model(x), y).backward()
        opt.step()
        print("at", job.round, loader.state_dict(), flush=True)
        #batch
#end
"""

STATEFUL = """
from torchdata.stateful_dataloader import StatefulDataLoader
def batches(of=data, **more):
    return StatefulDataLoader(of, **{"batch_size": 16, "shuffle": True} | more)
loader = batches()
"""
TRAINED = SCRIPT.replace("lockstep.init(run_dir=None)", "lockstep.init(seed=3)") + STATEFUL + """
model, opt, loader = job.prepare(model, opt, loader, epochs=2)
for epoch in range(2):
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        opt.step()
    assert (loader.state_dict()["epoch"], loader.state_dict()["round"]) == (epoch, 4 * (epoch + 1)), loader.state_dict()
state = loader.state_dict()
model, opt, loader = nn.Linear(1, 2), None, batches()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
job = lockstep.init(seed=3)
"""
AGAIN = "model, opt, loader = job.prepare(model, opt, loader, epochs=2)\n"
LOAD = AGAIN + "loader.load_state_dict(state)\n"


@unittest.skipUnless(has("torchdata.stateful_dataloader"), "LOCKSTEP_TORCH_PYTHON has no torchdata")
class StatefulTest(TorchTest):
    def setUp(self):
        super().setUp()
        self.saved = self.folder / "saved.pt"

    def words(self, name, *options, batch="", end=""):
        script = WORKER.replace("#batch", batch).replace("#end", end)
        return ["-n", "2", "--run-dir", self.folder / name, "--set", "liveness.timeout=60s", *options, self.script(script), self.saved]

    def job(self, name, *options, status=0, **parts):
        done = lockstep_run(*self.words(name, *options, **parts))
        self.assertEqual(done.returncode, status, done)
        return done.stdout

    def digest(self, name):
        summary = json.loads((self.folder / name / "summary.json").read_text())
        self.assertEqual(summary["status"], "completed")
        return summary["params_digest"]

    def states(self, out, word):
        """Of those lines, by round, whatever worker has said them: all that are different."""
        states = collections.defaultdict(list)
        for text in re.findall(rf"^worker \d *\| {word} ({{.*}})$", out, re.MULTILINE):
            state = ast.literal_eval(text)
            if state not in states[state["round"]]:
                states[state["round"]].append(state)
        return states

    def began(self, out):
        return sorted(re.findall(r"^worker \d *\| began (.*)$", out, re.MULTILINE))

    def test_a_job_that_is_interrupted_goes_on_where_its_state_says(self):
        """By Ctrl-C in the second epoch. All workers have the same states, also where work moves."""
        self.job("quiet")
        interrupts = "if second and job.round >= 13:\n            os.kill(os.getppid(), signal.SIGINT)\n            second = False"
        for policy, *options in (("full",), ("full+flexrr", "--slowdown", "worker=1,factor=4")):
            with self.subTest(policy):
                self.saved.unlink(missing_ok=True)
                words = ("--policy", policy, "--set", "emulate.unit_time=20ms", *options)
                out = self.job(policy, *words, status=130, batch=interrupts, end="assert job.ended_early\nsave()")
                (at,) = self.states(out, "state").values()
                self.assertEqual(len(at), 1, at)
                self.assertEqual((at[0]["lockstep"], at[0]["samples"], at[0]["global_batch"], at[0]["seed"]), (1, SAMPLES, BATCH, 5))
                round_ = at[0]["round"]
                self.assertEqual(round_, len(self.rounds(self.folder / policy)))
                self.assertLess(13, round_)
                out = self.job(policy, "--resume", "--set", "emulate.unit_time=0s")
                self.assertEqual(self.began(out), [f"{round_} {round_}"] * 2)
                rounds = self.rounds(self.folder / policy)
                harness.check_epochs(self, rounds, SAMPLES)
                self.assertEqual(sum(line["samples"] for line in rounds), EPOCHS * SAMPLES)
                for line in re.findall(r"^worker \d *\| at (.*)$", out, re.MULTILINE):
                    number, state = line.split(" ", 1)
                    self.assertEqual(int(number), ast.literal_eval(state)["round"])
                for states in self.states(out, r"at \d+").values():
                    self.assertEqual(len(states), 1)
        self.assertEqual(self.digest("full"), self.digest("quiet"))

    def test_a_job_that_is_killed_goes_on_from_the_checkpoint_of_the_state_s_round(self):
        """And refuses a state of another round, and so does a job that begins anew."""
        self.job("quiet")
        every = ("--set", "checkpoint.every_rounds=8")
        saves = "if loader.state_dict()['round'] in (4, 8): save()\n        "
        process = package.start("-m", "lockstep", "run", *self.words(
            "killed", *every, batch=saves + "if job.round == 4 and job.rank == 0: os.link(file, file + '.4')\n        if job.round == 10: signal.pause()"),
            python=PYTHON, cwd=self.folder)
        others = []
        try:
            written = self.folder / "killed" / "checkpoints"
            harness.wait_for("the checkpoint after round 7", lambda: process.poll() is not None or any(
                int(path.stem.removeprefix("round-")) == 7 for path in written.glob("*.json")), seconds=120)
            others = children(process.pid)
        finally:
            process.kill()
            for pid in others:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            out, _ = process.communicate(timeout=package.TIMEOUT_S)
        self.assertEqual((process.returncode, len(others)), (-signal.SIGKILL, 3), out)
        newest = self.folder / "newest.pt"
        shutil.copy(self.saved, newest)

        def refused(name, *options):
            return re.findall(r"^worker \d *\| lockstep: (loader\.load_state_dict: .*)$", self.job(name, *options, status=2), re.MULTILINE)

        os.replace(f"{self.saved}.4", self.saved)
        for line in (lines := refused("killed", "--resume")):
            self.assertIn("the state is of round 4, and the job goes on from round 8, where its checkpoint is: leave loader.load_state_dict out", line)
        self.assertTrue(lines)
        os.replace(newest, self.saved)
        for line in (lines := refused("anew", *every)):
            self.assertIn("the state is of round 8, and this job begins anew. Let it go on from its checkpoint: lockstep run --resume", line)
        self.assertTrue(lines)
        self.assertEqual(self.began(self.job("killed", "--resume")), ["8 8"] * 2)
        harness.check_epochs(self, self.rounds(self.folder / "killed"), SAMPLES)
        self.assertEqual(self.digest("killed"), self.digest("quiet"))

    def test_a_worker_that_comes_back_loads_what_it_has_saved_before(self):
        """The job is further by then, and the worker with it."""
        kills = "if loader.state_dict()['round'] == 8 and not resumed: save()\n        if second and job.round == 11 and not resumed: os._exit(9)"
        out = self.job("died", "--restart-workers", "1", "--min-workers", "2", batch=kills)
        first, again = self.began(out)[1:]
        self.assertEqual(first, "0")
        number, loaded = map(int, again.split())
        self.assertEqual(loaded, 8)
        self.assertLess(10, number)
        harness.check_epochs(self, self.rounds(self.folder / "died"), SAMPLES)

    def test_a_state_that_is_not_of_this_job_is_one_line(self):
        torchdatas = "this state is torchdata's own, of a loader without a job, and a job cannot begin there: leave loader.load_state_dict out"
        self.assert_outcomes([
            (TRAINED + LOAD + "next(iter(loader))\n", 2, "the state is of round 8, and this job begins anew. Let it go on from its checkpoint: lockstep run --resume"),
            (TRAINED + "loader = batches(TensorDataset(torch.ones(64, 1), torch.arange(64)))\n" + LOAD, 2, "the state is of another dataset, or another order"),
            (TRAINED + "loader = batches(shuffle=False)\n" + LOAD, 2, "the state is of another dataset, or another order of its samples"),
            (TRAINED + "loader = batches(batch_size=8)\n" + LOAD, 2,
             "the state is of a global batch of 16, and the job has 8: give job.prepare global_batch=16, or leave loader.load_state_dict out"),
            (TRAINED + "job.close()\njob = lockstep.init(seed=4)\n" + LOAD, 2, "the state is of seed 3, and the job has 4: begin with lockstep.init(seed=3)"),
            (TRAINED + "state['samples'] = 48\n" + LOAD, 2, "the state is of epochs of 48 samples, and the job has 64"),
            (TRAINED + "state['lockstep'] = 2\n" + LOAD, 2, "the state has version 2, and this release of lockstep reads version 1"),
            (TRAINED + "del state['round']\n" + LOAD, 2, "the state has no round"),
            (TRAINED + "state = {'epoch': 1}\n" + LOAD, 2, "takes what state_dict of a prepared loader has returned, and this is something else"),
            (SCRIPT + STATEFUL + "state = loader.state_dict()\n" + LOAD, 2, torchdatas),
            (SCRIPT + STATEFUL + "state = batches(num_workers=1).state_dict()\n" + LOAD, 2, torchdatas),
            (SCRIPT + STATEFUL + AGAIN + "loader.state_dict()\n", 2, "where the job begins is known with the first batch"),
        ])

    def test_a_state_is_loaded_before_the_first_batch_alone(self):
        begins = "state['round'] = 0\n" + LOAD + "next(iter(loader))\n"
        late = "loader.load_state_dict comes before the first batch, and the job has come to round 0: it goes back only when it is started again"
        self.assert_outcomes([
            (TRAINED + begins, 0, ""),
            (TRAINED + AGAIN + "loader.load_state_dict({})\nnext(iter(loader))\n", 0, ""),
            (TRAINED + begins + "loader.load_state_dict(state)\n", 2, late),
            # Where the script's own optimizer steps within opt.step(), the model has the update behind it.
            (TRAINED + AGAIN + """
for x, y in loader:
    F.cross_entropy(model(x), y).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    before = loader.state_dict()["round"]
    opt.step()
    assert (before, loader.state_dict()["round"]) == (job.round, job.round + 1), (before, loader.state_dict())
""", 0, ""),
            (SCRIPT + AGAIN + "assert not hasattr(loader, 'state_dict')\n", 0, ""),  # as torch's own
        ])


if __name__ == "__main__":
    package.main_with_torch()
