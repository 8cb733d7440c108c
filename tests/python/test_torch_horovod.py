"""lockstep.horovod: scripts of the shapes of Horovod's examples train as there, each sample once, and what is refused."""

import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import frameworks  # noqa: E402
import package  # noqa: E402
from package import HERE, harness  # noqa: E402

SCRIPT = HERE / "torch_horovod.py"


class HorovodTest(frameworks.FrameworkTest):
    def trained(self, workers, *options, shape="mnist", ended=None, samples=256, epochs=3, **more):
        kill, said = more.pop("kill", None), {"samples": samples, "epochs": epochs, **more}
        out = self.job(workers, *options, SCRIPT, shape, json.dumps(said), kill=kill)
        found = re.findall(r"values (\[.*\]) (\S+)", out)
        self.assertEqual((len(found), len({values for values, _ in found})), (ended or workers, 1), out)
        rounds = self.rounds()
        harness.check_epochs(self, rounds, samples)
        self.assertEqual({line["epoch"] for line in rounds}, set(range(epochs - more.get("from", 0))))
        return out, json.loads(found[0][0]), float(found[0][1])

    def metrics(self, out, epoch):
        return re.findall(rf"metrics {epoch} (\S+)", out)

    def test_what_four_workers_find_is_what_one_finds_with_a_batch_and_a_rate_four_times_as_large(self):
        """With the whole data in each update the order does not matter."""
        four, mine, whole = self.trained(4, batch=64)
        self.assertEqual(self.metrics(four, 2), [str(whole)] * 4)
        script = self.folder / "alone.py"
        text = SCRIPT.read_text().replace("import lockstep.horovod as hvd", "from lockstep import horovod as hvd").replace("RATE * hvd.size()", "RATE * 4")
        script.write_text(text)
        alone = self.alone(script, "mnist", json.dumps({"batch": 256}))
        theirs = json.loads(re.search(r"values (\[.*\])", alone.stdout)[1])
        for a, b in zip(mine, theirs, strict=True):
            self.assertAlmostEqual(a, b, delta=1e-6)

    def test_the_shape_of_a_resumed_training_with_a_validation_metric(self):
        out, _, _ = self.trained(2, "--policy", "full", shape="resume", compression="bf16", more={"clip_grad_norm": 1.0}, **{"from": 1})
        self.assertEqual((self.metrics(out, 0), len(set(self.metrics(out, 2)))), ([], 1))
        config = (self.run_dir / "config.ini").read_text()
        self.assertRegex(config, r"clip = 1\b[\s\S]*dtype = bf16")

    def test_a_slow_worker_and_a_killed_one(self):
        out, _, _ = self.trained(3, *frameworks.SLOW)
        self.assertTrue(any(line["moved"] for line in self.rounds()), "nothing has moved")
        self.assertEqual(len(set(self.metrics(out, 2))), 1, out)
        out, _, _ = self.trained(3, "--set", "emulate.unit_time=5ms", samples=1024, epochs=6, kill=1, ended=2)
        self.assertEqual(len(self.metrics(out, 5)), 2)
        self.assertEqual(len(set(self.metrics(out, 5))), 1, out)

    def test_torchrun_starts_it_too(self):
        out = package.run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, SCRIPT, "resume", json.dumps({"from": 1}), python=self.python)
        self.assertEqual(out.returncode, 0, out)
        found = re.findall(r"values (\[.*?\]) ", out.stdout)
        self.assertEqual((len(found), len(set(found))), (2, 1), out)
        self.assertEqual(len(set(self.metrics(out.stdout, 2))), 1, out.stdout)


CASES = (
    ({"clips": True}, "optimizer.synchronize() is not supported"),
    ({"averages": True}, 'use hvd.job().log({"loss": loss.item()}) there'),
    ({"more": {"backward_passes_per_step": 4}}, "global_batch=4 * hvd.size() * batch_size"),
    ({"more": {"sparse_as_dense": True}}, "sparse_as_dense and process_set are not supported"))
LINES = (
    ("hvd.elastic", "hvd.elastic is not supported: a job of Lockstep goes on without a lost worker by itself"),
    ("hvd.rank()", "call hvd.init() first"),
    ("hvd.init(); hvd.job()", "hvd.job() is there from hvd.DistributedOptimizer on"),
    ("hvd.broadcast_parameters({}, root_rank=1)", "root_rank=1 is not supported"),
    ("hvd.allreduce(torch.ones(1), op=hvd.Adasum)", "op=Adasum is not supported"),
    ("hvd.broadcast_object({1: 2})", "an object of dict is not supported: send numbers"),
    ("hvd.DistributedOptimizer(opt, op=hvd.Sum)", "op=Sum is not supported: leave it out"),
    ("opt = hvd.DistributedOptimizer(opt); torch.optim.lr_scheduler.StepLR(opt, 1)", "model, opt, loader, sched = job.prepare("),
    ("hvd.DistributedOptimizer(opt)", "hvd.DistributedOptimizer was called twice"))
REFUSALS = """
import json, sys, torch, lockstep
import lockstep.horovod as hvd
model = torch.nn.Linear(2, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for line in json.loads(sys.argv[1]):
    try:
        exec(line)
        print("nothing")
    except lockstep.UsageError as error:
        print(error)
"""


class RefusedTest(frameworks.FrameworkTest):
    def test_what_cannot_be_kept_is_refused_with_the_line_to_write(self):
        done = self.alone("-c", REFUSALS, json.dumps([line for line, _ in LINES]))
        for (line, message), said in zip(LINES, done.stdout.splitlines(), strict=True):
            with self.subTest(line):
                self.assertIn(message, said)
        self.assertIn("\n", done.stdout)

    def test_in_a_script_it_is_one_line_and_status_2(self):
        for said, message in CASES:
            with self.subTest(message):
                workers = 2 if "averages" in said else 1
                if workers == 2:
                    out = self.job(2, SCRIPT, "mnist", json.dumps(said), status=1)  # of a job that nobody is left in
                    self.assertEqual(len(re.findall(r"worker \d ended with status 2", out)), 2, out)
                else:
                    done = self.alone(SCRIPT, "mnist", json.dumps(said), status=2)
                    out = done.stderr
                    self.assertRegex(out, r"\Alockstep: [^\n]+\n\Z")
                self.assertIn(message, out)

    def test_a_training_loader_without_the_sampler(self):
        script = self.folder / "plain.py"
        script.write_text(SCRIPT.read_text().replace("batch_size=BATCH, sampler=train_sampler", "batch_size=BATCH"))
        out = self.job(2, script, "mnist", "{}", status=2)
        self.assertIn("give it sampler=DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())", out)


if __name__ == "__main__":
    frameworks.FrameworkTest.python = package.TORCH_PYTHON
    package.main_with_torch()
