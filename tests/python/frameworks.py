"""What the tests of scripts without torch have in common: jobs with a slow worker and a killed one, and checks of what counted."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import ROOT, harness  # noqa: E402

# A worker that computes at its own pace has 2 ms of work in each unit, so that there is time to move some or to kill it.
SLOW = ("--policy", "flexrr", "--slowdown", "worker=1,factor=6", "--set", "emulate.unit_time=2ms")


def find_python(*modules, variable="LOCKSTEP_JAX_PYTHON", **more):
    """An interpreter that has these modules, of those that the variable names, with : between them, and a few others; None: there is none. `more`: of its
    environment."""
    candidates = [*os.environ.get(variable, "").split(os.pathsep), package.TORCH_PYTHON, sys.executable]
    for candidate in filter(None, candidates):
        command = [candidate, "-c", f"import {','.join(modules)}"]
        if subprocess.run(command, capture_output=True, check=False, env={**os.environ, **more}).returncode == 0:
            return candidate
    return None


def skip(modules, variable):
    """Ends the script as ctest wants a skipped one to end."""
    print(f"skipped: no interpreter has {modules}; {variable} names one that has")
    sys.exit(77)


def python_with(*modules):
    """An interpreter that has these modules, or ends the script."""
    return find_python(*modules) or skip(" and ".join(modules), "LOCKSTEP_JAX_PYTHON")


def _descendants(pid):
    try:
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield int(child)
        yield from _descendants(child)


def worker_pid(process, worker):
    """Of a worker of the `lockstep run` that this process is; None: it is not there."""
    for pid in _descendants(process.pid):
        try:
            environ = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"LOCKSTEP_WORKER={worker}".encode() in environ:
            return pid
    return None


class FrameworkTest(harness.ClusterTest):
    python = None  # the interpreter of the scripts

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.runs = 0
        self.environment = {}  # of the scripts, beside the usual one

    def job(self, workers, *arguments, kill=None, after=8, status=0):
        """The output of `lockstep run`. `kill`: a worker that gets SIGKILL after so many rounds."""
        self.runs += 1
        self.run_dir = self.folder / f"run-{self.runs}"
        process = package.start("-m", "lockstep", "run", "-n", workers, "--run-dir", self.run_dir, *arguments, python=self.python, cwd=self.folder, **self.environment)
        try:
            if kill is not None:
                harness.wait_for(f"round {after}", lambda: len(self.rounds()) >= after or process.poll() is not None, seconds=90)
                os.kill(worker_pid(process, kill), signal.SIGKILL)
            out, err = process.communicate(timeout=package.TIMEOUT_S)
        finally:
            process.kill()
            process.communicate()
        self.assertEqual(process.returncode, status, out + err)
        if kill is not None:
            self.assertIn(f"worker {kill} was ended by SIGKILL", out)
        return out

    def interrupted_and_resumed(self, rounds, *script):
        """The output of a job of two that goes on after Ctrl-C. It ends with the parameters of the job in self.run_dir, which nobody has interrupted."""
        wanted, self.run_dir = self.summary()["params_digest"], self.folder / "stopped"
        words = ("-m", "lockstep", "run", "-n", 2, "--policy", "full", "--run-dir", self.run_dir)
        process = package.start(*words, "--set", "emulate.unit_time=10ms", *script, python=self.python, cwd=self.folder, **self.environment)
        try:
            harness.wait_for(f"round {rounds}", lambda: len(self.rounds()) >= rounds or process.poll() is not None, seconds=90)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=package.TIMEOUT_S)
        finally:
            process.kill()
            process.communicate()
        self.assertEqual((process.returncode, self.summary()["status"]), (130, "interrupted"), out + err)
        done = self.alone(*words, "--resume", *script)
        self.check(done.stdout, 512, 2)
        self.assertEqual(self.summary()["params_digest"], wanted)
        return done.stdout

    def alone(self, *arguments, status=0, **more):
        done = package.run(*arguments, python=self.python, **self.environment, **more)
        self.assertEqual(done.returncode, status, done)
        return done

    def rounds(self):
        job = harness.Job(1, folder=self.folder)
        job.run_dir = self.run_dir
        return job.rounds()

    def summary(self):
        return json.loads((self.run_dir / "summary.json").read_text())

    def check(self, out, samples, workers):
        """Each sample counted once in each epoch, and so many workers ended with the same parameters, as they print them."""
        done = subprocess.run([sys.executable, ROOT / "tools" / "check-run", "--samples", str(samples), self.run_dir], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        digests = re.findall(r"parameters (\w{64})", out)
        self.assertEqual((len(digests), set(digests)), (workers, {self.summary()["params_digest"]}), out)
