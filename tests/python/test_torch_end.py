"""How a worker's script, and with it the job, ends: by break, by a signal, by its parent's or a child's end."""

import json
import os
import pathlib
import re
import select
import signal
import socket
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import harness  # noqa: E402
from torch_test import LOOP, PREPARE, PYTHON, SCRIPT, TorchTest, lockstep_run, run  # noqa: E402

# Six batches a pass; the same loop over the script's own loader and over the job's.
STEPS = """
import copy, sys
import torch, lockstep
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 8), torch.arange(96) % 4)
first = nn.Linear(8, 4)
WANTED = 10
def train(model, opt, loader):
    step = 0
    for epoch in range(9):
        for x, y in loader:
            #top
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
            step += 1
            #bottom
        if step == WANTED: break
    print(*(f"{v:.5f}" for v in model.weight.flatten().tolist()))
def parts():
    model = copy.deepcopy(first)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(data, batch_size=16)
if "alone" in sys.argv:
    train(*parts())
job = lockstep.init()
model, opt, loader = job.prepare(*parts(), epochs=9)
#train
train(model, opt, loader)
"""
BREAK = "if step == WANTED: break\n"


class LoopIsLeftTest(TorchTest):
    """Before the job's last round."""

    def steps(self, **parts):
        text = STEPS
        for part, line in parts.items():
            text = text.replace(f"#{part}\n", line)
        return self.script(text)

    def test_one_worker_has_the_updates_of_its_steps(self):
        done = run(self.steps(bottom=BREAK), "alone")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        torch_alone, ours = done.stdout.splitlines()
        self.assertEqual(ours, torch_alone)

    def test_workers_that_leave_alike_complete_the_job(self):
        for name, parts in (("behind a step", {"bottom": BREAK}), ("before a step", {"top": BREAK})):
            with self.subTest(name):
                run_dir = self.folder / name
                done = lockstep_run("-n", 2, "--run-dir", run_dir, self.steps(**parts))
                self.assertEqual(done.returncode, 0, done)
                said = re.findall(r"^worker \d +\| (-?\d.*)$", done.stdout, re.MULTILINE)
                self.assertEqual((len(said), len(set(said))), (2, 1), done.stdout)
                summary = json.loads((run_dir / "summary.json").read_text())
                self.assertEqual((summary["status"], summary["rounds"]), ("completed", 10))
                self.assertRegex(summary["reason"], r"worker \d has ended the job: its script has come to its end")

    def test_a_loop_that_ends_by_its_own_count_is_told_of_the_updates(self):
        """The faster worker has most batches, so its steps are more than the job's updates."""
        options = ("-n", 2, "--policy", "flexrr", "--slowdown", "worker=1,factor=8", "--set", "emulate.unit_time=20ms", "--set", "job.units=4")
        for name, ends in (("its own", "step == 30"), ("the job's", "job.round >= 30")):
            with self.subTest(name):
                run_dir = self.folder / name
                done = lockstep_run(*options, "--run-dir", run_dir, self.script(SCRIPT.replace("batch_size=16", "batch_size=4") +
                                                                                 PREPARE.replace("epochs=2", "epochs=60, global_batch=16") + f"""
step = 0
for epoch in range(60):
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        opt.step()
        step += 1
        if {ends}: break
    if {ends}: break
"""))
                self.assertEqual(done.returncode, 0, done)
                found = re.search(r"the script has left its loop after (\d+) steps of this worker, which were (\d+) updates of the job", done.stdout)
                rounds = json.loads((run_dir / "summary.json").read_text())["rounds"]
                if name == "its own":
                    self.assertIsNotNone(found, done)
                    self.assertEqual(int(found[1]), 30)
                    self.assertLess(int(found[2]), 30)
                    self.assertLess(abs(rounds - int(found[2])), 3)
                else:
                    self.assertGreaterEqual(rounds, 30)

    def test_the_next_pass_goes_on_behind_what_was_done(self):
        done = run(self.script(SCRIPT + "model, opt, loader = job.prepare(model, opt, loader, epochs=3)\n" + """
taken = []
for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        F.cross_entropy(model(x), y).backward()
        opt.step()
        taken.append((job.epoch, job.round))
        if i == 1: break
    if job.running:
        assert job.next_round == len(taken), (job.next_round, taken)
assert taken == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 4), (1, 5)], taken
job.close()
assert job.ended_early
"""))
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)

    def test_a_step_that_no_loop_was_left_behind_counts_when_the_script_ends(self):
        done = run(self.script(SCRIPT.replace("run_dir=None", f"run_dir={str(self.folder / 'a')!r}") + PREPARE + """
batches = iter(loader)
for step in range(3):
    x, y = next(batches)
    F.cross_entropy(model(x), y).backward()
    opt.step()
"""))
        self.assert_one_line(done, 0, "lacks the last update. Leave the loop by break, or call job.stop")
        self.assertEqual(json.loads((self.folder / "a" / "summary.json").read_text())["rounds"], 3)

    def test_what_fails_behind_the_loop_is_told_by_the_status(self):
        """Nothing can be raised where the loop is left."""
        done = run(self.script(SCRIPT + PREPARE + """
for x, y in loader:
    loss = F.cross_entropy(model(x), y) * float("nan")
    loss.backward()
    opt.step()
    break
print("goes on")
"""))
        self.assertEqual((done.returncode, done.stdout), (1, "goes on\n"), done)
        self.assertIn("is not finite (job.on_nan = stop)", done.stderr.splitlines()[-1])


