"""tools/ctl: what it asks, what it shows, how it fails."""

import hashlib
import hmac
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

from coordinator_stub import STATUS, CoordinatorStub

CTL = None  # the path under test, from the command line


def run(*arguments):
    return subprocess.run([CTL, *arguments], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)


class Ctl(unittest.TestCase):
    def setUp(self):
        self.coordinator = CoordinatorStub()
        self.addCleanup(self.coordinator.close)

    def ask(self, *arguments):
        return run("--http", self.coordinator.address, *arguments)

    def test_status_names_the_slow_one(self):
        done = self.ask("status")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        lines = done.stdout.split("\n")
        self.assertEqual(lines[0], "training: epoch 1, round 12, 3.5 s")
        self.assertIn("loss 0.2500, 1234 samples/s (times are emulated)", lines)
        self.assertIn("policy full+none: all 2 workers with units finished", lines)
        self.assertIn("slow-down: worker=1,factor=4", lines)
        self.assertRegex(done.stdout, r"\n1 +live +1/4 +80 ms .*slow, 4.0x, waits for samples, 96 %, leaving\n")
        self.assertEqual(lines[-2], "never there: workers 3, 4")
        self.assertRegex(done.stdout, r"\n0 +live +1/4 +20 ms .* 17\n")

    def test_status_as_json(self):
        self.assertEqual(json.loads(self.ask("status", "--json").stdout), STATUS)
        self.assertEqual(json.loads(run("--json", "status", "--http", self.coordinator.address).stdout), STATUS)

    def test_changes_go_out(self):
        for arguments, request in ((["policy", "backup+none"], ("/policy", "backup+none")),
                                   (["slowdown", "worker=2,factor=4", "none"], ("/slowdown", "worker=2,factor=4\nnone")),
                                   (["drain", "3"], ("/drain", "3"))):
            done = self.ask(*arguments)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "done\n", ""))
            self.assertEqual(self.coordinator.requests[-1][:2], request)
            self.assertNotIn("Origin", self.coordinator.requests[-1][2])
        self.assertEqual(json.loads(self.ask("--json", "drain", "3").stdout), {"ok": True, "message": "done"})

    def test_a_trace_is_sent_as_points(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("# recorded\n0 1\n2.5 4  # slow\n")
            file.flush()
            self.ask("slowdown", f"pattern=trace,file={file.name},loop=1")
        self.assertEqual(self.coordinator.requests[-1][1], "pattern=trace,points=0:1;2.5:4,loop=1")
        done = self.ask("slowdown", "pattern=trace,file=/nowhere")
        self.assertEqual((done.returncode, done.stderr), (2, "ctl: slowdown file = /nowhere: No such file or directory\n"))

    def test_a_secret_that_cannot_be_used_is_one_line_and_status_2(self):
        with tempfile.TemporaryDirectory() as folder:
            short = pathlib.Path(folder, "short")
            short.write_bytes(b"short")
            for path, what in ((f"{folder}/none", "No such file or directory"), (folder, "Is a directory"),
                               (short, "has 5 bytes, 16 to 65536 are expected")):
                done = self.ask("drain", "1", "--secret-file", str(path))
                self.assertEqual((done.returncode, done.stderr), (2, f"ctl: secret file {path}: {what}\n"))
            self.assertEqual(self.ask("status", "--secret-file", f"{folder}/none").returncode, 0, "which needs no secret")
        self.assertEqual(self.coordinator.requests, [])

    def test_what_is_no_regular_file_is_neither_waited_for_nor_read_without_end(self):
        with tempfile.TemporaryDirectory() as folder:
            fifo = pathlib.Path(folder, "fifo")
            os.mkfifo(fifo)
            for path, what in ((fifo, "is not a regular file"), ("/dev/zero", "is not a regular file")):
                done = self.ask("drain", "1", "--secret-file", str(path))
                self.assertEqual((done.returncode, done.stderr), (2, f"ctl: secret file {path}: {what}\n"))
                done = self.ask("slowdown", f"pattern=trace,file={path}")
                self.assertEqual((done.returncode, done.stderr), (2, f"ctl: slowdown file = {path}: {what}\n"))
            long = pathlib.Path(folder, "long")
            long.write_bytes(b"s" * 65537)
            done = self.ask("drain", "1", "--secret-file", str(long))
            self.assertEqual((done.returncode, done.stderr), (2, f"ctl: secret file {long}: has more than 65536 bytes\n"))
            fifo.rename(pathlib.Path(folder, "http.address"))
            done = run("--run-dir", folder, "status")
            self.assertEqual((done.returncode, done.stderr), (2, f"ctl: --run-dir {folder}: http.address: is not a regular file\n"))
        self.assertEqual(self.coordinator.requests, [])

    def test_a_run_directory_whose_files_are_damaged_is_one_line_and_status_2(self):
        with tempfile.TemporaryDirectory() as folder:
            address = pathlib.Path(folder, "http.address")
            for text, why in (("", "has no line"), ("\n", "has no line"), ("nonsense\n", "nonsense: expected HOST:PORT, IPv6 as [::1]:8080"),
                              ("127.0.0.1:99999\n", "127.0.0.1:99999: expected HOST:PORT, IPv6 as [::1]:8080")):
                address.write_text(text)
                for tool, *words in ((CTL, "status"), (pathlib.Path(CTL).with_name("slowdown"), "--slowdown", "worker=1,factor=2")):
                    done = subprocess.run([tool, "--run-dir", folder, *words], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
                    self.assertEqual((done.returncode, done.stderr), (2, f"{pathlib.Path(tool).name}: --run-dir {folder}: http.address: {why}\n"))
            address.write_bytes(b"\xff\0\n")
            self.assertRegex(run("--run-dir", folder, "status").stderr, r"\Actl: --run-dir [^\n]*: http.address: [^\n]*\n\Z")
            address.write_text(self.coordinator.address + "\n")
            for name in ("job.id", "secret.path"):
                damaged = pathlib.Path(folder, name)
                damaged.write_text("")
                done = run("--run-dir", folder, "drain", "1")
                self.assertEqual((done.returncode, done.stderr), (2, f"ctl: --run-dir {folder}: {name}: has no line\n"))
                damaged.unlink()
            pathlib.Path(folder, "secret.path").write_bytes(b"a\0b\n")
            self.assertEqual(run("--run-dir", folder, "drain", "1").returncode, 2)

    def test_an_answer_that_the_locale_does_not_have_is_printed_all_the_same(self):
        self.coordinator.answer["message"] = "gr\u00fcn"
        done = subprocess.run([CTL, "--http", self.coordinator.address, "drain", "1"], capture_output=True, text=True, timeout=60,
                              stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONIOENCODING": "ascii"})
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "gr?n\n", ""))

    def test_a_job_that_has_ended_is_told_by_its_run_directory(self):
        silent = CoordinatorStub()
        silent.close()
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "secret.path").write_text(f"{folder}/secret\n")
            pathlib.Path(folder, "http.address").write_text(silent.address + "\n")
            for command, why in (("status", f"nothing answers at {silent.address}"), ("drain", "its secret is not here")):
                done = run("--run-dir", folder, command, *["1"] * (command == "drain"))
                self.assertEqual((done.returncode, done.stderr), (1, f"ctl: the job in {folder} has ended, or runs on another host: {why}\n"))
            pathlib.Path(folder, "http.address").write_text(self.coordinator.address + "\n")
            self.assertEqual(run("--run-dir", folder, "status").returncode, 0)

    def test_another_job_at_the_address_of_one_that_was_killed_is_left_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            run_dir = pathlib.Path(folder)
            (run_dir / "http.address").write_text(self.coordinator.address + "\n")
            tools = [(CTL, "status"), (CTL, "policy", "full"), (pathlib.Path(CTL).with_name("slowdown"), "--slowdown", "worker=1,factor=2")]
            for job_id, status in (("fedcba9876543210", 2), (STATUS["job_id"], 0)):
                (run_dir / "job.id").write_text(job_id + "\n")
                for tool, *words in tools:
                    done = subprocess.run([tool, "--run-dir", folder, *words], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
                    self.assertEqual(done.returncode, status, done.stderr)
                    said = f"{pathlib.Path(tool).name}: --run-dir {folder}: its job does not run any more: another job is at {self.coordinator.address}\n"
                    self.assertEqual(done.stderr, said if status else "")
                self.assertEqual(len(self.coordinator.requests), 0 if status else 2)

    def test_a_job_that_has_ended_leaves_no_address(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "summary.json").write_text("{}")
            for tool, *words in ((CTL, "status"), (pathlib.Path(CTL).with_name("slowdown"), "--slowdown", "worker=1,factor=2")):
                done = subprocess.run([tool, "--run-dir", folder, *words], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
                self.assertEqual((done.returncode, done.stderr), (1, f"{pathlib.Path(tool).name}: the job in {folder} has ended\n"))

    def test_what_answers_no_http_is_one_line(self):
        for words, says in ((b"LKSP\n\x01\x02\n\n", "answers no HTTP: is this the address of --http, not of --listen?"),
                            (b"", "has closed the connection without an answer: has the job ended, or is this the address of --listen, "
                                  "not of --http?")):
            with socket.create_server(("127.0.0.1", 0)) as server:
                def answer():
                    with server.accept()[0] as connection:
                        connection.recv(65536)
                        connection.sendall(words)
                thread = threading.Thread(target=answer)
                thread.start()
                address = f"127.0.0.1:{server.getsockname()[1]}"
                done = run("--http", address, "status")
                thread.join()
            self.assertEqual((done.returncode, done.stderr), (1, f"ctl: {address} {says}\n"))

    def test_changes_are_proven(self):
        secret = b"sixteen bytes and more\n"
        self.coordinator.nonce = "ab" * 32
        with tempfile.NamedTemporaryFile() as file:
            file.write(secret)
            file.flush()
            self.assertEqual(self.ask("policy", "full", "--secret-file", file.name).returncode, 0)
            # The derivation of Secret::Derive("http"), written anew.
            key = secret
            for purpose in (b"root", b"http"):
                extracted = hmac.new(b"lockstep job secret v1", key, hashlib.sha256).digest()
                key = hmac.new(extracted, purpose + b"\1", hashlib.sha256).digest()
            text = b"lockstep-http v2\n0123456789abcdef\n" + self.coordinator.nonce.encode() + b"\nPOST\n/policy\nfull"
            headers = self.coordinator.requests[-1][2]
            self.assertEqual(headers["Lockstep-Nonce"], self.coordinator.nonce)
            self.assertEqual(headers["Lockstep-Proof"], hmac.new(key, text, hashlib.sha256).hexdigest())
            self.coordinator.nonce = None  # a job without a secret
            self.assertEqual(self.ask("policy", "full", "--secret-file", file.name).returncode, 0)

    def test_nothing_is_signed_but_a_nonce_for_the_job_that_is_meant(self):
        with tempfile.TemporaryDirectory() as folder:
            run_dir, secret = pathlib.Path(folder, "run"), pathlib.Path(folder, "secret")
            run_dir.mkdir()
            secret.write_bytes(b"sixteen bytes and more\n")
            for nonce, job_id in (("ab" * 32 + "\nPOST\n/drain\n0", "0123456789abcdef"), ("AB" * 32, "0123456789abcdef"),
                                  ("ab" * 31, "0123456789abcdef"), ("ab" * 32, "x\ny"), ("ab" * 32, None), (7, "0123456789abcdef")):
                self.coordinator.nonce, self.coordinator.job_id = nonce, job_id
                done = self.ask("policy", "full", "--secret-file", str(secret))
                self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
                self.assertIn("offers no nonce of this version", done.stderr)
            # A nonce of another job, by who answers in the place of this one.
            self.coordinator.nonce, self.coordinator.job_id = "ab" * 32, "fedcba9876543210"
            for name, text in (("http.address", self.coordinator.address), ("secret.path", secret), ("job.id", "0123456789abcdef")):
                (run_dir / name).write_text(f"{text}\n")
            done = run("policy", "full", "--run-dir", str(run_dir))
            self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
            self.assertIn("another job is at", done.stderr)
            self.assertEqual(self.coordinator.requests, [])

    def test_a_run_directory_says_where_and_by_what(self):
        self.coordinator.nonce = "ab" * 32
        with tempfile.TemporaryDirectory() as folder:
            run_dir, secret = pathlib.Path(folder, "run"), pathlib.Path(folder, "secret")
            run_dir.mkdir()
            secret.write_bytes(b"sixteen bytes and more\n")
            done = run("--run-dir", str(run_dir), "status")
            self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
            self.assertIn("there is no http.address", done.stderr)
            (run_dir / "http.address").write_text(self.coordinator.address + "\n")
            self.assertEqual(run("--run-dir", str(run_dir), "status").returncode, 0)
            self.assertEqual(run("policy", "full", "--run-dir", str(run_dir)).returncode, 0)
            self.assertNotIn("Lockstep-Proof", self.coordinator.requests[-1][2])
            (run_dir / "secret.path").write_text(f"{secret}\n")
            self.assertEqual(run("policy", "full", "--run-dir", str(run_dir)).returncode, 0)
            proof = self.coordinator.requests[-1][2]["Lockstep-Proof"]
            self.assertEqual(self.ask("policy", "full", "--secret-file", str(secret)).returncode, 0)
            self.assertEqual(self.coordinator.requests[-1][2]["Lockstep-Proof"], proof)
            environment = {**os.environ, "LOCKSTEP_SECRET_FILE": str(secret)}
            self.assertEqual(subprocess.run([CTL, "--http", self.coordinator.address, "policy", "full"], env=environment,
                                            capture_output=True, timeout=60, check=False).returncode, 0)
            self.assertEqual(self.coordinator.requests[-1][2]["Lockstep-Proof"], proof)
            for both, words in ((["--run-dir", str(run_dir), "--http", self.coordinator.address], "one of them, not both"),
                                ([], "is required")):
                done = run(*both, "status")
                self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
                self.assertIn(words, done.stderr)

    def test_the_coordinator_is_asked_by_its_address(self):
        port = self.coordinator.address.rpartition(":")[2]
        self.assertEqual(run("--http", f"localhost:{port}", "policy", "full").returncode, 0)
        self.assertEqual(self.coordinator.requests[-1][2]["Host"], f"127.0.0.1:{port}")

    def test_refusals_are_one_line_and_status_1(self):
        self.coordinator.status, self.coordinator.answer = 400, {"error": "there is no rule 'x'"}
        done = self.ask("policy", "x")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (1, "", "ctl: there is no rule 'x'\n"))
        self.coordinator.page = {"something": "else"}
        done = self.ask("status")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertEqual(done.stderr.count("\n"), 1)

    def test_the_tools_know_the_version(self):
        tools = pathlib.Path(CTL).parent
        version = re.search(r"^project\(lockstep VERSION (\S+)", (tools.parent / "CMakeLists.txt").read_text(), re.MULTILINE)[1]
        for tool in ("ctl", "launch", "compare", "slowdown", "check-run"):
            done = subprocess.run([tools / tool, "--version"], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, f"{tool} {version}\n", ""))

    def test_nobody_there(self):
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))  # taken, and nobody listens
            address = f"127.0.0.1:{closed.getsockname()[1]}"
            done = run("--http", address, "status")
        self.assertEqual((done.returncode, done.stderr), (1, f"ctl: {address}: Connection refused\n"))

    def test_wrong_usage_is_one_line_and_status_2(self):
        for arguments in ([], ["status"], ["--http", "nowhere", "status"], ["--http", "a:1"], ["--http", "a:1", "drain", "x"],
                          ["--http", "a:1", "drain", "-1"], ["--http", "a:1", "policy"], ["--http", "a:1", "fly"],
                          ["--http", "a..b:80", "status"]):
            done = run(*arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)


if __name__ == "__main__":
    CTL = sys.argv.pop(1)
    unittest.main(verbosity=2)
