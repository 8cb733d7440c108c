"""With which parameters workers end, and what ends a job whose numbers are none any more."""

import os
import re
import signal
import subprocess
import unittest

from harness import BIN, ClusterTest, Job, wait_for

DIGEST = re.compile(r"this worker has the job's last parameters, SHA-256 ([0-9a-f]{64})")


class Ending(ClusterTest):
    def check_all_have_the_last(self, job):
        summary = job.finish()
        for index in range(job.workers):
            self.assertEqual(job.wait(f"worker{index}"), 0, job.log(f"worker{index}"))
            digest = DIGEST.search(job.log(f"worker{index}"))
            self.assertTrue(digest, job.log(f"worker{index}"))
            self.assertEqual(digest.group(1), summary["params_digest"])
        self.assertEqual(summary["status"], "completed")

    # So long that the sums which it missed are gone, and continued when only the last round is left.
    def test_a_worker_that_was_stopped_until_the_end_has_the_last_parameters_or_says_why_not(self):
        with Job(3, policy__name="backup", emulate__unit_time="3ms", job__rounds=60, liveness__timeout="30s").start() as job:
            job.wait_for_rounds(10)
            job.processes["worker2"].send_signal(signal.SIGSTOP)
            job.wait_for_rounds(59)
            job.processes["worker2"].send_signal(signal.SIGCONT)
            if "worker 2 is out" in job.log("coordinator"):  # a busy machine was slower than the time-out
                self.assertEqual(job.wait("worker2"), 1)
                self.assertRegex(job.log("worker2"), "lockstep-worker: the coordinator has taken this worker out: ")
            else:
                self.check_all_have_the_last(job)

    def test_a_coordinator_that_stood_still_blames_nobody_for_leaving(self):
        with Job(2, job__rounds=100000, emulate__unit_time="2ms", liveness__timeout="1s", checkpoint__every_rounds=5,
                 job__coordinator_timeout="0s") as job:
            job.start()
            job.wait_for_rounds(12)
            job.processes["coordinator"].send_signal(signal.SIGSTOP)
            for index in range(2):
                self.assertEqual(job.wait(f"worker{index}"), 1)
            job.processes["coordinator"].send_signal(signal.SIGCONT)
            self.assertEqual(job.wait("coordinator"), 1)
            reason = job.summary()["reason"]
            self.assertRegex(reason, r"\Ano worker holds the parameters any more: the coordinator itself stood still for [\d.]+ s, and workers "
                             r"wait 1s for it \(liveness.timeout\); the job can be resumed from its checkpoint after round \d+\Z")
            self.assertIn(reason, job.log("coordinator").splitlines()[-1])
            left = re.findall(r"worker \d is out: (.*)", job.log("coordinator"))
            self.assertEqual(len(left), 2)
            for why in left:
                self.assertRegex(why, r"\Aits connection ended while the coordinator itself stood still for [\d.]+ s\Z")

    def test_workers_that_are_slow_to_the_end_have_the_last_parameters(self):
        for policy in ("backup", "flexrr"):
            with self.subTest(policy=policy), Job(3, policy__name=policy, emulate__unit_time="4ms", job__rounds=12) as job:
                job.start_coordinator()
                for index in range(3):
                    job.start_worker(index, "--slowdown", "worker=1,factor=30")
                self.check_all_have_the_last(job)

    def test_who_leaves_says_nothing_of_last_parameters(self):
        with Job(3, policy__name="backup", emulate__unit_time="5ms", job__rounds=100000).start() as job:
            job.wait_for_rounds(5)
            job.processes["worker2"].send_signal(signal.SIGTERM)
            self.assertEqual(job.wait("worker2"), 0)
            self.assertNotIn("last parameters", job.log("worker2"))
            job.interrupt()


