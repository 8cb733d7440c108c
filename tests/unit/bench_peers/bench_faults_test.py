"""What tools/experiments/bench-faults refuses, and what it makes of the records of its runs. Needs no torch."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

EXPERIMENTS = Path(__file__).resolve().parents[3] / "tools" / "experiments"
sys.path.insert(0, str(EXPERIMENTS / "peers"))
import faults_report as report  # noqa: E402
import faults_script as script  # noqa: E402

EPOCH_STEPS, BATCH, WORKERS = 4, 2, 2
WHOLE = BATCH * WORKERS


class Usage(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = Path(folder.name) / "build"
        (self.build / "bin").mkdir(parents=True)
        (self.build / "bin" / "lockstep-coordinator").touch()

    def test_a_mistake_is_one_line(self):
        for words, says in ((["--seconds", "4"], "--seconds 4: from 5 to 86400"), (["--seconds", "nan"], "nan: expected a number"),
                            (["-n", "1"], "--workers: from 2 to 64"), (["--systems", "ddp,horovod"], "--systems: there is no 'horovod'"),
                            (["--systems", ","], "--systems: one of ddp,"), (["--scenarios", "flood"], "there is no 'flood'"),
                            (["--models", "huge"], "--models: there is no 'huge'"), (["--runs", "0"], "at least 1"),
                            (["--kill-every", "0"], "--kill-every 0: at least 1"),
                            (["--seconds", "30", "--kill-every", "60"], "--kill-every 60: at least 1, and less than twice --seconds"),
                            (["--factor", "0.5"], "--factor: from 1 to 1000"), (["--json", "/nowhere/at/all"], "--json /nowhere/at/all"),
                            (["--keep", self.build], "is there already"), (["--build-dir", "/nowhere"], "lockstep-coordinator is not there"),
                            (["--python", "nofile"], "--python nofile: there is no such program"),
                            (["--python", "/bin/false"], "--python /bin/false: cannot import torch (status 1)")):
            with self.subTest(words=words):
                done = subprocess.run([sys.executable, "-B", EXPERIMENTS / "bench-faults", "--build-dir", self.build, *words],
                                      stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)
                self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
                self.assertRegex(done.stderr, r"\Abench-faults: [^\n]*\n\Z")
                self.assertIn(says, done.stderr)


def share(step, rank):
    first = step % EPOCH_STEPS * WHOLE + rank * BATCH
    return [[first, first + BATCH]]


class Worker:
    """Writes a process's records, as faults_script does."""

    def __init__(self, folder, pid, rank, born, restart=0):
        self.path, self.rank = folder / f"{pid}.jsonl", rank
        self.lines = [{"born": pid, "restart": restart, "at": born}, {"made": "x", "at": born + 2}, {"ready": rank, "at": born + 3}]

    def steps(self, first, last, at, seconds=1, **end):
        for step in range(first, last):
            self.lines.append({"begin": step, "ranges": share(step, self.rank), "at": at})
            at += seconds
            self.lines.append({"end": step, **end, "at": at})
        return self

    def line(self, **values):
        self.lines.append(values)
        return self

    def write(self):
        self.path.write_text("".join(json.dumps(line) + "\n" for line in sorted(self.lines, key=lambda line: line["at"])))


