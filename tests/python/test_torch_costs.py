"""What a script says of its samples' costs decides who computes them."""

import pathlib
import re
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import HERE, harness  # noqa: E402
from torch_test import LOOP, SCRIPT, TorchTest, lockstep_run, run  # noqa: E402

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
                # Speeds are measured, so a busy processor shifts a sample. By number they would be 4.
                with_long = [next(of["samples"] for of in line["contributors"] if any(first % 8 == 0 for first, _ in of["ranges"]))
                             for line in rounds[10:]]
                self.assertLess(statistics.mean(with_long), 3)

    def test_also_in_the_jobs_own_order(self):
        done, _ = self.rounds_of("shuffled")
        self.assertIn("the program says what its samples cost", done.stdout)

    def test_without_costs_units_are_counted(self):
        done, _ = self.rounds_of("nothing")
        self.assertNotIn("the program says", done.stdout)

    def test_no_batch_costs_more_than_its_bound(self):
        done, rounds = self.rounds_of("bounded")  # the script looks at each of its batches
        self.assertEqual(max(int(size) for size in re.findall(r"done, largest (\d+)", done.stdout)), 6, done.stdout)
        config = (self.folder / "bounded" / "config.ini").read_text()
        self.assertRegex(config, r"(?m)^units = 4$")

    def test_what_is_above_the_bound_all_the_same_is_said(self):
        for given, said in (
                ("cost=[9.0] + [1.0] * 63, max_cost=8", "max_cost: 1 sample costs more than 8 (up to 9), and no sample is divided"),
                ("cost=[2.0] * 64, max_cost=8, global_batch=32, units=4",
                 "max_cost: a unit of 8 samples may cost 16, more than 8, and no unit is divided: job.units is to be 8 or more")):
            with self.subTest(said):
                script = SCRIPT + f"model, opt, loader = job.prepare(model, opt, loader, epochs=2, {given})\n" + LOOP
                done = run(self.script(script))
                self.assertEqual(done.returncode, 0, done)
                self.assertIn(said, done.stdout)

    def test_a_bound_that_cannot_be_is_one_line(self):
        self.assert_outcomes([(SCRIPT + f"job.prepare(model, opt, loader, epochs=1, {given})\n", 2, said) for given, said in (
            ("max_cost=8", "max_cost=8 needs cost=, what each sample costs"),
            ("cost=[1.0] * 64, max_cost=0", "max_cost: 0 is no number above 0"),
            ("cost=[1.0] * 64, max_cost='8'", "max_cost: '8' is no number above 0"))])

    def test_costs_that_cannot_be_are_one_line(self):
        self.assert_outcomes([(SCRIPT + f"job.prepare(model, opt, loader, epochs=1, cost={cost})\n", 2, said) for cost, said in (
            ("[1.0] * 3", "cost: 3 numbers, and the dataset has 64 samples"),
            ("[-1.0] + [1.0] * 63", "cost is -1: it is at least 0"),
            ("[0.0] * 64", "cost: all of them are 0"),
            ("['a'] * 64", "cost is no number"),
            ("lambda samples: float('nan')", "cost: of a sample is nan: it is at least 0"))])


if __name__ == "__main__":
    package.main_with_torch()
