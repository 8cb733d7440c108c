"""lockstep.spark: jobs in barrier tasks of real executors, with `local-cluster` masters, and of the driver's own process (`local`)."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import frameworks  # noqa: E402
import package  # noqa: E402
from package import HERE, ROOT, harness  # noqa: E402

VARIABLE = "LOCKSTEP_SPARK_PYTHON"

# What the workers do. `linear` is a script of lockstep.Session, `train` one of torch.
FUNCTIONS = """
def train(epochs, *, dataset=None):
    import torch, lockstep
    import torch.nn.functional as F
    from torch.utils.data import DataLoader
    class Numbered(torch.utils.data.Dataset):
        def __len__(self):
            return 96
        def __getitem__(self, i):
            return {"id": i, "x": torch.tensor([i / 96, i % 7 / 7], dtype=torch.float32), "y": i % 2}
    job = lockstep.init(settings={"policy.name": "full"})
    model = torch.nn.Linear(2, 2)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(dataset or Numbered(), batch_size=24, shuffle=True)
    model, opt, loader = job.prepare(model, opt, loader, epochs=epochs)
    seen = []
    for epoch in range(epochs):
        for batch in loader:
            F.cross_entropy(model(batch["x"].float()), batch["y"].long()).backward()
            opt.step()
            seen.append((job.epoch, batch["id"].tolist()))
    return {"rank": job.rank, "size": job.size, "seen": seen, "state": {n: v.tolist() for n, v in job.state_dict().items()}}

def linear(path):
    import os, runpy
    os.environ.setdefault("LOCKSTEP_SLOWDOWN", "")
    runpy.run_path(path)
    return os.getpid()
"""
BEGIN = FUNCTIONS + """
import json, os, sys, threading, time
sys.path[1:1] = filter(None, [os.environ.get("DRIVER_HAS")])
import pyspark
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession
import lockstep, lockstep.spark
FOLDER, MASTER, CONF = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
builder = SparkSession.builder.master(MASTER).config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false").config("spark.local.dir", FOLDER + "/local")
for key, value in CONF.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
sc = spark.sparkContext
sc.setLogLevel("OFF")
print("work", os.path.join(_find_spark_home(), "work", sc.applicationId), flush=True)
run, LINEAR, RUN = lockstep.spark.run, FOLDER + "/linear.py", FOLDER + "/run"
SLOW = {"emulate.unit_time": "20ms"}

def refused(*args, **kwargs):
    try:
        run(*args, **kwargs)
        print("refused: not")
    except lockstep.Error as error:
        print("refused:", type(error).__name__, error, flush=True)
        return error
