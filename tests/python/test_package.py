"""The package without torch: settings, the command line, and a session in plain Python."""

import json
import os
import pathlib
import re
import signal
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import HERE, ROOT, harness, run  # noqa: E402

sys.path.insert(0, str(ROOT / "python"))
from lockstep import Session, UsageError, _abi, _rates, _session, _settings, _torch  # noqa: E402
from lockstep._own import OwnCoordinator  # noqa: E402


class RatesTest(harness.ClusterTest):
    """Rates that a script sets by its own count of steps, where workers have other numbers of steps than there are rounds."""

    ROUNDS, EPOCHS = 10, 4
    SCRIPTS = {
        "by all steps": lambda epoch, step, steps: (1 / (1 + steps), 1 / (2 + steps)),
        "by the epoch": lambda epoch, step, steps: (0.1**epoch, 0.1**epoch),
        "by the epoch and the step in it": lambda epoch, step, steps: (1 / (1 + epoch + step / 10),) * 2,
        "anew in each epoch": lambda epoch, step, steps: (0.5**epoch * (1 - step / 20),),
        "of many groups": lambda epoch, step, steps: tuple(0.7**i / (1 + epoch + step / 10) for i in range(9)),
    }

    def play(self, script, shares):
        """Each round's rates, as all workers read them. `shares`: steps of each worker in a round."""
        groups = len(script(0, 0, 0))
        workers = [_rates.ByHand((1.0,) * groups, self.ROUNDS) for _ in shares(0)]
        steps, in_epoch = [0] * len(workers), [0] * len(workers)
        found = []
        for round_ in range(self.ROUNDS * self.EPOCHS):
            epoch = round_ // self.ROUNDS
            least, greatest = {}, {}
            for i, (worker, share) in enumerate(zip(workers, shares(round_), strict=True)):
                if round_ % self.ROUNDS == 0 or (share and not steps[i]):
                    worker.begin_pass(epoch)
                    in_epoch[i] = 0
                for _ in range(share):
                    worker.begin_batch(float(round_))
                    rates = script(epoch, in_epoch[i], steps[i])
                    worker.stepped(rates)
                    steps[i], in_epoch[i] = steps[i] + 1, in_epoch[i] + 1
                    for name, value in worker.said(epoch, float(round_), rates, stepped=True).items():
                        least[name] = min(least.get(name, value), value)
                        greatest[name] = max(greatest.get(name, value), value)
            read = {worker.read(least, greatest) for i, worker in enumerate(workers) if steps[i]}
            self.assertEqual(len(read), 1, read)
            found.append(read.pop())
        return found

    def assert_as_alone(self, shares, scripts=SCRIPTS):
        for name, script in scripts.items():
            with self.subTest(name):
                for round_, (rates, differs) in enumerate(self.play(script, shares)):
                    self.assertEqual(differs, "", round_)
                    wanted = script(round_ // self.ROUNDS, round_ % self.ROUNDS, round_)
                    for rate, its in zip(rates, wanted, strict=True):
                        self.assertAlmostEqual(rate / its, 1, 7, round_)

    def test_work_moves_to_one_worker(self):
        self.assert_as_alone(lambda round_: (1, 1, 1) if round_ % self.ROUNDS == 0 else (1 + round_ % 3, 1, 1 - (round_ % 3 > 0)))

    def test_workers_are_lost(self):
        both = {name: script for name, script in self.SCRIPTS.items() if name != "anew in each epoch"}
        self.assert_as_alone(lambda round_: (1, 1, 1, 1) if round_ < 7 else (2, 2, 0, 0) if round_ < 23 else (0, 4, 0, 0), both)

    def test_a_newcomer_counts_for_nothing_until_the_next_epoch(self):
        self.assert_as_alone(lambda round_: (1, 1, int(round_ >= 17)))

    def test_a_resumed_job_goes_by_its_own_counts(self):
        """All begin in the middle of an epoch, and their scripts count from 0."""
        workers = [_rates.ByHand((1.0,), 10) for _ in range(2)]
        for worker in workers:
            worker.begin_pass(1)
        for round_ in range(14, 20):
            said = []
            for worker in workers:
                worker.begin_batch(float(round_))
                rates = (1 / (1 + round_ - 14),)
                worker.stepped(rates)
                said.append(worker.said(1, float(round_), rates, stepped=True))
            self.assertEqual(said[0], said[1])
            self.assertEqual([worker.read(said[0], said[1]) for worker in workers], [(rates, "")] * 2)

    def test_other_rates_at_the_same_step_are_told(self):
        found = [_rates.ByHand((1.0,), 10) for _ in range(2)]
        said = []
        for i, worker in enumerate(found):
            worker.begin_pass(0)
            worker.begin_batch(0.0)
            worker.stepped((0.1 * (1 + i),))
            said.append(worker.said(0, 0.0, (0.1 * (1 + i),), stepped=True))
        self.assertEqual(found[0].read(said[0], said[1]), ((0.1,), "lr"))


class SettingsTest(harness.ClusterTest):
    def test_the_same_settings_are_the_same_text(self):
        text = _settings.to_ini({"optimizer.lr": "0.1", "job.units": "8", "job.epochs": "2"})
        self.assertEqual(text, "[job]\nepochs = 2\nunits = 8\n[optimizer]\nlr = 0.1\n")
        self.assertEqual(_settings.from_ini(text)["optimizer.lr"], "0.1")

    def test_values_are_written_as_the_configuration_writes_them(self):
        checked = _settings.checked({"optimizer.nesterov": True, "optimizer.lr": 1e-05, "job.units": 4, "policy.name": "auto"})
        self.assertEqual(checked, {"optimizer.nesterov": "true", "optimizer.lr": "1e-05", "job.units": "4", "policy.name": "auto"})
        for wrong in ({"lr": 1}, {"a.b c": 1}, {"a.b": "x\ny"}):
            with self.assertRaises(UsageError):
                _settings.checked(wrong)

    def test_where_the_job_is_another_one_it_is_said(self):
        lines = _settings.differences({"optimizer.lr": "0.10", "job.epochs": "3", "liveness.timeout": "1min"},
                                      {"optimizer.lr": "0.1", "job.epochs": "5", "liveness.timeout": "60s"})
        self.assertEqual(lines, ["job.epochs is 5, as the job's config says, and not 3, as the script does"])
        lines = _settings.differences({"optimizer.name": "adamw", "optimizer.nesterov": "true", "policy.name": "auto"},
                                      {"optimizer.name": "sgd", "optimizer.nesterov": "false", "policy.name": "auto"})
        self.assertEqual([line.split()[0] for line in lines], ["optimizer.name", "optimizer.nesterov"])


def stand_in_library(works):
    """Of a session that is let in at once, and given each of these: kind, and what it has."""
    library = unittest.mock.MagicMock()
    library.lockstep_config.return_value = b""
    works = iter(works)

    def join(_, handle):
        handle._obj.value = 1
        return 0

    def next_work(_, __, to):
        to._obj.kind, fields = next(works)
        for name, value in fields.items():
            setattr(to._obj, name, value)
        return 0

    library.lockstep_join, library.lockstep_next = join, next_work
    return library


class SessionTest(harness.ClusterTest):
    def session(self, *works):
        library = stand_in_library(works)
        patch = unittest.mock.patch.object(_abi, "library", lambda: library)
        patch.start()
        self.addCleanup(patch.stop)
        return Session("127.0.0.1:1"), library

    def refused(self, message, call, *arguments, **named):
        with self.assertRaises(UsageError) as refused:
            call(*arguments, **named)
        self.assertIn(message, str(refused.exception))

    def test_what_is_done_is_what_was_in_hand(self):
        session, library = self.session((_session.Kind.EVALUATE, {"evaluate": _abi.Range(10, 30)}), (_session.Kind.UPDATE, {}))
        self.refused("without an evaluation", session.evaluation_done, 0.0, 0)
        session.next()
        self.refused("without an update", session.update_done)
        for correct in (21, -1):
            self.refused(f"{correct} samples are right, of 20", session.evaluation_done, 1.0, correct)
        library.lockstep_evaluation_done.assert_not_called()
        session.evaluation_done(1.0, 20)
        library.lockstep_evaluation_done.assert_called_once()
        self.refused("without an evaluation", session.evaluation_done, 1.0, 20)
        session.next()
        session.update_done()
        library.lockstep_update_done.assert_called_once()

    def test_memory_that_is_not_there_and_half_an_order_are_refused(self):
        session, library = self.session((_session.Kind.UPDATE, {}))
        state = session.next().state
        for read in (session.floats, session.array, session.tensor):
            self.refused("nothing at address 0", read, state)
        tensors = [_session.Tensor("a", (2,)), _session.Tensor("b", (2,))]
        self.refused("finish_order has 1 entries for 2 tensors", session.begin,
                     _session.Job(tensors, initial=0, dataset_digest="", train_samples=1, finish_order=[0]))
        library.lockstep_keep.assert_not_called()
        library.lockstep_begin.assert_not_called()

    def test_a_session_does_not_end_while_another_thread_asks_it(self):
        session, library = self.session()
        free = []

        def others_could_end_it(*_):
            thread = threading.Thread(target=lambda: free.append(session._staying.acquire(blocking=False)))
            thread.start()
            thread.join()
            return 0

        for call in ("interrupt", "cancelled", "block_final", "block_final_after", "end"):
            getattr(library, f"lockstep_{call}").side_effect = others_could_end_it
        session.interrupt("why")
        session.cancelled()
        session.block_final(0)
        session.block_final(0, 7)
        session.end()
        self.assertEqual(free, [False] * 5)
        session.interrupt("again")
        self.refused("has ended", session.block_final, 0)
        self.assertEqual(library.lockstep_interrupt.call_count, 1)


class OwnTest(harness.ClusterTest):
    def test_a_coordinator_that_listens_at_once_is_found(self):
        begin = subprocess.Popen
        with tempfile.TemporaryDirectory() as folder:
            address = pathlib.Path(folder, "run", "coordinator.address")

            def begin_and_listen(*arguments, **named):
                process = begin(*arguments, **named)
                for _ in range(3000):
                    if address.exists():
                        break
                    try:
                        process.wait(0.01)
                    except subprocess.TimeoutExpired:
                        continue
                return process

            with unittest.mock.patch.object(subprocess, "Popen", begin_and_listen):
                own = OwnCoordinator(str(address.parent))
            self.assertEqual(own.address, address.read_text(encoding="utf-8").strip())
            own.stop()

    def worker(self, own, number, *arguments):
        worker = package.start(HERE / "linear.py", *arguments, LOCKSTEP_COORDINATOR=own.address, LOCKSTEP_SECRET_FILE=own.secret_file,
                               LOCKSTEP_WORKER=str(number), LOCKSTEP_SLOWDOWN="")
        self.addCleanup(worker.communicate)
        self.addCleanup(worker.kill)
        return worker

    def kill(self, own):
        """Until the next one listens, if any."""
        address = own._where / "coordinator.address"
        before, process = address.stat().st_mtime_ns, own._process
        process.kill()
        harness.wait_for("the next coordinator", lambda: own.has_ended() or (own._process is not process and address.stat().st_mtime_ns != before))

    def test_a_coordinator_that_is_killed_is_started_again(self):
        said = []
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch("lockstep._own.say", said.append):
            gate = pathlib.Path(folder, "gate")
            own = OwnCoordinator(None, workers=2)
            workers = [self.worker(own, number, f"away={gate}") for number in range(2)]
            rounds = own._where / "rounds.jsonl"
            harness.wait_for("some rounds", lambda: rounds.exists() and rounds.read_text().count("\n") >= 10, 60)
            for _ in range(2):
                self.kill(own)
            gate.touch()
            ended = [worker.communicate(timeout=package.TIMEOUT_S) for worker in workers]
            self.assertEqual([worker.returncode for worker in workers], [0, 0], ended)
            self.assertEqual(len({re.search(r"digest (\w{64})", out)[1] for out, _ in ended}), 1, ended)
            own.finish()
            self.assertFalse(own._where.exists())
        self.assertEqual(said, [f"the coordinator was ended by SIGKILL; restarting it ({left} left), the workers keep their parameters"
                                for left in ("2 restarts", "1 restart")])

    def test_it_is_started_again_three_times_and_then_workers_are_told(self):
        said = []
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch("lockstep._own.say", said.append):
            own = OwnCoordinator(str(pathlib.Path(folder, "run")), workers=1)
            for _ in range(4):
                self.assertFalse(own.has_ended())
                self.kill(own)
            self.assertTrue(own.has_ended())
            self.assertTrue(pathlib.Path(folder, "run", "coordinator.gone").exists())
            own.finish()
        self.assertEqual([re.search(r"\((\d) restarts? left\)", line)[1] for line in said], ["2", "1", "0"])

    def test_one_that_is_told_to_end_is_not_started_again(self):
        said = []
        with unittest.mock.patch("lockstep._own.say", said.append):
            own = OwnCoordinator(None, workers=1)
            own.interrupt()
            own._process.kill()
            own.finish()
        self.assertEqual(said, [])

    def test_a_run_directory_that_cannot_be_looked_at_is_one_line(self):
        for resume in (True, "auto", False):
            with self.subTest(resume), tempfile.TemporaryDirectory() as folder, self.assertRaises(UsageError) as refused:
                OwnCoordinator(str(pathlib.Path(folder, "x" * 300)), resume=resume)
            said = r"resume: [^\n]*x cannot be read" if resume is True else r"[^\n]*x: cannot make the run directory"
            self.assertRegex(str(refused.exception), rf"\A{said}: File name too long\Z")


class RunTest(harness.ClusterTest):
    def test_a_program_on_a_device_of_its_own_finds_the_same(self):
        """Its gradient comes to the device's memory late, which nobody else may touch."""
        digests = set()
        for arguments in ((), ("imitated",)):
            done, _ = self.linear("--set", "exchange.mapping=off", arguments=arguments)
            self.assertEqual(done.returncode, 0, done)
            digests |= set(re.findall(r"digest (\w{64})", done.stdout))
        self.assertEqual(len(digests), 1, digests)

    def test_wrong_usage_of_a_bare_session_is_one_line_and_status_2(self):
        for code, message in (("Session('127.0.0.1:1', device='gpu')", "device gpu: no such device"), ("Session('nowhere')", "nowhere")):
            with self.subTest(code):
                done = run("-c", f"import lockstep\nlockstep.{code}")
                self.assertEqual(done.returncode, 2, done)
                self.assertRegex(done.stderr, r"\Alockstep: [^\n]+\n\Z")
                self.assertIn(message, done.stderr)

    def test_a_device_that_is_not_there_is_one_line(self):
        for device, message in (("gpu", "device gpu: no such device (there is cpu"), ("cuda:4095", "device cuda:4095: ")):
            with self.subTest(device), self.assertRaises(UsageError) as refused:
                Session("127.0.0.1:1", device=device)
            self.assertIn(message, str(refused.exception))
            self.assertNotIn("\n", str(refused.exception))

    def linear(self, *options, arguments=()):
        with tempfile.TemporaryDirectory() as folder:
            run_dir = pathlib.Path(folder, "run")
            done = run("-m", "lockstep", "run", "-n", "2", "--run-dir", run_dir, *options, HERE / "linear.py", *arguments)
            job = harness.Job(2, folder=folder)
            job.run_dir = run_dir
            return done, job.rounds() if done.returncode == 0 else None

    def test_two_workers_in_plain_python_find_what_the_samples_were_made_with(self):
        done, rounds = self.linear()
        self.assertEqual(done.returncode, 0, done)
        self.assertEqual(len(set(re.findall(r"digest (\w{64})", done.stdout))), 1, done.stdout)
        for error in re.findall(r"error (\S+)", done.stdout):
            self.assertLess(float(error), 0.05)
        harness.check_epochs(self, rounds, 1024)
        self.assertEqual(len(rounds), 12 * 16)

    def away(self, policy, done_when, until=None):
        """Worker 1 does something else from round 20 on, for longer than liveness.timeout, and until done_when(job) holds.
        `until`: what then has to be, of a job without an end, which is interrupted."""
        with tempfile.TemporaryDirectory() as folder:
            job = harness.Job(2, folder=folder)
            job.run_dir, mark = pathlib.Path(folder, "run"), pathlib.Path(folder, "mark")
            process = package.start("-m", "lockstep", "run", "-n", "2", "--run-dir", job.run_dir, "--policy", policy,
                                    "--set", f"job.epochs={100000 if until else 60}", "--set", "liveness.timeout=5s",
                                    HERE / "linear.py", f"away={mark}", cwd=folder)
            try:
                harness.wait_for("round 19", lambda: len(job.rounds()) >= 19 or process.poll() is not None)
                began = time.monotonic()
                harness.wait_for("its absence", lambda: time.monotonic() > began + 12 and done_when(job), seconds=90,
                                 look_every=0.1)
                mark.touch()
                if until:
                    harness.wait_for("the others' work", lambda: until(job), seconds=90, look_every=0.1)
                    process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=package.TIMEOUT_S)
            finally:
                process.kill()
                process.communicate()
            self.assertEqual((process.returncode, err), (130 if until else 0, ""), out)
            self.assertEqual(len(set(re.findall(r"digest (\w{64})", out))), 1, out)
            self.assertNotIn("is out", out)
            rounds = job.rounds()
            harness.check_epochs(self, rounds, 1024)
            return out, rounds

    def test_who_is_away_is_waited_for_under_full(self):
        out, rounds = self.away("full", lambda job: True)
        self.assertIn("of others: False", out)
        self.assertEqual({len(line["contributors"]) for line in rounds}, {2})

    def test_the_others_go_on_without_who_is_away_where_work_moves(self):
        def of_both(job):
            return any({part["worker"] for part in line["contributors"]} == {0, 1} for line in job.rounds()[200:])

        out, rounds = self.away("flexrr", lambda job: len(job.rounds()) >= 200, until=of_both)
        self.assertIn("of others: True", out)
        alone = [line["round"] for line in rounds if {part["worker"] for part in line["contributors"]} == {0}]
        self.assertLessEqual(set(range(40, 190)), set(alone))

    def test_a_worker_that_hangs_in_a_run_is_ended_under_every_policy(self):
        """Nobody waits for it under flexrr, so that it hangs is seen by what it says of itself alone."""
        for policy in ("full", "flexrr"):
            with self.subTest(policy), tempfile.TemporaryDirectory() as folder:
                job = harness.Job(2, folder=folder)
                job.run_dir = pathlib.Path(folder, "run")
                process = package.start("-m", "lockstep", "run", "-n", "2", "--run-dir", job.run_dir, "--policy", policy, "--set", "job.epochs=100000",
                                        "--set", "liveness.timeout=2s", "--set", "emulate.unit_time=2ms", HERE / "linear.py", "hangs", cwd=folder)
                try:
                    said = []
                    for line in process.stdout:  # until its stack is there
                        said.append(line)
                        if "in hang_for_ever" in line:
                            break
                    there = len(job.rounds())
                    harness.wait_for("the others' work", lambda: len(job.rounds()) > there or process.poll() is not None)
                    process.send_signal(signal.SIGINT)
                    out, err = process.communicate(timeout=package.TIMEOUT_S)
                finally:
                    process.kill()
                    process.communicate()
                text = "".join(said)
                self.assertEqual(process.returncode, 130, text + out + err)
                self.assertRegex(text, r"worker 1 is out: no unit finished for \d+\.\d s")
                self.assertRegex(text, r"its program has computed a run of \d+ units? for \d+\.\d s \(round \d+, from position \d+ of")

    def test_policy_and_slowdown_are_options_and_win_over_the_script(self):
        done, rounds = self.linear("--policy", "flexrr", "--slowdown", "worker=1,factor=5", "--set", "job.epochs=2",
                                   "--set", "emulate.unit_time=2ms")
        self.assertEqual(done.returncode, 0, done)
        # The epochs are the option's. How many rounds they take is not said: what a worker that does not answer in time had comes again.
        self.assertEqual({line["epoch"] for line in rounds}, {0, 1})
        self.assertTrue(any(line["moved"] for line in rounds), "no work has moved")
        # Both workers know of what was in force, and of whom the coordinator calls slow.
        self.assertEqual(len(re.findall(r"policies \['full\+flexrr'\] slow \[.*\(1,\).*\]", done.stdout)), 2, done.stdout)
        harness.check_epochs(self, rounds, 1024)

    def test_a_recorded_slow_down_is_read_out_of_its_file(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = pathlib.Path(folder, "trace")
            trace.write_text("# recorded\n0 1\n0.01 6\n")
            done, rounds = self.linear("--policy", "flexrr", "--slowdown", f"worker=1,pattern=trace,file={trace}", "--set", "job.epochs=2",
                                       "--set", "emulate.unit_time=2ms")
            self.assertEqual(done.returncode, 0, done)
            self.assertTrue(any(line["moved"] for line in rounds), "no work has moved")
            trace.unlink()
            done, _ = self.linear("--slowdown", f"worker=1,pattern=trace,file={trace}")
            self.assertEqual(done.returncode, 2, done)
            self.assertRegex(done.stderr, rf"\Alockstep: [^\n]*slowdown file = {trace}: No such file[^\n]*\n\Z")

    def test_a_job_that_has_skipped_samples_goes_on(self):
        """Within the epoch of the first, and once others have come behind it."""
        with tempfile.TemporaryDirectory() as folder:
            job = harness.Job(2, folder=folder)
            job.run_dir = pathlib.Path(folder, "run")
            dropped = 0
            for end, epochs in ((15, 0), (31, 1), (48, 3)):
                done = run("-m", "lockstep", "run", "-n", "2", "--run-dir", job.run_dir, "--policy", "full", "--set", "job.on_nan=skip",
                           "--set", "job.epochs=0", "--set", f"job.rounds={end}", *["--resume"] * (dropped > 0), HERE / "linear.py", "poisoned")
                self.assertEqual(done.returncode, 0, done)
                summary = job.summary()
                skipped = sum(end - begin for line in job.rounds() for part in line.get("skipped", []) for begin, end in part["ranges"])
                self.assertEqual((summary["samples_dropped"], summary["epochs"]), (skipped, epochs))
                self.assertGreater(skipped, dropped)
                dropped = skipped
            checked = subprocess.run([ROOT / "tools" / "check-run", job.run_dir, "--samples", "1024"], capture_output=True, text=True, check=False)
            self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
            self.assertEqual(sum(line["samples"] for line in job.rounds()), 3 * 1024 - dropped)

    def test_a_forked_child_cannot_harm_its_parents_session(self):
        done, _ = self.linear(arguments=["fork"])
        self.assertEqual(done.returncode, 0, done)
        self.assertIn("child: a forked child cannot use its parent's session", done.stdout)

    def test_wrong_usage_is_one_line_and_status_2(self):
        for arguments, message in (
                (["run", "-n", "2", "no.py"], "there is no script no.py"),
                (["run", "-n", "2", "x" * 300], "there is no script x"),
                (["run", "-n", "0", HERE / "linear.py"], "-n: expected at least one worker"),
                (["run", HERE / "linear.py"], "required: -n"),
                (["run", "-n", "2"], "required: SCRIPT\n"),
                (["run", "-n", "2", "--slowdown", "worker=5,factor=2", HERE / "linear.py"], "the workers are 0 to 1"),
                (["run", "-n", "2", "--slowdown", "pattern=disrupted,factor=2,length=1s,workers=3", HERE / "linear.py"], "the workers are 0 to 1"),
                (["run", "-n", "2", "--device", "cpu", HERE / "linear.py"], "--device is for lockstep-worker; choose the device in the script")):
            with self.subTest(arguments):
                done = run("-m", "lockstep", *arguments)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertRegex(done.stderr, r"\Alockstep: [^\n]+\n\Z")
                self.assertIn(message, done.stderr)
        self.assertEqual(run("-m", "lockstep").returncode, 2)
        self.assertRegex(run("-m", "lockstep", "--version").stdout, r"\Alockstep \d+\.\d+\.\d+\n\Z")
        for command, message in (("coordinator", "--workers"), ("doctor", "--json"), ("compare", "--patterns"), ("export", "--otlp"), ("status", "--run-dir")):
            self.assertIn(message, run("-m", "lockstep", command, "--help").stdout)

    def test_status_tells_of_a_running_job(self):
        with harness.Job(2, job__rounds=1_000_000, coordinator_args=["--http", "127.0.0.1:0"]) as job:
            job.start()
            job.wait_for_rounds(2)
            done = run("-m", "lockstep", "status", "--run-dir", job.run_dir)
            self.assertEqual((done.returncode, done.stderr), (0, ""), done)
            self.assertRegex(done.stdout, r"\Atraining: epoch \d+, round \d+, ")
            self.assertEqual(len(re.findall(r"^[01] +live ", done.stdout, re.MULTILINE)), 2, done.stdout)
            done = run("-m", "lockstep", "status", "--json", "--http", (job.run_dir / "http.address").read_text().strip())
            self.assertEqual({one["worker"] for one in json.loads(done.stdout)["members"]}, {0, 1}, done)
        done = run("-m", "lockstep", "status")
        self.assertEqual((done.returncode, done.stdout), (2, ""), done)
        self.assertIn("one of --http and --run-dir is required", done.stderr)

    def test_a_torch_that_is_missing_or_too_old_is_one_line_and_status_2(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "torch.py").write_text("import os\n__version__ = os.environ['VERSION']\n")
            script = "import sys, lockstep\nif not {there}: sys.modules['torch'] = None\nlockstep.init()"
            for there, version, message in ((True, "1.13.1", "torch 1.13.1 is too old: lockstep wants 2.1 or later"),
                                            (True, "2.0.1+cpu", "torch 2.0.1+cpu is too old"),
                                            (False, "", "this Python has no torch: install 2.1 or later, or use lockstep.jax or lockstep.keras")):
                with self.subTest(message):
                    done = run("-c", script.format(there=there), VERSION=version, PYTHONPATH=f"{folder}:{ROOT / 'python'}")
                    self.assertEqual((done.returncode, done.stdout), (2, ""), done)
                    self.assertRegex(done.stderr, r"\Alockstep: [^\n]+\n\Z")
                    self.assertIn(message, done.stderr)

    def test_older_torch_tells_of_its_gpus_by_another_name(self):
        stand_in = unittest.mock.MagicMock
        newer = stand_in(spec=["accelerator", "cuda"])
        newer.accelerator.current_accelerator.return_value.type = "xpu"
        for torch, there, kind in ((stand_in(spec=["cuda"]), True, "cuda"), (stand_in(spec=["cuda"]), False, None), (newer, True, "xpu"),
                                   (newer, False, None)):
            torch.cuda.is_available.return_value = there
            if torch is newer:
                torch.accelerator.is_available.return_value = there
            with unittest.mock.patch.dict(sys.modules, torch=torch):
                self.assertEqual(_torch.accelerator(), kind)

    def test_a_setting_that_is_none_ends_the_job_with_one_line(self):
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder, "wrong.py")
            script.write_text((HERE / "linear.py").read_text().replace("epochs = 12", "epoch = 12"))
            done = run("-m", "lockstep", "run", "-n", "2", "--run-dir", pathlib.Path(folder, "run"), script)
        self.assertEqual(done.returncode, 2, done)
        self.assertIn('unknown key "job.epoch"', done.stdout)

    def test_ctrl_c_ends_a_job_that_waits(self):
        with tempfile.TemporaryDirectory() as folder:
            process = package.start("-m", "lockstep", "run", "-n", "2", "--run-dir", pathlib.Path(folder, "run"), "--set",
                                    "emulate.unit_time=1s", HERE / "linear.py", cwd=folder)
            try:
                for line in process.stdout:
                    if "joins from" in line:
                        break
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=package.TIMEOUT_S)
                self.assertEqual(process.returncode, 130)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


