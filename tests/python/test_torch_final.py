"""Gradients travel while the backward pass goes on: what is said to be final is, and the job comes to the same."""

import json
import pathlib
import re
import sys
import textwrap

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import harness  # noqa: E402
from torch_test import TorchTest, lockstep_run, run  # noqa: E402

# A model with all that makes the order of a backward pass another one than that of the parameters: tied, used twice, frozen, used now
# and then, registered in another order than they are used in, normalized.
MODEL = """
import torch, torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

class Model(nn.Module):
    def __init__(self, norm=False, how=None):
        super().__init__()
        self.out = nn.Linear(32, 40, bias=False)
        self.last, self.first = nn.Linear(32, 32), nn.Linear(32, 32)
        self.now_and_then, self.unused, self.frozen = nn.Linear(32, 32), nn.Linear(64, 32), nn.Linear(32, 32)
        self.twice = nn.Linear(32, 32)
        self.words = nn.Embedding(40, 32)
        self.out.weight = self.words.weight
        self.norm = nn.BatchNorm1d(32) if norm else nn.Identity()
        self.how, self.runs = how, 0
        self.frozen.requires_grad_(False)
    def middle(self, h):
        return self.twice(torch.tanh(self.frozen(torch.tanh(self.twice(h)))))
    def forward(self, x):
        self.runs += 1
        h = self.norm(self.first(self.words(x)))
        if x.sum() % 2 == 0:
            h = torch.tanh(self.now_and_then(h))
        h = self.middle(h) if self.how is None else checkpoint(self.middle, h, use_reentrant=self.how == "reentrant")
        return self.out(self.last(h))
"""

PASSES = MODEL + """
import sys
from lockstep import _final
from lockstep._errors import UsageError
torch.manual_seed(1)
draw = torch.Generator().manual_seed(2)
def watched(model, loss_of, hooks=()):
    parameters = [p for p in model.parameters() if p.requires_grad]
    names = {id(p): name for name, p in model.named_parameters()}
    for p in parameters:
        p.grad = torch.zeros_like(p)
    for _ in range(4):  # the second one and those behind it add to what is there
        x = torch.randint(40, (8,), generator=draw)
        said = {}
        def report(place):
            assert place not in said
            said[place] = parameters[place].grad.clone()
        _final.backward(loss_of(model, x), parameters, report)
        for place, gradient in said.items():
            assert torch.equal(gradient, parameters[place].grad), names[id(parameters[place])]
        assert not any(p._post_accumulate_grad_hooks for p in parameters if id(p) not in hooks)
        yield [names[id(parameters[place])] for place in said], len(parameters)
plain = lambda model, x: F.cross_entropy(model(x), (x + 1) % 40)
"""


class PassesTest(TorchTest):
    def passes(self, text):
        done = run(self.script(PASSES + textwrap.dedent(text)))
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        return done.stdout

    def test_what_is_said_does_not_change_any_more(self):
        self.passes("""
            for how in (None, "not reentrant"):
                for norm in (False, True):
                    for said, count in watched(Model(norm, how), plain):
                        assert len(said) == count, (said, count)  # also what this pass did not use
                        assert said[-1] == "out.weight", said  # the tied one: the words are the first that are used
            """)

    def test_hooks_of_the_script_come_before(self):
        """Those of the tensor, and those that find the gradient added up, whenever they were registered."""
        self.passes("""
            model = Model()
            model.first.weight.register_hook(lambda gradient: gradient * 2)
            def mask(p):
                p.grad.mul_(0.5)
            model.last.weight.register_post_accumulate_grad_hook(mask)
            passes = watched(model, plain, {id(model.last.weight), id(model.twice.weight)})
            next(passes)
            model.twice.weight.register_post_accumulate_grad_hook(mask)
            for said, count in passes:
                assert len(said) == count
            """)

    def test_a_pass_within_the_pass_is_not_watched(self):
        """Its functions add to the same gradients for a second time."""
        self.passes("""
            def twice(model, x):
                return plain(model, x) + checkpoint(lambda h: model.twice(h).square().mean(), model.words(x), use_reentrant=True)
            for how, loss_of in (("reentrant", plain), (None, twice)):
                for said, count in watched(Model(how=how), loss_of):
                    assert said == [], said
            """)

    def test_a_pass_that_a_hook_starts_is_refused(self):
        self.passes("""
            model = Model()
            other = plain(model, torch.arange(8))
            once = []
            def nested(gradient):
                if not once:
                    once.append(1)
                    torch.autograd.backward(other)
            model.first.weight.register_hook(nested)
            try:
                for _ in watched(model, plain):
                    pass
            except UsageError as error:
                assert "a second backward pass has run within that of the loss" in str(error), error
            else:
                sys.exit("it was let through")
            """)

    def test_a_transformer_s_order_is_the_expected_one(self):
        """But for neighbours within a layer, so buckets of a layer or more become final in their order."""
        self.passes("""
            model = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), 6, enable_nested_tensor=False)
            parameters = list(model.parameters())
            for p in parameters:
                p.grad = torch.zeros_like(p)
            order = _final.order_of(len(parameters), len(parameters) + 2)
            assert order[-2:] == [len(parameters), len(parameters) + 1]
            said = []
            _final.backward(model(torch.randn(2, 5, 32)).square().mean(), parameters, said.append)
            assert sorted(said) == list(range(len(parameters)))
            furthest = max(abs(said.index(place) - at) for at, place in enumerate(order[:-2]))
            assert furthest <= 8, furthest  # of 12 in a layer
            """)


