"""Real jobs for the cluster tests: coordinator and workers as processes on loopback, in a temporary folder.

Ports are taken by the kernel, processes are ended by their id, nothing waits a fixed time: every wait is for an event that can be
seen in the run directory or for the end of a process, and has a bound.
"""

import collections
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

BIN = pathlib.Path(os.environ.get("LOCKSTEP_BIN", pathlib.Path(__file__).resolve().parents[2] / "build/release/bin"))
TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
# Sanitized programs are slower; the bound of each wait grows, nothing else.
PATIENCE = float(os.environ.get("LOCKSTEP_TEST_PATIENCE", "1"))

# What a sanitizer writes fails a test whatever the process's status: it may have been killed later.
SANITIZER_REPORT = re.compile(r"(WARNING|ERROR): [A-Za-z]+Sanitizer|:\d+: runtime error: ")

SYNTHETIC = {
    "job.seed": 3,
    "job.rounds": 40,
    "job.global_batch": 64,
    "job.units": 16,
    "model.name": "mlp",
    "model.widths": "32",
    "data.format": "synthetic",
    "data.synthetic_train": 2048,
    "data.synthetic_test": 512,
    "data.synthetic_features": 32,
    "optimizer.lr": 0.05,
    "policy.name": "full",
    "checkpoint.every_epochs": 0,
    "evaluation.every_epochs": 0,
}


def ini_text(options):
    sections = collections.defaultdict(list)
    for key, value in options.items():
        section, name = key.split(".", 1)
        sections[section].append(f"{name} = {value}")
    return "".join(f"[{section}]\n" + "\n".join(lines) + "\n\n" for section, lines in sections.items())


def wait_for(what, condition, seconds=30.0, look_every=0.01):
    """Returns the first true value of condition(); fails with `what` after `seconds`."""
    end = time.monotonic() + seconds * PATIENCE
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"timed out waiting for {what}")
        time.sleep(look_every)


