"""lockstep-bench: small measurements with real processes. What is asserted is the form and that rounds happened, never a speed."""

import ctypes
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import harness

sys.path.insert(0, str(harness.TOOLS / "lib"))
import namespaces  # noqa: E402

PR_CAPBSET_DROP = 24
CAP_SYS_RESOURCE = 24

BENCH = harness.BIN / "lockstep-bench"


def children_of(pid):
    """Process ids of the children, as the kernel lists them."""
    return [int(word) for word in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class InAFolder(unittest.TestCase):
    """Each test has a folder, and its programs a TMPDIR in it, where they are to leave nothing."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="lockstep-test-")
        self.addCleanup(self.folder.cleanup)
        self.temp = pathlib.Path(self.folder.name) / "tmp"
        self.temp.mkdir()
        self.environment = {**os.environ, "TMPDIR": str(self.temp)}


class Bench(InAFolder):
    def start(self, *arguments):
        return subprocess.Popen([BENCH, *map(str, arguments)], env=self.environment, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run_bench(self, *arguments, status=0):
        process = self.start(*arguments)
        out, err = process.communicate(timeout=120 * harness.PATIENCE)
        self.assertEqual(process.returncode, status, out + err)
        self.assertEqual(list(self.temp.iterdir()), [], "temporary folders are removed")
        return out, err

    @staticmethod
    def children(process, count):
        children = children_of(process.pid)
        return children if len(children) == count else []

    def interrupt(self, *arguments):
        """Ends it by Ctrl-C when its children run; they must be gone with it."""
        process = self.start(*arguments)
        children = harness.wait_for("its children", lambda: process.poll() is not None or children_of(process.pid))
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60 * harness.PATIENCE)
        self.assertEqual(process.returncode, 130, out + err)
        self.assertEqual(err, "lockstep-bench: interrupted\n")
        self.assertFalse([pid for pid in children if is_alive(pid)])
        self.assertEqual(list(self.temp.iterdir()), [])

    def test_coordinator(self):
        report = self.temp.parent / "report.json"
        out, _ = self.run_bench("coordinator", "--workers", "4,5", "--rounds", 6, "--json", report)
        lines = out.splitlines()
        self.assertEqual(len(lines), 3, out)
        self.assertIn("rounds/s", lines[0])
        rows = json.loads(report.read_text())["rows"]
        self.assertEqual([row["workers"] for row in rows], [4, 5])
        for row in rows:
            self.assertEqual(row["rounds"], 6)
            for key in ("rounds_per_s", "median_us", "p95_us", "cpu_us", "commit_first_median_us", "commit_median_us",
                        "commit_p95_us"):
                self.assertGreater(row[key], 0, key)
            self.assertLessEqual(row["median_us"], row["p95_us"])
            self.assertLessEqual(row["commit_first_median_us"], row["commit_median_us"])

    def test_coordinator_under_another_policy_with_json_alone(self):
        out, _ = self.run_bench("coordinator", "--workers", 6, "--rounds", 4, "--units", 4, "--json", "-",
                                "--set", "policy.name=flexrr")
        self.assertEqual(json.loads(out)["rows"][0]["workers"], 6)

    def test_exchange(self):
        out, _ = self.run_bench("exchange", "-n", 4, "--bytes", "4096,1048576", "--rounds", 5)
        lines = out.splitlines()
        self.assertEqual(len(lines), 4, out)
        for heading in ("busbw GB/s", "deliver us", "update us", "copied", "peak"):
            self.assertIn(heading, lines[1])

    def test_exchange_over_a_transport(self):
        out, _ = self.run_bench("exchange", "-n", 2, "--bytes", 262144, "--rounds", 5, "--transport", "tcp", "--mapping", "off",
                                "--json", "-")
        report = json.loads(out)
        self.assertEqual((report["workers"], report["paths"]), (2, ["tcp"]))
        (row,) = report["rows"]
        self.assertEqual(set(row), {"bytes", "median_us", "p95_us", "algbw_gb_per_s", "busbw_gb_per_s", "phases_us", "copied_per_byte",
                                    "peak_bytes"})
        self.assertEqual(row["bytes"], 262144)
        self.assertGreater(row["median_us"], 0)
        self.assertLessEqual(row["median_us"], row["p95_us"])
        self.assertAlmostEqual(row["algbw_gb_per_s"], 262144 / row["median_us"] / 1e3)
        self.assertAlmostEqual(row["busbw_gb_per_s"], row["algbw_gb_per_s"])  # 2 (n - 1) / n is 1 for two
        self.assertEqual(list(row["phases_us"]), ["deliver", "commit", "reduce", "publish", "take", "update"])
        self.assertGreater(row["phases_us"]["update"], 0)
        # Each fetches half of the other's gradient and half of the sum, or a little more where one of them has stood in for the other.
        self.assertGreater(row["copied_per_byte"], 0.99)
        self.assertLess(row["copied_per_byte"], 1.5)
        self.assertGreater(row["peak_bytes"], 4 * 262144)

    def test_exchange_of_workers_that_sleep(self):
        began = time.monotonic()
        out, _ = self.run_bench("exchange", "-n", 2, "--bytes", 4096, "--rounds", 2, "--idle", "500ms", "--json", "-")
        # With the three that do not count. What is reported is what comes after the sleep.
        self.assertGreater(time.monotonic() - began, 5 * 0.5)
        report = json.loads(out)
        self.assertEqual(report["idle_s"], 0.5)
        self.assertLess(report["rows"][0]["median_us"], 500e3)

    def test_exchange_of_numbers_of_two_bytes(self):
        out, _ = self.run_bench("exchange", "-n", 2, "--bytes", 1 << 20, "--rounds", 5, "--transport", "tcp", "--mapping", "off",
                                "--set", "exchange.dtype=bf16", "--json", "-")
        (row,) = json.loads(out)["rows"]
        self.assertEqual(row["bytes"], 1 << 20)
        # A half, or a little more where one of them has stood in for the other.
        self.assertGreater(row["copied_per_byte"], 0.49)
        self.assertLess(row["copied_per_byte"], 0.75)

    def test_exchange_of_few_numbers_of_many(self):
        out, _ = self.run_bench("exchange", "-n", 2, "--bytes", 1 << 20, "--rounds", 5, "--transport", "tcp", "--mapping", "off",
                                "--set", "exchange.compression=topk", "--set", "exchange.topk_fraction=0.01", "--json", "-")
        (row,) = json.loads(out)["rows"]
        # Of each 4096 bytes of a gradient a contribution has 68, and the sum of two 132. Half of either is fetched.
        self.assertGreater(row["copied_per_byte"], 0.02)
        self.assertLess(row["copied_per_byte"], 0.06)

    def test_exchange_of_factors(self):
        out, _ = self.run_bench("exchange", "-n", 2, "--bytes", 1 << 20, "--rounds", 5, "--transport", "tcp", "--mapping", "off",
                                "--set", "exchange.compression=powersgd", "--set", "exchange.powersgd_rank=8", "--json", "-")
        (row,) = json.loads(out)["rows"]
        # Eight columns of 512 for a matrix of 512 x 512, there and back. Half of either is fetched.
        self.assertGreater(row["copied_per_byte"], 0.01)
        self.assertLess(row["copied_per_byte"], 0.03)

    def test_exchange_copies_nothing_where_memory_is_mapped(self):
        sizes = {}
        for optimizer in ("sgd", "adamw"):
            out, _ = self.run_bench("exchange", "-n", 2, "--bytes", 4 << 20, "--rounds", 3, "--optimizer", optimizer, "--json", "-")
            report = json.loads(out)
            self.assertEqual((report["optimizer"], report["paths"]), (optimizer, ["mapped"]))
            self.assertLess(report["rows"][0]["copied_per_byte"], 0.01)
            sizes[optimizer] = report["rows"][0]["peak_bytes"]
        # Two more tensors, and their copies.
        self.assertGreaterEqual(sizes["adamw"], sizes["sgd"] + 2 * (4 << 20))

    def test_limits(self):
        out, _ = self.run_bench("limits", "-n", 3, "--bytes", "4096,1048576", "--rounds", 4, "--json", "-")
        report = json.loads(out)
        self.assertEqual(report["workers"], 3)
        self.assertEqual([row["bytes"] for row in report["rows"]], [4096, 1048576])
        for row in report["rows"]:
            self.assertEqual(set(row), {"bytes", "sum_us", "sum_step_us", "memcpy_us", "tcp_us"})
            self.assertGreater(row["sum_step_us"], 0)
            self.assertGreater(row["tcp_us"], 0)
        out, _ = self.run_bench("limits", "-n", 2, "--bytes", 65536, "--rounds", 2)
        self.assertIn("sum, step us", out.splitlines()[1])

    def test_exchange_on_a_device_that_is_not_there(self):
        out, err = self.run_bench("exchange", "-n", 2, "--device", "cuda:77", status=2)
        self.assertEqual(out, "")
        self.assertRegex(err, r"^lockstep-bench: --device cuda:77: .* \(there is cpu.*\)\n$")

    def test_a_worker_that_dies_ends_the_measurement(self):
        process = self.start("exchange", "-n", 3, "--bytes", 4096, "--rounds", 1000000)
        children = harness.wait_for("all children", lambda: process.poll() is not None or self.children(process, 4))
        self.assertIsNone(process.poll())
        os.kill(children[-1], signal.SIGKILL)  # the coordinator is the first
        out, err = process.communicate(timeout=60 * harness.PATIENCE)
        self.assertEqual(process.returncode, 1, out + err)
        self.assertRegex(err, r"^lockstep-bench: lockstep-bench was killed by signal 9.*\n$")
        self.assertFalse([pid for pid in children if is_alive(pid)])
        self.assertEqual(list(self.temp.iterdir()), [])

    def test_interrupted(self):
        self.interrupt("coordinator", "--workers", 4, "--rounds", 1000000)
        self.interrupt("exchange", "-n", 2, "--bytes", 4096, "--rounds", 1000000)
        self.interrupt("limits", "-n", 2, "--bytes", 4194304, "--rounds", 1000)

    def test_a_process_that_dies_ends_the_measurement_of_limits(self):
        process = self.start("limits", "-n", 3, "--bytes", 4194304, "--rounds", 1000)
        children = harness.wait_for("all children", lambda: process.poll() is not None or self.children(process, 3))
        self.assertIsNone(process.poll())
        os.kill(children[-1], signal.SIGKILL)  # the others wait for it
        out, err = process.communicate(timeout=60 * harness.PATIENCE)
        self.assertEqual(process.returncode, 1, out + err)
        self.assertEqual(err, "lockstep-bench: a measuring process has failed\n")
        self.assertFalse([pid for pid in children if is_alive(pid)])

    def test_children_go_when_it_is_killed(self):
        process = self.start("exchange", "-n", 3, "--bytes", 4096, "--rounds", 1000000)
        children = harness.wait_for("all children", lambda: process.poll() is not None or self.children(process, 4))
        self.assertIsNone(process.poll())
        process.kill()
        process.communicate()
        harness.wait_for("the end of its children", lambda: not [pid for pid in children if is_alive(pid)])

    def test_mistakes_end_with_status_2(self):
        for arguments in ([], ["nothing"], ["coordinator", "--workers", "x"], ["coordinator", "--bytes", "4"],
                          ["coordinator", "--set", "policy.name=nobody", "--workers", "2"],
                          ["coordinator", "--workers", "2", "--rounds", "2", "--json", "/nowhere/at/all"],
                          ["exchange", "--bytes", "3"], ["exchange", "--transport", "x"], ["exchange", "-n"],
                          ["exchange", "--optimizer", "sgdm"], ["limits", "-n", "1"], ["limits", "--bytes", "6"],
                          ["limits", "-n", "2", "--bytes", "4096", "--json", "/nowhere/at/all"]):
            with self.subTest(arguments=arguments):
                _, err = self.run_bench(*arguments, status=2)
                self.assertRegex(err, r"^lockstep-bench: .*\n$")

    def test_too_few_open_files(self):
        def limit():
            ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE)  # root could raise the hard limit otherwise
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

        process = subprocess.run([BENCH, "coordinator", "--workers", "1000"], env=self.environment, capture_output=True,
                                 text=True, check=False, preexec_fn=limit)
        self.assertEqual(process.returncode, 2, process.stderr)
        self.assertRegex(process.stderr, r"^lockstep-bench: --workers 1000: 1064 open files are needed and 64 allowed.*\n$")


    def test_tune(self):
        """On one machine: all settings of tcp are tried, and what it prints can be put into a config."""
        report = self.temp.parent / "tune.json"
        out, err = self.run_bench("tune", "-n", 2, "--bytes", 65536, "--rounds", 2, "--pairs", 1, "--set", "exchange.window=4", "--json", report)
        found = json.loads(report.read_text())
        tried = {key for one in found["tried"] for key in one["settings"]}
        self.assertEqual(tried, {"exchange.connections", "exchange.piece_bytes"})  # the window was given
        self.assertNotIn("8", [one["settings"].get("exchange.connections") for one in found["tried"]])  # more than the window
        self.assertEqual((found["transport"], found["paths"]), ("tcp", ["tcp"]))
        self.assertEqual(sum(len(one["ratios"]) for one in found["tried"]) + len(found["best_ratios"]), len(found["defaults_ms"]["65536"]))
        lines = err.splitlines()
        most = re.fullmatch(r"\d+ of at most (\d+) jobs: .*", lines[-1])
        self.assertLessEqual(found["jobs"], int(most[1]))
        self.assertIn("All workers were on this machine", out)
        if found["best"]:
            self.assertIn("\n[exchange]\n", out)
        else:
            self.assertIn("nothing is quicker than the defaults", out)

    def test_tune_with_a_worker_that_is_started_elsewhere(self):
        secret = self.temp.parent / "secret"
        secret.write_text("s" * 40)
        secret.chmod(0o600)
        tune = self.start("tune", "-n", 2, "--bytes", 65536, "--rounds", 2, "--pairs", 1, "--set", "exchange.window=1", "--listen", "127.0.0.1",
                          "--secret-file", secret, "--json", "-")
        says = [tune.stderr.readline() for _ in range(2)]
        command = re.search(r"lockstep-bench exchange-worker --coordinator (\S+) --secret-file FILE", says[1])
        self.assertTrue(command, says)
        worker = self.start("exchange-worker", "--coordinator", command[1], "--secret-file", secret)
        out, err = tune.communicate(timeout=120 * harness.PATIENCE)
        self.assertEqual(tune.returncode, 0, out + err)
        found = json.loads(out)
        self.assertEqual({key for one in found["tried"] for key in one["settings"]}, {"exchange.piece_bytes"})
        # It would wait for the next job for half a minute.
        worker.send_signal(signal.SIGINT)
        out, err = worker.communicate(timeout=60 * harness.PATIENCE)
        self.assertEqual((worker.returncode, err.splitlines()[-1]), (130, "lockstep-bench: interrupted"))
        self.assertEqual(list(self.temp.iterdir()), [])

    def test_tune_is_interrupted(self):
        process = self.start("tune", "-n", 2, "--bytes", 65536, "--rounds", 100000)
        children = harness.wait_for("its children", lambda: process.poll() is not None or self.children(process, 3))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60 * harness.PATIENCE)
        self.assertEqual((process.returncode, err), (130, "lockstep-bench: interrupted\n"), out)
        self.assertFalse([pid for pid in children if is_alive(pid)])
        self.assertEqual(list(self.temp.iterdir()), [])

    def test_tune_says_what_it_cannot_do(self):
        for arguments, says in ((["--mapping", "auto"], "--mapping off"), (["--set", "exchange.window=none"], "exchange.window"),
                                (["--listen", "10.255.255.1"], "10.255.255.1")):
            with self.subTest(arguments=arguments):
                _, err = self.run_bench("tune", "-n", 2, "--bytes", 65536, "--rounds", 2, *arguments, status=2)
                self.assertRegex(err.splitlines()[-1], "^lockstep-bench: .*" + re.escape(says))

    def test_a_tune_worker_without_a_tuning_says_so(self):
        """A coordinator of another job is none for it."""
        with harness.Job(1) as job:
            job.start_coordinator()
            _, err = self.run_bench("exchange-worker", "--once", "--coordinator", job.address, status=2)
            self.assertIn("is not what lockstep-bench tune says", err)


class Peers(unittest.TestCase):
    """tools/experiments/bench-peers without the libraries that it compares with, which are not there for most."""

    @staticmethod
    def run_peers(*arguments, path=None):
        return subprocess.run([sys.executable, harness.TOOLS / "experiments" / "bench-peers", "--build-dir", harness.BIN.parent, *map(str, arguments)],
                              env={**os.environ, **({"PATH": path} if path else {})}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=120 * harness.PATIENCE, check=False)

    def test_ours_and_the_limits(self):
        done = self.run_peers("-n", 2, "--bytes", "4096,262144", "--runs", 2, "--peers", "none", "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual([(row["workers"], row["bytes"]) for row in report["rows"]], [(2, 4096), (2, 262144)])
        self.assertEqual(report["notes"], [])
        for row in report["rows"]:
            for system in ("lockstep", "lockstep-tcp", "limit:sum", "limit:sum+step", "limit:memcpy", "limit:tcp"):
                self.assertGreater(row["median_us"][system], 0, system)
                self.assertEqual(len(report["samples_us"][f"{system} 2 {row['bytes']}"]), 2)
            self.assertGreater(row["ratio"]["lockstep-tcp"], 0)
        self.assertIn("deliver", report["ours"]["lockstep 2 4096"][0]["phases_us"])
        self.assertEqual(len(report["machine"]["load_1min"]), len(report["machine"]["others_share_of_cpu"]))

    def test_the_table(self):
        done = self.run_peers("-n", 2, "--bytes", 4096, "--runs", 1, "--peers", "none", "--no-tcp")
        self.assertEqual(done.returncode, 0, done.stderr)
        heading, row = done.stdout.splitlines()[:2]
        self.assertEqual(heading.split()[:3], ["2", "processes", "lockstep"])
        self.assertNotIn("lockstep-tcp", heading)
        self.assertEqual(row.split()[:2], ["4", "KiB"])

    def test_what_is_missing_is_said_in_a_line_and_left_out(self):
        done = self.run_peers("-n", 2, "--bytes", 4096, "--runs", 1, "--json", "-", path="/nowhere")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("bench-peers: not measured: openmpi: OpenMPI is not installed (no mpirun): tools/install-deps peers\n", done.stderr)
        report = json.loads(done.stdout)
        self.assertLessEqual({"openmpi", "openmpi-tcp", "gloo"}, set(report["absent"]))
        self.assertNotIn("openmpi", report["rows"][0]["median_us"])
        self.assertGreater(report["rows"][0]["median_us"]["lockstep"], 0)

    def test_mistakes_end_with_status_2(self):
        for arguments, says in ((["-n", 1], "--workers 1: expected numbers"), (["--bytes", "4,x"], "--bytes 4,x"),
                                (["--bytes", 6], "four bytes each"), (["--peers", "nccl"], "there is no 'nccl'"), (["--runs", 0], "at least 1"),
                                (["--json", "/nowhere/at/all"], "--json /nowhere/at/all"),
                                (["--build-dir", "/nowhere"], "lockstep-bench is not there"),
                                (["--peers", "openmpi"], "--peers openmpi: OpenMPI is not installed")):
            with self.subTest(arguments=arguments):
                done = self.run_peers(*arguments, path="/nowhere")
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertRegex(done.stderr, r"^bench-peers: .*\n$")
                self.assertIn(says, done.stderr)


class Pytorch(unittest.TestCase):
    """tools/experiments/bench-pytorch without torch; tests/python has the rest."""

    def test_mistakes_end_with_one_line(self):
        for arguments, status, says in ((["-n", "1"], 2, "--workers: expected numbers"), (["--patterns", "slow"], 2, "there is no 'slow'"),
                                        (["--systems", "ddp,horovod"], 2, "there is no 'horovod'"), (["--runs", "0"], 2, "at least 1"),
                                        (["--json", "/nowhere/at/all"], 2, "--json /nowhere/at/all"),
                                        (["--build-dir", "/nowhere"], 2, "lockstep-coordinator is not there"),
                                        (["--systems", "ddp,torchft", "--python", "/bin/false"], 2, "torchft: /bin/false cannot import it"),
                                        (["--systems", "ddp", "--python", "/bin/false", "--runs", "1", "--patterns", "delay"], 1,
                                         "ddp, 2 workers: false: status 1")):
            with self.subTest(arguments=arguments):
                done = subprocess.run([sys.executable, harness.TOOLS / "experiments" / "bench-pytorch", "--build-dir", harness.BIN.parent, *arguments],
                                      stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120 * harness.PATIENCE, check=False)
                self.assertEqual(done.returncode, status, done.stderr)
                self.assertRegex(done.stderr, r"^bench-pytorch: .*\n$")
                self.assertIn(says, done.stderr)


class Link(InAFolder):
    """tools/experiments/bench-link"""

    def run_link(self, *arguments):
        with subprocess.Popen([sys.executable, harness.TOOLS / "experiments" / "bench-link", "--build-dir", harness.BIN.parent, *map(str, arguments)],
                              env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            out, err = process.communicate(timeout=600)
        # A namespace has the number of the process that made it in its name: others may measure a link of their own now.
        left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout.split() if shutil.which("ip") else []
        self.assertEqual([name for name in left if re.fullmatch(rf"[a-z]+{process.pid}", name)], [])
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    @unittest.skipUnless(namespaces.can_be_made(), "network namespaces cannot be made here (needs root)")
    def test_a_link_is_measured_plain_and_with_encryption(self):
        file = pathlib.Path(self.folder.name) / "link.json"
        done = self.run_link("--mib", "1,2", "--rounds", 3, "--runs", 1, "--json", file)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual([line.split()[0] for line in done.stdout.splitlines()[1:]], ["MiB", "1", "2"])
        report = json.loads(file.read_text())
        self.assertEqual((report["rate"], report["rounds"]), ("1gbit", 3))
        for mib, kinds in report["seconds"].items():
            for kind in ("bare", "plain", "encrypted"):
                # The whole gradient goes each way, however fast the machine is; bursts of 256 KiB go at once, of the parts, of the sums and before.
                self.assertGreater(kinds[kind][0], ((int(mib) << 20) - 3 * (1 << 18)) * 8 / 1e9 * 0.9, (mib, kind))
        self.assertEqual(list(self.temp.iterdir()), [])

    @unittest.skipUnless(namespaces.can_be_made(), "network namespaces cannot be made here (needs root)")
    def test_several_connections_carry_more_than_one_may(self):
        file = pathlib.Path(self.folder.name) / "link.json"
        done = self.run_link("--mib", 8, "--rounds", 3, "--runs", 1, "--rate", "400mbit", "--flow-limit", "50mbit", "--connections", "1,4", "--json", file)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout.splitlines()[1].count(" x4 ms"), 2)
        seconds = json.loads(file.read_text())["seconds"]["8"]
        # No connection is faster than one may be, but for the bursts of 256 KiB that go at once.
        gradient = (8 << 20) * 8
        for kind, rate in (("plain x1", 50e6), ("plain x4", 200e6)):
            self.assertGreater(seconds[kind][0], gradient * 0.6 / rate, seconds)
        self.assertLess(seconds["plain x4"][0], seconds["plain x1"][0], seconds)

    def test_mistakes_with_a_link_end_with_status_2(self):
        for arguments, says in ((["--mib", "0"], "--mib"), (["--connections", "0"], "--connections"), (["--connections", "1,17"], "--connections"), (["--mib", "x"], "--mib"), (["--runs", 0], "at least 1"), (["--set", "job"], "--set"),
                                (["--json", "/nowhere/at/all"], "--json /nowhere/at/all"), (["--build-dir", "/nowhere"], "is not there"),
                                (["--what"], "--what")):
            with self.subTest(arguments=arguments):
                done = self.run_link(*arguments)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertRegex(done.stderr, r"^bench-link: .*\n$")
                self.assertIn(says, done.stderr)

    @unittest.skipUnless(namespaces.can_be_made(), "network namespaces cannot be made here (needs root)")
    def test_a_rate_that_is_none_is_an_error_of_one_line(self):
        done = self.run_link("--rate", "fast")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertRegex(done.stderr, r"^bench-link: .*\n$")

    @unittest.skipUnless(namespaces.can_be_made(), "network namespaces cannot be made here (needs root)")
    def test_a_job_that_fails_is_an_error_of_one_line(self):
        done = self.run_link("--mib", 1, "--rounds", 3, "--runs", 1, "--set", "optimizer.lr=nothing")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, r"^bench-link: .*optimizer.lr.*\n$")


if __name__ == "__main__":
    unittest.main()
