"""Training with several workers: the same result however many there are and whatever way the bytes go."""

import unittest

from harness import ROUNDS_OF_EACH, ROUNDS_OF_SOME, ClusterTest, Job, check_epochs, check_same_bits, rounds_in_common


def run(workers, environment=None, **options):
    with Job(workers, **options) as job:
        job.start(environment)
        return job.finish(), job.rounds(), job.log("coordinator")


def samples_of(line):
    """The positions that a round is over, whoever has computed them."""
    merged = []
    for start, to in sorted(tuple(at) for c in line["contributors"] for at in c["ranges"]):
        if merged and merged[-1][1] == start:
            start = merged.pop()[0]
        merged.append((start, to))
    return line["epoch"], merged


class Training(ClusterTest):
    def test_worker_counts_agree(self):
        runs = {}
        for workers in (1, 2, 4, 8):
            summary, rounds, _ = run(workers, job__rounds=200)
            self.assertEqual(summary["rounds"], 200)
            check_epochs(self, rounds, 2048)
            runs[workers] = rounds
        self.assertLess(runs[1][-1]["loss"], 0.5 * runs[1][0]["loss"], "it does not learn")
        compared = {}
        for workers in (2, 4, 8):
            # A worker that stands still for a moment is left out of its round: that has other samples then, and so have the next.
            compared[workers] = rounds_in_common(runs[1], runs[workers], of=samples_of)
            for one, several in zip(runs[1][:compared[workers]], runs[workers]):
                self.assertLess(abs(one["loss"] - several["loss"]), 1e-4 * abs(one["loss"]))
        self.assertGreaterEqual(min(compared.values()), ROUNDS_OF_EACH, compared)
        self.assertGreaterEqual(max(compared.values()), ROUNDS_OF_SOME, compared)

    def test_ways_agree_bit_for_bit(self):
        runs = {}
        for name, options in {
            "mapped": {},
            "mapped again": {},
            "ucx": {"exchange__mapping": "off", "exchange__transport": "ucx"},
            "tcp": {"exchange__mapping": "off", "exchange__transport": "tcp"},
        }.items():
            summary, rounds, _ = run(4, optimizer__clip=1.0, exchange__bucket_bytes="8KiB", exchange__piece_bytes="4KiB", **options)
            runs[name] = (rounds, summary)
            paths = {path["path"].split(":")[0] for path in summary["paths"]}
            self.assertEqual(paths, {name.split()[0]})
            self.assertTrue(all(path["gb_per_s"] > 0 for path in summary["paths"]))
        check_same_bits(self, runs)

    def test_several_threads_have_the_bits_of_one(self):
        runs = {}
        large = {"model__widths": "1024,1024", "job__rounds": 8, "optimizer__name": "adamw", "optimizer__clip": 1.0, "exchange__bucket_bytes": "2MiB"}
        for name, options in {
            "one": {"exchange__threads": 1},
            "mapped": {"exchange__threads": 3},
            "tcp": {"exchange__threads": 3, "exchange__mapping": "off", "exchange__transport": "tcp"},
            "holders": {"exchange__threads": 3, "optimizer__replicas": 1},
        }.items():
            with Job(2, **large, **options) as job:
                summary = job.start().finish()
                runs[name] = (job.rounds(), summary)
                job.wait("worker0")
                self.assertEqual("sums and updates by up to 3 threads: exchange.threads" in job.log("worker0"), name != "one")
        check_same_bits(self, runs)

    def test_auto_takes_tcp_without_rdma_and_says_why(self):
        summary, _, log = run(2, exchange__mapping="off")
        self.assertEqual(summary["transport"], "tcp")
        self.assertIn("info the job uses tcp, because worker 0 does not have ucx: its host has no active RDMA port", log)
        self.assertNotRegex(log, "warning the job")

    def test_evaluation_and_epochs(self):
        summary, rounds, _ = run(3, job__rounds=0, job__epochs=2, job__global_batch=100, evaluation__every_epochs=1)
        self.assertEqual(summary["epochs"], 2)
        self.assertEqual(summary["samples_counted"], 2 * 2048)
        self.assertGreater(summary["test_accuracy"], 0.5)
        check_epochs(self, rounds, 2048)

    def test_other_models_and_optimizers(self):
        for options in ({"model__name": "softmax", "optimizer__name": "adamw", "optimizer__lr": 0.01},
                        {"optimizer__name": "rmsprop", "optimizer__lr": 0.001, "schedule__name": "cosine", "schedule__warmup": 5}):
            summary, rounds, _ = run(2, **options)
            self.assertEqual(summary["status"], "completed")
            self.assertLess(rounds[-1]["loss"], rounds[0]["loss"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
