"""tools/import-trace: traces of other jobs become run directories that lockstep-simulate and the tools read."""

import gzip
import json
import random
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / "tools"
SIMULATE = Path(sys.argv.pop(1)) / "bin" / "lockstep-simulate"
ROUNDS, WORKERS, UNITS = 8, 4, 6


def seconds_of(lengths=False, slow=1.0):
    """{(round, worker, unit): seconds}; worker 1 takes `slow` times as long."""
    draw = random.Random(3)
    return {(r, w, u): (0.1 * draw.uniform(1, 3) if lengths else 0.1 + draw.uniform(0, 0.002)) * (slow if w == 1 else 1)
            for r in range(ROUNDS) for w in range(WORKERS) for u in range(UNITS)}


def as_csv(seconds):
    return "round,worker,unit,seconds\n" + "".join(f"{r},{w},{u},{s:.6f}\n" for (r, w, u), s in seconds.items())


def as_events(seconds, gap=0.05, pairs=False, workers="pid"):
    """The events of a job that waits for all, and takes `gap` from round to round. `pairs`: B and E events."""
    events = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "x"}}]
    at = 7.0
    for r in range(ROUNDS):
        ends = []
        for w in range(WORKERS):
            # Workers 10, 20, ... are in the order of their numbers, not of the digits.
            thread = {"pid": 9 + w, "tid": 1} if workers == "pid" else {"pid": 5, "tid": 9 + w}
            now = at
            for u in range(UNITS):
                took = seconds[r, w, u]
                begin = {"name": f"micro_batch {u}", "ts": now * 1e6, **thread}
                if pairs:
                    events += [begin | {"ph": "B"}, {"ph": "B", "name": "inner", "ts": now * 1e6, **thread},
                               {"ph": "E", "ts": (now + took / 2) * 1e6, **thread}, {"ph": "E", "ts": (now + took) * 1e6, **thread}]
                else:
                    events.append(begin | {"ph": "X", "dur": took * 1e6})
                now += took
            ends.append(now)
        events.append({"ph": "X", "name": "all_reduce", "pid": 9, "tid": 1, "ts": max(ends) * 1e6, "dur": gap * 1e6})
        at = max(ends) + gap
    return events