class Job:
    """One job in a folder of its own. Use as a context manager: what still runs at the end is killed."""

    def __init__(self, workers, options=None, folder=None, coordinator_args=(), listen="127.0.0.1:0", prefix=(), **more):
        self.workers = workers
        self.options = dict(SYNTHETIC)
        self.options.update(options or {})
        self.options.update({key.replace("__", "."): value for key, value in more.items()})
        self.own_folder = folder is None
        self.folder = pathlib.Path(folder or tempfile.mkdtemp(prefix="lockstep-test-"))
        self.run_dir = self.folder / "run"
        self.config = self.folder / "job.ini"
        self.config.write_text(ini_text(self.options))
        self.coordinator_args = list(coordinator_args)
        self.listen = listen
        self.prefix = list(prefix)
        self.processes = {}
        self.logs = {}

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
        reports = [name for name in self.logs if SANITIZER_REPORT.search(self.log(name))]
        for name in self.logs:
            if name in reports:
                print(f"--- {name}\n{self.log(name)[:30000]}")
            elif kind is not None:
                print(f"--- {name}\n{self.log(name)[-6000:]}")
        if self.own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)
        if reports and kind is None:
            raise AssertionError("a sanitizer reports something in " + ", ".join(reports))

    def _start(self, name, command, environment=None, prefix=()):
        log = self.folder / f"{name}.log"
        self.logs[name] = log
        with open(log, "ab") as out:
            self.processes[name] = subprocess.Popen(
                [*map(str, prefix), *map(str, command)], stdout=out, stderr=out, stdin=subprocess.DEVNULL,
                env={**os.environ, **(environment or {})})
        return self.processes[name]

    def log(self, name):
        return self.logs[name].read_text(errors="replace")

    def begin_coordinator(self, *arguments, environment=None):
        """As start_coordinator, without waiting for it. Returns the path of the address that it will have."""
        address = self.run_dir / "coordinator.address"
        if address.exists():
            address.unlink()
        self._start("coordinator", [BIN / "lockstep-coordinator", "--listen", self.listen, "--workers", self.workers,
                                    "--config", self.config, "--run-dir", self.run_dir, *self.coordinator_args, *arguments],
                    environment, self.prefix)
        return address

    def start_coordinator(self, *arguments, environment=None):
        address = self.begin_coordinator(*arguments, environment=environment)
        wait_for("the coordinator's address", lambda: address.exists() or self.processes["coordinator"].poll() is not None)
        if not address.exists():
            raise AssertionError("the coordinator ended: " + self.log("coordinator"))
        self.address = address.read_text().strip()
        return self

    def refusal(self):
        """The one line of a coordinator that does not begin with these options: its status is 2."""
        self.begin_coordinator()
        status, log = self.wait("coordinator"), self.log("coordinator")
        if status != 2 or log.count("\n") != 1:
            raise AssertionError(f"the coordinator ended with status {status}:\n{log}")
        return log

    def start_worker(self, index, *arguments, environment=None, name=None, prefix=(), address=None):
        return self._start(name or f"worker{index}",
                           [BIN / "lockstep-worker", "--coordinator", address or self.address, "--id", index, *arguments],
                           environment, prefix)

    def start_tool(self, name, *arguments):
        return self._start(name, [TOOLS / name, *arguments])

    def start(self, environment=None):
        self.start_coordinator(environment=environment)
        for index in range(self.workers):
            self.start_worker(index, environment=environment)
        return self

    def wait(self, name="coordinator", seconds=90.0):
        try:
            return self.processes[name].wait(seconds * PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{name} did not end") from None

    def rounds(self):
        path = self.run_dir / "rounds.jsonl"
        if not path.exists():
            return []
        lines = path.read_text().split("\n")
        return [json.loads(line) for line in lines[:-1]]

    def wait_for_rounds(self, count, seconds=60.0):
        def there():
            if self.processes["coordinator"].poll() is not None and len(self.rounds()) < count:
                raise AssertionError("the coordinator ended early: " + self.log("coordinator")[-3000:])
            return len(self.rounds()) >= count
        wait_for(f"{count} closed rounds", there, seconds, look_every=0.03)

    def go_back_to(self, checkpoint):
        """As if the job had been killed after it had written this one: the next start with --resume goes on from there."""
        for path in (self.run_dir / "checkpoints").iterdir():
            if path.stem > checkpoint.stem:
                path.unlink()
        (self.run_dir / "summary.json").unlink()

    def summary(self):
        return json.loads((self.run_dir / "summary.json").read_text())

    def finish(self, seconds=90.0):
        """Waits for the end of a job that must complete; returns its summary."""
        code = self.wait("coordinator", seconds)
        if code != 0:
            raise AssertionError(f"the coordinator ended with status {code}:\n{self.log('coordinator')[-4000:]}")
        return self.summary()

    def wait_for_contribution(self, worker, since, seconds=60.0):
        """Until one of the rounds from `since` on counts something of that worker's."""
        wait_for(f"worker {worker}'s contribution", lambda: any(
            worker in {c["worker"] for c in line["contributors"]} for line in self.rounds()[since:]), seconds, look_every=0.03)

    def kill_worker(self, index):
        """Returns how many rounds there were when the coordinator knew of it. The next one may still count what it had done."""
        lost = f"worker {index} is out"
        before = self.log("coordinator").count(lost)
        process = self.processes[f"worker{index}"]
        process.kill()
        process.wait()
        wait_for("word of the loss", lambda: self.log("coordinator").count(lost) > before)
        return len(self.rounds())

    def interrupt(self, seconds=90.0):
        """Ends a job that goes on until it is asked: so it cannot be over before a test is done with it. Returns its summary."""
        self.processes["coordinator"].send_signal(signal.SIGINT)
        code = self.wait("coordinator", seconds)
        if code != 130:
            raise AssertionError(f"the coordinator ended with status {code}, not interrupted:\n{self.log('coordinator')[-4000:]}")
        summary = self.summary()
        if summary["status"] != "interrupted":
            raise AssertionError(f"the job is {summary['status']}, not interrupted")
        return summary


def count_alike(test, *runs):
    """How many rounds runs of one job have made of the same parts, from the first one on: their losses are the same to the last
    bit. Who stands still for a moment is left out of its round, and from there on they differ. `runs`: the rounds of each."""
    for count, lines in enumerate(zip(*runs)):
        parts = [[(c["worker"], c["part"], c["ranges"], c["weight"]) for c in line["contributors"]] for line in lines]
        if any(one != parts[0] for one in parts):
            return count
        losses = [line["loss"] for line in lines]
        test.assertEqual(len(set(losses)), 1, f"round {count}: {losses}")
    return min(map(len, runs))


def check_epochs(test, rounds, dataset_size):
    """Every sample at most once in an epoch, exactly once in each epoch but the last; independent of the program's own books."""
    test.assertTrue(rounds, "no round was recorded")
    counted = collections.defaultdict(list)
    for line in rounds:
        samples = 0
        for contributor in line["contributors"]:
            size = sum(to - start for start, to in contributor["ranges"])
            test.assertEqual(size, contributor["samples"])
            samples += size
            counted[line["epoch"]].extend(map(tuple, contributor["ranges"]))
        test.assertEqual(samples, line["samples"])
    last = max(counted) if counted else 0
    for epoch, ranges in counted.items():
        ranges.sort()
        position = 0
        for start, to in ranges:
            test.assertGreaterEqual(start, position, f"positions before {position} counted twice in epoch {epoch}")
            if epoch != last:
                test.assertEqual(start, position, f"positions from {position} not counted in epoch {epoch}")
            position = to
        if epoch != last:
            test.assertEqual(position, dataset_size)
        test.assertLessEqual(position, dataset_size)


# Every job has to share this many rounds with another one of its test, and some two of them this many. The first round waits for a
# quarter of liveness.timeout for a silent owner, the others for a quarter of a second.
ROUNDS_OF_EACH = 1
ROUNDS_OF_SOME = 3


def commit_of(line):
    """What decides a round's bits beside the parameters before it: the parts, in the order in which they are added, and whether
    one is added after the other (direct and ring) or sums to sums."""
    parts = [(c["worker"], c["part"], c["ranges"], c["weight"]) for c in line["contributors"]]
    return parts, line.get("algorithm") == "tree"


def rounds_in_common(ours, theirs, of=commit_of):
    """How many rounds two jobs have from the first one on that are committed over the same."""
    count = 0
    for one, other in zip(ours, theirs):
        if of(one) != of(other):
            break
        count += 1
    return count


def check_same_bits(test, runs, least=ROUNDS_OF_EACH):
    """The same commits give the same bits. `runs`: {name: (rounds, summary)} of jobs that differ in what must not matter.

    A worker that stands still for a moment is left out of its round, which is another commit; from there on its job has other
    parameters than the rest. Up to there each two have the same losses and digests (after each round that of another bucket), and
    those that have all commits in common end with the same parameters. On a quiet machine that is all of them. `least`: how many
    rounds each has to have in common with another one, so that there was something to compare."""
    names = list(runs)
    most = dict.fromkeys(names, 0)
    for at, one in enumerate(names):
        for other in names[at + 1:]:
            (ours, our_summary), (theirs, their_summary) = runs[one], runs[other]
            common = rounds_in_common(ours, theirs)
            for mine, its in zip(ours[:common], theirs[:common]):
                where = f"round {mine['round']} of {one} and {other}"
                test.assertEqual(mine["loss"], its["loss"], where)
                # There is none of a round that was closed before anybody had told one.
                if "digest" in mine and "digest" in its:
                    test.assertEqual(*({key: line["digest"][key] for key in ("slice", "value")} for line in (mine, its)), where)
            if common == min(len(ours), len(theirs)):
                test.assertEqual(len(ours), len(theirs), f"{one} and {other}")
                test.assertIsNotNone(our_summary["params_digest"], one)
                test.assertEqual(our_summary["params_digest"], their_summary["params_digest"], f"{one} and {other}")
            for name in (one, other):
                most[name] = max(most[name], common)
    test.assertGreaterEqual(min(most.values()), least, most)
    test.assertGreaterEqual(max(most.values()), ROUNDS_OF_SOME, most)


def run_and_resume(test, job):
    """A job that keeps all of its checkpoints completes, and once more from the first of them on: to the same bits, as what is resumed has
    the rounds before in common with it, however busy the machine is. Returns the whole job's (rounds, summary)."""
    summary = job.start().finish()
    whole = (job.rounds(), summary)
    for index in range(job.workers):
        job.wait(f"worker{index}")
    kept = sorted((job.run_dir / "checkpoints").glob("*.json"))[0]
    job.go_back_to(kept)
    job.start_coordinator("--resume")
    for index in range(job.workers):
        job.start_worker(index)
    summary = job.finish()
    began_with = int(kept.stem.removeprefix("round-")) + 1
    check_same_bits(test, {"whole": whole, "resumed": (job.rounds(), summary)}, began_with + ROUNDS_OF_EACH)
    return whole


class ClusterTest(unittest.TestCase):
    maxDiff = None

    def check_refused(self, options, named):
        """The coordinator ends with status 2 and one line, which names what is wrong."""
        with self.subTest(options=options), Job(2, options) as job:
            with self.assertRaises(Exception):
                job.start_coordinator()
            self.assertEqual(job.wait("coordinator"), 2)
            lines = job.log("coordinator").strip().splitlines()
            self.assertEqual(len(lines), 1, lines)
            self.assertIn(named, lines[0])


def main():
    """unittest.main for files whose tests may all be skipped: ctest is to show that as skipped, not as passed."""
    result = unittest.main("__main__", verbosity=2, exit=False).result
    # A class that is skipped as a whole counts as one that is skipped, and as none that ran.
    if not result.wasSuccessful() or (result.testsRun == 0 and not result.skipped):
        sys.exit(1)
    if len(result.skipped) >= result.testsRun:
        print("skipped: " + "; ".join(sorted({reason for _, reason in result.skipped})))
        sys.exit(77)
