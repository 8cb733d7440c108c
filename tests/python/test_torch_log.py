"""job.log: each number counts as its samples do, whatever moves; loss.backward() is job.backward(loss); and numbers that cannot be
right are told of."""

import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import harness  # noqa: E402
from torch_test import LOOP, PREPARE, SCRIPT, TorchTest, lockstep_run, run  # noqa: E402

# Numbers about positions, which the records tell too.
LOG = """
import json, lockstep, torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
job = lockstep.init(seed=5)
model = nn.Linear(1, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.linspace(0, 1, 500).reshape(500, 1), torch.arange(500) % 2), batch_size=60, shuffle=True)
model, opt, loader = job.prepare(model, opt, loader, epochs=3)
assert not job.metrics and job.metrics.round == -1
seen = {}
def note():
    if job.metrics:
        assert repr(seen.setdefault(job.metrics.round, dict(job.metrics))) == repr(dict(job.metrics))
for epoch in range(3):
    for x, y in loader:
        note()
        assert job.metrics.round >= job.round - 1, (job.metrics.round, job.round)  # newer, where the run is void already
        at = [float(p) for first, end in job._run.work.ranges for p in range(first, end)]
        job.log({"position": torch.tensor(at, dtype=torch.float64).mean(), "one": 1})
        job.log({"count": len(x), "least": min(at), "most": max(at)}, reduce={"count": "sum", "least": "min", "most": "max"})
        half = at[: max(1, len(at) // 2)]
        job.log({"half": sum(half) / len(half)}, samples=len(half))
        job.log({"odd": float("nan")}, reduce="max")
        job.backward(F.cross_entropy(model(x), y))
        opt.step()
    note()
    assert job.metrics.epoch >= epoch  # newer, where this worker had no part in the first rounds of the next one
print("metrics", json.dumps(seen), flush=True)
"""


# A worker whose gradients are so many times the right ones, though its losses are right.
WRONG = """
import json, os, pathlib, sys, urllib.request
import lockstep, torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
run_dir, times = pathlib.Path(sys.argv[1]), float(sys.argv[2])
job = lockstep.init(seed=5)
model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
draw = torch.Generator().manual_seed(3)
x = torch.randn(480, 4, generator=draw)
loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=24, shuffle=True)
model, opt, loader = job.prepare(model, opt, loader, epochs=4)
if job.rank == 1:
    for p in model.parameters():
        p.register_hook(lambda gradient: times * gradient)
def look():
    address = (run_dir / "http.address").read_text().strip()
    for what in ("status", "metrics"):
        with urllib.request.urlopen(f"http://{address}/{what}", timeout=30) as answer:
            print(what, json.dumps(answer.read().decode()), flush=True)
for epoch in range(4):
    for x, y in loader:
        if job.round >= 70 and job.rank == 0 and look:
            look()
            look = None
        job.backward(F.cross_entropy(model(x), y))
        opt.step()
"""


class WrongTest(TorchTest):
    def job(self, times, *arguments):
        run_dir = self.folder / str(times)
        done = lockstep_run("-n", "3", "--http", "127.0.0.1:0", "--run-dir", run_dir, *arguments, self.script(WRONG), run_dir, times)
        self.assertEqual(done.returncode, 0, done)
        said = {what: json.loads(text) for what, text in re.findall(r"\| (status|metrics) (.*)$", done.stdout, re.MULTILINE)}
        return done.stdout + done.stderr, json.loads(said["status"]), said["metrics"]

    def test_a_worker_whose_gradients_are_far_from_the_others_is_named(self):
        log, status, metrics = self.job(-3)
        found = re.findall(r"round (\d+): the gradients of worker (\d) are (\S+) times as large as those of the median worker", log)
        self.assertEqual([worker for _, worker, _ in found], ["1"], log)
        self.assertAlmostEqual(float(found[0][2]), 3, delta=0.7)
        self.assertEqual(len(status["warnings"]), 1)
        self.assertIn("the gradients of worker 1 are", status["warnings"][0])
        times = [member["gradient_times"] for member in status["members"]]
        self.assertAlmostEqual(times[1], 3, delta=0.7)
        self.assertLess(max(times[0], times[2]), 1.5)
        self.assertRegex(metrics, r"(?m)^lockstep_warnings 1$")
        self.assertRegex(metrics, r'(?m)^lockstep_worker_gradient_times\{worker="1"\} [23]\.')

    def test_a_loss_that_explodes_is_told_of_and_who_did_it_at_once(self):
        log, status, metrics = self.job(1e30)
        self.assertRegex(log, r"round 0: the gradients of worker 1 are \S+e\+(29|30|31) times as large")
        self.assertRegex(log, r"round \d: the loss has exploded: \S+e\+")
        self.assertRegex(metrics, r"(?m)^lockstep_warnings 2$")
        self.assertIn("the loss has exploded", status["warnings"][1])

    def test_uneven_shares_and_one_slow_worker_are_no_reason(self):
        log, status, metrics = self.job(1, "--policy", "flexrr", "--set", "emulate.unit_time=1ms", "--slowdown", "worker=1,factor=6")
        self.assertNotIn("gradients of worker", log)
        self.assertNotIn("exploded", log)
        self.assertEqual(status["warnings"], [])
        self.assertRegex(metrics, r"(?m)^lockstep_warnings 0$")


