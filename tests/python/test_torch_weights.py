"""Losses that are means over tokens: the round's is a mean over all of its tokens, however its samples are cut and moved."""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import HERE, harness  # noqa: E402
from torch_test import LOOP, PREPARE, SCRIPT, TorchTest, lockstep_run, run  # noqa: E402

WORKER = HERE / "torch_weights.py"


class WeightsTest(TorchTest):
    def alone(self, optimizer, rounds):
        """What torch comes to with the rounds' batches, each a whole step. On a busy machine a round may leave units to a later one."""
        batches = [sorted(p for c in line["contributors"] for first, end in c["ranges"] for p in range(first, end)) for line in rounds]
        (self.folder / "batches").write_text(json.dumps(batches))
        done = run(WORKER, f"alone={self.folder / 'batches'}", f"optimizer={optimizer}", f"save={self.folder / 'alone'}")
        self.assertEqual(done.returncode, 0, done)
        return json.loads((self.folder / "alone").read_text())

    def together(self, name, policy, *words):
        run_dir, saved = self.folder / f"run-{name}", self.folder / f"saved-{name}"
        done = lockstep_run("-n", "3", "--policy", policy, "--slowdown", "worker=2,factor=6", "--set", "job.units=12",
                            "--set", "emulate.unit_time=2ms", "--set", "liveness.timeout=60s", "--set", "optimizer.linear_scaling=false", "--run-dir", run_dir,
                            WORKER, f"save={saved}", *words)
        self.assertEqual(done.returncode, 0, done)
        rounds = self.rounds(run_dir)
        harness.check_epochs(self, rounds, 120)
        return rounds, json.loads(saved.read_text())["parameters"]

    def check_same(self, found, wanted, places):
        self.assertEqual(len(found), len(wanted))
        self.assertLess(max(abs(a - b) for a, b in zip(found, wanted, strict=True)), places)

    def test_updates_are_means_over_tokens_whoever_computes_them(self):
        for optimizer, say in (("sgd", "weight"), ("rmsprop", "weigh")):
            with self.subTest(optimizer):
                rounds, parameters = self.together(optimizer, "full+flexrr", f"optimizer={optimizer}", f"say={say}")
                alone = self.alone(optimizer, rounds)
                self.assertTrue(any(line["moved"] for line in rounds), "no work has moved")
                self.assertEqual([line["divisor"] for line in rounds], [tokens for _, tokens in alone["counted"]])
                self.check_same([line["loss"] for line in rounds], [loss for loss, _ in alone["counted"]], 2e-4)
                self.check_same(parameters, alone["parameters"], 2e-4)

    def test_without_weights_they_are_means_over_samples(self):
        """So that the test above can tell them apart."""
        rounds, parameters = self.together("samples", "full", "say=no")
        alone = self.alone("sgd", rounds)
        self.assertFalse(any("divisor" in line for line in rounds))
        self.assertGreater(max(abs(a - b) for a, b in zip(parameters, alone["parameters"], strict=True)), 0.05)

    def test_a_weight_that_is_a_float_is_looked_at_once(self):
        """And not compared with each whole number below it, which nothing can interrupt."""
        done = run(self.script("""
            from lockstep import _metrics
            class Counted(float):
                looks = 0
                def __eq__(self, other):
                    Counted.looks += 1
                    return float.__eq__(self, other)
                def __ne__(self, other):
                    Counted.looks += 1
                    return float.__ne__(self, other)
                __hash__ = float.__hash__
            assert _metrics.weight(Counted(1000.0)) == 1000
            assert Counted.looks < 4, Counted.looks
            """))
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)

    def test_what_a_weight_may_not_be_is_one_line(self):
        weighed = LOOP.replace("job.backward(loss)", "job.backward(loss, weight={})")
        norm = SCRIPT.replace("nn.Linear(1, 2)", "nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2))")
        self.assert_outcomes([
            (SCRIPT + PREPARE + weighed.format("len(x) + 0.5"), 2, "is not a whole number from 0 to 2^31"),
            (SCRIPT + PREPARE + weighed.format("-1"), 2, "is not a whole number from 0 to 2^31"),
            (SCRIPT + PREPARE + weighed.format("True"), 2, "is not a whole number from 0 to 2^31"),
            (SCRIPT + PREPARE + weighed.format("'many'"), 2, "is not a whole number from 0 to 2^31"),
            (SCRIPT + PREPARE + weighed.format("torch.tensor([1, 2])"), 2, "a tensor of 2 values is not a whole number from 0 to 2^31"),
            (SCRIPT + PREPARE + weighed.format("torch.tensor(2.5)"), 2, "2.5 is not a whole number from 0 to 2^31: weigh in smaller units, as round(1000 * "),
            (SCRIPT + PREPARE + weighed.format("round(1000 * 2.5)"), 0, ""),
            (SCRIPT + PREPARE + weighed.format("torch.tensor(1e6)"), 0, ""),
            (SCRIPT + PREPARE + weighed.format("float('inf')"), 2, "is not a whole number from 0 to 2^31"),
            (SCRIPT + PREPARE + weighed.format("torch.tensor(float('nan'))"), 2, "is not a whole number from 0 to 2^31"),
            (SCRIPT + PREPARE + weighed.format("2 if job.round == 0 else None"), 2, "this batch has no weight (job.weigh), and those before it had one"),
            (SCRIPT + PREPARE + weighed.format("None if job.round == 0 else 2"), 2, "this batch has a weight (job.weigh), and those before it had none"),
            (SCRIPT + PREPARE + LOOP.replace("        opt.step()", "        job.weigh(3)\n        opt.step()"), 2, "before its backward pass"),
            (SCRIPT + "job.weigh(3)\n", 2, "before its backward pass"),
            (norm + PREPARE + weighed.format("0"), 2, "a batch of weight 0, and 0.running_mean is averaged"),
            (SCRIPT + PREPARE + weighed.format("0"), 0, ""),  # nothing counts, and nothing changes
        ])


if __name__ == "__main__":
    package.main_with_torch()
