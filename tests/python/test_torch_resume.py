"""A job whose coordinator and workers were all killed goes on from its last checkpoint, to the bits of one that was not."""

import contextlib
import json
import os
import pathlib
import re
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import HERE, harness  # noqa: E402
from torch_test import LOOP, PREPARE, PYTHON, SCRIPT, WORKER, TorchTest, lockstep_run, run  # noqa: E402


def children(pid):
    return [int(word) for task in pathlib.Path(f"/proc/{pid}/task").iterdir() for word in (task / "children").read_text().split()]


def kill_in_an_epoch(test, run_dir, in_epoch, *command):
    """Starts it, waits for a checkpoint in mid-epoch, and kills all processes, wherever they are by then. `in_epoch`: rounds."""
    def there():
        rounds = [int(path.stem.removeprefix("round-")) + 1 for path in (run_dir / "checkpoints").glob("*.json")]
        return any(done > in_epoch and done % in_epoch != 0 for done in rounds)

    process = package.start(*command, python=PYTHON, cwd=test.folder)
    others = []
    try:
        harness.wait_for("a checkpoint", lambda: there() or process.poll() is not None, seconds=120)
        others = children(process.pid)
    finally:
        process.kill()  # first, or it would end the others in good order
        for pid in others:
            with contextlib.suppress(ProcessLookupError):  # a script's coordinator ends with it
                os.kill(pid, signal.SIGKILL)
        out, _ = process.communicate(timeout=package.TIMEOUT_S)  # when all have closed their ends
    test.assertEqual(process.returncode, -signal.SIGKILL, out)
    return len(others)


