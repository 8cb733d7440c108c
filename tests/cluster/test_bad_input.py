"""Mistakes of a user: one clear line, status 2, nothing left behind."""

import gzip
import os
import pathlib
import resource
import shutil
import socket
import subprocess
import unittest

from harness import BIN, ClusterTest, Job, PATIENCE, ini_text, SYNTHETIC, wait_for


class BadInput(ClusterTest):
    def coordinator(self, job, *arguments, **how):
        return subprocess.run([BIN / "lockstep-coordinator", *map(str, arguments)], capture_output=True, text=True,
                              timeout=30 * PATIENCE, cwd=job.folder, check=False, **how)

    def assert_one_line(self, done, *words):
        self.assertEqual(done.returncode, 2, done.stderr)
        lines = done.stderr.strip().split("\n")
        self.assertEqual(len(lines), 1, done.stderr)
        for word in words:
            self.assertIn(word, lines[0])

    def test_config_mistakes(self):
        with Job(2) as job:
            for text, words in [
                ("[polcy]\nname = full\n", ["job.ini:2", "polcy", "policy"]),
                ("[policy]\nnmae = full\n", ["job.ini:2", "nmae", "name"]),
                ("[job]\nglobal_batch = many\n", ["job.ini:2", "global_batch", "many"]),
                ("[job]\nglobal_batch = 0\n", ["job.ini:2", "global_batch"]),
                ("[policy]\nname = fastest\n", ["fastest"]),
                ("[policy]\nname = backup\n[backup]\nworkers = 2\n", ["backup.workers"]),
                ("[exchange]\ntransport = ucx\nencryption = on\n", ["exchange.encryption", "UCX does not encrypt"]),
                ("[exchange]\nrounding = stochastic\n", ["exchange.rounding = stochastic", "exchange.dtype = fp32", "take bf16 or fp16"]),
                ("[exchange]\ntransport = ucx\nconnections = 4\n", ["exchange.connections = 4", "UCX chooses its connections itself"]),
                ("[exchange]\nconnections = 17\n", ["job.ini:2", "exchange.connections", "1 to 16"]),
                ("[exchange]\nconnections = 12\n", ["exchange.connections = 12 is more than exchange.window = 8"]),
                ("[exchange]\ndtype = int8\n", ["job.ini:2", "exchange.dtype", "int8", "fp32, bf16, fp16"]),
                ("[exchange]\ncompression = lowrank\n", ["job.ini:2", "exchange.compression", "lowrank", "none, topk, powersgd"]),
                ("[exchange]\npowersgd_rank = 65\n", ["job.ini:2", "exchange.powersgd_rank", "1 to 64"]),
                ("[exchange]\ntopk_fraction = 0.6\n", ["job.ini:2", "exchange.topk_fraction", "0.0001 to 0.5"]),
                ("[exchange]\ncompression = topk\n[policy]\nname = async\n", ["exchange.compression = topk", "policy.name = async"]),
                ("what is this\n", ["job.ini:1"]),
            ]:
                with self.subTest(text=text):
                    job.config.write_text(text)
                    done = self.coordinator(job, "--listen", "127.0.0.1:0", "--workers", 2, "--config", "job.ini", "--run-dir", "run")
                    self.assert_one_line(done, *words)
                    self.assertFalse(job.run_dir.exists(), "something is left behind")

    def test_command_line_mistakes(self):
        with Job(2) as job:
            base = ["--listen", "127.0.0.1:0", "--workers", 2, "--config", job.config, "--run-dir", "run"]
            self.assert_one_line(self.coordinator(job, *base, "--polcy.name=full"), "polcy.name", "policy.name")
            self.assert_one_line(self.coordinator(job, "--workers", 2, "--config", "none.ini", "--run-dir", "run"), "none.ini")
            self.assert_one_line(self.coordinator(job, *base, "--listen", "0.0.0.0:0"), "listen")
            # The workers say what the job is, but not what its policy is called.
            self.assert_one_line(self.coordinator(job, "--listen", "127.0.0.1:0", "--workers", 2, "--config-from-workers", "--policy.name=bakup",
                                                  "--run-dir", "run"), "policy.name = bakup", "'backup'")
            self.assertFalse(job.run_dir.exists())

    def test_a_run_directory_that_cannot_be_made(self):
        with Job(2) as job:
            place = job.folder / "a-file" / "run"
            place.parent.write_text("no folder")
            where = ["--workers", 2, "--config", job.config, "--run-dir", place]
            self.assert_one_line(self.coordinator(job, "--listen", "127.0.0.1:0", *where), "a-file/run", "run directory")
            done = subprocess.run([BIN / "lockstep-simulate", *map(str, where)], capture_output=True, text=True,
                                  timeout=30 * PATIENCE, cwd=job.folder, check=False)
            self.assert_one_line(done, "a-file/run", "run directory")

    def test_no_secret_beyond_loopback(self):
        with Job(2) as job:
            done = self.coordinator(job, "--listen", "0.0.0.0:0", "--workers", 2, "--config", job.config, "--run-dir", "run")
            self.assert_one_line(done, "secret")
            self.assertFalse(job.run_dir.exists())

    def test_too_few_open_files(self):
        with Job(2) as job:
            done = self.coordinator(job, "--listen", "127.0.0.1:0", "--workers", 16, "--config", job.config, "--run-dir", "run",
                                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))
            self.assert_one_line(done, "16 workers", "96 open files", "64 are allowed")
            self.assertFalse(job.run_dir.exists())

    def test_port_in_use(self):
        with Job(2) as job, socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = "127.0.0.1:%d" % taken.getsockname()[1]
            done = self.coordinator(job, "--listen", address, "--workers", 2, "--config", job.config, "--run-dir", "run")
            self.assert_one_line(done, address, "use")
            self.assertFalse((job.run_dir / "rounds.jsonl").exists())

    def test_nobody_there(self):
        with Job(1) as job, socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))  # taken, and nobody listens
            address = "127.0.0.1:%d" % closed.getsockname()[1]
            done = subprocess.run([BIN / "lockstep-worker", "--coordinator", address, "--connect-timeout", "1s"],
                                  capture_output=True, text=True, timeout=30 * PATIENCE, check=False)
            self.assert_one_line(done, address)
            # With more patience it says meanwhile what it waits for.
            job.start_worker(0, address=address)
            wait_for("the word", lambda: f"{address} is not reached yet: Connection refused; it is tried for 60 s" in job.log("worker0"))

    def test_worker_options(self):
        for arguments, words in ((["--device", "cuda:99"], ["cuda:99", "there is cpu"]),
                                 (["--require-gpudirect"], ["--require-gpudirect", "--device cpu"]),
                                 (["--data-host", "node3"], ["node3", "IP address"]),
                                 (["--data-host", "10.78.0.3"], ["10.78.0.3", "--secret-file is required"]),
                                 (["--data-host", "0.0.0.0"], ["0.0.0.0", "no address that others could connect to"])):
            done = subprocess.run([BIN / "lockstep-worker", "--coordinator", "127.0.0.1:1", *arguments], capture_output=True, text=True,
                                  timeout=30 * PATIENCE, check=False)
            self.assert_one_line(done, *words)

    def test_wrong_secret(self):
        with Job(1) as job:
            for name, text in (("right", "a" * 32), ("wrong", "b" * 32)):
                (job.folder / name).write_text(text)
                (job.folder / name).chmod(0o600)
            job.coordinator_args += ["--secret-file", job.folder / "right"]
            job.start_coordinator()
            worker = job.start_worker(0, "--secret-file", job.folder / "wrong", "--connect-timeout", "5s")
            self.assertEqual(job.wait("worker0"), 2)
            self.assertIn("secret", job.log("worker0"))
            worker = job.start_worker(0, "--secret-file", job.folder / "right", name="right")
            self.assertEqual(job.finish()["status"], "completed")
            self.assertEqual(worker.wait(30), 0)

    def test_data_files(self):
        source = pathlib.Path("/usr/share/datasets/fashion-mnist")
        if not source.exists():
            self.skipTest("dataset-fashion-mnist is not installed")
        with Job(1, {"data.format": "idx", "data.path": "data", "job.rounds": 1}) as job:
            data = job.folder / "data"
            for case, words in (("missing", ["train-images"]), ("truncated", ["train-images"]), ("foreign", ["train-labels"])):
                with self.subTest(case=case):
                    shutil.rmtree(data, ignore_errors=True)
                    data.mkdir()
                    for file in source.glob("*.gz"):
                        shutil.copy(file, data)
                    images = next(data.glob("train-images*"))
                    labels = next(data.glob("train-labels*"))
                    if case == "missing":
                        images.unlink()
                    elif case == "truncated":
                        images.write_bytes(images.read_bytes()[:100000])
                    else:
                        labels.write_bytes(gzip.compress(b"this is a text"))
                    shutil.rmtree(job.run_dir, ignore_errors=True)
                    job.start_coordinator("--data.path", data)
                    job.start_worker(0)
                    self.assertEqual(job.wait("worker0"), 2)
                    last = job.log("worker0").strip().split("\n")[-1]
                    for word in words:
                        self.assertIn(word, last)
                    job.processes["coordinator"].kill()
                    job.processes["coordinator"].wait()

    def test_files_that_are_none(self):
        with Job(1) as job:
            fifo = job.folder / "fifo"
            os.mkfifo(fifo)
            base = ["--listen", "127.0.0.1:0", "--workers", 1, "--run-dir", "run"]
            for path in (fifo, "/dev/zero", job.folder):
                self.assert_one_line(self.coordinator(job, *base, "--config", path), str(path), "is ")
            self.assert_one_line(self.coordinator(job, *base, "--config", job.config, "--secret-file", fifo), "not a regular file")
            self.assertFalse(job.run_dir.exists())

    def test_more_than_the_machine_has(self):
        for more in ({"data.synthetic_train": 1 << 24, "data.synthetic_features": 1 << 16},
                     {"data.synthetic_features": 1 << 16, "model.widths": ",".join(["65536"] * 32)}):
            with self.subTest(more=more), Job(1, {**more, "job.rounds": 1}) as job:
                job.start_coordinator()
                job.start_worker(0)
                self.assertEqual(job.wait("worker0"), 2)
                self.assertIn("bytes of free memory", job.log("worker0").strip().split("\n")[-1])

    def test_datasets_that_differ(self):
        with Job(2, job__join_timeout="5s") as job:
            job.start_coordinator()
            job.start_worker(0)
            job.start_worker(1, "--data.synthetic_train", "1024")
            # Either this override is refused as such, or the digest is: the worker must not take part.
            self.assertEqual(job.wait("worker1"), 2)
            self.assertNotEqual(job.log("worker1").strip(), "")


if __name__ == "__main__":
    unittest.main(verbosity=2)
