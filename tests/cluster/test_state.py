"""Checkpoints and what a job goes on from: large ones, damaged ones, full disks, settings that may not change."""

import fcntl
import json
import os
import pathlib
import resource
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
import unittest

from harness import BIN, ClusterTest, Job, PATIENCE, TOOLS, check_epochs, count_alike, wait_for

PACED = {"emulate.unit_time": "2ms"}
# In rounds. What is interrupted has no other end: it could come before the interruption.
ENDLESS = 100000
# 116 MB of parameters and AdamW's two tensors.
LARGE = {"model.widths": "3072,3072", "optimizer.name": "adamw", "optimizer.lr": 0.001, "job.global_batch": 16, "job.units": 4,
         "data.synthetic_train": 256, "data.synthetic_test": 16}


def peak_kib(process):
    """The most memory that the process has had, while it lives."""
    for line in pathlib.Path(f"/proc/{process.pid}/status").read_text().split("\n"):
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    return 0


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def coordinator(job, *arguments):
    return subprocess.run([BIN / "lockstep-coordinator", "--listen", "127.0.0.1:0", "--workers", str(job.workers), "--run-dir",
                           job.run_dir, *map(str, arguments)], capture_output=True, text=True, timeout=60 * PATIENCE, check=False)


def checkpoint_of(job):
    return max((job.run_dir / "checkpoints").glob("*.json"))


class Tensors:
    """A safetensors file: the header as JSON, and the bytes of each tensor."""

    def __init__(self, path):
        self.path = path
        data = path.read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        self.header = json.loads(data[8:8 + length])
        self.data = bytearray(data[8 + length:])

    def offset(self, name):
        return self.header[name]["data_offsets"][0]

    def write(self):
        text = json.dumps(self.header).encode()
        text += b" " * (-len(text) % 8)
        self.path.write_bytes(struct.pack("<Q", len(text)) + text + self.data)


def go_on(job, *arguments, worker_arguments=()):
    """Starts the ended job again."""
    for name in list(job.processes):
        job.wait(name)
    job.start_coordinator("--resume", *arguments)
    for index in range(job.workers):
        job.start_worker(index, *worker_arguments)


class LargeState(ClusterTest):
    def test_resume_over_tls_with_more_state_than_a_connection_queues(self):
        with Job(2, LARGE, job__rounds=3, job__join_timeout="60s") as job:
            secret = job.folder / "secret"
            secret.write_text("s" * 32)
            secret.chmod(0o600)
            job.coordinator_args += ["--secret-file", secret]
            job.start_coordinator()
            for index in range(2):
                job.start_worker(index, "--secret-file", secret)
            job.finish()
            size = checkpoint_of(job).with_suffix(".safetensors").stat().st_size
            self.assertGreater(size, 100 << 20)
            go_on(job, "--job.rounds=5", worker_arguments=["--secret-file", secret])
            job.wait_for_rounds(4)
            peak = peak_kib(job.processes["coordinator"])
            summary = job.finish()
            self.assertEqual(summary["rounds"], 5)
            self.assertEqual(summary["digest_differs"], [])
            self.assertEqual([line["round"] for line in job.rounds()], list(range(5)))
            # The checkpoint goes through the coordinator by pieces.
            self.assertLess(peak, size >> 10)