ENDLESS = (SCRIPT.replace("run_dir=None", "run_dir=RUN_DIR").replace("batch_size=16", "batch_size=16, num_workers=1")
           .replace("data = TensorDataset", "class Own(TensorDataset): pass\ndata = Own") + """
model, opt, loader = job.prepare(model, opt, loader, epochs=100_000)
for epoch in range(100_000):
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        opt.step()
        if job.round == 20 and job.rank == 0:
            print("trains", flush=True)
        #batch
""")


class SignalTest(TorchTest):
    """A checkpoint comes first, and then the script ends as the signal wants it."""

    def start(self, *arguments, **more):
        """In a process group of its own."""
        process = subprocess.Popen([PYTHON, "-B", *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, cwd=self.folder, env=package.environment(**more), preexec_fn=package.heed_ctrl_c, process_group=0)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def endless(self, name, **parts):
        self.run_dir = self.folder / name
        text = ENDLESS.replace("RUN_DIR", repr(str(self.run_dir)))
        for part, line in parts.items():
            text = text.replace(f"#{part}\n", line)
        return self.script(text)

    def wait_for(self, word, process):
        said = []
        while not said or word not in said[-1]:
            said.append(process.stdout.readline())
            self.assertTrue(said[-1], said)

    def assert_interrupted(self):
        summary = json.loads((self.run_dir / "summary.json").read_text())
        self.assertEqual(summary["status"], "interrupted", summary)
        self.assertIn(f"round-{summary['rounds'] - 1:010}.json", os.listdir(self.run_dir / "checkpoints"))

    def test_a_script_alone(self):
        """The whole process group is told, and with it the loader processes."""
        for number, status, last in ((signal.SIGINT, 130, "lockstep: interrupted\n"), (signal.SIGTERM, 143, "")):
            with self.subTest(number.name):
                process = self.start(self.endless(number.name))
                self.wait_for("trains", process)
                os.killpg(process.pid, number)
                _, err = process.communicate(timeout=package.TIMEOUT_S)
                self.assertEqual(process.returncode, status, err)
                self.assertRegex(err, rf"\Alockstep: {number.name}: the job ends with the round that is open; [^\n]*\n{last}\Z")
                self.assert_interrupted()

    def test_an_exception_that_the_same_signal_causes(self):
        """As where it has ended loader processes that the script has started for a validation."""
        process = self.start(self.endless("a", batch="""if job.round == 20:
            import signal
            while not job._interrupts.ends_in_order: signal.pause()
            raise RuntimeError("of the script")
"""))
        self.wait_for("trains", process)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=package.TIMEOUT_S)
        self.assertEqual(process.returncode, 1, err)
        self.assertIn("RuntimeError: of the script", err)
        self.assert_interrupted()

    def test_a_script_that_does_something_else(self):
        """It is interrupted there, once there is a checkpoint."""
        process = self.start(self.script(self.endless("a").read_text().replace("epochs=100_000", "epochs=2") + """
    if epoch == 0:
        print("validates", flush=True)
        import threading
        threading.Event().wait()
"""))
        self.wait_for("validates", process)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=package.TIMEOUT_S)
        self.assertEqual(process.returncode, 143, err)
        self.assert_interrupted()

    def test_a_second_one_ends_it_at_once(self):
        at_once = "import lockstep._interrupts\nlockstep._interrupts._ONE_SIGNAL_S = 0\n"
        process = self.start(self.script(at_once + self.endless("a", batch="""if job.round == 20:
            import threading
            threading.Event().wait()
""").read_text()))
        self.wait_for("trains", process)
        process.send_signal(signal.SIGINT)
        self.assertIn("once more", process.stderr.readline())
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=package.TIMEOUT_S)
        self.assertEqual((process.returncode, err), (130, "lockstep: interrupted\n"))

    def test_all_tasks_of_a_step_as_slurm_warns_them(self):
        step = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1"}
        script = self.endless("a")
        workers = [self.start(script, SLURM_PROCID=str(i), **step) for i in (0, 1)]
        self.wait_for("trains", workers[0])
        for worker in workers:
            worker.send_signal(signal.SIGINT)
        said = [worker.communicate(timeout=package.TIMEOUT_S) for worker in workers]
        self.assertEqual([worker.returncode for worker in workers], [130, 130], said)
        self.assertEqual([err.splitlines()[-1] for _, err in said], ["lockstep: interrupted"] * 2)
        self.assert_interrupted()

    def test_one_worker_that_is_told_alone_leaves(self):
        step = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1"}
        patience = "import lockstep._interrupts\nlockstep._interrupts.PATIENCE_S = 0.2\n"
        script = self.script(patience + self.endless("a").read_text())
        workers = [self.start(script, SLURM_PROCID=str(i), **step) for i in (0, 1)]
        self.wait_for("trains", workers[0])
        workers[1].send_signal(signal.SIGTERM)
        workers[1].communicate(timeout=package.TIMEOUT_S)
        self.assertEqual(workers[1].returncode, 143)
        self.assertRegex(workers[0].stderr.readline(), r"\Alockstep: worker 1 is out: it leaves: interrupted \(SIGTERM\)$")
        workers[0].send_signal(signal.SIGTERM)
        workers[0].communicate(timeout=package.TIMEOUT_S)
        self.assert_interrupted()

    def test_torchrun_that_is_interrupted_or_ended(self):
        """It sends the signal on to the process group of each worker."""
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number.name):
                process = self.start("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", self.endless(number.name))
                self.wait_for("trains", process)
                process.send_signal(number)
                process.communicate(timeout=package.TIMEOUT_S)
                self.assertNotEqual(process.returncode, 0)
                self.assert_interrupted()