"""
END = "\nspark.stop()\n"
JOINS = re.compile(r"worker (\d+) \(incarnation (\d+)\) joins from \S+, host \S+, pid (\d+),")


def is_gone(process):
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def parent(process):
    return int(pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])


def processes():
    return [int(path.name) for path in pathlib.Path("/proc").iterdir() if path.name.isdecimal()]


def command_line(process):
    try:
        return pathlib.Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def executor_of(process):
    """The process of Spark's that has started this worker's: the nearest ancestor that is Java."""
    while pathlib.Path(f"/proc/{process}/comm").read_text().strip() != "java":
        process = parent(process)
    return process


class SparkTest(harness.ClusterTest):
    python = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # executors that end late
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.temporary = self.folder / "tmp"  # where secrets, functions and results would be
        self.temporary.mkdir()
        self.run_dir = self.folder / "run"
        shutil.copy(HERE / "linear.py", self.folder)
        self.work = None

    def start(self, script, master="local-cluster[2,1,1024]", conf=None, **more):
        path = self.folder / "driver.py"
        path.write_text(BEGIN + script + END)
        environment = {"TMPDIR": str(self.temporary), "PYSPARK_PYTHON": self.python, **more}
        log = open(self.folder / "out", "w+b")
        self.addCleanup(log.close)
        process = subprocess.Popen([self.python, "-B", path, self.folder, master, json.dumps(conf or {})], stdin=subprocess.DEVNULL, stdout=log,
                                   stderr=subprocess.STDOUT, cwd=self.folder, env=package.environment(**environment), preexec_fn=package.heed_ctrl_c)
        self.addCleanup(self.clean)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def out(self):
        return (self.folder / "out").read_text(errors="replace")

    def clean(self):
        """Executors of local-cluster have their folders where Spark is."""
        if found := re.search(r"^work (\S+)$", self.out(), re.M):
            shutil.rmtree(found[1], ignore_errors=True)

    def executor_logs(self):
        work = pathlib.Path(re.search(r"^work (\S+)$", self.out(), re.M)[1])
        return "".join(path.read_text(errors="replace") for path in sorted(work.glob("*/stderr")))

    def end(self, process, status=0):
        process.wait(timeout=package.TIMEOUT_S)
        self.assertEqual(process.returncode, status, self.out())
        return self.out()

    def drive(self, script, *, status=0, **more):
        return self.end(self.start(script, **more), status)

    def summary(self):
        return json.loads((self.run_dir / "summary.json").read_text())

    def rounds(self):
        path = self.run_dir / "rounds.jsonl"
        return path.read_text().count("\n") if path.exists() else 0

    def in_training(self, process, rounds=8):
        """The workers' processes by number, after so many rounds."""
        harness.wait_for(f"round {rounds}", lambda: self.rounds() >= rounds or process.poll() is not None, 90)
        self.assertIsNone(process.poll(), self.out())
        return self.pids()

    def pids(self):
        return {int(worker): int(pid) for worker, _, pid in JOINS.findall(self.out())}

    def check(self, samples):
        done = subprocess.run([sys.executable, ROOT / "tools" / "check-run", "--samples", str(samples), self.run_dir], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr + self.out())
        self.assertEqual(self.summary()["status"], "completed")

    def assert_nothing_left(self, processes):
        harness.wait_for("the end of all processes", lambda: all(map(is_gone, processes)))
        self.assertEqual(list(self.temporary.glob("lockstep-*")), [])

    def digest_alone(self, workers, script, *words):
        """Of the same function, by lockstep run."""
        path, folder = self.folder / "alone.py", self.folder / f"alone-{workers}"
        path.write_text(FUNCTIONS + script)
        done = package.run("-m", "lockstep", "run", "-n", workers, "--run-dir", folder, *words, path, python=self.python)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return json.loads((folder / "summary.json").read_text())["params_digest"]