STAND_IN_WRITER = """
import os, time
class SummaryWriter:
    def __init__(self, folder, purge_step=None, filename_suffix=""):
        os.makedirs(folder, exist_ok=True)
        self.file = open(f"{folder}/events.out.tfevents.{time.time_ns()}.host{filename_suffix}", "w")
    def __enter__(self):
        return self
    def __exit__(self, *_):
        self.file.close()
    def add_scalar(self, tag, value, step, walltime=None):
        print(tag, value, step, file=self.file)
"""


class ExportTest(harness.ClusterTest):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-export-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        with harness.Job(2, folder=cls.folder, evaluation__every_epochs=1, job__rounds=80, policy__name="full+flexrr") as job:
            job.start().finish()
            cls.run_dir, cls.rounds = job.run_dir, job.rounds()
        # As of a program that says how long it waited for its samples.
        cls.rounds[-1]["input_wait"] = {"1": 0.25}
        (cls.run_dir / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in cls.rounds))
        # As of a job whose numbers have become none.
        evaluations = cls.run_dir / "evaluations.jsonl"
        evaluations.write_text(re.sub(r'"loss":[^,}]*', '"loss":null', evaluations.read_text(), count=1))

    def export(self, *arguments, **more):
        return run("-m", "lockstep", "export", self.run_dir, *arguments, **more)

    def test_spans_and_metrics_of_otlp(self):
        done = self.export("--otlp", self.folder / "otlp")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        self.assertEqual(self.export("--otlp", "-").stdout, (self.folder / "otlp").read_text())  # the same ids again
        spans, points = [], {}
        for line in (self.folder / "otlp").read_text().splitlines():
            (kind, (one,)), = json.loads(line, parse_constant=self.fail).items()
            self.assertIn({"key": "service.name", "value": {"stringValue": "lockstep"}}, one["resource"]["attributes"])
            (scope,) = one[{"resourceSpans": "scopeSpans", "resourceMetrics": "scopeMetrics"}[kind]]
            spans += scope.get("spans", [])
            for metric in scope.get("metrics", []):
                points.setdefault(metric["name"], []).extend(metric["gauge"]["dataPoints"])
        by_id = {span["spanId"]: span for span in spans}
        self.assertEqual(len(by_id), len(spans))
        self.assertEqual(len({span["traceId"] for span in spans}), 1)
        for span in spans:
            self.assertRegex(span["traceId"] + span["spanId"], r"\A[0-9a-f]{48}\Z")
            self.assertLessEqual(int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"]))
            if span["name"] != "job":
                parent = by_id[span["parentSpanId"]]["name"]
                self.assertEqual(parent, {"round": "job", "worker": "compute"}.get(span["name"], "round"))
        self.assertEqual([span["name"] for span in spans].count("round"), len(self.rounds))
        self.assertEqual([span["name"] for span in spans].count("worker"), sum(len(line["times"]["ready"]) for line in self.rounds))
        self.assertEqual([point["asDouble"] for point in points["lockstep.loss"]], [line["loss"] for line in self.rounds])
        self.assertEqual(len(points["lockstep.test_accuracy"]), len(points["lockstep.test_loss"]) + 1)
        waited = [span for span in spans if {"key": "lockstep.input_wait", "value": {"doubleValue": 0.25}} in span["attributes"]]
        self.assertEqual([span["attributes"][1]["value"] for span in waited], [{"intValue": "1"}])
        now = time.time()
        (job,) = (span for span in spans if span["name"] == "job")
        self.assertLess(abs(int(job["endTimeUnixNano"]) / 1e9 - now), 600)

    def test_scalars_for_tensorboard(self):
        where = self.folder / "site/torch/utils/tensorboard"
        where.mkdir(parents=True)
        (where / "__init__.py").write_text(STAND_IN_WRITER)
        site = f"{self.folder / 'site'}:{ROOT / 'python'}"
        folder = self.folder / "tb"
        folder.mkdir()
        theirs = folder / "events.out.tfevents.1.of-the-script"
        theirs.write_text("")
        for _ in range(2):  # the second one takes the place of the first
            done = self.export("--tensorboard", folder, PYTHONPATH=site)
            self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        (ours,) = set(folder.iterdir()) - {theirs}
        other = self.folder / "other"
        other.mkdir()
        shutil.copy(self.run_dir / "rounds.jsonl", other)
        done = run("-m", "lockstep", "export", other, "--tensorboard", folder, PYTHONPATH=site)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done)
        self.assertEqual(done.stderr, f"lockstep: export: {folder}: has the rounds of another run directory: name a folder of its own, as {folder / 'other'}\n")
        self.assertEqual(set(folder.iterdir()), {theirs, ours})
        calls = [line.split() for line in ours.read_text().splitlines()]
        self.assertEqual([(float(value), int(step)) for tag, value, step in calls if tag == "round/loss"],
                         [(line["loss"], line["round"]) for line in self.rounds])
        tags = {tag for tag, _, _ in calls}
        self.assertGreaterEqual(tags, {"round/learning_rate", "round/exchange_seconds", "worker/0/ready_seconds", "worker/1/ready_seconds",
                                       "test/accuracy"})
        self.assertIn(["worker/1/input_wait_seconds", "0.25", str(self.rounds[-1]["round"])], calls)

    def test_what_cannot_be_exported_is_one_line_and_status_2(self):
        empty = self.folder / "none"
        empty.mkdir(exist_ok=True)
        broken = self.folder / "broken"
        broken.mkdir(exist_ok=True)
        (broken / "rounds.jsonl").write_text("{}\n")
        timeless = self.folder / "timeless"
        timeless.mkdir(exist_ok=True)
        (timeless / "rounds.jsonl").write_text("".join(json.dumps({**record, "times": {"start": 0}}) + "\n" for record in self.rounds))
        nothing = self.folder / "nothing" / "torch"
        nothing.mkdir(parents=True)
        (nothing / "__init__.py").write_text("")
        for arguments, message in (([self.run_dir], "nothing to write"), ([empty, "--otlp", "-"], "there is no rounds.jsonl"),
                                   ([broken, "--otlp", "-"], "rounds.jsonl:1: is no record"),
                                   ([timeless, "--otlp", "-"], "rounds.jsonl:1: is no record"),
                                   ([self.run_dir, "--otlp", empty / "no" / "file"], "No such file or directory"),
                                   ([self.run_dir, "--tensorboard", empty], "--tensorboard takes torch and tensorboard, and ")):
            with self.subTest(arguments):
                done = run("-m", "lockstep", "export", *arguments, PYTHONPATH=f"{nothing.parent}:{ROOT / 'python'}")
                self.assertEqual((done.returncode, done.stdout), (2, ""), done)
                self.assertRegex(done.stderr, r"\Alockstep: export: [^\n]+\n\Z")
                self.assertIn(message, done.stderr)

    def test_a_line_that_is_being_written_is_left_for_later(self):
        text = (self.run_dir / "rounds.jsonl").read_text()
        part = self.folder / "part"
        part.mkdir()
        (part / "rounds.jsonl").write_text(text[:-10])
        done = run("-m", "lockstep", "export", part, "--otlp", "-")
        self.assertEqual(done.returncode, 0, done)
        self.assertEqual(done.stdout.count('"name":"round"'), len(self.rounds) - 1)