class CoordinatorOfAScriptTest(TorchTest):
    """That job.prepare starts lives as long as the script's job, and no shorter."""

    def folders(self):
        return sorted(path.name for path in self.temporary.glob("lockstep-*"))

    def setUp(self):
        super().setUp()
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir()
        self.more = {"TMPDIR": str(self.temporary)}

    def test_a_forked_child_that_ends_in_order_leaves_it_alone(self):
        """Also the loader processes, and the secret of a worker that has no coordinator of its own."""
        fork = """
import os
def fork():
    child = os.fork()
    if child == 0: sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
        own = SCRIPT.replace("batch_size=16", "batch_size=16, num_workers=1").replace(
            "data = TensorDataset", "class Own(TensorDataset): pass\ndata = Own")
        script = self.script("import sys, tempfile, pathlib" + fork + own + PREPARE + """
for epoch in range(2):
    for x, y in loader:
        if job.round == 1:
            before = sorted(pathlib.Path(tempfile.gettempdir()).glob("lockstep-*/*"))
            assert any(path.name == "secret" for path in before)
            fork()
            assert sorted(pathlib.Path(tempfile.gettempdir()).glob("lockstep-*/*")) == before
        F.cross_entropy(model(x), y).backward()
        opt.step()
fork()
print("trained", job.round + 1)
""")
        done = run(script, **self.more)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "trained 8\n", ""), done)
        step = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1"}
        workers = [package.start(script, python=PYTHON, SLURM_PROCID=str(i), **step, **self.more) for i in (0, 1)]
        said = [worker.communicate(timeout=package.TIMEOUT_S) for worker in workers]
        # Worker 0 says as well what the round of two workers is.
        self.assertEqual([(out.splitlines()[-1:], err) for out, err in said], [(["trained 8"], "")] * 2)
        self.assertEqual(self.folders(), [])

    def test_the_thread_that_has_prepared_may_end(self):
        done = run(self.script("import threading" + SCRIPT + """
