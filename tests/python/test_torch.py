"""The package with torch: the same as torch alone, exactly once whatever moves, and what is refused."""

import json
import os
import pathlib
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import HERE, harness  # noqa: E402

PYTHON = package.TORCH_PYTHON
WORKER = HERE / "torch_worker.py"

# The beginning of the small scripts below.
SCRIPT = """
import torch, lockstep
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, IterableDataset
data = TensorDataset(torch.arange(64.0).reshape(64, 1) / 64, torch.arange(64) % 2)
job = lockstep.init(run_dir=None)
model = nn.Linear(1, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=16, shuffle=True)
"""
PREPARE = "model, opt, loader = job.prepare(model, opt, loader, epochs=2)\n"
LOOP = """
for epoch in range(2):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        job.backward(loss)
        opt.step()
"""


def run(*arguments, **more):
    return package.run(*arguments, python=PYTHON, **more)


def lockstep_run(*arguments, **more):
    return run("-m", "lockstep", "run", *arguments, **more)


class TorchTest(harness.ClusterTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def script(self, text):
        path = self.folder / "script.py"
        path.write_text(textwrap.dedent(text))
        return path

    def rounds(self, run_dir):
        job = harness.Job(1, folder=self.folder)
        job.run_dir = run_dir
        return job.rounds()

    def outcomes(self, scripts):
        path = self.folder / "cases.json"
        path.write_text(json.dumps(scripts))
        done = run(HERE / "torch_cases.py", path)
        self.assertEqual(done.returncode, 0, done)
        return json.loads(done.stdout.splitlines()[-1])

    def assert_outcomes(self, cases):
        """Of (script, status, part of the message)."""
        for (script, status, message), outcome in zip(cases, self.outcomes([case[0] for case in cases]), strict=True):
            with self.subTest(message):
                self.assertEqual(outcome[0], status, (script, outcome))
                self.assertIn(message, outcome[1])
                self.assertNotIn("\n", outcome[1])

    def assert_one_line(self, done, status, message):
        self.assertEqual(done.returncode, status, done)
        self.assertRegex(done.stderr, r"\Alockstep: [^\n]+\n\Z")
        self.assertIn(message, done.stderr)


class SameAsTorchTest(TorchTest):
    def test_updates_are_those_of_torch(self):
        for words in (["optimizer=sgd"], ["optimizer=adamw"], ["optimizer=sgd", "scheduler=step"], ["optimizer=sgd", "clip=0.1"],
                      ["optimizer=adamw", "scheduler=cosine"], ["optimizer=sgd", "scheduler=exponential", "steps=epoch"],
                      ["optimizer=groups", "clip=0.1"], ["optimizer=groups", "scheduler=step"], ["optimizer=decay"], ["optimizer=sgd", "autocast=1"],
                      ["optimizer=groups", "dtype=bf16", "hidden=1600"]):
            with self.subTest(words):
                saved = self.folder / "saved.pt"
                words = [*words, "full_steps=1", "epochs=4"]
                done = run(WORKER, *words, f"save={saved}")
                self.assertEqual((done.returncode, done.stderr), (0, ""), done)
                self.assertIn("samples 2000 addresses 1", done.stdout)
                self.assertRegex(done.stdout, r"rule (sgd|adamw)\n")
                replayed = run(HERE / "torch_replay.py", saved, *words, PYTHONPATH=f"{package.ROOT / 'python'}:{HERE}")
                self.assertEqual(replayed.returncode, 0, replayed)
                print(*words, replayed.stdout.strip())

    def test_updates_of_any_optimizer_are_those_of_torch(self):
        """Those that the session has no rule for: the script's own optimizer makes them."""
        for words in (["optimizer=own"], ["optimizer=groups", "scheduler=cosine"], ["optimizer=adagrad", "scheduler=lambda"],
                      ["optimizer=nadam", "scheduler=exponential", "steps=epoch"], ["optimizer=adafactor"], ["optimizer=sgd", "scheduler=onecycle"]):
            with self.subTest(words):
                saved = self.folder / "saved.pt"
                words = [*words, "full_steps=1", "epochs=4"]
                done = run(WORKER, *words, f"save={saved}")
                self.assertEqual((done.returncode, done.stderr), (0, ""), done)
                self.assertIn("samples 2000 addresses 1", done.stdout)
                self.assertIn("rule custom\n", done.stdout)
                replayed = run(HERE / "torch_replay.py", saved, *words, PYTHONPATH=f"{package.ROOT / 'python'}:{HERE}")
                self.assertEqual(replayed.returncode, 0, replayed)
                print(*words, replayed.stdout.strip())

    def test_what_the_script_has_put_around_a_step_sees_the_updates_alone(self):
        """Of the optimizers that the session has rules for, too; what a scheduler of torch puts there is none of the script's."""
        hook = "opt.register_step_{}_hook(lambda *_: seen.append(1))\n"
        wrap = "raw = opt.step\ndef step(*_):\n    seen.append(1)\n    raw()\nopt.step = functools.wraps(raw)(step)\n"
        scheduler = "torch.optim.lr_scheduler.StepLR(opt, 1)\n"
        globally = "handle = register_optimizer_step_post_hook(lambda *_: seen.append(1))\n"
        begin = SCRIPT + "import functools\nfrom torch.optim.optimizer import register_optimizer_step_post_hook\nseen = []\n"
        check = ("if 'handle' in globals():\n    handle.remove()\nfound = len(seen), job.config['optimizer.name']\n"
                 "if found != {!r}:\n    raise lockstep.JobFailed(str(found))\n")
        cases = [(begin + opt + around + PREPARE + LOOP + check.format((8, "custom")), 0, "")
                 for opt in ("", "opt = torch.optim.AdamW(model.parameters())\n", "opt = torch.optim.NAdam(model.parameters())\n")
                 for around in (hook.format("pre"), hook.format("post"), globally, wrap, scheduler + wrap)]
        cases += [(begin + around + PREPARE + LOOP + check.format((0, "sgd")), 0, "") for around in ("", scheduler, 2 * scheduler)]
        cases += [(begin.replace("run_dir=None", "settings={'policy.name': 'local'}") + around + PREPARE, 2,
                   f"makes updates of synchronous rounds only. The script's optimizer makes the updates (custom) because {why}")
                  for around, why in ((hook.format("post"), "the optimizer has step hooks"), (wrap, "the optimizer's step is a function of the script's own"))]
        cases.append((begin + "old = opt\n" + PREPARE + hook.format("post").replace("opt", "old") + LOOP, 2, "has got a step hook after job.prepare"))
        self.assert_outcomes(cases)

    def test_what_the_returned_optimizer_is_not_for_is_one_line(self):
        given = "it of the script's own before, and give it to job.prepare"
        missing = "the optimizer that job.prepare has returned has no state: the updates are the job's"
        self.assert_outcomes([(SCRIPT + PREPARE + what + "\n", 2, message) for what, message in (
            ("torch.optim.lr_scheduler.StepLR(opt, 1)", "a scheduler was made of the optimizer that job.prepare has returned, or its step was replaced: make " + given),
            ("torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=9)", given),
            ("opt.step = lambda: None", given),
            ("opt.add_param_group({'params': [nn.Parameter(torch.zeros(1))]})", "takes no parameter group: give job.prepare all of them"),
            ("opt.register_step_post_hook(lambda *_: None)", "takes no step hook: give it to the script's own, before that"),
            ("opt.state[model.weight]", missing))] + [(SCRIPT + PREPARE + "if hasattr(opt, 'state') or not isinstance(opt, torch.optim.Optimizer):\n"
                                                       "    raise lockstep.JobFailed('strange')\n", 0, "")])

    def test_an_optimizer_of_ones_own_goes_on_in_a_worker_that_is_started_again(self):
        """With all that it keeps: the parameters would differ else, which the coordinator sees."""
        words = ["optimizer=own", "scheduler=lambda", "full_steps=1"]
        single = run(WORKER, *words)
        self.assertEqual(single.returncode, 0, single)
        want = [float(x) for x in re.search(r"^parameters (.*)$", single.stdout, re.MULTILINE).group(1).split()]
        run_dir = self.folder / "run"
        done = lockstep_run("-n", "3", "--restart-workers", "1", "--set", "job.min_workers=3", "--run-dir", run_dir, "--set", "liveness.timeout=60s", WORKER, *words, "die=1",
                            f"mark={self.folder / 'died'}")
        self.assertEqual(done.returncode, 0, done)
        self.assertTrue((self.folder / "died").exists())
        sums = re.findall(r"\| parameters (.*)$", done.stdout, re.MULTILINE)
        self.assertEqual((len(sums), len(set(sums))), (3, 1), done.stdout)  # the same bits
        self.assertNotIn("differ", done.stdout)
        if not any(line["requeued"] for line in self.rounds(run_dir)):
            for a, b in zip(map(float, sums[0].split()), want, strict=True):
                self.assertAlmostEqual(a, b, delta=1e-4)

    def test_a_schedule_goes_back_with_a_round_that_is_computed_again(self):
        """The rate of an update is that of its number, however the worker came there; one that lets each step follow from the one before
        goes on from where it was."""
        done = run(self.script("""
            import torch
            from torch.optim import lr_scheduler
            from lockstep._update import Schedule
            makers = {
                "exponential": lambda opt: lr_scheduler.ExponentialLR(opt, 0.9),
                "onecycle": lambda opt: lr_scheduler.OneCycleLR(opt, 0.1, total_steps=50),
                "chained": lambda opt: lr_scheduler.ChainedScheduler([lr_scheduler.ExponentialLR(opt, 0.9), lr_scheduler.ConstantLR(opt, 0.5)]),
            }
            def optimizer(lr):
                return torch.optim.Adam([{"params": [torch.nn.Parameter(torch.zeros(1))]}, {"params": [torch.nn.Parameter(torch.zeros(1))]}], lr=lr)
            def shown(opt):
                return [(float(group["lr"]), group["betas"]) for group in opt.param_groups]
            for name, make in makers.items():
                for lr in (0.1, torch.tensor(0.1)):
                    want, opt = [], optimizer(lr if isinstance(lr, float) else lr.clone())
                    scheduler = make(opt)
                    for _ in range(50):
                        want.append(shown(opt))
                        opt.step()
                        scheduler.step()
                    opt = optimizer(lr if isinstance(lr, float) else lr.clone())
                    schedule = Schedule(make(opt), opt, 10, False)
                    for update in (0, 1, 2, 1, 2, 3, 3.75, 9, 7, 8.5, 9, 8, 12, 12, 39):  # of rounds over part of their samples parts
                        schedule.advance(update)
                        assert shown(opt) == want[int(update)], (name, lr, update, shown(opt), want[int(update)])
                    if name == "onecycle":  # torch's own refuses to go on; a job may have more updates than it was told of
                        for update in (49, 50, 139, 48, 139):
                            schedule.advance(update)
                            assert shown(opt) == want[min(update, 49)], (update, shown(opt), want[49])
                        continue
                    try:
                        for update in range(40, 140):
                            schedule.advance(update)
                        schedule.advance(2)
                    except Exception as error:
                        assert "steps ahead of the job" in str(error), (name, error)
                    else:
                        assert False
            """))
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_schedule_stands_behind_whole_rounds_whatever_their_parts_add_up_to(self):
        """Sums of parts in binary are a little more or less than a whole number."""
        done = run(self.script("""
            import math
            from fractions import Fraction
            from lockstep import _update
            rounded = 0
            for batch in (1, 48, 1219, 2797):
                for whole in (0, 3, 100):
                    for counted in range(batch):
                        for samples in (1, batch - counted):
                            position = whole + counted / batch  # as the coordinator has it
                            want = math.ceil(whole + Fraction(counted + samples, batch))
                            found = _update.position_after(position, samples, batch)
                            assert found == want, (batch, whole, counted, samples, found, want)
                            rounded += math.ceil(position + samples / batch) != want
            assert rounded > 0, "the plain sum is as good"
            """))
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)

    def test_running_statistics_are_the_mean_of_all_workers(self):
        done = lockstep_run("-n", "4", HERE / "torch_norm.py", self.folder)
        self.assertEqual(done.returncode, 0, done)
        replayed = run(HERE / "torch_norm.py", self.folder, "replay")
        self.assertEqual(replayed.returncode, 0, replayed)
        print(replayed.stdout.strip())

    def test_norms_have_a_batch_though_work_moves_in_single_units(self):
        """BatchNorm1d of one sample is an error in torch, which would end one worker after the other."""
        script = self.script("""
            import os, torch, lockstep
            import torch.nn.functional as F
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            torch.manual_seed(3)
            x = torch.randn(1033, 4)
            loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=32, shuffle=True)
            job = lockstep.init(seed=3)
            model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
            model[1].num_batches_tracked.fill_(5 if os.environ["LOCKSTEP_WORKER"] == "0" else 0)  # who has loaded a model begins with its count
            opt = torch.optim.SGD(model.parameters(), lr=0.1)
            model, opt, loader = job.prepare(model, opt, loader, epochs=4)
            seen = set()
            for _ in range(4):
                for x, y in loader:
                    seen.add(len(x))
                    job.backward(F.cross_entropy(model(x), y))
                    opt.step()
            assert min(seen) > 1, seen
            print("tracked", int(model[1].num_batches_tracked), "sum", float(sum(v.double().sum() for v in model.state_dict().values())))
            """)
        run_dir = self.folder / "run"
        done = lockstep_run("-n", "3", "--policy", "flexrr", "--slowdown", "worker=2,factor=6", "--set", "emulate.unit_time=2ms",
                            "--run-dir", run_dir, script)
        self.assertEqual(done.returncode, 0, done)
        rounds = self.rounds(run_dir)
        self.assertTrue(any(line["moved"] for line in rounds))
        said = re.findall(r"\| tracked (\d+) sum (.*)$", done.stdout, re.MULTILINE)
        self.assertEqual((len(said), len(set(said))), (3, 1), done.stdout)
        self.assertEqual(int(said[0][0]), 5 + len(rounds))

    def test_a_scheduler_of_the_scripts_own_goes_by_what_was_counted(self):
        """Where rounds are closed over less there are more of them, and the rates last as many samples as without."""
        script = self.script(f"""
            import sys
            sys.path.insert(0, {str(HERE)!r})
            from torch_worker import *
            job = lockstep.init(seed=5)
            model = make_model()
            opt = OwnRule(model.parameters(), lr=0.05)
            sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 1 / (1 + 0.1 * step))
            loader = DataLoader(make_data(), batch_size=BATCH, shuffle=True)
            model, opt, loader, sched = job.prepare(model, opt, loader, sched, epochs=3)
            for _ in range(3):
                for x, y in loader:
                    print("rate", job.round, opt.param_groups[0]["lr"], flush=True)
                    opt.zero_grad()
                    loss_of(model, x, y).backward()
                    opt.step()
                    sched.step()
            """)
        run_dir = self.folder / "run"
        done = lockstep_run("-n", "3", "--policy", "backup", "--slowdown", "worker=2,factor=8", "--set", "emulate.unit_time=2ms",
                            "--run-dir", run_dir, script)
        self.assertEqual(done.returncode, 0, done)
        rounds = self.rounds(run_dir)
        harness.check_epochs(self, rounds, 500)
        self.assertGreater(len(rounds), 3 * 9)
        want, counted, epoch = {}, 0, 0
        for line in rounds:
            counted = counted if line["epoch"] == epoch else 0
            epoch = line["epoch"]
            want[line["round"]] = 0.05 / (1 + 0.1 * (9 * epoch + counted // 60))
            counted += line["samples"]
        said = re.findall(r"\| rate (\d+) (\S+)$", done.stdout, re.MULTILINE)
        self.assertGreaterEqual(len(said), 2 * len(rounds))
        for number, rate in said:
            self.assertAlmostEqual(float(rate), want[int(number)], places=9, msg=f"round {number}")

    def test_four_workers_one_of_them_slow_count_each_sample_once(self):
        single = run(WORKER)
        self.assertEqual(single.returncode, 0, single)
        want = [float(x) for x in re.search(r"^parameters (.*)$", single.stdout, re.MULTILINE).group(1).split()]
        for policy in ("full", "full+flexrr", "auto"):
            with self.subTest(policy):
                run_dir = self.folder / policy
                done = lockstep_run("-n", "4", "--policy", policy, "--slowdown", "worker=3,factor=5", "--set", "emulate.unit_time=1ms",
                                    "--run-dir", run_dir, WORKER)
                self.assertEqual(done.returncode, 0, done)
                rounds = self.rounds(run_dir)
                harness.check_epochs(self, rounds, 500)
                self.assertEqual(sum(line["samples"] for line in rounds), 1500)
                sums = re.findall(r"\| parameters (.*)$", done.stdout, re.MULTILINE)
                self.assertEqual(len(sums), 4)
                self.assertEqual(len(set(sums)), 1, sums)  # the same bits
                # Whose samples come in a later round (auto leaves them out; who is stuck for a while is not waited for) makes other updates.
                if not any(line["requeued"] for line in rounds):
                    for a, b in zip(map(float, sums[0].split()), want, strict=True):
                        self.assertAlmostEqual(a, b, delta=1e-4)

    def test_a_script_without_a_seed_begins_with_the_state_of_worker_0(self):
        """Also a worker that is started again while the first round is open."""
        done = lockstep_run("-n", "3", "--restart-workers", "1", "--set", "job.min_workers=3", "--run-dir", self.folder / "run",
                            "--set", "liveness.timeout=60s", self.script(SCRIPT.replace(
            "model = nn.Linear(1, 2)", """
import os, random
torch.seed()
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.frozen = nn.Linear(1, 2), nn.Linear(2, 2)
        self.frozen.requires_grad_(False)
        self.register_buffer("shift", torch.rand(2))
        self.register_buffer("hidden", torch.rand(1), persistent=False)
    def forward(self, x):
        return self.frozen(self.inner(x)) + self.shift + self.hidden
model = Model()
before = [p.clone() for p in model.parameters()]
""").replace("model.parameters(), lr", "model.inner.parameters(), lr") + PREPARE + """
mark = os.path.join(os.path.dirname(__file__), "died")
if job.rank == 2 and not os.path.exists(mark):
    next(iter(loader))
    assert job.round == 0
    open(mark, "w").close()
    os.kill(os.getpid(), 9)
""" + LOOP + """
print("kept" if all(torch.equal(p, q) for p, q in zip(before[2:], list(model.parameters())[2:])) else "taken", flush=True)
print("state", *(x for t in [*job.state_dict().values(), model.hidden] for x in t.flatten().tolist()), flush=True)
"""))
        self.assertEqual(done.returncode, 0, done)
        self.assertTrue((self.folder / "died").exists())
        states = re.findall(r"\| state (.*)$", done.stdout, re.MULTILINE)
        self.assertEqual((len(states), len(set(states))), (3, 1), done.stdout)
        self.assertEqual(sorted(re.findall(r"\| (kept|taken)$", done.stdout, re.MULTILINE)), ["kept", "taken", "taken"], done.stdout)

    def test_all_workers_together_evaluate(self):
        run_dir = self.folder / "run"
        done = lockstep_run("-n", "2", "--run-dir", run_dir, self.script(SCRIPT + """
calls = []
def judge(model, batch):
    x, y = batch
    assert not model.training and not torch.is_grad_enabled()
    calls.append(len(x))
    out = model(x)
    return F.cross_entropy(out, y, reduction="sum"), (out.argmax(1) == y).sum()
held = TensorDataset(torch.linspace(-1, 1, 50).reshape(50, 1), torch.arange(50) % 2)
model.train()
job.evaluate(judge, DataLoader(held, batch_size=8))
""" + PREPARE + LOOP + """
assert model.training
print("calls", sum(calls), flush=True)
model.eval()
with torch.no_grad():
    loss, right = judge(model, held.tensors)
print("whole", (loss / 50).item(), right.item() / 50, flush=True)
"""))
        self.assertEqual(done.returncode, 0, done)
        records = [json.loads(line) for line in (run_dir / "evaluations.jsonl").read_text().splitlines()]
        self.assertEqual([record["samples"] for record in records], [50] * len(records))
        self.assertEqual(records[-1]["round"], 7)
        for loss, accuracy in re.findall(r"\| whole (\S+) (\S+)$", done.stdout, re.MULTILINE):
            self.assertAlmostEqual(records[-1]["loss"], float(loss), delta=1e-5)
            self.assertAlmostEqual(records[-1]["accuracy"], float(accuracy))
        counts = [int(count) for count in re.findall(r"\| calls (\d+)$", done.stdout, re.MULTILINE)]
        self.assertEqual(len(counts), 2)
        self.assertGreaterEqual(sum(counts), 50 * len(records))  # more where one was left for the last one

    def test_what_was_kept_of_the_model_outlives_the_job_and_then_its_memory_goes(self):
        done = run(self.script(SCRIPT + """
import gc
def used():
    gc.collect()
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmSize"))
model = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1 << 22), nn.Linear(1 << 22, 2))  # 64 MiB
opt = torch.optim.SGD(model.parameters(), lr=1e-7)
gradients, plain = [], []
""" + PREPARE + LOOP.replace("opt.step()", """opt.step()
        gradients.append(model[0].weight.grad)
        view = job._session.floats(job._run.parameters)""") + """
    kept = model.state_dict() if epoch == 0 else kept
size = used()
for name, tensor in model.state_dict().items():
    assert torch.equal(kept[name], tensor) and kept[name].data_ptr() != tensor.data_ptr(), name
assert all(gradient.shape == (2, 1) and gradient.isfinite().all() for gradient in gradients)
assert view[0] == kept["0.weight"][0, 0].item()
del kept, gradients, view, tensor
print(size - used() > 3 * 65536)
"""))
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "True\n", ""))

    def test_what_a_dataset_yields_is_looked_into(self):
        done = run(self.script("""
            import array, dataclasses, torch
            from collections import UserDict
            from lockstep._model import digest_inputs
            @dataclasses.dataclass
            class Sample:
                x: object
            alike = [lambda v: torch.tensor([v]), lambda v: array.array("i", [v]), lambda v: {"x": v}, lambda v: UserDict(x=v), lambda v: [(v,)],
                     Sample, str]
            try:
                import numpy
                alike += [lambda v: numpy.array([[v]]), numpy.int64, lambda v: numpy.array([str(v), None], dtype=object)]
            except ImportError:
                pass
            try:
                from PIL import Image
                alike.append(lambda v: Image.new("L", (2, 2), v))
            except ImportError:
                pass
            for make in alike:
                one, again, other = (list(digest_inputs([make(v)])) for v in (1, 1, 2))
                assert one == again and one != other, (one, again, other)
            """))
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)

    def test_a_worker_that_raises_leaves_and_the_others_do_its_work(self):
        run_dir = self.folder / "run"
        done = lockstep_run("-n", "3", "--run-dir", run_dir, WORKER, "raise=1")
        self.assertEqual(done.returncode, 0, done)
        harness.check_epochs(self, self.rounds(run_dir), 500)
        self.assertEqual(done.stdout.count("Traceback"), 1)
        self.assertEqual(done.stdout.count("ValueError: something of the script's own"), 2)  # the traceback's, and the coordinator's
        self.assertIn("worker 1 ended with status 1", done.stdout)

    def test_a_validation_may_take_longer_than_the_time_after_which_workers_are_lost(self):
        """Between two epochs by itself, within one where the script says so."""
        for what in ("if job.rank == 1 and not batches and not epoch: validate()", """
                     if job.rank == 1 and batches == 2 and not epoch:
                         with job.away("validation"):
                             validate()
                     """):
            with self.subTest(what):
                run_dir = self.folder / f"run{len(what)}"
                within = "away" in what
                done = lockstep_run("-n", "2", "--run-dir", run_dir, "--set", "liveness.timeout=5s", self.script(textwrap.dedent(SCRIPT) + PREPARE + textwrap.dedent("""
                    import threading
                    def validate():
                        before = [p.tolist() for p in model.parameters()]
                        threading.Event().wait(12)  # so long does it take
                        assert before == [p.tolist() for p in model.parameters()]
                    for epoch in range(2):
                        batches = 0
                        for x, y in loader:
                            F.cross_entropy(model(x), y).backward()
                            opt.step()
                            batches += 1
                            WITHIN
                        batches = 0
                        BETWEEN
                    """).replace("WITHIN", textwrap.indent(textwrap.dedent(what).strip(), 8 * " ").strip() if within else "pass")
                     .replace("BETWEEN", "pass" if within else what)))
                self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
                self.assertNotIn("is out", done.stdout)
                harness.check_epochs(self, self.rounds(run_dir), 64)
                self.assertEqual({len(line["contributors"]) for line in self.rounds(run_dir)}, {2})

    def test_absences_within_one_another(self):
        """The outer one goes on with what is left of its time, also where the inner one was refused; after the job they are nothing."""
        done = run(self.script(SCRIPT + PREPARE + textwrap.dedent("""
            from lockstep import _session
            said = []
            for name in ("away", "back"):
                def told(session, *words, name=name, of=getattr(_session.Session, name)):
                    of(session, *words)
                    said.append((name, *words))
                setattr(_session.Session, name, told)
            for epoch in range(2):
                for x, y in loader:
                    loss = F.cross_entropy(model(x), y)
                    if not said:
                        with job.away("outer", at_most=100):
                            with job.away("inner", at_most=5):
                                pass
                            try:
                                with job.away("never", at_most=0):
                                    assert False
                            except lockstep.UsageError as error:
                                print(error, flush=True)
                        print(*said, sep="\\n", flush=True)
                    loss.backward()
                    opt.step()
            with job.away("after it"):
                pass
            print(said[-1], flush=True)
            """)))
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        self.assertIn("an absence of 0 s: it lasts more than 0 and at most 86400", done.stdout)
        words = re.findall(r"^\('(\w+)'(?:, ([\d.]+), '([\w ]+)')?", done.stdout, re.MULTILINE)
        self.assertEqual([(what, why) for what, _, why in words],
                         [("away", "outer"), ("back", ""), ("away", "inner"), ("back", ""), ("away", "outer"), ("back", ""),
                          ("away", "outer"), ("back", ""), ("back", "")], done.stdout)
        left = [float(most) for what, most, why in words if why == "outer"]
        self.assertEqual(left, sorted(left, reverse=True))
        self.assertLess(left[1], 100)
        self.assertGreater(left[-1], 40)

    def test_a_worker_that_comes_late_passes_over_the_epochs_that_are_over(self):
        run_dir = self.folder / "run"
        done = lockstep_run("-n", "2", "--run-dir", run_dir, "--restart-workers", "1", "--set", "job.min_workers=2",
                            "--set", "liveness.timeout=60s", self.script(SCRIPT + textwrap.dedent("""
                            model, opt, loader = job.prepare(model, opt, loader, epochs=60)
                            import os
                            mark = os.path.join(os.path.dirname(__file__), "died")
                            passes = []
                            for epoch in range(60):
                                for x, y in loader:
                                    assert job.epoch == epoch
                                    passes.append(epoch)
                                    if job.rank == 1 and epoch == 2 and not os.path.exists(mark):
                                        open(mark, "w").close()
                                        os.kill(os.getpid(), 9)
                                    job.backward(F.cross_entropy(model(x), y))
                                    opt.step()
                            print("began in epoch", passes[0] if passes else None, flush=True)
                            """)))
        self.assertEqual(done.returncode, 0, done)
        harness.check_epochs(self, self.rounds(run_dir), 64)
        began = re.findall(r"worker 1 +\| began in epoch (\d+)", done.stdout)
        self.assertEqual(len(began), 1, done.stdout)
        self.assertIn(int(began[0]), (2, 3))  # the job has waited for it

    def test_other_models_and_settings_are_refused_with_one_line(self):
        for change, message in (
                ("model = nn.Linear(1, 3); opt = torch.optim.SGD(model.parameters(), lr=0.1)", "has 6 parameters"),
                ("opt = torch.optim.SGD(model.parameters(), lr=0.2)", 'its program says "lr = 0.'),
                ("opt = torch.optim.SGD([{'params': model.weight}, {'params': model.bias, 'lr': 0.2}], lr=0.1)", "2 parameter groups (lr x 1 | lr x 2) "),
                ("nn.init.zeros_(model.weight); job._entry.channel = None", "comes with parameters of its own"),
                ("job._begin = lambda *given: (nn.init.zeros_(model.weight), type(job)._begin(job, *given))", "begins with other parameters than"),
                ("model.register_buffer('scale', torch.ones(2)); job._entry.channel = None", "frozen parameters and buffers"),
                ("loader = DataLoader(TensorDataset(data.tensors[0] + 1, data.tensors[1]), batch_size=16, shuffle=True)",
                 "have the digest")):
            with self.subTest(change):
                done = lockstep_run("-n", "3", "--run-dir", self.folder / f"run{len(change)}",
                                    self.script(textwrap.dedent(SCRIPT) + f"if job._entry.wanted == 1:\n    {change}\n" + PREPARE + LOOP))
                self.assertIn(message, done.stdout)
                if "program" not in message:  # where the first one that comes is right
                    self.assertIn("worker 1 ended with status 2", done.stdout)
                self.assertNotEqual(done.returncode, 0, done)
                self.assertNotIn("Traceback", done.stdout)