class Recorded(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def worker(self, *arguments):
        return Worker(self.folder, *arguments)

    def measured(self, system, rounds, window, kills):
        return report.measured(system, report.processes(self.folder), rounds, window, kills, EPOCH_STEPS, WHOLE)

    def test_a_line_that_is_cut_off_is_none(self):
        self.assertEqual(report.parsed('{"a": 1}\n{"a": 2'), [{"a": 1}])
        self.assertEqual(report.parsed('{"a'), [])

    def test_ranges(self):
        self.assertEqual(script.ranges_of([4, 5, 6, 9, 0, 1]), [[4, 7], [9, 10], [0, 2]])
        self.assertEqual(script.ranges_of([]), [])

    def ddp(self):
        """Steps 0 to 9, one a second from 10 on; killed in step 10, back at 30 from the checkpoint before step 8."""
        for rank in range(WORKERS):
            worker = self.worker(100 + rank, rank, 5.0).steps(0, 10, 10.0).line(begin=10, ranges=share(10, rank), at=20.0)
            if rank == 0:
                worker.line(saved=0, at=9.0).line(saved=8, at=17.9)
            worker.write()
        return [(20.5, 1)]

    def ddp_again(self):
        for rank in range(WORKERS):
            self.worker(200 + rank, rank, 24.0, 1).steps(8, 18, 30.0).write()

    def test_ddp_does_again_what_was_rolled_back(self):
        kills = self.ddp()
        self.ddp_again()
        figures = self.measured("ddp", None, (10.0, 40.0), kills)
        self.assertEqual(figures["samples_per_s"], 18 * WHOLE / 30)
        self.assertEqual((figures["recomputed"], figures["shrunk"], figures["steps"]), (2 * WHOLE, 0, 18))
        self.assertEqual((figures["lost"], figures["repeated"], figures["epoch_samples"]), (0, 0, 4 * EPOCH_STEPS * WHOLE))
        self.assertEqual(figures["pause_s"], [11.0])  # from the end of step 9 to that of step 8 again
        self.assertEqual((figures["start_s"], figures["rejoin_s"], figures["join_s"]), ([3.5], [10.5], [5.0]))

    def test_ddp_that_is_not_back_has_only_its_checkpoint(self):
        kills = self.ddp()
        figures = self.measured("ddp", None, (10.0, 30.0), kills)
        self.assertEqual((figures["samples_per_s"], figures["recomputed"]), (8 * WHOLE / 20, 2 * WHOLE))
        self.assertEqual((figures["pause_s"], figures["rejoin_s"]), ([10.0], [None]))

    def test_what_ends_behind_the_window_does_not_count(self):
        kills = self.ddp()
        self.ddp_again()
        self.assertEqual(self.measured("ddp", None, (10.0, 35.0), kills)["samples_per_s"], 13 * WHOLE / 25)

    def test_torchft_loses_the_share_of_who_is_away(self):
        """Rank 1 is killed in step 5, and comes back in step 12 without a gradient."""
        self.worker(100, 0, 5.0).steps(0, 5, 10.0, parts=2, counts=True).steps(5, 13, 20.0, parts=1, counts=True).steps(
            13, 18, 28.0, parts=2, counts=True).write()
        self.worker(101, 1, 5.0).steps(0, 5, 10.0, parts=2, counts=True).line(begin=5, ranges=share(5, 1), at=15.0).write()
        self.worker(201, 1, 22.0).steps(12, 13, 27.0, parts=1, counts=False).steps(13, 18, 28.0, parts=2, counts=True).write()
        figures = self.measured("torchft", None, (9.0, 39.0), [(15.5, 1)])
        self.assertEqual(figures["samples_per_s"], (10 * WHOLE + 8 * BATCH) / 30)
        self.assertEqual((figures["lost"], figures["repeated"], figures["shrunk"]), (8 * BATCH, 0, 8))
        self.assertEqual((figures["pause_s"], figures["rejoin_s"], figures["join_s"]), ([6.0], [13.5], [5.0]))

    def test_torchft_counts_a_worker_that_was_killed_behind_the_commit(self):
        self.worker(100, 0, 5.0).steps(0, 6, 10.0, parts=2, counts=True).write()
        self.worker(101, 1, 5.0).steps(0, 5, 10.0, parts=2, counts=True).line(begin=5, ranges=share(5, 1), at=15.0).write()
        self.assertEqual(self.measured("torchft", None, (9.0, 20.0), [])["shrunk"], 0)

    def test_torchft_counts_nobody_who_gave_zeros(self):
        self.worker(100, 0, 5.0).steps(0, 1, 10.0, parts=2, counts=True).write()
        self.worker(101, 1, 5.0).steps(0, 1, 10.0, parts=2, counts=False).write()
        self.assertEqual(self.measured("torchft", None, (9.0, 20.0), [])["shrunk"], 1)

    @staticmethod
    def round(number, epoch, commit, *contributors):
        return {"round": number, "epoch": epoch, "times": {"commit": commit},
                "contributors": [{"worker": worker, "ranges": ranges} for worker, ranges in contributors]}

    def test_lockstep_has_what_its_rounds_say(self):
        """Its clock is 100 s behind; worker 1 is left out of round 1, whose samples come again in round 3."""
        self.worker(100, 0, 50.0).steps(0, 5, 102.0).write()
        self.worker(101, 1, 50.0).steps(0, 1, 102.0).line(begin=2, ranges=[[10, 12]], at=104.2).line(begin=3, ranges=[[6, 8]], at=105.2).line(
            begin=4, ranges=share(4, 1), at=106.2).write()
        rounds = [self.round(0, 0, 3.0, (0, [[0, 2]]), (1, [[2, 4]])), self.round(1, 0, 4.0, (0, [[4, 6]])),
                  self.round(2, 0, 5.0, (0, [[8, 10]]), (1, [[10, 12]])), self.round(3, 0, 6.0, (0, [[12, 14], [14, 16]]), (1, [[6, 8]])),
                  self.round(4, 1, 7.0, (0, [[0, 2]]), (1, [[2, 4]]))]
        figures = self.measured("backup", rounds, (101.0, 111.0), [])
        self.assertEqual([figures[name] for name in ("lost", "repeated", "epoch_samples", "shrunk")], [0, 0, 16, 1])
        self.assertEqual(figures["samples_per_s"], 20 / 10)
        self.assertEqual(figures["unseen"], 2)  # round 3 has 14 and 15 of worker 0, whose script has not
        ends = [step.end for step in report.lockstep_history(report.processes(self.folder), rounds, 111.0).steps]
        self.assertEqual(ends, [103.0, 104.0, 105.0, 106.0, 107.0])

    def test_lost_and_repeated_are_of_whole_epochs_in_the_window(self):
        steps = [report.Step(1.0, 0, {0: [[0, 4]]}),  # before the window
                 report.Step(3.0, 1, {0: [[0, 4]], 1: [[2, 6]]}), report.Step(4.0, 1, {0: [[7, 8]]}),
                 report.Step(5.0, 2, {0: [[0, 1]]})]  # not over
        self.assertEqual(report.lost_and_repeated(steps, 8, 2.0), (1, 2, 8))

    def test_a_pause_ends_with_the_next_kill(self):
        self.assertEqual(report.pauses([1, 2, 3, 7, 8], [(3.5, 0), (7.5, 1)], 20), [4, 12])
        self.assertEqual(report.pauses([], [(3.5, 0)], 20), [16.5])


def figures(rate, **others):
    return {"samples_per_s": rate, "steps": 10, "shrunk": 0, "lost": 0, "repeated": 0, "epoch_samples": 100, "recomputed": 0, "kills": 0, "pause_s": [],
            "start_s": [], "rejoin_s": [], "join_s": [], **others}


class Table(unittest.TestCase):
    runs = {("small", "quiet", "ddp"): {1: figures(100), 2: figures(200)}, ("small", "quiet", "full"): {1: figures(120), 2: figures(220)},
            ("small", "kill", "full"): {1: figures(60, kills=2, shrunk=3, pause_s=[1.0, 2.0], rejoin_s=[5.0, None], start_s=[1.0, None],
                                                   join_s=[0.5, None], loss_difference=-0.25, distance=0.125, equal=False),
                                        2: figures(110, kills=2, lost=7, pause_s=[4.0, 0.5], rejoin_s=[7.0, 9.0], start_s=[1.0, 2.0],
                                                   join_s=[0.5, 0.5], loss_difference=-0.75, distance=0.125, equal=False)}}

    def test_ratios_are_of_one_run(self):
        rows = report.rows(self.runs, ["small"], ["quiet", "kill"], ["ddp", "full"])
        self.assertEqual([(row["scenario"], row["system"]) for row in rows], [("quiet", "ddp"), ("quiet", "full"), ("kill", "full")])
        killed = rows[2]
        self.assertEqual((killed["of_own"], killed["samples_per_s"]), (0.5, 85))
        self.assertAlmostEqual(killed["of_ddp"], (0.6 + 0.55) / 2)
        self.assertEqual((killed["kills"], killed["rejoined"], killed["rejoin_s"], killed["pause_s"], killed["lost"]), (4, 3, 7, 1.5, 7))

    def test_a_line_for_each_system(self):
        lines = report.table(report.rows(self.runs, ["small"], ["quiet", "kill"], ["ddp", "full"])).splitlines()
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        self.assertEqual(len({len(line) for line in lines}), 1)
        self.assertEqual(tuple(cells[0]), report.COLUMNS)
        self.assertEqual(cells[4], ["small, kill", "full", "85", "0.50", "0.57", "7", "0", "0", "3 of 20", "1.5", "7.0", "1.0", "0.5", "3 of 4", "-0.5000",
                                    "1.2e-01"])
        self.assertEqual(cells[2][:5] + cells[2][9:], ["small, quiet", "ddp", "150", "1.00", "1.00", "-", "-", "-", "-", "-", "-", "-"])

    def test_without_a_whole_epoch_nothing_is_said_of_lost_samples(self):
        (line,) = report.table(report.rows({("small", "quiet", "ddp"): {1: figures(1, epoch_samples=0)}}, ["small"], ["quiet"], ["ddp"])).splitlines()[2:]
        self.assertEqual([cell.strip() for cell in line.split("|")][6:9], ["-", "-", "0"])

    def test_equal_parameters_are_told(self):
        runs = {("small", "kill", "full"): {1: figures(1, distance=0.0, equal=True)}}
        self.assertIn("| same bits |", report.table(report.rows(runs, ["small"], ["kill"], ["full"])))


if __name__ == "__main__":
    unittest.main()