class Resume(ClusterTest):
    def interrupted(self, job, rounds):
        """Runs a job without an end for so many rounds or some more, then ends it. Returns how many there are."""
        self.assertEqual(job.options["job.rounds"], ENDLESS)
        job.start()
        job.wait_for_rounds(rounds)
        job.processes["coordinator"].send_signal(signal.SIGINT)
        job.processes["coordinator"].send_signal(signal.SIGTERM)  # so soon behind it, it is the same one
        self.assertEqual(job.wait(), 130)
        for index in range(job.workers):
            job.wait(f"worker{index}")
        return len(job.rounds())

    def assert_refused(self, job, *words, arguments=()):
        before = contents(job.run_dir)
        done = coordinator(job, "--config", job.config, "--resume", *arguments)
        self.assertEqual(done.returncode, 2, done.stderr)
        lines = done.stderr.strip().split("\n")
        self.assertEqual(len(lines), 1, done.stderr)
        for word in words:
            self.assertIn(word, lines[0])
        self.assertEqual(contents(job.run_dir), before, "the run directory was changed")

    def test_with_other_settings(self):
        with Job(2, PACED, job__rounds=ENDLESS, job__join_timeout="20s") as job:
            rounds = self.interrupted(job, 5) + 25
            for key, value, words in (("job.seed", 2, ["synthetic"]), ("model.widths", "16,16", ["tensors"]),
                                      ("data.synthetic_train", 4096, ["epoch"]), ("optimizer.name", "adamw", ["optimizer"]),
                                      ("optimizer.momentum", 0, ["optimizer"]), ("policy.name", "local", ["round"])):
                with self.subTest(key=key):
                    self.assert_refused(job, key, *words, arguments=[f"--{key}={value}"])
            go_on(job, f"--job.rounds={rounds}", "--optimizer.lr=0.01", "--job.global_batch=32", "--job.units=8")
            self.assertEqual(job.finish()["rounds"], rounds)
            check_epochs(self, job.rounds(), 2048)

    def test_what_no_round_was_made_with_is_not_kept(self):
        with Job(2, PACED, job__rounds=ENDLESS) as job:
            rounds = self.interrupted(job, 5) + 25
            config = (job.run_dir / "config.ini").read_text()
            done = coordinator(job, "--resume", "--optimizer.lr=0.01", "--job.join_timeout=1s")  # nobody comes, or whoever comes refuses it
            self.assertEqual((done.returncode, job.summary()["status"]), (1, "failed"), done.stderr)
            self.assertEqual((job.run_dir / "config.ini").read_text(), config)
            go_on(job, "--optimizer.lr=0.02", f"--job.rounds={rounds}")
            self.assertEqual(job.finish()["rounds"], rounds)
            changed = config.replace("lr = 0.05\n", "lr = 0.02\n").replace(f"rounds = {ENDLESS}\n", f"rounds = {rounds}\n")
            self.assertEqual((job.run_dir / "config.ini").read_text(), changed)

    def test_what_the_last_round_has_left_out_comes_again_where_there_is_another(self):
        with Job(3, PACED, job__rounds=10, policy__name="backup", job__min_workers=1) as job:
            job.start_coordinator()
            for index in range(3):
                job.start_worker(index, "--slowdown", "worker=2,factor=20")
            first = job.finish()
            left_out = job.rounds()[-1]["dropped"]
            self.assertEqual(first["samples_dropped"], sum(end - begin for begin, end in left_out))
            self.assertGreater(first["samples_dropped"], 0)
            go_on(job, "--job.rounds=0", "--job.epochs=1", "--policy.name=full")
            second = job.finish()
            self.assertEqual((second["samples_dropped"], second["samples_counted"], second["epochs"]), (0, 2048, 1))
            self.assertEqual(second["samples_requeued"], sum(end - begin for line in job.rounds() for begin, end in line["requeued"]))
            self.assertEqual((job.rounds()[9]["dropped"], job.rounds()[9]["requeued"]), ([], left_out))
            checked = subprocess.run([TOOLS / "check-run", job.run_dir], capture_output=True, text=True, timeout=60 * PATIENCE, check=False)
            self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)

    def test_with_what_compression_has_kept_back(self):
        for options in ({"exchange__compression": "topk", "exchange__topk_fraction": 0.05},
                        {"exchange__compression": "powersgd", "optimizer__lr": 0.02}):
            with self.subTest(options=options), Job(3, PACED, job__rounds=40, **options) as quiet:
                quiet.start()
                wanted = quiet.finish()["params_digest"]
                for saves in ("true", "false"):
                    with Job(3, PACED, job__rounds=ENDLESS, checkpoint__residuals=saves, **options) as job:
                        rounds = self.interrupted(job, 10)
                        self.assertLess(rounds, 30)
                        files = sorted(path.name for path in (job.run_dir / "checkpoints").glob("*.residual-*"))
                        saved = [f"round-{rounds - 1:010}.residual-{worker}.safetensors" for worker in range(3)]
                        self.assertEqual(files, saved if saves == "true" else [])
                        go_on(job, "--job.rounds=40")
                        self.assertEqual(job.finish()["params_digest"] == wanted, saves == "true")
                        for worker in range(3):
                            job.wait(f"worker{worker}")
                            said = f"this worker goes on with what it had kept back after round {rounds - 1}"
                            self.assertEqual(said in job.log(f"worker{worker}"), saves == "true")
                        if saves == "true":  # those of checkpoints that are gone are gone
                            kept = {path.name[:16] for path in (job.run_dir / "checkpoints").glob("*.json")}
                            files = [path.name for path in (job.run_dir / "checkpoints").glob("*.residual-*")]
                            self.assertEqual(({name[:16] for name in files}, len(files)), (kept, 3 * len(kept)), files)

    def test_damaged_numbers_that_compression_kept_back_cost_a_warning(self):
        with Job(2, PACED, job__rounds=ENDLESS, checkpoint__residuals="true", exchange__compression="topk") as job:
            rounds = self.interrupted(job, 5)
            for worker in range(2):
                path = job.run_dir / "checkpoints" / f"round-{rounds - 1:010}.residual-{worker}.safetensors"
                content = bytearray(path.read_bytes())
                content[-5 if worker == 0 else 40] ^= 1
                path.write_bytes(content if worker == 0 else content[:-8])
            go_on(job, f"--job.rounds={rounds + 10}")
            job.finish()
            for worker in range(2):
                job.wait(f"worker{worker}")
                self.assertRegex(job.log(f"worker{worker}"), rf"residual-{worker}.safetensors: it is not what worker {worker} of this job has kept back")

    def test_from_the_jobs_end_it_ends_as_before(self):
        """As where torchrun starts all workers again because one has failed behind the job."""
        for options in ({"job__rounds": 0, "job__epochs": 1}, {"job__rounds": 10, "policy__name": "backup", "job__min_workers": 1},
                        {"job__rounds": 10, "optimizer__replicas": 1, "optimizer__momentum": 0.9}):
            with self.subTest(options=options), Job(3, **options) as job:
                job.start()
                first, records = job.finish(), (job.run_dir / "rounds.jsonl").read_bytes()
                go_on(job)
                second = job.finish()
                for index in range(3):
                    self.assertEqual(job.wait(f"worker{index}"), 0, job.log(f"worker{index}"))
                for key in ("status", "reason", "rounds", "epochs", "samples_counted", "samples_dropped", "samples_requeued", "params_digest",
                            "train_loss", "checkpoint_round", "test_accuracy"):
                    self.assertEqual(second[key], first[key], key)
                self.assertEqual((job.run_dir / "rounds.jsonl").read_bytes(), records)
                self.assertRegex(job.log("coordinator"), r"info the checkpoint after round \d+ is the job's last one: the workers have its parameters")
                checked = subprocess.run([TOOLS / "check-run", job.run_dir], capture_output=True, text=True, timeout=60 * PATIENCE, check=False)
                self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)

    def test_with_another_seed_only_between_two_epochs(self):
        source = pathlib.Path("/usr/share/datasets/fashion-mnist")
        if not source.exists():
            self.skipTest("dataset-fashion-mnist is not installed")
        with Job(2, {"data.format": "idx", "data.path": source, "job.global_batch": 20000, "job.rounds": 2, "model.name": "softmax"}) as job:
            job.start().finish()
            self.assert_refused(job, "job.seed = 2", "made with 3", "mid-epoch", arguments=["--job.seed=2", "--job.rounds=4"])
            go_on(job, "--job.rounds=3")
            job.finish()
            go_on(job, "--job.rounds=6", "--job.seed=2")
            self.assertEqual(job.finish()["epochs"], 2)
            check_epochs(self, job.rounds(), 60000)

    def test_reads_nothing_that_is_damaged(self):
        with Job(2, PACED, job__rounds=ENDLESS, job__join_timeout="20s") as job:
            rounds = self.interrupted(job, 5) + 5
            pristine = job.folder / "pristine"
            shutil.copytree(job.run_dir, pristine)
            state_file = checkpoint_of(job)
            tensor_file = state_file.with_suffix(".safetensors")
            records = job.run_dir / "rounds.jsonl"

            def change_state(**values):
                state = json.loads(state_file.read_text())
                state.update(values)
                state_file.write_text(json.dumps(state))

            def without_checksum():
                state = json.loads(state_file.read_text())
                del state["checksum"]
                state_file.write_text(json.dumps(state))

            def flip_a_bit():
                tensors = Tensors(tensor_file)
                tensors.data[len(tensors.data) // 2] ^= 1
                tensors.write()

            def nan():
                tensors = Tensors(tensor_file)
                name = next(name for name in tensors.header if name.startswith("optimizer."))
                start = tensors.offset(name)
                tensors.data[start:start + 4] = struct.pack("<f", float("nan"))
                tensors.write()

            def swap_names():
                tensors = Tensors(tensor_file)
                for name in [name for name in tensors.header if not name.startswith(("optimizer.", "__"))]:
                    other = "optimizer.momentum." + name
                    tensors.header[name], tensors.header[other] = tensors.header[other], tensors.header[name]
                tensors.write()

            def rename():
                tensors = Tensors(tensor_file)
                name = next(name for name in tensors.header if not name.startswith("__"))
                tensors.header["another"] = tensors.header.pop(name)
                tensors.write()

            def cut_records(lines):
                records.write_text("".join(records.read_text().splitlines(True)[:lines]))

            def cut_a_line():
                text = records.read_text()
                records.write_text(text[:len(text) // 2])

            def repeat_a_line():
                lines = records.read_text().splitlines(True)
                records.write_text("".join([lines[0], *lines]))

            for name, damage, words in (
                    ("records are gone", records.unlink, ["rounds.jsonl"]),
                    ("records are cut", lambda: cut_records(3), ["rounds.jsonl", "3 rounds"]),
                    ("a record is cut", cut_a_line, ["rounds.jsonl", "line"]),
                    ("a record is there twice", repeat_a_line, ["rounds.jsonl", "line 2", "round 0"]),
                    ("next_round is 0", lambda: change_state(next_round=0), [state_file.name, "checksum"]),
                    ("next_round is broken", lambda: change_state(next_round=1.5), [state_file.name, "next_round", "1.5"]),
                    ("a count is negative", lambda: change_state(samples_counted=-1), [state_file.name, "samples_counted", "-1"]),
                    ("a count is another", lambda: change_state(samples_moved=7), [state_file.name, "checksum"]),
                    ("no checksum", without_checksum, [state_file.name, "checksum", "earlier version"]),
                    ("no JSON", lambda: state_file.write_text("{"), [state_file.name, "JSON"]),
                    ("a bit is flipped", flip_a_bit, [tensor_file.name, "digest"]),
                    ("a value is no number", nan, [tensor_file.name, "optimizer.", "not finite"]),
                    ("names are exchanged", swap_names, [tensor_file.name, "digest"]),
                    ("a tensor has another name", rename, [tensor_file.name, "no tensor"]),
                    ("the tensors are gone", tensor_file.unlink, [tensor_file.name])):
                with self.subTest(name):
                    damage()
                    self.assert_refused(job, *words)
                    shutil.rmtree(job.run_dir)
                    shutil.copytree(pristine, job.run_dir)

            # The order of the tensors in the file is nothing that counts: another program may have written it.
            tensors = Tensors(tensor_file)
            data = bytearray()
            for name in sorted((name for name in tensors.header if name != "__metadata__"), reverse=True):
                start, end = tensors.header[name]["data_offsets"]
                tensors.header[name]["data_offsets"] = [len(data), len(data) + end - start]
                data += tensors.data[start:end]
            self.assertNotEqual(tensors.data, data)
            tensors.data = data
            tensors.write()
            go_on(job, f"--job.rounds={rounds}")
            summary = job.finish()
            self.assertEqual(summary["rounds"], rounds)
            resumed = job.rounds()
        with Job(2, job__rounds=rounds) as whole:
            expected = whole.start().finish()
            if count_alike(self, resumed, whole.rounds()) == rounds:
                self.assertEqual(summary["params_digest"], expected["params_digest"])

    def test_nobody_connects_before_all_is_read(self):
        """Who is let in and not answered goes after seconds, and reading may take minutes."""
        broken = []
        before = signal.signal(signal.SIGIO, lambda *_: broken.append(True))
        self.addCleanup(signal.signal, signal.SIGIO, before)
        with Job(2, PACED, job__rounds=ENDLESS) as job:
            rounds = self.interrupted(job, 5) + 25
            # The coordinator cuts the records back when all is read: until this lease ends it does not get on with that.
            (job.run_dir / "evaluations.jsonl").touch()
            lease = os.open(job.run_dir / "evaluations.jsonl.tmp", os.O_RDWR | os.O_CREAT)
            try:
                fcntl.fcntl(lease, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            except OSError as error:
                os.close(lease)
                self.skipTest(f"this file system has no leases: {error}")
            try:
                job.listen = job.address
                host, port = job.address.split(":")
                job.begin_coordinator("--resume", f"--job.rounds={rounds}")
                wait_for("the coordinator to come to the records", lambda: broken)
                with self.assertRaises(ConnectionRefusedError):
                    socket.create_connection((host, int(port)), timeout=30)
                job.start_worker(0, name="early")
            finally:
                os.close(lease)
            job.start_worker(1, name="later")
            self.assertEqual(job.finish()["rounds"], rounds)

    def test_of_a_folder_that_is_none(self):
        with Job(2) as job:
            done = coordinator(job, "--config", job.config, "--resume")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertEqual(len(done.stderr.strip().split("\n")), 1, done.stderr)
            self.assertIn(f"--resume: {job.run_dir} is no run directory\n", done.stderr)
            self.assertEqual(coordinator(job, "--resume").stderr, done.stderr)
            self.assertFalse(job.run_dir.exists(), "something is left behind")

    def test_later_than_the_time_to_join(self):
        """The job is older than its workers are given to come back: that time begins anew."""
        with Job(1, {"emulate.unit_time": "30ms"}, job__rounds=ENDLESS) as job:
            job.start()
            wait_for("a few seconds of the job", lambda: job.rounds() and job.rounds()[-1]["times"]["commit"] > 4)
            rounds = job.interrupt()["rounds"] + 2
            began = time.monotonic()
            done = coordinator(job, "--resume", "--job.join_timeout=2s")
            self.assertEqual((done.returncode, job.summary()["status"]), (1, "failed"), done.stderr)
            self.assertGreater(time.monotonic() - began, 2)
            go_on(job, f"--job.rounds={rounds}")
            self.assertEqual(job.finish()["rounds"], rounds)

    def test_without_enough_workers_ends(self):
        with Job(2, PACED, job__rounds=ENDLESS, job__min_workers=2) as job:
            self.interrupted(job, 5)
            before = contents(job.run_dir / "checkpoints")
            job.start_coordinator("--resume", "--job.join_timeout=3s")
            job.start_worker(0, name="stays")  # or comes too late, which is said as well
            self.assertEqual(job.wait("coordinator"), 1)
            self.assertEqual(job.summary()["status"], "failed")
            self.assertIn("worker 1 is not there", job.summary()["reason"])
            self.assertEqual(contents(job.run_dir / "checkpoints"), before)

    def test_too_few_workers_for_too_long_end_a_job_that_goes_on_later(self):
        with Job(2, PACED, job__rounds=ENDLESS, policy__name="full", job__min_workers=2, job__quorum_timeout="1s",
                 checkpoint__every_rounds=5) as job:
            job.start()
            job.wait_for_rounds(12)
            job.processes["worker1"].kill()
            self.assertEqual(job.wait("coordinator"), 1)
            self.assertEqual(job.summary()["status"], "failed")
            self.assertRegex(job.summary()["reason"], r"\A1 of at least 2 workers have been there for 1s \(job.quorum_timeout\); missing: worker 1 "
                             r"\(.*[Cc]onnection.*\); the job can be resumed from its checkpoint after round \d+\Z")
            self.assertTrue(contents(job.run_dir / "checkpoints"))
            self.assertEqual(job.wait("worker0"), 1)
            rounds = len(job.rounds()) + 25
            go_on(job, f"--job.rounds={rounds}")
            self.assertEqual(job.finish()["rounds"], rounds)


def check_summary_is_of_the_records(test, job):
    rounds, summary = job.rounds(), job.summary()
    test.assertEqual(summary["rounds"], len(rounds))
    test.assertEqual(summary["samples_counted"], sum(line["samples"] for line in rounds))
    test.assertEqual(summary["train_loss"], rounds[-1]["loss"])


class NoCheckpoint(ClusterTest):
    def test_a_job_that_writes_none_before_its_end_says_so_at_its_start(self):
        for epochs, every, seconds, warned in ((1, 0, "0s", True), (1, 8, "0s", False), (2, 0, "0s", False), (1, 0, "10min", False)):
            with self.subTest(epochs=epochs, every=every), Job(1, job__rounds=0, job__epochs=epochs, checkpoint__every_epochs=1,
                                                               checkpoint__every_rounds=every, checkpoint__every=seconds) as job:
                job.start().finish()
                said = "this job of 32 rounds writes no checkpoint before its end, so if it fails it starts anew: set checkpoint.every_rounds, for example to 3"
                self.assertEqual(said in job.log("coordinator"), warned)


class RecordsThatCannotGrow(ClusterTest):
    def test_the_summary_counts_the_rounds_that_have_a_record(self):
        with Job(2, {"emulate.unit_time": "2ms"}, job__rounds=ENDLESS) as job:
            job.start()
            job.wait_for_rounds(5)
            # Files of this process end there, as on a disk that is full.
            end = (job.run_dir / "rounds.jsonl").stat().st_size + 20000
            resource.prlimit(job.processes["coordinator"].pid, resource.RLIMIT_FSIZE, (end, end))
            self.assertEqual(job.wait(), 1)
            self.assertEqual(job.summary()["status"], "failed")
            self.assertRegex(job.summary()["reason"], r"(rounds\.jsonl: cannot write: File too large; \d+ closed rounds? ha(s|ve) no record|journal: cannot write: File too large)")
            check_summary_is_of_the_records(self, job)

    def test_no_job_needs_a_timeline(self):
        with Job(2) as job:
            (job.run_dir / "timeline.json").mkdir(parents=True)
            job.start()
            self.assertEqual(job.finish()["status"], "completed")
            self.assertEqual(len(job.rounds()), 40)
            told = [line for line in job.log("coordinator").splitlines() if "timeline.json" in line]
            self.assertEqual(len(told), 1, told)
            self.assertIn("Is a directory", told[0])
            self.assertIn("the job goes on", told[0])


class FullDisk(ClusterTest):
    """On a small file system of its own."""

    def setUp(self):
        self.mount = tempfile.mkdtemp(prefix="lockstep-full-")
        self.addCleanup(os.rmdir, self.mount)
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", self.mount], capture_output=True, text=True, check=False)
        if made.returncode != 0:
            self.skipTest("no file system can be mounted here: " + made.stderr.strip())
        self.addCleanup(subprocess.run, ["umount", "-l", self.mount], check=True)

    def fill(self, leave):
        """Leaves so many bytes free."""
        stat = os.statvfs(self.mount)
        path = pathlib.Path(self.mount) / "filler"
        with open(path, "ab") as out:
            os.posix_fallocate(out.fileno(), out.tell(), stat.f_bavail * stat.f_frsize - leave)
        return path

    def test_at_the_last_checkpoint(self):
        with Job(2, {"emulate.unit_time": "5ms", "model.widths": "1024"}, job__rounds=60, checkpoint__every_rounds=10,
                 checkpoint__keep=1) as job:
            job.run_dir = pathlib.Path(self.mount) / "run"
            filler = self.fill(640 << 10)  # room for records, journal and one checkpoint, of 344 KiB, and for no second one
            job.start()
            self.assertEqual(job.wait(), 1)
            summary = job.summary()
            self.assertEqual(summary["status"], "failed")
            self.assertIn("No space left", summary["reason"])
            good = summary["checkpoint_round"]
            self.assertEqual([path.name for path in sorted(job.run_dir.glob("checkpoints/*"))],
                             [f"round-{good:010}.json", f"round-{good:010}.safetensors"])
            self.assertEqual(len(job.rounds()), 60)
            filler.unlink()
            go_on(job)
            self.assertEqual(job.finish()["rounds"], 60)

    def test_at_a_record(self):
        with Job(2, {"emulate.unit_time": "5ms"}, job__rounds=2000, checkpoint__every_rounds=10, checkpoint__keep=1) as job:
            job.run_dir = pathlib.Path(self.mount) / "run"
            job.start()
            wait_for("a checkpoint", lambda: list(job.run_dir.glob("checkpoints/*.json")))
            filler = self.fill(16 << 10)
            self.assertEqual(job.wait(), 1)
            summary = job.summary()
            self.assertEqual(summary["status"], "failed")
            self.assertIn("rounds.jsonl", summary["reason"])
            self.assertIn("No space left", summary["reason"])
            check_summary_is_of_the_records(self, job)
            good = json.loads(checkpoint_of(job).read_text())["next_round"]
            self.assertEqual(summary["checkpoint_round"], good - 1)
            # The records have whole lines only, and those of the checkpoint.
            self.assertEqual([line["round"] for line in job.rounds()], list(range(len(job.rounds()))))
            self.assertGreaterEqual(len(job.rounds()), good)
            filler.unlink()
            go_on(job, f"--job.rounds={good + 5}")
            self.assertEqual(job.finish()["rounds"], good + 5)

    def test_before_the_start(self):
        with Job(1) as job:
            job.run_dir = pathlib.Path(self.mount) / "run"
            self.fill(0)
            done = coordinator(job, "--config", job.config)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertEqual(len(done.stderr.strip().split("\n")), 1, done.stderr)
            self.assertIn("No space left", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
