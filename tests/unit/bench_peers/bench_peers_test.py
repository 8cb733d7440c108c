"""What tools/bench-peers makes of what it has measured."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools" / "peers"))
import report  # noqa: E402


class Report(unittest.TestCase):
    samples = {("lockstep", 2, 4096): [100, 300, 200], ("lockstep-tcp", 2, 4096): [400, 600, 400], ("gloo", 2, 4096): [200, 900, 400],
               ("openmpi-tcp", 2, 4096): [100, 300, 200], ("limit:tcp", 2, 4096): [50, 60, 50]}

    def test_ratios_are_paired_by_run(self):
        # 2, 3 and 2 times as long; the medians alone would say the same of 400 to 200.
        self.assertEqual(report.paired_ratio(self.samples, "gloo", "lockstep", 2, 4096), 2)
        self.assertEqual(report.paired_ratio({("a", 2, 4): [1, 10, 100], ("b", 2, 4): [1, 5, 10]}, "a", "b", 2, 4), 2)
        self.assertIsNone(report.paired_ratio(self.samples, "torch", "lockstep", 2, 4096))

    def test_what_goes_over_tcp_is_held_against_ours_over_tcp(self):
        (row,) = report.rows(self.samples, ["lockstep", "lockstep-tcp", "gloo", "openmpi-tcp", "limit:tcp"], 2, [4096])
        self.assertEqual(row["median_us"]["lockstep"], 200)
        self.assertEqual(row["ratio"], {"lockstep-tcp": 2, "gloo": 2, "openmpi-tcp": 0.5, "limit:tcp": 0.25})
        self.assertEqual(row["ratio_over_tcp"], {"gloo": 1})

    def test_the_table_leaves_out_what_was_not_measured(self):
        rows = report.rows(self.samples, ["lockstep", "gloo"], 2, [4096, 8192])
        lines = [line.split() for line in report.table(rows, ["lockstep", "gloo"]).splitlines()]
        self.assertEqual(lines, [["2", "processes", "lockstep", "gloo"], ["4", "KiB", "200", "us", "400", "us", "x2.00", "(tcp", "x1.00)"],
                                 ["8", "KiB", "-", "-"]])

    def test_texts(self):
        self.assertEqual([report.size_text(size) for size in (4, 4096, 1 << 20, 104857600, 1 << 30)],
                         ["4 B", "4 KiB", "1 MiB", "100 MiB", "1 GiB"])
        self.assertEqual([report.time_text(us) for us in (None, 12.4, 1234, 12345, 123456)], ["-", "12 us", "1.23 ms", "12.3 ms", "123 ms"])


if __name__ == "__main__":
    unittest.main()