def interpreters():
    """From 3.10 on, as python3.N on PATH or among pyenv's, with their versions."""
    found = {}
    pyenv = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv"))
    for minor in range(10, 20):
        for path in (shutil.which(f"python3.{minor}"), *pyenv.glob(f"versions/3.{minor}.*/bin/python3")):
            asked = path and subprocess.run([path, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True, check=False)
            if asked and asked.stdout.split() == ["3", str(minor)]:
                found[f"3.{minor}"] = path
                break
    return found


class BareTest(harness.ClusterTest):
    """In an environment that has nothing but Python."""

    def test_a_session_wants_no_package_at_all(self):
        for version, python in interpreters().items():
            with self.subTest(version), tempfile.TemporaryDirectory() as folder:
                subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
                bare = pathlib.Path(folder, "bin", "python")
                imported = run("-c", "import lockstep, sys; print(lockstep.version(), {'torch', 'numpy', 'jax', 'keras'} & set(sys.modules))", python=bare)
                self.assertEqual((imported.returncode, imported.stderr), (0, ""), imported)
                self.assertRegex(imported.stdout, r"\A\d+\.\d+\.\d+ set\(\)\n\Z")
                for package_name in ("torch", "numpy"):
                    self.assertEqual(run("-c", f"import {package_name}", python=bare).returncode, 1)
                done = run("-m", "lockstep", "run", "-n", "2", "--set", "job.epochs=2", HERE / "linear.py", python=bare)
                self.assertEqual((done.returncode, done.stderr), (0, ""), done)
                self.assertEqual(len(set(re.findall(r"digest (\w{64})", done.stdout))), 1, done.stdout)


# Half of the gradient is final when the other half has its whole backward pass before it, which takes COMPUTE_S.
OVERLAP = """
import array, os, sys, time
import lockstep
COMPUTE_S, TENSOR = float(sys.argv[1]), 65536
session = lockstep.Session(os.environ["LOCKSTEP_COORDINATOR"], secret_file=os.environ["LOCKSTEP_SECRET_FILE"], slowdowns="",
                           settings="[job]\\nrounds = 20\\nglobal_batch = 2\\n[exchange]\\nbucket_bytes = 65536\\npiece_bytes = 65536\\n",
                           wanted=int(os.environ["LOCKSTEP_WORKER"]))
initial = array.array("f", bytes(8 * TENSOR))
session.begin(lockstep.JobDescription(tensors=[lockstep.Tensor("first", (TENSOR,)), lockstep.Tensor("second", (TENSOR,))],
                                      initial=initial.buffer_info()[0], dataset_digest="none", train_samples=64))
while (work := session.next(0.2)).kind is not lockstep.Kind.END:
    if work.kind is lockstep.Kind.TRAIN:
        if COMPUTE_S:
            session.block_final(1)
            time.sleep(COMPUTE_S)
            session.block_final(0)
        session.done(len(work.samples), 1.0)
session.end()
"""


class OverlapTest(harness.ClusterTest):
    def overlap(self, compute_s, workers=2, **settings):
        with tempfile.TemporaryDirectory() as folder:
            script, run_dir = pathlib.Path(folder, "overlap.py"), pathlib.Path(folder, "run")
            script.write_text(OVERLAP)
            options = [word for key, value in settings.items() for word in ("--set", f"{key.replace('__', '.')}={value}")]
            done = run("-m", "lockstep", "run", "-n", workers, "--run-dir", run_dir, *options, script, compute_s)
            self.assertEqual(done.returncode, 0, done)
            job = harness.Job(workers, folder=folder)
            job.run_dir = run_dir
            return job.summary()["overlap"], job.rounds(), json.loads((run_dir / "timeline.json").read_text())["traceEvents"]

    def test_what_is_sent_before_the_end_of_the_backward_pass(self):
        overlap, rounds, events = self.overlap(0.05, exchange__mapping="off", exchange__transport="tcp")
        # Each worker owns half of what the other has to send, and half of that is final early.
        self.assertEqual(overlap["bytes"], 20 * 2 * 2 * 65536 * 4 // 2)
        self.assertGreater(overlap["share"], 0)
        self.assertLessEqual(overlap["early_bytes"], overlap["bytes"] / 2)
        self.assertEqual(overlap["share"], overlap["early_bytes"] / overlap["bytes"])
        self.assertEqual(sum(line["sent"]["early_bytes"] for line in rounds), overlap["early_bytes"])
        # Seen in the timeline from before it was ready, beside the units.
        sends = [event for event in events if event["name"].startswith("contribution to round") and event["ph"] == "X"]
        early = [(line, worker) for line in rounds for worker in line["times"].get("sending", {})]
        self.assertEqual(len(sends), len(early))
        for line, worker in early:
            self.assertLess(line["times"]["sending"][worker], line["times"]["ready"][worker])
        names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
        self.assertGreaterEqual(names, {"worker 0 sends"} if any(worker == "0" for _, worker in early) else set())

    def test_nothing_is_sent_early_where_nothing_is_final_early(self):
        overlap, rounds, events = self.overlap(0, exchange__mapping="off", exchange__transport="tcp")
        self.assertEqual((overlap["share"], overlap["early_bytes"]), (0, 0))
        self.assertGreater(overlap["bytes"], 0)
        self.assertFalse([line for line in rounds if "sending" in line["times"]])
        self.assertFalse([event for event in events if event["name"].startswith("contribution")])

    def test_who_reads_mapped_memory_or_is_alone_has_no_figure_and_says_why(self):
        overlap, rounds, _ = self.overlap(0.01)
        self.assertEqual(overlap, {"share": None, "reason": "contributions were read in mapped memory, none was sent"})
        self.assertFalse([line for line in rounds if "sent" in line])
        overlap, _, _ = self.overlap(0, workers=1)
        self.assertEqual(overlap, {"share": None, "reason": "there was no other worker to send to"})


class CompareTest(harness.ClusterTest):
    def test_policies_are_compared_with_a_script(self):
        with tempfile.TemporaryDirectory() as folder:
            done = run("-m", "lockstep", "compare", "--out", folder, "-n", "2", "--runs", "1", "--policies", "full", "--patterns", "one-slow",
                       "--set", "job.epochs=2", "--", HERE / "linear.py")
            self.assertEqual(done.returncode, 0, done)
            self.assertIn("2 workers, linear.py, real jobs", done.stdout)
            self.assertTrue((pathlib.Path(folder) / "report.html").is_file())


if __name__ == "__main__":
    harness.main()
