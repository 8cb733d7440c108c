"""Models that torch.compile has been over: the same training, to what the compiler changes of the arithmetic."""

import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import HERE, harness  # noqa: E402
from torch_test import PYTHON, TorchTest, lockstep_run, run  # noqa: E402

WORKER = HERE / "torch_compiled.py"


class CompiledTest(TorchTest):
    def setUp(self):
        super().setUp()
        self.cache = {"TORCHINDUCTOR_CACHE_DIR": str(self.folder / "cache")}

    def sums(self, text, how):
        found = re.findall(rf"{how}: parameters (.*)$", text, re.MULTILINE)
        self.assertTrue(found, text)
        return [[float(word) for word in line.split()] for line in found]

    def assert_close(self, a, b):
        self.assertEqual(len(a), len(b))
        for one, other in zip(a, b, strict=True):
            self.assertAlmostEqual(one, other, delta=1e-3)

    def test_whatever_is_compiled_trains_to_the_same(self):
        for words, hows in (([], ("none", "model", "in-place", "part", "step")), (["norm=1"], ("none", "model"))):
            with self.subTest(words):
                done = run(WORKER, f"how={','.join(hows)}", *words, **self.cache)
                self.assertEqual(done.returncode, 0, done)
                names = re.findall(r"names (.*)$", done.stdout, re.MULTILINE)
                self.assertEqual((len(names), len(set(names))), (len(hows), 1), names)  # no compiler in a checkpoint
                want = self.sums(done.stdout, "none")[0]
                for how in hows[1:]:
                    self.assert_close(self.sums(done.stdout, how)[0], want)
                for how, patience in (("none", "10s"), ("model", "300s"), ("in-place", "300s"), ("part", "300s")):
                    if how in hows:
                        self.assertIn(f"{how}: timeout {patience}\n", done.stdout)

    def test_runs_of_all_sizes_while_work_moves(self):
        """A worker that compiles is a slow one, and is not taken for lost."""
        plain = run(WORKER, "how=none")
        self.assertEqual(plain.returncode, 0, plain)
        run_dir = self.folder / "run"
        for policy in ("full+flexrr", "full+balance"):
            with self.subTest(policy):
                run_dir = self.folder / policy
                done = lockstep_run("-n", "2", "--policy", policy, "--run-dir", run_dir, WORKER, "how=model", **self.cache)
                self.assertEqual(done.returncode, 0, done)
                rounds = self.rounds(run_dir)
                harness.check_epochs(self, rounds, 500)
                sums = self.sums(done.stdout, "model")
                self.assertEqual((len(sums), sums[0]), (2, sums[1]))
                self.assertNotIn("is out", done.stdout)
                # Under flexrr the units of a worker that compiles for long are a later round's: other batches, other parameters.
                if not any(line["requeued"] for line in rounds):
                    self.assert_close(sums[0], self.sums(plain.stdout, "none")[0])


def can_compile():
    """torch.compile wants a C++ compiler, and Python's headers."""
    headers = "import os, sysconfig, sys; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path('include'), 'Python.h')))"
    return all(subprocess.run(command, capture_output=True, check=False).returncode == 0 for command in (["c++", "--version"], [PYTHON, "-c", headers]))


if __name__ == "__main__":
    if not can_compile():
        print("skipped: torch.compile has no C++ compiler or no Python.h here")
        sys.exit(77)
    package.main_with_torch()
