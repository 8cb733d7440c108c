"""Jobs whose contributions have not all of a gradient's numbers: one result whatever way they go, and nothing lost with a worker but what
it has kept. How many bytes they are, test_bench.py says."""

import unittest

from exchanged import PACED, ExchangeTest, run
from harness import Job
from test_slowdowns import tool
from test_state import Tensors, coordinator


class Compressed:
    """What each form has to stand."""

    form = {}
    kinds = ()

    def test_ways_agree_bit_for_bit(self):
        seen = set()
        for kind in self.kinds:
            digest, rounds = self.one_result({**self.form, **kind})
            self.assertLess(rounds[-1]["loss"], rounds[0]["loss"])
            seen.add(digest)
        self.assertEqual(len(seen), len(self.kinds), "a setting changed nothing")

    def test_a_killed_worker(self):
        self.stand_a_killed_worker(self.form)

    def test_a_stopped_owner_and_one_that_comes_later(self):
        """Others make a stopped owner's sums; who was stopped, and who takes a killed one's place, begins with nothing kept."""
        self.stand_a_stopped_owner_and_one_that_comes_later(self.form)

    def test_local_steps(self):
        summary, rounds = run(3, {"policy.name": "local", "local.steps": 4, **self.form, "job.rounds": 0, "job.epochs": 3})
        self.assertEqual(summary["digest_differs"], [])
        self.assertLess(rounds[-1]["loss"], rounds[0]["loss"])


class Topk(Compressed, ExchangeTest):
    form = {"exchange.compression": "topk", "exchange.topk_fraction": 0.05}
    kinds = ({}, {"exchange.topk_fraction": 0.4}, {"exchange.dtype": "bf16"}, {"exchange.dtype": "fp16"})

    def test_async_is_refused_in_the_course_of_a_job_too(self):
        with Job(2, {**PACED, **self.form, "job.epochs": 100000}, coordinator_args=["--http", "127.0.0.1:0"]) as job:
            job.start()
            job.wait_for_rounds(3)
            done = tool("ctl", "--http", (job.run_dir / "http.address").read_text().strip(), "policy", "async")
            self.assertEqual(done.returncode, 1)
            self.assertIn("exchange.compression = topk and policy.name = async", done.stderr)
            job.wait_for_rounds(len(job.rounds()) + 3)
            self.assertEqual(job.rounds()[-1]["policy"], "full+none")

    def test_resume_with_and_without(self):
        self.resume_with([(20, "--exchange.compression=topk"), (30, "--exchange.compression=none")])


class PowerSgd(Compressed, ExchangeTest):
    form = {"exchange.compression": "powersgd", "optimizer.lr": 0.02}
    kinds = ({}, {"exchange.powersgd_rank": 4}, {"exchange.dtype": "bf16"}, {"exchange.dtype": "fp16"})

    def test_resume(self):
        """With another rank; without factors, which are state, it is refused."""
        options = {**self.form, "checkpoint.every_rounds": 10, "job.rounds": 10}
        with Job(2, options) as job:
            job.start().finish()
            for index in range(2):
                job.wait(f"worker{index}")
            job.wait()
            refused = coordinator(job, "--resume", "--job.rounds=20", "--exchange.compression=none")
            self.assertEqual(refused.returncode, 2)
            self.assertIn("exchange.compression = none, but the checkpoint was made with powersgd", refused.stderr)
            job.start_coordinator("--resume", "--job.rounds=20", "--exchange.powersgd_rank=3")
            for index in range(2):
                job.start_worker(index)
            summary = job.finish()
            self.assertEqual((summary["status"], summary["rounds"], summary["digest_differs"]), ("completed", 20, []))

    def test_a_checkpoint_has_the_factors(self):
        with Job(2, {**self.form, "checkpoint.every_rounds": 10, "job.rounds": 10}) as job:
            job.start().finish()
            tensors = Tensors(max(job.run_dir.glob("checkpoints/*.safetensors")))
            places = {name: tensor["data_offsets"] for name, tensor in tensors.header.items() if name != "__metadata__"}
            factors = {name: any(tensors.data[slice(*at)]) for name, at in places.items() if name.startswith("optimizer.factors.")}
            self.assertEqual(len(factors), len([name for name in places if name.startswith("optimizer.momentum.")]))
            # Only the first layer is large enough.
            self.assertEqual([name for name, some in factors.items() if some], ["optimizer.factors.hidden1.weight"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
