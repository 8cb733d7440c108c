"""Models and trainers of others: ResNet-18, GPT-2, transformers' Trainer. What wants transformers is skipped where it is missing."""

import json
import pathlib
import re
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import HERE, ROOT, harness  # noqa: E402
from torch_test import PYTHON, TorchTest, lockstep_run, run  # noqa: E402
from test_torch_resume import kill_in_an_epoch  # noqa: E402


def has(module):
    return subprocess.run([PYTHON, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0


class ModelsTest(TorchTest):
    def compare(self, words, parts, killed=False, options=()):
        words = [HERE / "torch_models.py", *words]
        run_dir, mark = self.folder / "-".join([*words[1:], str(killed)]), self.folder / "mark"
        options = [*options, *(["--restart-workers", "1", "--set", "job.min_workers=4", "--set", "liveness.timeout=60s"] if killed else [])]
        jobs = lockstep_run("-n", "4", "--run-dir", run_dir, *options, *words, *([f"die={mark}"] if killed else []), LOCKSTEP_LOG_LEVEL="info")
        self.assertEqual(jobs.returncode, 0, jobs)
        self.assertEqual(mark.exists(), killed)
        self.assertNotIn("differ from the majority's", jobs.stdout)  # which is put right, so losses do not tell
        self.assertNotIn("Traceback", jobs.stdout)
        losses = json.loads(re.search(r"losses (.*)$", jobs.stdout, re.MULTILINE).group(1))
        self.assertEqual(losses, [line["loss"] for line in self.rounds(run_dir)])
        self.compare_alone(words, parts, run_dir, eventful=killed or "--policy" in options)
        return [float(share) for share in re.findall(r"final before the end of a contribution's last run: (\S+) % of the blocks", jobs.stdout)]

    def compare_alone(self, words, parts, run_dir, eventful):
        """`eventful`: what another one has computed of a dead worker's share is a run of its own, and rounds may have fewer samples."""
        alone = run(*words, f"alone={parts}", *([f"as={run_dir}"] if eventful else []))
        self.assertEqual(alone.returncode, 0, alone)
        theirs = json.loads(re.search(r"losses (.*)$", alone.stdout, re.MULTILINE).group(1))
        rounds = self.rounds(run_dir)
        batch = next((int(word.removeprefix("batch=")) for word in words[1:] if word.startswith("batch=")), 16)
        harness.check_epochs(self, rounds, 10 * batch)
        difference = max(abs(a - line["loss"]) for a, line in zip(theirs, rounds, strict=True))
        print(*words[1:], f"{len(theirs)} updates, loss {theirs[0]:.4f} to {theirs[-1]:.4f}, largest difference {difference:.1e}")
        self.assertLess(difference, 1e-4)

    RESNET = ("model=resnet18", "width=8", "updates=12", "batch=32")
    GPT2 = ("model=gpt2", "width=32", "layers=2", "updates=12")

    def test_a_resnet_trains_as_alone(self):
        for optimizer in ("sgd", "adafactor"):  # by the script's optimizer, since it has norms
            with self.subTest(optimizer):
                self.compare([*self.RESNET, f"optimizer={optimizer}"], parts=4)

    def test_a_resnet_trains_as_alone_though_a_worker_is_killed(self):
        self.compare([*self.RESNET, "optimizer=adamw"], parts=4, killed=True)

    def test_a_resnet_trains_as_alone_where_contributions_are_left_out(self):
        self.compare([*self.RESNET, "optimizer=sgd"], parts=4, options=["--policy", "backup", "--slowdown", "worker=3,factor=5"])
        (run_dir,) = self.folder.glob("model*")
        self.assertTrue(any(line["requeued"] for line in self.rounds(run_dir)), "nothing was left out")

    @unittest.skipUnless(has("transformers"), "LOCKSTEP_TORCH_PYTHON has no transformers")
    def test_a_gpt2_trains_as_alone(self):
        for optimizer in ("sgd", "adamw"):
            with self.subTest(optimizer):
                # Over the network, where gradients travel early.
                final = self.compare([*self.GPT2, f"optimizer={optimizer}"], parts=1,
                                     options=["--set", "exchange.mapping=off", "--set", "exchange.transport=tcp"])
                self.assertEqual(len(final), 4)
                self.assertGreaterEqual(min(final), 95)

    @unittest.skipUnless(has("transformers"), "LOCKSTEP_TORCH_PYTHON has no transformers")
    def test_a_gpt2_with_an_optimizer_of_its_own_trains_as_alone_though_a_worker_is_killed(self):
        self.compare([*self.GPT2, "optimizer=adafactor"], parts=1, killed=True)

    @unittest.skipUnless(has("transformers"), "LOCKSTEP_TORCH_PYTHON has no transformers")
    def test_a_gpt2_goes_on_from_its_checkpoint(self):
        """Coordinator and workers are killed in an epoch: together both jobs have the losses of torch alone."""
        words = [HERE / "torch_models.py", "model=gpt2", "width=32", "layers=2", "updates=28", "optimizer=adafactor"]
        run_dir, slowly = self.folder / "run", ["checkpoint=3", "unit_time=20ms"]
        there = kill_in_an_epoch(self, run_dir, 10, "-m", "lockstep", "run", "-n", "2", "--run-dir", run_dir, *words, *slowly)
        self.assertEqual(there, 3)
        before = len(self.rounds(run_dir))
        done = lockstep_run("-n", "2", "--resume", "--run-dir", run_dir, *words, *slowly)
        self.assertEqual(done.returncode, 0, done)
        self.assertEqual(len(self.rounds(run_dir)), 28)
        self.assertLess(before, 28)
        self.compare_alone(words, 1, run_dir, eventful=False)


@unittest.skipUnless(has("transformers") and has("accelerate"), "LOCKSTEP_TORCH_PYTHON has no transformers, or no accelerate")
class TrainerTest(TorchTest):
    # What the Trainer does, by hand.
    HAND = """
import pathlib, sys
import torch, lockstep, transformers
sys.path.insert(0, sys.argv[1])
from trainer_gpt2 import Bytes, GPT2Config, GPT2LMHeadModel, TOKENS
from torch.utils.data import DataLoader
job = lockstep.init()
model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=TOKENS, n_embd=64, n_layer=2, n_head=4, use_cache=False,
                                   bos_token_id=0, eos_token_id=0))
plain = [p for name, p in model.named_parameters() if "ln" not in name and "bias" not in name]
rest = [p for name, p in model.named_parameters() if "ln" in name or "bias" in name]
opt = torch.optim.AdamW([{"params": plain, "weight_decay": 0.0}, {"params": rest, "weight_decay": 0.0}], lr=1e-3, fused=True)
loader = DataLoader(Bytes(pathlib.Path(sys.argv[2])), batch_size=16, shuffle=True, collate_fn=transformers.default_data_collator)
updates = 2 * len(loader)
sched = transformers.get_linear_schedule_with_warmup(opt, 0, updates)
model, opt, loader, sched = job.prepare(model, opt, loader, sched, epochs=2, clip_grad_norm=1.0)
for _ in range(2):
    for batch in loader:
        tokens = (batch["labels"] != -100).sum()  # as the Trainer counts for this class, the first one too
        job.backward(model(**batch, num_items_in_batch=tokens).loss, weight=tokens)
        opt.step()
        sched.step()
"""

    def test_transformers_trainer_is_a_worker(self):
        example = ROOT / "examples" / "pytorch" / "trainer_gpt2.py"
        text = self.folder / "text"
        text.write_text("straggler-tolerant synchronous training " * 60)
        where, run_dir = self.folder / "output", self.folder / "run"
        done = lockstep_run("-n", "2", "--run-dir", run_dir, example, "--text", text, "--epochs", "2", "--output", where)
        self.assertEqual(done.returncode, 0, done)
        rounds = self.rounds(run_dir)
        harness.check_epochs(self, rounds, 72)
        self.assertEqual(len(rounds), 10)
        self.assertEqual([line["divisor"] for line in rounds], [64 * line["samples"] for line in rounds])  # tokens
        # The mean over all workers, by worker 0 alone.
        logged = [float(x) for x in re.findall(r"'loss': '?([0-9.]+)", done.stdout)]
        means = [sum(line["loss"] for line in rounds[at : at + 5]) / 5 for at in (0, 5)]
        self.assertEqual(len(logged), 2, done.stdout)
        for a, b in zip(logged, means, strict=True):
            self.assertAlmostEqual(a, b, delta=1e-3 * b)
        self.assertEqual(len(re.findall(r"eval_loss", done.stdout)), 2, done.stdout)
        self.assertEqual(sorted(path.name for path in where.glob("checkpoint-*")), ["checkpoint-10", "checkpoint-5"])
        self.assertTrue((where / "model.safetensors").exists())
        hand = self.folder / "hand"
        done = lockstep_run("-n", "2", "--run-dir", hand, self.script(self.HAND), example.parent, text)
        self.assertEqual(done.returncode, 0, done)
        digests = [json.loads((each / "summary.json").read_text())["params_digest"] for each in (run_dir, hand)]
        self.assertEqual(*digests)

    # A sample whose loss is no number.
    POISONED = """
import sys, torch, transformers
import torch.nn.functional as F
from torch import nn
import lockstep.huggingface
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(1, 2)
    def forward(self, x, labels):
        logits = self.net(x)
        loss = F.cross_entropy(logits, labels)
        return {"loss": loss * float("nan") if (x == 37 / 64).any() else loss, "logits": logits}
data = [{"x": torch.tensor([i / 64]), "labels": torch.tensor(i % 2)} for i in range(64)]
arguments = transformers.TrainingArguments(output_dir=sys.argv[1], num_train_epochs=2, per_device_train_batch_size=16, use_cpu=True,
                                           report_to=[], save_strategy="no", disable_tqdm=True)
trainer = lockstep.huggingface.Trainer(model=Model(), args=arguments, train_dataset=data)
trainer.train()
print("end", trainer.state.global_step, *(v for p in trainer.model.parameters() for v in p.flatten().tolist()), flush=True)
"""

    def test_a_loss_that_is_no_number_is_what_on_nan_says(self):
        script = self.script(self.POISONED)
        done = lockstep_run("-n", "2", "--policy", "full", "--set", "job.on_nan=skip", "--run-dir", self.folder / "skip", script, self.folder / "out")
        self.assertEqual(done.returncode, 0, done)
        rounds = self.rounds(self.folder / "skip")
        self.assertEqual([line["epoch"] for line in rounds if line.get("skipped")], [0, 1])
        ends = re.findall(r"\| end 8 (.*)$", done.stdout, re.MULTILINE)
        self.assertEqual((len(ends), len(set(ends))), (2, 1), done.stdout)
        self.assertNotIn("nan", ends[0])
        done = lockstep_run("-n", "2", "--policy", "full", "--run-dir", self.folder / "stop", script, self.folder / "out")
        self.assertEqual(done.returncode, 1, done)
        self.assertIn("job.on_nan = stop", json.loads((self.folder / "stop" / "summary.json").read_text())["reason"])
        self.assertNotIn("Traceback", done.stdout)

    # With a dataset and arguments of the Trainer that a test puts in.
    ARGUMENTS = """
import os, sys
import torch, lockstep, transformers
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments
from lockstep import _torch
from lockstep.huggingface import Trainer
from torch.utils.data import Dataset, IterableDataset
def item(i):
    words = torch.arange(8) + i % 5
    return {"input_ids": words, "labels": words}
class Stream(IterableDataset):
    def __iter__(self):
        return map(item, range(100))
class Data(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, i):
        return item(i)
class Base(transformers.Trainer):  # of a script's own
    def get_train_dataloader(self):
        loader = super().get_train_dataloader()
        loader.worker_init_fn = began
        return loader
def began(number):
    open(f"{sys.argv[1]}/began{number}", "w").close()
class Mine(Trainer, Base):
    pass
def train(data, kind=Trainer, prepare=None, callbacks=None, **more):
    model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=2, use_cache=False, bos_token_id=0,
                                       eos_token_id=0))
    arguments = TrainingArguments(f"{sys.argv[1]}/output", per_device_train_batch_size=8, report_to=[], use_cpu=True, disable_tqdm=True,
                                  **{"save_strategy": "no", **more})
    trainer = kind(model, arguments, train_dataset=data, eval_dataset=Data(), job=lockstep.init(), prepare=prepare, callbacks=callbacks)
    trainer.train()
    return trainer
"""

    def test_a_stream_has_the_epochs_that_the_script_says(self):
        run_dir = self.folder / "run"
        script = self.script(self.ARGUMENTS + "trainer = train(Stream(), prepare={'samples': 30}, max_steps=6)\n"
                             "assert (trainer.state.global_step, trainer.state.epoch) == (6, 1.5), trainer.state\n")
        done = lockstep_run("-n", "2", "--run-dir", run_dir, "--set", "liveness.timeout=60s", script, self.folder)
        self.assertEqual(done.returncode, 0, done)
        of_rounds = [(line["epoch"], sum(one["samples"] for one in line["contributors"])) for line in self.rounds(run_dir)]
        self.assertEqual(of_rounds, [(0, 8), (0, 8), (0, 8), (0, 6), (1, 8), (1, 8)])
        cases = (("", "say with prepare={'samples': N} how many of its items"), (", prepare={'samples': 0}", "samples: 0 is not"),
                 (", prepare={'samples': 5}, dataloader_drop_last=True", "so nothing is left"))
        scripts = [self.ARGUMENTS.replace("sys.argv[1]", repr(str(self.folder))) + f"train(Stream(), max_steps=6{more})" for more, _ in cases]
        self.assert_outcomes([(script, 2, message) for script, (_, message) in zip(scripts, cases, strict=True)])

    def test_epochs_and_schedule_are_counted_in_rounds_of_the_jobs_own_batch(self):
        run_dir = self.folder / "run"
        script = self.script(self.ARGUMENTS + "trainer = train(Data(), prepare={'global_batch': 12}, num_train_epochs=2, logging_steps=1)\n"
                             "state = trainer.state\nassert (state.global_step, state.max_steps, state.epoch) == (4, 4, 2), state\n"
                             "print('rates', *(entry['learning_rate'] for entry in state.log_history if 'learning_rate' in entry), flush=True)\n")
        done = lockstep_run("-n", "2", "--run-dir", run_dir, "--set", "liveness.timeout=60s", script, self.folder)
        self.assertEqual(done.returncode, 0, done)
        rounds = self.rounds(run_dir)
        self.assertEqual([(line["epoch"], line["samples"]) for line in rounds], [(0, 12), (0, 12), (1, 12), (1, 12)])
        rates = [float(rate) for rate in re.search(r"\| rates (.*)$", done.stdout, re.MULTILINE)[1].split()]
        for rate, left in zip(rates, (1, 0.75, 0.5, 0.25), strict=True):
            self.assertAlmostEqual(rate, 5e-5 * left, delta=1e-10)

    def test_stopping_early_at_the_end_of_an_epoch_ends_the_job_in_good_order(self):
        run_dir = self.folder / "run"
        script = self.script(self.ARGUMENTS + """
stops = transformers.EarlyStoppingCallback(early_stopping_patience=1, early_stopping_threshold=10.0)
trainer = train(Data(), callbacks=[stops], num_train_epochs=5, eval_strategy="epoch", metric_for_best_model="loss")
print("end", trainer.state.global_step, trainer.job.ended_early, flush=True)
""")
        done = lockstep_run("-n", "2", "--run-dir", run_dir, "--set", "liveness.timeout=60s", script, self.folder)
        self.assertEqual(done.returncode, 0, done)
        self.assertEqual(re.findall(r"\| end (.*)$", done.stdout, re.MULTILINE), ["6 True"] * 2)
        summary = json.loads((run_dir / "summary.json").read_text())
        self.assertEqual(summary["status"], "completed")
        self.assertRegex(summary["reason"], r"\Aworker \d has ended the job: the Trainer has stopped training\Z")
        self.assertEqual([line["epoch"] for line in self.rounds(run_dir)], [0, 0, 0, 1, 1, 1])

    def test_an_epoch_has_more_rounds_where_contributions_are_left_out(self):
        run_dir = self.folder / "run"
        script = self.script(self.ARGUMENTS + """
trainer = train(Data(), num_train_epochs=4, eval_strategy="steps", eval_steps=1000)
ends = [entry["step"] for entry in trainer.state.log_history if "eval_loss" in entry]
print("end", trainer.state.global_step, trainer.state.max_steps, *ends, trainer.job.ended_early, flush=True)
""")
        done = lockstep_run("-n", "3", "--run-dir", run_dir, "--set", "liveness.timeout=60s", "--policy", "backup", "--set", "backup.workers=1",
                            "--slowdown", "worker=2,factor=8", "--set", "emulate.unit_time=5ms", "--set", "job.units=4", script, self.folder)
        self.assertEqual(done.returncode, 0, done)
        rounds = self.rounds(run_dir)
        harness.check_epochs(self, rounds, 24)
        self.assertEqual({line["epoch"] for line in rounds}, set(range(4)))
        self.assertGreater(len(rounds), 4 * 3)
        # It ends where the Trainer would, with its last evaluation.
        self.assertEqual(re.findall(r"\| end (.*)$", done.stdout, re.MULTILINE), [f"{len(rounds)} {len(rounds)} {len(rounds)} False"] * 3)

    def test_a_job_that_has_died_goes_on_without_the_epochs_that_are_over(self):
        script = self.script(self.ARGUMENTS + """
class Dies(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if state.global_step == int(sys.argv[2]):
            os._exit(1)
trainer = train(Data(), num_train_epochs=4, eval_strategy="epoch", logging_steps=1, callbacks=[Dies()])
state = trainer.state
print("end", state.global_step, state.epoch, *(entry["step"] for entry in state.log_history if "eval_loss" in entry), flush=True)
print("losses", *(entry["loss"] for entry in state.log_history if "loss" in entry), flush=True)
""")
        words = ("-n", "2", "--run-dir", self.folder / "run", "--set", "liveness.timeout=60s")
        died = lockstep_run(*words, script, self.folder, 7)
        self.assertEqual(died.returncode, 1, died)
        done = lockstep_run("--resume", *words, script, self.folder, 0)
        self.assertEqual(done.returncode, 0, done)
        self.assertEqual(re.findall(r"\| end (.*)$", done.stdout, re.MULTILINE), ["12 4.0 9 12"] * 2)
        for line in re.findall(r"\| losses (.*)$", done.stdout, re.MULTILINE):
            for logged, round_ in zip(map(float, line.split()), self.rounds(self.folder / "run")[6:], strict=True):
                self.assertAlmostEqual(logged, round_["loss"], places=4)

    def test_what_is_due_in_rounds_without_a_part_of_this_worker_comes_after_them(self):
        """Worker 0 is slow, and has no part in about one round of each epoch of five, of which every other one is to be saved."""
        script = self.script(self.ARGUMENTS + """
class Tells(transformers.TrainerCallback):
    def tell(self, what, state, model):
        print(what, state.global_step, float(sum(p.detach().double().abs().sum() for p in model.parameters())), flush=True)
    def on_step_end(self, args, state, control, model, **_):
        self.tell("at", state, model)
    def on_save(self, args, state, control, model, **_):
        self.tell("saved", state, model)
trainer = train(Data(), num_train_epochs=10, save_strategy="steps", save_steps=2, callbacks=[Tells()])
""")
        done = lockstep_run("-n", "3", "--run-dir", self.folder / "run", "--set", "liveness.timeout=60s", "--policy", "backup", "--set",
                            "backup.workers=1", "--slowdown", "worker=0,factor=20", "--set", "emulate.unit_time=20ms", "--set", "job.units=4",
                            script, self.folder)
        self.assertEqual(done.returncode, 0, done)
        said = re.findall(r"^worker (\d) *\| (at|saved) (\d+) (\S+)$", done.stdout, re.MULTILINE)
        steps = [int(step) for worker, what, step, _ in said if (worker, what) == ("0", "at")]
        pairs = list(zip([0, *steps], steps))
        self.assertTrue(any(b % 2 and b // 2 > a // 2 for a, b in pairs[:-1]), f"nothing was jumped over: {steps}")
        due = {b for a, b in pairs if b // 2 > a // 2} | {steps[-1]}
        self.assertEqual({int(step) for worker, what, step, _ in said if (worker, what) == ("0", "saved")}, due)
        self.assertEqual({int(path.name.removeprefix("checkpoint-")) for path in (self.folder / "output").glob("checkpoint-*")}, due)
        # With the parameters that all have after so many.
        self.assertEqual(len({line[2:] for line in said}), len({step for *_, step, _ in said}), said)

    def test_bf16_computes_in_bfloat16_and_keeps_the_parameters(self):
        run_dir, script = self.folder / "run", self.ARGUMENTS + """
seen = set()
def note(module, _, output):
    seen.add((module.training, output.dtype))
    assert module.weight.dtype is torch.float32
hooked = GPT2LMHeadModel.__init__
def hooks(model, config):
    hooked(model, config)
    model.transformer.h[0].mlp.c_fc.register_forward_hook(note)
GPT2LMHeadModel.__init__ = hooks
trainer = train(Data(), num_train_epochs=2, eval_strategy="epoch", bf16=True)
assert seen == {(True, torch.bfloat16), (False, torch.bfloat16)}, seen
print("end", *(v for p in trainer.model.parameters() for v in p.flatten().tolist()), flush=True)
"""
        done = lockstep_run("-n", "2", "--run-dir", run_dir, "--set", "liveness.timeout=60s", self.script(script), self.folder)
        self.assertEqual(done.returncode, 0, done)
        ends = re.findall(r"\| end (.*)$", done.stdout, re.MULTILINE)
        self.assertEqual((len(ends), len(set(ends))), (2, 1), done.stdout)
        self.assertEqual(len(self.rounds(run_dir)), 6)

    def test_what_cannot_be_meant_is_one_line(self):
        begin = self.ARGUMENTS.replace("sys.argv[1]", repr(str(self.folder))) + """
class StopsEpoch(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        control.should_epoch_stop = True
"""
        self.assert_outcomes([(begin + f"trainer = train(Data(), {more})\njob = trainer.job\ntrainer.train()\n", 2, message) for more, message in (
            ("max_steps=2", "trainer.train was called twice: a job trains once"),
            ("max_steps=2, callbacks=[StopsEpoch()]", "should_epoch_stop: an epoch of a job has each sample once"),
            ("max_steps=2, fp16=True", "fp16: parameters and gradients are float32; bf16=True computes in bfloat16"),
            ("max_steps=2, torch_compile=True", "torch_compile: compile the model itself (model.compile())"),
        )])

    def test_what_the_arguments_say_of_the_loader_holds(self):
        script = self.ARGUMENTS + """
pinned = []
def pin(tensor, *_):
    pinned.append(tensor)
    return tensor
torch.Tensor.pin_memory = pin
_torch.accelerator = lambda: ACCELERATOR
use_cpu = TrainingArguments.__post_init__
def pins_all_the_same(arguments):  # it takes it back with use_cpu
    use_cpu(arguments)
    arguments.dataloader_pin_memory = True
TrainingArguments.__post_init__ = pins_all_the_same
train(Data(), Mine, max_steps=2, dataloader_num_workers=2, dataloader_multiprocessing_context=HOW)
print("pinned", len(pinned), sorted(name for name in os.listdir(sys.argv[1]) if name.startswith("began")))
"""
        for accelerator, how, count in (("cuda", "fork", 4), (None, None, 0)):
            with self.subTest(accelerator=accelerator):
                done = run(self.script(script.replace("ACCELERATOR", repr(accelerator)).replace("HOW", repr(how))), self.folder,
                           PYTHONWARNINGS="default::UserWarning")
                self.assertEqual(done.returncode, 0, done)
                self.assertIn(f"pinned {count} ['began0', 'began1']", done.stdout)
                self.assertNotIn("the DataLoader's pin_memory is not used", done.stderr)
                for path in self.folder.glob("began*"):
                    path.unlink()
        # They run the script for what it defines, which one without a guard may not.
        done = run(self.script(script.replace("ACCELERATOR", "None").replace("HOW", "'spawn'")), self.folder)
        self.assertEqual(done.returncode, 2, done)
        self.assertIn("the script runs again in a loader process", done.stderr)


if __name__ == "__main__":
    package.main_with_torch()
