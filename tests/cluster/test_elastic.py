"""A job takes workers beyond those that it began with, gives their slots back, and has spares that compute once others are lost."""

import re
import subprocess
import unittest

from harness import PATIENCE, TOOLS, ClusterTest, Job, check_epochs, main, wait_for

PACED = {"emulate.unit_time": "3ms", "job.units": 24, "job.global_batch": 96, "checkpoint.every": "0s"}
# In rounds. What is interrupted has no other end.
ENDLESS = 100000


def units_of(line):
    """{worker: units} of a closed round."""
    count = {}
    for unit in line["units"]:
        count[unit["worker"]] = count.get(unit["worker"], 0) + 1
    return count


class ElasticTest(ClusterTest):
    def wait_for_workers(self, job, workers):
        """Until the last rounds, of those that close from now on, were computed by exactly these; a policy may leave one of them out of a round."""
        since = len(job.rounds())

        def there():
            last = job.rounds()[since:][-8:]
            return last[-1] if len(last) == 8 and {worker for line in last for worker in units_of(line)} == set(workers) else None
        return wait_for(f"rounds of {list(workers)}", there)

    def test_from_four_workers_to_eight_and_to_three(self):
        for policy in ("full", "backup", "flexrr"):
            with self.subTest(policy=policy), Job(4, PACED, job__rounds=ENDLESS, job__max_workers=8, job__min_workers=2, policy__name=policy,
                                                  coordinator_args=["--http", "127.0.0.1:0"]) as job:
                job.start()
                job.wait_for_rounds(5)
                self.assertEqual(job.rounds()[0]["round"], 0)
                self.assertLessEqual(set(units_of(job.rounds()[0])), {0, 1, 2, 3})
                self.assertNotIn("starts with", job.log("coordinator"))
                for worker in range(4, 8):
                    job.start_worker(worker)
                self.wait_for_workers(job, range(8))
                http = re.search(r"status page: http://(\S+)/", job.log("coordinator")).group(1)
                for worker in (0, 2, 4, 5, 7):
                    told = subprocess.run([TOOLS / "ctl", "--http", http, "drain", str(worker)], capture_output=True, text=True,
                                          timeout=60 * PATIENCE, check=False)
                    self.assertEqual(told.returncode, 0, told.stderr)
                for worker in (0, 2, 4, 5, 7):
                    self.assertEqual(job.wait(f"worker{worker}"), 0, job.log(f"worker{worker}"))
                self.wait_for_workers(job, (1, 3, 6))
                # A slot that was given back is taken again.
                job.start_worker(2, name="again")
                self.wait_for_workers(job, (1, 2, 3, 6))
                job.interrupt()
                check_epochs(self, job.rounds(), 2048)
                if policy != "backup":
                    self.assertEqual({sum(len(range(*r)) for c in line["contributors"] for r in c["ranges"]) for line in job.rounds()[:20]}, {96})

    def test_a_ninth_worker_is_refused(self):
        with Job(1, PACED, job__rounds=ENDLESS, job__max_workers=2) as job:
            job.start()
            job.start_worker(1)
            self.wait_for_workers(job, (0, 1))
            job.start_worker(0, "--connect-timeout", "1s", name="third")
            self.assertNotEqual(job.wait("third"), 0)
            self.assertIn("all 2 workers of the job are there", job.log("third") + job.log("coordinator"))
            job.interrupt()

    def test_a_spare_computes_once_another_worker_is_lost(self):
        with Job(4, PACED, job__rounds=ENDLESS, job__spares=1) as job:
            job.start()
            job.wait_for_rounds(20)
            self.assertEqual({tuple(sorted(units_of(line))) for line in job.rounds()}, {(0, 1, 2)})
            job.processes["worker1"].kill()
            line = self.wait_for_workers(job, (0, 2, 3))
            job.wait_for_rounds(line["round"] + 10)
            # The job does not wait for another worker: three are enough.
            self.assertNotIn("waiting for workers", job.log("coordinator"))
            job.start_worker(1, name="again")
            self.wait_for_workers(job, (0, 1, 2))
            rounds = len(job.rounds())
            job.wait_for_rounds(rounds + 5)
            self.assertEqual({tuple(sorted(units_of(line))) for line in job.rounds()[rounds + 2:]}, {(0, 1, 2)})
            job.interrupt()
            check_epochs(self, job.rounds(), 2048)

    def test_what_cannot_be_is_one_line(self):
        for more, said in (({"job__max_workers": 2}, "job.max_workers = 2 is less than --workers 4"),
                           ({"job__spares": 4}, "job.spares = 4 with --workers 4: at least one has to compute"),
                           ({"job__max_workers": 30, "job__units": 24}, "job.units = 24 is less than job.max_workers = 30")):
            with self.subTest(**more), Job(4, **more) as job:
                self.assertIn(said, job.refusal())


if __name__ == "__main__":
    main()
