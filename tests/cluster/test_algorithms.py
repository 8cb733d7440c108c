"""Sums that are passed on from worker to worker (exchange.algorithm = ring | tree): one result whatever way they go, ring's that of direct,
and a direct second attempt when one of those they pass is stopped or gone."""

import signal
import unittest

from harness import ClusterTest, Job, check_same_bits, wait_for

SMALL_PIECES = {"optimizer.clip": 1.0, "model.widths": "256,512", "exchange.bucket_bytes": "64KiB", "exchange.piece_bytes": "16KiB",
                "job.global_batch": 256, "policy.name": "full+none"}
# Not one that rides on the messages.
PACED = SMALL_PIECES | {"emulate.unit_time": "10ms", "job.rounds": 100000, "job.units": 16, "job.min_workers": 2,
                        "liveness.timeout": "4s"}
OVER_TCP = {"exchange.mapping": "off", "exchange.transport": "tcp"}
WAYS = {
    "mapped": {},
    "tcp": OVER_TCP,
    "tcp again": OVER_TCP,
    "tcp (TLS 1.3)": OVER_TCP | {"exchange.encryption": "on"},
    "tcp, 3 connections": OVER_TCP | {"exchange.connections": 3},
    "ucx": {"exchange.mapping": "off", "exchange.transport": "ucx"},
}


class Algorithms(ClusterTest):
    def run_all_ways(self, workers, algorithm, options):
        runs = {}
        for way, settings in WAYS.items():
            with Job(workers, options | settings, exchange__algorithm=algorithm) as job:
                summary = job.start().finish()
                self.assertEqual(summary["digest_differs"], [])
                rounds = job.rounds()
                # A second attempt is direct, whatever the job's algorithm is: who had sums to pass on was silent for a moment.
                taken = [(line.get("algorithm", "direct"), len(line["attempts"])) for line in rounds]
                self.assertLessEqual({name for name, attempts in taken if attempts == 1}, {algorithm})
                self.assertLessEqual({name for name, _ in taken}, {algorithm, "direct"})
                self.assertIn(algorithm, {name for name, _ in taken})
                runs[f"{algorithm}, {way}"] = (rounds, summary)
        return runs

    def test_ways_agree_and_ring_has_the_bits_of_direct(self):
        for options in (SMALL_PIECES, SMALL_PIECES | {"model.widths": "16", "exchange.bucket_bytes": "4MiB"}):
            with self.subTest(widths=options["model.widths"]):
                direct, ring, tree = (self.run_all_ways(5, algorithm, options) for algorithm in ("direct", "ring", "tree"))
                check_same_bits(self, direct | ring)
                check_same_bits(self, tree)
                digests = {summary["params_digest"] for _, summary in (direct["direct, tcp"], tree["tree, tcp"])}
                self.assertEqual(len(digests), 2, "tree has the bits of direct")

    def test_survive_sigkill(self):
        for algorithm in ("ring", "tree"):
            with self.subTest(algorithm=algorithm), Job(4, PACED | OVER_TCP, exchange__algorithm=algorithm) as job:
                job.start()
                job.wait_for_rounds(10)
                at = job.kill_worker(1)
                job.wait_for_rounds(at + 10)
                job.start_worker(1, name="again")
                job.wait_for_contribution(1, at + 1)
                # Second attempts are direct, and there are some on a busy machine.
                back = len(job.rounds())
                wait_for("a round that is passed on", lambda: algorithm in {line.get("algorithm") for line in job.rounds()[back:]})
                self.assertEqual(job.interrupt()["digest_differs"], [])
                self.assertEqual(job.wait("again"), 0)

    def test_survive_one_that_is_stopped_in_the_middle(self):
        """Under full, which waits for its units, or not for what it has to pass on."""
        for algorithm in ("ring", "tree"):
            for victim in (1, 3):
                with self.subTest(algorithm=algorithm, victim=victim), Job(4, PACED | OVER_TCP, exchange__algorithm=algorithm) as job:
                    job.start()
                    job.wait_for_rounds(10)
                    job.processes[f"worker{victim}"].send_signal(signal.SIGSTOP)
                    job.wait_for_rounds(len(job.rounds()) + 10)
                    job.processes[f"worker{victim}"].send_signal(signal.SIGCONT)
                    job.wait_for_rounds(len(job.rounds()) + 10)
                    self.assertEqual(job.interrupt()["digest_differs"], [])

    def test_what_cannot_be_passed_on_is_refused(self):
        for settings in ({"policy.name": "async"}, {"policy.name": "local"}, {"exchange.dtype": "bf16"}, {"optimizer.replicas": 1},
                         {"exchange.compression": "topk"}):
            self.check_refused(SMALL_PIECES | settings | {"exchange.algorithm": "tree"}, "exchange.algorithm")

    def test_auto_says_why(self):
        for way, word in ((OVER_TCP, "5 workers, 0."), ({}, "the workers read each other's memory")):
            with self.subTest(way=way), Job(5, SMALL_PIECES | way, exchange__algorithm="auto", job__rounds=60) as job:
                summary = job.start().finish()
                self.assertEqual(summary["digest_differs"], [])
                log = job.log("coordinator")
                self.assertIn("exchange.algorithm = auto chooses ", log)
                self.assertIn(word, summary["algorithm_reason"])
                self.assertIn(summary["algorithm"], ("direct", "ring", "tree"))


if __name__ == "__main__":
    unittest.main()
