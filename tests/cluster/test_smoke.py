"""One job of several processes, small enough for the sanitized builds: epochs, backup, a killed and a replaced worker, TCP."""

import unittest

from harness import ClusterTest, Job, check_epochs, wait_for


class Smoke(ClusterTest):
    def test_job(self):
        with Job(3, job__rounds=0, job__epochs=100000, policy__name="backup", backup__workers=1, job__min_workers=1,
                 exchange__mapping="off", exchange__transport="tcp", emulate__unit_time="3ms", evaluation__every_epochs=1,
                 checkpoint__every_epochs=1) as job:
            job.start()
            job.wait_for_rounds(8)
            at = job.kill_worker(2)
            job.start_worker(2, name="worker2-again")
            job.wait_for_contribution(2, at + 1)
            wait_for("three epochs", lambda: job.rounds()[-1]["epoch"] >= 3, seconds=60)
            summary = job.interrupt()
            rounds = job.rounds()
            self.assertEqual(summary["samples_counted"], sum(line["samples"] for line in rounds))
            check_epochs(self, rounds, 2048)
            for name in ("worker0", "worker1", "worker2-again"):
                self.assertEqual(job.wait(name), 0, job.log(name))

    def test_mapped_job(self):
        with Job(2, job__rounds=20) as job:
            summary = job.start().finish()
            self.assertEqual({path["path"] for path in summary["paths"]}, {"mapped"})
            for name in ("worker0", "worker1"):
                self.assertEqual(job.wait(name), 0, job.log(name))


if __name__ == "__main__":
    unittest.main(verbosity=2)
