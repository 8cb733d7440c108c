"""What cannot be meant is refused with a line that says what to write instead, and what it says is run here.

Each case is a script that is refused, what the line names, and a script that has it and trains. All of them run in one process.
"""

import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from torch_test import LOOP, PREPARE, SCRIPT, TorchTest, lockstep_run, run  # noqa: E402
from test_torch_models import has  # noqa: E402

ENDS = "        opt.step()\n"
INSIDE = LOOP.replace(ENDS, "{}" + ENDS)
BEHIND = LOOP + "{}"
SCHEDULED = "model, opt, loader, sched = job.prepare(model, opt, loader, {}, epochs=2)\n" + LOOP + "        sched.step()\n"
PAIR = """
a, b = nn.Linear(1, 2), nn.Linear(2, 1)
first, second = torch.optim.SGD(a.parameters(), lr=0.1), torch.optim.SGD(b.parameters(), lr=0.1)
"""
# Two models in one job, in a loop with two losses and two steps.
LISTS = ("job.prepare([a, b], [first, second], loader, epochs=2)",)
TWO = PAIR + """
(a, b), (first, second), loader = job.prepare([a, b], [first, second], loader, epochs=2)
before = a.weight.clone(), b.weight.clone()
for epoch in range(2):
    for x, y in loader:
        F.cross_entropy(a(x), y).backward()
        first.step()
        b(a(x).detach()).square().mean().backward()
        second.step()
assert not torch.equal(before[0], a.weight) and not torch.equal(before[1], b.weight)
"""
# A part that is trained later, or up to then.
BODY = "body, head = nn.Linear(1, 3), nn.Linear(3, 2)\nmodel = nn.Sequential(body, head)\nopt = torch.optim.SGD(head.parameters(), lr=0.1)\n"
LATER = ('torch.optim.AdamW([{"params": head.parameters()}, {"params": body.parameters()}], lr=0.001)',
         "torch.optim.lr_scheduler.LambdaLR(opt, [lambda t: 1.0, lambda t: float(t >= unfreeze_at)])")
EARLIER = "torch.optim.lr_scheduler.LambdaLR(opt, [lambda t: 1.0, lambda t: float(t < freeze_at)])"


def part(schedule, moved):
    return f"""{BODY}
unfreeze_at = freeze_at = 4
opt = {LATER[0]}
sched = {schedule}
before = body.weight.detach().clone()
model, opt, loader, sched = job.prepare(model, opt, loader, sched, epochs=2)
moved = []
for epoch in range(2):
    for x, y in loader:
        moved.append(not torch.equal(before, body.weight))
        before = body.weight.detach().clone()
        F.cross_entropy(model(x), y).backward()
        opt.step()
        sched.step()
assert moved == {moved}, moved
"""


RATE = "lr = 0.1\ndef rate(t):\n    return lr / (1 + t)\n"
# The parts of timm's schedulers that matter.
TIMM = """
class Cosine:
    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.base_values = [group.setdefault("initial_lr", group["lr"]) for group in optimizer.param_groups]
        self.step(0)
    def _get_lr(self, t):
        return [value / (1 + t) for value in self.base_values]
    def step(self, epoch):
        for group, value in zip(self.optimizer.param_groups, self._get_lr(epoch)):
            group["lr"] = value
sched = Cosine(opt)
"""
CLIP = "opt.register_step_pre_hook(lambda *_: torch.nn.utils.clip_grad_value_(model.parameters(), 0.1))"

ALIKE = 'lockstep.init(settings={"optimizer.name": "custom"})'

# The session makes the updates, whatever the script's code names.
SESSIONS = "job = lockstep.init(settings={'optimizer.name': 'sgd'})\n"

