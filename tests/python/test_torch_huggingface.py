"""transformers' Trainer with what people use of it: as transformers alone, resumed with its own state, and what is refused in one line."""

import json
import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import HERE  # noqa: E402
from torch_test import TorchTest, lockstep_run, run  # noqa: E402
from test_torch_models import has  # noqa: E402

CASES = {"accumulates": 2e-6, "accumulates_means": 2e-6, "bf16": 0.05, "best": 1e-5, "stops_early": 1e-4}  # and how far apart parameters may be

RESUMES = """
import os, sys
sys.path[:0] = [{here!r}, {harness!r}]
import torch, lockstep, transformers
from harness import wait_for
from torch_huggingface import Data, gpt2
from lockstep.huggingface import Trainer
out, dies, *resume = sys.argv[1:]
class Patient(transformers.EarlyStoppingCallback):
    def on_train_begin(self, args, state, control, **more):
        print("begins", state.global_step, self.early_stopping_patience_counter, flush=True)
        super().on_train_begin(args, state, control, **more)
    def on_step_end(self, args, state, control, **_):
        print("step", state.global_step, flush=True)
        if int(dies) > 0 and state.global_step in (5, 9):  # a checkpoint that is due while one is written waits for it
            saved = os.path.join({run!r}, "checkpoints", f"round-{{state.global_step - 2:010}}.json")
            wait_for("the job's checkpoint", lambda: os.path.exists(saved))
        if state.global_step == int(dies):
            os._exit(1)
arguments = transformers.TrainingArguments(out, per_device_train_batch_size=2, gradient_accumulation_steps=2, num_train_epochs=3, report_to=[],
    use_cpu=True, disable_tqdm=True, logging_steps=1, save_strategy="steps", save_steps=4, eval_strategy="steps", eval_steps=4,
    metric_for_best_model="loss", restore_callback_states_from_checkpoint=True)
job = lockstep.init(settings={{"liveness.timeout": "120s"}}, **({{"run_dir": resume[1], "resume": "auto"}} if resume[1:] else {{}}))
trainer = Trainer(gpt2(), arguments, train_dataset=Data(), eval_dataset=Data(), job=job,
                  callbacks=[Patient(early_stopping_patience=5, early_stopping_threshold=10.0)])
trainer.train(resume_from_checkpoint={{"none": None, "true": True}}.get(resume[0], resume[0]))
log = trainer.state.log_history
print("logged", *(entry["step"] for entry in log if "loss" in entry), flush=True)
print("evaluated", *(entry["step"] for entry in log if "eval_loss" in entry), flush=True)
print("end", trainer.state.global_step, trainer.state.epoch, flush=True)
"""

REFUSED = """
import sys
sys.path.insert(0, {here!r})
import lockstep, transformers
from torch_huggingface import Data, gpt2
from lockstep.huggingface import Trainer
def train(prepare=None, **more):
    global job
    job = lockstep.init()
    arguments = {{"use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "no", "max_steps": 2, "per_device_train_batch_size": 4}}
    resume = more.pop("resume", None)
    trainer = Trainer(gpt2(), transformers.TrainingArguments({out!r}, **arguments | more), train_dataset=Data(), prepare=prepare, job=job)
    trainer.train(resume_from_checkpoint=resume)
    return trainer
"""


