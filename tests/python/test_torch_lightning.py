"""Lightning's Trainer is a worker: the same as Lightning alone, each sample once whatever moves, and what is refused."""

import collections
import json
import os
import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import harness  # noqa: E402
from torch_test import PYTHON, TorchTest, lockstep_run, run  # noqa: E402
from test_torch_models import has  # noqa: E402

SAMPLES, EPOCHS, BATCH = 120, 3, 24

SCRIPT = f"""
import sys, warnings
import torch, lockstep
import lightning.pytorch as pl
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
warnings.simplefilter("ignore")
where, alone, *words = sys.argv[1:]
class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
    def training_step(self, batch, batch_idx):
        x, y, samples = batch
        assert self.training and torch.is_grad_enabled()
        print("seen", self.current_epoch, self.global_step, *samples.tolist(), flush=True)
        loss = F.cross_entropy(self.net(x), y)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss
    def on_train_batch_end(self, outputs, batch, batch_idx):
        print("ended", self.current_epoch, self.global_step, float(self.checksum()), flush=True)
    def validation_step(self, batch, batch_idx):
        x, y, _ = batch
        assert not self.training and not torch.is_grad_enabled()
        self.log("val_loss", F.cross_entropy(self.net(x), y), sync_dist=True)
    def on_validation_end(self):
        print("validated", self.current_epoch, self.global_step, float(self.checksum()), flush=True)
    def checksum(self):
        return sum(p.detach().double().abs().sum() for p in self.parameters())
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.5)
draw = torch.Generator().manual_seed(1)
x = torch.randn({SAMPLES}, 4, generator=draw)
data = TensorDataset(x, (x.sum(1) > 0).long(), torch.arange({SAMPLES}))
train, held = DataLoader(data, batch_size={BATCH}), DataLoader(TensorDataset(*data[:30]), batch_size=10)
fit, settings, prepare = {{}}, {{}}, {{}}
saves = pl.callbacks.ModelCheckpoint(dirpath=where, monitor="val_loss", filename="{{epoch}}-{{step}}", save_top_k=-1)
more = {{"max_epochs": {EPOCHS}, "accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "logger": False,
        "callbacks": [saves], "num_sanity_val_steps": 1}}
torch.manual_seed(5)
#change
if alone == "0":
    import lockstep.lightning
    job = lockstep.init(seed=5, settings=settings)
    more["strategy"] = strategy = lockstep.lightning.Strategy(job=job, prepare=prepare)
module = Module()
trainer = pl.Trainer(**more)
trainer.fit(module, train, held, **fit)
print("end", trainer.current_epoch, trainer.global_step, float(module.checksum()), float(trainer.callback_metrics["val_loss"]), flush=True)
#after
"""