CASES = [
    # (what is refused, words of the line, what it names, what trains)
    ("job.prepare(model, opt, epochs=2)", "None is no torch.utils.data.DataLoader", ["DataLoader(data, batch_size=16)"],
     "loader = DataLoader(data, batch_size=16)\n" + PREPARE + LOOP),
    ("loader = [1, 2]\n" + PREPARE, "list is no torch.utils.data.DataLoader", ["DataLoader(data, batch_size=16)"], None),
    ("loader = DataLoader(data, batch_size=None)\n" + PREPARE, "batch_size=None", ["DataLoader(data, batch_size=16)"], None),
    ("job.prepare(model, opt, loader)", "was not told how many passes", ["job.prepare(model, opt, loader, epochs=2)"],
     "model, opt, loader = job.prepare(model, opt, loader, epochs=2)\n" + LOOP),
    ("job.prepare(model, torch.optim.SGD, loader, epochs=2)", "the class SGD as its optimizer", ["torch.optim.SGD(model.parameters(), lr=0.1)"],
     "opt = torch.optim.SGD(model.parameters(), lr=0.1)\n" + PREPARE + LOOP),
    (PREPARE + PAIR + "job.prepare(b, second, loader, epochs=2)", "job.prepare was called twice", LISTS, TWO),
    (PAIR + "job.prepare([a, b], first, loader, epochs=2)", "a list of models, and no list of optimizers", [*LISTS, "nn.ModuleList([a, b])"],
     PAIR + "model = nn.ModuleList([a, b])\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n" + PREPARE + LOOP.replace("model(x)", "a(x)")),
    (PAIR + "job.prepare(nn.ModuleList([a, b]), {'a': first}, loader, epochs=2)", "a dict of optimizers", LISTS, None),
    (PAIR + PREPARE + INSIDE.format("        b(model(x).detach()).mean().backward()\n        second.step()\n"),
     "has stepped in round 0 and round 1: each worker would train a copy of its own", LISTS, None),
    ("first = torch.optim.lr_scheduler.StepLR(opt, 1)\njob.prepare(model, opt, loader, [first], epochs=2)", "a list of schedulers",
     ["torch.optim.lr_scheduler.ChainedScheduler([first, second])"],
     "first, second = torch.optim.lr_scheduler.StepLR(opt, 1), torch.optim.lr_scheduler.ConstantLR(opt)\n"
     + SCHEDULED.format("torch.optim.lr_scheduler.ChainedScheduler([first, second])")),
    (PREPARE + "for x, y in loader:\n    F.cross_entropy(model(x), y).backward()\n    break\n" + LOOP, "was left before the step for its batch was done",
     ["next(iter(loader))"], PREPARE + "first, second = next(iter(loader)), next(iter(loader))\nassert torch.equal(first[0], second[0])\n"
     + LOOP + "assert job.metrics.round == 7\n"),
    (TIMM + "job.prepare(model, opt, loader, sched, epochs=2)", "the scheduler Cosine is none of torch.optim.lr_scheduler",
     ["torch.optim.lr_scheduler.LambdaLR(opt, lambda t, of=sched: of._get_lr(t)[0] / of.base_values[0])"],
     TIMM + SCHEDULED.format("torch.optim.lr_scheduler.LambdaLR(opt, lambda t, of=sched: of._get_lr(t)[0] / of.base_values[0])")
     + "        assert abs(opt.param_groups[0]['lr'] - 0.1 / (1 + job.round)) < 1e-6, opt.param_groups\n"),
    (SESSIONS + TIMM + PREPARE + LOOP + "        sched.step(1)\n", "the optimizer's lr was changed from", ["torch.optim.lr_scheduler.LambdaLR(opt, lambda t: rate(t) / lr)"],
     RATE + SCHEDULED.format("torch.optim.lr_scheduler.LambdaLR(opt, lambda t: rate(t) / lr)")),
    (SESSIONS + TIMM + PREPARE + LOOP + "    sched.step(epoch + 1)\n", "or, if all workers change it alike", [ALIKE],
     f"job = {ALIKE}\n" + TIMM + PREPARE + LOOP + "    sched.step(epoch + 1)\n"),
    ("sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt)\njob.prepare(model, opt, loader, sched, epochs=2)", "follows a metric",
     ["torch.optim.lr_scheduler.LambdaLR(opt, lambda t: rate(t) / lr)"], None),
    ("opt = torch.optim.LBFGS(model.parameters())\n" + PREPARE, "LBFGS wants a closure", ["torch.optim.AdamW(model.parameters(), lr=0.001)"],
     "opt = torch.optim.AdamW(model.parameters(), lr=0.001)\n" + PREPARE + LOOP),
    ("opt = torch.optim.SparseAdam(list(model.parameters()))\n" + PREPARE, "SparseAdam is for sparse gradients", ["torch.optim.Adam(model.parameters(), lr=0.001)"],
     "opt = torch.optim.Adam(model.parameters(), lr=0.001)\n" + PREPARE + LOOP),
    (BODY + PREPARE + LOOP + "    opt.add_param_group({'params': body.parameters()})\n", "takes no parameter group: give job.prepare all of them", LATER,
     part(LATER[1], [False] * 5 + [True] * 3)),
    (BODY + "raw = opt\n" + PREPARE + LOOP + "    raw.add_param_group({'params': body.parameters()})\n", "has got a parameter group behind", LATER, None),
    (BODY + "body.requires_grad_(False)\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n" + PREPARE + LOOP + "    body.requires_grad_(True)\n",
     "0.weight was frozen in job.prepare and is not any more", LATER, None),
    (BODY + "opt = torch.optim.AdamW(model.parameters())\n" + PREPARE + LOOP + "    body.requires_grad_(False)\n",
     "0.weight was frozen after job.prepare, but the optimizer would still move it", [EARLIER], part(EARLIER, [False] + [True] * 4 + [False] * 3)),
    (SESSIONS + PREPARE + INSIDE.format("        nn.utils.clip_grad_value_(model.parameters(), 0.1)\n"), "clip_grad_value_ between the backward pass and opt.step()",
     [CLIP], None),
    (SESSIONS + PREPARE + INSIDE.format("        nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n"), "To clip, give clip_grad_norm to job.prepare",
     ["clip_grad_norm"], PREPARE.replace("epochs=2", "epochs=2, clip_grad_norm=0.1") + LOOP),
]

