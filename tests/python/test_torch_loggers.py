"""Loggers: one run for the whole job, which another worker goes on with, and a job that resumes."""

import json
import pathlib
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import ROOT  # noqa: E402
from torch_test import PREPARE, PYTHON, SCRIPT, TorchTest, lockstep_run, run  # noqa: E402

sys.path.insert(0, str(ROOT / "python"))
from lockstep._lead import CLAIM, Lead, Point  # noqa: E402

LOOP = """
import os, pathlib, signal, time
from lockstep import loggers
LOGGERS
for epoch in range(EPOCHS):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        job.log({"n/x y?": len(x)}, reduce="sum")
        KILL
        opt.step()
        time.sleep(PAUSE)
"""

READ_TENSORBOARD = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
read = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0})
read.Reload()
print(json.dumps({tag: [(event.step, event.value) for event in read.Scalars(tag)] for tag in read.Tags()["scalars"]} | {"text": read.Tags()["tensors"]}))
"""
READ_MLFLOW = """
import json, sys
from mlflow import MlflowClient
client = MlflowClient(tracking_uri=sys.argv[1])
runs = client.search_runs([client.get_experiment_by_name("ours").experiment_id])
print(json.dumps([[one.info.status, one.data.tags["lockstep.policy"], one.data.params["job.seed"],
                   [(point.step, point.value) for point in client.get_metric_history(one.info.run_id, "loss")],
                   sorted(one.data.metrics)] for one in runs]))
"""
# The records of a file of W&B, which are framed as LevelDB frames its log: blocks of 32 KiB, pieces with checksum, length and type.
READ_WANDB = """
import json, struct, sys
from wandb.proto import wandb_internal_pb2
data = open(sys.argv[1], "rb").read()
at, whole, rows = 7, b"", []
while at + 7 <= len(data):
    if 0x8000 - at % 0x8000 < 7:
        at += 0x8000 - at % 0x8000
        continue
    size, kind = struct.unpack("<HB", data[at + 4 : at + 7])
    if kind == 0:
        break
    whole, at = whole + data[at + 7 : at + 7 + size], at + 7 + size
    if kind in (1, 4):  # whole, or the last piece
        record, whole = wandb_internal_pb2.Record.FromString(whole), b""
        if record.WhichOneof("record_type") == "history":
            rows.append({item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item})
