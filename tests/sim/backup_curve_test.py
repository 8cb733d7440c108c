"""tools/experiments/backup-curve: the shape of figure 8 of TensorFlow's paper, on virtual time."""

import subprocess
import sys
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "experiments" / "backup-curve"
BUILD = sys.argv.pop(1)


def curve(*words):
    return subprocess.run([sys.executable, "-B", str(TOOL), "--build-dir", BUILD, *map(str, words)], capture_output=True, text=True, timeout=120)


class BackupCurveTest(unittest.TestCase):
    def test_the_normalised_speed_up_rises_peaks_and_falls(self):
        done = curve("--rounds", 150)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[2:]]
        self.assertEqual([row[0] for row in rows], ["0", "1", "2", "3", "4", "5"])
        medians = [float(row[1]) for row in rows]
        self.assertEqual(medians, sorted(medians, reverse=True), "each backup worker makes the step shorter")
        normalised = [float(row[4]) for row in rows]
        self.assertEqual(normalised[0], 1)
        best = normalised.index(max(normalised))
        self.assertIn(best, (2, 3, 4))
        self.assertEqual(normalised[:best + 1], sorted(normalised[:best + 1]))
        self.assertEqual(normalised[best:], sorted(normalised[best:], reverse=True))

    def test_wrong_usage(self):
        done = curve("--slowdown", "pattern=nothing", "--rounds", 3, "-b", 0)
        self.assertEqual(done.returncode, 2)
        self.assertIn("nothing", done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertEqual(curve("-n", 0).returncode, 2)


if __name__ == "__main__":
    unittest.main()
