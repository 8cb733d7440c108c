"""What a job has to stand whatever form gradients travel in: the ways agree, and nobody's end costs the others anything."""

import signal

from harness import ClusterTest, Job, check_epochs, check_same_bits, wait_for

OVER_TCP = {"exchange.mapping": "off", "exchange.transport": "tcp"}
PACED = {"emulate.unit_time": "3ms", "job.rounds": 0, "job.epochs": 4}


def run(workers, options=None, **more):
    with Job(workers, options, **more) as job:
        summary = job.start().finish()
        return summary, job.rounds()


class ExchangeTest(ClusterTest):
    def one_result(self, form):
        """Of all ways, and that of the first: the digest and the rounds."""
        runs = {}
        for name, options in {
            "mapped": {},
            "mapped again": {},
            "tcp": OVER_TCP,
            "ucx": {"exchange.mapping": "off", "exchange.transport": "ucx"},
        }.items():
            # Some buckets are final, and asked for, while the first layers' gradients are still computed.
            summary, rounds = run(4, {"optimizer.clip": 1.0, "model.widths": "256,512", "exchange.bucket_bytes": "64KiB",
                                      "exchange.piece_bytes": "16KiB", "job.global_batch": 256, **form, **options})
            runs[name] = (rounds, summary)
            self.assertEqual({path["path"].split(":")[0] for path in summary["paths"]}, {name.split()[0]})
            self.assertEqual(summary["digest_differs"], [])
        check_same_bits(self, runs)
        rounds, summary = runs["mapped"]
        return summary["params_digest"], rounds

    def stand_a_killed_worker(self, form):
        for policy in ("flexrr", "backup"):
            for mapping in ("auto", "off"):
                with self.subTest(policy=policy, mapping=mapping), Job(
                        4, {**PACED, **form}, policy__name=policy, exchange__mapping=mapping, exchange__transport="tcp",
                        job__min_workers=2, job__epochs=100000) as job:
                    job.start()
                    job.wait_for_rounds(10)
                    job.wait_for_rounds(job.kill_worker(2) + 70)
                    self.assertEqual(job.interrupt()["digest_differs"], [])
                    check_epochs(self, job.rounds(), 2048)

    def stand_a_stopped_owner_and_one_that_comes_later(self, form):
        for mapping in ("auto", "off"):
            with self.subTest(mapping=mapping), Job(3, {**PACED, **form}, policy__name="backup", backup__workers=1, exchange__mapping=mapping,
                                                   exchange__transport="tcp", job__min_workers=1, job__epochs=100000) as job:

                def contributes(worker, since):
                    return any(worker in {c["worker"] for c in line["contributors"]} for line in job.rounds()[since:])

                job.start()
                job.wait_for_rounds(10)
                job.processes["worker0"].send_signal(signal.SIGSTOP)
                job.wait_for_rounds(len(job.rounds()) + 20)
                back = len(job.rounds())
                job.processes["worker0"].send_signal(signal.SIGCONT)
                wait_for("the stopped worker's contribution", lambda: contributes(0, back))
                job.processes["worker1"].kill()
                job.processes["worker1"].wait()
                wait_for("word of the loss", lambda: "worker 1 is out" in job.log("coordinator"))
                at = len(job.rounds())
                job.start_worker(1, name="worker1-again")
                wait_for("the newcomer's contribution", lambda: contributes(1, at + 1))
                job.wait_for_rounds(len(job.rounds()) + 20)
                job.processes["coordinator"].send_signal(signal.SIGINT)
                self.assertEqual(job.wait("coordinator"), 130)
                summary = job.summary()
                self.assertEqual((summary["status"], summary["digest_differs"]), ("interrupted", []))

    def resume_with(self, forms):
        """Options and the job's rounds of each run; the first one is without."""
        with Job(2, checkpoint__every_rounds=10, job__rounds=10) as job:
            job.start().finish()
            for index in range(2):
                job.wait(f"worker{index}")
            for rounds, form in forms:
                job.start_coordinator("--resume", f"--job.rounds={rounds}", form)
                for index in range(2):
                    job.start_worker(index)
                summary = job.finish()
                for index in range(2):
                    job.wait(f"worker{index}")
                self.assertEqual((summary["status"], summary["rounds"]), ("completed", rounds))
                self.assertEqual(summary["digest_differs"], [])
            return (job.run_dir / "config.ini").read_text()