# Taken as it is.
TRAINS = [
    # As torch alone: the state of a frozen parameter stays as it is.
    """
import copy
model = nn.Sequential(nn.Linear(1, 3), nn.Linear(3, 2))
model[0].requires_grad_(False)
plain = copy.deepcopy(model)
opt, theirs = (torch.optim.Adagrad(m.parameters(), lr=0.1) for m in (model, plain))
loader = DataLoader(data, batch_size=16)
for epoch in range(2):
    for x, y in loader:
        theirs.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        theirs.step()
""" + PREPARE + LOOP + """
for one, other in zip(model.parameters(), plain.parameters()):
    assert torch.allclose(one, other, atol=1e-5), (one, other)
""",
    PREPARE + LOOP.replace("    for x, y", "    loader.sampler.set_epoch(epoch)\n    for x, y"),
    "loader = DataLoader(data, batch_size=16)\n" + PREPARE + LOOP.replace("    for x, y", "    loader.sampler.set_epoch(epoch)\n    for x, y"),
    # An optimizer of an inner loop, of one batch, and one that steps in an evaluation.
    PREPARE + "probe = torch.nn.Parameter(torch.zeros(1))\nother = torch.optim.SGD([probe], lr=0.1)\n" + INSIDE.format("""
        noise = torch.zeros_like(x).requires_grad_()
        inner = torch.optim.SGD([noise], lr=0.1)
        for _ in range(2):
            noise.square().sum().backward()
            inner.step()
""") + "    probe.square().sum().backward()\n    other.step()\n",
    # Clipped values of each update, as torch clips them.
    """
import copy
plain = copy.deepcopy(model)
theirs = torch.optim.SGD(plain.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=16)
for epoch in range(2):
    for x, y in loader:
        theirs.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        torch.nn.utils.clip_grad_value_(plain.parameters(), 0.1)
        theirs.step()
""" + CLIP + "\n" + PREPARE + LOOP + """
for one, other in zip(model.parameters(), plain.parameters()):
    assert torch.allclose(one, other, atol=1e-5), (one, other)
""",
]

STATEFUL = """
from torchdata.stateful_dataloader import StatefulDataLoader
loader = StatefulDataLoader(data, batch_size=16, shuffle={})
job.evaluate(lambda model, batch: (0.0, 0), StatefulDataLoader(data, batch_size=16))
"""


