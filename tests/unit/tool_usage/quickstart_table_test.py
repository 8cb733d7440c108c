"""tools/lib/quickstart_table.py: its table, and the line that says when the runs do not compare.

usage: quickstart_table_test.py QUICKSTART_TABLE
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TABLE = Path(sys.argv.pop()).resolve()
TICK = os.sysconf("SC_CLK_TCK")
MANY, FEW = len(os.sched_getaffinity(0)) + 1, 1  # workers


class QuickstartTable(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_of(self, name, workers=FEW):
        (self.folder / name).mkdir()
        (self.folder / name / "summary.json").write_text(json.dumps({
            "status": "completed", "policy": name, "workers": workers, "wall_seconds": 10, "rounds": 200, "test_accuracy": 0.89, "samples_dropped": 0}))
        return f"{name}={self.folder / name}"

    def sample(self, name, clock, used, ours):
        """As tools/quickstart notes them: `used` and `ours` are processor seconds, half of `used` in the kernel."""
        half = int(used * TICK / 2)
        (self.folder / name).write_text(f"0m0.001s 0m0.002s\n{int(ours) // 60}m{ours % 60:.3f}s 0m0.000s\n"
                                        f"cpu  {half} 0 {half} 99999 99999 0 0 0 0 0\n{clock:.2f} 1.00\n")

    def table(self, *runs, samples=True):
        more = ["--samples", str(self.folder)] if samples else []
        done = subprocess.run([sys.executable, "-B", TABLE, *more, *runs], capture_output=True, text=True, check=False, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def told(self, share, workers=FEW):
        """What is told of a run in which other programs used this share of the processors."""
        cores = os.cpu_count()
        self.sample("full.before", clock=100, used=1000, ours=50)
        self.sample("full.after", clock=110, used=1000 + 10 * cores * (0.5 + share), ours=50 + 10 * cores * 0.5)
        return self.table(self.run_of("full", workers)).partition(f"  {self.folder / 'full'}\n")[2]

    def test_an_idle_machine_has_no_such_line(self):
        self.assertEqual(self.told(0.05), "")

    def test_other_programs_are_told(self):
        self.assertEqual(self.told(0.4), "Other programs used 40 % of this machine's processors during a run, so the times do not compare. "
                         "Repeat this on an idle machine.\n")

    def test_more_workers_than_processors_are_told(self):
        self.assertEqual(self.told(0.05, MANY), f"{MANY} workers share {MANY - 1} processors, so the times compare only roughly. "
                         "Use a larger machine to compare policies.\n")

    def test_the_busiest_run_counts(self):
        for name, share in (("full", 0.3), ("backup", 0.05)):
            self.sample(f"{name}.before", clock=5, used=0, ours=0)
            self.sample(f"{name}.after", clock=15, used=10 * os.cpu_count() * share, ours=0)
        self.assertIn("used 30 % of", self.table(self.run_of("full"), self.run_of("backup")))

    def test_without_samples_there_is_the_table_alone(self):
        self.assertEqual(len(self.table(self.run_of("full"), samples=False).splitlines()), 3)


if __name__ == "__main__":
    unittest.main()