class ResumeTest(TorchTest):
    def test_coordinator_and_workers_are_killed_and_started_again(self):
        for number, words in enumerate((["optimizer=adamw", "scheduler=cosine", "dropout=1"], ["optimizer=own", "scheduler=lambda", "dropout=1"],
                                        ["optimizer=sgd", "scheduler=exponential", "steps=epoch"])):
            with self.subTest(words):
                words = [WORKER, "epochs=6", "checkpoint=4", *words]
                whole, run_dir = self.folder / f"whole{number}", self.folder / f"run{number}"
                ends = [lockstep_run("-n", "2", "--run-dir", whole, *words)]
                self.assertEqual(ends[0].returncode, 0, ends)
                self.assertEqual(kill_in_an_epoch(self, run_dir, 9, "-m", "lockstep", "run", "-n", "2", "--run-dir", run_dir, *words), 3)
                ends.append(lockstep_run("-n", "2", "--resume", "--run-dir", run_dir, *words))
                self.assertEqual(ends[1].returncode, 0, ends)
                sums = [re.findall(r"\| parameters (.*)$", end.stdout, re.MULTILINE) for end in ends]
                self.assertEqual((len(sums[0]), len(set(sums[0] + sums[1]))), (2, 1), sums)
                digests = {json.loads((where / "summary.json").read_text())["params_digest"] for where in (whole, run_dir)}
                self.assertEqual(len(digests), 1)
                rounds = self.rounds(run_dir)
                harness.check_epochs(self, rounds, 500)
                self.assertEqual([line["loss"] for line in rounds], [line["loss"] for line in self.rounds(whole)])

    def test_a_script_that_starts_its_own_coordinator_goes_on_by_itself(self):
        words = [WORKER, "epochs=6", "checkpoint=4", "optimizer=own", "scheduler=lambda", "resume=1"]
        whole = run(*words, f"run_dir={self.folder / 'whole'}")  # there is none yet, so it begins
        self.assertEqual(whole.returncode, 0, whole)
        kill_in_an_epoch(self, self.folder / "run", 9, *words, f"run_dir={self.folder / 'run'}")
        again = run(*words, f"run_dir={self.folder / 'run'}")
        self.assertEqual(again.returncode, 0, again)
        said = [re.search(r"^parameters .*$", done.stdout, re.MULTILINE).group() for done in (whole, again)]
        self.assertEqual(said[0], said[1])
        self.assertNotEqual(whole.stdout, again.stdout)  # it has not begun anew
        harness.check_epochs(self, self.rounds(self.folder / "run"), 500)

    def test_a_job_of_torchrun_goes_on_when_it_is_started_again(self):
        words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", WORKER, "epochs=6", "checkpoint=4", "optimizer=own",
                 "scheduler=lambda", "resume=1"]
        whole = run(*words, f"run_dir={self.folder / 'whole'}")
        self.assertEqual(whole.returncode, 0, whole)
        self.assertEqual(kill_in_an_epoch(self, self.folder / "run", 9, *words, f"run_dir={self.folder / 'run'}"), 2)
        before = len(self.rounds(self.folder / "run"))
        again = run(*words, f"run_dir={self.folder / 'run'}")
        self.assertEqual(again.returncode, 0, again)
        sums = [re.findall(r"parameters (.*)$", done.stdout, re.MULTILINE) for done in (whole, again)]
        self.assertEqual((len(sums[0]), len(set(sums[0] + sums[1]))), (2, 1), sums)
        rounds = self.rounds(self.folder / "run")
        self.assertGreater(len(rounds), before)
        harness.check_epochs(self, rounds, 500)

    def test_statistics_of_norms_and_counts_go_on(self):
        script = self.script("""
            import sys, torch, lockstep
            import torch.nn.functional as F
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            draw = torch.Generator().manual_seed(3)
            x = torch.randn(200, 4, generator=draw)
            loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=50, shuffle=True)
            job = lockstep.init(seed=3, run_dir=sys.argv[1], resume="auto", settings={"checkpoint.every_rounds": 3, "emulate.unit_time": "20ms"})
            model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
            opt = torch.optim.SGD(model.parameters(), lr=0.1)
            model, opt, loader = job.prepare(model, opt, loader, epochs=12)
            for _ in range(12):
                for x, y in loader:
                    job.backward(F.cross_entropy(model(x), y))
                    opt.step()
            print({name: value.tolist() for name, value in job.state_dict().items()})
            """)
        whole = run(script, self.folder / "whole")
        self.assertEqual(whole.returncode, 0, whole)
        self.assertIn("'1.num_batches_tracked': 48", whole.stdout)
        kill_in_an_epoch(self, self.folder / "run", 4, script, self.folder / "run")
        again = run(script, self.folder / "run")
        self.assertEqual(again.stdout, whole.stdout)

    def test_with_drop_last_the_batch_stays_and_what_was_refused_is_not_kept(self):
        script = self.script("""
            import torch, lockstep
            from torch.utils.data import DataLoader, TensorDataset
            job = lockstep.init()
            model = torch.nn.Linear(1, 1)
            opt = torch.optim.SGD(model.parameters(), lr=0.1)
            loader = DataLoader(TensorDataset(torch.ones(100, 1)), batch_size=8, shuffle=True, drop_last=True)
            model, opt, loader = job.prepare(model, opt, loader, epochs=4)
            for _ in range(4):
                for (x,) in loader:
                    job.backward(model(x).square().mean())
                    opt.step()
            """)
        words = ["-n", "2", "--run-dir", self.folder / "run", "--set", "job.epochs=0"]
        done = lockstep_run(*words, "--set", "job.rounds=5", script)
        self.assertEqual(done.returncode, 0, done)
        refused = lockstep_run(*words, "--resume", "--set", "job.rounds=12", "--set", "job.global_batch=9", script)
        self.assertEqual(refused.returncode, 2, refused)
        self.assertIn("has 99 training samples, the checkpoint has 96; with drop_last an epoch has only whole batches of job.global_batch = 9: "
                      "has that or drop_last changed since the checkpoint?", refused.stdout)
        done = lockstep_run(*words, "--resume", "--set", "job.rounds=12", script)
        self.assertEqual(done.returncode, 0, done)

    def test_what_wrote_no_checkpoint_makes_room(self):
        folder = self.folder / "run"
        begin = SCRIPT.replace("run_dir=None", f"run_dir={str(folder)!r}, resume='auto'") + PREPARE
        dies, goes_on = self.folder / "dies.py", self.script(begin + LOOP)
        dies.write_text("import os\n" + begin + LOOP.replace("opt.step()\n", "opt.step()\n        if job.round == 3: os._exit(3)\n"))
        for number in (1, 2):
            self.assertEqual(run(dies).returncode, 3)
            self.assertTrue((folder / "rounds.jsonl").exists())
            done = run(goes_on if number == 2 else dies)
            self.assertEqual(done.returncode, 0 if number == 2 else 3, done)
            self.assertIn(f"wrote no checkpoint: its records are in {folder}/before-{2 * number - 1} now, and the job begins anew\n", done.stderr)
            self.assertTrue((folder / f"before-{2 * number - 1}" / "rounds.jsonl").exists())
        self.assertEqual(json.loads((folder / "summary.json").read_text())["status"], "completed")
        self.assertFalse((folder / "before-4").exists())

    def test_what_does_not_go_with_the_checkpoint_is_said(self):
        words = [WORKER, "epochs=6", "checkpoint=4", "optimizer=own", f"run_dir={self.folder / 'run'}"]
        kill_in_an_epoch(self, self.folder / "run", 9, *words)
        self.assert_one_line(run(*words), 2, "--resume")  # what is there is not lost by accident
        done = run(*words, "resume=1", "lr=0.1")
        self.assert_one_line(done, 2, "worker 0 has updates by OwnRule(lr=0.1, seen=0) ")
        self.assertIn("the checkpoint has updates by OwnRule(lr=0.05, seen=0) ", done.stderr)
        self.assert_outcomes([
            (SCRIPT.replace("run_dir=None", "resume=True"), 2, "resume needs the run_dir of the job to continue"),
            (SCRIPT.replace("run_dir=None", f"run_dir={str(self.folder)!r}, resume='yes'"), 2, "neither True nor False nor 'auto'"),
            (SCRIPT.replace("run_dir=None", "connect_timeout=0"), 2, "connect_timeout: 0 is not a number of seconds above 0"),
            (SCRIPT.replace("run_dir=None", f"run_dir={str(self.folder / 'empty')!r}, resume=True") + PREPARE + LOOP, 2, "holds no checkpoint"),
        ])
        self.assertFalse((self.folder / "empty").exists())


if __name__ == "__main__":
    package.main_with_torch()
