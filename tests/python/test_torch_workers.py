"""Several workers with one script: each sample counts once, whoever is slow, late, away or has left."""

import collections
import json
import pathlib
import re
import sys
import textwrap

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import harness  # noqa: E402
from torch_test import LOOP, PREPARE, PYTHON, SCRIPT, WORKER, TorchTest, lockstep_run, run  # noqa: E402


class WorkersTest(TorchTest):
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
        view = job._session.floats(job._run.work.parameters)""") + """
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

    def test_a_worker_that_raises_leaves_and_the_others_do_its_work(self):
        run_dir = self.folder / "run"
        done = lockstep_run("-n", "3", "--run-dir", run_dir, WORKER, "raise=1")
        self.assertEqual(done.returncode, 0, done)
        harness.check_epochs(self, self.rounds(run_dir), 500)
        self.assertEqual(done.stdout.count("Traceback"), 1)
        self.assertEqual(done.stdout.count("ValueError: something of the script's own"), 2)  # the traceback's, and the coordinator's
        self.assertIn("worker 1 ended with status 1", done.stdout)

    def test_a_worker_that_is_drained_ends_with_status_0(self):
        """The script does not go on with a model that is not the job's, and its launcher does not start it again."""
        run_dir = self.folder / "run"
        script = self.script((SCRIPT + PREPARE + LOOP).replace("epochs=2", "epochs=30").replace("range(2)", "range(30)")
                             + 'print("trained", job.rank)\n')
        job = package.start("-m", "lockstep", "run", "-n", "3", "--restart-workers", "2", "--http", "127.0.0.1:0",
                            "--set", "emulate.unit_time=20ms", "--set", "job.min_workers=2", "--run-dir", run_dir, script,
                            python=PYTHON, cwd=self.folder)
        self.addCleanup(job.communicate)
        self.addCleanup(job.kill)
        harness.wait_for("some rounds", lambda: (run_dir / "rounds.jsonl").exists() and len(self.rounds(run_dir)) > 5)
        drained = run("-m", "lockstep", "ctl", "--run-dir", run_dir, "drain", "2")
        self.assertEqual(drained.returncode, 0, drained)
        out, err = job.communicate(timeout=package.TIMEOUT_S)
        self.assertEqual(job.returncode, 0, (out, err))
        self.assertIn("the job goes on without this worker, which ends with status 0", out)
        self.assertNotIn("restarting it", out)
        self.assertEqual(sorted(re.findall(r"trained (\d)", out)), ["0", "1"])
        self.assertNotIn(2, {u["worker"] for u in self.rounds(run_dir)[-1]["units"]})

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

    def test_a_worker_without_units_at_an_epochs_end_has_its_parameters(self):
        """Units that take no time are soon all one worker's: the others have none at most ends of epochs."""
        script = self.script((SCRIPT + PREPARE + LOOP).replace("epochs=2", "epochs=20").replace("range(2)", "range(20)")
                             + textwrap.indent(textwrap.dedent("""
                               import hashlib
                               digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
                               print("pass", job.rank, epoch, job.metrics.epoch, job.metrics.round, digest, flush=True)
                               """), "    "))
        run_dir = self.folder / "run"
        done = lockstep_run("-n", "4", "--policy", "auto", "--slowdown", "worker=0,factor=5", "--run-dir", run_dir, script)
        self.assertEqual(done.returncode, 0, done)
        passes = re.findall(r"pass (\d) (\d+) (\d+) (\d+) (\w+)", done.stdout)
        self.assertEqual(len(passes), 80, done.stdout)
        last = {line["epoch"]: line["round"] for line in self.rounds(run_dir)}
        seen = collections.defaultdict(set)
        for _, epoch, counted_epoch, counted_round, digest in passes:
            seen[int(epoch)].add((int(counted_epoch), int(counted_round), digest))
        for epoch, found in seen.items():
            self.assertEqual({(at, round_) for at, round_, _ in found}, {(epoch, last[epoch])}, done.stdout)
            self.assertEqual(len(found), 1, f"epoch {epoch} ended with other parameters on some workers: {done.stdout}")
        self.assertEqual(len({digest for found in seen.values() for *_, digest in found}), 20)
        self.assertNotIn("newer parameters", done.stdout)

    def test_other_models_and_settings_are_refused_with_one_line(self):
        for change, message in (
                ("model = nn.Linear(1, 3); opt = torch.optim.SGD(model.parameters(), lr=0.1)", "has 6 parameters"),
                ("opt = torch.optim.SGD(model.parameters(), lr=0.2)", 'its program sets "lr = 0.'),
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


if __name__ == "__main__":
    package.main_with_torch()