@unittest.skipUnless(has("transformers") and has("accelerate"), "LOCKSTEP_TORCH_PYTHON has no transformers, or no accelerate")
class HuggingfaceTest(TorchTest):
    def test_it_trains_as_transformers_alone(self):
        """Under torchrun, where transformers makes a process group; a job after the other."""
        script = HERE / "torch_huggingface.py"
        done = run(script, self.folder / "alone", 1, *CASES)
        self.assertEqual(done.returncode, 0, done)
        done = run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, script, self.folder / "job", 0, *CASES)
        self.assertEqual(done.returncode, 0, done)
        alone, *workers = (json.loads((self.folder / name).read_text()) for name in ("alone.0", "job.0", "job.1"))
        for case, apart in CASES.items():
            for rank, worker in enumerate(workers):
                with self.subTest(case=case, rank=rank):
                    theirs, ours = alone[case], worker[case]
                    for name in ("counted", "state") + (("saved",) if rank == 0 else ()):
                        self.assertEqual(ours[name], theirs[name], name)
                    self.assertEqual(ours["rates"], theirs["rates"])
                    for name, most in (("parameters", apart), ("losses", min(apart, 1e-3)), ("evaluated", apart), ("evaluated again", apart)):
                        pairs = list(zip(_flat(ours.get(name, [])), _flat(theirs.get(name, [])), strict=True))
                        self.assertLessEqual(max((abs(a - b) / max(1, abs(b)) for a, b in pairs), default=0), most, name)
        found = alone["best"]
        self.assertLess(found["state"][3], found["state"][0], "the last parameters are the best: the case shows nothing")

    def resumes(self):
        return RESUMES.format(here=str(HERE), harness=str(HERE.parent / "cluster"), run=str(self.folder / "run"))

    def resume(self, *words, script, status=0):
        done = lockstep_run("-n", 2, "--run-dir", self.folder / "run", "--set", "job.join_timeout=10min", *words[:-2], script, self.folder / "out", *words[-2:])
        self.assertEqual(done.returncode, status, done)
        return [re.findall(rf"^worker {worker} *\| (begins|step|logged|evaluated|end) (.*)$", done.stdout, re.MULTILINE) for worker in (0, 1)], done

    def test_a_resume_has_the_state_of_the_trainer(self):
        """The job dies after step 9, and the checkpoints of both are of step 8, in the second epoch of six steps."""
        script = self.script(self.resumes())
        self.resume("9", "none", script=script, status=1)
        lines, _ = self.resume("--resume", "-1", "true", script=script)
        for said in lines:
            steps = [int(words) for what, words in said if what == "step"]
            self.assertEqual(steps, list(range(9, 19)))
            told = {what: words for what, words in said if what != "step"}
            # The first evaluation is the best, the second one has counted.
            self.assertEqual(told["begins"], "8 1")
            self.assertEqual(told["logged"], " ".join(map(str, range(1, 19))))
            self.assertEqual(told["evaluated"], "4 8 12 16 18")
            self.assertEqual(told["end"], "18 3.0")

    def test_what_cannot_be_meant_is_one_line_that_names_what_to_write(self):
        begin = REFUSED.format(here=str(HERE), out=str(self.folder / "out"))
        cases = (
            ("train({'global_batch': 8}, gradient_accumulation_steps=2)", "both say how many samples a step has: leave one out"),
            ("train(fp16=True)", "bf16=True computes in bfloat16"),
            ("train(auto_find_batch_size=True)", "say per_device_train_batch_size"),
            ("train(resume=True)", 'job=lockstep.init(run_dir="runs/a", resume=True)'),
            ("train(resume='nowhere')", 'job=lockstep.init(run_dir="runs/a", resume=True)'),
            ("train(torch_compile=True)", "compile the model itself (model.compile())"),
        )
        self.assert_outcomes([(begin + f"{call}\n", 2, message) for call, message in cases])
        # What they name.
        script = self.script(begin + f"""
steps = [train(**more).state.global_step for more in (dict(gradient_accumulation_steps=2), dict(prepare={{'global_batch': 8}}),
         dict(bf16=True), dict(train_sampling_strategy='sequential'), dict(train_sampling_strategy='group_by_length'))]
print("steps", *steps)
""")
        done = run(script)
        self.assertEqual(done.returncode, 0, done)
        self.assertIn("steps 2 2 2 2 2", done.stdout)

    def test_a_job_of_a_script_s_own_coordinator_resumes(self):
        script = self.script(self.resumes())
        words = (script, self.folder / "out")
        died = run(*words, 10, "none", self.folder / "run")
        self.assertEqual(died.returncode, 1, died)
        older, newer = self.folder / "out" / "checkpoint-4", self.folder / "newer"
        newer.mkdir()
        state = json.loads((older / "trainer_state.json").read_text())
        (newer / "trainer_state.json").write_text(json.dumps(state | {"global_step": 99}))
        done = run(*words, -1, newer, self.folder / "run")
        self.assertEqual(done.returncode, 2, done)
        self.assertIn("is of step 99, and the job goes on from step 8: write resume_from_checkpoint=True", done.stderr)
        done = run(*words, -1, older, self.folder / "run")
        self.assertEqual(done.returncode, 0, done)
        self.assertRegex(done.stdout, r"(?m)^begins 8 0$")  # the state is of step 4
        self.assertRegex(done.stdout, r"(?m)^end 18 3.0$")


def _flat(values):
    return [x for value in values for x in (_flat(value) if isinstance(value, list) else [value])]


if __name__ == "__main__":
    package.main_with_torch()
