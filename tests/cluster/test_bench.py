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

    def test_interrupted(self):
        self.interrupt("coordinator", "--workers", 4, "--rounds", 1000000)

    def test_mistakes_end_with_status_2(self):
        for arguments in ([], ["nothing"], ["coordinator", "--workers", "x"], ["coordinator", "--bytes", "4"],
                          ["coordinator", "--set", "policy.name=nobody", "--workers", "2"],
                          ["coordinator", "--workers", "2", "--rounds", "2", "--json", "/nowhere/at/all"]):
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
