"""tools/experiments/bench-pytorch: a small run beside torch's own DistributedDataParallel."""

import json
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import harness  # noqa: E402

BATCH, STALL_MS = 8, 20


class BenchTest(unittest.TestCase):
    def bench(self, *arguments):
        done = subprocess.run([sys.executable, harness.TOOLS / "experiments" / "bench-pytorch", "--build-dir", harness.BIN.parent, "--python",
                               package.TORCH_PYTHON, "-n", "2", "--runs", "1", "--batch", str(BATCH), "--steps", "10", *arguments],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300 * harness.PATIENCE, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def test_one_script_in_each_system(self):
        done = self.bench("--model", "cnn", "--systems", "ddp,full,full-tcp", "--patterns", "quiet,stall", "--json", "-")
        result = json.loads(done.stdout)
        self.assertEqual(result["notes"], [])
        quiet, stall = result["rows"]
        self.assertEqual([quiet["pattern"], stall["pattern"]], ["quiet", "stall"])
        for system in ("ddp", "full", "full-tcp"):
            self.assertGreater(quiet["samples_per_s"][system], 0)
            # Nobody goes on without the rank that sleeps.
            self.assertGreater(stall["step_ms"][system], STALL_MS)
        self.assertAlmostEqual(quiet["times_ddp"]["full"], quiet["samples_per_s"]["full"] / quiet["samples_per_s"]["ddp"])
        self.assertEqual(len(result["load_1min"]["2 quiet"]), 3)

    def test_work_moves_away_from_who_is_late(self):
        done = self.bench("--model", "transformer", "--systems", "ddp,flexrr", "--patterns", "late")
        heading, row = done.stdout.splitlines()[2:4]
        self.assertEqual(heading.split(), ["workers,", "pattern", "ddp", "flexrr"])
        self.assertRegex(row, r"^\s*2, late +\d+ +\d+ x\d+\.\d\d$")
        self.assertIn("run 1 of 1, 2 workers, late, samples a second: ddp ", done.stderr)


if __name__ == "__main__":
    package.main_with_torch()
