"""Who is no member: connections that say nothing, too much or the wrong thing, workers that are refused, children that outlive one."""

import contextlib
import http.client
import http.server
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import threading
import unittest

import harness
from harness import BIN, ClusterTest, Job, TOOLS, wait_for

LONG = {"job.rounds": 100000, "emulate.unit_time": "2ms"}


@contextlib.contextmanager
def secret_file(text="a secret of the test, long enough"):
    with tempfile.NamedTemporaryFile("w", suffix=".secret") as file:
        file.write(text)
        file.flush()
        yield file.name


def connect(address):
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=30)


def last_line(job, name):
    return job.log(name).strip().split("\n")[-1]


def http_of(job):
    path = job.run_dir / "http.address"
    return wait_for("the address of the status page", lambda: path.exists() and path.read_text().strip())


class Places(ClusterTest):
    def test_idle_connections_keep_no_worker_out(self):
        """More than there are places, and each that is sent away comes back at once, as an attacker's would."""
        with secret_file() as secret, contextlib.ExitStack() as stack, Job(2, LONG) as job:
            job.start_coordinator("--secret-file", secret)
            job.start_worker(0, "--secret-file", secret)
            stop = threading.Event()

            def flood(text):
                held = []
                while not stop.is_set():
                    try:
                        held.append(connect(job.address))
                        held[-1].sendall(text)
                    except OSError:
                        pass
                    if len(held) > 300:
                        held.pop(0).close()
                for one in held:
                    one.close()

            threads = [threading.Thread(target=flood, args=(text,)) for text in (b"", b"\x16")]
            stack.callback(lambda: [thread.join() for thread in threads])
            stack.callback(stop.set)
            for thread in threads:
                thread.start()
            wait_for("the flood", lambda: "came to nothing" in job.log("coordinator"))
            job.start_worker(1, "--secret-file", secret)
            job.wait_for_rounds(3)
            # A replacement gets in as well.
            job.processes["worker1"].kill()
            wait_for("the loss", lambda: "worker 1 is out" in job.log("coordinator"))
            job.start_worker(1, "--secret-file", secret, name="again")
            before = len(job.rounds())
            job.wait_for_rounds(before + 3)
            stop.set()
            for thread in threads:
                thread.join()
            # Thousands were sent away, and the log can be read.
            lines = [line for line in job.log("coordinator").split("\n") if "came to nothing" in line and "more" not in line]
            self.assertLess(len(lines), 200)
            wait_for("the count of the others", lambda: re.search(r"\d+ more connections came to nothing", job.log("coordinator")))

    def test_strangers_leave_the_job_its_open_files(self):
        """Under a low limit: the job's own files, those of checkpoints among them, are kept out of their reach."""
        few = ["sh", "-c", 'ulimit -n 70; exec "$@"', "sh"]
        with contextlib.ExitStack() as stack, Job(2, job__rounds=60, emulate__unit_time="4ms", checkpoint__every_rounds=5,
                                                      evaluation__every_epochs=1, prefix=few) as job:
            job.start_coordinator("--http", "127.0.0.1:0")
            for address in (job.address, http_of(job)):
                for _ in range(100):
                    stack.callback(connect(address).close)
            job.start_worker(0)
            job.start_worker(1, prefix=few)
            port = wait_for("the data port", lambda: re.search(r"open to others: tcp ([0-9.:]+),", job.log("worker1"))).group(1)
            for _ in range(100):
                stack.callback(connect(port).close)
            wait_for("what is sent away", lambda: "too many connections without a greeting" in job.log("worker1"))
            self.assertLess(len(os.listdir(f"/proc/{job.processes['worker1'].pid}/fd")), 60)
            summary = job.finish()
            self.assertEqual(summary["checkpoint_round"], 59)
            self.assertNotIn("Too many open files", job.log("worker1"))
            self.assertEqual(len(job.rounds()), 60)
            self.assertNotIn("Too many open files", job.log("coordinator"))

    def test_what_is_not_told_is_counted_while_a_job_is_awaited(self):
        """Nobody shows a progress then, and strangers must not have the log fall silent."""
        with Job(1, coordinator_args=["--config-from-workers"]) as job:
            job.start_coordinator()

            def another():
                with connect(job.address) as one:
                    one.sendall(b"GET / HTTP/1.1\r\n\r\n")
                    one.recv(1)
                return re.search(r"\d+ more connections came to nothing\n.* connection from", job.log("coordinator"))
            wait_for("a second window of the log", another)

    def test_a_worker_counts_what_it_does_not_tell(self):
        with Job(1, LONG) as job:
            job.start_coordinator()
            job.start_worker(0)
            address = wait_for("the data port", lambda: re.search(r"open to others: tcp ([0-9.:]+),", job.log("worker0"))).group(1)
            connections = [0]

            def another():
                with connect(address) as one:
                    one.sendall(b"GET / HTTP/1.1\r\n\r\n")
                    one.recv(1)
                connections[0] += 1
                return re.search(rf"tcp: (\d+) more connections to {address} came to nothing", job.log("worker0"))
            left_out = int(wait_for("the count", another).group(1))
            self.assertLessEqual(left_out, connections[0] - 20)

    def test_slow_requests_do_not_keep_ctl_out(self):
        with Job(1, LONG) as job, contextlib.ExitStack() as stack:
            job.start_coordinator("--http", "127.0.0.1:0")
            job.start_worker(0)
            http_address = http_of(job)
            for _ in range(100):
                dripping = stack.enter_context(connect(http_address))
                dripping.sendall(b"GET /status HTTP/1.1\r\nHost: x")
            done = subprocess.run([TOOLS / "ctl", "--run-dir", job.run_dir, "policy", "full"], capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual((done.returncode, done.stderr), (0, ""))


class Http(ClusterTest):
    def test_a_job_may_end_while_it_is_asked(self):
        for _ in range(5):
            with Job(1, job__rounds=30) as job:
                job.start_coordinator("--http", "127.0.0.1:0")
                http_address = http_of(job)
                stop = threading.Event()

                def poll():
                    while not stop.is_set():
                        try:
                            with connect(http_address) as one:
                                one.sendall(b"GET /status HTTP/1.1\r\n\r\n")
                                one.recv(1)
                        except OSError:
                            pass

                threads = [threading.Thread(target=poll) for _ in range(4)]
                for thread in threads:
                    thread.start()
                try:
                    job.start_worker(0)
                    self.assertEqual(job.finish()["status"], "completed")
                finally:
                    stop.set()
                    for thread in threads:
                        thread.join()

    def test_with_a_secret_changes_are_proven_on_loopback_too(self):
        with secret_file() as secret, Job(1, LONG) as job:
            job.start_coordinator("--secret-file", secret, "--http", "127.0.0.1:0")
            job.start_worker(0, "--secret-file", secret)
            job.wait_for_rounds(1)
            http_address = http_of(job)

            def ctl(*arguments):
                done = subprocess.run([TOOLS / "ctl", *arguments], capture_output=True, text=True, timeout=60, check=False)
                return done.returncode, done.stderr

            status, error = ctl("--http", http_address, "slowdown", "factor=1.5")
            self.assertEqual(status, 1)
            self.assertIn("need a proof of the job's secret", error)
            self.assertEqual(ctl("--http", http_address, "status"), (0, ""))
            self.assertEqual(ctl("--http", http_address, "--secret-file", secret, "slowdown", "factor=1.5"), (0, ""))
            self.assertEqual(ctl("--run-dir", job.run_dir, "policy", "full"), (0, ""))
            self.assertNotIn("no --secret-file", job.log("coordinator"))
            connection = http.client.HTTPConnection(http_address)
            connection.request("GET", "/status", headers={"Host": "rebound.example"})
            self.assertEqual(connection.getresponse().status, 421)

    def test_without_a_secret_it_is_said_what_that_means(self):
        with Job(1) as job:
            job.start().finish()
            self.assertIn("no --secret-file: every user of this machine can join the job", job.log("coordinator"))

    def test_launch_makes_a_secret_that_the_tools_find(self):
        with tempfile.TemporaryDirectory(prefix="lockstep-test-") as folder:
            config, run_dir = pathlib.Path(folder, "job.ini"), pathlib.Path(folder, "run")
            config.write_text(harness.ini_text({**harness.SYNTHETIC, **LONG}))
            launched = subprocess.Popen([TOOLS / "launch", "-n", "2", "--config", config, "--run-dir", run_dir, "--build-dir", BIN,
                                         "--http", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            try:
                wait_for("rounds", lambda: (run_dir / "rounds.jsonl").exists() and (run_dir / "rounds.jsonl").stat().st_size)
                secret = pathlib.Path((run_dir / "secret.path").read_text().strip())
                self.assertEqual((secret.stat().st_mode & 0o777, secret.parent.stat().st_mode & 0o777), (0o600, 0o700))
                done = subprocess.run([TOOLS / "ctl", "--run-dir", run_dir, "policy", "backup"], capture_output=True, text=True, timeout=60, check=False)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                done = subprocess.run([TOOLS / "slowdown", "--run-dir", run_dir, "--slowdown", "worker=1,factor=2"], capture_output=True, text=True,
                                      timeout=60, check=False)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                # Who does not know the secret is no member.
                address = (run_dir / "coordinator.address").read_text().strip()
                done = subprocess.run([BIN / "lockstep-worker", "--coordinator", address], capture_output=True, text=True, timeout=60, check=False)
                self.assertEqual(done.returncode, 2)
                self.assertIn("the coordinator has a --secret-file", done.stderr)
            finally:
                launched.send_signal(signal.SIGTERM)
                output = launched.communicate(timeout=60 * harness.PATIENCE)[0]
            self.assertFalse(secret.parent.exists())
            self.assertNotIn("no --secret-file", output)


class Refusals(ClusterTest):
    def refused(self, job, name, *words, status=2):
        self.assertEqual(job.wait(name), status, job.log(name))
        for word in words:
            self.assertIn(word, last_line(job, name))

    def test_each_refusal_arrives_with_its_reason(self):
        with secret_file() as secret, secret_file("another one, also long enough") as other, Job(1, LONG) as job:
            job.start_coordinator("--secret-file", secret)
            for turn in range(5):
                job.start_worker(0, "--secret-file", other, name=f"wrong{turn}")
                job.start_worker(0, name=f"none{turn}")
            for turn in range(5):
                self.refused(job, f"wrong{turn}", "wrong secret")
                self.refused(job, f"none{turn}", "the coordinator has a --secret-file")
        with secret_file() as secret, Job(1, LONG) as job:
            job.start()
            job.wait_for_rounds(1)
            for turn in range(5):
                job.start_worker(0, "--secret-file", secret, name=f"secret{turn}")
                job.start_worker(0, name=f"full{turn}")
            for turn in range(5):
                self.refused(job, f"secret{turn}", "the other end has no secret")
                self.refused(job, f"full{turn}", "all 1 workers of the job are there", status=3)

    def test_who_differs_from_the_majority_is_refused(self):
        """The first one that is ready has other data than all others: it is the one that goes, however early it came."""
        idx = {"data.format": "idx", "model.name": "softmax"}
        with Job(3, idx, job__join_timeout="60s") as job:
            data = {}
            for kind, size in (("right", 64), ("wrong", 32)):
                data[kind] = job.folder / kind
                data[kind].mkdir()
                for name in ("train", "t10k"):
                    images = size.to_bytes(4, "big") + (2).to_bytes(4, "big") * 2
                    (data[kind] / f"{name}-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03" + images + bytes(range(256))[:4] * size)
                    (data[kind] / f"{name}-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + size.to_bytes(4, "big") + bytes([0, 1] * (size // 2)))
            job.start_coordinator("--data.path", data["right"], "--job.global_batch=16", "--job.rounds=5")
            job.start_worker(0, "--data.path", data["wrong"])
            wait_for("the first", lambda: "worker 0 (incarnation 1) joins" in job.log("coordinator"))
            job.start_worker(1)
            job.start_worker(2)
            self.refused(job, "worker0", "refuses this worker", "those of 2 of 3 workers have")
            job.start_worker(0, name="again")
            job.finish()

    def test_a_web_server_is_no_coordinator(self):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            address = "127.0.0.1:%d" % server.server_address[1]
            done = subprocess.run([BIN / "lockstep-worker", "--coordinator", address, "--connect-timeout", "20s"], capture_output=True,
                                  text=True, timeout=60, check=False)
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1)
        self.assertIn(f"the coordinator at {address}: ", done.stderr)
        self.assertIn(", as a web server's", done.stderr)

    def test_a_worker_says_why_it_leaves(self):
        with Job(1, {**LONG, "data.format": "idx", "data.path": "/nowhere"}) as job:
            job.start()
            self.assertEqual(job.wait("worker0"), 2)
            wait_for("the reason", lambda: re.search(r"worker 0 is out: it leaves: .*/nowhere", job.log("coordinator")))


class Forks(ClusterTest):
    def test_a_child_does_not_hide_the_death_of_its_parent(self):
        """Noticed by the end of the connection: the time-out is far beyond what is waited for here."""
        for transport in ("tcp", "ucx"):
            for kind in ("fork", "spawn"):
                with self.subTest(kind, transport=transport), Job(2, {**LONG, "liveness.timeout": "300s", "exchange.transport": transport}) as job:
                    job.start_coordinator()
                    for index in range(2):
                        job._start(f"worker{index}", [BIN / "lockstep-forking-worker", job.address, kind])
                    children = []
                    try:
                        for index in range(2):
                            found = wait_for("the child", lambda name=f"worker{index}": re.search(r"child (\d+)", job.log(name)))
                            children.append(int(found[1]))
                        job.processes["worker1"].kill()
                        wait_for("the death", lambda: re.search(r"worker [01] is out", job.log("coordinator")), seconds=20)
                        os.kill(children[1], 0)
                        self.assertNotEqual(pathlib.Path(f"/proc/{children[1]}/stat").read_text().rsplit(")", 1)[1].split()[0], "Z")
                    finally:
                        for child in children:
                            with contextlib.suppress(ProcessLookupError):
                                os.kill(child, signal.SIGKILL)

    def test_a_child_that_returns_from_main_leaves_the_session_alone(self):
        """It has a copy of the session, but none of its threads; the job goes on, and nobody has left it."""
        with Job(2, {"job.rounds": 20, "exchange.transport": "tcp"}) as job:
            job.start_coordinator()
            for index in range(2):
                job._start(f"worker{index}", [BIN / "lockstep-forking-worker", job.address, "return"])
            for index in range(2):
                wait_for("the child's end", lambda name=f"worker{index}": "the child ended with 7" in job.log(name))
            job.wait("coordinator")
            for index in range(2):
                self.assertEqual(job.wait(f"worker{index}"), 0)
            self.assertNotIn("is out", job.log("coordinator"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
