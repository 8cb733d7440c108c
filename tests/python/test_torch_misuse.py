"""What a script may not do is one line and status 2."""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from torch_test import LOOP, PREPARE, SCRIPT, TorchTest, lockstep_run, run  # noqa: E402


class MisuseTest(TorchTest):
    def test_what_nobody_catches_is_one_line_and_its_status(self):
        self.assert_one_line(run(self.script(SCRIPT + "opt = torch.optim.LBFGS(model.parameters())\n" + PREPARE)), 2,
                             "LBFGS wants a closure, that computes the loss again, and a job computes it once: take one that wants none, as torch.optim.AdamW(")

    def test_a_closure_is_for_optimizers_that_call_it_once(self):
        own = "class Own(torch.optim.SGD):\n    def step(self, closure=None):\n        return super().step(closure)\nopt = Own(model.parameters(), lr=0.1)\n"
        loop = """
for epoch in range(2):
    for x, y in loader:
        def closure():
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss
        with torch.no_grad():
            assert opt.step(closure).requires_grad
assert job.metrics.round == 7
"""
        self.assert_outcomes([
            (SCRIPT + PREPARE + loop, 0, ""),
            (SCRIPT + "opt = torch.optim.AdamW(model.parameters())\n" + PREPARE + loop, 0, ""),
            (SCRIPT + own + PREPARE + loop, 2, "opt.step(closure) of Own is not supported, for it may call the closure more than once"),
        ])

    def test_what_is_not_supported_is_one_line_and_status_2(self):
        self.assert_outcomes([(SCRIPT + change + "\n" + PREPARE, 2, message) for change, message in (
                ("opt = torch.optim.SparseAdam(list(model.parameters()))", "SparseAdam is for sparse gradients, and those of a job are dense"),
                ("opt = torch.optim.Adamax(model.parameters(), differentiable=True)", "Adamax(differentiable=True) is not supported"),
                ("class Odd(torch.optim.SGD):\n    count = 0\n    def step(self, closure=None):\n        self.count += 1\n"
                 "opt = Odd(model.parameters(), lr=0.1)", "Odd keeps count outside of its state, and not as a number of a parameter group"),
                ("class Odd(torch.optim.SGD):\n    def step(self, closure=None):\n        self.__dict__.setdefault('_all', []).append(1)\n"
                 "opt = Odd(model.parameters(), lr=0.1)", "Odd keeps _all outside of its state"),
                ("class Odd(torch.optim.SGD):\n    _norm = 0.0\n    def step(self, closure=None):\n        self._norm += float(model.weight.grad.norm())\n"
                 "opt = Odd(model.parameters(), lr=0.1)", "Odd keeps _norm outside of its state"),
                ("class Odd(torch.optim.SGD):\n    def step(self, closure=None):\n        self.param_groups[0]['mean'].add_(1)\n"
                 "opt = Odd([{'params': list(model.parameters()), 'mean': torch.zeros(1)}], lr=0.1)", "Odd keeps mean of group 0 outside of its state"),
                ("class Odd(torch.optim.SGD):\n    def step(self, closure=None):\n        s = self.state[model.weight]\n"
                 "        s.update({'second': torch.zeros(1)} if s else {'first': torch.zeros(1)})\n"
                 "opt = Odd(model.parameters(), lr=0.1)", "Odd keeps something else after its second step than after its first"),
                ("model = nn.Sequential(nn.BatchNorm1d(1), model)\n"
                 "opt = torch.optim.Adagrad(model.parameters())\nloader = DataLoader(data, batch_size=9, shuffle=True)",
                 "the last batch of an epoch has one sample, and BatchNorm no statistics of it"),
                ("model = nn.Sequential(nn.BatchNorm1d(1), model)\nopt = torch.optim.Adagrad(model.parameters())\njob._settings['job.units'] = '8'",
                 "job.units = 8 of job.global_batch = 16 samples may have only one, and BatchNorm no statistics of it"),
                ("class Odd(torch.optim.SGD):\n    def step(self, closure=None):\n        self.state[model.weight]['all'] = [1, 2]\n"
                 "opt = Odd(model.parameters(), lr=0.1)", "Odd keeps all as list: not supported, only tensors and numbers"),
                ("class Odd(torch.optim.SGD):\n    def step(self, closure=None):\n        self.state['all']['n'] = 1\n"
                 "opt = Odd(model.parameters(), lr=0.1)", "Odd keeps a state that is of none of its parameters"),
                ("opt = torch.optim.NAdam(model.parameters()); job._settings['optimizer.name'] = 'sgd'",
                 "the job's optimizer is sgd, as its config says, and that of this script is none of the session's"),
                ("opt = torch.optim.NAdam(model.parameters()); job._settings['policy.name'] = 'local'",
                 "optimizer.name = custom and policy.name = local"),
                ("opt = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)", "parameters that the model does not have"),
                ("model = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1), nn.Linear(1, 2))\nmodel[1].weight.data = model[0].weight.data.t()\n"
                 "opt = torch.optim.SGD(model.parameters(), lr=0.1)", "0.weight and 1.weight share memory and are two parameters"),
                ("model = nn.Sequential(nn.SyncBatchNorm(1), model)", "0 is SyncBatchNorm: use BatchNorm"),
                ("model = nn.Sequential(nn.BatchNorm1d(1), model); opt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
                 "job._settings['exchange.dtype'] = 'bf16'", "exchange.dtype = bf16 would round running statistics"),
                ("model = nn.Sequential(nn.BatchNorm1d(1), model); opt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
                 "job._settings['exchange.compression'] = 'topk'", "exchange.compression = topk would leave out running statistics"),
                ("model = model.double()", "weight is float64: parameters are float32"),
                ("model = nn.Linear(1, 2, dtype=torch.complex64); opt = torch.optim.SGD(model.parameters(), lr=0.1)", "weight is complex64"),
                ("model = model.to('meta'); opt = torch.optim.SGD(model.parameters(), lr=0.1)", "weight is on meta"),
                ("class S(IterableDataset):\n    def __iter__(self): return iter([])\nloader = DataLoader(S(), batch_size=4)", "IterableDataset"),
                ("loader = [1, 2]", "list is no torch.utils.data.DataLoader"),
                ("sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt)\njob.prepare(model, opt, loader, sched, epochs=2)",
                 "the scheduler ReduceLROnPlateau follows a metric"),
                ("sched = torch.optim.lr_scheduler.LambdaLR(torch.optim.SGD(model.parameters(), lr=1), lambda n: 1)\n"
                 "job.prepare(model, opt, loader, sched, epochs=2)", "the scheduler is of another optimizer"),
                ("job.evaluate(None, [1])", "list is no torch.utils.data.DataLoader"),
                ("job.evaluate(None, DataLoader(data, batch_size=4, sampler=torch.utils.data.SubsetRandomSampler(range(9))))",
                 "the DataLoader of job.evaluate has the sampler SubsetRandomSampler, and all of its dataset is evaluated, each sample once: give a "
                 "torch.utils.data.Subset of what is to be"),
                ("job.evaluate(None, DataLoader(data, batch_size=4, sampler=torch.utils.data.RandomSampler(data, num_samples=9)))", "has the sampler RandomSampler"),
                ("job.evaluate(None, DataLoader(data, batch_size=4, sampler=torch.utils.data.RandomSampler(data, replacement=True)))", "has the sampler RandomSampler"),
                ("job.evaluate(None, DataLoader(data, batch_size=4, sampler=torch.utils.data.SequentialSampler(range(9))))", "has the sampler SequentialSampler"),
                ("job.evaluate(None, DataLoader(data, batch_size=4, sampler=torch.utils.data.DistributedSampler(data, 2, 0)))", "has the sampler DistributedSampler"),
                ("class Own(torch.utils.data.SequentialSampler): pass\njob.evaluate(None, DataLoader(data, batch_size=4, sampler=Own(data)))", "has the sampler Own"),
                ("job.evaluate(None, DataLoader(data, batch_sampler=[[0, 1], [2, 3]]))", "has the sampler list"),
                ("job.evaluate(None, DataLoader(data, batch_size=None))", "job.evaluate wants a DataLoader with a map-style dataset and a batch_size"),
                ("job.evaluate(None, loader, every_epochs=-1)", "every_epochs: -1 is not"),
                ("job.prepare(model, opt, loader, epochs=0)", "epochs: 0 is not a whole number from 1 on"),
                ("job.rank", "there is no job yet"),
                ("lockstep.init(settings={'policy': 'auto'})", "'policy' is not section.key"),
                ("job = lockstep.init(settings={'policy.name': 'autoo'})", "autoo"),
                ("lockstep.init(settings={'compute.precision': 'bf16'})", "settings: compute.precision is for lockstep-worker: of a PyTorch job model, data"),
                ("lockstep.init(settings={'model.names': 'cnn'})\nlockstep.init(settings={'model.dropout': 0.5})", "settings: model.dropout is for lockstep-worker"),
                ("job = lockstep.init(coordinator='nowhere')", 'coordinator "nowhere": expected HOST:PORT'))])

    def test_settings_that_change_nothing_are_said(self):
        """All that the configuration has for lockstep-worker's own models; where the job's config says them, one line each."""
        documented = {}
        for line in (package.ROOT / "docs" / "reference" / "configuration.md").read_text().splitlines():
            if (found := re.match(r"\| `((?:model|data|compute)\.\w+)` \| (?:`([^`]*)`|\(empty\)) \|", line)) and found[1] != "data.digest":
                documented[found[1]] = found[2] or ""
        self.assertGreater(len(documented), 10)
        done = run("-c", f"from lockstep import _settings\nassert _settings.OF_LOCKSTEP_WORKER == {documented!r}, _settings.OF_LOCKSTEP_WORKER\n")
        self.assertEqual(done.returncode, 0, done)
        done = lockstep_run("-n", "2", "--set", "model.dropout=0.5", self.script(SCRIPT + PREPARE + LOOP))
        self.assertEqual((done.returncode, done.stdout.count("changes nothing here")), (0, 1), done)
        self.assertIn("lockstep: model.dropout is 0.5, as the job's config says, which is for lockstep-worker and changes nothing here", done.stdout)

    def test_what_a_loop_may_not_do_is_one_line(self):
        inner = "        loss = F.cross_entropy(model(x), y)\n"
        cases = [(SCRIPT + "old = opt\n" + PREPARE + "for epoch in range(2):\n    for x, y in loader:\n" + body, status, message)
                 for body, status, message in (
                ("        pass\n", 2, "neither loss.backward() nor job.backward(loss) was called for this batch"),
                (inner + "        torch.autograd.backward(loss)\n        opt.step()\n", 2, "opt.step() was called without a backward of the loss"),
                (inner + "        job.backward(loss)\n", 2, "opt.step() was not called for this batch. To accumulate gradients over k batches"),
                (inner + "        job.backward(loss, reduction='max')\n", 2, "neither 'mean' nor 'sum'"),
                ("        job.backward(F.cross_entropy(model(x), y, reduction='none'))\n", 2, "the loss has"),
                (inner + "        job.backward(loss)\n        job.backward(loss)\n", 2, "called twice for one batch"),
                (inner + "        job.backward(loss)\n        opt.step()\n        model.zero_grad(set_to_none=False)\n", 2,
                 "gradients were changed behind job.backward"),
                (inner + "        job.backward(loss)\n        opt.step()\n        F.cross_entropy(model(x), y).backward()\n", 2,
                 "gradients were changed behind job.backward"),
                (inner + "        job.backward(loss)\n        opt.step()\n        with torch.no_grad():\n            model.weight.mul_(2)\n", 2,
                 "parameters were changed by the script"),
                (inner + "        job.backward(loss)\n        old.step()\n", 2, "this optimizer was given to job.prepare"),
                (inner + "        job.backward(loss * float('nan'))\n        opt.step()\n", 1, "is not finite (job.on_nan = stop)"),
                (inner + "        torch.autograd.backward(F.cross_entropy(model(x), y))\n        job.backward(loss)\n", 2, "gradients before job.backward"),
                (inner + "        F.cross_entropy(model(x), y).backward()\n        job.backward(loss)\n", 2, "called twice for one batch"),
                (inner + "        loss.register_hook(lambda g: 1 / 0)\n        try:\n            job.backward(loss)\n"
                 "        except ZeroDivisionError:\n            job.backward(F.cross_entropy(model(x), y))\n", 2, "cannot be tried again"),
                (inner + "        job.backward(loss)\n        break\n    break\nfor x, y in loader:\n    pass\n", 2, "was left before the step"),
                ("        break\n    break\nfor x, y in loader:\n    pass\n", 2, "neither loss.backward() nor job.backward(loss) was called"))]
        cases.append((SCRIPT.replace("run_dir=None", "run_dir=None, settings={'job.epochs': 9}") + PREPARE, 2, "would end before the job"))
        larger = SCRIPT.replace("run_dir=None", "settings={'job.global_batch': 32}")
        cases.append((larger + PREPARE.replace("epochs=2", "epochs=2, updates=4") + LOOP + "assert job.metrics.round == 3\n", 0, ""))
        cases.append((larger + PREPARE.replace("epochs=2", "epochs=2, updates=5") + LOOP, 2,
                      "the job has 5 rounds of 32 samples, as its config says, and the 2 epochs that job.prepare was told have 4"))
        cases.append((SCRIPT + PREPARE + LOOP + "for x in loader: pass\n", 2, "this is one more"))
        cases.append((SCRIPT + PREPARE + PREPARE, 2, "job.prepare was called twice"))
        # Whoever catches what its update raises is out of the job all the same, at once: others must not wait for it.
        cases.append((SCRIPT + """
class Odd(torch.optim.Adagrad):
    def step(self, closure=None):
        super().step()
        if armed:
            raise KeyboardInterrupt
armed = False
opt = Odd(model.parameters())
""" + PREPARE + """
armed = True
try:
    for x, y in loader:
        job.backward(F.cross_entropy(model(x), y))
        opt.step()
except KeyboardInterrupt:
    for x, y in loader:
        pass
""", 2, "an exception has ended an update of the job in the middle, so this worker has left it"))
        cases.append((SCRIPT + """
class Odd(torch.optim.Adagrad):
    def step(self, closure=None):
        super().step()
        self.param_groups[0]["lr"] *= 0.9
opt = Odd(model.parameters())
""" + PREPARE + LOOP, 2, "Odd changes its own rate, which is not supported"))
        cases.append((SCRIPT + PREPARE + "job.evaluate(None, loader._loader)\n", 2, "job.evaluate comes before job.prepare"))
        cases.append((SCRIPT + "job.evaluate(lambda model, batch: (0, 17), loader)\n" + PREPARE + LOOP, 2, "17 of 16 samples are right"))
        counting = SCRIPT + """
class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.teacher = nn.Linear(1, 2), nn.Linear(1, 2).requires_grad_(False)
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("table", torch.zeros(3), persistent=False)
    def forward(self, x):
        {}
        return self.inner(x)
model = Counting()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
""" + PREPARE + LOOP
        buffer = "the buffer seen changes in training"
        cases += [(counting.format(what), 2, buffer) for what in (
            "self.seen += len(x)", "self.seen.data.add_(len(x))", "self.seen = self.seen + len(x)", "self.seen.data = self.seen + len(x)",
            "self.seen = self.seen[1:]")]
        average = "for old, new in zip(self.teacher.parameters(), self.inner.parameters()): "
        teacher = "teacher.weight changes in training and is none of the optimizer's parameters"
        cases += [(counting.format(average + what), 2, teacher) for what in (
            "old.data.mul_(0.9).add_(new.data, alpha=0.1)", "old.data = 0.9 * old.data + 0.1 * new.data", "old.mul_(0.9)")]
        # The same values, and what is made anew of the batch and is no part of the model's state.
        cases += [(counting.format(what), 0, "") for what in (
            "self.seen = self.seen.clone()", "self.teacher.double().float()", "self.table = torch.arange(float(len(x)))")]
        two = SCRIPT + ("model = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 2))\nopt = torch.optim.SGD(model[0].parameters(), lr=0.1)\n"
                        "other = torch.optim.SGD(model[1].parameters(), lr=0.1)\n" + PREPARE + LOOP)
        cases.append((two + "        other.step()\n", 2, "1.weight changes in training and is none of the optimizer's parameters"))
        cases.append((two, 0, ""))
        norms = (SCRIPT + "model = nn.Sequential(nn.BatchNorm1d(1), model).eval()\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n" + PREPARE)
        cases.append((norms + "model.train()\n" + LOOP, 2, "0 was in eval mode at job.prepare: call model.train() before it"))
        cases.append((norms + LOOP, 0, ""))
        cases.append((SCRIPT + PREPARE + LOOP.replace("opt.step()", "opt.step()\n        break"), 0, ""))  # the rest comes next
        scheduled = ("sched = torch.optim.lr_scheduler.StepLR(opt, 2)\n"
                     "model, opt, loader, sched = job.prepare(model, opt, loader, sched, epochs=2{more})\n")
        epoch = scheduled.format(more=", scheduler_steps='epoch'")
        update = scheduled.format(more="")
        step = LOOP + "        sched.step()\n"
        for script, status, message in (
                (update + step, 0, ""),
                (update + LOOP + "    sched.step()\n", 0, ""),
                (scheduled.format(more=", scheduler_steps='update'") + LOOP + "    sched.step()\n", 2, "sched.step() was not called after opt.step()"),
                (update + LOOP, 2, "sched.step() was not called after the last pass"),
                (update + step + "        sched.step()\n", 2, "sched.step() was called without opt.step() before it"),
                (update + "sched.step()\n" + step, 2, "sched.step() was called more than once a pass over the loader, or before it"),
                (epoch + LOOP + "    sched.step()\n", 0, ""),
                (epoch + step, 2, "sched.step() was called more than once a pass over the loader"),
                (epoch + LOOP, 2, "sched.step() was not called after the last pass"),
                (scheduled.format(more=", scheduler_steps='batch'"), 2, "neither 'update' nor 'epoch'"),
                ("model.bias.requires_grad_(False)\n" + PREPARE + "model.bias.requires_grad_(True)\n" + LOOP, 2,
                 "bias was frozen in job.prepare and is not any more, but the job would not train it"),
                ("opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)\n" + PREPARE + "model.bias.requires_grad_(False)\n" + LOOP, 2,
                 "bias was frozen after job.prepare, but the optimizer would still move it, by momentum or weight decay"),
                (PREPARE + "model.bias.requires_grad_(False)\nbefore = model.bias.clone()\n" + LOOP + "assert torch.equal(model.bias, before)\n", 0, ""),
                ("model.bias.requires_grad_(False)\nbefore = model.bias.clone()\n" + PREPARE + LOOP + "assert torch.equal(model.bias, before)\n", 0, ""),
                ("torch.optim.lr_scheduler.StepLR(opt, 5)\nopt.param_groups[0]['lr'] = 0.0\nbefore = model.bias.clone()\n" + PREPARE + LOOP
                 + "assert opt.param_groups[0]['lr'] == 0.0 and torch.equal(job.state_dict()['bias'], before)\n", 0, ""),
                (PREPARE + LOOP + "        setattr(opt, 'rate', opt.param_groups[0].update(lr=0.05))\n", 2, "the optimizer's lr was changed from 0.1 to 0.05"),
                (PREPARE + LOOP + "        opt.param_groups[0]['momentum'] = 0.5\n", 2, "the optimizer's momentum was changed from 0 to 0.5"),
                ("raw = opt\n" + PREPARE + LOOP + "        raw.add_param_group({'params': [torch.zeros(1, requires_grad=True)]})\n", 2,
                 "has got a parameter group")):
            cases.append((SCRIPT + script, status, message))
        scaled = ("scaler = torch.amp.GradScaler('cpu', enabled={enabled})\n" + PREPARE + LOOP.replace("job.backward(loss)", "{backward}")
                  .replace("opt.step()", "scaler.step(opt)\n        scaler.update()"))
        for enabled, backward, status, message in (
                (True, "scaler.scale(loss).backward()", 0, ""),
                (True, "job.backward(scaler.scale(loss))", 0, ""),
                (True, "scaler.scale(loss).backward()\n        scaler.unscale_(opt)", 0, ""),
                (True, "loss.backward()\n        scaler.scale(loss)\n        scaler.unscale_(opt)", 2, "was of no loss that the scaler has returned"),
                (True, "(2 * scaler.scale(loss)).backward()", 2, "was of no loss that the scaler has returned"),
                (True, "job.backward(scaler.scale(loss), reduction='sum')", 2, "is to be a mean: reduction='sum' is not supported"),
                (False, "scaler.scale(loss).backward()", 0, "")):
            cases.append((SCRIPT + scaled.format(enabled=enabled, backward=backward), status, message))
        # The job's config has another batch than the script.
        other = SCRIPT.replace("run_dir=None", "settings={'job.global_batch': 32}")
        cases.append((other + epoch, 2, "the job has global_batch 32, as its config says, and the scheduler's epochs were counted in"))
        cases.append((other + update + "assert len(loader) == 2\n" + step, 0, ""))
        cases.append((other + "sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 8)\n"
                      + "model, opt, loader, sched = job.prepare(model, opt, loader, sched, epochs=2)\nrates = []\n"
                      + step + "        rates += [(job.round, sched.get_last_lr()[0])]\n"
                      + "assert max(abs(r - 0.05 * (1 + torch.cos(torch.tensor(torch.pi * i / 4)).item())) for i, r in rates) < 1e-6, rates\n",
                      0, ""))
        # A loop that is left by break leaves the model with the update of its last step.
        cases.append((SCRIPT + PREPARE + """
done, session = [], job._session
tell = session.done
session.done = lambda *arguments: (done.append(arguments), tell(*arguments))
for epoch in range(2):
    for x, y in loader:
        job.backward(F.cross_entropy(model(x), y))
        opt.step()
        break
    assert len(done) == job.next_round == epoch + 1
""", 0, ""))
        self.assert_outcomes(cases)

    def test_a_limit_of_the_gradients_norm_is_finite_and_0_is_none(self):
        """Also where the script's optimizer makes the updates and the gradients are clipped for it."""
        norms = "model = nn.Sequential(nn.BatchNorm1d(1), model)\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        clipped = PREPARE.replace("epochs=2", "epochs=2, clip_grad_norm={}")
        cases = []
        for more in ("", norms, "opt = torch.optim.NAdam(model.parameters())\n"):
            cases += [(SCRIPT + more + clipped.format(limit), 2, f"clip_grad_norm: {shown} is not a finite number from 0 on (0: no limit)")
                      for limit, shown in (("-1", "-1"), ("float('nan')", "nan"), ("float('inf')", "inf"), ("'much'", "'much'"))]
            run_of = SCRIPT + more + "{}" + LOOP + "found.append([p.tolist() for p in model.parameters()])\n"
            cases.append(("found = []\n" + run_of.format(PREPARE) + "job.close()\n" + run_of.format(clipped.format("0")) + "if found[0] != found[1]:\n"
                          "    raise lockstep.JobFailed('not the same')\n", 0, ""))
        self.assert_outcomes(cases)

    def test_parameters_are_changed_by_the_job_alone(self):
        """Other memory with the same values does no harm; other values are refused, wherever the script gives them to the parameters."""
        train = """
import copy, torch, lockstep
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.arange(64.0).reshape(64, 1) / 64, torch.arange(64) % 2)
def train(begin="", between="", within="", evaluation="", norm=False, epochs=3, make=torch.optim.SGD):
    global job
    job = lockstep.init()
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4) if norm else nn.Tanh(), nn.Flatten(), nn.Linear(4, 2))
    opt = make(model.parameters(), lr=0.1)
    p = model[0].weight
    def do(what):
        exec(what, globals(), {"model": model, "p": p, "job": job})
    if evaluation:
        def judge(model, batch):
            do(evaluation)
            return 0.0, 0
        job.evaluate(judge, DataLoader(data, batch_size=64))
    model, opt, loader = job.prepare(model, opt, DataLoader(data, batch_size=16, shuffle=True), epochs=epochs)
    do(begin)
    for epoch in range(epochs):
        for x, y in loader:
            F.cross_entropy(model(x[:, :, None, None].expand(-1, 2, 3, 3)), y).backward()
            opt.step()
            do(within)
        if job.running:
            do(between)
    return [*model.state_dict().values()]
"""
        harmless = ("model.to(memory_format=torch.channels_last)", "p.data = p.data.clone()", "model.double().float()", "model.cpu()",
                    "copy.deepcopy(model).half()", "model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()})",
                    "old = p.data.clone(); p.data.zero_(); p.data.copy_(old)", "old = p.data; p.data = torch.zeros_like(old); p.data = old")
        same = ("if not all(map(torch.equal, train(norm={norm}), train({where}={what!r}, norm={norm}))):\n"
                "    raise lockstep.JobFailed('not the same')\n")
        cases = [(train + same.format(norm=norm, where=where, what=what), 0, "") for what in harmless
                 for where, norm in (("begin", False), ("between", False), ("between", True), ("evaluation", False))]
        cases += [(train + same.format(norm=False, where="within", what=what), 0, "") for what in harmless if "load" not in what]
        # An optimizer that makes a gradient anew has the next one all the same.
        cases.append((train + """
class Anew(torch.optim.Adagrad):
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.data = p.grad.clone()
        super().step()
if not all(map(torch.equal, train(make=torch.optim.Adagrad), train(make=Anew))):
    raise lockstep.JobFailed("not the same")
""", 0, ""))
        other = ", with other values (model.half() and back rounds them): only the job's updates may change parameters"
        alone = "parameters were changed by the script after job.prepare"
        for what, message in (
                ("model.half().float()", "0.weight was given other memory after job.prepare" + other),
                ("p.data = p.data + 1", "0.weight was given other memory after job.prepare" + other),
                ("model.half()", "0.weight was made float16 of (4, 2, 3, 3) on cpu after job.prepare, where it was float32"),
                ("p.data = p.data[:3]", "0.weight was made float32 of (3, 2, 3, 3) on cpu after job.prepare"),
                ("p.data.clamp_(-0.01, 0.01)", alone + " (0.weight): only the job's updates"),
                ("model.load_state_dict({k: 0 * v for k, v in model.state_dict().items()})", alone + " (0.weight, 0.bias, 3.weight, ...)")):
            cases += [(train + f"train({where}={what!r})\n", 2, message) for where in ("begin", "between", "within", "evaluation")]
        gradients = "gradients were changed behind job.backward"
        cases += [(train + f"train(within={what!r})\n", 2, gradients) for what in ("p.grad = p.grad * 2", "p.grad.data = p.grad * 2")]
        hook = "    p.register_post_accumulate_grad_hook(lambda p: setattr(p, 'grad', None))"
        cases.append((train.replace("    do(begin)", hook) + "train()\n", 2, "the gradient of 0.weight was put elsewhere by a hook"))
        # One value of many, where all are looked at.
        large = train.replace("Conv2d(2, 4, 3)", "Conv2d(2, 4000, 3)").replace("Linear(4, 2)", "Linear(4000, 2)")
        cases += [(large + f"train({where}='p.data[1234, 0, 1, 2] += 1')\n", 2, alone) for where in ("begin", "between", "evaluation")]
        cases += [(train + f"train({where}='p.data.zero_(); job.stop(str())')\n", 2, alone) for where in ("begin", "between", "within")]
        assign = "model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)"
        cases += [(train + f"train({where}={assign!r})\n", 2, "0.weight of the model is another parameter than it was in job.prepare")
                  for where in ("begin", "between", "within", "evaluation")]
        self.assert_outcomes(cases)

    def test_what_the_returned_optimizer_is_not_for_is_one_line(self):
        given = "it of the script's own before, and give it to job.prepare"
        missing = "the optimizer that job.prepare has returned has no state: the updates are the job's"
        self.assert_outcomes([(SCRIPT + PREPARE + what + "\n", 2, message) for what, message in (
            ("torch.optim.lr_scheduler.StepLR(opt, 1)", "a scheduler was made of the optimizer that job.prepare has returned, or its step was replaced: make " + given),
            ("torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=9)", given),
            ("opt.step = lambda: None", given),
            ("opt.add_param_group({'params': [nn.Parameter(torch.zeros(1))]})", "takes no parameter group: give job.prepare all of them"),
            ("opt.register_step_post_hook(lambda *_: None)", "takes no step hook: give it to the script's own, before that"),
            ("opt.state[model.weight]", missing))] + [(SCRIPT + PREPARE + "if hasattr(opt, 'state') or not isinstance(opt, torch.optim.Optimizer):\n"
                                                       "    raise lockstep.JobFailed('strange')\n", 0, "")])

    def test_what_a_dataset_yields_is_looked_into(self):
        done = run(self.script("""
            import array, dataclasses, torch
            from collections import UserDict
            from lockstep._model import digest_inputs
            @dataclasses.dataclass
            class Sample:
                x: object
            alike = [lambda v: torch.tensor([v]), lambda v: array.array("i", [v]), lambda v: {"x": v}, lambda v: UserDict(x=v), lambda v: [(v,)],
                     Sample, str]
            try:
                import numpy
                alike += [lambda v: numpy.array([[v]]), numpy.int64, lambda v: numpy.array([str(v), None], dtype=object)]
            except ImportError:
                pass
            try:
                from PIL import Image
                alike.append(lambda v: Image.new("L", (2, 2), v))
            except ImportError:
                pass
            for make in alike:
                one, again, other = (list(digest_inputs([make(v)])) for v in (1, 1, 2))
                assert one == again and one != other, (one, again, other)
            """))
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)


if __name__ == "__main__":
    package.main_with_torch()
