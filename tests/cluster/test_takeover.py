"""The coordinator is killed, and the job goes on: with what its workers hold, not a sample and not a bit otherwise."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import unittest
import urllib.request

from harness import BIN, PATIENCE, TOOLS, ClusterTest, Job, check_epochs, main, wait_for

PACED = {"emulate.unit_time": "4ms", "job.units": 8, "checkpoint.every": "0s"}
# In rounds. What is interrupted has no other end.
ENDLESS = 100000


def kill(job):
    process = job.processes["coordinator"]
    process.kill()
    process.wait()


def take_over(job, *arguments):
    """The next coordinator, where the workers know it."""
    job.listen = job.address
    return job.start_coordinator("--reattach", *arguments)


class Takeover(ClusterTest):
    def run_through(self, deaths, **options):
        """A job whose coordinator is killed so often, beside one whose coordinator lives; both are over."""
        with Job(4, PACED, job__rounds=12 * deaths + 30, **options) as quiet:
            quiet.start()
            wanted = quiet.finish()
        with Job(4, PACED, job__rounds=12 * deaths + 30, **options) as job:
            job.start()
            for death in range(deaths):
                job.wait_for_rounds(12 * death + 6)
                kill(job)
                take_over(job)
            summary = job.finish()
            for worker in range(4):
                self.assertEqual(job.wait(f"worker{worker}"), 0, job.log(f"worker{worker}"))
            log = job.log("coordinator")
            self.assertEqual(log.count("whose parameters 4 workers held"), deaths, log)
            self.assertNotIn(" is out: ", log)
            rounds = job.rounds()
            self.assertEqual([line["round"] for line in rounds], list(range(12 * deaths + 30)))
            check_epochs(self, rounds, 2048)
        self.assertEqual(summary["samples_counted"], wanted["samples_counted"])
        self.assertEqual(summary["params_digest"], wanted["params_digest"])

    def test_twenty_deaths_cost_no_round_and_no_bit(self):
        self.run_through(20)

    def test_nor_do_they_over_tcp_with_encryption(self):
        self.run_through(5, exchange__mapping="off", exchange__transport="tcp", exchange__encryption="on")

    def test_nor_do_they_where_the_state_is_sharded(self):
        self.run_through(20, optimizer__replicas=2, optimizer__momentum=0.9)

    def test_nor_do_they_where_one_worker_has_each_shard(self):
        self.run_through(5, optimizer__replicas=1, optimizer__name="adamw", exchange__mapping="off", exchange__encryption="on")

    def test_what_compression_has_kept_back_stays(self):
        for options in ({"exchange__compression": "topk", "exchange__topk_fraction": 0.05},
                        {"exchange__compression": "powersgd", "optimizer__lr": 0.02}):
            with self.subTest(options=options):
                self.run_through(5, **options)

    def replace_a_worker(self, workers, said, **options):
        """The last one dies with the coordinator, and another one comes in its place."""
        last = workers - 1
        with Job(workers, PACED, job__rounds=ENDLESS, job__min_workers=1, liveness__timeout="3s", **options) as job:
            job.start()
            job.wait_for_rounds(10)
            kill(job)
            job.processes[f"worker{last}"].kill()
            job.processes[f"worker{last}"].wait()
            job.start_worker(last, name="replacement")
            take_over(job)
            job.wait_for_contribution(last, len(job.rounds()))
            job.interrupt()
            self.assertIn(said, job.log("coordinator"))
            check_epochs(self, job.rounds(), 2048)

    def test_workers_that_hold_nothing_copy(self):
        self.replace_a_worker(3, "whose parameters 2 workers held")

    def test_who_comes_instead_of_a_holder_copies_its_shards(self):
        self.replace_a_worker(4, "whose parameters 3 workers held; 1 copies them", optimizer__replicas=2, optimizer__momentum=0.9)

    def test_with_all_holders_of_a_shard_gone_it_is_the_checkpoint(self):
        with Job(3, PACED, job__rounds=ENDLESS, job__min_workers=1, liveness__timeout="3s", optimizer__replicas=1, optimizer__momentum=0.9,
                 checkpoint__every_rounds=5) as job:
            job.start()
            job.wait_for_rounds(20)
            kill(job)
            job.processes["worker2"].kill()
            job.processes["worker2"].wait()
            since = len(job.rounds())
            take_over(job)
            job.wait_for_rounds(since + 10)
            job.interrupt()
            self.assertIn("the workers together do not hold the parameters of the job before: it goes on from its checkpoint after round",
                          job.log("coordinator"))
            check_epochs(self, job.rounds(), 2048)

    def test_workers_are_told_the_config_that_they_know(self):
        """As of an earlier release, which had fewer keys. Workers compare the text."""
        with Job(2, PACED, job__rounds=ENDLESS, liveness__timeout="3s", checkpoint__every_rounds=5) as job:
            job.start()
            job.wait_for_rounds(10)
            kill(job)
            config = (job.run_dir / "config.ini").read_text()
            fewer = config.replace("residuals = false\n", "")
            self.assertNotEqual(fewer, config)
            (job.run_dir / "config.ini").write_text(fewer)
            take_over(job)
            for worker in range(2):
                wait_for("the reason", lambda name=f"worker{worker}": "is not followed: the job has other settings there" in job.log(name))
                self.assertEqual(job.log(f"worker{worker}").count("is not followed"), 1)
                job.processes[f"worker{worker}"].kill()
                job.start_worker(worker, name=f"next{worker}")
            since = len(job.rounds())
            job.wait_for_rounds(since + 3)
            job.interrupt()
            self.assertEqual((job.run_dir / "config.ini").read_text(), fewer)

    def test_a_death_before_the_first_commit_costs_nothing(self):
        for options in ({}, {"optimizer__replicas": 2}):
            with self.subTest(options=options):
                paced = PACED | {"emulate.unit_time": "100ms"}
                with Job(3, paced, job__rounds=4, **options) as quiet:
                    wanted = quiet.start().finish()
                with Job(3, paced, job__rounds=4, **options) as job:
                    job.start()
                    wait_for("the first plan", lambda: "a round is 8 units" in job.log("coordinator"))
                    kill(job)
                    self.assertEqual(job.rounds(), [])
                    take_over(job)
                    summary = job.finish()
                    # Those that had not yet been told to begin hold nothing.
                    self.assertRegex(job.log("coordinator"), r"the job goes on from round 0, whose parameters [123] workers? held|it begins anew")
                    check_epochs(self, job.rounds(), 2048)
                self.assertEqual(summary["params_digest"], wanted["params_digest"])

    def test_workers_that_died_with_it_are_waited_for_one_time_out(self):
        with Job(3, PACED, job__rounds=ENDLESS, job__min_workers=1, liveness__timeout="2s") as job:
            job.start()
            job.wait_for_rounds(10)
            kill(job)
            job.processes["worker2"].kill()
            job.processes["worker2"].wait()
            take_over(job)
            job.wait_for_rounds(len(job.rounds()) + 10)
            job.interrupt()
            self.assertIn("worker 2 is not there after 2s (liveness.timeout)", job.log("coordinator"))
            check_epochs(self, job.rounds(), 2048)

    def test_who_was_lost_before_is_not_waited_for(self):
        with Job(3, PACED, job__rounds=ENDLESS, job__min_workers=1) as job:
            job.start()
            job.wait_for_rounds(10)
            job.processes["worker2"].kill()
            wait_for("worker 2 to be out", lambda: "worker 2 is out" in job.log("coordinator"))
            job.wait_for_rounds(len(job.rounds()) + 5)
            kill(job)
            take_over(job)
            job.wait_for_rounds(len(job.rounds()) + 10)
            job.interrupt()
            self.assertIn("whose parameters 2 workers held", job.log("coordinator"))
            self.assertNotIn("worker 2 is not there", job.log("coordinator"))
            check_epochs(self, job.rounds(), 2048)

    def test_a_job_that_has_grown_goes_on_with_all_of_it(self):
        with Job(2, PACED, job__rounds=ENDLESS, job__max_workers=5, job__min_workers=1) as job:
            job.start()
            for worker in range(2, 5):
                job.start_worker(worker)
            for worker in range(5):
                job.wait_for_contribution(worker, 0)
            kill(job)
            take_over(job)
            job.wait_for_rounds(len(job.rounds()) + 10)
            job.interrupt()
            self.assertIn("whose parameters 5 workers held", job.log("coordinator"))
            self.assertNotIn("cop", job.log("coordinator").partition("parameters 5 workers held")[2].splitlines()[0])
            check_epochs(self, job.rounds(), 2048)

    def test_deaths_while_workers_die_and_join_lose_no_sample(self):
        deaths = 20
        with Job(4, PACED, job__rounds=ENDLESS, job__max_workers=6, job__min_workers=1, liveness__timeout="2s") as job:
            job.start()
            names = {worker: f"worker{worker}" for worker in range(4)}
            for death in range(deaths):
                job.wait_for_rounds(len(job.rounds()) + 6)
                victim = death % len(names)
                with self.subTest(death=death, victim=victim):
                    # By turns the worker dies before, with and after the coordinator; another one comes in its place.
                    process = job.processes[names[victim]]
                    if death % 3 == 0:
                        process.kill()
                        process.wait()
                    kill(job)
                    if death % 3 == 1:
                        process.kill()
                        process.wait()
                    take_over(job)
                    if death % 3 == 2:
                        process.kill()
                        process.wait()
                    names[victim] = f"worker{victim}-{death}"
                    job.start_worker(victim, name=names[victim])
                    if death == deaths // 2:
                        for more in (4, 5):
                            names[more] = f"worker{more}"
                            job.start_worker(more)
                    job.wait_for_contribution(victim, len(job.rounds()))
            job.interrupt()
            rounds = job.rounds()
            self.assertEqual([line["round"] for line in rounds], list(range(len(rounds))))
            check_epochs(self, rounds, 2048)

    def test_what_was_asked_for_at_run_time_stays(self):
        with Job(2, PACED, job__rounds=ENDLESS, coordinator_args=["--http", "127.0.0.1:0"]) as job:
            job.start()
            job.wait_for_rounds(5)
            # The slow-down is the last that the coordinator hears of.
            for words in (("policy", "flexrr"), ("slowdown", "worker=1,factor=1.5")):
                http = (job.run_dir / "http.address").read_text().strip()
                asked = subprocess.run([TOOLS / "ctl", "--http", http, *words], capture_output=True, text=True, timeout=60 * PATIENCE, check=False)
                self.assertEqual(asked.returncode, 0, asked.stderr)
            wait_for("the policy", lambda: job.rounds()[-1]["policy"].endswith("flexrr"))
            kill(job)
            take_over(job)
            since = len(job.rounds())
            job.wait_for_rounds(since + 5)
            self.assertTrue(job.rounds()[-1]["policy"].endswith("flexrr"))
            self.assertIn("worker=1,factor=1.5", str(job.interrupt()["slowdowns"]))

    def test_two_coordinators_never_drive_one_job(self):
        with Job(2, PACED, job__rounds=ENDLESS, job__coordinator_timeout="60s") as job:
            job.start()
            job.wait_for_rounds(5)
            second = subprocess.run([BIN / "lockstep-coordinator", "--listen", "127.0.0.1:0", "--workers", "2", "--run-dir", job.run_dir,
                                     "--reattach"], capture_output=True, text=True, timeout=60 * PATIENCE, check=False)
            self.assertEqual(second.returncode, 2)
            self.assertIn("another coordinator is writing to this run directory", second.stderr)
            # One that does not see the lock, as on another host: it has the folder as it was.
            kill(job)
            stale = job.folder / "stale"
            shutil.copytree(job.run_dir, stale)
            take_over(job)
            job.wait_for_rounds(len(job.rounds()) + 5)
            kill(job)
            job.run_dir, there = stale, job.run_dir
            take_over(job)
            refusals = [rf"worker {worker} is out: it leaves: the coordinator there is of term 2, and this worker has followed one of term 2"
                        for worker in range(2)]
            wait_for("their refusals", lambda: all(re.search(refusal, job.log("coordinator")) for refusal in refusals))
            self.assertEqual(job.log("coordinator").count("whose parameters"), 1)
            kill(job)
            job.run_dir = there
            take_over(job)
            since = len(job.rounds())
            job.wait_for_rounds(since + 5)
            job.interrupt()
            check_epochs(self, job.rounds(), 2048)

    def test_without_a_next_one_workers_end_with_a_line(self):
        with Job(2, PACED, job__rounds=ENDLESS, job__coordinator_timeout="1s") as job:
            job.start()
            job.wait_for_rounds(5)
            kill(job)
            for worker in range(2):
                self.assertEqual(job.wait(f"worker{worker}"), 1)
                log = job.log(f"worker{worker}")
                self.assertIn("this worker keeps its parameters and looks for the next coordinator", log)
                self.assertRegex(log, r"no coordinator took over within 1s \(job.coordinator_timeout\)")

    def test_where_nobody_holds_anything_it_is_the_checkpoint(self):
        with Job(2, PACED, job__rounds=ENDLESS, checkpoint__every_rounds=10, job__coordinator_timeout="0s") as job:
            job.start()
            job.wait_for_rounds(15)
            wait_for("a checkpoint", lambda: list((job.run_dir / "checkpoints").glob("*.json")))
            kill(job)
            for worker in range(2):
                self.assertEqual(job.wait(f"worker{worker}"), 1)
            take_over(job)
            for worker in range(2):
                job.start_worker(worker)
            job.wait_for_rounds(len(job.rounds()) + 5)
            self.assertIn("it goes on from its checkpoint after round", job.log("coordinator"))
            job.interrupt()
            check_epochs(self, job.rounds(), 2048)

    def test_one_command_begins_a_job_and_goes_on_with_it(self):
        with Job(2, PACED, job__rounds=40, coordinator_args=["--reattach"]) as job:
            job.start()
            job.finish()
            over = subprocess.run([BIN / "lockstep-coordinator", "--listen", "127.0.0.1:0", "--workers", "2", "--run-dir", job.run_dir,
                                   "--reattach"], capture_output=True, text=True, timeout=60 * PATIENCE, check=False)
            self.assertEqual(over.returncode, 2)
            self.assertRegex(over.stderr, r"--reattach: the job of .* has ended \(summary.json\)")

    def test_where_there_is_a_journal_there_are_the_settings(self):
        # With --config-from-workers they stand in no other file, and a journal makes --reattach go on from them.
        with Job(2) as job:
            (job.run_dir / "config.ini").mkdir(parents=True)
            begun = subprocess.run([BIN / "lockstep-coordinator", "--listen", "127.0.0.1:0", "--workers", "2", "--run-dir", job.run_dir,
                                    "--reattach"], capture_output=True, text=True, timeout=60 * PATIENCE, check=False)
            self.assertEqual(begun.returncode, 2, begun.stderr)
            self.assertIn("config.ini: cannot rename to: Is a directory", begun.stderr)
            self.assertFalse((job.run_dir / "journal").exists())

    def test_a_damaged_journal_is_refused_with_its_line(self):
        with Job(2, PACED, job__rounds=ENDLESS, job__coordinator_timeout="0s") as job:
            job.start()
            job.wait_for_rounds(10)
            kill(job)
            path = job.run_dir / "journal"
            text = bytearray(path.read_bytes())
            text[text.index(b"\n") + 60] ^= 1
            path.write_bytes(text)
            refused = subprocess.run([BIN / "lockstep-coordinator", "--listen", "127.0.0.1:0", "--workers", "2", "--run-dir", job.run_dir,
                                      "--reattach"], capture_output=True, text=True, timeout=60 * PATIENCE, check=False)
            self.assertEqual(refused.returncode, 2)
            self.assertRegex(refused.stderr, r"journal: line 2: its checksum does not fit")

    def test_the_launcher_restarts_it(self):
        with Job(3, PACED, job__rounds=150) as job:
            launched = job._start("launch", [TOOLS / "launch", "-n", "3", "--config", job.config, "--run-dir", job.run_dir, "--build-dir", BIN])
            job.processes["coordinator"] = launched  # what wait_for_rounds looks at
            for death in range(3):
                job.wait_for_rounds(20 * death + 10)
                children = pathlib.Path(f"/proc/{launched.pid}/task/{launched.pid}/children").read_text().split()
                names = {int(pid): pathlib.Path(f"/proc/{pid}/comm").read_text() for pid in children}
                (pid,) = (pid for pid, name in names.items() if name.startswith("lockstep-coord"))
                os.kill(pid, signal.SIGKILL)
            self.assertEqual(launched.wait(90 * PATIENCE), 0, job.log("launch"))
            log = job.log("launch")
            self.assertEqual(len(re.findall(r"the coordinator was ended by SIGKILL; restarting it", log)), 3, log)
            self.assertEqual(job.summary()["rounds"], 150)
            check_epochs(self, job.rounds(), 2048)


class AtTheEnd(ClusterTest):
    """All rounds are committed, and the coordinator is killed before its workers have heard of the end."""

    def run_to_the_end(self, **options):
        """Worker 2 is stopped before the end, so the coordinator waits for it to apply the last round."""
        with Job(3, policy__name="backup", emulate__unit_time="3ms", job__rounds=60, liveness__timeout="30s", checkpoint__every="0s",
                 coordinator_args=["--http", "127.0.0.1:0"], **options).start() as job:
            job.wait_for_rounds(10)
            job.processes["worker2"].send_signal(signal.SIGSTOP)
            http = (job.run_dir / "http.address").read_text().strip()
            wait_for("the others to have the last round", lambda: self.awaited(http) == "waiting for worker 2 to apply round 59")
            self.assertNotIn("checkpoint after round 59", job.log("coordinator"))
            kill(job)
            job.processes["worker2"].send_signal(signal.SIGCONT)
            take_over(job)
            summary = self.check_end(job)
            for worker in range(3):
                self.assertEqual(job.wait(f"worker{worker}"), 0, job.log(f"worker{worker}"))
                self.assertIn(f"this worker has the job's last parameters, SHA-256 {summary['params_digest']}", job.log(f"worker{worker}"))
            log = job.log("coordinator")
            self.assertIn("round 59 was the job's last one, and the job ends", log)
            self.assertEqual(log.count("checkpoint after round 59"), 1)
            self.assertEqual(len((job.run_dir / "evaluations.jsonl").read_text().splitlines()), 1)
            # It is a whole one: a resumed job ends at once with the same parameters.
            job.listen = "127.0.0.1:0"
            job.start_coordinator("--resume")
            for index in range(3):
                job.start_worker(index)
            self.assertEqual(job.finish()["params_digest"], summary["params_digest"])

    @staticmethod
    def awaited(http):
        with urllib.request.urlopen(f"http://{http}/status", timeout=60) as answer:
            return json.load(answer)["waiting_for"]

    def check_end(self, job):
        summary = job.finish()
        self.assertEqual((summary["status"], summary["rounds"], summary["reason"]), ("completed", 60, "all rounds are done"))
        self.assertEqual([line["round"] for line in job.rounds()], list(range(60)))
        self.assertGreater(summary["test_accuracy"], 0.2)
        return summary

    def test_the_next_one_does_what_is_left(self):
        self.run_to_the_end()

    def test_so_it_does_with_shards_of_the_state(self):
        self.run_to_the_end(optimizer__replicas=2)

    def test_when_all_have_ended_nobody_is_waited_for(self):
        with Job(3, job__rounds=60, liveness__timeout="2s").start() as job:
            self.check_end(job)
            for worker in range(3):
                self.assertEqual(job.wait(f"worker{worker}"), 0, job.log(f"worker{worker}"))
            (job.run_dir / "summary.json").unlink()  # as if it had been killed before that
            take_over(job)
            self.check_end(job)
            self.assertNotIn("joins", job.log("coordinator").splitlines()[-1])


class StoodStill(ClusterTest):
    """The coordinator is stopped for longer than workers wait for it."""

    def test_it_takes_over_from_itself(self):
        options = {"job__rounds": 60, "optimizer__momentum": 0.9, "liveness__timeout": "1s", "job__coordinator_timeout": "60s"}
        with Job(3, PACED, **options) as quiet:
            wanted = quiet.start().finish()
        with Job(3, PACED, **options) as job:
            job.start()
            address = job.address
            for times in (1, 2):
                job.wait_for_rounds(15 * times)
                job.processes["coordinator"].send_signal(signal.SIGSTOP)
                for worker in range(3):
                    wait_for("its search", lambda w=worker, n=times: job.log(f"worker{w}").count("looks for the next coordinator") == n)
                job.processes["coordinator"].send_signal(signal.SIGCONT)
                wait_for("the takeover", lambda n=times: job.log("coordinator").count("whose parameters 3 workers held") == n)
            summary = job.finish()
            self.assertEqual((job.run_dir / "coordinator.address").read_text().strip(), address)
            self.assertRegex(job.log("coordinator"), r"the coordinator itself stood still for [\d.]+ s, and its workers look for the next one: "
                             r"this coordinator starts again as that one \(--reattach\)")
            self.assertEqual([line["round"] for line in job.rounds()], list(range(60)))
            check_epochs(self, job.rounds(), 2048)
        self.assertEqual(summary["samples_counted"], wanted["samples_counted"])
        self.assertEqual(summary["params_digest"], wanted["params_digest"])


class Rescue(ClusterTest):
    """Nobody takes over: a worker saves what it has, and the job goes on from that."""

    SAVED = r"the parameters before round (\d+) are saved in \S*/rescue\.safetensors, by (this worker|worker \d)"

    def saved(self, job, names):
        """The round before which each worker says that the parameters are saved; one has done it."""
        found = [re.search(self.SAVED, job.log(name)) for name in names]
        self.assertTrue(all(found), [job.log(name) for name in names])
        self.assertTrue(any(one[2] == "this worker" for one in found))
        return max(int(one[1]) for one in found)

    def lose_coordinator(self, job):
        job.start()
        job.wait_for_rounds(20)
        kill(job)
        for worker in range(job.workers):
            self.assertEqual(job.wait(f"worker{worker}"), 1)
            self.assertIn("start the job again with --resume", job.log(f"worker{worker}"))

    def resume(self, job):
        job.start_coordinator("--resume")
        for worker in range(job.workers):
            job.start_worker(worker)
        return job.finish()

    def test_what_workers_have_saved_costs_no_round_and_no_bit(self):
        options = {"job__rounds": 60, "optimizer__momentum": 0.9, "job__coordinator_timeout": "1s"}
        with Job(3, PACED, **options) as quiet:
            wanted = quiet.start().finish()
        with Job(3, PACED, **options) as job:
            self.lose_coordinator(job)
            round_ = self.saved(job, [f"worker{worker}" for worker in range(3)])
            summary = self.resume(job)
            self.assertIn(f"has saved are the checkpoint after round {round_ - 1} now", job.log("coordinator"))
            self.assertFalse((job.run_dir / "rescue.safetensors").exists())
            self.assertEqual([line["round"] for line in job.rounds()], list(range(60)))
            check_epochs(self, job.rounds(), 2048)
        self.assertEqual(summary["samples_counted"], wanted["samples_counted"])
        self.assertEqual(summary["params_digest"], wanted["params_digest"])

    def test_with_what_compression_has_kept_back(self):
        options = {"job__rounds": 60, "job__coordinator_timeout": "1s", "exchange__compression": "topk", "checkpoint__residuals": "true"}
        with Job(3, PACED, **options) as quiet:
            wanted = quiet.start().finish()
        with Job(3, PACED, **options) as job:
            self.lose_coordinator(job)
            round_ = self.saved(job, [f"worker{worker}" for worker in range(3)])
            files = sorted(path.name for path in (job.run_dir / "checkpoints").glob(f"round-{round_ - 1:010}.residual-*"))
            self.assertTrue(files)
            summary = self.resume(job)
            kept = [f"after round {round_ - 1}" in line for line in job.log("worker0").splitlines() if "had kept back" in line]
            self.assertEqual(kept, [True], job.log("worker0"))
            # A worker that had not heard of the last commit held the round before, and so has kept nothing of this one.
            if len(files) == 3:
                self.assertEqual(summary["params_digest"], wanted["params_digest"])

    def test_a_coordinator_that_comes_later_goes_on_from_it(self):
        with Job(2, PACED, job__rounds=60, job__coordinator_timeout="0s") as job:
            self.lose_coordinator(job)
            round_ = self.saved(job, ["worker0", "worker1"])
            take_over(job)
            for worker in range(2):
                job.start_worker(worker)
            job.finish()
            self.assertIn(f"it goes on from its checkpoint after round {round_ - 1}", job.log("coordinator"))
            check_epochs(self, job.rounds(), 2048)

    def test_a_damaged_file_is_left_alone(self):
        with Job(2, PACED, job__rounds=60, checkpoint__every_rounds=10, job__coordinator_timeout="1s") as job:
            self.lose_coordinator(job)
            path = job.run_dir / "rescue.safetensors"
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(data)
            self.resume(job)
            self.assertRegex(job.log("coordinator"), r"warning \S*/rescue\.safetensors: its values are not those that were written: .* are not used")
            check_epochs(self, job.rounds(), 2048)

    def test_on_a_full_disk_it_is_the_last_checkpoint(self):
        # As if the disk were full behind the logs.
        with Job(2, PACED, job__rounds=60, checkpoint__every_rounds=10, job__coordinator_timeout="1s", model__widths="512",
                 exchange__mapping="off") as job:
            job.start_coordinator()
            for worker in range(2):
                job.start_worker(worker, prefix=["prlimit", "--fsize=60000"])
            job.wait_for_rounds(20)
            kill(job)
            for worker in range(2):
                self.assertEqual(job.wait(f"worker{worker}"), 1)
                self.assertRegex(job.log(f"worker{worker}"),
                                 r"this worker saves nothing \(\S*/rescue\.safetensors\.partial: cannot be written: File too large\); to go on, ")
            self.assertEqual([path.name for path in job.run_dir.glob("rescue.safetensors*")], [])
            self.resume(job)
            check_epochs(self, job.rounds(), 2048)

    def test_shards_of_all_workers_cost_no_round_and_no_bit(self):
        options = {"job__rounds": 60, "optimizer__momentum": 0.9, "optimizer__replicas": 1, "job__coordinator_timeout": "1s"}
        with Job(3, PACED, **options) as quiet:
            wanted = quiet.start().finish()
        with Job(3, PACED, **options) as job:
            self.lose_coordinator(job)
            logs = [job.log(f"worker{worker}") for worker in range(3)]
            self.assertEqual(sum("shards of the state before round" in log for log in logs), 2, logs)
            self.assertEqual(sum(bool(re.search(self.SAVED, log)) for log in logs), 1, logs)
            summary = self.resume(job)
            self.assertIn("has saved are the checkpoint after round", job.log("coordinator"))
            self.assertEqual([path.name for path in job.run_dir.glob("rescue*")], ["rescue.lock"])
            check_epochs(self, job.rounds(), 2048)
        self.assertEqual(summary["params_digest"], wanted["params_digest"])

    def test_without_a_shard_it_is_the_last_checkpoint(self):
        with Job(3, PACED, job__rounds=60, optimizer__replicas=1, optimizer__momentum=0.9, job__coordinator_timeout="1s",
                 checkpoint__every_rounds=5) as job:
            job.start()
            job.wait_for_rounds(20)
            kill(job)
            job.processes["worker1"].kill()
            job.processes["worker1"].wait()
            for worker in (0, 2):
                self.assertEqual(job.wait(f"worker{worker}"), 1)
            self.resume(job)
            self.assertIn("workers have saved shards of the optimizer's state there, and not all of them", job.log("coordinator"))
            check_epochs(self, job.rounds(), 2048)

    def test_who_is_told_to_end_while_it_looks_saves_first(self):
        with Job(1, PACED, job__rounds=ENDLESS, job__coordinator_timeout="60s") as job:
            job.start()
            job.wait_for_rounds(10)
            kill(job)
            wait_for("its search", lambda: "looks for the next coordinator" in job.log("worker0"))
            job.processes["worker0"].send_signal(signal.SIGTERM)
            self.assertEqual(job.wait("worker0"), 1)
            self.saved(job, ["worker0"])

    def test_the_launcher_says_that_nobody_comes(self):
        with Job(3, PACED, job__rounds=60) as job:
            def launch(name, *arguments):
                return job._start(name, [TOOLS / "launch", "-n", "3", "--config", job.config, "--run-dir", job.run_dir, "--build-dir", BIN, *arguments])
            launched = launch("launch", "--restart-coordinator", "0")
            job.processes["coordinator"] = launched  # what wait_for_rounds looks at
            job.wait_for_rounds(20)
            children = pathlib.Path(f"/proc/{launched.pid}/task/{launched.pid}/children").read_text().split()
            names = {int(pid): pathlib.Path(f"/proc/{pid}/comm").read_text() for pid in children}
            (pid,) = (pid for pid, name in names.items() if name.startswith("lockstep-coord"))
            os.kill(pid, signal.SIGKILL)
            self.assertEqual(launched.wait(60 * PATIENCE), 128 + signal.SIGKILL)
            log = job.log("launch")
            self.assertEqual(len(re.findall("lockstep-worker: .*; its launcher starts no other one; the parameters before round", log)), 3, log)
            self.assertNotIn("not end", log)
            self.assertEqual(launch("again", "--resume").wait(90 * PATIENCE), 0, job.log("again"))
            self.assertIn("has saved are the checkpoint after round", job.log("again"))
            self.assertFalse((job.run_dir / "coordinator.gone").exists())
            self.assertEqual([line["round"] for line in job.rounds()], list(range(60)))
            check_epochs(self, job.rounds(), 2048)


if __name__ == "__main__":
    main()
