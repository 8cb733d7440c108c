"""lockstep.launch: a function as the workers of a job, from a script and from a notebook."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from torch_test import PYTHON, TorchTest  # noqa: E402

TRAIN = """
import os, sys, time, torch, lockstep
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

class Result:
    def __init__(self, **values):
        self.__dict__.update(values)

def train(epochs, *, fails=None, begun=None):
    job = lockstep.init(settings={"policy.name": "full"})
    data = TensorDataset(torch.arange(64.0).reshape(64, 1) / 64, torch.arange(64) % 2)
    model = torch.nn.Linear(1, 2)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    model, opt, loader = job.prepare(model, opt, DataLoader(data, batch_size=16, shuffle=True), epochs=epochs)
    for epoch in range(epochs):
        for x, y in loader:
            if job.rank == fails:
                x / "nothing"
            if begun is not None and job.round > 2:
                open(f"{begun}-{job.rank}", "w").write(str(os.getpid()))
            F.cross_entropy(model(x), y).backward()
            opt.step()
    return Result(rank=job.rank, policy=job.policy, early=job.ended_early, state=job.state_dict(), pid=os.getpid())
"""

# Runs cells in a kernel of Jupyter; to a cell with "interrupt" the kernel's interrupt is sent once that file is there.
NOTEBOOK = """
import json, os, sys, time
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name="python3")
told = []
try:
    for cell in json.loads(sys.argv[1]):
        said = {"stdout": "", "stderr": "", "error": ""}
        identity = client.execute(cell["code"])
        waits = cell.get("interrupt")
        while True:
            if waits and os.path.exists(waits):
                manager.interrupt_kernel()
                waits = None
            try:
                message = client.get_iopub_msg(timeout=0.1)
            except Exception:  # queue.Empty
                continue
            kind, content = message["header"]["msg_type"], message["content"]
            if kind == "stream":
                said[content["name"]] += content["text"]
            elif kind == "error":
                said["error"] = content["ename"] + ": " + content["evalue"] + "\\n" + "\\n".join(content["traceback"])
            elif kind == "status" and content["execution_state"] == "idle" and message["parent_header"].get("msg_id") == identity:
                break
        told.append(said)
finally:
    client.stop_channels()
    manager.shutdown_kernel(now=True)
print(json.dumps(told))
"""


def has(*modules):
    found = subprocess.run([PYTHON, "-c", f"import {', '.join(modules)}"], capture_output=True, check=False)
    return found.returncode == 0


def is_gone(process):
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


class LaunchTest(TorchTest):
    def setUp(self):
        super().setUp()
        self.temporary = self.folder / "tmp"  # where secrets, functions and results are
        self.temporary.mkdir()
        self.begun = self.folder / "begun"
        self.run_dir = self.folder / "run"

    def start(self, call, train=TRAIN):
        script = self.script(train + call)
        return package.start(script, python=PYTHON, cwd=self.folder, TMPDIR=str(self.temporary), FOLDER=str(self.folder))

    def launch(self, call, train=TRAIN):
        process = self.start(call, train)
        try:
            out, err = process.communicate(timeout=package.TIMEOUT_S)
        finally:
            process.kill()
            process.wait()
        return subprocess.CompletedProcess([], process.returncode, out, err)

    def assert_nothing_left(self, *processes):
        self.assertEqual(list(self.temporary.glob("lockstep-*")), [])
        for process in processes:
            self.assertTrue(is_gone(process), process)

    def in_training(self, process):
        """The workers' processes, once they compute."""
        files = [pathlib.Path(f"{self.begun}-{worker}") for worker in (0, 1)]
        end = time.monotonic() + package.TIMEOUT_S
        while not all(file.exists() and file.read_text() for file in files):
            self.assertIsNone(process.poll(), "the job has ended early")
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        return [int(file.read_text()) for file in files]