class RunTest(SparkTest):
    def test_two_and_three_workers_do_what_lockstep_run_does(self):
        out = self.drive("""
for workers in (2, 3):
    results = run(train, (3,), num_workers=workers, run_dir=f"{RUN}-{workers}", port=0)
    print("results", json.dumps(results), flush=True)
""", master="local-cluster[3,1,1024]")
        results = [json.loads(line.removeprefix("results ")) for line in out.splitlines() if line.startswith("results ")]
        logs = self.executor_logs()
        for workers, found in zip((2, 3), results, strict=True):
            with self.subTest(workers):
                self.assertEqual([(one["rank"], one["size"]) for one in found], [(i, workers) for i in range(workers)])
                self.assertTrue(all(one["state"] == found[0]["state"] for one in found))
                for epoch in range(3):
                    ids = sorted(i for one in found for e, batch in one["seen"] if e == epoch for i in batch)
                    self.assertEqual(ids, list(range(96)))
                self.run_dir = self.folder / f"run-{workers}"
                self.check(96)
                self.assertEqual(self.summary()["params_digest"], self.digest_alone(workers, "train(3)"))
                self.assertRegex(logs, rf"worker 0 \| lockstep: Spark has started {workers} workers, which meet at its coordinator, \d[\d.]+:\d+\n")
        self.assertRegex(out, r"coordinator \| \S+ coordinator info completed: 12 rounds, 3 epochs")
        self.assertEqual(len(re.findall(r"info open to others: control \S+, for workers that prove the secret\n", out)), 2, out)
        self.assert_nothing_left(self.pids().values())

    def test_what_a_function_does_wrong(self):
        out = self.drive("""
def fails(epochs):
    if os.environ["LOCKSTEP_WORKER"] == "1":
        while not os.path.exists(FOLDER + "/begun"):
            time.sleep(0.05)
        1 / 0
    open(FOLDER + "/begun", "w").close()
    return linear(LINEAR)

def misuses():
    lockstep.init(seed=-1)

def exits(status):
    print("a last word", flush=True)
    sys.exit(status)

LONG = SLOW | {"job.epochs": 1000000}  # unless the one that fails ends the job
error = refused(fails, (3,), num_workers=2, settings=LONG)
print("cause:", repr(str(error.__cause__)))
refused(misuses, num_workers=2)
refused(lambda: (x for x in ()), num_workers=1)
refused(lambda: 3, num_workers=2)
refused(exits, (2,), num_workers=1)
refused(exits, (5,), num_workers=1, restarts=0)
refused(linear, (LINEAR,), num_workers=1, policy="nonsense")
refused(linear, (LINEAR,), num_workers=1, options=["--http", "nonsense"])
run(fails, (3,), num_workers=2, settings=LONG)
""", status=1)
        said = re.findall(r"^refused: (.*)$", out, re.M)
        self.assertEqual(len(said), 8, out)
        self.assertEqual(said[0], "JobFailed worker 1: ZeroDivisionError: division by zero")
        self.assertRegex(out, r"cause: .*line \d+, in fails\\n.*ZeroDivisionError")
        self.assertNotIn("_called.py", out)
        self.assertRegex(said[1], r"^UsageError seed: -1 is not a whole number")
        self.assertRegex(said[2], r"^UsageError launch: worker 0 returns generator, which cannot go to another process")
        self.assertEqual(said[3], "JobFailed no worker has joined the job: does the function call lockstep.init()?")
        self.assertEqual(said[4], "UsageError worker 0 has ended with status 2: a last word")
        self.assertEqual(said[5], "JobFailed worker 0 has ended with status 5: a last word")
        self.assertRegex(said[6], "^UsageError policy.name = nonsense: 'nonsense' is not one of full, ")
        self.assertRegex(said[7], "^UsageError .*--http")
        self.assertRegex(out, r"\nTraceback \(most recent call last\):\n  File \S+, line \d+, in fails\n(.*\n)+lockstep: worker 1: ZeroDivisionError: division by zero\n\Z")
        self.assert_nothing_left(self.pids().values())

    def test_refused_before_anything_is_started(self):
        cases = (
            ("3, num_workers=1", "UsageError spark.run: 3 is no function"),
            ("linear, num_workers=0", "UsageError spark.run: num_workers=0 is not a whole number from 1 on"),
            ("linear, num_workers=1, restarts=-1", "UsageError spark.run: restarts=-1 is not a whole number from 0 on"),
            ("linear, num_workers=1, port='x'", "UsageError spark.run: port='x' is not a whole number"),
            ("linear, num_workers=1, resume=True", "UsageError resume needs the run_dir of the job to continue"),
            ("linear, num_workers=1, resume=3", "UsageError resume: 3 is neither True nor False nor 'auto'"),
            ("linear, num_workers=1, settings={'x': 1}", "UsageError settings: 'x' is not section.key"),
            ("linear, num_workers=1, options='--http a:1'", "UsageError spark.run: options is a list of words, as ['--http', 'a:1']"),
            ("linear, num_workers=1, options=['--resume']", "UsageError spark.run: options: --resume is spark.run's own"),
            ("linear, (threading.Lock(),), num_workers=1", "UsageError spark.run: linear and its arguments cannot go to other processes (TypeError: "),
            ("linear, num_workers=3", "UsageError spark.run: num_workers=3, and Spark has 2 slots for tasks"),
        )
        out = self.drive("".join(f"refused({call})\n" for call, _ in cases) + """
os.environ["LOCKSTEP_COORDINATOR"] = "a:1"
refused(linear, num_workers=1)
del os.environ["LOCKSTEP_COORDINATOR"], pyspark.SparkContext.addJobTag
refused(linear, num_workers=1)
spark.stop()
refused(linear, num_workers=1)
os.environ["SPARK_REMOTE"] = "sc://localhost"
refused(linear, num_workers=1)
""", master="local[2]")
        cases += (("in a worker", "UsageError spark.run is called in a worker of a job"),
                  ("older Spark", "UsageError lockstep.spark needs Spark 3.5 or later, and this is "),
                  ("stopped", "UsageError spark.run: there is no SparkContext yet"),
                  ("connected", "UsageError spark.run needs the driver's SparkContext, which Spark Connect lacks"))
        said = re.findall(r"^refused: (.*)$", out, re.M)
        self.assertEqual(len(said), len(cases), out)
        for (call, message), line in zip(cases, said, strict=True):
            with self.subTest(call):
                self.assertEqual(line[: len(message)], message)

    def test_too_few_executors_and_dynamic_allocation(self):
        begun = time.monotonic()
        out = self.drive("refused(linear, num_workers=4)\n", conf={"spark.scheduler.maxRegisteredResourcesWaitingTime": "5s"})
        self.assertIn("\nlockstep: waiting for executors, 5 s at most: 4 workers want as many slots, and there are ", out)
        self.assertRegex(out, r"\nrefused: UsageError spark.run: num_workers=4, and Spark has [012] slots? for tasks")
        self.assertLess(time.monotonic() - begun, 60 * harness.PATIENCE)  # Spark itself tries for ten minutes
        self.clean()
        out = self.drive("refused(linear, num_workers=1)\n", conf={"spark.dynamicAllocation.enabled": "true", "spark.shuffle.service.enabled": "true"})
        self.assertIn("\nrefused: UsageError spark.run: Spark has no barrier tasks with dynamic allocation: set spark.dynamicAllocation.enabled=false", out)

    def test_executors_without_the_package(self):
        out = self.drive("run(linear, (LINEAR,), num_workers=2)\n", status=2, PYTHONPATH="", DRIVER_HAS=str(ROOT / "python"))
        self.assertRegex(out, r"\nlockstep: the Python of the executors has no lockstep: install the wheel there, in the Python that PYSPARK_PYTHON names")

    def test_a_script_without_pyspark(self):
        done = package.run("-c", "import sys; sys.modules['pyspark'] = None; import lockstep.spark", python=self.python)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done)
        self.assertIn("lockstep: lockstep.spark is for Apache Spark, and this Python has no pyspark: pip install pyspark\n", done.stderr)

    def test_each_worker_gets_the_gpu_of_its_task(self):
        script = self.folder / "gpus"
        script.write_text("""#!/bin/sh\necho '{"name": "gpu", "addresses": ["7"]}'\n""")
        script.chmod(0o755)
        conf = {f"spark.{who}.resource.gpu.amount": "1" for who in ("executor", "task", "worker")}
        conf |= {f"spark.{who}.resource.gpu.discoveryScript": str(script) for who in ("executor", "worker")}
        out = self.drive("""
def device(path):
    linear(path)
    return os.environ["CUDA_VISIBLE_DEVICES"]
print("devices", run(device, (LINEAR,), num_workers=1))
""", master="local-cluster[1,1,1024]", conf=conf)
        self.assertIn("\ndevices ['7']\n", out)


