"""tools/slowdown: what it asks the coordinator for, and that nothing of what it does from outside stays behind."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from coordinator_stub import CoordinatorStub

SLOWDOWN = None  # the path under test, from the command line
TIMEOUT_S = 60


def run(*arguments):
    return subprocess.run([SLOWDOWN, *map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL)


def state_of(pid):
    """As in /proc/PID/stat; "gone" when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "gone"


def wait_for(what, condition):
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"timed out waiting for {what}")
        time.sleep(0.005)


class AsksTheCoordinator(unittest.TestCase):
    def setUp(self):
        self.coordinator = CoordinatorStub()
        self.addCleanup(self.coordinator.close)

    def bodies(self):
        return [(path, body) for path, body, _ in self.coordinator.requests]

    def test_specs_go_out_together(self):
        done = run("--http", self.coordinator.address, "--slowdown", "worker=1,factor=2", "--slowdown", "factor=3,for=1s,seed=2",
                   "--for", "10s", "--seed", "7")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "done\n", ""))
        self.assertEqual(self.bodies(), [("/slowdown", "worker=1,factor=2,seed=7,for=10000000000ns\nfactor=3,for=1s,seed=2")])

    def events(self, text, *arguments):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(text)
            file.flush()
            return run("--http", self.coordinator.address, "--events", file.name, *arguments)

    def test_events_come_in_their_order(self):
        done = self.events("# two\nat=40ms worker=2,factor=4,for=5s\nat=0s factor=2\n\nat=41ms..60ms none # end\n")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual([body for _, body in self.bodies()], ["factor=2", "worker=2,factor=4,for=5s", "none"])
        at = [float(line.split()[0]) for line in done.stdout.splitlines()]
        self.assertGreaterEqual(at[1], 0.04)
        self.assertGreaterEqual(at[2], at[1])

    def test_events_are_seeded(self):
        text = "".join(f"at=0s..100ms worker={i},factor=2\n" for i in range(6))

        def order(seed):
            self.coordinator.requests.clear()
            self.assertEqual(self.events(text, "--seed", seed).returncode, 0)
            return [body.partition(",")[0] for _, body in self.bodies()]
        self.assertEqual(order("3"), order("3"))
        self.assertNotEqual(order("3"), order("4"))

    def test_a_refusal_ends_it_with_status_1(self):
        self.coordinator.status, self.coordinator.answer = 400, {"error": "unknown key"}
        done = self.events("at=0s factr=2\nat=0s factor=2\n")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (1, "", "slowdown: unknown key\n"))
        self.assertEqual(len(self.coordinator.requests), 1)

    def test_a_trace_that_is_not_there_is_told_before_anything_is_changed(self):
        done = self.events("at=0s factor=2\nat=1ms pattern=trace,file=/nowhere\n")
        self.assertEqual((done.returncode, done.stderr), (2, "slowdown: slowdown file = /nowhere: No such file or directory\n"))
        self.assertEqual(self.coordinator.requests, [])

    def test_events_that_are_no_file_are_not_waited_for(self):
        with tempfile.TemporaryDirectory() as folder:
            fifo = os.path.join(folder, "fifo")
            os.mkfifo(fifo)
            for path in (fifo, "/dev/zero"):
                done = run("--http", self.coordinator.address, "--events", path)
                self.assertEqual((done.returncode, done.stderr), (2, f"slowdown: --events {path}: is not a regular file\n"))

    def test_a_process_that_cannot_be_a_victim(self):
        for pid, words in ((0, "a process id is 1 or more"), (-3, "a process id is 1 or more"),
                           (1, "is the process that all others hang on")):
            done = run("--mode", "stop", "--pid", pid)
            self.assertEqual((done.returncode, done.stderr), (2, f"slowdown: --pid {pid}: {words}\n"))

    def test_wrong_usage(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("at=5 factor=2\n")
            file.flush()
            for arguments in ([], ["--http", "a:1"], ["--http", "a:1", "--mode", "stop"], ["--http", "a", "--slowdown", "factor=2"],
                              ["--http", "a:1", "--events", file.name], ["--http", "a:1", "--events", "/nowhere"],
                              ["--mode", "stop"], ["--mode", "stop", "--pid", "1"], ["--mode", "stop", "--pid", "77", "--duty", "2"],
                              ["--mode", "fly", "--pid", "77"], ["--mode", "link", "--dev", "x"], ["--mode", "cpu", "--pid", "77", "--for", "5"],
                              ["--mode", "link", "--dev", "-x", "--rate", "1mbit"], ["--mode", "link", "--dev", "x", "--rate", "fast"]):
                done = run(*arguments)
                self.assertEqual(done.returncode, 2, arguments)
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)


