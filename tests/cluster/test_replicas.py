"""The optimizer's state shared out among workers (optimizer.replicas): the same result as where everybody holds all of it, also when
workers are lost, and less memory."""

import signal
import unittest

from harness import ClusterTest, Job, check_same_bits, count_alike, run_and_resume, wait_for
from memory_account import account, copies_for_joiners, shares, staged

PACED = {"emulate.unit_time": "10ms", "job.rounds": 60, "job.units": 16, "job.global_batch": 64, "optimizer.name": "adamw",
         "optimizer.lr": 0.01, "policy.name": "full+none", "job.min_workers": 2}
PATHS = ({"exchange.mapping": "auto"}, {"exchange.mapping": "off", "exchange.transport": "tcp"})


class Replicas(ClusterTest):
    def test_has_the_bits_of_a_job_in_which_everybody_holds_everything(self):
        for path in PATHS:
            with self.subTest(path=path):
                runs = {}
                for replicas in ("all", 2, 1):
                    with Job(4, PACED | path, optimizer__replicas=replicas, optimizer__clip=1, emulate__unit_time="0s") as job:
                        job.start()
                        summary = job.finish()
                        self.assertEqual(summary["status"], "completed")
                        self.assertEqual(summary["digest_differs"], [])
                        runs[replicas] = (job.rounds(), summary)
                check_same_bits(self, runs)

    def test_survives_sigkill(self):
        for path in PATHS:
            with self.subTest(path=path), Job(4, PACED | path, optimizer__replicas=2, job__rounds=100000) as job:
                job.start()
                job.wait_for_rounds(10)
                at = job.kill_worker(1)
                job.wait_for_rounds(at + 10)
                job.start_worker(1, name="again")
                job.wait_for_contribution(1, at + 1)
                self.assertEqual(job.interrupt()["digest_differs"], [])
                self.assertEqual(job.wait("again"), 0)

    def test_survives_a_stopped_holder(self):
        for path in PATHS:
            with self.subTest(path=path), Job(4, PACED | path, optimizer__replicas=2, job__rounds=100000) as job:
                job.start()
                job.wait_for_rounds(10)
                job.processes["worker2"].send_signal(signal.SIGSTOP)
                job.wait_for_rounds(len(job.rounds()) + 10)
                job.processes["worker2"].send_signal(signal.SIGCONT)
                job.wait_for_rounds(len(job.rounds()) + 10)
                self.assertEqual(job.interrupt()["digest_differs"], [])

    def test_the_last_copy_of_a_shard_ends_the_job(self):
        with Job(3, PACED, optimizer__replicas=1, job__min_workers=1, job__rounds=100000) as job:
            job.start()
            job.wait_for_rounds(10)
            job.processes["worker1"].kill()
            self.assertNotEqual(job.wait("coordinator"), 0)
            self.assertIn("the last copy of shard", job.log("coordinator"))

    def test_is_resumed_from_a_checkpoint(self):
        with Job(3, PACED, optimizer__replicas=2, checkpoint__every_rounds=10, checkpoint__keep=10) as job:
            whole, summary = run_and_resume(self, job)
            self.assertEqual(summary["status"], "completed")
        with Job(3, PACED, optimizer__replicas=2, checkpoint__every_rounds=10, job__rounds=100000) as job:
            job.start()
            wait_for("a checkpoint", lambda: "checkpoint after round" in job.log("coordinator"))
            for process in job.processes.values():
                process.kill()
            for name in list(job.processes):
                job.wait(name)
            rounds = len(job.rounds()) + 20
            job.start_coordinator("--resume", f"--job.rounds={rounds}")
            for index in range(3):
                job.start_worker(index)
            summary = job.finish()
            self.assertEqual(summary["status"], "completed")
            count_alike(self, whole, job.rounds())

    LARGE = {"model.widths": "2048,2048", "job.global_batch": 16, "job.units": 8, "data.synthetic_train": 256, "data.synthetic_test": 16,
             "job.rounds": 12, "policy.name": "full+none", "optimizer.name": "adamw", "optimizer.lr": 0.001}

    def test_takes_less_memory_when_it_is_resumed(self):
        """The whole checkpoint comes to each worker, which keeps what it holds."""
        with Job(4, self.LARGE, optimizer__replicas=1) as job:
            job.start()
            self.assertEqual(job.finish()["status"], "completed")
            job.config.write_text(job.config.read_text().replace("rounds = 12", "rounds = 16"))
            job.start_coordinator("--resume")
            for index in range(4):
                job.start_worker(index, name=f"resumed{index}")
            self.assertEqual(job.finish()["rounds"], 16)
            workers = []
            for index in range(4):
                self.assertEqual(job.wait(f"resumed{index}"), 0)
                workers.append(account(job.log(f"resumed{index}")))
        others = [one for one in workers if one["snapshots"] < 1.1]
        self.assertEqual(len(others), 3, "one has written the checkpoint")
        # Of three, and who has lost or taken a shard meanwhile has one more.
        self.assertLess(min(one["state"] for one in others), 1 + 2 / 4 + 0.1)

    def test_takes_less_memory(self):
        """The table of docs/reports/2026-11-pytorch-and-memory.md, by the account of each worker that has not written the checkpoint."""
        for path in PATHS:
            mapped = path.get("exchange.mapping", "auto") == "auto"
            for replicas in ("all", 2, 1):
                with self.subTest(path=path, replicas=replicas):
                    with Job(4, self.LARGE | path, optimizer__replicas=replicas, coordinator_args=("--log-level", "debug")) as job:
                        job.start()
                        self.assertEqual(job.finish()["status"], "completed")
                        for at in range(4):
                            self.assertEqual(job.wait(f"worker{at}"), 0)
                        log = job.log("coordinator")
                        owned, at_once = shares(log, 4), staged(log, 4)
                        workers = [account(job.log(f"worker{at}")) | {"owned": owned[at], "staged": at_once[at]} for at in range(4)]
                        # In the job's context, so that a failure shows the logs.
                        self.check_memory([one for one in workers if one["snapshots"] < 1.1], replicas, mapped,
                                          stood_in="stands in for" in log, caught_up="catches up from" in log)

    def check_memory(self, workers, replicas, mapped, stood_in, caught_up):
        """Where the machine was busy, who was quicker owns more, and has more of the sums and of what is staged for them."""
        self.assertEqual(len(workers), 3, "one has written the checkpoint")
        for one in workers:
            owned = max(one["owned"])
            # Out of contributions that are kept as long where somebody stood in for another one, whose share is then staged as well.
            most = {"contributions": 1 + stood_in, "staging": 0 if mapped else 3 * one["staged"] * (1 + stood_in), "snapshots": 1,
                    "copies": copies_for_joiners(one, 3) if caught_up else 0}
            if replicas == "all":
                # Of three rounds, or four, and over a network what others have made of one, or two where one is late. What is mapped is
                # not given back.
                most["sums"] = 4 * min(sum(one["owned"]), 1) if mapped else 4 * owned + 1 + stood_in
            large_page = 2 / (one["mib"] / one["total"])  # of which the last one need not be full
            for kind, times in most.items():
                self.assertLessEqual(one[kind], times + large_page, f"{kind} in {one}")
        # What shards a worker holds beside those that it owns goes by all workers' shares: of the one that has least. Who has stood still
        # may hold none.
        least = min(workers, key=lambda one: one["total"])
        held = 4 if replicas == "all" else replicas
        self.assertLess(least["state"], 1 + 2 * held / 4 + 0.1)
        if replicas != "all":
            self.assertLess(least["sums"], 4 * replicas / 4 + 0.1)
        if not stood_in and not caught_up and all(len(one["owned"]) == 1 for one in workers):  # the table, where nothing came between
            self.assertGreater(least["state"], 1 + 2 * held / 4 - 0.1)
            table = {"all": (5.75, 7.5), 2: (5.5, 6.25), 1: (4.25, 5)}[replicas]
            self.assertLess(least["total"], (table[0] + 0.1) if mapped else (table[1] + 0.35))

    def test_what_needs_the_whole_state_is_refused(self):
        for settings in ({"policy.name": "async"}, {"policy.name": "local"}, {"exchange.dtype": "bf16"},
                         {"exchange.compression": "topk"}):
            self.check_refused(PACED | settings | {"optimizer.replicas": 1}, "optimizer.replicas = 1")


if __name__ == "__main__":
    unittest.main()
