"""Trainers that others have made of transformers', TRL's and that of sentence-transformers: with lockstep.huggingface.Trainer in front of it each trains as
without a job, and what it overrides is kept."""

import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import frameworks  # noqa: E402
import package  # noqa: E402
from package import HERE, ROOT  # noqa: E402

WORKER = HERE / "torch_trainers.py"
BATCHES = {"sft": 96, "pairs": 12, "datasets": 18, "labels": 12}  # in an epoch, of which the job counts each once; of sft, samples
COMPARE = """
import sys, torch
one, other = (torch.load(path) for path in sys.argv[1:])
assert one.keys() == other.keys(), (one.keys(), other.keys())
one, other = (torch.cat([state[name].double().flatten() for name in one]) for state in (one, other))
print(float((one - other).norm() / one.norm()))
"""


class TrainersTest(frameworks.FrameworkTest):
    def use(self, *libraries):
        self.python = frameworks.find_python("torch", *libraries, variable="LOCKSTEP_TORCH_PYTHON", PYTHONWARNINGS="ignore")
        if self.python is None:
            self.skipTest(f"no interpreter has {', '.join(libraries)}")

    def difference(self, one, other):
        paths = [self.folder / f"{name}.pt" for name in (one, other)]
        done = subprocess.run([self.python, "-c", COMPARE, *paths], capture_output=True, text=True, check=True)
        return float(done.stdout)

    def sizes(self, worker):
        return json.loads((self.folder / f"{worker}.json").read_text())["sizes"]

    def train(self, case, *words):
        """In a job of two, in which each batch counts once in an epoch."""
        self.job(2, *words)
        done = subprocess.run([sys.executable, ROOT / "tools" / "check-run", "--samples", str(BATCHES[case]), self.run_dir], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.summary()["epochs"], 2)
        self.assertEqual(self.difference("0", "1"), 0.0)

    def assert_as_alone(self, case, *, batches, of_worker):
        """`batches`: in an update, alone. `of_worker`: batches of a worker in the job's update, which has them all in it."""
        self.alone(WORKER, case, f"save={self.folder}", "alone=1", f"accumulate={batches}")
        self.train(case, "--policy", "full", WORKER, case, f"save={self.folder}", *([f"moves={batches}"] if batches > 2 else []))
        self.assertLess(self.difference("alone", "0"), 2e-6)
        if of_worker:
            self.assertEqual(len(self.sizes(0)) + len(self.sizes(1)), len(self.sizes("alone")))
            self.assertEqual(set(self.sizes(0)), {8})

    def test_sft(self):
        self.use("trl")
        self.assert_as_alone("sft", batches=1, of_worker=0)

    def test_batches_with_negatives_of_their_own(self):
        self.use("sentence_transformers")
        self.assert_as_alone("pairs", batches=2, of_worker=1)

    def test_several_datasets_with_a_loss_each(self):
        self.use("sentence_transformers")
        self.assert_as_alone("datasets", batches=2, of_worker=1)

    def test_a_loss_with_parameters(self):
        self.use("sentence_transformers")
        self.assert_as_alone("labels", batches=2, of_worker=1)

    def test_batches_move_as_they_are(self):
        self.use("sentence_transformers")
        self.train("pairs", *frameworks.SLOW, WORKER, "pairs", f"save={self.folder}", "moves=4")
        self.assertEqual(set(self.sizes(0) + self.sizes(1)), {8})
        self.assertGreater(len(self.sizes(0)), len(self.sizes(1)))

    def test_a_worker_is_killed(self):
        self.use("sentence_transformers")
        words = [WORKER, "datasets", f"save={self.folder}"]
        self.job(2, "--policy", "full", "--restart-workers", 2, "--set", "emulate.unit_time=20ms", *words, kill=1, after=4)
        done = subprocess.run([sys.executable, ROOT / "tools" / "check-run", "--samples", str(BATCHES["datasets"]), self.run_dir], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    package.main_with_torch()
