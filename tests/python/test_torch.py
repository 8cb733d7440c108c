"""Training with torch in a job comes to the same as with torch alone, whatever moves."""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import HERE  # noqa: E402
from torch_test import LOOP, PREPARE, SCRIPT, WORKER, TorchTest, lockstep_run, run  # noqa: E402


class SameAsTorchTest(TorchTest):
    def test_updates_are_those_of_torch(self):
        for words in (["optimizer=sgd"], ["optimizer=adamw"], ["optimizer=sgd", "scheduler=step"], ["optimizer=sgd", "clip=0.1"],
                      ["optimizer=adamw", "scheduler=cosine"], ["optimizer=sgd", "scheduler=exponential", "steps=epoch"],
                      ["optimizer=groups", "clip=0.1"], ["optimizer=groups", "scheduler=step"], ["optimizer=decay"], ["optimizer=sgd", "autocast=1"],
                      ["optimizer=groups", "dtype=bf16", "hidden=1600"]):
            with self.subTest(words):
                saved = self.folder / "saved.pt"
                words = [*words, "full_steps=1", "epochs=4"]
                done = run(WORKER, *words, f"save={saved}")
                self.assertEqual((done.returncode, done.stderr), (0, ""), done)
                self.assertIn("samples 2000 addresses 1", done.stdout)
                self.assertRegex(done.stdout, r"rule (sgd|adamw)\n")
                replayed = run(HERE / "torch_replay.py", saved, *words, PYTHONPATH=f"{package.ROOT / 'python'}:{HERE}")
                self.assertEqual(replayed.returncode, 0, replayed)
                print(*words, replayed.stdout.strip())

    def test_updates_of_any_optimizer_are_those_of_torch(self):
        """Those that the session has no rule for: the script's own optimizer makes them."""
        for words in (["optimizer=own"], ["optimizer=groups", "scheduler=cosine"], ["optimizer=adagrad", "scheduler=lambda"],
                      ["optimizer=nadam", "scheduler=exponential", "steps=epoch"], ["optimizer=adafactor"], ["optimizer=sgd", "scheduler=onecycle"]):
            with self.subTest(words):
                saved = self.folder / "saved.pt"
                words = [*words, "full_steps=1", "epochs=4"]
                done = run(WORKER, *words, f"save={saved}")
                self.assertEqual((done.returncode, done.stderr), (0, ""), done)
                self.assertIn("samples 2000 addresses 1", done.stdout)
                self.assertIn("rule custom\n", done.stdout)
                replayed = run(HERE / "torch_replay.py", saved, *words, PYTHONPATH=f"{package.ROOT / 'python'}:{HERE}")
                self.assertEqual(replayed.returncode, 0, replayed)
                print(*words, replayed.stdout.strip())

    def test_what_the_script_has_put_around_a_step_sees_the_updates_alone(self):
        """Of the optimizers that the session has rules for, too; what a scheduler of torch puts there is none of the script's."""
        hook = "opt.register_step_{}_hook(lambda *_: seen.append(1))\n"
        wrap = "raw = opt.step\ndef step(*_):\n    seen.append(1)\n    raw()\nopt.step = functools.wraps(raw)(step)\n"
        scheduler = "torch.optim.lr_scheduler.StepLR(opt, 1)\n"
        globally = "handle = register_optimizer_step_post_hook(lambda *_: seen.append(1))\n"
        begin = SCRIPT + "import functools\nfrom torch.optim.optimizer import register_optimizer_step_post_hook\nseen = []\n"
        check = ("if 'handle' in globals():\n    handle.remove()\nfound = len(seen), job.config['optimizer.name']\n"
                 "if found != {!r}:\n    raise lockstep.JobFailed(str(found))\n")
        cases = [(begin + opt + around + PREPARE + LOOP + check.format((8, "custom")), 0, "")
                 for opt in ("", "opt = torch.optim.AdamW(model.parameters())\n", "opt = torch.optim.NAdam(model.parameters())\n")
                 for around in (hook.format("pre"), hook.format("post"), globally, wrap, scheduler + wrap)]
        # A scheduler that is not given to prepare may set rates at any time, which takes the script's optimizer.
        cases += [(begin + around + PREPARE + LOOP + check.format((0, rule)), 0, "")
                  for around, rule in (("", "sgd"), (scheduler, "custom"), (2 * scheduler, "custom"))]
        cases += [(begin.replace("run_dir=None", "settings={'policy.name': 'local'}") + around + PREPARE, 2,
                   f"makes updates of synchronous rounds only. The script's optimizer makes the updates (custom) because {why}")
                  for around, why in ((hook.format("post"), "the optimizer has step hooks"), (wrap, "the optimizer's step is a function of the script's own"))]
        cases.append((begin + "old = opt\n" + PREPARE + hook.format("post").replace("opt", "old") + LOOP, 2, "has got a step hook after job.prepare"))
        self.assert_outcomes(cases)

    def test_an_optimizer_of_ones_own_goes_on_in_a_worker_that_is_started_again(self):
        """With all that it keeps: the parameters would differ else, which the coordinator sees."""
        words = ["optimizer=own", "scheduler=lambda", "full_steps=1"]
        single = run(WORKER, *words)
        self.assertEqual(single.returncode, 0, single)
        want = [float(x) for x in re.search(r"^parameters (.*)$", single.stdout, re.MULTILINE).group(1).split()]
        run_dir = self.folder / "run"
        done = lockstep_run("-n", "3", "--restart-workers", "1", "--set", "job.min_workers=3", "--run-dir", run_dir, "--set", "liveness.timeout=60s", WORKER, *words, "die=1",
                            f"mark={self.folder / 'died'}")
        self.assertEqual(done.returncode, 0, done)
        self.assertTrue((self.folder / "died").exists())
        sums = re.findall(r"\| parameters (.*)$", done.stdout, re.MULTILINE)
        self.assertEqual((len(sums), len(set(sums))), (3, 1), done.stdout)  # the same bits
        self.assertNotIn("differ", done.stdout)
        if not any(line["requeued"] for line in self.rounds(run_dir)):
            for a, b in zip(map(float, sums[0].split()), want, strict=True):
                self.assertAlmostEqual(a, b, delta=1e-4)

    def test_running_statistics_are_the_mean_of_all_workers(self):
        done = lockstep_run("-n", "4", HERE / "torch_norm.py", self.folder)
        self.assertEqual(done.returncode, 0, done)
        replayed = run(HERE / "torch_norm.py", self.folder, "replay")
        self.assertEqual(replayed.returncode, 0, replayed)
        print(replayed.stdout.strip())

    def test_norms_have_a_batch_though_work_moves_in_single_units(self):
        """BatchNorm1d of one sample is an error in torch, which would end one worker after the other."""
        script = self.script("""
            import os, torch, lockstep
            import torch.nn.functional as F
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            torch.manual_seed(3)
            x = torch.randn(1033, 4)
            loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=32, shuffle=True)
            job = lockstep.init(seed=3)
            model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
            model[1].num_batches_tracked.fill_(5 if os.environ["LOCKSTEP_WORKER"] == "0" else 0)  # who has loaded a model begins with its count
            opt = torch.optim.SGD(model.parameters(), lr=0.1)
            model, opt, loader = job.prepare(model, opt, loader, epochs=4)
            seen = set()
            for _ in range(4):
                for x, y in loader:
                    seen.add(len(x))
                    job.backward(F.cross_entropy(model(x), y))
                    opt.step()
            assert min(seen) > 1, seen
            print("tracked", int(model[1].num_batches_tracked), "sum", float(sum(v.double().sum() for v in model.state_dict().values())))
            """)
        run_dir = self.folder / "run"
        done = lockstep_run("-n", "3", "--policy", "flexrr", "--slowdown", "worker=2,factor=6", "--set", "emulate.unit_time=2ms",
                            "--run-dir", run_dir, script)
        self.assertEqual(done.returncode, 0, done)
        rounds = self.rounds(run_dir)
        self.assertTrue(any(line["moved"] for line in rounds))
        said = re.findall(r"\| tracked (\d+) sum (.*)$", done.stdout, re.MULTILINE)
        self.assertEqual((len(said), len(set(said))), (3, 1), done.stdout)
        self.assertEqual(int(said[0][0]), 5 + len(rounds))

    def test_a_model_whose_parameters_are_all_behind_reentrant_checkpoints(self):
        """The graph of the loss has none of them, as where adapters are trained within the blocks of a frozen model."""
        self.assert_outcomes([(SCRIPT + """
from torch.utils.checkpoint import checkpoint
class Within(nn.Linear):
    def forward(self, x):
        return checkpoint(super().forward, x.clone().requires_grad_(), use_reentrant=True)
model = Within(1, 2)
before = model.weight.detach().clone()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
""" + PREPARE + LOOP.replace("job.backward(loss)", "loss.backward()") + "assert not torch.equal(model.weight, before)\n", 0, "")])

    def test_a_model_draws_something_else_than_the_samples(self):
        """Noise that the dataset adds to a sample is not what the model draws for it."""
        self.assert_outcomes([(SCRIPT + """
class Noise(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.randn(4)
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Noise(), batch_size=1)
""" + PREPARE + """
for epoch in range(2):
    for x in loader:
        assert not torch.equal(x, torch.randn(1, 4))
        model(x).mean().backward()
        opt.step()
""", 0, "")])

    def test_an_instance_norm_does_not_count_batches(self):
        self.assert_outcomes([(SCRIPT + """
def made():
    torch.manual_seed(3)
    norm = nn.InstanceNorm1d(2, track_running_stats=True)
    model = nn.Sequential(nn.Linear(1, 6), nn.Unflatten(1, (2, 3)), norm, nn.Flatten(), nn.Linear(6, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)
job.close()
expected, opt = made()
for at in range(0, 64, 16):
    x, y = data[at : at + 16]
    opt.zero_grad()
    F.cross_entropy(expected(x), y).backward()
    opt.step()
job = lockstep.init()
model, opt = made()
model, opt, loader = job.prepare(model, opt, DataLoader(data, batch_size=16), epochs=1)
for x, y in loader:
    F.cross_entropy(model(x), y).backward()
    opt.step()
for (name, is_now), should in zip(model.state_dict().items(), expected.state_dict().values(), strict=True):
    torch.testing.assert_close(is_now, should, msg=name)
""", 0, "")])

    def test_a_parameter_without_values(self):
        """Beside one that is a number, so that there is no whole tensor of state."""
        for optimizer in ("SGD", "Adagrad"):
            self.assert_outcomes([(SCRIPT + f"""
model.register_parameter("nothing", nn.Parameter(torch.zeros(0, 4)))
model.register_parameter("number", nn.Parameter(torch.tensor(1.0)))
opt = torch.optim.{optimizer}(model.parameters(), lr=0.1)
""" + PREPARE + LOOP, 0, "")])

    def test_hooks_of_the_script_see_the_gradient_of_the_mean(self):
        """As in torch, where they limit it, and not that of the sum over the batch, nor what earlier batches of the update have added."""
        train = """
def made():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 2))
    model.spare = nn.Linear(2, 2)
    model.forward = lambda x: model[2](model[1](model[0](x)))
    {}
    return model, torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
job.close()
expected, opt = made()
for at in range(0, 64, 16):
    x, y = data[at : at + 16]
    opt.zero_grad()
    {}
    opt.step()
job = lockstep.init(settings={{"optimizer.linear_scaling": False}})
model, opt = made()
model, opt, loader = job.prepare(model, opt, DataLoader(data, batch_size={}), epochs=1, global_batch=16)
for x, y in loader:
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
for p, q in zip(model.parameters(), expected.parameters(), strict=True):
    torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
"""
        whole = "F.cross_entropy(expected(x), y).backward()"
        # What the hooks of each half make of it, as on two devices with DDP.
        halves = """
    grads = []
    for half in range(2):
        expected.zero_grad()
        F.cross_entropy(expected(x[8 * half : 8 * half + 8]), y[8 * half : 8 * half + 8]).backward()
        grads.append([p.grad for p in expected.parameters()])
    for p, *both in zip(expected.parameters(), *grads):
        p.grad = None if both[0] is None else (both[0] + both[1]) / 2"""
        of_each = "for p in model.parameters(): p."
        hooks = (of_each + "register_hook(lambda g: g.clamp(-0.02, 0.02))",
                 of_each + "register_post_accumulate_grad_hook(lambda p: [p.grad.clamp_(-0.02, 0.02)].clear())",
                 of_each + "register_post_accumulate_grad_hook(lambda p: setattr(p.grad, 'data', p.grad.sign()))",
                 of_each + "register_post_accumulate_grad_hook(lambda p: setattr(p, 'grad', p.grad.sign() * 0.1))",
                 "model[0].weight.register_hook(lambda g: g * 2); model[2].bias.register_hook(torch.sign)",
                 "model[1].register_full_backward_hook(lambda module, found, given: (found[0].sign() / 16,))")
        self.assert_outcomes([(SCRIPT + train.format(hook, how, batch), 0, "") for hook in hooks for how, batch in ((whole, 16), (halves, 8))])

    def test_zero_grad_tied_frozen_and_unused_parameters_and_dropout_are_as_in_torch(self):
        done = run(self.script(SCRIPT + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.unused = nn.Linear(1, 4), nn.Linear(4, 4), nn.Linear(3, 3)
        self.third = nn.Linear(4, 4)
        self.third.weight = self.second.weight
        self.last = nn.Linear(4, 2)
        self.last.bias.requires_grad_(False)
        self.drop = nn.Dropout(0.5)
    def forward(self, x):
        return self.last(self.drop(self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))))
model = Model()
frozen, unused, tied = model.last.bias.clone(), model.unused.weight.clone(), model.second.weight.clone()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
""" + PREPARE + LOOP.replace("        loss =", "        opt.zero_grad(); model.zero_grad()\n        loss =") + """
assert torch.equal(frozen, model.last.bias) and torch.equal(unused, model.unused.weight)
assert model.third.weight is model.second.weight and not torch.equal(tied, model.second.weight)
assert model.first.weight.grad is None
model(torch.ones(1, 1)).sum().backward()  # the model is the script's own again
print("whole")
"""))
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "whole\n", ""))


if __name__ == "__main__":
    package.main_with_torch()
