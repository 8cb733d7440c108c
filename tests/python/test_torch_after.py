"""job.after_update: averages and clamps that follow the updates are the same on all workers, and as torch alone makes them."""

import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import HERE  # noqa: E402
from torch_test import LOOP, PREPARE, SCRIPT, TorchTest, lockstep_run, run  # noqa: E402
from test_torch_models import has  # noqa: E402
from test_torch_resume import kill_in_an_epoch  # noqa: E402

AFTER = HERE / "torch_after.py"
AVERAGES = ["torch", "state", *(["timm"] if has("timm") else [])]
EMA = "from torch.optim.swa_utils import AveragedModel\nema = AveragedModel(model)\n"
FOLLOWS = EMA + "job.after_update(lambda n: ema.update_parameters(model), ema)\n" + PREPARE
# A momentum encoder within the model, as of MoCo and BYOL.
TARGET = """
import copy
class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = nn.Linear(1, 2)
        self.target = copy.deepcopy(self.online).requires_grad_(False)
    def forward(self, x):
        return self.online(x) + 0.1 * self.target(x)
def follow(n):
    for p, q in zip(model.target.parameters(), model.online.parameters()):
        p.lerp_(q, 0.5)
model = Pair()
opt = torch.optim.SGD(model.online.parameters(), lr=0.1)
before = model.target.weight.clone()
"""
LAST = "        if job.round == 7:\n            job._rule.updates.show_kept = lambda extra: False\n"


