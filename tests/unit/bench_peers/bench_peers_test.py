"""What tools/experiments/bench-peers and tools/experiments/bench-pytorch make of what they have measured."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools" / "experiments" / "peers"))
import pytorch_report  # noqa: E402
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


class PytorchReport(unittest.TestCase):
    def test_a_rate_is_of_what_was_counted_behind_the_warm_up(self):
        steps = [(1, 50), (11, 50), (12, 10), (13, 10), (15, 20)]
        self.assertEqual(pytorch_report.rate(steps, 2), 40 / 4)
        self.assertEqual(pytorch_report.rate(steps, 1), 90 / 14)

    def test_a_step_whose_end_is_not_known_counts_with_the_next_one(self):
        self.assertEqual(pytorch_report.rate([(1, 50), (2, 10), (None, 10), (4, 10), (None, 10)], 1), 30 / 3)
        # The warm-up goes on to the next one, too.
        self.assertEqual(pytorch_report.rate([(1, 50), (None, 50), (4, 10), (5, 7)], 2), 7)

    def test_too_few_steps_are_no_rate(self):
        for steps in ([(1, 5), (2, 5)], [(1, 5), (2, 5), (None, 5)], []):
            with self.assertRaises(ValueError):
                pytorch_report.rate(steps, 2)

    samples = {("ddp", 2, "quiet"): {1: 100, 2: 300, 3: 200}, ("full", 2, "quiet"): {1: 200, 3: 500}, ("auto", 2, "quiet"): {2: 600}}

    def test_ratios_are_of_one_run(self):
        self.assertEqual(pytorch_report.ratio(self.samples, "full", "ddp", 2, "quiet"), 2.25)
        self.assertEqual(pytorch_report.ratio(self.samples, "auto", "ddp", 2, "quiet"), 2)
        self.assertIsNone(pytorch_report.ratio(self.samples, "full", "ddp", 2, "late"))

    def test_the_table_leaves_out_what_was_not_measured(self):
        rows = pytorch_report.rows(self.samples, ["ddp", "full", "auto"], [2], ["quiet", "late"], 64)
        self.assertEqual(rows[0]["step_ms"]["ddp"], 640)
        lines = [line.split() for line in pytorch_report.table(rows, ["ddp", "full", "auto"]).splitlines()]
        self.assertEqual(lines, [["workers,", "pattern", "ddp", "full", "auto"], ["2,", "quiet", "200", "350", "x2.25", "600", "x2.00"],
                                 ["2,", "late", "-", "-", "-"]])


if __name__ == "__main__":
    unittest.main()
