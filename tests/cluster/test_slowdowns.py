"""Slow-downs of a running job: asked for over HTTP, and made from outside."""

import pathlib
import statistics
import subprocess
import unittest

from harness import BIN, PATIENCE, TOOLS, ClusterTest, Job, wait_for

PACED = {"emulate.unit_time": "10ms", "job.rounds": 100000, "job.units": 6, "job.global_batch": 24, "data.synthetic_train": 24 * 1000}


def tool(name, *arguments):
    return subprocess.run([TOOLS / name, *map(str, arguments)], capture_output=True, text=True, timeout=60 * PATIENCE,
                          stdin=subprocess.DEVNULL, check=False)


def state_of(pid):
    """The letter of proc(5): "T" when the process is stopped."""
    return pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0]


class Slowdowns(ClusterTest):
    def start(self, job):
        job.start()
        job.wait_for_rounds(5)
        self.job = job
        self.http = (job.run_dir / "http.address").read_text().strip()

    def unit_times(self, rounds, worker):
        return [(unit["end"] - unit["start"]) / unit.get("units", 1) for line in rounds for unit in line["units"] if unit["worker"] == worker]

    def wait_for_unit_time(self, what, worker, right):
        """Until the median of the worker's units in five new rounds is as wanted; what the machine does to single ones does not count."""
        def there():
            rounds = self.job.rounds()[seen:]
            times = self.unit_times(rounds[-5:], worker) if len(rounds) >= 5 else []
            return times and right(statistics.median(times))
        seen = len(self.job.rounds())
        wait_for(what, there, look_every=0.05)

    def end(self, status="interrupted"):
        self.job.processes["coordinator"].terminate()
        self.job.wait()
        summary = self.job.summary()
        self.assertEqual(summary["status"], status)
        return summary

    def test_a_slow_down_comes_and_goes(self):
        with Job(3, PACED, coordinator_args=["--http", "127.0.0.1:0"]) as job:
            self.start(job)
            done = tool("slowdown", "--http", self.http, "--slowdown", "worker=1,factor=8")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.wait_for_unit_time("worker 1 to be slow", 1, lambda t: t >= 0.08)
            self.assertLess(statistics.median(self.unit_times(job.rounds()[-5:], 0)), 0.08)
            status = tool("ctl", "--http", self.http, "status")
            self.assertRegex(status.stdout, r"slow-down: worker=1,factor=8,from=")
            wait_for("the table to name the slow one", lambda: "slow, " in tool("ctl", "--http", self.http, "status").stdout)

            for spec in ("worker=1,factr=8", "worker=7,factor=2", "pattern=trace,points=1"):
                done = tool("slowdown", "--http", self.http, "--slowdown", spec)
                self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (1, "", 1), done.stderr)
            self.wait_for_unit_time("worker 1 to be as slow as before", 1, lambda t: t >= 0.08)

            self.assertEqual(tool("ctl", "--http", self.http, "slowdown", "none").returncode, 0)
            self.wait_for_unit_time("worker 1 to be well again", 1, lambda t: t < 0.08)
            summary = self.end()
            self.assertTrue(summary["emulated"])
            self.assertEqual(summary["unit_time_seconds"], 0.01)
            self.assertRegex(summary["slowdowns"][0], r"^worker=1,factor=8,from=\d+ms$")

    def test_the_jobs_clock_is_what_counts(self):
        with Job(2, PACED, job__min_workers=1) as job:
            job.start()
            job.wait_for_rounds(1)
            at = job.kill_worker(1)
            wait_for("the job's fourth second", lambda: job.rounds()[-1]["times"]["commit"] > 3.2)
            # By its own time it would be slow much later, by the job's it is from the first unit on.
            job.start_worker(1, "--slowdown", "factor=8,from=3s,for=1h", name="later")
            wait_for("its contributions", lambda: len(self.unit_times(job.rounds()[at + 1:], 1)) >= 6)
            self.assertGreaterEqual(min(self.unit_times(job.rounds()[at + 1:], 1)), 0.0799)
            self.job = job
            self.assertEqual(self.end()["slowdowns"], ["worker=1,factor=8,from=3s,for=3600s"])

    def test_a_worker_that_is_stopped_comes_back(self):
        with Job(3, PACED, policy__name="backup", backup__workers=1, coordinator_args=["--http", "127.0.0.1:0"]) as job:
            self.start(job)
            def with_and_without(rounds):
                there = [2 in {c["worker"] for c in line["contributors"]} for line in rounds]
                return there.count(True), there.count(False)
            pid = job.processes["worker2"].pid
            stopper = job.start_tool("slowdown", "--pid", pid, "--mode", "stop")
            # Rounds leave it out now and then by themselves, so they do not say that the tool has begun.
            wait_for("the worker to be stopped", lambda: state_of(pid) == "T")
            before = len(job.rounds())
            wait_for("rounds without it", lambda: with_and_without(job.rounds()[before:])[1] >= 5)
            stopper.terminate()
            self.assertEqual(job.wait("slowdown"), 143)
            after = len(job.rounds())
            wait_for("its contribution", lambda: with_and_without(job.rounds()[after + 2:])[0] >= 1)
            self.assertEqual(self.end()["digest_differs"], [])

    def test_policy_and_drain(self):
        with Job(3, PACED, coordinator_args=["--http", "127.0.0.1:0"], job__min_workers=2) as job:
            self.start(job)
            self.assertEqual(tool("ctl", "--http", self.http, "drain", 2).returncode, 0)
            self.assertEqual(job.wait("worker2"), 0)
            job.wait_for_rounds(len(job.rounds()) + 3)
            once = [line for line in job.rounds() if len(line["attempts"]) == 1]  # where nobody stood still
            self.assertTrue(once)
            for line in once:
                self.assertEqual((line["moved"], line["requeued"], line["excluded"]), ([], [], []), "its leaving costs nothing")
            self.assertNotIn(2, {u["worker"] for u in job.rounds()[-1]["units"]})

            self.assertEqual(tool("ctl", "--http", self.http, "policy", "backap").returncode, 1)
            self.assertEqual(tool("ctl", "--http", self.http, "policy", "backup").returncode, 0)
            wait_for("a round under backup", lambda: job.rounds()[-1]["policy"] == "backup+none")
            policies = [line["policy"] for line in job.rounds()]
            self.assertEqual(policies, sorted(policies, reverse=True), "one exchange")
            self.assertEqual(self.end()["policy"], "backup+none")

    def test_beyond_loopback_a_secret_is_required(self):
        with Job(1) as job:
            done = subprocess.run([BIN / "lockstep-coordinator", "--listen", "127.0.0.1:0", "--workers", "1", "--config", job.config,
                                   "--run-dir", job.run_dir, "--http", "0.0.0.0:0"], capture_output=True, text=True,
                                  timeout=30 * PATIENCE, check=False)
            self.assertEqual(done.returncode, 2)
            self.assertEqual(done.stderr, "lockstep-coordinator: --http 0.0.0.0:0: beyond loopback a --secret-file is required\n")


if __name__ == "__main__":
    unittest.main(verbosity=2)