class JobTest(TorchTest):
    SCRIPT = MODEL + """
import sys, lockstep
from torch.utils.data import DataLoader, TensorDataset
norm, how, optimizer, silent, late = (word == "1" if word in "01" else word for word in sys.argv[1:])
if silent:
    lockstep.Session.block_final = lambda *_: None
job = lockstep.init(seed=3, settings={"exchange.transport": "tcp", "exchange.bucket_bytes": 4096, "exchange.piece_bytes": 4096})
model = Model(norm, how or None)
opt = getattr(torch.optim, optimizer)([p for p in model.parameters() if p.requires_grad], lr=0.05)
draw = torch.Generator().manual_seed(5)
x = torch.randint(40, (96,), generator=draw)
loader = DataLoader(TensorDataset(x), batch_size=32, shuffle=True)
model, opt, loader = job.prepare(model, opt, loader, epochs=3)
for _ in range(3):
    for (x,) in loader:
        loss = F.cross_entropy(model(x), (x + 1) % 40)
        if late and job.rank == 1 and job.round == 4:
            loss.backward(retain_graph=True)
            torch.autograd.backward(loss)
        else:
            loss.backward()
        opt.step()
"""

    def job(self, name, *words, status=0, mapping="off"):
        run_dir = self.folder / name
        done = lockstep_run("-n", "2", "--run-dir", run_dir, "--set", f"exchange.mapping={mapping}", self.script(self.SCRIPT), *words, LOCKSTEP_LOG_LEVEL="info")
        self.assertEqual(done.returncode, status, done)
        summary = json.loads((run_dir / "summary.json").read_text())
        self.assertEqual(summary["status"], "completed")
        said = re.findall(r"final before the end of a contribution's last run: (\S+) % of the blocks; could travel then: (\S+) % of the gradient",
                          done.stdout)
        return summary["params_digest"], [(float(blocks), float(gradient)) for blocks, gradient in said], done

    def test_the_job_comes_to_the_same_bits(self):
        for norm, how, optimizer, blocks in (("0", "", "SGD", 100), ("1", "not reentrant", "SGD", 75), ("0", "", "NAdam", 90),
                                             ("0", "reentrant", "SGD", 0)):
            with self.subTest(norm=norm, how=how, optimizer=optimizer):
                digest, said, done = self.job(f"says-{norm}{how}{optimizer}", norm, how, optimizer, "0", "0")
                self.assertEqual(len(said), 2, done)
                for share, gradient in said:
                    self.assertGreaterEqual(share, blocks)
                    self.assertGreaterEqual(gradient, 50 if blocks else 0)
                if not blocks:
                    self.assertEqual(said, [(0, 0)] * 2)
                    continue
                silent, nothing, _ = self.job(f"silent-{norm}{how}{optimizer}", norm, how, optimizer, "1", "0")
                self.assertEqual(digest, silent)
                self.assertEqual(nothing, [(0, 0)] * 2)

    def test_nothing_is_said_where_the_others_read_in_place(self):
        words = ("0", "", "SGD", "0", "0")
        sent, mapped = self.job("sent", *words), self.job("mapped", *words, mapping="auto")
        self.assertEqual(mapped[0], sent[0])
        self.assertEqual(len(sent[1]), 2, sent[2])
        self.assertEqual(mapped[1], [], mapped[2])

    def test_what_is_added_after_the_pass_takes_the_worker_out_and_counts_for_nothing(self):
        _, said, done = self.job("late", "0", "", "SGD", "0", "1")
        self.assertIn("gradients were changed behind job.backward", done.stdout)
        self.assertIn((100.0, said[-1][1]), said, done)
        harness.check_epochs(self, self.rounds(self.folder / "late"), 96)


if __name__ == "__main__":
    package.main_with_torch()