class RefusedTest(TorchTest):
    def test_each_line_names_what_to_write_and_that_trains(self):
        outcomes = iter(self.outcomes([SCRIPT + script for case in CASES for script in (case[0], case[3]) if script] + [SCRIPT + one for one in TRAINS]))
        trained = [*TRAINS, *(case[3] for case in CASES if case[3])]
        for script, words, named, instead in CASES:
            status, line = next(outcomes)
            with self.subTest(words):
                self.assertEqual(status, 2, (script, line))
                self.assertIn(words, line)
                self.assertNotIn("\n", line)
                for code in named:
                    self.assertIn(code, line)
                    self.assertTrue(any(code in text for text in trained), f"nothing here runs {code}")
            if instead:
                with self.subTest(f"instead of: {words}"):
                    self.assertEqual(next(outcomes), [0, ""], instead)
        for script, outcome in zip(TRAINS, outcomes, strict=True):
            with self.subTest(script):
                self.assertEqual(outcome, [0, ""])

    @unittest.skipUnless(has("torchdata.stateful_dataloader"), "LOCKSTEP_TORCH_PYTHON has no torchdata")
    def test_a_stateful_loader_of_torchdata_is_one_of_torch_s(self):
        self.assert_outcomes([(SCRIPT + STATEFUL.format(shuffle) + PREPARE + LOOP, 0, "") for shuffle in ("True", "False")])

    @unittest.skipUnless(has("timm.scheduler"), "LOCKSTEP_TORCH_PYTHON has no timm")
    def test_a_scheduler_of_timm_trains_as_the_line_says(self):
        real = "from timm.scheduler import CosineLRScheduler\nsched = CosineLRScheduler(opt, t_initial=8, warmup_t=2, warmup_lr_init=1e-3)\n"
        words = "torch.optim.lr_scheduler.LambdaLR(opt, lambda t, of=sched: of._get_lr(t)[0] / of.base_values[0])"
        self.assert_outcomes([
            (SCRIPT + real + "job.prepare(model, opt, loader, sched, epochs=2)", 2, words),
            (SCRIPT + real + "timm = sched\n" + SCHEDULED.format(words)
             + "        assert abs(opt.param_groups[0]['lr'] - timm._get_lr(job.round)[0]) < 1e-6, opt.param_groups\n", 0, "")])

    def test_model_module_of_a_script_for_ddp_is_one_line(self):
        """Also behind the job; whatever else a script takes a model for is its own."""
        done = run(self.script(SCRIPT + PREPARE + LOOP + "assert getattr(model, 'module', model) is model\nmodel.module.state_dict()\n"))
        self.assert_one_line(done, 2, "the model that job.prepare has returned is the script's own, in no wrapper: write model for model.module")
        self.assertRegex(done.stderr, r"\Alockstep: script\.py:\d+: ")
        done = run(self.script(SCRIPT + PREPARE + LOOP + "model.modul.state_dict()\n"))
        self.assertEqual(done.returncode, 1, done)
        self.assertIn("Traceback", done.stderr)


class DoubtTest(TorchTest):
    """What is taken otherwise than the script may mean it is said once."""

    def test_a_loss_that_is_a_sum_is_told_from_a_mean(self):
        done = run(self.script(DOUBT))
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)

    def test_losses_and_reads_of_gradients_are_said_once(self):
        """A sum, a division by a batch that is not in hand, a norm between backward and step; and what the lines name is not warned of."""
        summed = PREPARE + LOOP.replace("model(x), y)", "model(x), y, reduction='sum')")
        warned = (
            (summed.replace("job.backward(loss)", "loss.backward()"), "the loss is a sum over the 8 samples of the batch in hand"),
            (summed.replace("job.backward(loss)", 'job.backward(loss, reduction="sum")'), ""),
            (summed.replace("reduction='sum')", "reduction='sum') / 16"), "the loss is divided by 16, and the batch in hand has 8 samples"),
            (summed.replace("reduction='sum')", "reduction='sum') / len(x)"), ""),
            (SESSIONS + PREPARE + INSIDE.format("        model.weight.grad.norm()\n"), "p.grad was read between the backward pass and opt.step()"),
            ("opt.register_step_pre_hook(lambda *_: print(model.weight.grad.norm()))\n" + PREPARE + LOOP, ""),
        )
        text = "import contextlib, io, sys\n"
        for script, _ in warned:
            whole = SCRIPT.replace("batch_size=16", "batch_size=8") + script
            text += f"said = io.StringIO()\nwith contextlib.redirect_stderr(said):\n    exec({whole!r}, {{}})\nprint('said', repr(said.getvalue()), flush=True)\n"
        done = run(self.script(text.replace("epochs=2", "epochs=2, global_batch=16")))
        self.assertEqual(done.returncode, 0, done)
        said = re.findall(r"^said (.*)$", done.stdout, re.MULTILINE)
        self.assertEqual(len(said), len(warned), done)
        for (script, words), line in zip(warned, said, strict=True):
            with self.subTest(script):
                self.assertEqual(line.count("lockstep: "), 1 if words else 0, line)
                self.assertIn(words, line)

    def test_a_job_of_several_says_that_the_batch_is_the_loader_s(self):
        """And that a loss is a sum, by worker 0 alone. An average that follows updates by a hook is the same on all workers."""
        script = self.script(SCRIPT + """
import hashlib
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
opt.register_step_post_hook(lambda *_: ema.update_parameters(model))
""" + PREPARE + "ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))\n" + LOOP.replace("model(x), y)", "model(x), y, reduction='sum')") + """
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in ema.module.parameters())).hexdigest()
print("average", digest, "of", int(ema.n_averaged), flush=True)
""")
        done = lockstep_run("-n", "2", "--policy", "full+flexrr", "--slowdown", "worker=1,factor=3", "--set", "emulate.unit_time=2ms", script)
        self.assertEqual(done.returncode, 0, done)
        line = "lockstep: a round has 16 samples, of 2 workers together; DDP would have 32: global_batch=32 of job.prepare keeps that"
        self.assertEqual(done.stdout.count(line), 1, done.stdout)
        self.assertEqual(done.stdout.count("the loss is a sum over the"), 1, done.stdout)
        averages = re.findall(r"\| average (.*)$", done.stdout, re.MULTILINE)
        self.assertEqual((len(averages), len(set(averages))), (2, 1), done.stdout)
        self.assertTrue(averages[0].endswith(" of 8"), averages)
        done = lockstep_run("-n", "2", self.script(SCRIPT + PREPARE.replace("epochs=2", "epochs=2, global_batch=32") + LOOP))
        self.assertEqual((done.returncode, done.stdout.count("DDP would have")), (0, 0), done)