prepared = []
thread = threading.Thread(target=lambda: prepared.append(job.prepare(model, opt, loader, epochs=2)))
thread.start()
thread.join()
model, opt, loader = prepared[0]
""" + LOOP + 'print("trained")'))
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "trained\n", ""), done)

    def test_what_a_killed_script_has_left_goes_with_the_next_start(self):
        wait = self.script(SCRIPT + PREPARE + "import sys\nprint('there', flush=True)\nsys.stdin.read()\n")
        processes = []
        try:
            for _ in range(2):
                processes.append(subprocess.Popen([PYTHON, "-B", str(wait)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                                  env=package.environment(**self.more)))
                self.assertEqual(processes[-1].stdout.readline(), "there\n")
            both = set(self.folders())
            self.assertEqual(len(both), 2)
            processes[0].kill()
            processes[0].wait()
            self.assertEqual(set(self.folders()), both)
            not_ours = self.temporary / "lockstep-something"  # without an owner's name
            not_ours.mkdir()
            done = run(self.script(SCRIPT + PREPARE + LOOP), **self.more)
            self.assertEqual(done.returncode, 0, done)
            left = set(self.folders()) - {not_ours.name}
            self.assertEqual(len(left), 1)  # of the one that is still there
            self.assertLess(left, both)
            self.assertTrue(not_ours.exists())
        finally:
            for process in processes:
                process.kill()
                process.communicate()

    def test_it_serves_the_others_when_worker_0_is_out(self):
        """Which is told what it should have written."""
        run_dir = self.folder / "a"
        step = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1"}
        script = self.script(SCRIPT.replace("run_dir=None", f"run_dir={str(run_dir)!r}, settings={{'liveness.timeout': '2s'}}") + """
import os, pathlib, time
import lockstep._own
lockstep._own._SAY_S = 0.1
out = pathlib.Path("out")
""" + PREPARE + """
for epoch in range(2):
    for x, y in loader:
        if job.rank == 0 and job.round == 5:
            while not job._session.cancelled(): time.sleep(0.05)
        if job.rank == 1 and job.round == 7:
            while not out.exists(): time.sleep(0.05)  # worker 0 waits for its coordinator by then
        F.cross_entropy(model(x), y).backward()
        opt.step()
""")
        workers = [package.start(script, python=PYTHON, cwd=self.folder, SLURM_PROCID=str(i), **step) for i in (0, 1)]
        try:
            said = []
            while not said or "waiting for the job's coordinator" not in said[-1]:
                said.append(workers[0].stderr.readline())
                self.assertTrue(said[-1], said)
            (self.folder / "out").touch()
            ended = [worker.communicate(timeout=package.TIMEOUT_S) for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
                worker.communicate()
        self.assertEqual([worker.returncode for worker in workers], [1, 0], ended)
        self.assertRegex(ended[0][1], r'lockstep: the coordinator has taken this worker out: no unit finished for .*`with job.away\("\.\.\."\):`')
        summary = json.loads((run_dir / "summary.json").read_text())
        self.assertEqual((summary["status"], summary["rounds"]), ("completed", 8))


class StoppedTest(TorchTest):
    def test_a_script_that_has_what_it_wants_stops_the_job_for_all(self):
        """One of its workers says so, with a batch in hand or between two epochs, then all; all have the parameters after the last round."""
        for when in ("in a batch", "between epochs"):
            with self.subTest(when):
                run_dir = self.folder / when
                done = lockstep_run("-n", "2", "--run-dir", run_dir, self.script(SCRIPT + """
