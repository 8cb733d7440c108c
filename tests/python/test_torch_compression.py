"""Gradients of a torch model as factors of low rank, whoever makes the updates; a job that goes on with them."""

import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import HERE, harness  # noqa: E402
from torch_test import TorchTest, lockstep_run  # noqa: E402

WORKER = HERE / "torch_compression.py"
FACTORS = ("--set", "exchange.compression=powersgd", "--set", "exchange.powersgd_rank=4", "--policy", "full")


class CompressionTest(TorchTest):
    def run_with(self, optimizer, *words, name="run"):
        run_dir = self.folder / name
        done = lockstep_run("-n", "2", "--run-dir", run_dir, *words, WORKER, optimizer)
        self.assertEqual(done.returncode, 0, done)
        summary = json.loads((run_dir / "summary.json").read_text())
        self.assertEqual((summary["status"], summary["digest_differs"]), ("completed", []))
        harness.check_epochs(self, self.rounds(run_dir), 256)
        return summary["params_digest"], [line["loss"] for line in self.rounds(run_dir)], done

    def test_all_workers_have_the_same_parameters_and_each_time(self):
        for optimizer in ("sgd", "adamw", "adagrad", "plain"):
            with self.subTest(optimizer):
                digest, losses, done = self.run_with(optimizer, *FACTORS, name=f"{optimizer}-1")
                said = re.findall(r"parameters (.*)$", done.stdout, re.MULTILINE)
                self.assertEqual((len(said), len(set(said))), (2, 1), done.stdout)
                self.assertEqual(self.run_with(optimizer, *FACTORS, name=f"{optimizer}-2")[0], digest)
                other, whole, _ = self.run_with(optimizer, "--policy", "full", name=f"{optimizer}-all")
                self.assertNotEqual(other, digest, "all was exchanged")
                self.assertLess(sum(losses[-8:]), 1.1 * sum(whole[-8:]))

    def test_running_statistics_go_as_they_are(self):
        done = lockstep_run("-n", "2", "--run-dir", self.folder / "run", *FACTORS, WORKER, "sgd", 2, "norm")
        self.assertEqual(done.returncode, 0, done)
        self.assertEqual(len(set(re.findall(r"parameters (.*)$", done.stdout, re.MULTILINE))), 1, done.stdout)

    def test_a_job_goes_on_with_them(self):
        for optimizer in ("sgd", "adagrad"):
            with self.subTest(optimizer):
                run_dir = self.folder / optimizer
                for epochs in (3, 6):
                    done = lockstep_run("-n", "2", "--run-dir", run_dir, *FACTORS, *(["--resume", "--set", "job.epochs=6"] if epochs > 3 else []), WORKER, optimizer,
                                        epochs)
                    self.assertEqual(done.returncode, 0, done)
                    summary = json.loads((run_dir / "summary.json").read_text())
                    self.assertEqual((summary["status"], summary["rounds"], summary["digest_differs"]), ("completed", 8 * epochs, []))


if __name__ == "__main__":
    package.main_with_torch()