DOUBT = """
import torch, torch.nn.functional as F, warnings
from lockstep._reduction import doubt
warnings.simplefilter("ignore")
n, one = 8, torch.ones
x, y, t = torch.randn(n, 4), torch.arange(n) % 5, torch.rand(n, 5)
w = torch.randn(4, 5, requires_grad=True)
z = x @ w
def losses(how):
    return {
        "ce": F.cross_entropy(z, y, reduction=how), "smooth": F.cross_entropy(z, y, reduction=how, label_smoothing=0.1),
        "soft": F.cross_entropy(z, t.softmax(1), reduction=how), "weighted": F.cross_entropy(z, y, reduction=how, weight=torch.rand(5)),
        "mse": F.mse_loss(z, t, reduction=how), "l1": F.l1_loss(z, t, reduction=how), "smooth_l1": F.smooth_l1_loss(z, t, reduction=how),
        "huber": F.huber_loss(z, t, reduction=how), "bce": F.binary_cross_entropy(z.sigmoid(), t, reduction=how),
        "bce_logits": F.binary_cross_entropy_with_logits(z, t, reduction=how), "kl": F.kl_div(z.log_softmax(1), t, reduction=how),
        "nll": F.nll_loss(z.log_softmax(1), y, reduction=how), "multi_margin": F.multi_margin_loss(z, y, reduction=how),
        "multilabel": F.multilabel_soft_margin_loss(z, (t > 0.5).float(), reduction=how), "poisson": F.poisson_nll_loss(z, t, reduction=how),
        "gaussian": F.gaussian_nll_loss(z, t, one(n, 5), reduction=how), "cosine": F.cosine_embedding_loss(z, z * 2, one(n), reduction=how),
        "triplet": F.triplet_margin_loss(z, z + 1, z * 2, reduction=how), "soft_margin": F.soft_margin_loss(z, t.sign(), reduction=how),
        "hinge": F.hinge_embedding_loss(z, t.sign(), reduction=how), "2d": F.cross_entropy(z.view(n, 5, 1, 1), y.view(n, 1, 1), reduction=how)}
for name, loss in losses("mean").items():
    assert not doubt(loss, n, 16, ()), name
for name, loss in losses("sum").items():
    for same in (loss, 65536 * loss, 0.5 * loss, loss / 1, loss.double().reshape(1)):
        assert "sum over the 8 samples" in doubt(same, n, 16, ()), name
    for mean in (loss / n, loss / torch.tensor(n), loss * (1 / n)):
        assert not doubt(mean, n, 16, {16}), name
    assert "divided by 16" in doubt(loss / 16, n, 16, {16}), name
    assert not doubt(loss / 16, n, 16, ()) and not doubt(loss, 1, 16, ()), name
each = F.cross_entropy(z, y, reduction="none")
mask, shares, learned = (y > 1).float(), torch.rand(n).softmax(0), torch.zeros((), requires_grad=True)
sums = [each.sum(), (each * mask).sum(), each.sum() + F.mse_loss(z, t, reduction="sum"), each.sum() + 0.5 * z.pow(2).sum(), each.sum() * torch.exp(-learned),
        sum(F.cross_entropy(z[i : i + 1], y[i : i + 1], reduction="sum") for i in range(n)), -(F.one_hot(y, 5) * z.log_softmax(1)).sum()]
means = [each.mean(), (each * shares).sum(), (each / n).sum(), (each * mask).sum() / mask.sum(), each.mean() + w.pow(2).sum(), each.sum() / len(y),
         each.mean() + 1e-4 * w.pow(2).sum(), each.sum() / 100, z.norm(), each.mean() * 8, each.sum() / n * torch.exp(-learned), each[:3].sum()]
assert all(doubt(loss, n, 16, {16}) for loss in sums), [doubt(loss, n, 16, {16}) for loss in sums]
assert not any(doubt(loss, n, 16, {16}) for loss in means), [doubt(loss, n, 16, {16}) for loss in means]
"""


if __name__ == "__main__":
    package.main_with_torch()
