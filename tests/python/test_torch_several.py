"""Several optimizers in one job: a GAN's loop trains as torch alone does that makes the steps of a batch together."""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import HERE  # noqa: E402
from torch_test import SCRIPT, TorchTest, lockstep_run, run  # noqa: E402
from test_torch_resume import kill_in_an_epoch  # noqa: E402

GAN = HERE / "torch_gan.py"
PAIR = SCRIPT + """
a, b = nn.Linear(1, 2), nn.Linear(2, 1)
first, second = torch.optim.SGD(a.parameters(), lr=0.1), torch.optim.Adam(b.parameters(), lr=0.1)
"""
PREPARE = "(a, b), (first, second), loader = job.prepare([a, b], [first, second], loader, epochs=2)\n"
BEGIN = "for epoch in range(2):\n    for x, y in loader:\n"
FIRST = "        F.cross_entropy(a(x), y).backward()\n        first.step()\n"
SECOND = "        b(a(x)).square().mean().backward()\n        second.step()\n"
LOOP = PREPARE + BEGIN + FIRST + SECOND
CLIP = "opt.register_step_pre_hook(lambda *_: torch.nn.utils.clip_grad_value_(model.parameters(), 0.1))"


class SeveralTest(TorchTest):
    def train(self, name, *options, words=(), workers="2"):
        folder = self.folder / name
        folder.mkdir()
        run_dir = self.folder / f"run-{name}"
        done = lockstep_run("-n", workers, "--run-dir", run_dir, *options, GAN, folder, *words)
        self.assertEqual(done.returncode, 0, done)
        alone = run(GAN, folder, *(word for word in words if not word.startswith("die=")), "alone=1", f"as={run_dir}")
        self.assertEqual(alone.returncode, 0, alone)
        print(name, alone.stdout.splitlines()[-1])

    def test_a_gan_trains_as_alone(self):
        self.train("each")
        self.train("third", words=["every=3"])
        self.train("norm", words=["norm=1"], workers="1")  # a norm sees the batch of its worker

    def test_a_gan_trains_as_alone_where_work_moves(self):
        self.train("moved", "--policy", "full+flexrr", "--slowdown", "worker=1,factor=4", "--set", "emulate.unit_time=2ms", words=["every=2"])

    def test_a_gan_trains_as_alone_though_a_worker_is_killed(self):
        mark = self.folder / "mark"
        self.train("killed", "--restart-workers", "1", "--set", "job.min_workers=2", "--set", "liveness.timeout=60s", words=["every=2", f"die={mark}"])
        self.assertTrue(mark.exists())

    def test_a_resumed_job_has_the_state_of_each_optimizer(self):
        script = self.script(PAIR.replace("run_dir=None", "settings={'checkpoint.every_rounds': 3, 'checkpoint.every_epochs': 0, 'emulate.unit_time': '20ms'}")
                             + LOOP.replace("epochs=2", "epochs=8").replace("range(2)", "range(8)").replace(SECOND, "        if job.round % 3 == 0:\n"
                                                                                                            + re.sub("^", "    ", SECOND, flags=re.M).rstrip(" "))
                             + "print('end', *b.weight.flatten().tolist(), *a.weight.flatten().tolist(), flush=True)\n")
        ends = [lockstep_run("-n", "2", "--run-dir", self.folder / "whole", script)]
        kill_in_an_epoch(self, self.folder / "run", 4, "-m", "lockstep", "run", "-n", "2", "--run-dir", self.folder / "run", script)
        ends.append(lockstep_run("-n", "2", "--resume", "--run-dir", self.folder / "run", script))
        said = [{line.partition("| ")[2] for line in done.stdout.splitlines() if "| end " in line} for done in ends]
        self.assertEqual((len(said[0]), said[0]), (1, said[1]), ends)

    def test_optimizers_that_step_on_one_worker_alone_are_refused(self):
        done = lockstep_run("-n", "2", self.script(PAIR + PREPARE + BEGIN + FIRST + "        if job.rank == 0:\n"
                                                   + re.sub("^", "    ", SECOND, flags=re.M).rstrip(" ")))
        self.assertNotEqual(done.returncode, 0, done)
        self.assertIn("in a round other optimizers have stepped on one worker than on another", done.stdout)
        self.assertNotIn("Traceback", done.stdout)

    def test_what_such_a_loop_can_and_cannot_do(self):
        clipped = "for opt, model in ((first, a), (second, b)):\n    " + CLIP + "\n"
        clamped = "job.after_update(lambda n: [p.clamp_(-0.01, 0.01) for p in b.parameters()])\n"
        self.assert_outcomes([(PAIR + script, status, message) for script, status, message in (
            (LOOP, 0, ""),
            # The second loss has gradients of the first model, too, which its step for this batch does not see any more.
            (PREPARE + BEGIN + "        before = a.weight.clone()\n" + FIRST + "        with_first = a.weight.grad.clone()\n" + SECOND
             + "        assert not torch.equal(with_first, a.weight.grad)\n        assert torch.equal(before, a.weight)\n        want = before - 0.1 * with_first\n"
             "        if job.round == 0:\n            kept = want\n        if job.round == 1:\n            assert torch.allclose(before, kept, atol=1e-6)\n", 0, ""),
            (clipped + LOOP, 0, ""),
            (PREPARE + BEGIN + FIRST + "        job.log({'of the first': 1.0})\n" + SECOND + "assert job.metrics['of the first'] == 1.0\n", 0, ""),
            (clamped + LOOP + "assert b.weight.abs().max() <= 0.01\n", 0, ""),
            (LOOP.replace("[a, b]", "nn.ModuleList([a, b])"), 0, ""),
            (LOOP + "        first.param_groups[0]['lr'] *= 0.5\nassert first.param_groups[0]['lr'] == 0.1 / 2**8 and second.param_groups[0]['lr'] == 0.1\n"
             "assert set(second.state_dict()['state'][0]) == {'step', 'exp_avg', 'exp_avg_sq'}, second.state_dict()\n", 0, ""),
            ("sched = torch.optim.lr_scheduler.LambdaLR(second, lambda t: 0.1**t)\n" + LOOP + "    sched.step()\nassert abs(second.param_groups[0]['lr'] - 0.001) < 1e-9\n"
             "assert second.param_groups[0]['initial_lr'] == 0.1\n", 0, ""),
            ("sched = torch.optim.lr_scheduler.StepLR(second, 1)\njob.prepare([a, b], [first, second], loader, sched, epochs=2)\n", 2,
             "takes no scheduler with several optimizers"),
            ("second = torch.optim.SGD([*a.parameters(), *b.parameters()], lr=0.1)\n" + LOOP, 2, "have the same parameter: give each parameter to one"),
            ("job.prepare([a, 3], [first, second], loader, epochs=2)\n", 2, "was given int among its models"),
            ("job.prepare([a, b], [first, 3], loader, epochs=2)\n", 2, "was given int among its optimizers"),
            ("second = torch.optim.LBFGS(b.parameters())\n" + LOOP, 2, "LBFGS wants a closure"),
            (LOOP + "        second.step()\n", 2, "one optimizer has stepped twice for one batch"),
            (PREPARE + BEGIN + "        first.step()\n", 2, "without a backward of the loss before it"),
            (PREPARE + BEGIN + "        F.cross_entropy(a(x), y).backward()\n", 2, "opt.step() was not called for this batch"),
            (PREPARE + BEGIN + "        F.cross_entropy(a(x), y).backward()\n        nn.utils.clip_grad_norm_(a.parameters(), 1.0)\n", 2, CLIP),
            (PREPARE + BEGIN + "        job.backward(F.cross_entropy(a(x), y, reduction='sum'), reduction='sum')\n", 2, "with several optimizers losses are means"),
            ("raw = first\n" + PREPARE + BEGIN + "        F.cross_entropy(a(x), y).backward()\n        raw.step()\n", 2, "use the one that it has returned"),
            (LOOP + "    second.add_param_group({'params': [nn.Parameter(torch.zeros(1))]})\n", 2, "takes no parameter group"),
        )])


if __name__ == "__main__":
    package.main_with_torch()
