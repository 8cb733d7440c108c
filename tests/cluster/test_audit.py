"""A worker that computes wrong gradients is found and put out: workers in C, and those of the programs on real sockets."""

import unittest

import harness
from harness import BIN, ClusterTest, Job, check_epochs, main

C_WORKER = BIN / "lockstep-c-worker"


class AuditTest(ClusterTest):
    def test_a_worker_that_adds_a_little_to_one_number_is_put_out(self):
        with Job(4, audit__share=0.1, job__global_batch=64, job__units=16, job__rounds=1500, job__min_workers=2, optimizer__lr=0.5,
                 emulate__unit_time="1ms") as job:
            job.start_coordinator()
            for worker in range(4):
                environment = {"WRONG_FROM": "20"} if worker == 3 else {}
                job._start(f"c{worker}", [C_WORKER, job.address], environment=environment)
            self.assertEqual(job.wait("c3"), 2, job.log("c3"))
            # Its machine is not taken again, under whatever number, nor by the next coordinator.
            for name in ("c4", "c5"):
                job._start(name, [C_WORKER, job.address])
                self.assertEqual(job.wait(name), 2, job.log(name))
                self.assertRegex(job.log(name), r"cpu of host \S+ has computed wrong gradients in this job \(audit.share\): start this worker on another")
                if name == "c4":
                    job.processes["coordinator"].kill()
                    job.processes["coordinator"].wait()
                    job.listen = job.address
                    job.start_coordinator("--reattach")
            summary = job.finish()
            log = job.log("coordinator")
            line = next(line for line in log.splitlines() if "computes wrong gradients" in line)
            wrong = next(name for name in range(4) if "computes wrong gradients" in job.log(f"c{name}"))
            self.assertEqual(wrong, 3, line)
            self.assertEqual(summary["status"], "completed")
            self.assertEqual(summary["rounds"], 1500)
            self.assertEqual(len(summary["audit"]["wrong"]), 1)
            self.assertRegex(line, rf"worker {summary['audit']['wrong'][0]} is out: audit: worker \d computes wrong gradients: its one of the samples "
                                   r"\[\d+, \d+\) in round \d+ differs from those of workers \d and \d, which agree")
            self.assertRegex(log, r"warning audit: workers \d and \d computed two different gradients of the samples")
            for worker in range(3):
                self.assertEqual(job.wait(f"c{worker}"), 0, job.log(f"c{worker}"))

    def test_sound_workers_agree(self):
        for more in ({}, {"exchange__mapping": "off", "exchange__transport": "tcp"}, {"exchange__dtype": "bf16"}, {"policy__name": "flexrr"},
                     {"optimizer__name": "adamw", "optimizer__replicas": 2}, {"model__widths": "200,100", "optimizer__clip": 1}):
            with self.subTest(**more), Job(3, **{"audit__share": 0.2, "job__units": 12, "job__rounds": 60, **more}) as job:
                job.start()
                summary = job.finish()
                self.assertEqual(summary["status"], "completed", job.log("coordinator"))
                self.assertGreater(summary["audit"]["units"], 10)
                self.assertEqual((summary["audit"]["differed"], summary["audit"]["wrong"]), (0, []))
                check_epochs(self, job.rounds(), 2048)

    def test_what_does_not_go_with_it_is_one_line(self):
        for more, said in (({"exchange__compression": "topk"}, "audit.share = 0.1 and exchange.compression = topk"),
                           ({"policy__name": "async"}, "audit.share = 0.1 and policy.name = async"),
                           ({"audit__share": 2}, "audit.share")):
            with self.subTest(**more), Job(2, **{"audit__share": 0.1, **more}) as job:
                self.assertIn(said, job.refusal())


if __name__ == "__main__":
    main()