class UnreadOutput(ClusterTest):
    def test_who_is_read_no_more_ends_in_good_order(self):
        """As `lockstep-coordinator ... | tee log` at Ctrl-C, which tee gets as well."""
        with Job(2, emulate__unit_time="3ms", job__rounds=100000, policy__name="full") as job:
            pipes = {}

            def start(name, command):
                reader, writer = os.pipe()
                job.processes[name] = subprocess.Popen([*map(str, command), "--log-level", "debug"], stdout=writer, stderr=writer, stdin=subprocess.DEVNULL)
                os.close(writer)
                pipes[name] = reader

            start("coordinator", [BIN / "lockstep-coordinator", "--listen", job.listen, "--workers", 2, "--config", job.config, "--run-dir", job.run_dir])
            address = job.run_dir / "coordinator.address"
            wait_for("the coordinator's address", address.exists)
            for index in range(2):
                start(f"worker{index}", [BIN / "lockstep-worker", "--coordinator", address.read_text().strip(), "--id", index])
            job.logs = {}
            wait_for("two rounds", lambda: len(job.rounds()) >= 2, look_every=0.03)
            for reader in pipes.values():
                os.close(reader)
            reached = len(job.rounds())
            wait_for("more rounds", lambda: len(job.rounds()) >= reached + 5, look_every=0.03)
            job.processes["coordinator"].send_signal(signal.SIGINT)
            self.assertEqual(job.wait(), 130)
            for index in range(2):
                self.assertEqual(job.wait(f"worker{index}"), 0)
            self.assertEqual(job.summary()["status"], "interrupted")
            self.assertEqual(job.summary()["checkpoint_round"], len(job.rounds()) - 1)


class NotANumber(ClusterTest):
    # A rate with which the parameters of several layers multiply out of all numbers within a few rounds.
    DIVERGES = {"model.name": "mlp", "model.widths": "64,64,64", "optimizer.lr": "1e6", "optimizer.momentum": 0,
                "checkpoint.every_rounds": 1}

    def test_it_ends_the_job_and_names_worker_and_samples(self):
        # Rounds that leave the time to write a checkpoint before the numbers are none.
        with Job(2, self.DIVERGES, emulate__unit_time="20ms").start() as job:
            self.assertEqual(job.wait(), 1)
            self.assertRegex(job.log("coordinator"),
                             r"round \d+: the loss or gradient of worker [01] over the samples \[\d+, \d+\).* of epoch 0 is not finite")
            summary = job.summary()
            self.assertEqual(summary["status"], "failed")
            self.assertIn("job.on_nan = stop", summary["reason"])
            self.assertTrue(list((job.run_dir / "checkpoints").glob("*.json")))
            for index in range(2):
                self.assertEqual(job.wait(f"worker{index}"), 1)
            for line in job.rounds():
                self.assertLess(line["loss"], 1e300)

    def test_a_round_of_nothing_else_ends_it_also_when_it_is_skipped(self):
        with Job(2, self.DIVERGES, job__on_nan="skip").start() as job:
            self.assertEqual(job.wait(), 1)
            self.assertIn("and so is every other contribution to the round", job.summary()["reason"])

    def test_a_learning_rate_beyond_all_numbers_ends_the_job_and_everybody_hears_why(self):
        grows = {"schedule.name": "exponential", "schedule.factor": 1000, "schedule.step_every": 0.01, "optimizer.lr": 1e-9}
        for policy in ("full", "backup", "async", "local"):
            with self.subTest(policy=policy), Job(2, grows, policy__name=policy).start() as job:
                self.assertEqual(job.wait(), 1)
                reason = job.summary()["reason"]
                self.assertRegex(reason, r"\Around 1: the learning rate is not finite \(schedule.name = exponential, schedule.factor = 1000, "
                                         r"schedule.step_every = 0.01\)\Z")
                for index in range(2):
                    self.assertEqual(job.wait(f"worker{index}"), 1)
                    self.assertIn(reason, job.log(f"worker{index}"))
                if policy != "local":  # of which the rate is that of the work, which begins with the commit before
                    self.assertEqual([line["round"] for line in job.rounds()], [0])


if __name__ == "__main__":
    unittest.main()
