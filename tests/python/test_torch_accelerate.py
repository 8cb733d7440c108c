"""Scripts for accelerate run as a job by one other import: as by accelerate with DDP, resumed, and what is refused in one line."""

import json
import pathlib
import re
import socket
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import HERE  # noqa: E402
from torch_test import PYTHON, TorchTest, lockstep_run, run  # noqa: E402
from test_torch_libraries import is_there  # noqa: E402

WORKER = HERE / "torch_accelerate.py"
CASES = ("plain", "accumulates", "schedule", "value", "split", "bf16", "limit")

SCRIPT = """
import os, sys
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
import lockstep
from lockstep.accelerate import Accelerator
data = TensorDataset(torch.arange(64.0).reshape(64, 1) / 64, torch.arange(64) % 2)
loader = DataLoader(data, batch_size=8, shuffle=True)
def begin(**more):
    global job
    more["job"] = job = lockstep.init(run_dir=more.pop("run_dir", None))
    model = torch.nn.Linear(1, 2)
    opt = torch.optim.AdamW(model.parameters(), lr=0.1)
    return Accelerator(cpu=True, **more), model, opt
def loop(accelerator, model, opt, loader, epochs=2, at=lambda step: None):
    step = 0
    for epoch in range(epochs):
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(x), y))
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                opt.zero_grad()
            step += accelerator.sync_gradients
            at(step)
    return step
"""


@unittest.skipUnless(is_there("accelerate"), "LOCKSTEP_TORCH_PYTHON has no accelerate")
class AccelerateTest(TorchTest):
    def ranks(self, module, out):
        """Two processes, as torchrun starts them."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        where = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        workers = [package.start(WORKER, module, self.folder / out, *CASES, python=PYTHON, RANK=str(i), LOCAL_RANK=str(i), **where) for i in (0, 1)]
        try:
            said = [worker.communicate(timeout=package.TIMEOUT_S) for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
                worker.communicate()
        self.assertEqual([worker.returncode for worker in workers], [0, 0], said)
        self.assertEqual([len(re.findall("^main 0 ", out, re.MULTILINE)) for out, _ in said], [len(CASES), 0])
        return [json.loads((self.folder / f"{out}.{i}").read_text()) for i in (0, 1)]

    def test_it_trains_as_accelerate_by_ddp(self):
        theirs, *_ = self.ranks("accelerate", "ddp")
        for rank, ours in enumerate(self.ranks("lockstep.accelerate", "job")):
            for case in CASES:
                with self.subTest(case=case, rank=rank):
                    for name in ("step", "right", "length", "processes"):
                        self.assertEqual(ours[case][name], theirs[case][name], name)
                    for name in ("parameters", "seen"):
                        for a, b in zip(ours[case][name], theirs[case][name], strict=True):
                            self.assertAlmostEqual(a, b, delta=1e-5)
        self.assertEqual((theirs["accumulates"]["step"], theirs["limit"]["step"]), (9, 4))

    def test_a_script_resumes_with_its_job(self):
        """It dies in the second epoch, and goes on with that; the last state that it has saved is of all its steps."""
        script = self.script(SCRIPT + f"""
accelerator, model, opt = begin(gradient_accumulation_steps=2)
model, opt, loader = accelerator.prepare(model, opt, loader)
where = {str(self.folder / "state")!r}
def at(step):
    if accelerator.sync_gradients:
        accelerator.save_state(where)
    if step == int(sys.argv[1]):
        os._exit(1)
step = loop(accelerator, model, opt, loader, at=at)
accelerator.wait_for_everyone()
values = [v for p in model.parameters() for v in p.flatten().tolist()]
if accelerator.is_main_process:
    from safetensors.torch import load_file
    saved = load_file(where + "/model.safetensors")
    assert all(torch.equal(saved[name], value) for name, value in model.state_dict().items())
print("end", step, accelerator.job.round, *values, flush=True)
""")
        run_dir = ("-n", 2, "--run-dir", self.folder / "run", "--set", "liveness.timeout=60s", "--set", "job.join_timeout=10min")
        died = lockstep_run(*run_dir, script, 3)
        self.assertEqual(died.returncode, 1, died)
        done = lockstep_run(*run_dir, "--resume", script, -1)
        self.assertEqual(done.returncode, 0, done)
        ends = re.findall(r"\| end (.*)$", done.stdout, re.MULTILINE)
        self.assertEqual((len(ends), len(set(ends))), (2, 1), done.stdout)
        self.assertEqual(ends[0].split()[:2], ["2", "3"])  # two rounds of the second epoch
        self.assertEqual(done.stdout.count("save_state writes the model without the optimizer's state"), 1)
        summary = json.loads((self.folder / "run" / "summary.json").read_text())
        self.assertEqual((summary["status"], summary["rounds"]), ("completed", 4))

    def test_steps_after_several_batches_are_those_that_the_accelerator_knows_of(self):
        """As nlp_example.py of accelerate has them: the script divides the loss, and steps after two batches."""
        script = self.script(SCRIPT + """
