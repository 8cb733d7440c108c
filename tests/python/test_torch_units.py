"""How much a script is handed at once: never more than the batch size of its loader, and with fixed_batch always as much."""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import HERE, harness  # noqa: E402
from torch_test import TorchTest, lockstep_run, run  # noqa: E402

WORKER = HERE / "torch_units.py"


class UnitsTest(TorchTest):
    def sizes(self, text):
        return [sorted(map(int, found.split())) for found in re.findall(r"sizes (.*)$", text, re.MULTILINE)]

    def parameters(self, text):
        return re.findall(r"parameters (.*)$", text, re.MULTILINE)

    def test_a_worker_alone_is_handed_no_more_than_its_batch_size(self):
        """Of units as small as they may be, and of those that the coordinator cuts; the same bits each time."""
        for words, most in (([], 8), (["units=32"], 8), (["norm=1"], 8), (["batch=64"], 64)):
            with self.subTest(words):
                done = run(WORKER, *words)
                self.assertEqual((done.returncode, done.stderr), (0, ""), done)
                self.assertEqual(self.sizes(done.stdout)[0][-1], most)
                again = run(WORKER, *words)
                self.assertEqual(self.parameters(again.stdout), self.parameters(done.stdout))

    def test_who_takes_over_a_lost_workers_share_is_handed_no_more(self):
        for policy in ("full", "auto"):
            with self.subTest(policy):
                run_dir = self.folder / policy
                done = lockstep_run("-n", "2", "--policy", policy, "--run-dir", run_dir, "--set", "job.min_workers=1", WORKER, "units=32", "leave=1")
                self.assertEqual(done.returncode, 0, done)
                harness.check_epochs(self, self.rounds(run_dir), 200)
                sizes = self.sizes(done.stdout)
                self.assertEqual(len(sizes), 1, done.stdout)
                self.assertLessEqual(sizes[0][-1], 8)
                self.assertRegex(done.stdout, r"a round is 32 units of 2 samples, for 2 workers; at most 8 samples at once\n")

    def test_fixed_batch_is_one_size_whatever_moves(self):
        run_dir = self.folder / "run"
        done = lockstep_run("-n", "2", "--policy", "full+flexrr", "--slowdown", "worker=1,factor=3", "--set", "emulate.unit_time=2ms",
                            "--run-dir", run_dir, WORKER, "fixed=1", "samples=256")
        self.assertEqual(done.returncode, 0, done)
        harness.check_epochs(self, self.rounds(run_dir), 256)
        self.assertEqual(self.sizes(done.stdout), [[4], [4]])
        self.assertRegex(done.stdout, r"a round is 16 units of 4 samples, for 2 workers; each unit is computed by itself\n")
        self.assertNotIn("fixed_batch", done.stdout)

    def test_a_compiled_model_is_compiled_once_with_fixed_batch(self):
        words = ("compiled=1", "batch=24", "units=8", "samples=256")
        done = run(WORKER, *words, "fixed=1")
        self.assertEqual((done.returncode, self.sizes(done.stdout)), (0, [[8]]), done)
        done = run(WORKER, *words)  # 24, 24 and 16
        self.assertEqual(done.returncode, 1, done)
        self.assertIn("RecompileError", done.stderr)

    def test_where_batches_are_not_of_one_size_a_line_says_so(self):
        for words, line in (
            (["samples=200"], "the last update of an epoch has 8 samples instead of 64"),
            (["samples=256", "units=10", "global=64"], "job.units = 10 cuts job.global_batch = 64 into units of different sizes"),
            (["samples=264", "units=8"], ""),
        ):
            with self.subTest(words):
                done = run(WORKER, *words, "fixed=1")
                self.assertEqual((done.returncode, done.stderr), (0, ""), done)
                said = [said for said in done.stdout.splitlines() if said.startswith("lockstep: fixed_batch: ")]
                self.assertEqual(len(said), 1 if line else 0, done)
                self.assertIn(line, "".join(said))

    def test_a_unit_that_is_larger_than_the_batch_size_is_said(self):
        done = lockstep_run("-n", "1", "--run-dir", self.folder / "run", WORKER, "units=4")
        self.assertEqual((done.returncode, self.sizes(done.stdout)[0][-1]), (0, 16), done)
        self.assertIn("a unit has 16 samples, but some workers want at most 8 at once", done.stdout)

    def test_what_is_no_truth_value_is_refused(self):
        done = run(self.script("""
            import torch, lockstep
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            model = nn.Linear(1, 2)
            loader = DataLoader(TensorDataset(torch.zeros(8, 1)), batch_size=4)
            lockstep.init().prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader, epochs=1, fixed_batch=4)
        """))
        self.assert_one_line(done, 2, "fixed_batch: 4 is neither True nor False")


if __name__ == "__main__":
    package.main_with_torch()