class FaultTest(SparkTest):
    LINEAR = "print('results', run(linear, (LINEAR,), num_workers=2, run_dir=RUN, settings=SLOW), flush=True)\n"

    def digest_of_linear(self):
        return self.digest_alone(2, f"linear({str(HERE / 'linear.py')!r})", "--policy", "full")

    def test_a_worker_that_is_killed_comes_back(self):
        process = self.start(self.LINEAR)
        first = self.in_training(process)
        os.kill(first[1], signal.SIGKILL)
        out = self.end(process)
        self.check(1024)
        self.assertEqual(self.summary()["rounds"], 192)
        second = self.pids()
        self.assertNotEqual(first[1], second[1])
        self.assertIn(f"\nresults [{second[0]}, {second[1]}]\n", out)  # the same worker 0: Spark has not ended its task
        self.assertEqual(first[0], second[0])
        self.assertRegex(out, r"coordinator warning worker 1 is out: ")
        self.assertRegex(out, r"coordinator info worker 1 is in the job from round \d+ on")
        self.assertIn("worker 1 | lockstep: worker 1 was ended by SIGKILL; restarting it in 1 s (2 restarts left)\n", self.executor_logs())
        self.assert_nothing_left([*first.values(), *second.values()])

    def test_a_worker_that_is_lost_for_good(self):
        process = self.start(self.LINEAR.replace("num_workers", "restarts=0, num_workers"))
        workers = self.in_training(process)
        os.kill(workers[1], signal.SIGKILL)
        out = self.end(process)
        self.check(1024)
        self.assertIn(f"\nlockstep: worker 1 was ended by SIGKILL; its result is None\nresults [{workers[0]}, None]\n", out)

    def test_an_executor_that_is_killed(self):
        wanted = self.digest_of_linear()
        process = self.start(self.LINEAR.replace("SLOW", "SLOW | {'checkpoint.every_rounds': 4, 'policy.name': 'full'}"))
        first = self.in_training(process, 24)
        os.kill(executor_of(first[1]), signal.SIGKILL)
        out = self.end(process)
        self.check(1024)
        second = self.pids()
        self.assertIn(f"\nresults [{second[0]}, {second[1]}]\n", out)
        self.assertFalse(set(first.values()) & set(second.values()))
        self.assertRegex(out, r"\nlockstep: Spark has lost tasks \(.*ExecutorLostFailure.*\); the job goes on from its last checkpoint, attempt 2 of 4\n")
        self.assertEqual((self.summary()["rounds"], self.summary()["params_digest"]), (192, wanted))
        self.assert_nothing_left([*first.values(), *second.values()])

    def test_spark_jobs_that_are_cancelled(self):
        script = """
def cancel():
    while not os.path.exists(FOLDER + "/go"):
        time.sleep(0.05)
    sc.cancelAllJobs()
threading.Thread(target=cancel, daemon=True).start()
""" + self.LINEAR
        process = self.start(script)
        workers = self.in_training(process)
        (self.folder / "go").touch()
        out = self.end(process, 1)
        self.assertRegex(out, r"\nlockstep: the Spark job was cancelled: .*cancelled.*\n\Z")
        self.assertEqual(self.summary()["status"], "interrupted")
        self.assert_nothing_left(workers.values())

    def test_functions_that_hang_end_too(self):
        process = self.start("""
def hangs():
    with open(f"{FOLDER}/hangs-{os.environ['LOCKSTEP_WORKER']}", "w") as file:
        file.write(str(os.getpid()))
    threading.Event().wait()
try:
    run(hangs, num_workers=2)
finally:  # Spark and its executors live on
    while not os.path.exists(FOLDER + "/go"):
        time.sleep(0.05)
""")
        files = [self.folder / f"hangs-{worker}" for worker in (0, 1)]
        harness.wait_for("the functions", lambda: process.poll() is not None or all(file.exists() and file.read_text() for file in files), 90)
        for word in ("\nlockstep: interrupted: ", "\nlockstep: interrupted again: "):
            harness.wait_for("the answer to an interrupt", lambda word=word: word in self.out() or process.send_signal(signal.SIGINT), look_every=0.2)
        workers = [int(file.read_text()) for file in files]
        harness.wait_for("the end of the workers", lambda: all(map(is_gone, workers)))
        (self.folder / "go").touch()
        out = self.end(process, 130)
        self.assertTrue(out.endswith("\nlockstep: interrupted\n"), out)
        self.assert_nothing_left(workers)

    def test_an_interrupt_ends_the_job_in_good_order_and_another_run_goes_on(self):
        wanted = self.digest_of_linear()
        script = self.LINEAR.replace("SLOW", "SLOW | {'policy.name': 'full'}").replace("run_dir", "resume='auto', run_dir")
        process = self.start(script)
        workers = self.in_training(process, 20)
        process.send_signal(signal.SIGINT)
        out = self.end(process, 130)
        self.assertRegex(out, r"\nlockstep: interrupted: the job is to end in good order \(a second interrupt ends it at once\)\n")
        self.assertTrue(out.endswith("\nlockstep: interrupted\n"), out)
        self.assertEqual(self.summary()["status"], "interrupted")
        self.assertGreaterEqual(self.summary()["checkpoint_round"], 19)
        self.assert_nothing_left(workers.values())
        self.drive(script)
        self.check(1024)
        self.assertEqual(self.summary()["params_digest"], wanted)

    def test_everything_ends_with_a_driver_that_is_killed(self):
        process = self.start(self.LINEAR)
        workers = self.in_training(process)
        coordinator = next(pid for pid in processes() if str(self.run_dir).encode() in command_line(pid))
        process.kill()
        harness.wait_for("the end of workers and coordinator", lambda: all(map(is_gone, [*workers.values(), coordinator])), 60)


