"""tools/experiments/auto-gap: policy `auto` stays within its bounds of the best fixed policy. Simulated time is exact, so this is no measurement."""

import subprocess
import sys
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "experiments" / "auto-gap"
BUILD = sys.argv.pop(1)


def gap(*words):
    return subprocess.run([sys.executable, "-B", str(TOOL), "--build-dir", BUILD, *map(str, words)], capture_output=True, text=True, timeout=600)


class AutoGapTest(unittest.TestCase):
    def assert_within_bounds(self, *words):
        done = gap("--seeds", 1, "--epochs", 2, *words)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("0 of 9 are over the bound", done.stdout)

    def test_eight_workers_with_many_units(self):
        self.assert_within_bounds("-n", 8, "--units", 128)

    def test_sixteen_workers_with_few_units(self):
        self.assert_within_bounds("-n", 16, "--units", 64)

    def test_what_is_behind_is_named(self):
        done = gap("--seeds", 1, "--epochs", 1, "-n", 8, "--units", 16, "--patterns", "one-slow", "--policy", "full", "--policies", "backup")
        self.assertEqual(done.returncode, 1, done.stdout)
        row = done.stdout.splitlines()[2].strip("| ").split(" | ")
        self.assertEqual(row[:3] + [row[4]], ["one-slow", "8", "16", "backup"])
        self.assertIn("**over**", row[6])
        self.assertIn("1 of 1 are over the bound", done.stdout)

    def test_wrong_usage(self):
        self.assertEqual(gap("--patterns", "nothing").returncode, 2)
        self.assertEqual(gap("-n", 8, "--units", 4).returncode, 2)
        done = gap("-n", 2, "--units", 2, "--policies", "nothing", "--patterns", "none")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("nothing", done.stderr)


if __name__ == "__main__":
    unittest.main()
