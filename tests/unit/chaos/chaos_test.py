"""The parts of tools/chaos: what its judge and its search for leftovers find, and what a seed draws."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[3] / "tools"
sys.path.insert(0, str(TOOLS / "lib"))
from lockstep_chaos import disk, job, judge, leftovers, plan, processes, report, rounds  # noqa: E402
from lockstep_chaos.faults import Faults, Happened  # noqa: E402

SAMPLES, DIGEST, OTHER = 64, "a" * 64, "b" * 64
ALL = {"torch", "hosts", "disk", "ucx"}
LINE = "worker 1    | 12:00:00.000 worker 1 info this worker has the job's last parameters, SHA-256 {}\n"


def make_run(folder, change=None):
    """Two epochs of two rounds, by two workers."""
    records = []
    for number in range(4):
        first = SAMPLES // 2 * (number % 2)
        contributors = [{"worker": w, "part": 0, "weight": 1, "samples": 16, "ranges": [[first + 16 * w, first + 16 * (w + 1)]]} for w in range(2)]
        records.append({"round": number, "epoch": number // 2, "samples": 32, "contributors": contributors, "dropped": [], "requeued": []})
    summary = {"status": "completed", "epochs": 2, "samples_counted": 4 * 32, "samples_dropped": 0, "samples_moved": 0, "params_digest": DIGEST,
               "digest_differs": []}
    if change:
        change(records, summary)
    folder.mkdir()
    (folder / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)


class JudgeTest(Folder):
    def assert_found(self, lines, text):
        self.assertEqual(len(lines), 1, lines)
        self.assertIn(text, lines[0])

    def test_a_sound_job_has_no_findings(self):
        run = make_run(self.folder / "run")
        self.assertEqual(judge.records(run, SAMPLES), [])
        self.assertEqual(judge.completed(run, 2), [])
        self.assertEqual(judge.digests(run, LINE.format(DIGEST) * 2), [])
        self.assertEqual(judge.logs(LINE.format(DIGEST) + "worker 1 was ended by SIGKILL; restarting it in 1 s (3 restarts left)\n"), [])

    def test_a_sample_that_counts_twice(self):
        def twice(records, summary):
            records[1]["contributors"][0]["ranges"] = [[16, 32]]
        self.assert_found([line for line in judge.records(make_run(self.folder / "run", twice), SAMPLES) if "twice" in line], "samples 16 to 32 count twice")

    def test_a_sample_that_never_counts(self):
        def never(records, summary):
            records[3]["contributors"].pop()
            records[3]["samples"] = 16
            summary["samples_counted"] = 112
        self.assert_found(judge.records(make_run(self.folder / "run", never), SAMPLES), "16 samples of 64 do not count")

    def test_no_records(self):
        self.folder.joinpath("run").mkdir()
        self.assert_found(judge.records(self.folder / "run", SAMPLES), "rounds.jsonl")
        self.assert_found(judge.completed(self.folder / "run", 2), "no readable summary.json")
        self.assert_found(judge.digests(self.folder / "run", LINE.format(DIGEST)), "no params_digest")

    def test_a_worker_with_other_parameters(self):
        run = make_run(self.folder / "run")
        self.assert_found(judge.digests(run, LINE.format(DIGEST) + LINE.format(OTHER)), f"a worker has the parameters {OTHER}")
        self.assert_found(judge.digests(run, "nothing"), "no worker says")
        other = make_run(self.folder / "other", lambda records, summary: summary.update(digest_differs=[1]))
        self.assert_found(judge.digests(other, LINE.format(DIGEST)), "the parameters of worker 1 differ")

    def test_a_job_that_did_not_do_all(self):
        self.assert_found(judge.completed(make_run(self.folder / "a", lambda records, summary: summary.update(status="failed", reason="why")), 2), "failed: why")
        self.assert_found(judge.completed(make_run(self.folder / "b"), 3), "2 epochs of 3")
        self.assert_found(judge.completed(make_run(self.folder / "c", lambda records, summary: summary.update(samples_dropped=5)), 2), "5 samples were dropped")

    def test_lines_that_nobody_may_write(self):
        for line in ("Traceback (most recent call last):", "check failed: a < b", "worker 1 was ended by SIGSEGV", "the coordinator was ended by SIGABRT",
                     "terminate called after throwing", "the coordinator broke the protocol: it", "Fatal Python error: Segmentation fault",
                     "ERROR: AddressSanitizer: heap-use-after-free"):
            self.assertTrue(judge.logs(f"sound\n{line}\nsound\n"), line)

    def test_only_documented_failures_are_allowed_and_only_after_their_faults(self):
        lost = "no worker holds the parameters any more; resume from the checkpoint"
        self.assertTrue(judge.allowed_failure(lost, {"kill-worker"}, {judge.ALL_HIT}))
        self.assertFalse(judge.allowed_failure(lost, {"kill-worker"}, {judge.SHARDED}))
        self.assertFalse(judge.allowed_failure(lost, {"change-policy"}, {judge.ALL_HIT}))
        stood = "no worker holds the parameters any more: the coordinator itself stood still for 3.6 s"
        self.assertFalse(judge.allowed_failure(stood, {"stop-coordinator", "kill-worker"}, {judge.ALL_HIT, judge.SHARDED}))
        full = "rounds.jsonl: cannot write: No space left on device"
        self.assertTrue(judge.allowed_failure(full, {"full-disk"}, set()))
        self.assertFalse(judge.allowed_failure(full, {"kill-worker"}, {judge.ALL_HIT}))
        self.assertFalse(judge.allowed_failure("the loss has exploded", set(plan.KINDS), {judge.ALL_HIT, judge.SHARDED}))


class LeftoversTest(Folder):
    def of_job(self, before=None):
        return leftovers.of_job("mark-of-the-test", self.folder, leftovers.shared_memory() if before is None else before)

    def start_marked(self):
        """Starts a cat, and returns when it runs. Popen returns a moment earlier: while the kernel replaces the program, /proc/PID/environ is empty."""
        process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, processes.MARK: "mark-of-the-test"})
        process.stdin.write(b"ready\n")
        process.stdin.flush()
        self.assertEqual(process.stdout.readline(), b"ready\n")
        return process

    def test_a_process(self):
        process = self.start_marked()
        try:
            lines = self.of_job()
            self.assertEqual((len(lines), f"a process is left: {process.pid} cat" in lines), (1, True), lines)
            self.assertEqual(leftovers.of_job("another", self.folder, leftovers.shared_memory()), [])
        finally:
            process.communicate()
        self.assertEqual(self.of_job(), [])

    def test_a_stopped_process(self):
        process = self.start_marked()
        process.send_signal(signal.SIGSTOP)
        try:
            self.assertEqual(len(self.of_job()), 1)
        finally:
            process.kill()
            process.communicate()

    def test_files(self):
        (self.folder / "lockstep-secret").write_text("")
        self.assertEqual(self.of_job(), ["a temporary file is left: lockstep-secret"])

    @unittest.skipUnless(os.access(leftovers.SHARED, os.W_OK), "no /dev/shm")
    def test_shared_memory(self):
        before = leftovers.shared_memory()
        with tempfile.NamedTemporaryFile(dir=leftovers.SHARED, prefix="lockstep-test-") as file:
            name = Path(file.name).name
            self.assertNotIn(f"shared memory is left: {file.name}", self.of_job(before))  # a process has it open
            file.file.close()
            self.assertIn(f"shared memory is left: {leftovers.SHARED / name}", self.of_job(before))

    def test_a_mount(self):
        self.assertEqual(leftovers.of_machine([], Path("/proc")), ["a mount is left: /proc"])
        self.assertEqual(leftovers.of_machine([], self.folder), [])


class DiskTest(Folder):
    @unittest.skipUnless(disk.can_be_made(tempfile.gettempdir()), "takes root, mkfs.ext4 and loop devices")
    def test_a_full_disk_that_breaks_is_repaired_and_then_has_room(self):
        with disk.Disk(self.folder) as small:
            small.fill()
            self.assertRaises(OSError, (small.path / "more").write_bytes, bytes(1 << 20))
            small.break_it()
            self.assertIs(small.make_room(), False)
            small.repair()
            self.assertIs(small.make_room(), True)
            (small.path / "more").write_bytes(bytes(1 << 20))

    def test_the_last_fault_ends_first(self):
        faults, ended = Faults(plan.draw(1, 0, ALL), None, None), []
        for kind in ("full-disk", "read-only-disk"):
            faults.active.append((Happened(kind, "", frozenset(), 0, 0), lambda kind=kind: ended.append(kind)))
        faults.end_all()
        self.assertEqual((ended, faults.active), (["read-only-disk", "full-disk"], []))


class PlanTest(unittest.TestCase):
    def test_a_seed_replays_a_job(self):
        for number in range(50):
            self.assertEqual(plan.draw(7, number, ALL), plan.draw(7, number, ALL))
        self.assertNotEqual(plan.draw(7, 0, ALL), plan.draw(8, 0, ALL))

    def test_a_machine_that_can_do_less_leaves_out_and_draws_no_other(self):
        for number in range(100):
            whole, less = plan.draw(1, number, ALL), plan.draw(1, number, ALL - {"disk"})
            self.assertEqual(less.faults, [fault for fault in whole.faults if "disk" not in fault.kind])
            self.assertEqual(less.settings, whole.settings)
            alone = [fault for fault in plan.draw(1, number, ALL - {"torch"}).faults if fault.kind != "change-policy"]  # which is not for local
            self.assertEqual(alone, [fault for fault in whole.faults if fault.kind not in ("hold-interpreter", "change-policy")])
            without = plan.draw(1, number, ALL, ("kill-worker",))
            self.assertNotIn("kill-worker", {fault.kind for fault in without.faults})

    def test_all_kinds_are_drawn(self):
        drawn = {fault.kind for number in range(300) for fault in plan.draw(1, number, ALL).faults}
        self.assertEqual(drawn, set(plan.KINDS))

    def test_faults_fit_their_jobs(self):
        for number in range(300):
            drawn = plan.draw(1, number, ALL)
            kinds = {fault.kind for fault in drawn.faults}
            self.assertFalse(not drawn.hosts and kinds & {"cut-link", "one-way-link", "slow-link"})
            self.assertFalse(not drawn.torch and "hold-interpreter" in kinds)
            self.assertEqual(sum(drawn.hosts) if drawn.hosts else drawn.workers, drawn.workers)
            self.assertLessEqual(sum(fault.kind in plan.LOSSES for fault in drawn.faults), plan.MOST_LOSSES)


class PauseTest(Folder):
    def test_the_longest_pause_after_a_fault(self):
        grew = [0.0, 1.0, 4.0, 5.0, 9.0]
        self.assertEqual(rounds.longest_pause(grew, 0.5, 4.5), 3.0)
        self.assertEqual(rounds.longest_pause(grew, 1.5, 4.5), 2.5)  # what began before the fault is not all its own
        self.assertEqual(rounds.longest_pause(grew, 4.5, 4.6), 0.5)
        self.assertEqual(rounds.longest_pause(grew, 4.5, 6.0), 4.0)
        self.assertIsNone(rounds.longest_pause(grew, 10.0, 11.0))

    def test_the_table_counts_faults_and_outcomes(self):
        def result(number, outcome, *pauses):
            drawn = plan.draw(1, number, ALL)
            return job.Result(drawn, outcome, happened=[(Happened("kill-worker", "worker 0", frozenset({0}), 0, 0), pause) for pause in pauses])
        kinds = report.kinds_of([result(0, "completed", 1.0, 2.0), result(1, "resumed", 6.0), result(2, "failed", None)])
        self.assertEqual(kinds, {"kill-worker": {"faults": 4, "refused": 0, "completed": 1, "resumed": 1, "failed": 1, "median_pause_s": 2.0,
                                                 "worst_pause_s": 6.0}})

    def test_growth_is_seen(self):
        path = self.folder / "rounds.jsonl"
        watch = rounds.Watch(path)
        watch.look()
        self.assertEqual(watch.grew, [])
        begun = time.monotonic()
        path.write_text("{}\n")
        watch.look()
        watch.look()
        self.assertEqual(len(watch.grew), 1)
        self.assertGreaterEqual(watch.quiet_since(), begun)


if __name__ == "__main__":
    unittest.main()