@unittest.skipUnless(has("lightning.pytorch"), "LOCKSTEP_TORCH_PYTHON has no lightning")
class LightningTest(TorchTest):
    def fit(self, name, *options, workers=2, change="", after="", status=0):
        """Of the job: what has been printed, by worker; its rounds."""
        self.where, self.run_dir = self.folder / f"{name}-files", self.folder / name
        script = self.script(SCRIPT.replace("#change", change).replace("#after", after))
        done = lockstep_run("-n", workers, "--run-dir", self.run_dir, "--set", "liveness.timeout=60s", *options, script, self.where, 0)
        self.assertEqual(done.returncode, status, done)
        lines = collections.defaultdict(list)
        for worker, line in re.findall(r"^worker (\d+) *\| (.*)$", done.stdout, re.MULTILINE):
            lines[int(worker)].append(line.split())
        return lines, self.rounds(self.run_dir) if status == 0 else done

    @staticmethod
    def said(lines, what):
        return [line[1:] for line in lines if line[0] == what]

    def alone(self, name, change=""):
        where = self.folder / f"{name}-alone"
        done = run(self.script(SCRIPT.replace("#change", change)), where, 1)
        self.assertEqual(done.returncode, 0, done)
        return [line.split() for line in done.stdout.splitlines()], where

    def assert_same(self, theirs, ours, share=1e-4):
        for what in ("ended", "validated", "end"):
            a, b = self.said(theirs, what), self.said(ours, what)
            self.assertEqual([words[:2] for words in a], [words[:2] for words in b])
            for one, other in zip(a, b, strict=True):
                for x, y in zip(one[2:], other[2:], strict=True):
                    self.assertAlmostEqual(float(x), float(y), delta=share * abs(float(x)))

    def test_full_is_what_lightning_alone_does(self):
        for name, change in (("sgd", ""),
                             ("by epochs", """
def configure(self):
    opt = torch.optim.NAdam(self.parameters(), lr=0.02)
    return [opt], [{"scheduler": torch.optim.lr_scheduler.ExponentialLR(opt, 0.5), "interval": "epoch"}]
Module.configure_optimizers = configure
more["gradient_clip_val"] = 0.3
"""),
                             ("by steps", """
def configure(self):
    opt = torch.optim.SGD(self.parameters(), lr=0.2)
    total = self.trainer.estimated_stepping_batches
    assert total == 12, total
    return [opt], [{"scheduler": torch.optim.lr_scheduler.OneCycleLR(opt, 0.4, total), "interval": "step"}]
Module.configure_optimizers = configure
more["max_steps"] = 12
""")):
            with self.subTest(name):
                alone, files = self.alone(name, change)
                lines, _ = self.fit(name, change=change)
                self.assertEqual(sorted(lines), [0, 1])
                for worker in lines:
                    self.assert_same(alone, lines[worker])
                # By worker 0 alone, under the names that Lightning gives.
                self.assertEqual(sorted(path.name for path in self.where.iterdir()), sorted(path.name for path in files.iterdir()))

    def test_accumulated_batches_are_a_round_as_lightning_alone_steps(self):
        """Alone each of the loader's batches is one of Lightning's, so their ends are counted otherwise; steps are not."""
        change = """
train = DataLoader(data, batch_size=8)
more |= {"accumulate_grad_batches": 3, "gradient_clip_val": 0.3, "precision": PRECISION}
def configure(self):
    opt = torch.optim.SGD(self.parameters(), lr=0.2)
    total = self.trainer.estimated_stepping_batches
    assert total == 15, total
    return [opt], [{"scheduler": torch.optim.lr_scheduler.OneCycleLR(opt, 0.4, total), "interval": "step"}]
Module.configure_optimizers = configure
"""
        for precision, share in (("32-true", 1e-4), ("bf16-mixed", 5e-3)):
            with self.subTest(precision):
                changed = change.replace("PRECISION", repr(precision))
                alone, _ = self.alone(precision, changed)
                lines, rounds = self.fit(precision, change=changed, after="assert trainer.accumulate_grad_batches == 3")
                self.assertEqual([line["samples"] for line in rounds], [BATCH] * 15)
                for said in lines.values():
                    self.assert_same([line for line in alone if line[0] != "ended"], [line for line in said if line[0] != "ended"], share)
                    self.assertEqual([int(words[1]) for words in self.said(said, "ended")], list(range(1, 16)))

    def test_epochs_and_steps_are_counted_in_rounds_of_the_jobs_own_batch(self):
        for name, change, rounds in (("steps", "more |= {'max_epochs': -1, 'max_steps': 5}", [60] * 5), ("epochs", "", [60] * 6)):
            with self.subTest(name):
                lines, of_job = self.fit(name, change=f"prepare = {{'global_batch': 60}}\n{change}\n")
                self.assertEqual([line["samples"] for line in of_job], rounds)
                self.assertEqual([line["epoch"] for line in of_job], [0, 0, 1, 1, 2, 2][: len(rounds)])
                for worker in lines:
                    self.assertEqual([int(words[1]) for words in self.said(lines[worker], "ended")], list(range(1, len(rounds) + 1)))
                    self.assertEqual(self.said(lines[worker], "end")[0][1], str(len(rounds)))

    def test_mixed_precision_is_what_lightning_alone_does(self):
        """Gradients of halves of a batch are rounded each by itself, so it is the same to 2^-8 or so."""
        change = """
more["precision"] = "bf16-mixed"
step = Module.training_step
def bf16(self, batch, batch_idx):
    assert self.net(batch[0]).dtype is torch.bfloat16
    assert all(p.dtype is torch.float32 for p in self.parameters())
    return step(self, batch, batch_idx)
Module.training_step = bf16
"""
        alone, _ = self.alone("bf16", change)
        lines, rounds = self.fit("bf16", change=change)
        for worker in lines:
            self.assert_same(alone, lines[worker], share=5e-3)
        harness.check_epochs(self, rounds, SAMPLES)

    def test_started_by_torchrun_and_by_srun(self):
        """Lightning looks for both by itself. Of srun there are the variables that it sets."""
        script = self.script(SCRIPT)
        more = {"LOCKSTEP_BUILD_DIR": str(package.BUILD)}
        done = run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, script, self.folder / "torchrun", 0, **more)
        self.assertEqual(done.returncode, 0, done)
        ends = re.findall(r"^end .*$", done.stdout, re.MULTILINE)
        self.assertEqual((len(ends), len(set(ends))), (2, 1), done.stdout)
        step = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NAME": "train", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0",
                "SLURM_NODEID": "0", "SLURM_NNODES": "1", "SLURM_STEP_NUM_NODES": "1", "SLURM_JOB_NODELIST": "localhost"}
        workers = [package.start(script, self.folder / "srun", 0, python=PYTHON, SLURM_PROCID=str(i), SLURM_LOCALID=str(i), **step) for i in (0, 1)]
        try:
            said = [worker.communicate(timeout=package.TIMEOUT_S) for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
                worker.communicate()
        self.assertEqual([worker.returncode for worker in workers], [0, 0], said)
        self.assertEqual({line for out, _ in said for line in out.splitlines() if line.startswith("end ")}, set(ends))

    def test_early_stopping_ends_the_job_in_good_order(self):
        """All workers see the same validation; the job has completed with the epoch after which they stop."""
        lines, rounds = self.fit("stops", change="""
class Stops(pl.Callback):
    def on_validation_end(self, trainer, module):
        if trainer.current_epoch == 1 and not trainer.sanity_checking:
            trainer.should_stop = True
more["callbacks"] = [*more["callbacks"], Stops()]
""", after="assert job.ended_early")
        summary = json.loads((self.run_dir / "summary.json").read_text())
        self.assertEqual(summary["status"], "completed")
        self.assertRegex(summary["reason"], r"\Aworker \d has ended the job: the Trainer has stopped training\Z")
        self.assertEqual({line["epoch"] for line in rounds}, {0, 1})
        ends = [self.said(lines[worker], "end") for worker in (0, 1)]
        self.assertEqual(ends[0], ends[1])

    STOPS = """
more["max_epochs"] = 8
Module.on_train_epoch_start = lambda self: print("begins", self.current_epoch, flush=True)
step = Module.training_step
def own(self, batch, batch_idx):
    self.log("own", 1.0 if job.rank == 0 else -float(self.current_epoch), on_step=False, on_epoch=True)
    return step(self, batch, batch_idx)
Module.training_step = own
#monitored
"""

    def test_early_stopping_by_what_one_worker_knows_is_said_and_stops_all(self):
        """Worker 0 alone has what it wants; the other one gets no epochs without a batch but the one in which it hears of that."""
        monitored = 'more["callbacks"] = [*more["callbacks"], pl.callbacks.EarlyStopping("own", patience=1, check_on_train_epoch_end=True)]'
        lines, _ = self.fit("own", change=self.STOPS.replace("#monitored", monitored), after="assert job.ended_early")
        first, second = ([int(words[0]) for words in self.said(lines[worker], "begins")] for worker in (0, 1))
        self.assertEqual(first, [0, 1])
        self.assertIn(second, ([0, 1], [0, 1, 2]))
        said = [" ".join(line) for worker in (0, 1) for line in lines[worker] if line[0] == "lockstep:"]
        warned = [line for line in said if line.startswith("lockstep: EarlyStopping monitors own, which training_step logs of each worker's own batches")]
        self.assertEqual(len(warned), 1, said)
        self.assertIn('self.log("loss_of_all", job.metrics["loss"]) in on_train_epoch_end', warned[0])
        self.assertEqual(len([line for line in said if "worker 1 stops training with it" in line]), len(second) - len(first), said)

    def test_early_stopping_by_the_job_s_own_number_is_the_same_on_all(self):
        monitored = """
Module.on_train_epoch_end = lambda self: self.log("loss_of_all", job.metrics["loss"])
more["callbacks"] = [*more["callbacks"], pl.callbacks.EarlyStopping("loss_of_all", patience=1, min_delta=9.0)]
"""
        lines, _ = self.fit("all", change=self.STOPS.replace("#monitored", monitored), after="assert job.ended_early")
        begun = [[words[0] for words in self.said(lines[worker], "begins")] for worker in (0, 1)]
        self.assertEqual(begun, [["0", "1"]] * 2)
        self.assertFalse([line for worker in (0, 1) for line in lines[worker] if line[0] == "lockstep:" and "top" in " ".join(line)])

    def test_each_sample_once_though_a_worker_is_slow(self):
        lines, rounds = self.fit("flexrr", "--policy", "flexrr", "--slowdown", "worker=1,factor=6", "--set", "emulate.unit_time=5ms", "--set", "job.units=12")
        harness.check_epochs(self, rounds, SAMPLES)
        self.assertEqual(len({line["epoch"] for line in rounds}), EPOCHS)
        self.assertTrue(any(line["moved"] for line in rounds), "no work has moved")
        # What counts is what the module has been given, in the step that Lightning counts for the round.
        for worker, said in lines.items():
            seen = collections.defaultdict(set)
            for _, step, *samples in self.said(said, "seen"):
                seen[int(step)].update(map(int, samples))
            for line in rounds:
                for part in line["contributors"]:
                    if part["worker"] == worker:
                        for first, end in part["ranges"]:
                            self.assertLessEqual(set(range(first, end)), seen[line["round"]])
            (end,) = self.said(said, "end")
            self.assertEqual([int(word) for word in end[:2]], [EPOCHS, len(rounds)])
            # After a round of Lightning's the parameters are those after it, on all workers.
        sums = {tuple(words[1:]) for said in lines.values() for what in ("ended", "validated") for words in self.said(said, what)}
        self.assertEqual(len(sums), len({words[0] for words in sums}), sums)

    def test_an_epoch_has_more_rounds_where_contributions_are_left_out(self):
        lines, rounds = self.fit("backup", "--policy", "backup", "--set", "backup.workers=1", "--slowdown", "worker=2,factor=8",
                                 "--set", "emulate.unit_time=5ms", "--set", "job.units=12", workers=3)
        harness.check_epochs(self, rounds, SAMPLES)
        self.assertGreater(len(rounds), EPOCHS * SAMPLES // BATCH)
        for said in lines.values():
            (end,) = self.said(said, "end")
            self.assertEqual([int(word) for word in end[:2]], [EPOCHS, len(rounds)])
            self.assertEqual(len(self.said(said, "validated")), EPOCHS + 1)  # with the one before it begins

    def test_a_checkpoint_is_lightning_s_and_what_is_kept_can_be_tested(self):
        lines, _ = self.fit("files", change="""
Module.test_step = Module.validation_step
""", after="""
if job.rank == 0:
    kept = torch.load(saves.best_model_path, weights_only=True)
    again = Module()
    again.load_state_dict(kept["state_dict"])
    assert torch.equal(again.checksum(), module.checksum()) and kept["optimizer_states"] == [{}], kept
    print("tested", trainer.test(module, held, ckpt_path=saves.best_model_path, verbose=False)[0]["val_loss"], flush=True)
""")
        (tested,) = self.said(lines[0], "tested")
        self.assertAlmostEqual(float(tested[0]), float(self.said(lines[0], "end")[0][3]), places=5)

    def test_a_checkpoint_that_only_worker_0_has_is_one_line_elsewhere(self):
        _, done = self.fit("own logs", change="import os\nsaves.dirpath += '/of-' + os.environ['LOCKSTEP_WORKER']",
                           after="Module.test_step = Module.validation_step\ntrainer.test(module, held, ckpt_path='best', verbose=False)", status=1)
        said = re.findall(r"^worker (\d) *\| lockstep: (ckpt_path: .*)$", done.stdout, re.MULTILINE)
        self.assertEqual([worker for worker, _ in said], ["1"], done.stdout)
        self.assertRegex(said[0][1], r"worker 1 finds no .*of-1/.*ckpt\. Write: if trainer\.is_global_zero: trainer\.test\(\.\.\.\)\Z")
        self.assertNotIn("Traceback", done.stdout + done.stderr)

    def test_the_seed_without_a_job_is_lightning_s(self):
        """And the module that is made next is as with Lightning alone."""
        script = self.script("""
import sys, torch, lightning.pytorch as pl, lockstep.lightning
if len(sys.argv) > 1:
    pl.seed_everything(int(sys.argv[1]), verbose=False)
drawn = torch.rand(1)
strategy = lockstep.lightning.Strategy()
print(strategy.job._seed, bool(torch.rand(1) == drawn))
""")
        said = [run(script, *seed).stdout.split() for seed in ((), (77,), (78,))]
        self.assertEqual([seed for seed, _ in said], ["1", "77", "78"])
        self.assertEqual([same for _, same in said][1:], ["True", "True"])

    def test_a_worker_that_is_started_again_goes_on(self):
        mark = self.folder / "mark"
        lines, rounds = self.fit("again", "--restart-workers", "1", change=f"""
import os, pathlib
class Dies(pl.Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if job.rank == 1 and trainer.global_step == 7 and not pathlib.Path({str(mark)!r}).exists():
            pathlib.Path({str(mark)!r}).touch()
            os.kill(os.getpid(), 9)
more["callbacks"].append(Dies())
""")
        self.assertTrue(mark.exists())
        harness.check_epochs(self, rounds, SAMPLES)
        (end,) = self.said(lines[0], "end")
        self.assertEqual([int(word) for word in end[:2]], [EPOCHS, len(rounds)])

    def test_a_loss_that_is_no_number_is_what_on_nan_says(self):
        poison = """
step = Module.training_step
def poisoned(self, batch, batch_idx):
    loss = step(self, batch, batch_idx)
    return loss * float("nan") if 50 in batch[2] else loss
Module.training_step = poisoned
"""
        lines, rounds = self.fit("skips", "--policy", "full", "--set", "job.on_nan=skip", change=poison)
        self.assertEqual([line["epoch"] for line in rounds if line.get("skipped")], list(range(EPOCHS)))
        for line in rounds:
            for part in line["contributors"]:
                self.assertFalse(any(first <= 50 < end for first, end in part["ranges"]), line)
        ends = [self.said(lines[worker], "end") for worker in (0, 1)]
        self.assertEqual(ends[0], ends[1])
        self.assertEqual(ends[0][0][:2], [str(EPOCHS), str(len(rounds))])
        self.assertNotIn("nan", ends[0][0])
        _, done = self.fit("poisoned", "--policy", "full", change=poison, status=1)
        self.assertIn("job.on_nan = stop", json.loads((self.run_dir / "summary.json").read_text())["reason"])
        self.assertEqual(done.stdout.count("is not finite (job.on_nan = stop)"), 3)  # the coordinator's and the workers'

    def test_a_job_that_has_died_goes_on_from_its_run_directory(self):
        self.fit("whole")
        whole = json.loads((self.run_dir / "summary.json").read_text())["params_digest"]
        dies = """
import os
class Dies(pl.Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.global_step == 7:
            os._exit(1)
"""
        self.fit("died", change=dies + 'more["callbacks"].append(Dies())', status=1)
        lines, rounds = self.fit("died", "--resume")
        harness.check_epochs(self, rounds, SAMPLES)
        self.assertEqual(json.loads((self.run_dir / "summary.json").read_text())["params_digest"], whole)
        for said in lines.values():
            self.assertEqual(self.said(said, "seen")[0][:2], ["1", "5"])  # behind the checkpoint of the first epoch
            (end,) = self.said(said, "end")
            self.assertEqual([int(word) for word in end[:2]], [EPOCHS, len(rounds)])

    def test_a_resumed_job_begins_with_the_epoch_that_it_is_in(self):
        """EarlyStopping after each epoch wants a validation before it."""
        change = """
import os
class Dies(pl.Callback):
    def on_train_epoch_start(self, trainer, module):
        print("epoch", trainer.current_epoch, flush=True)
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.global_step == DIES:
            os._exit(1)
more["callbacks"] += [Dies(), pl.callbacks.EarlyStopping("val_loss", patience=9, check_on_train_epoch_end=True)]
more["num_sanity_val_steps"] = 0
"""
        self.fit("died", change=change.replace("DIES", "12"), status=1)
        lines, rounds = self.fit("died", "--resume", change=change.replace("DIES", "-1"))
        harness.check_epochs(self, rounds, SAMPLES)
        for said in lines.values():
            self.assertEqual(self.said(said, "epoch"), [["2"]])
            self.assertEqual([words[:2] for words in self.said(said, "validated")], [["2", "15"]])
            self.assertEqual(self.said(said, "end")[0][:2], ["3", "15"])

    def test_ckpt_path_brings_the_state_of_callbacks_back(self):
        """The job dies in its third epoch, with checkpoints of both after the second one, of step 10. A loader of torchdata has its
        place from the job, and Lightning saves none."""
        change = ("from torchdata.stateful_dataloader import StatefulDataLoader as DataLoader\n" if has("torchdata.stateful_dataloader") else "") + """
train = DataLoader(data, batch_size=train.batch_size)
import os
class Dies(pl.Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.global_step == DIES:
            os._exit(1)
    def on_train_epoch_start(self, trainer, module):
        print("waits", trainer.current_epoch, trainer.global_step, stops.wait_count, len(saves.best_k_models), flush=True)
stops = pl.callbacks.EarlyStopping("val_loss", patience=9, min_delta=9.0)
more["callbacks"] += [stops, Dies()]
more["num_sanity_val_steps"] = 0
"""
        self.fit("died", change=change.replace("DIES", "12"), status=1)
        of_alone = self.alone("later")[1] / "epoch=2-step=15.ckpt"
        resumed = change.replace("DIES", "-1") + "fit['ckpt_path'] = {!r}\n"
        _, done = self.fit("died", "--resume", change=resumed.format(str(of_alone)), status=2)
        self.assertRegex(done.stdout, r"lockstep: ckpt_path: .* is of step 15, and the job goes on from step 10: give an older checkpoint")
        where = self.where / "epoch=1-step=10.ckpt"
        saves_none = "assert 'combined_loader' not in torch.load(fit['ckpt_path'], weights_only=False)['loops']['fit_loop']['state_dict']\n"
        lines, rounds = self.fit("died", "--resume", change=resumed.format(str(where)) + saves_none)
        harness.check_epochs(self, rounds, SAMPLES)
        for said in lines.values():
            self.assertEqual(self.said(said, "waits"), [["2", "10", "1", "2"]])
            self.assertEqual(self.said(said, "end")[0][:2], ["3", "15"])
        begun_anew = self.of_one(f"fit['ckpt_path'] = {str(where)!r}")
        self.assert_outcomes([(begun_anew, 2, 'give the Strategy job=lockstep.init(run_dir="runs/a", resume=True)')])

    def of_one(self, change):
        return f"import sys\nsys.argv = ['script', {str(self.folder / 'none')!r}, '0']\n" + SCRIPT.replace("#change", change)

    def test_what_cannot_be_meant_is_one_line(self):
        self.assert_outcomes([(self.of_one(change), 2, message) for change, message in (
            ("more['accumulate_grad_batches'] = 2\nprepare = {'global_batch': 12}", "both say how large a step is: leave one out"),
            ("more['callbacks'] = [pl.callbacks.GradientAccumulationScheduler({0: 2})]", "GradientAccumulationScheduler: say accumulate_grad_batches"),
            ("more['callbacks'] = [pl.callbacks.StochasticWeightAveraging(0.1)]", "StochasticWeightAveraging: the rate is the job's"),
            ("class Accumulates(pl.Callback):\n    def on_train_epoch_start(self, trainer, module):\n"
             "        trainer.accumulate_grad_batches = 2\nmore['callbacks'] = [Accumulates()]", "no optimizer step for a batch"),
            ("more['limit_train_batches'] = 1", "limit_train_batches"),
            ("more['fast_dev_run'] = True", "fast_dev_run"),
            ("more['overfit_batches'] = 2", "overfit_batches"),
            ("more['reload_dataloaders_every_n_epochs'] = 1", "reload_dataloaders_every_n_epochs"),
            ("more['precision'] = '64-true'", "precision='64-true'"),
            ("more['devices'] = 2", "devices, num_nodes: leave them out, and start the workers by lockstep run -n 2"),
            ("more['num_nodes'] = 2", "devices, num_nodes: leave them out"),
            ("more['max_epochs'] = -1", "max_epochs=-1"),
            ("more.update(gradient_clip_val=1, gradient_clip_algorithm='value')", "gradient_clip_algorithm='value'"),
            ("train = [train, train]", "several train dataloaders"),
            ("train = [1, 2]", "no torch.utils.data.DataLoader"),
            ("Module.optimizer_step = lambda self, epoch, batch_idx, optimizer, closure: None", "optimizer_step of the module"),
            ("Module.training_step = lambda self, batch, batch_idx: None", "without a backward of the loss before it"),
            ("def iterates(self, dataloader_iter):\n    pass\nModule.training_step = iterates", "dataloader_iter"),
            ("init = Module.__init__\ndef manual(self):\n    init(self)\n    self.automatic_optimization = False\n"
             "Module.__init__ = manual", "manual optimization"),
        )])
        done = run(self.script(SCRIPT.replace("#change", "more['fast_dev_run'] = True")), self.folder / "none", 0)
        self.assertEqual(done.returncode, 2, done)
        self.assertEqual(len(re.findall("^lockstep: fast_dev_run", done.stderr, re.MULTILINE)), 1, done)
        self.assertNotIn("Traceback", done.stderr)


if __name__ == "__main__":
    package.main_with_torch()