model, opt, loader = job.prepare(model, opt, loader, epochs=400)
for epoch in range(400):
    for x, y in loader:
        if WHEN == "in a batch" and epoch == 3 and job.rank == 1 and not job.ended_early:
            job.stop("it has what it wants")
            break
        F.cross_entropy(model(x), y).backward()
        opt.step()
    if WHEN == "between epochs" and epoch >= 3 and (job.rank == 1 or job.ended_early):
        job.stop("it has what it wants")  # on all workers, and again after each pass that is empty
assert job.ended_early and not job.running
print("parameters", *(float(p.double().sum()) for p in model.parameters()))
""".replace("WHEN", repr(when))))
                self.assertEqual(done.returncode, 0, done)
                said = re.findall(r"\| parameters (.*)$", done.stdout, re.MULTILINE)
                self.assertEqual((len(said), len(set(said))), (2, 1), done.stdout)
                summary = json.loads((run_dir / "summary.json").read_text())
                self.assertEqual((summary["status"], summary["reason"]), ("completed", "worker 1 has ended the job: it has what it wants"))
                rounds = self.rounds(run_dir)
                self.assertGreaterEqual(len(rounds), 12)
                self.assertLess(len(rounds), 1600)

    def test_ctrl_c_ends_a_job_early_and_in_good_order(self):
        """The script goes on behind its loop, and can tell."""
        process = package.start("-m", "lockstep", "run", "-n", "2", self.script(SCRIPT + """
model, opt, loader = job.prepare(model, opt, loader, epochs=100_000)
for epoch in range(100_000):
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        opt.step()
    if epoch == 2 and job.rank == 0:
        print("trains", flush=True)
print("early", job.ended_early, flush=True)
"""), python=PYTHON, cwd=self.folder)
        try:
            said = []
            while not any("trains" in line for line in said):
                said.append(process.stdout.readline())
                self.assertTrue(said[-1], said)
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=package.TIMEOUT_S)
            self.assertEqual(len(re.findall(r"\| early True$", out, re.MULTILINE)), 2, out)
        finally:
            process.kill()
            process.communicate()

    def test_ctrl_c_while_it_joins_is_one_line_and_status_130(self):
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))  # and does not listen: the worker tries again for a minute
            process = package.start(self.script(SCRIPT + """
import lockstep._entry
session = lockstep._entry.Session
def joining(*arguments, **named):
    print("joins", flush=True)
    return session(*arguments, **named)
lockstep._entry.Session = joining
""" + PREPARE), python=PYTHON, LOCKSTEP_COORDINATOR=f"127.0.0.1:{nobody.getsockname()[1]}")
            try:
                self.assertEqual(process.stdout.readline(), "joins\n")
                process.send_signal(signal.SIGINT)
                _, err = process.communicate(timeout=30)
                self.assertEqual((process.returncode, err), (130, "lockstep: interrupted\n"))
            finally:
                process.kill()
                process.communicate()

    def test_ctrl_c_while_it_waits_for_others_is_one_line_and_status_130(self):
        with harness.Job(2, coordinator_args=["--config-from-workers"]) as job:
            job.config.write_text("")
            job.start_coordinator()
            # Says so when it has waited in vain once.
            process = package.start(self.script(SCRIPT + PREPARE.replace("epochs=2", "epochs=2, global_batch=16") + """
wait, calls = job._session.next, []
def counted(seconds):
    calls.append(seconds)
    if len(calls) == 2:
        print("waits", flush=True)
    return wait(seconds)
job._session.next = counted
""" + LOOP), python=PYTHON, LOCKSTEP_COORDINATOR=job.address)
            try:
                self.assertTrue(select.select([process.stdout], [], [], package.TIMEOUT_S / 2)[0], "it is deaf")
                self.assertIn("waits\n", iter(process.stdout.readline, ""))
                process.send_signal(signal.SIGINT)
                _, err = process.communicate(timeout=package.TIMEOUT_S)
                self.assertEqual((process.returncode, err), (130, "lockstep: interrupted\n"))
                harness.wait_for("the reason", lambda: "interrupted" in job.log("coordinator"))
            finally:
                process.kill()
                process.communicate()


if __name__ == "__main__":
    package.main_with_torch()