class ScriptTest(LaunchTest):
    def test_a_function_is_the_workers_of_a_job(self):
        done = self.launch(f"""
if __name__ == "__main__":
    print("before")
    results = lockstep.launch(train, (2,), {{"fails": None}}, workers=3, policy="backup", run_dir={str(self.run_dir)!r},
                              settings={{"backup.workers": 1}}, options=["--slowdown", "worker=1,factor=2"])
    same = all(torch.equal(value, results[1].state[name]) for result in results for name, value in result.state.items())
    print("ranks", [result.rank for result in results], results[0].policy, results[0].early, same, *(result.pid for result in results))
""")
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        lines = done.stdout.splitlines()
        self.assertEqual(lines[0], "before")
        self.assertIn(f"launch      | run directory: {self.run_dir}", lines)
        self.assertRegex(lines[-1], r"^ranks \[0, 1, 2\] backup\+none False True")
        self.assertTrue(any(re.match(r"worker 0 +\| lockstep: policy.name is backup, as the job's config says", line) for line in lines), done)
        self.assertRegex(done.stdout, r"\nworker 0 +\| lockstep: lockstep\.launch has started 3 workers, which meet at its coordinator, 127\.0\.0\.1:\d+\n")
        self.assert_nothing_left(*map(int, lines[-1].split()[-3:]))

    def test_an_exception_ends_the_job_and_tells_where_it_was(self):
        done = self.launch(f"""
if __name__ == "__main__":
    try:
        lockstep.launch(train, (100000,), {{"fails": 1}}, workers=2, run_dir={str(self.run_dir)!r})
    except lockstep.JobFailed as error:
        assert 'x / "nothing"' in str(error.__cause__), error.__cause__
        print(error)
    lockstep.launch(train, (2,), {{"fails": 0}}, workers=1)
""")
        self.assertIn("\nworker 1: TypeError: unsupported operand type(s) for /: 'Tensor' and 'str'\n", done.stdout)
        # The second one is caught by nobody.
        self.assertRegex(done.stderr, r"\A\nTraceback \(most recent call last\):\n  File \S+script\.py\", line \d+, in train\n(.*\n)+"
                                      r"TypeError: [^\n]+\nlockstep: worker 0: TypeError: [^\n]+\n\Z")
        self.assertNotIn("_called.py", done.stderr)
        self.assertEqual(done.returncode, 1, done)
        self.assert_nothing_left()

    def test_misuse_in_a_worker_is_one_line(self):
        done = self.launch("""
def misused():
    lockstep.init(seed=-1)

def generator():
    return (x for x in ())

if __name__ == "__main__":
    for function in (misused, generator):
        try:
            lockstep.launch(function, workers=1)
        except lockstep.UsageError as error:
            print(error)
    lockstep.launch(misused, workers=1, options=["--slowdown", "worker=7,factor=2"])
""")
        self.assertIn("\nseed: -1 is not a whole number from 0 to 2^63 - 1\n", done.stdout)
        self.assertRegex(done.stdout, r"\nlaunch: worker 0 returns generator, which cannot go to another process \([^\n]*\): return numbers, tensors or a state_dict\n")
        self.assert_one_line(done, 2, "--slowdown worker=7,factor=2: the workers are 0 to 0")
        self.assert_nothing_left()

    def test_refused_before_anything_is_started(self):
        cases = (
            ("lockstep.launch(train(1) if 0 else 3)", "launch: 3 is no function: give the function itself, and its arguments as args=(...)"),
            ("lockstep.launch(train, workers=0)", "launch: workers=0 is not a whole number from 1 on"),
            ("lockstep.launch(lambda: 1)", "launch: <lambda> and its arguments cannot go to other processes"),
            ("lockstep.launch(inner())", "put it at the top level of the script, and not into another function"),
            ("lockstep.launch(train, resume=True)", "resume needs the run_dir of the job to continue"),
            ("lockstep.launch(train, settings={'x': 1})", "settings: 'x' is not section.key, as 'policy.name'"),
            ("lockstep.launch(train, options='--http 127.0.0.1:0')", "launch: options is a list of words, as ['--http', '127.0.0.1:0']"),
            ("os.environ.update(RANK='0', WORLD_SIZE='2', MASTER_ADDR='a', MASTER_PORT='1'); lockstep.launch(train)",
             "lockstep.launch starts the workers itself, and torchrun has started 2: start the script with python, or call lockstep.init()"),
            ("os.environ['LOCKSTEP_COORDINATOR'] = 'a:1'; lockstep.launch(train)", "lockstep.launch is called in a worker of a job"),
        )
        calls = [call for call, _ in cases]
        done = self.launch(f"""
def inner():
    def local():
        pass
    return local

if __name__ == "__main__":
    for call in {calls!r}:
        try:
            exec(call)
        except lockstep.UsageError as error:
            print(error)
""")
        lines = done.stdout.splitlines()
        self.assertEqual((len(lines), done.returncode), (len(cases), 0), done)
        for (_, message), line in zip(cases, lines, strict=True):
            self.assertIn(message, line)

    def test_a_script_without_the_guard_is_told(self):
        done = self.launch("lockstep.launch(train, (1,), workers=2)")
        self.assert_one_line(done, 2, "lockstep.launch runs again in a worker, which imports the script: put it within if __name__ == '__main__':")
        self.assert_nothing_left()

    def test_an_interrupt_ends_the_job_in_good_order(self):
        process = self.start(f"""
if __name__ == "__main__":
    lockstep.launch(train, (1000000,), {{"begun": {str(self.begun)!r}}}, workers=2, run_dir={str(self.run_dir)!r})
""")
        workers = self.in_training(process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=package.TIMEOUT_S)
        self.assertEqual((process.returncode, err), (130, "lockstep: interrupted\n"), out)
        self.assertEqual(json.loads((self.run_dir / "summary.json").read_text())["status"], "interrupted", out)
        self.assert_nothing_left(*workers)

    def test_the_job_ends_with_a_caller_that_is_killed(self):
        process = self.start(f"""
if __name__ == "__main__":
    lockstep.launch(train, (1000000,), {{"begun": {str(self.begun)!r}}}, workers=2, run_dir={str(self.run_dir)!r})
""")
        workers = self.in_training(process)
        process.kill()
        process.communicate()
        end = time.monotonic() + package.TIMEOUT_S
        while not (all(map(is_gone, workers)) and (self.run_dir / "summary.json").exists()):
            self.assertLess(time.monotonic(), end, workers)
            time.sleep(0.05)
        self.assertEqual(json.loads((self.run_dir / "summary.json").read_text())["status"], "interrupted")


