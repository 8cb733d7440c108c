"""Jobs whose contributions have few numbers of many: one result whatever way they go, and nothing lost with a worker but what it has kept.
How many bytes they are, test_bench.py says."""

import unittest

from exchanged import PACED, ExchangeTest, run
from harness import Job
from test_slowdowns import tool

TOPK = {"exchange.compression": "topk", "exchange.topk_fraction": 0.05}


class Compression(ExchangeTest):
    def test_ways_agree_bit_for_bit(self):
        seen = set()
        for kind in ({}, {"exchange.topk_fraction": 0.4}, {"exchange.dtype": "bf16"}, {"exchange.dtype": "fp16"}):
            digest, losses = self.one_result({**TOPK, **kind})
            self.assertLess(losses[-1], losses[0])
            seen.add(digest)
        self.assertEqual(len(seen), 4, "a setting changed nothing")

    def test_a_killed_worker(self):
        self.stand_a_killed_worker(TOPK)

    def test_a_stopped_owner_and_one_that_comes_later(self):
        """Others make a stopped owner's sums; who was stopped, and who takes a killed one's place, begins with nothing kept."""
        self.stand_a_stopped_owner_and_one_that_comes_later(TOPK)

    def test_async_is_refused_in_the_course_of_a_job_too(self):
        with Job(2, {**PACED, **TOPK, "job.epochs": 100000}, coordinator_args=["--http", "127.0.0.1:0"]) as job:
            job.start()
            job.wait_for_rounds(3)
            done = tool("ctl", "--http", (job.run_dir / "http.address").read_text().strip(), "policy", "async")
            self.assertEqual(done.returncode, 1)
            self.assertIn("exchange.compression = topk and policy.name = async", done.stderr)
            job.wait_for_rounds(len(job.rounds()) + 3)
            self.assertEqual(job.rounds()[-1]["policy"], "full+none")

    def test_local_steps(self):
        summary, rounds = run(3, {"policy.name": "local", "local.steps": 4, **TOPK, "job.rounds": 0, "job.epochs": 3})
        self.assertEqual(summary["digest_differs"], [])
        self.assertLess(rounds[-1]["loss"], rounds[0]["loss"])

    def test_resume_with_and_without(self):
        self.resume_with([(20, "--exchange.compression=topk"), (30, "--exchange.compression=none")])


if __name__ == "__main__":
    unittest.main(verbosity=2)
