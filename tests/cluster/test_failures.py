"""Workers that are slow, stopped or killed, and links that break."""

import ctypes
import os
import pathlib
import re
import signal
import unittest

from harness import ClusterTest, Job, check_epochs, count_alike, run_and_resume, wait_for

# Without an end of its own: it could come before the run is disturbed.
PACED = {"emulate.unit_time": "10ms", "job.rounds": 100000, "job.units": 16, "job.global_batch": 64}

SYS_PIDFD_GETFD = 438  # on every architecture


def connections_of(pid):
    """The established TCP connections over IPv4 of a process: {(local, remote): its descriptor}."""
    descriptors = {}
    for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            socket = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(link))
        except FileNotFoundError:
            continue  # closed meanwhile
        if socket:
            descriptors[socket[1]] = int(link.name)
    lines = [line.split() for line in pathlib.Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return {(line[1], line[2]): descriptors[line[9]] for line in lines if line[3] == "01" and line[9] in descriptors}


def reset_link_between(a, b, connections=1):
    """Aborts one of the TCP connections of two processes, as the network does: the other end gets a reset."""
    theirs = connections_of(b.pid)
    descriptors = [fd for (local, remote), fd in connections_of(a.pid).items() if (remote, local) in theirs]
    assert len(descriptors) == connections, descriptors
    descriptor = descriptors[-1]
    libc = ctypes.CDLL(None, use_errno=True)
    process = os.pidfd_open(a.pid)
    copy = libc.syscall(SYS_PIDFD_GETFD, process, descriptor, 0)
    assert copy >= 0, os.strerror(ctypes.get_errno())
    nowhere = bytes(16)  # AF_UNSPEC: tcp(7), an abort with a reset
    assert libc.connect(copy, nowhere, len(nowhere)) == 0, os.strerror(ctypes.get_errno())
    os.close(copy)
    os.close(process)


class Failures(ClusterTest):
    def test_reset_link_is_made_again(self):
        for mapping in ("auto", "off"):
            with self.subTest(mapping=mapping), Job(2, PACED, policy__name="full", exchange__mapping=mapping,
                                                   exchange__transport="tcp") as job:
                job.start()
                job.wait_for_rounds(10)
                for at in (0, 1):
                    made_again = job.log("coordinator").count("reach each other again")
                    reset_link_between(job.processes[f"worker{at}"], job.processes[f"worker{1 - at}"])
                    wait_for("the link to be made again",
                             lambda: job.log("coordinator").count("reach each other again") > made_again)
                    job.wait_for_rounds(len(job.rounds()) + 5)
                self.assertEqual(job.interrupt()["digest_differs"], [])
                check_epochs(self, job.rounds(), 2048)
                for name in ("worker0", "worker1"):
                    self.assertEqual(job.wait(name), 0, "a reset has cost a process")
                self.assertNotIn("is out", job.log("coordinator"))

    def test_backup_survives_sigkill(self):
        for mapping in ("auto", "off"):
            with self.subTest(mapping=mapping), Job(4, PACED, policy__name="backup", backup__workers=1, exchange__mapping=mapping,
                                                   exchange__transport="tcp", job__min_workers=2) as job:
                job.start()
                job.wait_for_rounds(10)
                self.end_in_the_next_epoch_but_one(job, job.kill_worker(2))
                self.assertNotIn(2, {c["worker"] for c in job.rounds()[-1]["contributors"]})

    def end_in_the_next_epoch_but_one(self, job, after):
        """So that there is one that has begun after that round, and is over."""
        epoch = job.rounds()[after - 1]["epoch"] + 2
        wait_for(f"epoch {epoch}", lambda: job.rounds()[-1]["epoch"] >= epoch, seconds=60)
        summary = job.interrupt()
        rounds = job.rounds()
        check_epochs(self, rounds, 2048)
        self.assertEqual(summary["samples_counted"], sum(line["samples"] for line in rounds))

    def test_full_survives_sigkill_with_the_whole_batch(self):
        with Job(4, PACED, policy__name="full", job__min_workers=2) as job:
            job.start()
            job.wait_for_rounds(10)
            at = job.kill_worker(1)
            self.end_in_the_next_epoch_but_one(job, at)
            self.assertEqual({line["samples"] for line in job.rounds()}, {64})

    def test_stopped_worker_holds_nobody_up_and_comes_back(self):
        for mapping in ("auto", "off"):
            # Two to spare: with one, the rest are all needed for a round that another one is behind at, because the machine is busy.
            with self.subTest(mapping=mapping), Job(4, PACED, policy__name="backup", backup__workers=2, liveness__timeout="60s",
                                                   exchange__mapping=mapping, exchange__transport="tcp") as job:
                job.start()
                job.wait_for_rounds(20)
                victim = job.processes["worker3"]
                victim.send_signal(signal.SIGSTOP)
                stopped_at = len(job.rounds())
                # That many rounds pass while it is stopped and not lost yet: nobody waits for it.
                job.wait_for_rounds(stopped_at + 20, seconds=90)
                self.assertNotIn("worker 3 is out", job.log("coordinator"))
                victim.send_signal(signal.SIGCONT)
                back = wait_for("the continued worker's contribution", lambda: [
                    line for line in job.rounds()[stopped_at + 20:] if 3 in {c["worker"] for c in line["contributors"]}])
                self.assertTrue(back)
                self.assertEqual(job.interrupt()["digest_differs"], [])
                check_epochs(self, job.rounds(), 2048)

    def test_killed_worker_is_replaced(self):
        with Job(3, PACED, policy__name="full", job__min_workers=2) as job:
            job.start()
            job.wait_for_rounds(10)
            at = job.kill_worker(0)
            job.start_worker(0, name="worker0-again")
            job.wait_for_contribution(0, at + 1)
            self.assertEqual(job.interrupt()["digest_differs"], [])
            check_epochs(self, job.rounds(), 2048)
            self.assertEqual(job.wait("worker0-again"), 0)

    def test_slow_worker_is_left_out_and_its_samples_come_back(self):
        with Job(4, PACED, policy__name="backup", backup__workers=1, job__rounds=0, job__epochs=2) as job:
            job.start_coordinator()
            for index in range(4):
                job.start_worker(index, *(["--slowdown", "factor=8"] if index == 1 else []))
            summary = job.finish()
            rounds = job.rounds()
            check_epochs(self, rounds, 2048)
            self.assertEqual(summary["samples_counted"], 2 * 2048)
            self.assertEqual(summary["samples_dropped"], 0)
            self.assertGreater(summary["samples_requeued"], 0)
            excluded = sum(1 in line["excluded"] for line in rounds)
            self.assertGreater(excluded, len(rounds) / 4)

    def test_too_few_workers_wait_and_go_on(self):
        with Job(2, PACED, policy__name="full", job__min_workers=2) as job:
            job.start()
            job.wait_for_rounds(5)
            at = job.kill_worker(1)
            wait_for("the word that it waits", lambda: "waiting for worker 1" in job.log("coordinator"))
            job.start_worker(1, name="worker1-again")
            job.wait_for_contribution(1, at + 1)
            job.interrupt()


class Ending(ClusterTest):
    def test_interrupt_leaves_a_checkpoint_and_resume_goes_on_bit_for_bit(self):
        whole = {"job.rounds": 120, "emulate.unit_time": "2ms"}
        with Job(3, whole, checkpoint__every_rounds=20, checkpoint__keep=10) as job:
            uninterrupted, _ = run_and_resume(self, job)
        with Job(3, whole, job__rounds=100000) as job:
            job.start()
            job.wait_for_rounds(20)
            rounds = job.interrupt()["rounds"] + 100
            for index in range(3):
                job.wait(f"worker{index}")
            stale = job.run_dir / "checkpoints" / "round-0000000007.safetensors.partial"
            stale.write_text("killed while it was written")
            job.start_coordinator("--resume", f"--job.rounds={rounds}")
            self.assertFalse(stale.exists())
            for index in range(3):
                job.start_worker(index)
            job.finish()
            self.assertEqual([line["round"] for line in job.rounds()], list(range(rounds)))
            self.assertEqual([line["update"] for line in job.rounds()], list(range(1, rounds + 1)))
            count_alike(self, uninterrupted, job.rounds())

    def test_a_run_directory_that_is_another_jobs_now_is_left_to_it(self):
        with Job(1, PACED, checkpoint__every_rounds=5) as forgotten, Job(1, PACED, job__rounds=15) as other:
            forgotten.start()
            forgotten.wait_for_rounds(5)
            forgotten.run_dir.rename(forgotten.folder / "elsewhere")  # at once: files are made in it
            other.run_dir = forgotten.run_dir
            other.start()
            self.assertEqual(forgotten.wait(), 1)
            self.assertRegex(forgotten.log("coordinator"), r"\S+/rounds.jsonl: was (removed|replaced by another) while the job runs")
            self.assertRegex(forgotten.log("coordinator"), r"error \S+/run: was (removed|replaced by another) while the job runs")
            self.assertEqual(forgotten.wait("worker0"), 0)
            self.assertEqual(other.finish()["rounds"], 15)
            self.assertEqual(sorted(path.name for path in (other.run_dir / "checkpoints").iterdir()),
                             ["round-0000000014.json", "round-0000000014.safetensors"])

    def test_worker_asked_to_leave(self):
        with Job(3, PACED, job__min_workers=2) as job:
            job.start()
            job.wait_for_rounds(5)
            job.processes["worker2"].send_signal(signal.SIGTERM)
            self.assertEqual(job.wait("worker2"), 0)
            job.wait_for_rounds(len(job.rounds()) + 5)
            job.interrupt()


if __name__ == "__main__":
    unittest.main(verbosity=2)
