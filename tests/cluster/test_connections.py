"""Several TCP connections between two workers (exchange.connections): the same bits, and they are one peer when something happens to one."""

import unittest

from harness import ClusterTest, Job, check_epochs, check_same_bits, wait_for
from test_failures import reset_link_between

OVER_TCP = {"exchange.mapping": "off", "exchange.transport": "tcp"}
# Pieces enough for all connections.
PIECES = OVER_TCP | {"model.widths": "512,256", "exchange.bucket_bytes": "64KiB", "exchange.piece_bytes": "16KiB"}
PACED = PIECES | {"emulate.unit_time": "5ms", "policy.name": "full", "job.min_workers": 2, "liveness.timeout": "4s"}


def path_of(connections, encryption="off"):
    tls = " (TLS 1.3)" if encryption == "on" else ""
    return f"tcp{tls}" + (f", {connections} connections" if connections > 1 else "")


class Connections(ClusterTest):
    def test_the_same_bits_over_one_and_four(self):
        runs = {}
        for connections, encryption in ((1, "off"), (4, "off"), (4, "on")):
            with self.subTest(connections=connections, encryption=encryption), \
                    Job(3, PIECES, exchange__connections=connections, exchange__encryption=encryption) as job:
                summary = job.start().finish()
                self.assertEqual(summary["digest_differs"], [])
                paths = {path["path"].replace("TLS 1.3, kernel", "TLS 1.3") for path in summary["paths"]}
                self.assertEqual(paths, {path_of(connections, encryption)})
                runs[f"{connections} connections, encryption {encryption}"] = (job.rounds(), summary)
        check_same_bits(self, runs)

    def test_where_memory_is_mapped_there_are_as_many(self):
        """Nobody knows of a mapping when the connections are made."""
        with Job(2, exchange__connections=2, exchange__transport="tcp") as job:
            summary = job.start().finish()
            self.assertTrue(all(path["path"].startswith("mapped") for path in summary["paths"]), summary["paths"])

    def test_a_worker_is_killed_and_comes_back(self):
        with Job(3, PACED, exchange__connections=4, job__rounds=100000) as job:
            job.start()
            job.wait_for_rounds(10)
            at = job.kill_worker(1)
            job.wait_for_rounds(at + 10)
            job.start_worker(1, name="again")
            job.wait_for_contribution(1, at + 1)
            summary = job.interrupt()
            self.assertEqual(summary["digest_differs"], [])
            self.assertEqual({path["path"] for path in summary["paths"]}, {path_of(4)})
            self.assertEqual(job.wait("again"), 0)

    def test_one_connection_that_is_reset_is_the_end_of_all_and_they_are_made_again(self):
        with Job(2, PACED, exchange__connections=3, job__rounds=100000) as job:
            job.start()
            job.wait_for_rounds(10)
            for at in (0, 1):
                made_again = job.log("coordinator").count("reach each other again")
                reset_link_between(job.processes[f"worker{at}"], job.processes[f"worker{1 - at}"], connections=3)
                wait_for("the link to be made again", lambda: job.log("coordinator").count("reach each other again") > made_again)
                job.wait_for_rounds(len(job.rounds()) + 5)
            self.assertEqual(job.interrupt()["digest_differs"], [])
            check_epochs(self, job.rounds(), 2048)


if __name__ == "__main__":
    unittest.main(verbosity=2)