print(json.dumps(rows))
"""


def has(*modules):
    found = subprocess.run([PYTHON, "-c", f"import importlib.util as i\nassert all(map(i.find_spec, {modules!r}))"], capture_output=True, check=False)
    return found.returncode == 0


class LeadTest(unittest.TestCase):
    """Which worker writes, without a job."""

    def written(self, rounds, in_round, incarnations=(1, 1, 1)):
        """By round: who has written it. `in_round(round)`: the workers whose contributions it counts; all see each round."""
        leads = [Lead(worker, incarnation) for worker, incarnation in enumerate(incarnations)]
        written = []
        for number in range(rounds):
            claims = {worker: claim[CLAIM] for worker, lead in enumerate(leads) if (claim := lead.claim(number))}
            counted = min((claims[worker] for worker in in_round(number) if worker in claims), default=None)
            for worker in (0, 1, 2):
                if worker in in_round(number) or number < 20:  # those that are gone see nothing
                    written += [(point.round, worker) for point in leads[worker].take(Point(number, {}, ""), counted)]
        for worker, lead in enumerate(leads):
            if worker in in_round(rounds - 1):
                written += [(point.round, worker) for point in lead.finish()]
        return written, leads

    def test_worker_0_writes_all(self):
        written, leads = self.written(50, lambda _: (0, 1, 2))
        self.assertEqual(written, [(number, 0) for number in range(50)])
        self.assertEqual(len({lead.number for lead in leads}), 1)

    def test_one_that_is_late_now_and_then_goes_on_leading(self):
        written, _ = self.written(19, lambda number: (0, 1, 2) if number % 4 == 0 else (1, 2))
        self.assertEqual(written, [(number, 0) for number in range(17)])  # the last two are not counted with a claim
        written, _ = self.written(19, lambda number: (0, 1, 2) if number % 3 == 0 else (1, 2))
        self.assertEqual(written, [(number, 0) for number in range(19)])

    def test_the_next_one_goes_on_where_the_lost_one_has_ended(self):
        written, leads = self.written(60, lambda number: (0, 1, 2) if number < 20 else (1, 2))
        self.assertEqual(written, [(number, 0 if number < 20 else 1) for number in range(60)])
        self.assertEqual(leads[1].number, leads[0].number)
        written, _ = self.written(80, lambda number: (0, 1, 2) if number < 20 else (2,))
        self.assertEqual(written, [(number, 0 if number < 20 else 2) for number in range(80)])

    def test_of_workers_that_were_started_again_one_writes_all(self):
        written, _ = self.written(60, lambda _: (0, 1, 2), incarnations=(2, 2, 3))
        self.assertEqual(sorted(number for number, _ in written), list(range(60)))
        self.assertEqual({worker for _, worker in written}, {0})


class LoggersTest(TorchTest):
    def text(self, loggers, *, epochs=2, kill="pass", pause=0.0, init="run_dir=None"):
        loop = LOOP.replace("LOGGERS", loggers).replace("KILL", kill).replace("EPOCHS", str(epochs)).replace("PAUSE", str(pause))
        return self.script(SCRIPT.replace("run_dir=None", init) + PREPARE.replace("epochs=2", f"epochs={epochs}") + loop)

    def read(self, program, path):
        done = package.run("-c", program, path, python=PYTHON)
        self.assertEqual(done.returncode, 0, done)
        return json.loads(done.stdout)

    def test_a_library_that_is_missing_and_a_logger_that_is_late_are_one_line(self):
        hidden = "import importlib.util\nimportlib.util.find_spec = lambda name: None\n"
        for call, message in (("TensorBoard(job, 'a')", "TensorBoard: tensorboard is missing: pip install tensorboard"),
                              ("WandB(job)", "WandB: wandb is missing: pip install wandb"), ("MLflow(job)", "MLflow: mlflow is missing: pip install mlflow")):
            done = run(self.script(f"import lockstep\n{hidden}job = lockstep.init()\nfrom lockstep import loggers\nloggers.{call}\n"))
            self.assert_one_line(done, 2, f"lockstep.loggers.{message}")
        late = "class Mine(loggers.Logger):\n    _needs = ('json',)\n"
        done = run(self.text(late, kill="Mine(job)"))
        self.assert_one_line(done, 2, "lockstep.loggers.Mine: make it before the loop over the loader, on every worker")

    def test_a_logger_that_fails_says_so_once_and_the_job_goes_on(self):
        mine = ("class Mine(loggers.Logger):\n    _needs = ('json',)\n    def open(self, number, first):\n        print('opened', first)\n"
                "    def write(self, points, policy):\n        raise OSError('the disk is full\\nof numbers')\n")
        done = run(self.text(mine + "Mine(job)", epochs=4))
        self.assertEqual(done.returncode, 0, done)
        self.assertEqual(done.stderr, "lockstep: lockstep.loggers.Mine: OSError: the disk is full; it writes no more, and the job goes on\n")
        self.assertEqual(done.stdout.count("opened 0\n"), 1)

    @unittest.skipUnless(has("tensorboard"), "tensorboard is not installed")
    def test_a_job_that_resumes_has_each_round_once_in_tensorboard(self):
        run_dir, where = self.folder / "run", self.folder / "tensorboard"
        init = f"run_dir={str(run_dir)!r}, resume='auto', settings={{'checkpoint.every_rounds': 8}}"
        script = self.text(f"loggers.TensorBoard(job, {str(where)!r})", epochs=10, init=init, pause=0.1, kill=(
            f"if job.round > 12 and list(pathlib.Path({str(run_dir / 'checkpoints')!r}).glob('round-*.json')) and "
            f"any(path.stat().st_size > 2000 for path in pathlib.Path({str(where)!r}).glob('*')) and not os.path.exists('killed'): "
            "open('killed', 'w').close(); os.kill(os.getpid(), signal.SIGKILL)"))
        for status in (-signal.SIGKILL, 0):
            process = package.start(script, python=PYTHON, cwd=self.folder)
            said = process.communicate(timeout=package.TIMEOUT_S)
            self.assertEqual(process.returncode, status, said)
        first, second = ([step for step, _ in self.read(READ_TENSORBOARD, path)["loss"]] for path in sorted(where.glob("events.*")))
        read = self.read(READ_TENSORBOARD, where)
        # What was not yet written when the process was killed is in no file, if a checkpoint is newer.
        steps = [step for step in first if step < second[0]] + list(range(second[0], 40))
        self.assertEqual(([step for step, _ in read["loss"]], second, first), (steps, steps[-len(second):], list(range(len(first)))))
        self.assertGreaterEqual(second[0], 8)
        rounds = self.rounds(run_dir)
        for tag, key in (("loss", "loss"), ("learning_rate", "learning_rate")):
            for step, value in read[tag]:
                self.assertAlmostEqual(value, rounds[step][key], places=6)
        self.assertEqual(sorted(tag for tag in read if tag != "text"), ["learning_rate", "loss", "n/x y?", "samples_per_second", "slow_workers"])
        self.assertTrue(any("policy" in tag for tag in read["text"]), read["text"])

    @unittest.skipUnless(has("tensorboard", "wandb", "mlflow"), "tensorboard, wandb or mlflow is not installed")
    def test_another_worker_goes_on_with_the_runs_of_one_that_is_lost(self):
        store = f"sqlite:///{self.folder}/mlflow.db"
        made = (f"loggers.TensorBoard(job, {str(self.folder / 'tensorboard')!r})\n"
                f"loggers.WandB(job, project='ours', mode='offline', dir={str(self.folder)!r})\n"
                f"loggers.MLflow(job, experiment='ours', name='job', tracking_uri={store!r})\n")
        wandb = f"list(pathlib.Path({str(self.folder)!r}).glob('wandb/offline-run-*/run-*.wandb'))"
        kill = (f"if job.rank == 0 and job.round >= 20 and {wandb}: time.sleep(0.5); os.kill(os.getpid(), signal.SIGKILL)\n"
                f"        if job.rank == 1 and job.round == 19: deadline = time.monotonic() + 60\n"
                f"        while job.rank == 1 and job.round == 19 and not {wandb} and time.monotonic() < deadline: time.sleep(0.05)")
        script = self.text(made, epochs=15, kill=kill, pause=0.05, init="settings={'job.min_workers': 1, 'liveness.timeout': '60s'}")
        run_dir = self.folder / "run"
        done = lockstep_run("-n", "2", "--run-dir", run_dir, script, WANDB_SILENT="true")
        self.assertIn("worker 0 was ended by SIGKILL", done.stdout)
        rounds = {line["round"]: line for line in self.rounds(run_dir)}
        self.assertEqual(len(rounds), 60, done.stdout)
        # TensorBoard: two files, and each round once but those that the lost worker had not written.
        read = self.read(READ_TENSORBOARD, self.folder / "tensorboard")["loss"]
        self.assert_steps([step for step, _ in read])
        # MLflow: one run.
        (only,) = self.read(READ_MLFLOW, store)
        self.assertEqual(only[:3], ["FINISHED", "full+none", "1"])
        self.assert_steps(sorted({step for step, _ in only[3]}))
        self.assertEqual(only[4], ["learning_rate", "loss", "n/x y_", "samples_per_second", "slow_workers"])
        # Weights & Biases: one id. What it had of the lost worker it may not have written yet.
        files = sorted(self.folder.glob("wandb/offline-run-*/run-*.wandb"))
        self.assertEqual((len(files), len({file.name for file in files})), (2, 1), files)
        rows = self.read(READ_WANDB, files[1])
        self.assert_steps([row["round"] for row in rows])
        for row in rows:
            self.assertAlmostEqual(row["loss"], rounds[row["round"]]["loss"], places=6)

    def assert_steps(self, steps):
        """In order, each once, to the end; some around the loss are missing."""
        self.assertEqual(steps, sorted(set(steps)))
        self.assertEqual(steps[-1], 59)
        self.assertGreaterEqual(len(set(steps) & set(range(20, 60))), 36, steps)


if __name__ == "__main__":
    package.main_with_torch()
