"""tools/compare and tools/check-run over run directories made here."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from xml.etree import ElementTree

TOOLS = Path(__file__).resolve().parents[3] / "tools"
sys.path.insert(0, str(TOOLS / "lib"))
from lockstep_compare import charts, measure  # noqa: E402


def make_run(folder, rounds=6, workers=2, unit=8, slow=1.0, change=None):
    """Each worker computes one unit of 8 samples in 0.1 s, the last one `slow` times as long; a round ends with the last of them."""
    folder.mkdir(parents=True)
    records = []
    at = 1.0
    for number in range(rounds):
        units = [{"worker": w, "range": [unit * (number * workers + w), unit * (number * workers + w + 1)], "start": at,
                  "end": at + 0.1 * (slow if w == workers - 1 else 1)} for w in range(workers)]
        end = max(u["end"] for u in units)
        records.append({
            "round": number, "epoch": 0, "attempts": [], "policy": "full+none", "reason": "", "units": units, "excluded": [], "moved": [],
            "dropped": [], "requeued": [], "loss": 2.0 / (number + 1), "samples": unit * workers, "learning_rate": 0.1, "digest": None,
            "contributors": [{"worker": u["worker"], "part": 0, "weight": 1, "samples": unit, "ranges": [u["range"]]} for u in units],
            "times": {"start": at, "ready": {str(u["worker"]): u["end"] for u in units},
                      "delivered": {str(u["worker"]): u["end"] for u in units}, "commit": end, "applied": end}})
        at = end
    summary = {"workers": workers, "epochs": 1, "rounds": rounds, "wall_seconds": at, "test_accuracy": 0.9, "train_loss": 0.3, "samples_moved": 0,
               "samples_requeued": 0, "samples_dropped": 0, "samples_counted": unit * workers * rounds, "emulated": slow > 1}
    evaluations = [{"round": r, "epoch": 0, "samples": 10, "loss": 1, "accuracy": 0.5 + 0.1 * r} for r in range(rounds)]
    if change:
        change(records, summary)
    (folder / "rounds.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    (folder / "evaluations.jsonl").write_text("".join(json.dumps(e) + "\n" for e in evaluations))
    (folder / "summary.json").write_text(json.dumps(summary))
    return measure.Run(folder)


class MeasureTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def check(self, *words):
        return subprocess.run([str(TOOLS / "check-run"), *map(str, words)], capture_output=True, text=True, timeout=60)

    def test_equal_workers_are_ideal(self):
        run = make_run(self.folder / "a")
        self.assertAlmostEqual(run.of_ideal(), 1.0, 6)
        self.assertAlmostEqual(run.samples_per_second(), 160, 3)

    def test_a_slow_worker_costs_what_it_keeps_the_other_from(self):
        # Speeds 80 and 20 samples/s: 16 samples take 0.16 s; waiting for the slow one 0.4 s.
        run = make_run(self.folder / "a", slow=4)
        self.assertAlmostEqual(run.of_ideal(), 0.4 / 0.16, 6)
        shares = run.attribution()
        self.assertAlmostEqual(shares[0]["waiting"] / shares[0]["compute"], 3, 3)
        self.assertAlmostEqual(shares[1]["waiting"], 0, 6)

    def test_a_worker_that_is_left_out_keeps_its_last_known_speed(self):
        def leave_out(records, summary):
            for record in records[2:]:
                record["requeued"] = [record["units"].pop()["range"]]
                record["contributors"].pop()
                record["excluded"] = [1]
                record["samples"] = 8
                record["times"]["commit"] = record["times"]["start"] + 0.1
            for before, record in zip(records[1:], records[2:]):
                length = record["times"]["commit"] - record["times"]["start"]
                record["times"]["commit"] = before["times"]["commit"] + length

        run = make_run(self.folder / "a", slow=4, change=leave_out)
        # 8 samples in 0.1 s, while 100 samples/s would be possible.
        self.assertAlmostEqual(run.of_ideal(), (0.1 / 8) / (1 / 100), 3)

    @staticmethod
    def leave_out_the_last_worker(records, summary):
        """Of every round: as long as a quick worker's unit, over that alone."""
        at = records[0]["times"]["start"]
        for record in records:
            unit = record["units"][0]
            record["requeued"] = [record["units"].pop()["range"]]
            record["contributors"].pop()
            record["excluded"] = [1]
            record["samples"] = 8
            unit["start"], unit["end"] = at, at + 0.1
            record["times"].update(start=at, commit=at + 0.1, applied=at + 0.1, ready={"0": at + 0.1}, delivered={"0": at + 0.1})
            at += 0.1
        summary.update(samples_counted=8 * len(records), epochs=0)

    def test_a_worker_that_never_counts_is_as_fast_as_in_other_runs(self):
        backup = make_run(self.folder / "backup", slow=1.5, change=self.leave_out_the_last_worker)
        full = make_run(self.folder / "full", slow=1.5)
        self.assertIsNone(backup.of_ideal())
        self.assertEqual(measure.know_speeds({"full": [full], "backup": [backup]}), set())
        # Speeds 80 and 53.3 samples/s: waiting for the slow one is the quicker way.
        self.assertAlmostEqual(full.of_ideal(), 0.15 / 16 * (80 + 80 / 1.5), 6)
        self.assertAlmostEqual(backup.of_ideal(), 0.1 / 8 * (80 + 80 / 1.5), 6)

    def test_a_speed_that_is_of_no_round_is_that_of_the_nearest(self):
        def leave_out(records, summary):
            for number, record in enumerate(records):
                record["units"][1]["end"] = record["units"][1]["start"] + (0.1 if number == 1 else 0.4)
                if number in (2, 3, 4):
                    record["units"].pop()
                    record["excluded"] = [1]

        run = make_run(self.folder / "a", rounds=7, change=leave_out)
        self.assertEqual([round(speeds[1]) for speeds in run.speeds()], [20, 80, 80, 80, 20, 20, 20])

    def test_what_a_worker_computes_over_several_commits_is_no_waiting(self):
        def carry(records, summary):
            for number, record in enumerate(records):
                if number % 3 != 2:
                    record["units"].pop()
                    record["carried"] = [1]
                else:
                    record["units"][1]["start"] = records[number - 2]["units"][0]["start"]

        run = make_run(self.folder / "a", rounds=9, change=carry)
        shares = run.attribution()
        self.assertAlmostEqual(shares[1]["compute"], 0.6, 6)
        self.assertAlmostEqual(shares[1]["waiting"], 0, 6)

    def test_a_unit_has_moved_once_however_often_it_changed_hands(self):
        moves = [{"from": 0, "to": 1, "range": [0, 8]}, {"from": 1, "to": 2, "range": [0, 8]}, {"from": 0, "to": 1, "range": [8, 16]},
                 {"from": 1, "to": 0, "range": [8, 16]}]
        self.assertEqual(measure.moved_units({"moved": moves}), {0})

    def test_times_of_rounds_are_of_those_rounds(self):
        run = make_run(self.folder / "a")
        self.assertEqual([record["round"] for record, _ in run.timed_rounds()], [3, 4, 5])

    def test_time_to_accuracy_is_that_of_the_commit(self):
        run = make_run(self.folder / "a")
        self.assertAlmostEqual(run.seconds_to(0.75), run.rounds[3]["times"]["commit"])
        self.assertIsNone(run.seconds_to(1.5))

    def test_each_sample_counts_once(self):
        self.assertEqual(measure.check_samples(make_run(self.folder / "a")), [])
        result = self.check(self.folder / "a")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("96 samples: each counted once", result.stdout)

    def test_a_sample_that_counts_twice_is_found(self):
        def twice(records, summary):
            records[3]["contributors"][0]["ranges"] = records[2]["contributors"][0]["ranges"]

        make_run(self.folder / "a", change=twice)
        result = self.check(self.folder / "a")
        self.assertEqual(result.returncode, 1)
        self.assertIn("epoch 0: samples 32 to 40 count twice, again in round 3", result.stdout)
        self.assertIn("epoch 0: 8 samples of 96 do not count, 0 are said to be dropped", result.stdout)

    def test_a_sample_that_does_not_count_is_found(self):
        def lose(records, summary):
            records[3]["contributors"].pop()
            records[3]["samples"] = 8
            summary["samples_counted"] -= 8

        make_run(self.folder / "a", change=lose)
        self.assertIn("8 samples of 96 do not count", self.check(self.folder / "a").stdout)

    def test_a_broken_file_is_one_line(self):
        make_run(self.folder / "a")
        (self.folder / "a" / "rounds.jsonl").write_text("{}\nnot json\n")
        result = self.check(self.folder / "a")
        self.assertEqual(result.returncode, 2)
        self.assertRegex(result.stderr, r"\Acheck-run: .*rounds.jsonl:2: .*\n\Z")

    def test_a_job_that_still_runs(self):
        def next_epoch(records, _):
            records[5]["epoch"] = 1
            for contribution in records[5]["contributors"]:
                contribution["ranges"] = [[begin - 80, end - 80] for begin, end in contribution["ranges"]]

        make_run(self.folder / "a", change=next_epoch)
        with open(self.folder / "a" / "rounds.jsonl", "a") as rounds:
            rounds.write('{"round": 6, "ep')
        (self.folder / "a" / "summary.json").unlink()
        result = self.check(self.folder / "a")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("6 rounds, 1 finished epochs, 96 samples: each counted once, 0 dropped; the job has not ended", result.stdout)

    def test_one_round_is_enough(self):
        self.assertRaises(measure.BadRun, make_run, self.folder / "a", rounds=1)
        result = self.check(self.folder / "a")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("16 samples: each counted once", result.stdout)

    def test_positions_that_an_epoch_does_not_have_are_found(self):
        make_run(self.folder / "a")
        result = self.check(self.folder / "a", "--samples", 7)
        self.assertEqual(result.returncode, 1)
        self.assertIn("epoch 0: positions up to 96 count, where an epoch has 7 samples", result.stdout)

    def test_what_is_no_run_is_one_line(self):
        make_run(self.folder / "a")
        rounds, summary = self.folder / "a" / "rounds.jsonl", self.folder / "a" / "summary.json"
        whole = rounds.read_bytes()
        for path, content, said in ((summary, b"{}", "summary.json: there is no 'epochs'"), (summary, b"[]", "is no record"),
                                    (rounds, b"\xff\xfe\x00", "rounds.jsonl: is no text"), (rounds, b"{}\n", "rounds.jsonl:1: there is no 'round'"),
                                    (rounds, whole.replace(b'"ranges": [[', b'"ranges": ["x", ['), r"rounds.jsonl:1: contributors\[0\].ranges\[0\] is no list of 2")):
            kept = path.read_bytes()
            path.write_bytes(content)
            result = self.check(self.folder / "a")
            self.assertEqual(result.returncode, 2, content)
            self.assertRegex(result.stderr, rf"\Acheck-run: .*{said}.*\n\Z")
            path.write_bytes(kept)
        result = self.check(self.folder / "none")
        self.assertEqual((result.returncode, result.stderr), (2, f"check-run: {self.folder}/none/rounds.jsonl: No such file or directory\n"))
        rounds.unlink()
        os.mkfifo(rounds)
        result = self.check(self.folder / "a")
        self.assertEqual((result.returncode, result.stderr), (2, f"check-run: {rounds}: is not a regular file\n"))
        result = self.check(self.folder / ("x" * 300))
        self.assertEqual(result.returncode, 2)
        self.assertRegex(result.stderr, r"\Acheck-run: .*x/rounds.jsonl: File name too long\n\Z")


class CompareTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.config = self.folder / "job.ini"
        self.config.write_text("[job]\nepochs = 1\n")

    def compare(self, *words):
        return subprocess.run([str(TOOLS / "compare"), "--config", str(self.config), *map(str, words)], capture_output=True, text=True, timeout=60)

    def test_a_report_of_what_is_there(self):
        out = self.folder / "out"
        for pattern, slow in (("none", 1), ("one-slow", 4)):
            for policy in ("full", "flexrr"):
                for run in (1, 2):
                    make_run(out / pattern / f"{policy}-{run}", slow=slow if policy == "full" else 1)
        result = self.compare("--out", out, "--report-only", "--runs", 2, "--policies", "full,flexrr", "--patterns", "none,one-slow", "-n", 2)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"(?m)^full +400\.0 +160\.0 +2\.50 ")
        self.assertIn("emulated", result.stdout)
        rows = (out / "results.csv").read_text().splitlines()
        self.assertEqual(len(rows), 5)
        page = (out / "report.html").read_text()
        self.assertIn('<span class="badge">emulated</span>', page)
        self.assertNotIn("<script", page)
        self.assertNotIn("http://", page)
        self.assertIn("results.csv, report.html, overview.svg, samples.svg, to-target.svg", result.stdout)
        for name in ("overview", "samples", "to-target"):
            ElementTree.fromstring((out / f"{name}.svg").read_text())
        for svg in page.split("<svg ")[1:]:
            ElementTree.fromstring("<svg " + svg.split("</svg>")[0] + "</svg>")

    def test_a_report_takes_from_the_runs_how_many_there_are_and_of_how_many_workers(self):
        out = self.folder / "out"
        words = ["--out", out, "--report-only", "--policies", "full", "--patterns", "one-slow"]
        for run in (1, 2):
            make_run(out / "one-slow" / f"full-{run}", workers=4)
        result = self.compare(*words)  # of 5 runs three are not there
        self.assertEqual(result.returncode, 1, result.stderr)
        said = "4 workers, job.ini, real jobs, medians of 2 runs"
        self.assertIn(said + "\n", result.stdout)
        page = (out / "report.html").read_text()
        self.assertIn(f"<p class='about'>{said}</p>", page)
        self.assertIn("<code>worker=3,factor=4</code>", page)
        self.assertEqual(self.compare(*words, "-n", 4, "--runs", 2).returncode, 0)
        other = self.compare(*words, "-n", 8)
        self.assertEqual((other.returncode, other.stdout, other.stderr),
                         (2, "", f"compare: --workers 8: {out}/one-slow/full-1 is a run of 4\n"))
        make_run(out / "none" / "full-1", workers=4)
        self.assertIn("4 workers, job.ini, real jobs, medians of 1 to 2 runs", self.compare(*words[:-1], "none,one-slow").stdout)
        make_run(out / "one-slow" / "full-3", workers=3)
        mixed = self.compare(*words)
        self.assertEqual((mixed.returncode, mixed.stdout, mixed.stderr),
                         (2, "", f"compare: {out}/one-slow/full-1 is a run of 4 workers, {out}/one-slow/full-3 of 3\n"))

    def test_a_policy_without_a_run_under_the_first_pattern_is_in_all_charts(self):
        out = self.folder / "out"
        for pattern, policies in (("none", ("full", "auto")), ("one-slow", ("full", "flexrr", "auto"))):
            for policy in policies:
                make_run(out / pattern / f"{policy}-1")
        self.compare("--out", out, "--report-only", "--runs", 1, "--policies", "full,flexrr,auto", "--patterns", "none,one-slow")
        for name in ("overview", "samples"):
            chart = (out / f"{name}.svg").read_text()
            self.assertIn("<title>one-slow, flexrr: ", chart)
            self.assertRegex(chart, r'class="s1"/><text [^>]*>flexrr</text>')
        page = (out / "report.html").read_text()
        self.assertIn("<title>one-slow, flexrr: ", page)
        legends = [key.split("</div>")[0] for key in page.split('<div class="legend">')[1:]]
        colours = {"full": "k0", "flexrr": "k1", "auto": "k2"}
        for key, policies in ((legends[0], colours), (legends[1], ("full", "auto")), (legends[3], colours)):  # between them, one of times
            self.assertEqual(key, "".join(f'<span><i class="{colours[policy]}"></i>{policy}</span>' for policy in policies))
        section = page.split("<h2>none</h2>")[1].split("<h2>")[0]
        self.assertRegex(section, r'class="line l2"><title>auto</title>')
        self.assertNotIn("l1", section)

    def test_rows_are_in_the_order_that_was_asked_for(self):
        out = self.folder / "out"
        for policy, run in (("full", 2), ("auto", 1), ("auto", 2)):
            make_run(out / "none" / f"{policy}-{run}")
        result = self.compare("--out", out, "--report-only", "--runs", 2, "--policies", "full,auto", "--patterns", "none")
        self.assertRegex(result.stdout, r"(?m)^full .*\nauto ")

    def test_a_report_says_whose_speed_no_run_tells(self):
        out = self.folder / "out"
        words = ["--out", out, "--report-only", "--runs", 1, "--patterns", "none", "-n", 2]
        make_run(out / "none" / "backup-1", slow=1.5, change=MeasureTest.leave_out_the_last_worker)
        make_run(out / "none" / "full-1", slow=1.5)
        alone = self.compare(*words, "--policies", "backup")
        self.assertEqual(alone.returncode, 0, alone.stderr)
        self.assertRegex(alone.stdout, r"(?m)^backup +100\.0 +– +– +80 ")
        self.assertIn("none: worker 1 computed nothing that counts in any run, so its speed and the ideal are not known", alone.stdout)
        both = self.compare(*words, "--policies", "full,backup")
        self.assertRegex(both.stdout, r"(?m)^full +150\.0 +120\.0 +1\.25 +107 ")
        self.assertRegex(both.stdout, r"(?m)^backup +100\.0 +120\.0 +1\.67 +80 ")
        self.assertNotIn("not known", both.stdout)

    def test_a_policy_of_ones_own_has_a_name(self):
        out = self.folder / "out"
        make_run(out / "none" / "full-1")
        make_run(out / "none" / "average-1")
        words = ["--out", out, "--report-only", "--runs", 1, "--policies", "full", "--patterns", "none", "-n", 2]
        result = self.compare(*words, "--policy", "average=local,local.steps=4")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"(?m)^average ")
        for text in ("average", "full=auto", "average=local,steps"):
            self.assertEqual(self.compare(*words, "--policy", text).returncode, 2)

    def test_its_settings_reach_the_job(self):
        simulator = self.folder / "build" / "bin" / "lockstep-simulate"  # one that says what it was told
        simulator.parent.mkdir(parents=True)
        simulator.write_text('#!/bin/sh\necho "$@"\nexit 1\n')
        simulator.chmod(0o755)
        out = self.folder / "out"
        self.compare("--build-dir", self.folder / "build", "--out", out, "--runs", 1, "--simulate", "--policies", "backup:2",
                     "--policy", "average=local,local.steps=4", "--patterns", "none", "-n", 2, "--set", "local.steps=2", "--set", "job.rounds=3")
        self.assertIn("--set=local.steps=4 --set=job.rounds=3 --set=policy.name=local\n", (out / "none" / "average-1.log").read_text())
        self.assertIn("--set=local.steps=2 --set=job.rounds=3 --set=policy.name=backup --set=backup.workers=2\n", (out / "none" / "backup-2-1.log").read_text())

    def stand_in(self, name, text):
        path = self.folder / "build" / "bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def simulated(self, *words, version=1):
        """Of a simulator that leaves a run, and fails if it is told to have 9 rounds; the runs that it was started for."""
        if not (self.folder / "made").exists():
            make_run(self.folder / "made", change=lambda _, summary: summary.update(simulated=True))
        starts = self.folder / "starts"
        starts.write_text("")
        self.stand_in("lockstep-simulate", '#!/bin/sh\nfor word; do [ "$last" = --run-dir ] && dir=$word; last=$word; done\n'
                      f'echo "$dir" >> {starts}\ncp -r {self.folder}/made "$dir"\ncase "$*" in *job.rounds=9*) exit 130;; esac\n# {version}\n')
        result = self.compare("--build-dir", self.folder / "build", "--out", self.folder / "out", "--runs", 1, "--simulate",
                              "--policies", "full", "-n", 2, *words)
        return result, len(starts.read_text().splitlines())

    def test_a_run_that_is_there_is_not_run_again(self):
        first, starts = self.simulated("--patterns", "none")
        self.assertEqual((first.returncode, starts), (0, 1), first.stderr)
        again, starts = self.simulated("--patterns", "none")
        self.assertEqual((again.returncode, starts), (0, 0), again.stderr)

    def test_a_run_of_other_settings_that_was_cut_off_is_no_finished_one(self):
        for setting, status, expected in (("job.rounds=3", 0, 1), ("job.rounds=9", 1, 1), ("job.rounds=3", 0, 1)):
            result, starts = self.simulated("--patterns", "none", "--set", setting)
            self.assertEqual((result.returncode, starts), (status, expected), result.stderr)

    def test_a_run_is_made_anew_when_a_file_that_made_it_has_changed(self):
        trace = self.folder / "trace"
        words = ["--patterns", "none", "--pattern", f"recorded=pattern=trace,file={trace}"]
        trace.write_text("0 1\n")
        self.assertEqual(self.simulated(*words)[1], 2)
        self.config.write_text("[job]\nepochs = 2\n")
        self.assertEqual(self.simulated(*words)[1], 2)
        trace.write_text("0 2\n")
        self.assertEqual(self.simulated(*words)[1], 1)
        self.assertEqual(self.simulated(*words)[1], 0)
        self.assertEqual(self.simulated(*words, version=2)[1], 2)
        self.assertEqual(self.simulated(*words, version=2)[1], 0)

    def test_a_script_that_has_changed_is_run_again(self):
        script, package = self.folder / "train.py", self.folder / "lockstep.py"  # a package in which `run` leaves a run
        package.write_text(f"import shutil, sys\nshutil.copytree('{self.folder}/made', sys.argv[sys.argv.index('--run-dir') + 1])\nprint('started')\n")
        make_run(self.folder / "made")
        out = self.folder / "out"

        def started():
            result = subprocess.run([str(TOOLS / "compare"), "--out", str(out), "--runs", "1", "--policies", "full", "--patterns", "none", "-n", "2", "--",
                                     str(script)], capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(self.folder)})
            self.assertEqual(result.returncode, 0, result.stderr)
            log = out / "none" / "full-1.log"
            ran = log.read_text() == "started\n"
            log.write_text("")
            return ran

        for text, expected in (("print(1)\n", True), ("print(1)\n", False), ("print(2)\n", True)):
            script.write_text(text)
            self.assertEqual(started(), expected, text)

    def test_a_report_says_what_the_runs_are(self):
        out = self.folder / "out"
        words = ["--out", out, "--report-only", "--runs", 1, "--policies", "full,auto", "--patterns", "none", "-n", 2]
        make_run(out / "none" / "full-1", change=lambda _, summary: summary.update(simulated=True, status="completed"))
        make_run(out / "none" / "auto-1", change=lambda _, summary: summary.update(status="interrupted"))
        result = self.compare(*words)
        self.assertEqual(result.returncode, 1)
        self.assertIn("2 workers, job.ini, simulated, ", result.stdout)
        self.assertIn("none, auto, run 1: not finished, its summary.json says interrupted", result.stderr)
        summary = out / "none" / "auto-1" / "summary.json"
        summary.write_text(summary.read_text().replace("interrupted", "completed"))
        self.assertIn(", job.ini, some real jobs, some simulated, ", self.compare(*words).stdout)

    def test_what_the_job_refuses_ends_all_with_its_own_line(self):
        words = ["--build-dir", self.folder / "build", "--out", self.folder / "out", "--runs", 2, "--policies", "bakup,full",
                 "--patterns", "none", "-n", 2]
        self.stand_in("lockstep-coordinator", "#!/bin/sh\necho lockstep-coordinator: there is no rule bakup >&2\nexit 2\n")
        self.stand_in("lockstep-worker", "#!/bin/sh\nsleep 60\n")
        self.stand_in("lockstep-simulate", "#!/bin/sh\necho lockstep-simulate: there is no rule bakup >&2\nexit 2\n")
        for more, program in (([], "lockstep-coordinator"), (["--simulate"], "lockstep-simulate")):
            result = self.compare(*words, *more)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertRegex(result.stderr, rf"\Acompare: {program}: there is no rule bakup \(all of it in [^\n]*bakup-1.log\)\n\Z")
            self.assertEqual(result.stdout, "")

    def test_bad_usage_is_one_line_and_leaves_nothing(self):
        file, typo = self.folder / "file", self.folder / "typo"
        file.write_text("")
        self.stand_in("lockstep-simulate", "#!/bin/sh\nexit 1\n")
        plain = ["--simulate", "--build-dir", self.folder / "build", "--out", typo]
        for words, said in (([*plain, "--target", 87], "--target 87"), ([*plain, "--target", 0], "--target 0"),
                            ([*plain, "--target", "nan"], "--target nan"),
                            ([*plain, "--timeout", 0], "--timeout 0"), ([*plain, "--timeout", -1], "--timeout -1"),
                            (["--report-only", "--out", typo], "there is no such folder"), ([*plain[:-1], file], "File exists"),
                            ([*plain[:-1], file / "out"], "Not a directory"), ([*plain, "--nope"], "--nope")):
            result = self.compare(*words)
            self.assertEqual(result.returncode, 2, words)
            self.assertRegex(result.stderr, r"\Acompare: [^\n]*\n\Z")
            self.assertIn(said, result.stderr)
        self.assertFalse(typo.exists())

    def test_a_report_of_what_is_no_text_is_one_line(self):
        out = self.folder / "out"
        make_run(out / "none" / "full-1")
        (out / "none" / "full-1" / "rounds.jsonl").write_bytes(b"\xff\xfe\x00")
        result = self.compare("--out", out, "--report-only", "--runs", 1, "--policies", "full", "--patterns", "none", "-n", 2)
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"\Acompare: .*rounds.jsonl: is no text\n\Z")
        make_run(out / "none" / "auto-1")
        rounds = out / "none" / "auto-1" / "rounds.jsonl"
        rounds.write_text(rounds.read_text().replace('"commit"', '"comit"'))
        result = self.compare("--out", out, "--report-only", "--runs", 1, "--policies", "auto", "--patterns", "none", "-n", 2)
        self.assertRegex(result.stderr, r"\Acompare: .*rounds.jsonl:1: there is no 'times.commit'\n\Z")

    def test_a_report_of_values_of_another_kind_is_one_line(self):
        run = self.folder / "out" / "none" / "full-1"
        make_run(run)
        report = ["--out", self.folder / "out", "--report-only", "--runs", 1, "--policies", "full", "--patterns", "none", "-n", 2]
        self.assertEqual(self.compare(*report).returncode, 0)
        rounds, summary, evaluations = (run / name for name in ("rounds.jsonl", "summary.json", "evaluations.jsonl"))
        kept = rounds.read_text(), summary.read_text()
        first, *others = map(json.loads, kept[0].splitlines())
        for change, said in (
                ({"samples": "16"}, 'rounds.jsonl:1: samples is "16", not a whole number'),
                ({"samples": True}, "rounds.jsonl:1: samples is true, not a whole number"),
                ({"units": None}, "rounds.jsonl:1: units is no list"),
                ({"units": [{**first["units"][0], "range": [1]}]}, "rounds.jsonl:1: units[0].range is no list of 2"),
                ({"times": {**first["times"], "commit": "now"}}, 'rounds.jsonl:1: times.commit is "now", not a number'),
                ({"times": {**first["times"], "ready": {"0": []}}}, "rounds.jsonl:1: times.ready.0 is [], not a number")):
            rounds.write_text("".join(json.dumps(record) + "\n" for record in ({**first, **change}, *others)))
            self.refused_by_its_files(report, said)
        rounds.write_text("".join(json.dumps({**record, "units": []}) + "\n" for record in (first, *others)))
        self.refused_by_its_files(report, f"{run}: no samples count that took time")
        rounds.write_text(kept[0])
        summary.write_text(json.dumps({**json.loads(kept[1]), "wall_seconds": {}}))
        self.refused_by_its_files(report, "summary.json: wall_seconds is {}, not a number")
        summary.write_text(kept[1])
        evaluations.write_text('{"round": 1, "accuracy": null}\n')
        self.refused_by_its_files(report, "evaluations.jsonl:1: accuracy is null, not a number")

    def refused_by_its_files(self, words, said):
        with self.subTest(said=said):
            result = self.compare(*words)
            self.assertEqual(result.returncode, 1)
            self.assertRegex(result.stderr, r"\Acompare: [^\n]*\n\Z")
            self.assertIn(said, result.stderr)

    def test_what_is_not_there_is_said(self):
        out = self.folder / "out"
        make_run(out / "none" / "full-1")
        result = self.compare("--out", out, "--report-only", "--runs", 1, "--policies", "full,auto", "--patterns", "none", "-n", 2)
        self.assertEqual(result.returncode, 1)
        self.assertIn("none, auto, run 1: not there", result.stderr)

    def test_counting_errors_are_a_failure(self):
        def twice(records, summary):
            records[3]["contributors"][0]["ranges"] = records[2]["contributors"][0]["ranges"]

        out = self.folder / "out"
        make_run(out / "none" / "full-1", change=twice)
        result = self.compare("--out", out, "--report-only", "--runs", 1, "--policies", "full", "--patterns", "none", "-n", 2)
        self.assertEqual(result.returncode, 1)
        self.assertIn("errors in how samples were counted", result.stderr)

    def test_bad_usage_is_one_line_and_status_2(self):
        for words, message in ((["--patterns", "slwo"], "there is no 'slwo'"), (["--set", "x"], "expected KEY=VALUE"),
                               (["--pattern", "none=worker=1"], "none is the name"), (["-n", "0"], "1 to 16384"), (["--pattern", "a=worker={x},factor=2"], "in braces"),
                               (["--policies", "backup:2", "--policy", "backup-2=backup,job.rounds=3"], "where those of backup:2 do"),
                               (["--polcies", "full"], "unrecognized arguments: --polcies")):
            result = self.compare("--out", self.folder / "out", *words)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(message, result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1)

    def test_ticks_are_round_and_reach_the_top(self):
        for top in (0.003, 0.7, 1, 3.64, 99, 1234):
            ticks = charts.nice_ticks(top)
            self.assertEqual(ticks[0], 0)
            self.assertGreaterEqual(ticks[-1], top * (1 - 1e-9))
            self.assertLessEqual(len(ticks), 7)


if __name__ == "__main__":
    unittest.main()