class ImportTrace(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def put(self, name, content):
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else (content if isinstance(content, str) else json.dumps(content)).encode())
        return path

    def run_tool(self, *words):
        return subprocess.run([str(TOOLS / "import-trace"), *map(str, words)], capture_output=True, text=True, timeout=60)

    def imported(self, *words, out="run", said=""):
        done = self.run_tool(*words, "--out", self.folder / out)
        self.assertEqual((done.returncode, done.stderr), (0, said), done)
        return done.stdout

    def refused(self, *words, said):
        with self.subTest(words=words):
            done = self.run_tool(*words, *([] if "--out" in words else ["--out", self.folder / "none"]))
            self.assertEqual((done.returncode, done.stdout), (2, ""), done)
            self.assertRegex(done.stderr, r"\Aimport-trace: [^\n]+\n\Z")
            self.assertIn(said, done.stderr)
            self.assertFalse((self.folder / "none").exists())

    def records(self, out="run"):
        return [json.loads(line) for line in (self.folder / out / "rounds.jsonl").read_text().splitlines()]

    def round_seconds(self, out="run"):
        records = self.records(out)
        return (records[-1]["times"]["commit"] - records[0]["times"]["start"]) / len(records)

    def replayed(self, out="run", *words):
        """{policy: seconds of a round} that the replay predicts."""
        done = subprocess.run([SIMULATE, "--replay", self.folder / out, *words], capture_output=True, text=True, timeout=120)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        return {row[1]: float(row[2]) / 1e3 for row in re.finditer(r"^([\w+]+) +([\d.]+) +\d+ +[\d.]+ ", done.stdout, re.MULTILINE)}

    def check_tools_read_it(self):
        checked = subprocess.run([str(TOOLS / "check-run"), self.folder / "run"], capture_output=True, text=True, timeout=60)
        self.assertEqual(checked.returncode, 0, checked)
        (self.folder / "out" / "none").mkdir(parents=True)
        (self.folder / "out" / "none" / "full-1").symlink_to(self.folder / "run")
        compared = subprocess.run([str(TOOLS / "compare"), "--config", self.folder / "run" / "config.ini", "--report-only", "--policies", "full",
                                   "--patterns", "none", "--runs", "1", "--out", self.folder / "out"], capture_output=True, text=True, timeout=60)
        self.assertEqual((compared.returncode, compared.stderr), (0, ""), compared)

    def test_the_replay_of_a_csv_is_the_job(self):
        for lengths, slow in ((True, 1), (False, 2.5), (True, 2.5)):
            with self.subTest(lengths=lengths, slow=slow):
                seconds = seconds_of(lengths, slow)
                out = f"run-{lengths}-{slow}"
                self.imported(self.put("trace.csv", as_csv(seconds)), out=out)
                real = sum(max(sum(seconds[r, w, u] for u in range(UNITS)) for w in range(WORKERS)) for r in range(ROUNDS)) / ROUNDS
                self.assertAlmostEqual(self.round_seconds(out), real, 5)
                predicted = self.replayed(out)
                self.assertAlmostEqual(predicted["full+none"] / real, 1, delta=0.01)
                if slow > 1:
                    self.assertLess(predicted["full+flexrr"], 0.85 * real)

    def test_tools_read_it(self):
        said = self.imported(self.put("trace.csv", as_csv(seconds_of(slow=2.5))))
        # 24 units of 0.1 s over speeds of 3 and 0.4: 0.706 s. Waiting for all: 1.5 s.
        self.assertRegex(said, r"run: 8 rounds of 4 workers, 24 units a round; 1\.5\d+ s a round, 2\.1[23] times the ideal")
        self.assertIn("--slowdown worker=1,factor=2.5", said)
        self.check_tools_read_it()

    def test_the_costs_are_those_of_a_worker_of_speed_1(self):
        seconds = seconds_of(True, 2.5)
        costs = self.folder / "costs.csv"
        said = self.imported(self.put("trace.csv", as_csv(seconds)), "--unit-costs", costs)
        factor = float(re.search(r"--slowdown worker=1,factor=([\d.]+)$", said.strip())[1])
        self.assertAlmostEqual(factor, 2.5, delta=0.3)
        lines = costs.read_text().splitlines()
        self.assertEqual((lines[0], len(lines)), ("round,unit,seconds", 1 + ROUNDS * WORKERS * UNITS))
        self.assertAlmostEqual(float(lines[1].split(",")[2]), seconds[0, 0, 0], 5)
        moved = lines[1 + UNITS].split(",")  # of worker 1
        self.assertEqual(moved[:2], ["0", str(UNITS)])
        self.assertAlmostEqual(float(moved[2]) * factor, seconds[0, 1, 0], delta=0.01)
        command = [SIMULATE, "--workers=4", f"--unit-costs={costs}", f"--slowdown=worker=1,factor={factor}", "--job.global_batch=24",
                   f"--job.rounds={ROUNDS}", "--policy.name=full", f"--run-dir={self.folder / 'simulated'}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done)
        self.assertAlmostEqual(self.round_seconds("simulated") / self.round_seconds(), 1, delta=0.02)

    def test_a_chrome_trace_gives_the_same_job(self):
        seconds = seconds_of(True, 2.5)
        self.imported(self.put("trace.csv", as_csv(seconds)), out="csv")
        of_csv = [[unit["range"] for unit in record["units"]] for record in self.records("csv")]
        for name, content, words in (
                ("a.json", {"displayTimeUnit": "ms", "traceEvents": as_events(seconds), "otherData": {"x": [1, {}]}}, ["--worker=pid"]),
                ("b.json", as_events(seconds, pairs=True), []),
                ("c.json.gz", gzip.compress(json.dumps({"traceEvents": as_events(seconds, workers="tid")}).encode()), ["--worker=tid"]),
                ("d.json", json.dumps(as_events(seconds), indent=1)[:-1], [])):  # cut off
            with self.subTest(name):
                out = f"of-{name}"
                self.imported(self.put(name, content), "--span", "^micro_batch", f"--units={UNITS}", *words, out=out)
                records = self.records(out)
                self.assertEqual([[unit["range"] for unit in record["units"]] for record in records], of_csv)
                for record in records:
                    for unit in record["units"]:
                        worker, at = unit["worker"], unit["range"][0] % (WORKERS * UNITS)
                        self.assertEqual(worker, at // UNITS)
                        self.assertAlmostEqual(unit["end"] - unit["start"], seconds[record["round"], worker, at % UNITS], 4)
                self.assertAlmostEqual(records[3]["units"][0]["start"] - records[2]["times"]["commit"], 0.05, 4)
                self.assertAlmostEqual(self.replayed(out)["full+none"] / self.round_seconds(out), 1, delta=0.02)

    def test_files_of_workers_with_clocks_of_their_own(self):
        seconds = seconds_of(slow=2.5)
        events = as_events(seconds)
        files = [self.put(f"rank{w}.json", {"traceEvents": [event | {"ts": event.get("ts", 0) + 1e6 * 40 * w} for event in events
                                                           if event["pid"] == 9 + w]}) for w in range(WORKERS)]
        self.imported(*files, "--span", "micro_batch", "--units", UNITS)
        self.imported(self.put("one.json", events), "--span", "micro_batch", "--units", UNITS, out="one")
        self.assertAlmostEqual(self.round_seconds(), self.round_seconds("one"), 4)

    def test_spans_of_whole_steps_are_cut(self):
        steps = [{"ph": "X", "name": "step", "pid": w, "tid": 0, "ts": 1e6 * r, "dur": 9e5 if w == 2 else 3e5} for r in range(9) for w in range(3)]
        path = self.put("steps.json", steps)
        said = "import-trace: a worker has one unit a round, so none can move: --split 8 cuts it into equal ones\n"
        self.imported(path, "--span", "step", out="whole", said=said)
        self.imported(path, "--span", "step", "--split", "8", "--unit-samples", "4")
        self.assertEqual(self.records()[0]["samples"], 3 * 8 * 4)
        self.assertEqual(self.records()[0]["units"][1], {"worker": 1, "range": [32, 64], "start": 0, "end": 0.3, "units": 8, "run": 8})
        predicted = self.replayed()
        self.assertAlmostEqual(predicted["full+none"], 1, delta=0.02)
        self.assertLess(predicted["full+flexrr"], 0.7)

    def test_rounds_that_are_not_complete_are_left_out(self):
        seconds = seconds_of()
        del seconds[5, 2, 3]
        self.imported(self.put("trace.csv", as_csv(seconds)), said="import-trace: 1 of 8 rounds are left out: they have more or fewer than 24 units\n")
        self.assertEqual(len(self.records()), 7)
        events = [event for event in as_events(seconds_of()) if event["name"] != "micro_batch 5" or event["pid"] != 9 or event["ts"] < 12e6]
        done = self.run_tool(self.put("short.json", events), "--span", "micro", "--units", UNITS, "--out", self.folder / "short")
        self.assertIn("are left out: they make no round of all workers", done.stderr)

    def test_mistakes_are_one_line(self):
        good = as_csv(seconds_of())
        path = self.put("trace.csv", good)
        self.refused(self.folder / "nofile", said="No such file or directory")
        self.refused(self.folder, said="Is a directory")
        self.refused(path, "--span", "x", said="--span: does nothing with a CSV file")
        self.refused(path, "--split", "0", said="--split 0: 1 to 65536")
        self.refused(path, "--span", "(", said="--span (: ")
        self.refused(path, "--out", path, said="is there already")
        self.refused(path, "--unit-costs", self.folder / "no" / "costs.csv", said="--unit-costs")
        self.refused(path, "--unit-samples", "65536", "--split", "2000", said="choose a smaller --unit-samples")
        self.refused(path, "--split", "60000", said="a round has 1440000 units: at most 65536")
        for text, said in (("", "has no units"), ("round,unit,seconds\n", "bad.csv:1: expected the header"), (good[:26], "has no units"),
                           (good + "1,2\n", "bad.csv:194: expected three whole numbers"), (good + "1,2,x,1\n", ":194: expected"),
                           (good + "9,0,0,nan\n", ":194: expected"), (good + "9,0,0,-1\n", ":194: a number is out of its range"),
                           (good + "9,4096,0,1\n", ":194: a number is out of its range"), (good + "0,0,0,1\n", "round 0 has unit 0 of worker 0 twice"),
                           (good[:26] + "0,0,0,1\n", "fewer than two rounds"), (good[:26] + "0,0,0,0\n1,0,0,0\n", "the units took no time"),
                           (good[:26] + "0,7,0,1\n1,7,0,1\n", "a round has 1 units for 8 workers")):
            self.refused(self.put("bad.csv", text), said=said)
        span = {"ph": "X", "name": "step", "pid": 0, "tid": 0, "ts": 0, "dur": 20}
        for content, said in (({"a": 1}, "there are no 'traceEvents'"), ("{", "there are no 'traceEvents'"), ('{"traceEvents": [{"ph": ', "is no JSON"),
                              ('{"traceEvents": [1 2]}', "is no JSON"), ("[" * 100000, "nested too deeply"), ([span | {"name": "other"}], "no span's name"),
                              ([span | {"ts": "x"}], "has no time 'ts'"), ([span | {"dur": None}], "has no 'dur'"),
                              ([span | {"dur": -20}], "ends before it begins"), ([span, span | {"ts": 9}], "overlap"),
                              ([span], "fewer than two rounds")):
            self.refused(self.put("bad.json", content), "--span", "step", said=said)
        self.refused(self.put("good.json", [span, span | {"ts": 50}]), said="--span: required")
        self.refused(self.folder / "good.json", "--span", "step", "--units", "3", said="has 2 spans, --units 3 wants more")
        self.refused(self.put("cut.gz", gzip.compress(json.dumps([span] * 100).encode())[:40]), "--span", "step", said="cut.gz: ")


if __name__ == "__main__":
    unittest.main()