by_hand, steps = sys.argv[1] == "by hand", int(sys.argv[2])
accelerator, model, _ = begin(gradient_accumulation_steps=steps)
opt = torch.optim.SGD(model.parameters(), lr=1.0)
model, opt, loader = accelerator.prepare(model, opt, loader)
if not by_hand:
    loop(accelerator, model, opt, loader)
for _ in range(2 if by_hand else 0):
    for i, (x, y) in enumerate(loader):
        accelerator.backward(F.cross_entropy(model(x), y) / 2)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        if i % 2 == 1:
            opt.step()
            opt.zero_grad()
print("end", accelerator.job.round, *(v for p in model.parameters() for v in p.flatten().tolist()), flush=True)
""")
        ends = {}
        for how, steps, status in (("accumulate", 2, 0), ("by hand", 2, 0), ("by hand", 1, 2)):
            done = lockstep_run("-n", 2, "--set", "liveness.timeout=60s", script, how, steps)
            with self.subTest(how=how, steps=steps):
                self.assertEqual(done.returncode, status, done)
            ends[how, steps] = sorted(set(re.findall(r"\| end (.*)$", done.stdout, re.MULTILINE)))
        (theirs,), (ours,), none = ends.values()
        self.assertEqual(none, [])
        self.assertIn("opt.step() was not called for this batch. To accumulate gradients over k batches, write Accelerator("
                      "gradient_accumulation_steps=k)", done.stdout)
        for a, b in zip(theirs.split(), ours.split(), strict=True):
            self.assertAlmostEqual(float(a), float(b), delta=1e-6)

    def test_what_cannot_be_meant_is_one_line_that_names_what_to_write(self):
        one_call = "model, opt, loader, sched = accelerator.prepare(model, opt, loader, sched)"
        prepared = "accelerator, model, opt = begin()\nmodel, opt, loader = accelerator.prepare(model, opt, loader)\n"
        cases = (
            ("begin(mixed_precision='fp16')", "mixed_precision='bf16' computes in bfloat16"),
            ("begin(step_scheduler_with_optimizer=False)", "step_scheduler_with_optimizer=False: leave it out"),
            ("begin(fsdp_plugin=1)", "fsdp_plugin: leave it out"),
            ("accelerator, model, opt = begin()\naccelerator.prepare(opt, loader)", one_call),
            ("accelerator, model, opt = begin()\naccelerator.prepare(model, opt)", one_call),
            ("accelerator, model, opt = begin()\naccelerator.prepare_optimizer(opt)", one_call),
            ("accelerator, model, opt = begin()\naccelerator.prepare(torch.optim.lr_scheduler.StepLR(opt, 1))", one_call),
            ("accelerator, model, opt = begin()\naccelerator.prepare(model, opt, opt, torch.optim.SGD(model.parameters()), loader)",
             "a second optimizer, and a job has one: make one module"),
            (prepared + "accelerator.load_state('state')", "begin the loop with epoch 0"),
            (prepared + "accelerator.skip_first_batches(loader, 2)", "begin the loop with epoch 0"),
            (prepared + "for x, y in loader:\n    accelerator.clip_grad_norm_([model.weight], 1.0)", "give it model.parameters()"),
            (prepared + "for x, y in loader:\n    accelerator.clip_grad_norm_(model.parameters(), 1.0, norm_type=1)", "leave norm_type out"),
        )
        self.assert_outcomes([(f"{SCRIPT}{script}\n", 2, message) for script, message in cases])
        # What they name, and prepare in two calls.
        script = self.script(SCRIPT + f"""
accelerator, model, opt = begin(mixed_precision="bf16", run_dir={str(self.folder / "run")!r})
sched = torch.optim.lr_scheduler.StepLR(opt, 1)
model = accelerator.prepare(model)
opt, loader, sched = accelerator.prepare(opt, loader, sched)
held = accelerator.prepare(DataLoader(data, batch_size=10))
steps = 0
for x, y in loader:
    accelerator.backward(F.cross_entropy(model(x), y))
    norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    steps += accelerator.sync_gradients
with accelerator.split_between_processes([1, 2, 3]) as all_of_them:
    print("end", steps, len(list(held)), len(all_of_them), bool(norm > 0), flush=True)
""")
        done = run(script)
        self.assertEqual(done.returncode, 0, done)
        self.assertIn("end 8 7 3 True", done.stdout)


if __name__ == "__main__":
    package.main_with_torch()