class AfterUpdateTest(TorchTest):
    def lines(self, done, pattern):
        return re.findall(rf"\| {pattern}$", done.stdout, re.MULTILINE)

    def ends(self, done):
        """Of all workers alike: the average, and the parameters."""
        ends = self.lines(done, r"average (\w+) parameters (\w+)")
        self.assertEqual((len(ends), len(set(ends))), (2, 1), done.stdout)
        return ends[0]

    def test_averages_are_those_of_torch_alone(self):
        for words in [[f"average={kind}"] for kind in AVERAGES] + [["norm=1"]]:
            with self.subTest(words):
                saved = self.folder / "saved.pt"
                workers = "1" if "norm=1" in words else "2"  # a norm sees the batch of its worker
                done = lockstep_run("-n", workers, AFTER, *words, f"save={saved}")
                self.assertEqual(done.returncode, 0, done)
                if workers == "2":
                    self.ends(done)
                self.assertEqual(set(self.lines(done, r"calls (\d+)")), {"30"}, done.stdout)
                alone = run(AFTER, *words, f"alone={saved}")
                self.assertEqual(alone.returncode, 0, alone)

    def test_workers_of_several_speeds_have_one_average_after_each_epoch(self):
        done = lockstep_run("-n", "2", "--policy", "full+flexrr", "--slowdown", "worker=1,factor=4", "--set", "emulate.unit_time=2ms", AFTER)
        self.assertEqual(done.returncode, 0, done)
        self.ends(done)
        for epoch in (0, 1):
            of = self.lines(done, rf"epoch {epoch} average (\w+) of \d+")
            self.assertEqual((len(of), len(set(of))), (2, 1), done.stdout)

    def test_a_worker_that_copies_the_state_has_the_average(self):
        for kind in AVERAGES[:2]:
            with self.subTest(kind):
                mark = self.folder / f"mark-{kind}"
                done = lockstep_run("-n", "2", "--restart-workers", "1", "--set", "job.min_workers=2", "--set", "liveness.timeout=60s", AFTER,
                                    f"average={kind}", f"die={mark}", "epochs=4")
                self.assertEqual(done.returncode, 0, done)
                self.assertTrue(mark.exists())
                self.ends(done)
                fewest, most = sorted(map(int, self.lines(done, r"calls (\d+)")))
                self.assertEqual(most, 40, done.stdout)
                self.assertLess(fewest, 40, done.stdout)  # the others were copied

    def test_a_resumed_job_has_the_average_of_one_that_was_not_ended(self):
        for kind in AVERAGES[1:]:
            with self.subTest(kind):
                words, run_dir = [AFTER, f"average={kind}", "epochs=6", "checkpoint=4"], self.folder / f"run-{kind}"
                whole = lockstep_run("-n", "2", "--run-dir", self.folder / f"whole-{kind}", *words)
                self.assertEqual(whole.returncode, 0, whole)
                self.assertEqual(kill_in_an_epoch(self, run_dir, 10, "-m", "lockstep", "run", "-n", "2", "--run-dir", run_dir, *words), 3)
                again = lockstep_run("-n", "2", "--resume", "--run-dir", run_dir, *words)
                self.assertEqual(again.returncode, 0, again)
                self.assertEqual(self.ends(again), self.ends(whole))
                self.assertTrue(all(int(calls) < 60 for calls in self.lines(again, r"calls (\d+)")), again.stdout)

    def test_workers_begin_with_the_average_of_worker_0(self):
        """As with the model: the script has drawn otherwise on each worker."""
        script = self.script(SCRIPT.replace("job = lockstep.init(run_dir=None)", """
import os
job = lockstep.init()
torch.manual_seed(int(os.environ["LOCKSTEP_WORKER"]))
""") + FOLLOWS.replace("AveragedModel(model)\n", "AveragedModel(model)\nema.module.weight.data.normal_()\nema.n_averaged += 1\n") + LOOP
            + "print('average', *ema.module.weight.flatten().tolist(), int(ema.n_averaged), flush=True)\n")
        done = lockstep_run("-n", "2", script)
        self.assertEqual(done.returncode, 0, done)
        averages = self.lines(done, "average (.*)")
        self.assertEqual((len(averages), len(set(averages))), (2, 1), done.stdout)
        self.assertTrue(averages[0].endswith(" 9"), averages)

    def test_what_only_one_worker_would_have_is_refused(self):
        self.assert_outcomes([
            (SCRIPT + EMA + "job.after_update(lambda n: ema.update_parameters(model))\n" + PREPARE, 2, "let the job keep it, job.after_update(function, ema)"),
            (SCRIPT + EMA + "import functools\njob.after_update(functools.partial(lambda e, n: e.update_parameters(model), ema))\n" + PREPARE, 2,
             "uses AveragedModel, which checkpoints"),
            (SCRIPT + EMA + "def follow():\n    mine = ema\n    def later(n):\n        mine.update_parameters(model), never\n"
             "    job.after_update(later)\n    if False:\n        never = 0\nfollow()\n" + PREPARE, 2, "job.after_update(function, mine)"),
            (SCRIPT + FOLLOWS + LOOP, 0, ""),
            (SCRIPT + PREPARE + "job.after_update(print)\n", 2, "job.after_update comes before job.prepare"),
            (SCRIPT + "job.after_update(3)\n", 2, "wants a function of the number of updates: job.after_update(lambda n: ema.update_parameters(model), ema)"),
            (SCRIPT + "job.after_update(print, [1])\n", 2, "list has no state_dict and load_state_dict"),
            (SCRIPT + "job.after_update(print, model)\n" + PREPARE, 2, "Linear has parameters that the job trains and keeps: give it the others"),
            (SCRIPT + TARGET + "job.after_update(follow)\n" + PREPARE + LOOP, 2,
             "changes target.weight, which checkpoints and workers that join later would not have: let the job keep it, job.after_update(function, model.target)"),
            (SCRIPT + TARGET + "job.after_update(follow, model.target)\n" + PREPARE + LOOP + "assert not torch.equal(before, model.target.weight)\n", 0, ""),
            (SCRIPT + EMA + "def grow(n):\n    ema.module.late = nn.Linear(1, 1)\njob.after_update(grow, ema)\n" + PREPARE + LOOP, 2,
             "job.after_update keeps something else than at job.prepare"),
            (SCRIPT + EMA + "def widen(n):\n    ema.module.double()\njob.after_update(widen, ema)\n" + PREPARE + LOOP, 2, "of another kind or size than at job.prepare"),
            (SCRIPT.replace("run_dir=None", "settings={'optimizer.name': 'sgd'}") + FOLLOWS, 2, "(job.after_update was called): leave optimizer.name out"),
        ])

    def test_averages_that_do_not_follow_the_updates_are_refused(self):
        """In the loop; between two epochs, as SWA has it, the model is the job's."""
        late = "job.after_update(lambda n: ema.update_parameters(model), ema)"
        cases = [
            (SCRIPT + EMA + PREPARE + LOOP + "        ema.update_parameters(model)\n", 2, late),
            (SCRIPT + EMA + PREPARE + LOOP + "    ema.update_parameters(model)\nassert int(ema.n_averaged) == 2\n", 0, ""),
        ]
        if has("timm"):
            timm = "from timm.utils import ModelEmaV3\nema = ModelEmaV3(model, decay=0.9)\n"
            cases.append((SCRIPT + timm + PREPARE + LOOP + "        ema.update(model)\n", 2, "job.after_update(lambda n: ema.update(model), ema)"))
        self.assert_outcomes(cases)

    def test_a_worker_without_an_update_says_that_it_lacks_what_is_kept(self):
        done = run(self.script(SCRIPT + FOLLOWS + LOOP.replace("        loss =", LAST + "        loss =")))
        self.assert_one_line(done, 1, "does not have what job.after_update keeps")

    def test_parameters_that_are_given_other_memory_are_the_job_s(self):
        self.assert_outcomes([(SCRIPT + """
def halve(n):
    model.weight.data = model.weight.data / 2
    model.bias.fill_(n)
job.after_update(halve)
""" + PREPARE + LOOP + "assert model.bias.tolist() == [8.0, 8.0], model.bias\nassert model.weight.abs().max() < 0.2, model.weight\n", 0, "")])


if __name__ == "__main__":
    package.main_with_torch()
