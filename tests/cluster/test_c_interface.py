"""The C interface: a job of workers in C, and what the shared library shows of itself."""

import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import harness  # noqa: E402

WORKER = harness.BIN / "lockstep-c-worker"
LIBRARY = pathlib.Path(os.environ.get("LOCKSTEP_LIBRARY", harness.BIN.parent / "worker/capi/liblockstep.so"))


class CInterfaceTest(harness.ClusterTest):
    def job(self, **more):
        return harness.Job(2, job__global_batch=64, job__rounds=400, optimizer__lr=1.5, **more)

    def start(self, job, name, *arguments):
        return job._start(name, [WORKER, job.address, *arguments])

    def test_two_workers_in_c_find_what_the_samples_were_made_with(self):
        with self.job() as job:
            job.start_coordinator()
            self.start(job, "first")
            # The time-out of lockstep_next: the job cannot begin without the second one.
            harness.wait_for("the first to wait", lambda: "waiting" in job.log("first"))
            self.start(job, "second")
            summary = job.finish()
            for name in ("first", "second"):
                self.assertEqual(job.wait(name), 0, job.log(name))
                self.assertIn(f"digest: {summary['params_digest']}", job.log(name))
                self.assertIn("refused: there is no work before lockstep_begin\n", job.log(name))
                self.assertIn("refused: lockstep_begin was called twice\n", job.log(name))
                self.assertIn("refused: lockstep_done without a run in hand\n", job.log(name))
                self.assertIn("refused: lockstep_next with work in hand: lockstep_done, lockstep_evaluation_done or lockstep_update_done "
                              "comes before\n", job.log(name))
                self.assertRegex(job.log(name), r"refused: lockstep_done of (\d+) samples, and the run has \d+\n")
                self.assertAlmostEqual(float(re.search(r"^kept: (\S+)$", job.log(name), re.MULTILINE).group(1)), 15, delta=0.05)
                self.assertLess(float(re.search(r"^error: (\S+)$", job.log(name), re.MULTILINE).group(1)), 0.05)
            self.assertEqual(summary["status"], "completed")
            rounds = job.rounds()
            self.assertEqual([line["round"] for line in rounds], list(range(400)))
            # Both are shown the end of each epoch but the last, with the same parameters.
            ends = [re.findall(r"^epoch (\d+) ended before round (\d+): (.*)$", job.log(name), re.MULTILINE) for name in ("first", "second")]
            self.assertEqual(ends[0], ends[1])
            first = {line["epoch"]: line["round"] for line in reversed(rounds)}
            self.assertEqual([(int(epoch), int(round_)) for epoch, round_, _ in ends[0]],
                             [(epoch - 1, first[epoch]) for epoch in sorted(first) if epoch > 0])
            self.assertGreater(len(ends[0]), 1)
            self.assertNotIn("late", str(ends))

    def test_a_structure_of_another_size_and_a_wrong_address_are_one_line(self):
        ended = subprocess.run([WORKER, "nowhere"], capture_output=True, text=True, check=False)
        self.assertEqual(ended.returncode, 2, ended)
        self.assertRegex(ended.stdout, r"refused: lockstep_join_options has \d+ bytes here and \d+ where the program was built")
        self.assertRegex(ended.stderr, r"\Ac_worker: [^\n]*nowhere[^\n]*\n\Z")

    def test_tensors_that_are_not_the_whole_model_are_one_line(self):
        with self.job() as job:
            job.start_coordinator()
            self.start(job, "worker", 0, "", "misfit")
            self.assertEqual(job.wait("worker"), 2)
            self.assertIn("c_worker: the tensors have not the 16 values of the model's parameters", job.log("worker"))

    def settings_job(self, workers=2, **options):
        """A job of which the coordinator is told no more than <options>."""
        job = harness.Job(workers, coordinator_args=["--config-from-workers"])
        job.config.write_text(harness.ini_text(options))
        return job

    def test_what_the_program_says_of_the_job_holds_where_the_config_does_not(self):
        with self.settings_job(**{"job.rounds": 30}) as job:
            job.start_coordinator()
            for name in ("first", "second"):
                self.start(job, name, 0, "[job]\nglobal_batch = 128\nrounds = 40\n[optimizer]\nlr = 0.25\nmomentum = 0\n")
            job.finish()
            self.assertEqual(len(job.rounds()), 30)
            self.assertEqual(job.rounds()[0]["samples"], 128)
            config = (job.run_dir / "config.ini").read_text()
            self.assertIn("lr = 0.25\n", config)
            self.assertIn("momentum = 0\n", config)

    def test_who_says_otherwise_is_refused(self):
        with self.settings_job() as job:
            job.start_coordinator()
            self.start(job, "first", 0, "[job]\nrounds = 30\nglobal_batch = 64\n")
            harness.wait_for("the first to wait", lambda: "waiting" in job.log("first"))
            self.start(job, "other", 0, "[job]\nrounds = 31\nglobal_batch = 64\n")
            self.assertEqual(job.wait("other"), 2)
            self.assertIn("""its program sets "rounds = 31", where the first worker's program set "rounds = 30\"""", job.log("other"))
            self.start(job, "second", 0, "[job]\nrounds = 30\nglobal_batch = 64\n")
            job.finish()

    def test_who_says_nothing_or_is_refused_does_not_found_the_job(self):
        settings = "[job]\nrounds = 30\nglobal_batch = 64\n"
        with self.settings_job(3) as job:
            job.start_coordinator()
            self.start(job, "silent", 0)
            frame = self.hello(settings.replace("30", "31"))
            self.assertEqual(frame[6:8], b"\x08\x02")  # the version of the protocol
            with self.connect(job) as stranger:
                stranger.sendall(frame[:7] + b"\x63" + frame[8:])
                answer = b""
                while more := stranger.recv(4096):
                    answer += more
                self.assertIn(b"speaks version 2 of the protocol, the worker", answer)  # and not only when there is a job
            self.start(job, "first", 0, settings)
            harness.wait_for("the silent one to be let in", lambda: "waiting" in job.log("silent"))
            self.start(job, "other", 0, settings.replace("30", "31"))
            self.assertEqual(job.wait("other"), 2)
            self.assertIn("""sets "rounds = 31", where the first worker's program set "rounds = 30\"""", job.log("other"))
            self.start(job, "second", 0, settings)
            job.finish()
            self.assertEqual(len(job.rounds()), 30)
        with self.settings_job(**{"job.rounds": 20}) as job:  # nobody says anything
            job.start_coordinator()
            self.start(job, "first", 0)
            self.start(job, "second", 0)
            job.finish()
            self.assertEqual(len(job.rounds()), 20)

    def connect(self, job):
        host, port = job.address.rsplit(":", 1)
        return socket.create_connection((host, int(port)), timeout=60)

    def hello(self, settings):
        """What a worker says first."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            worker = subprocess.Popen([WORKER, f"127.0.0.1:{server.getsockname()[1]}", "0", settings], stdout=subprocess.DEVNULL,
                                      stderr=subprocess.DEVNULL)
            server.settimeout(60)
            with server.accept()[0] as connection:
                frame = connection.recv(65536)
            worker.kill()
            worker.wait()
        return frame

    def test_settings_that_make_no_job_are_one_line_at_both_ends(self):
        for settings, message in (
                ("[job]\nround = 3\n", r'the workers\' program:2: unknown key "job\.round" .*did you mean'),
                ("[job]\nglobal_batch = 1\n", r"job\.global_batch = 1 is less than --workers 2"),
                ("[policy]\nname = fulll\n", r"fulll")):
            with self.subTest(settings), self.settings_job() as job:
                job.start_coordinator()
                self.start(job, "worker", 0, settings)
                self.assertEqual(job.wait("coordinator"), 2, job.log("coordinator"))
                self.assertEqual(job.wait("worker"), 2, job.log("worker"))
                for name in ("coordinator", "worker"):
                    self.assertRegex(job.log(name), message)

    def test_a_coordinator_that_waits_for_its_job_can_be_stopped(self):
        with self.settings_job() as job:
            job.start_coordinator()
            job.processes["coordinator"].send_signal(signal.SIGINT)
            self.assertEqual(job.wait(), 130, job.log("coordinator"))
        with self.settings_job(**{"job.join_timeout": "0.2s"}) as job:
            job.start_coordinator()
            self.assertEqual(job.wait(), 1, job.log("coordinator"))
            self.assertIn("no worker joined within 0.2 s to configure the job", job.log("coordinator"))

    def test_who_begins_with_other_parameters_is_found(self):
        with self.job() as job:
            job.start_coordinator()
            self.start(job, "first", 0)
            self.start(job, "second", 0.5)
            self.assertEqual(job.wait(), 1, job.log("coordinator"))
            self.assertRegex(job.log("coordinator"), r"worker \d begins with other parameters than 1 of 2 workers: use one seed")

    def ends_with(self, first, second, **options):
        """(rounds, summary) of a short job of two who begin with these, and the coordinator's log."""
        with harness.Job(2, **{"job.global_batch": 64, "job.rounds": 5, "policy.name": "full", **options}) as job:
            job.start_coordinator()
            self.start(job, "first", first)
            harness.wait_for("the first to wait", lambda: "waiting" in job.log("first"))
            self.start(job, "second", second)
            summary = job.finish()
            for name in ("first", "second"):
                self.assertEqual(job.wait(name), 0, job.log(name))
                self.assertIn(f"digest: {summary['params_digest']}", job.log(name))
            return (job.rounds(), summary), job.log("coordinator")

    def test_each_comes_with_its_own_and_all_begin_with_those_of_the_lowest(self):
        for options in ({}, {"optimizer.replicas": 1, "optimizer.name": "adamw", "optimizer.lr": 0.01}):
            with self.subTest(options):
                alike, _ = self.ends_with("0.25", "0.25", **options)
                own, log = self.ends_with("own:0.25", "own:0.75", **options)
                harness.check_same_bits(self, {"alike": alike, "own": own})
                self.assertIn("the job begins with the parameters of worker 0, 0.0 MiB", log)
                other, _ = self.ends_with("own:0.75", "own:0.25", **options)
                self.assertNotEqual(other[0][0]["loss"], alike[0][0]["loss"])

    def test_own_parameters_are_everybodys_affair_or_nobodys(self):
        with self.job() as job:
            job.start_coordinator()
            self.start(job, "first", "0.25")
            self.start(job, "second", "own:0.25")
            self.assertEqual(job.wait(), 1, job.log("coordinator"))
            self.assertRegex(job.log("coordinator"), r"worker \d comes with parameters (of its own, 1 of 2 workers with parameters common"
                             r" to all|common to all, 1 of 2 workers with parameters of its own): no majority")

    @unittest.skipIf(shutil.which("nm") is None, "there is no nm")
    def test_the_library_shows_nothing_but_its_interface(self):
        names = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True, check=True).stdout
        shown = {line.split()[-1].split("@")[0] for line in names.splitlines()} - {"LOCKSTEP_1"}
        self.assertIn("lockstep_join", shown)
        self.assertEqual([name for name in shown if not name.startswith("lockstep_")], [])


