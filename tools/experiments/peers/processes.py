"""Starts and awaits the processes of bench-peers, bench-pytorch and bench-faults, and measures how busy the machine is meanwhile."""

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

INTERRUPTED = 130
TOOL = Path(sys.argv[0]).name


def fail(message, status=1):
    print(f"{TOOL}: {message}", file=sys.stderr)
    sys.exit(status)


class Failed(Exception):
    pass


class Processes:
    """Children that end with this process; Ctrl-C ends them and the measurement."""

    def __init__(self):
        self.running = []
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)

    def _stop(self, _number, _frame):
        self.end()
        print(f"{TOOL}: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)

    def start(self, command, environment, log):
        """Starts one that goes on until `end`; its output goes to the log."""
        child = subprocess.Popen([str(word) for word in command], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                 start_new_session=True)
        self.running.append(child)
        return child

    def end(self, patience=5):
        """Ends all of them; what has not ended after so many seconds is killed."""
        for child in self.running:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGTERM)
        until = time.monotonic() + patience
        for child in self.running:
            try:
                child.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        self.running = []

    def run(self, commands, environment=None, timeout=600):
        """Runs the commands at the same time and returns the output of the first one. The others' errors count as well."""
        with tempfile.TemporaryFile("w+") as errors:
            for i, command in enumerate(commands):
                self.running.append(subprocess.Popen(
                    [str(word) for word in command], env={**os.environ, **(environment or {})}, stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE if i == 0 else subprocess.DEVNULL, stderr=errors, text=True, start_new_session=True))
            children, status = list(self.running), 0
            try:
                out, _ = children[0].communicate(timeout=timeout)
                for child in children:
                    status = child.wait(timeout=60) or status
            except subprocess.TimeoutExpired:
                self.end()
                raise Failed(f"{Path(str(commands[0][0])).name}: not finished after {timeout} s") from None
            finally:
                self.running = []
            if status != 0:
                errors.seek(0)
                words = [line.strip() for line in errors if line.strip() and not set(line.strip()) <= {"-"}]
                raise Failed(f"{Path(str(commands[0][0])).name}: {words[0] if words else f'status {status}'}")
            return out


class Machine:
    """How busy the machine is with other work: all processor time of an interval, less that of the children that ended in it."""

    def __init__(self):
        self.hertz = os.sysconf("SC_CLK_TCK")
        self.cores = os.cpu_count()
        self.loads, self.others = [], []

    def _busy(self):
        # user, nice, system, idle, iowait, irq, softirq, steal
        fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return (sum(fields) - fields[3] - fields[4]) / self.hertz

    @staticmethod
    def _children():
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    def begin(self):
        self.loads.append(os.getloadavg()[0])
        self.at = (time.monotonic(), self._busy(), self._children())

    def end(self):
        seconds = time.monotonic() - self.at[0]
        busy = self._busy() - self.at[1] - (self._children() - self.at[2])
        self.others.append(max(0.0, busy / seconds / self.cores) if seconds > 0 else 0.0)

    def told(self):
        return {"cores": self.cores, "cpu": cpu_model(), "load_1min": [round(load, 2) for load in self.loads],
                "others_share_of_cpu": [round(share, 3) for share in self.others]}


def cpu_model():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def available_bytes():
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0
