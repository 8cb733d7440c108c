"""The policies async and local in real jobs."""

import unittest

from harness import ClusterTest, Job, check_epochs, check_same_bits


def run(workers, **options):
    with Job(workers, **options) as job:
        job.start()
        return job.finish(), job.rounds(), job.log("coordinator")


EPOCHS = {"job__rounds": 0, "job__epochs": 3}


class Async(ClusterTest):
    def test_without_staleness_it_is_synchronous_to_the_bit(self):
        summary, rounds, _ = run(4, **EPOCHS)
        runs = {"full": (rounds, summary)}
        for mapping in ("auto", "off"):
            summary, rounds, _ = run(4, policy__name="async", async__staleness=0, exchange__mapping=mapping, **EPOCHS)
            runs[f"async, mapping {mapping}"] = (rounds, summary)
            self.assertTrue(all(c["staleness"] == 0 for line in rounds for c in line["contributors"]))
        check_same_bits(self, runs)

    def test_nobody_waits_for_a_slow_worker_and_every_sample_counts_once(self):
        for mapping in ("auto", "off"):
            with Job(4, policy__name="async", async__staleness=1000, emulate__unit_time="4ms", exchange__mapping=mapping, **EPOCHS) as job:
                job.start_coordinator()
                for worker in range(3):
                    job.start_worker(worker)
                job.start_worker(3, "--slowdown", "factor=8")
                summary, rounds = job.finish(), job.rounds()
            check_epochs(self, rounds, 2048)
            self.assertEqual(summary["samples_dropped"], 0)
            slow = [c for line in rounds for c in line["contributors"] if c["worker"] == 3]
            quick = [c for line in rounds for c in line["contributors"] if c["worker"] == 0]
            self.assertGreater(len(quick), 2 * len(slow))
            self.assertGreater(max(c["staleness"] for c in slow), 3)
            self.assertTrue(any(3 in line["carried"] for line in rounds))
            damped = [c for c in slow if c["staleness"] >= 4]
            self.assertTrue(all(abs(c["weight"] - 4 / (1 + c["staleness"])) < 1e-6 for c in damped))
            self.assertLess(rounds[-1]["loss"], 0.7 * rounds[0]["loss"])

    def test_the_bound_holds(self):
        with Job(4, policy__name="async", async__staleness=2, emulate__unit_time="4ms", **EPOCHS) as job:
            job.start_coordinator()
            for worker in range(3):
                job.start_worker(worker)
            job.start_worker(3, "--slowdown", "factor=8")
            summary, rounds = job.finish(), job.rounds()
        self.assertEqual(summary["status"], "completed")
        self.assertEqual(max(c["staleness"] for line in rounds for c in line["contributors"]), 2)

    def test_work_of_a_killed_worker_is_computed_by_others(self):
        with Job(4, policy__name="async", job__min_workers=2, emulate__unit_time="4ms", job__rounds=0, job__epochs=100000) as job:
            job.start()
            job.wait_for_rounds(5)
            job.wait_for_rounds(job.kill_worker(1) + 70)
            job.interrupt()
            check_epochs(self, job.rounds(), 2048)


class Local(ClusterTest):
    def test_averages_and_counts_every_sample(self):
        summary, rounds, _ = run(4, policy__name="local", local__steps=4, job__global_batch=256, **EPOCHS)
        self.assertEqual(summary["policy"], "local+full")
        check_epochs(self, rounds, 2048)
        self.assertLess(rounds[-1]["loss"], 0.7 * rounds[0]["loss"])
        self.assertTrue(all(line["learning_rate"] == 1 for line in rounds))

    def test_a_single_worker_with_one_step_is_sgd(self):
        """Then the average is the step itself, up to the rounding of base - (base - local)."""
        sgd, plain, _ = run(1, optimizer__momentum=0, job__rounds=20)
        local, averaged, _ = run(1, optimizer__momentum=0, job__rounds=20, policy__name="local", local__steps=1)
        for one, other in zip(plain, averaged):
            self.assertLess(abs(one["loss"] - other["loss"]), 1e-3 * abs(one["loss"]))

    def test_the_slowest_is_left_out_and_returns_to_the_average(self):
        with Job(4, policy__name="local+backup", local__steps=2, emulate__unit_time="4ms", **EPOCHS) as job:
            job.start_coordinator()
            for worker in range(3):
                job.start_worker(worker)
            job.start_worker(3, "--slowdown", "factor=8")
            summary, rounds = job.finish(), job.rounds()
        check_epochs(self, rounds, 2048)
        self.assertGreater(sum(3 in line["excluded"] for line in rounds), len(rounds) // 2)
        self.assertEqual(summary["samples_dropped"], 0)
        self.assertTrue(summary["params_digest"])

    def test_same_job_same_bits(self):
        runs = {}
        for mapping in ("auto", "off"):
            summary, rounds, _ = run(3, policy__name="local", local__steps=2, exchange__mapping=mapping, job__rounds=15)
            runs[mapping] = (rounds, summary)
        check_same_bits(self, runs)


if __name__ == "__main__":
    unittest.main(verbosity=2)
