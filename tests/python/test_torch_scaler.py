"""A GradScaler: the same as without one, whoever computes with which scale; a batch that overflows counts for nothing, and its scaler hears."""

import json
import math
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import HERE, harness  # noqa: E402
from torch_test import TorchTest, lockstep_run, run  # noqa: E402

WORKER = HERE / "torch_scaler.py"
TOO_MUCH = 2.0**127  # of any gradient of this model


def counts(line):
    return line.get("divisor", line["samples"])


class ScalerTest(TorchTest):
    def alone(self, *words):
        done = run(WORKER, "alone=1", f"save={self.folder / 'alone'}", *words)
        self.assertEqual(done.returncode, 0, done)
        return json.loads((self.folder / "alone").read_text())["values"]

    def together(self, name, policy, *words, units=12):
        run_dir, saved = self.folder / f"run-{name}", self.folder / f"saved-{name}"
        done = lockstep_run("-n", "3", "--policy", policy, "--slowdown", "worker=2,factor=6", "--set", f"job.units={units}",
                            "--set", "emulate.unit_time=2ms", "--set", "liveness.timeout=60s", "--run-dir", run_dir, WORKER, f"save={saved}", *words)
        self.assertEqual(done.returncode, 0, done)
        rounds = self.rounds(run_dir)
        harness.check_epochs(self, rounds, 120)
        return rounds, json.loads(saved.read_text())

    def check_near(self, found, wanted, places):
        self.assertEqual(len(found), len(wanted))
        self.assertLess(max(abs(a - b) for a, b in zip(found, wanted, strict=True)), places)

    def test_updates_are_as_without_a_scale_whoever_computes_them(self):
        for words, places in ((["optimizer=sgd"], 2e-4), (["optimizer=rmsprop"], 2e-4), (["half=1"], 2e-2)):
            with self.subTest(words):
                alone = self.alone(*words)
                rounds, done = self.together(words[0].replace("=", "-"), "full+flexrr", *words)
                self.assertTrue(any(line["moved"] for line in rounds), "no work has moved")
                self.assertEqual(list(map(counts, rounds)), [24] * 20)
                self.check_near(done["values"], alone, places)

    def test_batches_that_overflow_count_for_nothing_and_lower_the_scale(self):
        alone = self.alone()
        rounds, done = self.together("overflow", "full+flexrr", f"scale={TOO_MUCH}")
        self.assertLess(counts(rounds[0]), 24)
        self.assertEqual(counts(rounds[-1]), 24)
        self.assertTrue(all(math.isfinite(line["loss"]) for line in rounds if counts(line) > 0))
        self.assertLess(done["scale"], TOO_MUCH)
        self.assertTrue(all(map(math.isfinite, done["values"])))
        self.assertLess(rounds[-1]["loss"], 0.5 * max(line["loss"] for line in rounds[:8] if counts(line) > 0))
        self.assertGreater(max(abs(a - b) for a, b in zip(done["values"], alone, strict=True)), 1e-3, "the two cannot be told apart")

    def test_a_job_of_one_goes_on(self):
        done = run(WORKER, f"scale={TOO_MUCH}", f"save={self.folder / 'one'}")
        self.assertEqual(done.returncode, 0, done)
        found = json.loads((self.folder / "one").read_text())
        self.assertLess(found["scale"], TOO_MUCH)
        self.assertTrue(all(map(math.isfinite, found["values"])))

    def test_running_statistics_are_those_of_all_batches(self):
        rounds, done = self.together("norm", "full", "norm=1", f"scale={TOO_MUCH}", units=3)
        self.assertFalse(any("divisor" in line for line in rounds))
        self.assertTrue(all(map(math.isfinite, done["values"])))
        self.assertLess(done["scale"], TOO_MUCH)


if __name__ == "__main__":
    package.main_with_torch()
