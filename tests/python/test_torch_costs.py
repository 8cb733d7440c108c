"""What a script says of its samples' costs decides who computes them."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import HERE, harness  # noqa: E402
from torch_test import SCRIPT, TorchTest, lockstep_run  # noqa: E402

WORKER = HERE / "torch_costs.py"
SAID = "the program says what its samples cost: units of this round cost 0.57 to 4.00 of a usual one"


class CostsTest(TorchTest):
    def rounds_of(self, kind):
        run_dir = self.folder / kind
        done = lockstep_run("-n", 2, "--run-dir", run_dir, "--policy", "balance", WORKER, kind)
        self.assertEqual(done.returncode, 0, done)
        rounds = self.rounds(run_dir)
        harness.check_epochs(self, rounds, 640)
        return done, rounds

    def test_the_long_sample_has_few_others_beside_it(self):
        for kind in ("numbers", "function", "batches"):
            with self.subTest(kind):
                done, rounds = self.rounds_of(kind)
                self.assertIn(SAID, done.stdout)
                alone = 0
                for line in rounds[10:]:
                    of_long = next(of for of in line["contributors"] if any(first % 8 == 0 for first, _ in of["ranges"]))
                    alone += of_long["samples"] <= 3
                self.assertGreater(alone, 0.8 * len(rounds[10:]))

    def test_also_in_the_jobs_own_order(self):
        done, _ = self.rounds_of("shuffled")
        self.assertIn("the program says what its samples cost", done.stdout)

    def test_without_costs_units_are_counted(self):
        done, _ = self.rounds_of("nothing")
        self.assertNotIn("the program says", done.stdout)

    def test_costs_that_cannot_be_are_one_line(self):
        self.assert_outcomes([(SCRIPT + f"job.prepare(model, opt, loader, epochs=1, cost={cost})\n", 2, said) for cost, said in (
            ("[1.0] * 3", "cost: 3 numbers, and the dataset has 64 samples"),
            ("[-1.0] + [1.0] * 63", "cost is -1: it is at least 0"),
            ("[0.0] * 64", "cost: all of them are 0"),
            ("['a'] * 64", "cost is no number"),
            ("lambda samples: float('nan')", "cost: of a sample is nan: it is at least 0"))])


if __name__ == "__main__":
    package.main_with_torch()