class LogTest(TorchTest):
    def test_numbers_count_once_whatever_moves_or_is_left_out(self):
        for policy, more in (("full", ()), ("full+flexrr", ("--slowdown", "worker=2,factor=5")), ("backup", ("--slowdown", "worker=2,factor=5"))):
            with self.subTest(policy):
                run_dir = self.folder / policy
                done = lockstep_run("-n", "3", "--policy", policy, *more, "--set", "emulate.unit_time=1ms", "--run-dir", run_dir, self.script(LOG))
                self.assertEqual(done.returncode, 0, done)
                rounds = self.rounds(run_dir)
                harness.check_epochs(self, rounds, 500)
                if policy == "full+flexrr":
                    self.assertTrue(any(line["moved"] for line in rounds))
                for line in rounds:
                    at = [p for one in line["contributors"] for first, end in one["ranges"] for p in range(first, end)]
                    metrics = line["metrics"]
                    self.assertEqual(metrics["count"], {"sum": len(at)})
                    self.assertEqual((metrics["least"], metrics["most"], metrics["one"]), ({"min": min(at)}, {"max": max(at)}, {"mean": 1}))
                    self.assertAlmostEqual(metrics["position"]["mean"], sum(at) / len(at), delta=1e-9)
                    self.assertEqual(metrics["odd"], {"max": None})
                self.assertEqual(sum(line["metrics"]["count"]["sum"] for line in rounds), 1500)
                # What scripts are given is what is written.
                said = re.findall(r"\| metrics (.*)$", done.stdout, re.MULTILINE)
                self.assertEqual(len(said), 3, done.stdout)
                for text in said:
                    given = json.loads(text)
                    self.assertIn(str(rounds[-1]["round"]), given)
                    for number, values in given.items():
                        line = rounds[int(number)]
                        self.assertEqual(values.pop("loss"), line["loss"])
                        self.assertNotEqual(values["odd"], values.pop("odd"))  # not a number
                        written = {name: next(iter(by.values())) for name, by in line["metrics"].items() if name != "odd"}
                        self.assertEqual(values, written)
                summary = json.loads((run_dir / "summary.json").read_text())
                self.assertEqual(summary["metrics"], rounds[-1]["metrics"])

    def test_what_cannot_be_meant_is_refused_with_one_line(self):
        def loop(line):
            return SCRIPT + PREPARE + LOOP.replace("        opt.step()\n", f"        {line}\n        opt.step()\n")

        self.assert_outcomes([
            (SCRIPT + PREPARE + "job.log({'a': 1})", 2, "job.log is for a batch of the prepared loader"),
            (SCRIPT + PREPARE + LOOP + "        job.log({'a': 1})", 2, "before opt.step()"),
            (loop("job.log({'a': 1}); job.log({'a': 1})"), 2, "a was logged already for this batch"),
            (loop("job.log({'a': 1}, reduce='sum' if job.round else 'mean')"), 2, "a is reduced by mean so far, and now by sum"),
            (loop("job.log({'a': 1}, reduce='median')"), 2, "to be reduced by 'median'"),
            (loop("job.log({'': 1})"), 2, "no name of 1 to 64"),
            (loop("job.log({'loss': 1})"), 2, "the loss that job.backward is given is logged as loss already"),
            (loop("job.log({'a': torch.ones(2)})"), 2, "a has 2 values"),
            (loop("job.log({'a': 'much'})"), 2, "a is str"),
            (loop("job.log({'a': 1}, samples=17)"), 2, "samples=17 of a batch that has 16"),
            (loop("job.log({f'a{i}': 1 for i in range(65)})"), 2, "one metric more than the 64"),
            (loop("job.log({f'a{i}': 1 for i in range(64)})"), 0, ""),
            # Who goes on without the one that is too many still logs the others.
            (loop("try: job.log({f'a{i}': 1 for i in range(65)})\n"
                  "        except lockstep.UsageError as error: assert str(error).startswith('job.log: a64 is one metric more')"), 0, ""),
        ])


class BackwardTest(TorchTest):
    def test_backward_of_the_loss_itself_is_the_jobs(self):
        """The same bits and records; what is no loss of the job stays torch's."""
        for name, words in (("job", "job.backward(loss)"), ("loss", "loss.backward()"), ("kept", "loss.backward(retain_graph=True)")):
            run_dir = self.folder / name
            script = self.script((SCRIPT + PREPARE).replace("run_dir=None", f"run_dir={str(run_dir)!r}") + """
other = nn.Linear(1, 1)
""" + LOOP.replace("job.backward(loss)", f"""
        other.zero_grad()
        other(x).sum().backward()
        assert torch.equal(other.bias.grad, torch.tensor([float(len(x))]))
        {words}""") + """
print("whole", *(x for p in model.parameters() for x in p.flatten().tolist()))
w = torch.ones(1, requires_grad=True)
(3 * model(w)).sum().backward()
assert model.weight.grad is not None and job.state_dict()
""")
            done = run(script)
            self.assertEqual((done.returncode, done.stderr), (0, ""), done)
            losses = [line["loss"] for line in self.rounds(run_dir)]
            if name == "job":
                want = done.stdout, losses
            self.assertEqual((done.stdout, losses), want)

    def test_what_gets_around_it_is_refused(self):
        def loop(words):
            return SCRIPT + PREPARE + LOOP.replace("job.backward(loss)", words)

        self.assert_outcomes([
            (loop("loss.backward()"), 0, ""),
            (loop("loss.backward(); loss.backward()"), 2, "called twice for one batch"),
            (loop("loss.backward(create_graph=True)"), 2, "create_graph=True"),
            (loop("torch.autograd.backward(loss)"), 2, "without a backward of the loss"),
            (loop("loss.backward(torch.tensor(1.0))"), 2, "without a backward of the loss"),
            (loop("torch.autograd.backward(loss); loss.backward()"), 2, "there are gradients before"),
            (SCRIPT + PREPARE + LOOP + "assert torch.Tensor.backward.__module__ == 'torch._tensor', torch.Tensor.backward", 0, ""),
        ])


if __name__ == "__main__":
    package.main_with_torch()