class UpdateTest(harness.ClusterTest):
    """optimizer.name = custom: the program makes the updates, here by the formula of the rule sgd."""

    OPTIONS = {"job.global_batch": 64, "job.rounds": 60, "optimizer.lr": 0.1, "emulate.unit_time": "1ms", "liveness.timeout": "4s"}

    def job(self, workers=3, name="custom", **more):
        return harness.Job(workers, {**self.OPTIONS, "optimizer.name": name}, **more)

    def start(self, job, name, update="momentum"):
        return job._start(name, [WORKER, job.address, 0, "", *([update] if update else [])])

    def start_all(self, job, *updates):
        job.start_coordinator()
        for index, update in enumerate(updates):
            self.start(job, f"worker{index}", update)

    def parameters(self, job, name="worker0"):
        self.assertEqual(job.wait(name), 0, job.log(name))
        return [float(x) for x in re.search(r"^parameters: (.*)$", job.log(name), re.MULTILINE).group(1).split()]

    def assert_alike(self, job, names, summary):
        """All end with the same parameters and none was seen to differ on the way."""
        for name in names:
            self.assertEqual(job.wait(name), 0, job.log(name))
            self.assertIn(f"digest: {summary['params_digest']}", job.log(name))
        self.assertNotIn("differ", job.log("coordinator"))
        self.assertEqual(summary["digest_differs"], [])

    def by_rule(self, **more):
        with self.job(name="sgd", **more) as job:
            self.start_all(job, None, None, None)
            job.finish()
            return self.parameters(job)

    def assert_close(self, found, wanted):
        for a, b in zip(found, wanted, strict=True):
            self.assertAlmostEqual(a, b, delta=1e-4)

    def test_the_parameters_are_those_of_the_rule(self):
        for clip in (0, 0.5):
            with self.subTest(clip=clip), self.job(optimizer__clip=clip) as job:
                self.start_all(job, *["momentum"] * 3)
                summary = job.finish()
                self.assert_alike(job, ["worker0", "worker1", "worker2"], summary)
                self.assertEqual([line["round"] for line in job.rounds()], list(range(60)))
                self.assert_close(self.parameters(job), self.by_rule(optimizer__clip=clip))

    def test_one_that_is_killed_is_replaced_and_given_the_state(self):
        with self.job(job__rounds=100000) as job:
            self.start_all(job, *["momentum"] * 3)
            job.wait_for_rounds(20)
            job.processes["worker1"].kill()
            job.wait("worker1")
            lost = harness.wait_for("word of the loss", lambda: re.search(r"worker (\d) is out", job.log("coordinator")))
            at = len(job.rounds())
            self.start(job, "again")
            job.wait_for_contribution(int(lost[1]), at + 1)
            self.assertIn("is level at round", job.log("coordinator"))
            self.assert_alike(job, ["worker0", "worker2", "again"], job.interrupt())

    def test_a_job_that_was_stopped_goes_on_with_the_state(self):
        with self.job(job__join_timeout="60s", job__rounds=20) as job:
            self.start_all(job, *["momentum"] * 3)
            job.finish()
            for name in list(job.processes):
                job.wait(name)
            job.start_coordinator("--resume", "--job.rounds=60")
            for index in range(3):
                self.start(job, f"later{index}")
            summary = job.finish()
            self.assert_alike(job, ["later0", "later1", "later2"], summary)
            self.assertEqual([line["round"] for line in job.rounds()], list(range(60)))
            self.assert_close(self.parameters(job, "later0"), self.by_rule())

    def test_one_whose_update_differs_is_found(self):
        with self.job() as job:
            self.start_all(job, "momentum", "differ", "momentum")
            job.finish()
            self.assertRegex(job.log("coordinator"), r"worker \d: its parameters after round 19 differ from the majority's, it catches up\n")
            self.assertEqual(self.parameters(job, "worker1"), self.parameters(job))

    def test_one_that_hangs_in_its_update_is_waited_for_no_longer_than_the_bounds(self):
        with self.job(job__min_workers=2) as job:
            self.start_all(job, "momentum", "hang", "momentum")
            harness.wait_for("the second to hang", lambda: "hangs" in job.log("worker1"))
            job.finish()
            self.assertRegex(job.log("coordinator"), r"worker \d[^\n]*it has not applied round 19, which others have, in time")
            self.assertEqual(self.parameters(job, "worker2"), self.parameters(job))

    def test_who_cannot_is_refused_in_one_line(self):
        with self.job() as job:
            job.start_coordinator()
            self.start(job, "first", None)
            self.assertEqual(job.wait("first"), 2, job.log("first"))
            self.assertIn("c_worker: optimizer.name = custom: this program makes no updates of its own\n", job.log("first"))
            self.start(job, "second", "hoard")
            self.assertEqual(job.wait("second"), 2, job.log("second"))
            self.assertIn("c_worker: 4294967295 times the parameters' size of state for the program's updates, and 256 is the most\n", job.log("second"))
        for policy in ("local", "async"):
            with self.subTest(policy), self.job(policy__name=policy) as job:
                with self.assertRaisesRegex(AssertionError, "optimizer.name = custom and policy.name = " + policy):
                    job.start_coordinator()
                self.assertEqual(job.wait(), 2)


if __name__ == "__main__":
    harness.main()