@unittest.skipUnless(has("ipykernel", "jupyter_client", "cloudpickle"), "ipykernel and cloudpickle are not installed")
class NotebookTest(LaunchTest):
    def cells(self, *cells):
        path = self.script(NOTEBOOK)
        told = [{"code": cell} if isinstance(cell, str) else cell for cell in cells]
        done = package.run(path, json.dumps(told), python=PYTHON, TMPDIR=str(self.temporary), IPYTHONDIR=str(self.folder / "ipython"),
                           JUPYTER_RUNTIME_DIR=str(self.folder / "jupyter"))
        self.assertEqual(done.returncode, 0, done)
        return json.loads(done.stdout.splitlines()[-1])

    def test_a_function_of_a_cell(self):
        told = self.cells(
            TRAIN + "batch = torch.ones(2)\ndef wrapped(epochs):\n    return batch.sum().item(), train(epochs)\n"
                    "torch.nn.functional.relu(torch.ones(1000, 1000)).sum()",  # with torch's threads begun
            "results = lockstep.launch(wrapped, (2,), workers=2)\nprint([(total, type(result) is Result, result.rank) for total, result in results])",
            "lockstep.launch(train, (2,), {'fails': 1}, workers=2)",
            {"code": f"lockstep.launch(train, (1000000,), {{'begun': {str(self.begun)!r}}}, workers=2, run_dir={str(self.run_dir)!r})",
             "interrupt": f"{self.begun}-1"},
            "print('the kernel is alive')",
            "sys.modules['cloudpickle'] = sys.modules['joblib'] = None\nlockstep.launch(train, (2,), workers=2)",
        )
        self.assertEqual([one["error"].split(":")[0] for one in told], ["", "", "JobFailed", "KeyboardInterrupt", "", "UsageError"], told)
        self.assertIn("[(2.0, True, 0), (2.0, True, 1)]", told[1]["stdout"])
        self.assertRegex(told[1]["stdout"], r"(?m)^launch +\| run directory: runs/\d+-\d+-full$")
        self.assertIn("JobFailed: worker 1: TypeError: unsupported operand", told[2]["error"])
        self.assertRegex(told[2]["error"], r"in train(?s:.*)TypeError: unsupported operand")
        self.assertIn("SIGINT: the job is to end in good order", told[3]["stdout"])
        self.assertEqual(json.loads((self.run_dir / "summary.json").read_text())["status"], "interrupted", told)
        self.assertEqual(told[4]["stdout"], "the kernel is alive\n")
        self.assertIn("launch: train is defined here and not in a file, and cloudpickle is missing: pip install cloudpickle, or put it into a module", told[5]["error"])
        self.assert_nothing_left(*(int(pathlib.Path(f"{self.begun}-{i}").read_text()) for i in (0, 1)))


if __name__ == "__main__":
    package.main_with_torch()