class RowsTest(SparkTest):
    def test_a_data_frame_is_read_by_row(self):
        out = self.drive("""
from pyspark.sql import functions as F
df = spark.range(96, numPartitions=5).select(
    F.col("id"), F.array((F.col("id") / 96).cast("float"), (F.col("id") % 7 / 7).cast("float")).alias("x"), (F.col("id") % 2).cast("int").alias("y"))
path = FOLDER + "/rows of it"
dataset = lockstep.spark.parquet(df, path)
print("length", len(dataset), dataset[95]["id"], dataset[-1]["id"], dataset[40]["x"].dtype, dataset[3]["y"].dtype)
print("results", json.dumps(run(train, (3,), {"dataset": dataset}, num_workers=2, run_dir=RUN)), flush=True)
small = lockstep.spark.rows(path, cache_bytes=0)
print("alike", [int(small[i]["id"]) for i in (0, 95, 50, 0)], len(small._read))
def refusal(call):
    try:
        call()
    except (lockstep.UsageError, IndexError) as error:
        print("refused:", error)
refusal(lambda: lockstep.spark.parquet(df, path))
refusal(lambda: lockstep.spark.rows(FOLDER + "/none"))
refusal(lambda: lockstep.spark.rows(path, cache_bytes=-1))
refusal(lambda: dataset[96])
refusal(lambda: lockstep.spark.parquet(df.select(F.when(F.col("id") != 3, F.col("id")).alias("a")), FOLDER + "/nulls")[0])
refusal(lambda: lockstep.spark.parquet(df.where("id < 0"), FOLDER + "/empty"))
""")
        self.assertIn("\nlength 96 95 95 float32 int32\n", out)
        found = json.loads(re.search(r"^results (.*)$", out, re.M)[1])
        for epoch in range(3):
            self.assertEqual(sorted(i for one in found for e, batch in one["seen"] if e == epoch for i in batch), list(range(96)))
        self.check(96)
        self.assertEqual(self.summary()["params_digest"], self.digest_alone(2, "train(3)"))
        self.assertIn("\nalike [0, 95, 50, 0] 1\n", out)
        said = re.findall(r"^refused: (.*)$", out, re.M)
        path = f"file://{self.folder}/rows of it"
        self.assertEqual(said[0], f"{path} is there already: lockstep.spark.rows({path!r}) opens it")
        self.assertRegex(said[1], r"/none: .*; give a folder that the driver and all executors reach by this name$")
        self.assertEqual(said[2], "cache_bytes: -1 is not a whole number from 0 on")
        self.assertEqual(said[3], "row 96 of 96")
        self.assertRegex(said[4], r"^column a of \S+/nulls has nulls: fill or drop them in the DataFrame \(df.na\)$")
        self.assertRegex(said[5], r"/empty has no rows in Parquet files$")


if __name__ == "__main__":
    java = os.path.join(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else shutil.which("java")
    if java is None or not os.access(java, os.X_OK):
        print("skipped: Spark needs java, and there is none")
        sys.exit(77)
    SparkTest.python = frameworks.find_python("pyspark.sql", "torch", "pyarrow", variable=VARIABLE) or frameworks.skip("pyspark, torch and pyarrow", VARIABLE)
    unittest.TestCase.maxDiff = None
    harness.main()