class LaunchedTest(TorchTest):
    SCRIPT = (SCRIPT.replace("model = nn", "torch.seed()\nmodel = nn") + PREPARE + LOOP
              # At once: the workers of a launcher write to one pipe.
              + 'import os\nvalues = [x for p in model.parameters() for x in p.flatten().tolist()]\n'
              + 'os.write(1, f"rank {job.rank} of {job.size}: {values}\\n".encode())\n')

    def free_port(self):
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            return str(one.getsockname()[1])

    def launch(self, *command, script=None, **more):
        environment = package.environment(**more)
        command = [*command, pathlib.Path(PYTHON), self.script(self.SCRIPT if script is None else script)]
        return subprocess.run([str(word) for word in command], cwd=self.folder, capture_output=True, text=True, timeout=package.TIMEOUT_S, check=False,
                              env=environment)

    def assert_three_alike(self, done):
        self.assertEqual(done.returncode, 0, done)
        lines = dict(re.findall(r"rank (\d) of 3: (.*)$", done.stdout, re.MULTILINE))
        self.assertEqual(sorted(lines), ["0", "1", "2"], done)
        self.assertEqual(len(set(lines.values())), 1, done.stdout)

    def test_torchrun_starts_a_job(self):
        for how in (["--standalone"], ["--master-addr", "127.0.0.1", "--master-port", self.free_port()]):
            with self.subTest(how):
                done = run("-m", "torch.distributed.run", *how, "--nproc-per-node", "3", self.script(self.SCRIPT))
                self.assert_three_alike(done)

    def test_one_torchrun_for_each_worker_starts_one_that_dies_again(self):
        """And no other one: the coordinator is apart. With min_workers the job waits for it."""
        mark = self.folder / "mark"
        script = self.script(SCRIPT.replace("run_dir=None", "settings={'job.min_workers': 3, 'liveness.timeout': '60s'}") + PREPARE + f"""
import os, pathlib, signal
mark = pathlib.Path({str(mark)!r})
for epoch in range(2):
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        if job.rank == 1 and job.round == 3 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        opt.step()
print("parameters", *(p.double().sum().item() for p in model.parameters()), "restarts", os.environ["TORCHELASTIC_RESTART_COUNT"])
""")
        with harness.Job(3, coordinator_args=["--config-from-workers"]) as job:
            job.config.write_text("")
            job.start_coordinator()
            workers = [package.start("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "--max-restarts", "3", script,
                                     python=PYTHON, LOCKSTEP_COORDINATOR=job.address) for _ in range(3)]
            try:
                ended = [worker.communicate(timeout=package.TIMEOUT_S) for worker in workers]
            finally:
                for worker in workers:
                    worker.terminate()  # ends what it has started, too
                    worker.wait()
            self.assertEqual([worker.returncode for worker in workers], [0, 0, 0], ended)
            self.assertEqual(job.wait(), 0)
            self.assertTrue(mark.exists())
            harness.check_epochs(self, job.rounds(), 64)
        said = re.findall(r"parameters (.*) restarts (\d)$", "".join(out for out, _ in ended), re.MULTILINE)
        self.assertEqual((len(said), len({sums for sums, _ in said}), sorted(count for _, count in said)), (3, 1, ["0", "0", "1"]), ended)

    @unittest.skipUnless("Open MPI" in (subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False).stdout
                                        if shutil.which("mpirun") else ""), "there is no mpirun of Open MPI")
    def test_mpirun_starts_a_job(self):
        mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3"]
        self.assert_three_alike(self.launch(*mpirun, MASTER_ADDR="127.0.0.1", MASTER_PORT=self.free_port()))
        # On one host it need not be said where they meet.
        self.assert_three_alike(self.launch(*mpirun))

    def test_what_launchers_tell_of_the_place(self):
        script = self.script("import json, sys\nfrom lockstep._errors import UsageError\nfrom lockstep._launched import launched\n"
                             "for environment in json.loads(sys.argv[1]):\n"
                             "    try:\n"
                             "        at = launched(environment)\n"
                             "        print(at.launcher, at.worker, at.workers, at.host, at.port, at.serves, at.job)\n"
                             "    except UsageError as error:\n"
                             "        print(error)\n")
        step = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "4"}
        slurm = [{**step, "SLURM_PROCID": worker, "SLURM_STEP_NUM_NODES": nodes, "SLURM_STEP_NODELIST": hosts}
                 for nodes, hosts in (("1", "a"), ("2", "a1,b2"), ("5", "gpu-node[003-007]"), ("4", "r[1-2]n[01-02],x")) for worker in "03"]
        of_mpirun = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_NAMESPACE": "9"}
        more = [{**slurm[2], "MASTER_ADDR": "c", "MASTER_PORT": "5"}, {**of_mpirun, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"},
                {**of_mpirun, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}]
        done = run(script, json.dumps([*slurm, *more]))
        lines = done.stdout.splitlines()
        self.assertEqual(len(lines), len(slurm) + len(more), done)
        port = lines[0].split()[4]
        self.assertIn(int(port), range(61000, 65000))
        hosts = ["127.0.0.1", "a1", "gpu-node003", "r1n01"]
        self.assertEqual(lines[:8], [f"srun {worker} 4 {host} {port} {worker == 0} 77/3/" for host in hosts for worker in (0, 3)])
        self.assertEqual(lines[8], "srun 0 4 c 5 True 77/3/")
        self.assertRegex(lines[9], r"^mpirun 1 4 127\.0\.0\.1 6[1-4]\d\d\d False 9$")
        self.assertIn("mpirun has started 4 workers: say with MASTER_ADDR and MASTER_PORT where they meet", lines[10])

    def test_on_several_hosts_the_coordinator_is_where_others_reach_it(self):
        """By what the host of worker 0 knows itself as, on Debian 127.0.1.1."""
        script = self.script("""
            import json, socket, sys
            from lockstep import _launched
            from lockstep._errors import UsageError

            def resolved(host, *_, **__):
                if host not in told["names"]:
                    raise socket.gaierror(socket.EAI_NONAME, "unknown")
                return [(socket.AF_INET6 if ":" in address else socket.AF_INET, 0, 0, "", (address, 0)) for address in told["names"][host]]

            class Socket:
                def __init__(self, *_):
                    pass
                def __enter__(self):
                    return self
                def __exit__(self, *_):
                    pass
                def connect(self, to):
                    self.own = told["ways"].get(to[0])
                    if self.own is None:
                        raise OSError("no way there")
                def getsockname(self):
                    return self.own, 1

            socket.getaddrinfo, socket.socket = resolved, Socket
            socket.if_nameindex = lambda: [(1, "lo"), *[(2, "eth0")] * told["network"]]
            for told in json.loads(sys.argv[1]):
                try:
                    print(_launched.listen_host(_launched.launched(told["environment"])))
                except UsageError as error:
                    print(error)
            """)
        slurm = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0", "SLURM_STEP_NUM_NODES": "2",
                 "SLURM_STEP_NODELIST": "n[1-2]"}
        agents = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "5"}
        itself = {"127.0.1.1": ["127.0.1.1"], "n1": ["127.0.1.1"], "n2": ["10.0.0.2"], "192.0.2.1": ["192.0.2.1"], "localhost": ["127.0.0.1"]}
        cases = (
            # Known by an address that others reach, alone or beside one that they do not.
            (slurm, {"n1": ["10.0.0.1"]}, {}, "n1"),
            (slurm, {"n1": ["127.0.1.1", "10.0.0.1"]}, {}, "10.0.0.1"),
            (slurm, {"n1": ["::1", "fe80::1", "2001:db8::5"]}, {}, "2001:db8::5"),
            # Else that from which the way to the others begins.
            (slurm, itself, {"10.0.0.2": "10.0.0.1", "192.0.2.1": "172.16.0.1"}, "10.0.0.1"),
            (agents, itself, {"192.0.2.1": "172.16.0.1"}, "172.16.0.1"),
            (agents, itself, {}, "worker 0's host knows its name n1 as 127.0.1.1, where other hosts do not reach it, and no address of its own: "
                                 "say with MASTER_ADDR the address by which they do"),
            # All on one host, as is said or as there is no other.
            ({**slurm, "SLURM_STEP_NUM_NODES": "1"}, itself, {}, "127.0.0.1"),
            ({**agents, "LOCAL_WORLD_SIZE": "4"}, itself, {"192.0.2.1": "172.16.0.1"}, "n1"),
            ({**agents, "MASTER_ADDR": "127.0.1.1"}, itself, {"192.0.2.1": "172.16.0.1"}, "127.0.1.1"),
            ({**agents, "MASTER_ADDR": "localhost"}, itself, {"192.0.2.1": "172.16.0.1"}, "localhost"),
            ({**agents, "MASTER_ADDR": "unknown"}, itself, {"192.0.2.1": "172.16.0.1"}, "unknown"),
            ({name: value for name, value in agents.items() if name != "LOCAL_WORLD_SIZE"}, itself, {}, "n1"),
        )
        told = [{"environment": environment, "names": names, "ways": ways, "network": True} for environment, names, ways, _ in cases]
        done = run(script, json.dumps([*told, {**told[5], "network": False}]))
        self.assertEqual(done.stdout.splitlines(), [*(expected for *_, expected in cases), "n1"], done)

    def srun(self, script, environments=({}, {}, {})):
        """What srun sets, without it."""
        port = self.free_port()
        path = self.script(script)
        workers = [package.start(path, python=PYTHON, SLURM_STEP_ID="0", SLURM_PROCID=str(i), SLURM_STEP_NUM_TASKS="3",
                                 MASTER_ADDR="127.0.0.1", MASTER_PORT=port, **more) for i, more in enumerate(environments)]
        try:
            ended = [worker.communicate(timeout=package.TIMEOUT_S) for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        return [worker.returncode for worker in workers], ended

    def test_what_srun_sets_starts_a_job(self):
        statuses, ended = self.srun(self.SCRIPT)
        self.assertEqual(statuses, [0, 0, 0], ended)
        self.assert_three_alike(subprocess.CompletedProcess([], 0, "".join(out for out, _ in ended)))

    def test_one_job_after_the_other_with_a_secret_that_all_have(self):
        """The second one begins with its own model and coordinator, and the store has nothing to join with."""
        secret = self.folder / "secret"
        secret.write_bytes(os.urandom(32))
        look = ('import json\nmeeting = job._entry.channel\nassert json.loads(meeting.get("job"))[1] is None\n'
                'begun = [p.tolist() for p in model.parameters()]\n')
        first = SCRIPT.replace("model = nn", "torch.seed()\nmodel = nn") + PREPARE + look + LOOP
        second = self.SCRIPT.replace(LOOP, "assert meeting is not job._entry.channel\nif job._entry.wanted == 0:\n    assert begun != [p.tolist() for p in model.parameters()]\n" + LOOP)
        statuses, ended = self.srun(first + second, [{"LOCKSTEP_SECRET_FILE": str(secret)}] * 3)
        self.assertEqual(statuses, [0, 0, 0], ended)
        self.assert_three_alike(subprocess.CompletedProcess([], 0, "".join(out for out, _ in ended)))
        statuses, ended = self.srun(self.SCRIPT, [{"LOCKSTEP_SECRET_FILE": str(secret)}, {}, {"LOCKSTEP_SECRET_FILE": str(secret)}])
        self.assertEqual(statuses[1], 2, ended)
        self.assertIn("lockstep: LOCKSTEP_SECRET_FILE: worker 0 has one and this worker has none", ended[1][1])


class RefusedTest(TorchTest):
    def test_what_nobody_catches_is_one_line_and_its_status(self):
        self.assert_one_line(run(self.script(SCRIPT + "opt = torch.optim.LBFGS(model.parameters())\n" + PREPARE)), 2,
                             "LBFGS wants a closure, that computes the loss again, and a job computes it once: take one that wants none, as torch.optim.AdamW(")

    def test_what_is_not_supported_is_one_line_and_status_2(self):
        self.assert_outcomes([(SCRIPT + change + "\n" + PREPARE, 2, message) for change, message in (
                ("opt = torch.optim.SparseAdam(list(model.parameters()))", "SparseAdam is for sparse gradients, and those of a job are dense"),
                ("opt = torch.optim.Adamax(model.parameters(), differentiable=True)", "Adamax(differentiable=True) is not supported"),
                ("class Odd(torch.optim.SGD):\n    count = 0\n    def step(self, closure=None):\n        self.count += 1\n"
                 "opt = Odd(model.parameters(), lr=0.1)", "Odd keeps count outside of its state, and not as a number of a parameter group"),
                ("class Odd(torch.optim.SGD):\n    def step(self, closure=None):\n        self.__dict__.setdefault('_all', []).append(1)\n"
                 "opt = Odd(model.parameters(), lr=0.1)", "Odd keeps _all outside of its state"),
                ("class Odd(torch.optim.SGD):\n    _norm = 0.0\n    def step(self, closure=None):\n        self._norm += float(model.weight.grad.norm())\n"
                 "opt = Odd(model.parameters(), lr=0.1)", "Odd keeps _norm outside of its state"),
                ("class Odd(torch.optim.SGD):\n    def step(self, closure=None):\n        self.param_groups[0]['mean'].add_(1)\n"
                 "opt = Odd([{'params': list(model.parameters()), 'mean': torch.zeros(1)}], lr=0.1)", "Odd keeps mean of group 0 outside of its state"),
                ("class Odd(torch.optim.SGD):\n    def step(self, closure=None):\n        s = self.state[model.weight]\n"
                 "        s.update({'second': torch.zeros(1)} if s else {'first': torch.zeros(1)})\n"
                 "opt = Odd(model.parameters(), lr=0.1)", "Odd keeps something else after its second step than after its first"),
                ("model = nn.Sequential(nn.BatchNorm1d(1), model)\n"
                 "opt = torch.optim.Adagrad(model.parameters())\nloader = DataLoader(data, batch_size=9, shuffle=True)",
                 "the last batch of an epoch has one sample, and BatchNorm no statistics of it"),
                ("model = nn.Sequential(nn.BatchNorm1d(1), model)\nopt = torch.optim.Adagrad(model.parameters())\njob._settings['job.units'] = '8'",
                 "job.units = 8 of job.global_batch = 16 samples may have only one, and BatchNorm no statistics of it"),
                ("class Odd(torch.optim.SGD):\n    def step(self, closure=None):\n        self.state[model.weight]['all'] = [1, 2]\n"
                 "opt = Odd(model.parameters(), lr=0.1)", "Odd keeps all as list: not supported, only tensors and numbers"),
                ("class Odd(torch.optim.SGD):\n    def step(self, closure=None):\n        self.state['all']['n'] = 1\n"
                 "opt = Odd(model.parameters(), lr=0.1)", "Odd keeps a state that is of none of its parameters"),
                ("opt = torch.optim.NAdam(model.parameters()); job._settings['optimizer.name'] = 'sgd'",
                 "the job's optimizer is sgd, as its config says, and that of this script is none of the session's"),
                ("opt = torch.optim.NAdam(model.parameters()); job._settings['policy.name'] = 'local'",
                 "optimizer.name = custom and policy.name = local"),
                ("opt = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)", "parameters that the model does not have"),
                ("model = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1), nn.Linear(1, 2))\nmodel[1].weight.data = model[0].weight.data.t()\n"
                 "opt = torch.optim.SGD(model.parameters(), lr=0.1)", "0.weight and 1.weight share memory and are two parameters"),
                ("model = nn.Sequential(nn.SyncBatchNorm(1), model)", "0 is SyncBatchNorm: use BatchNorm"),
                ("model = nn.Sequential(nn.BatchNorm1d(1), model); opt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
                 "job._settings['exchange.dtype'] = 'bf16'", "exchange.dtype = bf16 would round running statistics"),
                ("model = nn.Sequential(nn.BatchNorm1d(1), model); opt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
                 "job._settings['exchange.compression'] = 'topk'", "exchange.compression = topk would leave out running statistics"),
                ("model = model.double()", "weight is float64: parameters are float32"),
                ("model = nn.Linear(1, 2, dtype=torch.complex64); opt = torch.optim.SGD(model.parameters(), lr=0.1)", "weight is complex64"),
                ("model = model.to('meta'); opt = torch.optim.SGD(model.parameters(), lr=0.1)", "weight is on meta"),
                ("class S(IterableDataset):\n    def __iter__(self): return iter([])\nloader = DataLoader(S(), batch_size=4)", "IterableDataset"),
                ("loader = [1, 2]", "list is no torch.utils.data.DataLoader"),
                ("sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt)\njob.prepare(model, opt, loader, sched, epochs=2)",
                 "the scheduler ReduceLROnPlateau follows a metric"),
                ("sched = torch.optim.lr_scheduler.LambdaLR(torch.optim.SGD(model.parameters(), lr=1), lambda n: 1)\n"
                 "job.prepare(model, opt, loader, sched, epochs=2)", "the scheduler is of another optimizer"),
                ("job.evaluate(None, [1])", "list is no torch.utils.data.DataLoader"),
                ("job.evaluate(None, DataLoader(data, batch_size=4, sampler=torch.utils.data.SubsetRandomSampler(range(9))))",
                 "the DataLoader of job.evaluate has the sampler SubsetRandomSampler, and all of its dataset is evaluated, each sample once: give a "
                 "torch.utils.data.Subset of what is to be"),
                ("job.evaluate(None, DataLoader(data, batch_size=4, sampler=torch.utils.data.RandomSampler(data, num_samples=9)))", "has the sampler RandomSampler"),
                ("job.evaluate(None, DataLoader(data, batch_size=4, sampler=torch.utils.data.RandomSampler(data, replacement=True)))", "has the sampler RandomSampler"),
                ("job.evaluate(None, DataLoader(data, batch_size=4, sampler=torch.utils.data.SequentialSampler(range(9))))", "has the sampler SequentialSampler"),
                ("job.evaluate(None, DataLoader(data, batch_size=4, sampler=torch.utils.data.DistributedSampler(data, 2, 0)))", "has the sampler DistributedSampler"),
                ("class Own(torch.utils.data.SequentialSampler): pass\njob.evaluate(None, DataLoader(data, batch_size=4, sampler=Own(data)))", "has the sampler Own"),
                ("job.evaluate(None, DataLoader(data, batch_sampler=[[0, 1], [2, 3]]))", "has the sampler list"),
                ("job.evaluate(None, DataLoader(data, batch_size=None))", "job.evaluate wants a DataLoader with a map-style dataset and a batch_size"),
                ("job.evaluate(None, loader, every_epochs=-1)", "every_epochs: -1 is not"),
                ("job.prepare(model, opt, loader, epochs=0)", "epochs: 0 is not a whole number from 1 on"),
                ("job.rank", "there is no job yet"),
                ("lockstep.init(settings={'policy': 'auto'})", "'policy' is not section.key"),
                ("job = lockstep.init(settings={'policy.name': 'autoo'})", "autoo"),
                ("lockstep.init(settings={'compute.precision': 'bf16'})", "settings: compute.precision is for lockstep-worker: of a PyTorch job model, data"),
                ("lockstep.init(settings={'model.names': 'cnn'})\nlockstep.init(settings={'model.dropout': 0.5})", "settings: model.dropout is for lockstep-worker"),
                ("job = lockstep.init(coordinator='nowhere')", 'coordinator "nowhere": expected HOST:PORT'))])

    def test_settings_that_change_nothing_are_said(self):
        """All that the configuration has for lockstep-worker's own models; where the job's config says them, one line each."""
        documented = {}
        for line in (package.ROOT / "docs" / "configuration.md").read_text().splitlines():
            if (found := re.match(r"\| `((?:model|data|compute)\.\w+)` \| (?:`([^`]*)`|\(empty\)) \|", line)) and found[1] != "data.digest":
                documented[found[1]] = found[2] or ""
        self.assertGreater(len(documented), 10)
        done = run("-c", f"from lockstep import _settings\nassert _settings.OF_LOCKSTEP_WORKER == {documented!r}, _settings.OF_LOCKSTEP_WORKER\n")
        self.assertEqual(done.returncode, 0, done)
        done = lockstep_run("-n", "2", "--set", "model.dropout=0.5", self.script(SCRIPT + PREPARE + LOOP))
        self.assertEqual((done.returncode, done.stdout.count("changes nothing here")), (0, 1), done)
        self.assertIn("lockstep: model.dropout is 0.5, as the job's config says, which is for lockstep-worker and changes nothing here", done.stdout)

    def test_what_a_loop_may_not_do_is_one_line(self):
        inner = "        loss = F.cross_entropy(model(x), y)\n"
        cases = [(SCRIPT + "old = opt\n" + PREPARE + "for epoch in range(2):\n    for x, y in loader:\n" + body, status, message)
                 for body, status, message in (
                ("        pass\n", 2, "neither loss.backward() nor job.backward(loss) was called for this batch"),
                (inner + "        torch.autograd.backward(loss)\n        opt.step()\n", 2, "opt.step() was called without a backward of the loss"),
                (inner + "        job.backward(loss)\n", 2, "opt.step() was not called for this batch: to accumulate"),
                (inner + "        job.backward(loss, reduction='max')\n", 2, "neither 'mean' nor 'sum'"),
                ("        job.backward(F.cross_entropy(model(x), y, reduction='none'))\n", 2, "the loss has"),
                (inner + "        job.backward(loss)\n        job.backward(loss)\n", 2, "called twice for one batch"),
                (inner + "        job.backward(loss)\n        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)\n        opt.step()\n", 2,
                 "gradients were changed behind job.backward"),
                (inner + "        job.backward(loss)\n        opt.step()\n        model.zero_grad(set_to_none=False)\n", 2,
                 "gradients were changed behind job.backward"),
                (inner + "        job.backward(loss)\n        opt.step()\n        F.cross_entropy(model(x), y).backward()\n", 2,
                 "gradients were changed behind job.backward"),
                (inner + "        job.backward(loss)\n        opt.step()\n        with torch.no_grad():\n            model.weight.mul_(2)\n", 2,
                 "parameters were changed by the script"),
                (inner + "        job.backward(loss)\n        old.step()\n", 2, "this optimizer was given to job.prepare"),
                (inner + "        job.backward(loss * float('nan'))\n        opt.step()\n", 1, "is not finite (job.on_nan = stop)"),
                (inner + "        torch.autograd.backward(F.cross_entropy(model(x), y))\n        job.backward(loss)\n", 2, "gradients before job.backward"),
                (inner + "        F.cross_entropy(model(x), y).backward()\n        job.backward(loss)\n", 2, "called twice for one batch"),
                (inner + "        loss.register_hook(lambda g: 1 / 0)\n        try:\n            job.backward(loss)\n"
                 "        except ZeroDivisionError:\n            job.backward(F.cross_entropy(model(x), y))\n", 2, "cannot be tried again"),
                ("        break\n    break\nfor x, y in loader:\n    pass\n", 2, "was left before the step"))]
        cases.append((SCRIPT.replace("run_dir=None", "run_dir=None, settings={'job.epochs': 9}") + PREPARE, 2, "would end before the job"))
        larger = SCRIPT.replace("run_dir=None", "settings={'job.global_batch': 32}")
        cases.append((larger + PREPARE.replace("epochs=2", "epochs=2, updates=4") + LOOP + "assert job.metrics.round == 3\n", 0, ""))
        cases.append((larger + PREPARE.replace("epochs=2", "epochs=2, updates=5") + LOOP, 2,
                      "the job has 5 rounds of 32 samples, as its config says, and the 2 epochs that job.prepare was told have 4"))
        cases.append((SCRIPT + PREPARE + LOOP + "for x in loader: pass\n", 2, "this is one more"))
        cases.append((SCRIPT + PREPARE + PREPARE, 2, "job.prepare was called twice"))
        # Whoever catches what its update raises is out of the job all the same, at once: others must not wait for it.
        cases.append((SCRIPT + """
class Odd(torch.optim.Adagrad):
    def step(self, closure=None):
        super().step()
        if armed:
            raise KeyboardInterrupt
armed = False
opt = Odd(model.parameters())
""" + PREPARE + """
armed = True
try:
    for x, y in loader:
        job.backward(F.cross_entropy(model(x), y))
        opt.step()
except KeyboardInterrupt:
    for x, y in loader:
        pass
""", 2, "an exception has ended an update of the job in the middle, so this worker has left it"))
        cases.append((SCRIPT + """
class Odd(torch.optim.Adagrad):
    def step(self, closure=None):
        super().step()
        self.param_groups[0]["lr"] *= 0.9
opt = Odd(model.parameters())
""" + PREPARE + LOOP, 2, "Odd changes its own rate, which is not supported"))
        cases.append((SCRIPT + PREPARE + "job.evaluate(None, loader._loader)\n", 2, "job.evaluate comes before job.prepare"))
        cases.append((SCRIPT + "job.evaluate(lambda model, batch: (0, 17), loader)\n" + PREPARE + LOOP, 2, "17 of 16 samples are right"))
        counting = SCRIPT + """
class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.teacher = nn.Linear(1, 2), nn.Linear(1, 2).requires_grad_(False)
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("table", torch.zeros(3), persistent=False)
    def forward(self, x):
        {}
        return self.inner(x)
model = Counting()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
""" + PREPARE + LOOP
        buffer = "the buffer seen changes in training"
        cases += [(counting.format(what), 2, buffer) for what in (
            "self.seen += len(x)", "self.seen.data.add_(len(x))", "self.seen = self.seen + len(x)", "self.seen.data = self.seen + len(x)",
            "self.seen = self.seen[1:]")]
        average = "for old, new in zip(self.teacher.parameters(), self.inner.parameters()): "
        teacher = "teacher.weight changes in training and is none of the optimizer's parameters"
        cases += [(counting.format(average + what), 2, teacher) for what in (
            "old.data.mul_(0.9).add_(new.data, alpha=0.1)", "old.data = 0.9 * old.data + 0.1 * new.data", "old.mul_(0.9)")]
        # The same values, and what is made anew of the batch and is no part of the model's state.
        cases += [(counting.format(what), 0, "") for what in (
            "self.seen = self.seen.clone()", "self.teacher.double().float()", "self.table = torch.arange(float(len(x)))")]
        two = SCRIPT + ("model = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 2))\nopt = torch.optim.SGD(model[0].parameters(), lr=0.1)\n"
                        "other = torch.optim.SGD(model[1].parameters(), lr=0.1)\n" + PREPARE + LOOP)
        cases.append((two + "        other.step()\n", 2, "1.weight changes in training and is none of the optimizer's parameters"))
        cases.append((two, 0, ""))
        norms = (SCRIPT + "model = nn.Sequential(nn.BatchNorm1d(1), model).eval()\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n" + PREPARE)
        cases.append((norms + "model.train()\n" + LOOP, 2, "0 was in eval mode at job.prepare: call model.train() before it"))
        cases.append((norms + LOOP, 0, ""))
        cases.append((SCRIPT + PREPARE + LOOP.replace("opt.step()", "opt.step()\n        break"), 0, ""))  # the rest comes next
        scheduled = ("sched = torch.optim.lr_scheduler.StepLR(opt, 2)\n"
                     "model, opt, loader, sched = job.prepare(model, opt, loader, sched, epochs=2{more})\n")
        epoch = scheduled.format(more=", scheduler_steps='epoch'")
        update = scheduled.format(more="")
        step = LOOP + "        sched.step()\n"
        for script, status, message in (
                (update + step, 0, ""),
                (update + LOOP + "    sched.step()\n", 2, "sched.step() was not called after opt.step(), as scheduler_steps='update' says"),
                (update + LOOP, 2, "sched.step() was not called after opt.step()"),
                (update + step + "        sched.step()\n", 2, "sched.step() was called without opt.step() before it"),
                (update + "sched.step()\n" + step, 2, "sched.step() was called without opt.step() before it"),
                (epoch + LOOP + "    sched.step()\n", 0, ""),
                (epoch + step, 2, "sched.step() was called more than once a pass over the loader"),
                (epoch + LOOP, 2, "sched.step() was not called after the last pass"),
                (scheduled.format(more=", scheduler_steps='batch'"), 2, "neither 'update' nor 'epoch'"),
                ("model.bias.requires_grad_(False)\n" + PREPARE + "model.bias.requires_grad_(True)\n" + LOOP, 2,
                 "bias was frozen in job.prepare and is not any more, and the job would not train it"),
                ("opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)\n" + PREPARE + "model.bias.requires_grad_(False)\n" + LOOP, 2,
                 "bias was frozen after job.prepare, and the optimizer would move it on, by momentum or weight decay"),
                (PREPARE + "model.bias.requires_grad_(False)\nbefore = model.bias.clone()\n" + LOOP + "assert torch.equal(model.bias, before)\n", 0, ""),
                ("model.bias.requires_grad_(False)\nbefore = model.bias.clone()\n" + PREPARE + LOOP + "assert torch.equal(model.bias, before)\n", 0, ""),
                ("torch.optim.lr_scheduler.StepLR(opt, 5)\nopt.param_groups[0]['lr'] = 0.0\nbefore = model.bias.clone()\n" + PREPARE + LOOP
                 + "assert opt.param_groups[0]['lr'] == 0.0 and torch.equal(job.state_dict()['bias'], before)\n", 0, ""),
                (PREPARE + LOOP + "        opt.param_groups[0]['lr'] = 0.05\n", 2, "the optimizer's lr was changed from 0.1 to 0.05"),
                (PREPARE + LOOP + "        opt.param_groups[0]['momentum'] = 0.5\n", 2, "the optimizer's momentum was changed from 0 to 0.5"),
                ("raw = opt\n" + PREPARE + LOOP + "        raw.add_param_group({'params': [torch.zeros(1, requires_grad=True)]})\n", 2,
                 "has got a parameter group")):
            cases.append((SCRIPT + script, status, message))
        scaled = ("scaler = torch.amp.GradScaler('cpu', enabled={enabled})\n" + PREPARE + LOOP.replace("job.backward(loss)", "{backward}")
                  .replace("opt.step()", "scaler.step(opt)\n        scaler.update()"))
        for enabled, backward, status, message in (
                (True, "scaler.scale(loss).backward()", 0, ""),
                (True, "job.backward(scaler.scale(loss))", 0, ""),
                (True, "scaler.scale(loss).backward()\n        scaler.unscale_(opt)", 2, "scaler.unscale_(opt) is not supported: "),
                (True, "(2 * scaler.scale(loss)).backward()", 2, "was of no loss that the scaler has returned"),
                (True, "job.backward(scaler.scale(loss), reduction='sum')", 2, "is to be a mean: reduction='sum' is not supported"),
                (False, "scaler.scale(loss).backward()", 0, "")):
            cases.append((SCRIPT + scaled.format(enabled=enabled, backward=backward), status, message))
        # The job's config has another batch than the script.
        other = SCRIPT.replace("run_dir=None", "settings={'job.global_batch': 32}")
        cases.append((other + epoch, 2, "the job has global_batch 32, as its config says, and the scheduler's epochs were counted in"))
        cases.append((other + update + "assert len(loader) == 2\n" + step, 0, ""))
        cases.append((other + "sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 8)\n"
                      + "model, opt, loader, sched = job.prepare(model, opt, loader, sched, epochs=2)\nrates = []\n"
                      + step + "        rates += [(job.round, sched.get_last_lr()[0])]\n"
                      + "assert max(abs(r - 0.05 * (1 + torch.cos(torch.tensor(torch.pi * i / 4)).item())) for i, r in rates) < 1e-6, rates\n",
                      0, ""))
        # A loop that is left by break leaves the model with the update of its last step.
        cases.append((SCRIPT + PREPARE + """
done, session = [], job._session
tell = session.done
session.done = lambda *arguments: (done.append(arguments), tell(*arguments))
for epoch in range(2):
    for x, y in loader:
        job.backward(F.cross_entropy(model(x), y))
        opt.step()
        break
    assert len(done) == job.next_round == epoch + 1
""", 0, ""))
        self.assert_outcomes(cases)

    def test_a_limit_of_the_gradients_norm_is_finite_and_0_is_none(self):
        """Also where the script's optimizer makes the updates and the gradients are clipped for it."""
        norms = "model = nn.Sequential(nn.BatchNorm1d(1), model)\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        clipped = PREPARE.replace("epochs=2", "epochs=2, clip_grad_norm={}")
        cases = []
        for more in ("", norms, "opt = torch.optim.NAdam(model.parameters())\n"):
            cases += [(SCRIPT + more + clipped.format(limit), 2, f"clip_grad_norm: {shown} is not a finite number from 0 on (0: no limit)")
                      for limit, shown in (("-1", "-1"), ("float('nan')", "nan"), ("float('inf')", "inf"), ("'much'", "'much'"))]
            run_of = SCRIPT + more + "{}" + LOOP + "found.append([p.tolist() for p in model.parameters()])\n"
            cases.append(("found = []\n" + run_of.format(PREPARE) + "job.close()\n" + run_of.format(clipped.format("0")) + "if found[0] != found[1]:\n"
                          "    raise lockstep.JobFailed('not the same')\n", 0, ""))
        self.assert_outcomes(cases)

    def test_parameters_are_changed_by_the_job_alone(self):
        """Other memory with the same values does no harm; other values are refused, wherever the script gives them to the parameters."""
        train = """
import copy, torch, lockstep
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.arange(64.0).reshape(64, 1) / 64, torch.arange(64) % 2)
def train(begin="", between="", within="", evaluation="", norm=False, epochs=3, make=torch.optim.SGD):
    global job
    job = lockstep.init()
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4) if norm else nn.Tanh(), nn.Flatten(), nn.Linear(4, 2))
    opt = make(model.parameters(), lr=0.1)
    p = model[0].weight
    def do(what):
        exec(what, globals(), {"model": model, "p": p, "job": job})
    if evaluation:
        def judge(model, batch):
            do(evaluation)
            return 0.0, 0
        job.evaluate(judge, DataLoader(data, batch_size=64))
    model, opt, loader = job.prepare(model, opt, DataLoader(data, batch_size=16, shuffle=True), epochs=epochs)
    do(begin)
    for epoch in range(epochs):
        for x, y in loader:
            F.cross_entropy(model(x[:, :, None, None].expand(-1, 2, 3, 3)), y).backward()
            opt.step()
            do(within)
        if job.running:
            do(between)
    return [*model.state_dict().values()]
"""
        harmless = ("model.to(memory_format=torch.channels_last)", "p.data = p.data.clone()", "model.double().float()", "model.cpu()",
                    "copy.deepcopy(model).half()", "model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()})",
                    "old = p.data.clone(); p.data.zero_(); p.data.copy_(old)", "old = p.data; p.data = torch.zeros_like(old); p.data = old")
        same = ("if not all(map(torch.equal, train(norm={norm}), train({where}={what!r}, norm={norm}))):\n"
                "    raise lockstep.JobFailed('not the same')\n")
        cases = [(train + same.format(norm=norm, where=where, what=what), 0, "") for what in harmless
                 for where, norm in (("begin", False), ("between", False), ("between", True), ("evaluation", False))]
        cases += [(train + same.format(norm=False, where="within", what=what), 0, "") for what in harmless if "load" not in what]
        # An optimizer that makes a gradient anew has the next one all the same.
        cases.append((train + """
class Anew(torch.optim.Adagrad):
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.data = p.grad.clone()
        super().step()
if not all(map(torch.equal, train(make=torch.optim.Adagrad), train(make=Anew))):
    raise lockstep.JobFailed("not the same")
""", 0, ""))
        other = ", with other values (model.half() and back rounds them): only the job's updates may change parameters"
        alone = "parameters were changed by the script after job.prepare"
        for what, message in (
                ("model.half().float()", "0.weight was given other memory after job.prepare" + other),
                ("p.data = p.data + 1", "0.weight was given other memory after job.prepare" + other),
                ("model.half()", "0.weight was made float16 of (4, 2, 3, 3) on cpu after job.prepare, where it was float32"),
                ("p.data = p.data[:3]", "0.weight was made float32 of (3, 2, 3, 3) on cpu after job.prepare"),
                ("p.data.clamp_(-0.01, 0.01)", alone + " (0.weight): only the job's updates"),
                ("model.load_state_dict({k: 0 * v for k, v in model.state_dict().items()})", alone + " (0.weight, 0.bias, 3.weight, ...)")):
            cases += [(train + f"train({where}={what!r})\n", 2, message) for where in ("begin", "between", "within", "evaluation")]
        gradients = "gradients were changed behind job.backward"
        cases += [(train + f"train(within={what!r})\n", 2, gradients) for what in ("p.grad = p.grad * 2", "p.grad.data = p.grad * 2")]
        hook = "    p.register_post_accumulate_grad_hook(lambda p: setattr(p, 'grad', None))"
        cases.append((train.replace("    do(begin)", hook) + "train()\n", 2, "the gradient of 0.weight was put elsewhere by a hook"))
        # One value of many, where all are looked at.
        large = train.replace("Conv2d(2, 4, 3)", "Conv2d(2, 4000, 3)").replace("Linear(4, 2)", "Linear(4000, 2)")
        cases += [(large + f"train({where}='p.data[1234, 0, 1, 2] += 1')\n", 2, alone) for where in ("begin", "between", "evaluation")]
        cases += [(train + f"train({where}='p.data.zero_(); job.stop(str())')\n", 2, alone) for where in ("begin", "between", "within")]
        assign = "model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)"
        cases += [(train + f"train({where}={assign!r})\n", 2, "0.weight of the model is another parameter than it was in job.prepare")
                  for where in ("begin", "between", "within", "evaluation")]
        self.assert_outcomes(cases)

    def test_a_model_whose_parameters_are_all_behind_reentrant_checkpoints(self):
        """The graph of the loss has none of them, as where adapters are trained within the blocks of a frozen model."""
        self.assert_outcomes([(SCRIPT + """
from torch.utils.checkpoint import checkpoint
class Within(nn.Linear):
    def forward(self, x):
        return checkpoint(super().forward, x.clone().requires_grad_(), use_reentrant=True)
model = Within(1, 2)
before = model.weight.detach().clone()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
""" + PREPARE + LOOP.replace("job.backward(loss)", "loss.backward()") + "assert not torch.equal(model.weight, before)\n", 0, "")])

    def test_a_model_draws_something_else_than_the_samples(self):
        """Noise that the dataset adds to a sample is not what the model draws for it."""
        self.assert_outcomes([(SCRIPT + """
class Noise(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.randn(4)
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Noise(), batch_size=1)
""" + PREPARE + """
for epoch in range(2):
    for x in loader:
        assert not torch.equal(x, torch.randn(1, 4))
        model(x).mean().backward()
        opt.step()
""", 0, "")])

    def test_an_instance_norm_does_not_count_batches(self):
        self.assert_outcomes([(SCRIPT + """
def made():
    torch.manual_seed(3)
    norm = nn.InstanceNorm1d(2, track_running_stats=True)
    model = nn.Sequential(nn.Linear(1, 6), nn.Unflatten(1, (2, 3)), norm, nn.Flatten(), nn.Linear(6, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)
job.close()
expected, opt = made()
for at in range(0, 64, 16):
    x, y = data[at : at + 16]
    opt.zero_grad()
    F.cross_entropy(expected(x), y).backward()
    opt.step()
job = lockstep.init()
model, opt = made()
model, opt, loader = job.prepare(model, opt, DataLoader(data, batch_size=16), epochs=1)
for x, y in loader:
    F.cross_entropy(model(x), y).backward()
    opt.step()
for (name, is_now), should in zip(model.state_dict().items(), expected.state_dict().values(), strict=True):
    torch.testing.assert_close(is_now, should, msg=name)
""", 0, "")])

    def test_a_parameter_without_values(self):
        """Beside one that is a number, so that there is no whole tensor of state."""
        for optimizer in ("SGD", "Adagrad"):
            self.assert_outcomes([(SCRIPT + f"""
model.register_parameter("nothing", nn.Parameter(torch.zeros(0, 4)))
model.register_parameter("number", nn.Parameter(torch.tensor(1.0)))
opt = torch.optim.{optimizer}(model.parameters(), lr=0.1)
""" + PREPARE + LOOP, 0, "")])

    def test_hooks_of_the_script_see_the_gradient_of_the_mean(self):
        """As in torch, where they limit it, and not that of the sum over the batch, nor what earlier batches of the update have added."""
        train = """
def made():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 2))
    model.spare = nn.Linear(2, 2)
    model.forward = lambda x: model[2](model[1](model[0](x)))
    {}
    return model, torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
job.close()
expected, opt = made()
for at in range(0, 64, 16):
    x, y = data[at : at + 16]
    opt.zero_grad()
    {}
    opt.step()
job = lockstep.init(settings={{"optimizer.linear_scaling": False}})
model, opt = made()
model, opt, loader = job.prepare(model, opt, DataLoader(data, batch_size={}), epochs=1, global_batch=16)
for x, y in loader:
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
for p, q in zip(model.parameters(), expected.parameters(), strict=True):
    torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
"""
        whole = "F.cross_entropy(expected(x), y).backward()"
        # What the hooks of each half make of it, as on two devices with DDP.
        halves = """
    grads = []
    for half in range(2):
        expected.zero_grad()
        F.cross_entropy(expected(x[8 * half : 8 * half + 8]), y[8 * half : 8 * half + 8]).backward()
        grads.append([p.grad for p in expected.parameters()])
    for p, *both in zip(expected.parameters(), *grads):
        p.grad = None if both[0] is None else (both[0] + both[1]) / 2"""
        of_each = "for p in model.parameters(): p."
        hooks = (of_each + "register_hook(lambda g: g.clamp(-0.02, 0.02))",
                 of_each + "register_post_accumulate_grad_hook(lambda p: [p.grad.clamp_(-0.02, 0.02)].clear())",
                 of_each + "register_post_accumulate_grad_hook(lambda p: setattr(p.grad, 'data', p.grad.sign()))",
                 of_each + "register_post_accumulate_grad_hook(lambda p: setattr(p, 'grad', p.grad.sign() * 0.1))",
                 "model[0].weight.register_hook(lambda g: g * 2); model[2].bias.register_hook(torch.sign)",
                 "model[1].register_full_backward_hook(lambda module, found, given: (found[0].sign() / 16,))")
        self.assert_outcomes([(SCRIPT + train.format(hook, how, batch), 0, "") for hook in hooks for how, batch in ((whole, 16), (halves, 8))])

    def test_zero_grad_tied_frozen_and_unused_parameters_and_dropout_are_as_in_torch(self):
        done = run(self.script(SCRIPT + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.unused = nn.Linear(1, 4), nn.Linear(4, 4), nn.Linear(3, 3)
        self.third = nn.Linear(4, 4)
        self.third.weight = self.second.weight
        self.last = nn.Linear(4, 2)
        self.last.bias.requires_grad_(False)
        self.drop = nn.Dropout(0.5)
    def forward(self, x):
        return self.last(self.drop(self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))))
model = Model()
frozen, unused, tied = model.last.bias.clone(), model.unused.weight.clone(), model.second.weight.clone()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
""" + PREPARE + LOOP.replace("        loss =", "        opt.zero_grad(); model.zero_grad()\n        loss =") + """
assert torch.equal(frozen, model.last.bias) and torch.equal(unused, model.unused.weight)
assert model.third.weight is model.second.weight and not torch.equal(tied, model.second.weight)
assert model.first.weight.grad is None
model(torch.ones(1, 1)).sum().backward()  # the model is the script's own again
print("whole")
"""))
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "whole\n", ""))

    def test_a_script_that_has_what_it_wants_stops_the_job_for_all(self):
        """One of its workers says so, with a batch in hand or between two epochs, then all; all have the parameters after the last round."""
        for when in ("in a batch", "between epochs"):
            with self.subTest(when):
                run_dir = self.folder / when
                done = lockstep_run("-n", "2", "--run-dir", run_dir, self.script(SCRIPT + """
model, opt, loader = job.prepare(model, opt, loader, epochs=400)
for epoch in range(400):
    for x, y in loader:
        if WHEN == "in a batch" and epoch == 3 and job.rank == 1 and not job.ended_early:
            job.stop("it has what it wants")
            break
        F.cross_entropy(model(x), y).backward()
        opt.step()
    if WHEN == "between epochs" and epoch >= 3 and (job.rank == 1 or job.ended_early):
        job.stop("it has what it wants")  # on all workers, and again after each pass that is empty
assert job.ended_early and not job.running
print("parameters", *(float(p.double().sum()) for p in model.parameters()))
""".replace("WHEN", repr(when))))
                self.assertEqual(done.returncode, 0, done)
                said = re.findall(r"\| parameters (.*)$", done.stdout, re.MULTILINE)
                self.assertEqual((len(said), len(set(said))), (2, 1), done.stdout)
                summary = json.loads((run_dir / "summary.json").read_text())
                self.assertEqual((summary["status"], summary["reason"]), ("completed", "worker 1 has ended the job: it has what it wants"))
                rounds = self.rounds(run_dir)
                self.assertGreaterEqual(len(rounds), 12)
                self.assertLess(len(rounds), 1600)

    def test_ctrl_c_ends_a_job_early_and_in_good_order(self):
        """The script goes on behind its loop, and can tell."""
        process = package.start("-m", "lockstep", "run", "-n", "2", self.script(SCRIPT + """
model, opt, loader = job.prepare(model, opt, loader, epochs=100_000)
for epoch in range(100_000):
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        opt.step()
    if epoch == 2 and job.rank == 0:
        print("trains", flush=True)
print("early", job.ended_early, flush=True)
"""), python=PYTHON, cwd=self.folder)
        try:
            said = []
            while not any("trains" in line for line in said):
                said.append(process.stdout.readline())
                self.assertTrue(said[-1], said)
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=package.TIMEOUT_S)
            self.assertEqual(len(re.findall(r"\| early True$", out, re.MULTILINE)), 2, out)
        finally:
            process.kill()
            process.communicate()

    def test_ctrl_c_while_it_joins_is_one_line_and_status_130(self):
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))  # and does not listen: the worker tries again for a minute
            process = package.start(self.script(SCRIPT + """
import lockstep._entry
session = lockstep._entry.Session
def joining(*arguments, **named):
    print("joins", flush=True)
    return session(*arguments, **named)
lockstep._entry.Session = joining
""" + PREPARE), python=PYTHON, LOCKSTEP_COORDINATOR=f"127.0.0.1:{nobody.getsockname()[1]}")
            try:
                self.assertEqual(process.stdout.readline(), "joins\n")
                process.send_signal(signal.SIGINT)
                _, err = process.communicate(timeout=30)
                self.assertEqual((process.returncode, err), (130, "lockstep: interrupted\n"))
            finally:
                process.kill()
                process.communicate()

    def test_ctrl_c_while_it_waits_for_others_is_one_line_and_status_130(self):
        with harness.Job(2, coordinator_args=["--config-from-workers"]) as job:
            job.config.write_text("")
            job.start_coordinator()
            # Says so when it has waited in vain once.
            process = package.start(self.script(SCRIPT + PREPARE + """
wait, calls = job._session.next, []
def counted(seconds):
    calls.append(seconds)
    if len(calls) == 2:
        print("waits", flush=True)
    return wait(seconds)
job._session.next = counted
""" + LOOP), python=PYTHON, LOCKSTEP_COORDINATOR=job.address)
            try:
                self.assertTrue(select.select([process.stdout], [], [], package.TIMEOUT_S / 2)[0], "it is deaf")
                self.assertEqual(process.stdout.readline(), "waits\n")
                process.send_signal(signal.SIGINT)
                _, err = process.communicate(timeout=package.TIMEOUT_S)
                self.assertEqual((process.returncode, err), (130, "lockstep: interrupted\n"))
                harness.wait_for("the reason", lambda: "interrupted" in job.log("coordinator"))
            finally:
                process.kill()
                process.communicate()


if __name__ == "__main__":
    package.main_with_torch()
