"""docs/guides/loop-libraries.md: a loop of Ignite, skorch or fastai trains as without Lockstep, and each sample counts once, whatever moves."""

import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import frameworks  # noqa: E402
import package  # noqa: E402
from package import HERE, ROOT, harness  # noqa: E402

WORKER = HERE / "torch_loops.py"
PAGE = ROOT / "docs" / "guides" / "loop-libraries.md"
SLOW = ("--policy", "flexrr", "--slowdown", "worker=1,factor=3", "--set", "emulate.unit_time=2ms")
EPOCHS, ROUNDS, SAMPLES = 4, 8, 512  # of an epoch
COMPARE = """
import sys, torch
one, other = (torch.load(path) for path in sys.argv[1:])
print(max(float((one[name] - other[name]).norm() / one[name].norm()) for name in one))
"""


class LoopTest(frameworks.FrameworkTest):
    def use(self, library):
        self.python = frameworks.find_python("torch", library, variable="LOCKSTEP_TORCH_PYTHON", PYTHONWARNINGS="ignore")
        if self.python is None:
            self.skipTest(f"no interpreter has {library}")
        self.words = [WORKER, f"library={library}", f"page={PAGE}", f"save={self.folder}"]

    def difference(self, one, other):
        paths = [self.folder / f"{name}.pt" for name in (one, other)]
        done = subprocess.run([self.python, "-c", COMPARE, *paths], capture_output=True, text=True, check=True)
        return float(done.stdout)

    def batches(self, worker):
        return json.loads((self.folder / f"{worker}.json").read_text())

    def assert_trained(self):
        """Each sample once in an epoch, all passes done, and both workers with the same parameters."""
        done = subprocess.run([sys.executable, ROOT / "tools" / "check-run", "--samples", str(SAMPLES), self.run_dir], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        summary = self.summary()
        self.assertEqual((summary["status"], summary["epochs"]), ("completed", EPOCHS), summary)
        self.assertEqual(self.difference("0", "1"), 0.0)
        self.assertEqual([len(self.batches(worker)) for worker in range(2)], [EPOCHS, EPOCHS])

    def train(self, *words, **more):
        """The output of a job of two, whose files are not those of a job before."""
        for path in (*self.folder.glob("?.pt"), *self.folder.glob("?.json"), *self.folder.glob("first"), *self.folder.glob("again")):
            path.unlink()
        return self.job(2, *words, **more)

    def assert_as_alone(self, *words):
        self.alone(*self.words, *words, "alone=1")
        self.train("--policy", "full", *self.words, *words)
        self.assert_trained()
        self.assertEqual(len(self.rounds()), EPOCHS * ROUNDS)
        self.assertLess(self.difference("alone", "0"), 1e-6)

    def assert_moves(self, *words):
        """A worker has other numbers of batches than its loader's length."""
        self.train(*SLOW, *self.words, *words)
        self.assert_trained()
        self.assertNotEqual(self.batches(0), [ROUNDS] * EPOCHS)

    def assert_survives(self):
        """A worker that is killed in the second epoch: the one in its place has no batch of the first."""
        out = self.train("--policy", "full", "--restart-workers", 2, "--set", "emulate.unit_time=20ms", *self.words, "killed=1", kill=1, after=ROUNDS + 2)
        self.assertNotIn("Traceback", out)
        self.assert_trained()
        self.assertEqual(self.batches(1)[0], 0)

    def assert_all(self, library, *words):
        """`words`: where it is compared with the library alone."""
        self.use(library)
        with self.subTest("as alone"):
            self.assert_as_alone(*words)
        with self.subTest("moves"):
            self.assert_moves()
        with self.subTest("killed"):
            self.assert_survives()

    def test_ignite(self):
        self.assert_all("ignite")

    def test_skorch(self):
        self.assert_all("skorch", "schedule=1")

    def test_fastai(self):
        self.assert_all("fastai", "schedule=1")


if __name__ == "__main__":
    package.main_with_torch()
