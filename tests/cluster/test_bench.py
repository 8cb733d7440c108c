"""lockstep-bench: small measurements with real processes. What is asserted is the form and that rounds happened, never a speed."""

import ctypes
import json
import os
import pathlib
import resource
import signal
import subprocess
import tempfile
import unittest

import harness

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


class Bench(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="lockstep-test-")
        self.addCleanup(self.folder.cleanup)
        self.temp = pathlib.Path(self.folder.name) / "tmp"
        self.temp.mkdir()
        self.environment = {**os.environ, "TMPDIR": str(self.temp)}

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
        self.assertIn("busbw GB/s", lines[1])

    def test_exchange_over_a_transport(self):
        out, _ = self.run_bench("exchange", "-n", 2, "--bytes", 262144, "--rounds", 5, "--transport", "tcp", "--mapping", "off",
                                "--json", "-")
        report = json.loads(out)
        self.assertEqual((report["workers"], report["paths"]), (2, ["tcp"]))
        (row,) = report["rows"]
        self.assertEqual(set(row), {"bytes", "median_us", "p95_us", "algbw_gb_per_s", "busbw_gb_per_s"})
        self.assertEqual(row["bytes"], 262144)
        self.assertGreater(row["median_us"], 0)
        self.assertLessEqual(row["median_us"], row["p95_us"])
        self.assertAlmostEqual(row["algbw_gb_per_s"], 262144 / row["median_us"] / 1e3)
        self.assertAlmostEqual(row["busbw_gb_per_s"], row["algbw_gb_per_s"])  # 2 (n - 1) / n is 1 for two

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
        self.assertRegex(err, r"^lockstep-bench: lockstep-bench ended with status 137: .*\n$")
        self.assertFalse([pid for pid in children if is_alive(pid)])
        self.assertEqual(list(self.temp.iterdir()), [])

    def test_interrupted(self):
        self.interrupt("coordinator", "--workers", 4, "--rounds", 1000000)
        self.interrupt("exchange", "-n", 2, "--bytes", 4096, "--rounds", 1000000)

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
                          ["exchange", "--bytes", "3"], ["exchange", "--transport", "x"], ["exchange", "-n"]):
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


if __name__ == "__main__":
    unittest.main()
