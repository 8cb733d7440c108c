"""lockstep.ray on a real Ray: results, exceptions, lost and drained nodes, each sample once, and Ray's own TorchTrainer."""

import collections
import json
import pathlib
import signal
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import frameworks  # noqa: E402
import package  # noqa: E402
from package import HERE, harness  # noqa: E402

SAMPLES, EPOCHS = 64, 3
# Ray runs its workers at nice 15 otherwise, so that a busy machine starves them.
ENVIRONMENT = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_TRAIN_V2_ENABLED": "1", "RAY_worker_niceness": "0"}
PYTHON = None


class RayTest(harness.ClusterTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # processes of Ray's that end late may still write
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.run_dir = self.folder / "runs" / "job"

    def start(self, how, **options):
        return package.start(HERE / "ray_job.py", how, self.folder, json.dumps(options), python=PYTHON, cwd=self.folder, **ENVIRONMENT)

    def finish(self, process, status=0, sends=None):
        try:
            if sends is not None:
                process.send_signal(sends)
            out, err = process.communicate(timeout=package.TIMEOUT_S)
        finally:
            process.kill()
            process.wait()
        self.assertEqual(process.returncode, status, out + err)
        self.out = out + err  # Ray shows what its processes print
        return json.loads(out.splitlines()[-1]) if status == 0 else None

    def job(self, how, **options):
        return self.finish(self.start(how, **options))

    def rounds(self):
        job = harness.Job(1, folder=self.folder)
        job.run_dir = self.run_dir
        return job.rounds()

    def check_samples(self, epochs):
        """Of what the function has seen, by what the rounds have counted: each sample once in each finished epoch."""
        seen = collections.defaultdict(list)
        for path in self.folder.glob("seen-*"):
            for line in path.read_text().splitlines():
                worker, number, samples = json.loads(line)
                seen[number, worker] += samples
        counted = collections.defaultdict(list)
        rounds = self.rounds()
        for line in rounds:
            parts = collections.Counter()
            for part in line["contributors"]:
                parts[part["worker"]] += part["samples"]
            for worker, samples in parts.items():
                its = seen[line["round"], worker]
                self.assertEqual(len(its), samples, line)
                counted[line["epoch"]] += its
        self.assertGreaterEqual(len(counted), epochs)
        for epoch in sorted(counted)[:-1]:
            self.assertEqual(sorted(counted[epoch]), list(range(SAMPLES)), epoch)
        self.assertEqual(max(collections.Counter(counted[max(counted)]).values()), 1)
        return rounds, counted


class ResultTest(RayTest):
    def test_a_job_has_a_result_as_of_ray_train(self):
        found = self.job("whole", trainer={"scaling": 2})
        _, counted = self.check_samples(EPOCHS)
        self.assertEqual([sorted(samples) for samples in counted.values()], [list(range(SAMPLES))] * EPOCHS)
        self.assertEqual((found["path"], found["error"]), (str(self.run_dir), None))
        self.assertEqual(found["checkpoint"], ["model.safetensors", "state.json"])
        metrics = found["metrics"]
        self.assertEqual((metrics["epoch"], metrics["rank"], metrics["epochs"], metrics["samples_counted"]), (EPOCHS - 1, 0, EPOCHS, EPOCHS * SAMPLES))
        self.assertEqual((found["value"]["rank"], found["value"]["size"]), (0, 2))
        self.assertRegex(self.out, r"lockstep\.ray\.Trainer has started 2 workers, which meet at its coordinator, [\d.]+:\d+")

    def test_the_last_report_counts_also_after_the_end_of_the_job(self):
        found = self.job("whole", config={"late": True}, trainer={"scaling": 2})
        self.assertEqual((found["metrics"].get("late"), found["metrics"]["epochs"]), (0, EPOCHS))
        self.assertEqual(found["checkpoint"], ["model.safetensors", "state.json"])

    def test_an_interrupt_leaves_a_checkpoint_and_a_resume_goes_on(self):
        process = self.start("whole", config={"unit_time": "40ms", "epochs": EPOCHS}, trainer={"scaling": 2})
        try:
            harness.wait_for("rounds", lambda: len(self.rounds()) > 2 or process.poll() is not None, seconds=90)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        self.finish(process, 130, signal.SIGINT)
        self.assertTrue(self.out.endswith("lockstep: interrupted\n"), self.out)
        self.assertEqual(json.loads((self.run_dir / "summary.json").read_text())["status"], "interrupted")
        found = self.job("whole", trainer={"scaling": 2, "resume": True})
        self.assertEqual(found["metrics"]["samples_counted"], EPOCHS * SAMPLES)
        self.check_samples(EPOCHS)

    def test_an_exception_reaches_the_caller(self):
        found = self.job("fails", config={"fails": "raises"})
        self.assertEqual(found["message"], "worker 1: TypeError: unsupported operand type(s) for /: 'Tensor' and 'str'")
        self.assertRegex(found["cause"], r'\A\nTraceback \(most recent call last\):\n  File "[^"]*ray_job\.py", line \d+, in train\n')
        self.assertIn('x / "nothing"', found["cause"])
        self.assertEqual((found["result"]["error"], found["result"]["path"]), (found["message"], str(self.run_dir)))

    def test_an_exception_after_the_end_of_the_job_reaches_the_caller(self):
        found = self.job("fails", config={"fails": "after"})
        self.assertEqual(found["message"], "worker 1: TypeError: unsupported operand type(s) for /: 'Tensor' and 'str'")
        self.assertIn('x / "nothing"', found["cause"])
        self.assertEqual((found["result"]["metrics"]["late"], found["result"]["checkpoint"]), (0, ["model.safetensors", "state.json"]))

    def test_a_worker_that_dies_again_and_again_ends_the_job(self):
        found = self.job("fails", config={"fails": "dies"})
        self.assertRegex(found["message"], r"\Aworker 1 was lost 4 times, and not with its node: [^\n]+\Z")
        self.assertEqual(self.out.count("another one is asked for"), 3, self.out)


class RefusedTest(RayTest):
    def test_one_line_each(self):
        cases = {
            "lockstep.ray.Trainer(3)": "2 Trainer: 3 is no function: give the function itself, and its argument as config={...}",
            "trainer({}, scaling=0)": "2 scaling: 0 is neither a number of workers nor (least, most)",
            "trainer({}, scaling=(3, 2))": "2 scaling: (3, 2) is neither a number of workers nor (least, most)",
            "trainer({}, resources={'CPU': 0})": "2 resources: CPU: 0 is not a number above 0",
            "trainer({}, storage_path='s3://bucket/x')": "2 storage_path: s3://bucket/x is not a folder: the coordinator writes to a file system that the nodes share, as NFS",
            "trainer({}, name=None, resume=True)": "2 resume needs the name of the job to continue",
            "trainer({}, placement_strategy='NEAR')": "2 placement_strategy: 'NEAR' is none of PACK, SPREAD, STRICT_PACK, STRICT_SPREAD",
            "trainer({}, settings={'x': 1})": "2 settings: 'x' is not section.key, as 'policy.name'",
            "trainer({'lock': threading.Lock()}).fit()": "2 Trainer: the function and its config cannot go to other processes (TypeError: ",
            "trainer({}, scaling=4, placement_timeout=0.5).fit()": "1 no room on the Ray cluster in 0.5 s: it needs 5 CPU (it has 4 in all) for the coordinator and 4 workers",
            "trainer({}, resources={'GPU': 1}, placement_timeout=0.5).fit()": "1 no room on the Ray cluster in 0.5 s: no node has 1 GPU",
            "trainer({}, resume=True).fit()": f"2 resume: {self.run_dir} holds no checkpoint",
            "trainer({'fails': 'before'}).fit()": "2 sys.exit(3) was called",
            "trainer({}, settings={'policy.name': 'fastest'}).fit()": "2 ",
            "trainer({'fails': 'reports'}, scaling=2).fit()": "2 ray.train.report, get_context and the like are for Ray's own trainers: write lockstep.ray.report(metrics), job.rank and job.size, and leave prepare_model",
            "lockstep.ray.report({})": "2 lockstep.ray.report is for the function of a lockstep.ray.Trainer",
        }
        for (case, message), line in zip(cases.items(), self.job("refused", cases=list(cases)), strict=True):
            with self.subTest(case):
                self.assertTrue(line.startswith(message), line)
                self.assertNotIn("\n", line)


class NodeTest(RayTest):
    def check(self, found):
        self.assertIsNone(found["error"], self.out)
        return self.check_samples(3)[0]

    def test_the_job_goes_on_without_a_killed_node_and_takes_another(self):
        rounds = self.check(self.job("node", change="kill", scaling=[1, 2]))
        self.assertRegex(self.out, r"lockstep: worker 1 on node \w{8} is lost: [^\n]+; another one is asked for\n")
        self.assertTrue(any({part["worker"] for part in line["contributors"]} == {0} for line in rounds))

    def test_with_too_few_workers_it_waits_for_another_node(self):
        self.check(self.job("node", change="kill", scaling=[2, 2]))
        self.assertRegex(self.out, r"lockstep: worker [01] on node \w{8} is lost: ")
        self.assertIn("lockstep: 1 of at least 2 workers are there; waiting for worker ", self.out)

    def test_the_worker_of_a_drained_node_leaves_it(self):
        self.check(self.job("node", change="drain", scaling=[1, 2]))
        self.assertRegex(self.out, r"lockstep: node (\w{8}) is being drained; worker 1 leaves it\n(?s:.*)lockstep: worker 1 has left its node \1; another one is asked for\n")
        self.assertNotIn("is lost", self.out)


class RayTrainTest(RayTest):
    def test_torch_trainer_is_a_launcher(self):
        self.assertEqual(self.job("torch_trainer"), {"error": None})
        self.check_samples(EPOCHS)
        self.assertRegex(self.out, r"lockstep: 2 workers in a process group, started by Ray Train, meet in its store; worker 0 has started the coordinator")

    def test_workers_without_a_process_group_are_refused(self):
        self.assertIn("Ray Train has started 2 workers without a process group, and they have no place to meet: use its TorchTrainer", self.job("without_group")["error"])


if __name__ == "__main__":
    PYTHON = frameworks.find_python("ray.train", "torch", variable="LOCKSTEP_RAY_PYTHON") or frameworks.skip("ray[train] and torch", "LOCKSTEP_RAY_PYTHON")
    harness.main()