class FromOutside(unittest.TestCase):
    def setUp(self):
        self.victim = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        self.addCleanup(self.end, self.victim)

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.kill()
        process.wait()

    def start(self, *arguments, **more):
        tool = subprocess.Popen([SLOWDOWN, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)
        self.addCleanup(tool.stderr.close)
        self.addCleanup(tool.stdout.close)
        self.addCleanup(self.end, tool)
        return tool

    def stopped(self):
        return state_of(self.victim.pid) == "T"

    def test_stop_ends_by_itself(self):
        done = run("--pid", self.victim.pid, "--mode", "stop", "--for", "100ms")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertFalse(self.stopped())

    def test_stop_and_go(self):
        tool = self.start("--pid", self.victim.pid, "--mode", "stop", "--duty", "0.5", "--period", "100ms")
        for _ in range(3):
            wait_for("the stop", self.stopped)
            wait_for("the go", lambda: not self.stopped())
        tool.send_signal(signal.SIGINT)
        self.assertEqual(tool.wait(TIMEOUT_S), 130)
        self.assertFalse(self.stopped())

    def test_whatever_ends_it_the_victim_goes_on(self):
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -9)):
            with self.subTest(number=number):
                tool = self.start("--pid", self.victim.pid, "--mode", "stop")
                wait_for("the stop", self.stopped)
                tool.send_signal(number)
                self.assertEqual(tool.wait(TIMEOUT_S), status)
                wait_for("the go", lambda: not self.stopped())

    def test_a_closed_terminal_is_nothing_to_who_ignores_it(self):
        """As with nohup."""
        tool = self.start("--pid", self.victim.pid, "--mode", "stop", "--duty", "0.5", "--period", "100ms",
                          preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        wait_for("the stop", self.stopped)
        tool.send_signal(signal.SIGHUP)
        for _ in range(3):
            wait_for("the go", lambda: not self.stopped())
            wait_for("the stop", self.stopped)
        tool.send_signal(signal.SIGTERM)
        self.assertEqual(tool.wait(TIMEOUT_S), 143)

    def test_it_ends_with_its_victim(self):
        tool = self.start("--pid", self.victim.pid, "--mode", "stop")
        wait_for("the stop", self.stopped)
        self.victim.kill()
        self.victim.wait()
        self.assertEqual(tool.wait(TIMEOUT_S), 0)
        self.assertIn(f"process {self.victim.pid} has ended", tool.stdout.read())

    def test_nobody_of_that_number(self):
        self.end(self.victim)
        done = run("--pid", self.victim.pid, "--mode", "stop")
        self.assertEqual((done.returncode, done.stderr), (1, f"slowdown: there is no process {self.victim.pid}\n"))

    def hogs_of(self, tool):
        line = tool.stdout.readline()
        self.assertIn("hogs on CPU", line)
        return [int(word) for word in line.rpartition(":")[2].split()]

    def test_hogs_run_where_the_victim_may_and_are_gone_afterwards(self):
        cpu = min(os.sched_getaffinity(0))
        os.sched_setaffinity(self.victim.pid, {cpu})
        for number in (signal.SIGTERM, signal.SIGKILL):
            with self.subTest(number=number):
                tool = self.start("--pid", self.victim.pid, "--mode", "cpu", "--hogs", "2")
                hogs = self.hogs_of(tool)
                self.assertEqual(len(hogs), 2)
                for hog in hogs:
                    wait_for("the hog's place", lambda pid=hog: os.sched_getaffinity(pid) == {cpu})
                tool.send_signal(number)
                tool.wait(TIMEOUT_S)
                for hog in hogs:
                    wait_for("the hog's end", lambda pid=hog: state_of(pid) in ("gone", "Z"))
        done = run("--pid", self.victim.pid, "--mode", "cpu", "--for", "50ms")
        self.assertEqual(done.returncode, 0)

    def group(self):
        return Path(f"/proc/{self.victim.pid}/cgroup").read_text()

    def test_quota_or_a_clear_error(self):
        before = self.group()
        tool = self.start("--pid", self.victim.pid, "--mode", "quota", "--share", "0.25")
        line = tool.stdout.readline()
        if not line:  # not permitted here
            self.assertEqual(tool.wait(TIMEOUT_S), 1)
            self.assertRegex(tool.stderr.read(), r"^slowdown: .*\n$")
        else:
            self.assertIn(f"lockstep-slowdown-{self.victim.pid}", self.group())
            tool.send_signal(signal.SIGTERM)
            self.assertEqual(tool.wait(TIMEOUT_S), 143)
            self.assertFalse(Path(line.split()[-1]).exists())
        self.assertEqual(self.group(), before)


class Link(unittest.TestCase):
    def test_a_device_that_is_not_there(self):
        done = run("--mode", "link", "--dev", "lockstep-none", "--rate", "1mbit", "--for", "1s")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_the_limit_is_taken_off_again(self):
        name = f"lockstep-{os.getpid()}"
        if shutil.which("ip") is None or subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode != 0:
            self.skipTest("no network namespace can be made here")
        self.addCleanup(subprocess.run, ["ip", "netns", "del", name], check=True)
        show = ["ip", "netns", "exec", name, "tc", "qdisc", "show", "dev", "lo"]
        before = subprocess.run(show, capture_output=True, text=True).stdout
        for number in (signal.SIGTERM, signal.SIGKILL):
            tool = subprocess.Popen([SLOWDOWN, "--mode", "link", "--netns", name, "--dev", "lo", "--rate", "10mbit"],
                                    stdout=subprocess.PIPE, text=True)
            self.addCleanup(FromOutside.end, tool)
            self.addCleanup(tool.stdout.close)
            self.assertEqual(tool.stdout.readline(), "lo sends at most 10mbit\n")
            self.assertIn("tbf", subprocess.run(show, capture_output=True, text=True).stdout)
            again = run("--mode", "link", "--netns", name, "--dev", "lo", "--rate", "1mbit", "--for", "1s")
            self.assertEqual(again.returncode, 1, "a limit that is there is not touched")
            self.assertIn("10Mbit", subprocess.run(show, capture_output=True, text=True).stdout)
            tool.send_signal(number)
            tool.wait(TIMEOUT_S)
            wait_for("the old queue", lambda: subprocess.run(show, capture_output=True, text=True).stdout == before)


if __name__ == "__main__":
    SLOWDOWN = sys.argv.pop(1)
    unittest.main(verbosity=2)
