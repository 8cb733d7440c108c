"""Batches of a function in place of a DataLoader: nanoGPT's loop, and what such a script may get wrong."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import HERE, harness  # noqa: E402
from torch_test import SCRIPT, TorchTest, lockstep_run, run  # noqa: E402
from test_torch_resume import kill_in_an_epoch  # noqa: E402

DRAWN = HERE / "torch_drawn.py"
DRAW = SCRIPT + """
def get_batch():
    at = torch.randint(64, (8,))
    return data.tensors[0][at], data.tensors[1][at]
"""
PREPARE = "model, opt, draw = job.prepare(model, opt, get_batch, updates=6{})\n"
STEP = "    F.cross_entropy(model(x), y).backward()\n    opt.step()\n"
LOOP = "for x, y in draw:\n" + STEP
CALLS = "for _ in range({}):\n    x, y = draw()\n" + STEP
# With 4 of these in a round, and one by one, as a job makes them.
ALIKE = """
import copy
from lockstep._samples import seed_all, seed_of
plain = copy.deepcopy(model)
theirs = torch.optim.SGD(plain.parameters(), lr=0.1)
for update in range(6):
    theirs.zero_grad()
    for position in range(4 * update, 4 * update + 4):
        seed_all(seed_of(1, 0, position))
        x, y = get_batch()
        (F.cross_entropy(plain(x), y) / 4).backward()
    theirs.step()
""" + PREPARE.format(", global_batch=4") + LOOP + """
for one, other in zip(model.parameters(), plain.parameters()):
    assert torch.allclose(one, other, atol=1e-6), (one, other)
print("parameters", *(p.double().sum().item() for p in model.parameters()), flush=True)
"""


class DrawnTest(TorchTest):
    def test_the_loop_of_nanogpt_trains_as_alone(self):
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        for words, start in (([], lockstep_run), ([], run), (["clip=0", "steps=2"], lockstep_run)):
            with self.subTest(words, start=start.__name__):
                folder = self.folder / f"{len(words)}-{start.__name__}"
                folder.mkdir()
                done = start(*(["-n", "2"] if start is lockstep_run else torchrun), DRAWN, folder, *words)
                self.assertEqual(done.returncode, 0, done)
                for word in ("Traceback", "lacks the last update"):
                    self.assertNotIn(word, done.stdout + done.stderr)
                alone = run(DRAWN, folder, "alone")
                self.assertEqual(alone.returncode, 0, alone)
                print(alone.stdout.splitlines()[-1])

    def test_a_batch_is_the_same_whichever_worker_makes_it(self):
        script = self.script(DRAW + ALIKE)
        for options in ([], ["--policy", "full+flexrr", "--slowdown", "worker=1,factor=4", "--set", "emulate.unit_time=5ms"]):
            with self.subTest(options):
                run_dir = self.folder / f"run{len(options)}"
                done = lockstep_run("-n", "2", "--run-dir", run_dir, *options, script)
                self.assertEqual(done.returncode, 0, done)
                harness.check_epochs(self, self.rounds(run_dir), 24)

    def test_a_resumed_job_goes_on_with_the_batches_that_are_left(self):
        script = self.script(DRAW.replace("run_dir=None", "settings={'checkpoint.every_rounds': 4, 'checkpoint.every_epochs': 0, 'emulate.unit_time': '20ms'}")
                             + PREPARE.replace("6", "40").format("") + LOOP + "print('end', *model.weight.flatten().tolist(), flush=True)\n")
        whole, run_dir = self.folder / "whole", self.folder / "run"
        ends = [lockstep_run("-n", "2", "--run-dir", whole, script)]
        kill_in_an_epoch(self, run_dir, 3, "-m", "lockstep", "run", "-n", "2", "--run-dir", run_dir, script)
        self.assertLess(len(self.rounds(run_dir)), 40)
        ends.append(lockstep_run("-n", "2", "--resume", "--run-dir", run_dir, script))
        said = [{line.partition("| ")[2] for line in done.stdout.splitlines() if "| end " in line} for done in ends]
        self.assertEqual((len(said[0]), said[0]), (1, said[1]), ends)
        harness.check_epochs(self, self.rounds(run_dir), 80)

    def test_calls_and_a_loop_are_the_same(self):
        one, other = (run(self.script(DRAW + PREPARE.format(", global_batch=4") + how + "job.stop('it is enough')\nprint(model.weight.flatten().tolist())\n"))
                      for how in (LOOP, CALLS.format(24)))
        self.assertEqual((one.returncode, one.stdout, one.stderr), (0, other.stdout, ""), (one, other))

    def test_what_a_function_cannot_be_is_refused(self):
        self.assert_outcomes([
            (DRAW + "job.prepare(model, opt, get_batch)\n", 2, "was not told how many updates the job has"),
            (DRAW + "job.prepare(model, opt, get_batch, epochs=2)\n", 2, "epochs=2: a function that makes batches has no epochs"),
            (DRAW + "job.prepare(model, opt, get_batch, epochs=1, updates=0)\n", 2, "updates: 0 is not a whole number from 1 on"),
            (DRAW + "job.prepare(model, opt, DataLoader, epochs=1, updates=1)\n", 2, "the class DataLoader is no torch.utils.data.DataLoader"),
            (DRAW + PREPARE.format("") + CALLS.format(7), 2, "the job's updates are all made"),
            (DRAW + PREPARE.format("") + "x, y = draw()\nnext_x, next_y = draw()\n", 2, "neither loss.backward() nor job.backward(loss) was called"),
            (DRAW + PREPARE.format("") + CALLS.format(6).replace(".backward()", "").replace("F.cross_entropy(model(x), y)",
                                                                                         "job.backward(F.cross_entropy(model(x), y, reduction='sum'), reduction='sum')"),
             2, "batches of a batch sampler or a function count one each"),
            (DRAW + PREPARE.format("") + CALLS.format(6), 0, ""),
        ])

    def test_a_step_after_more_batches_than_a_worker_computes_is_refused(self):
        """As in a script that takes itself for one process: its gradients would be half as large, and its rates half as fast."""
        grouped = "for _ in range({updates}):\n    for _ in range({batches}):\n        x, y = draw()\n        (F.cross_entropy(model(x), y) / {batches}).backward()\n    opt.step()\n"
        begin = DRAW.replace("lr=0.1", "lr=0.1, nesterov=False, maximize=True") + PREPARE.format(", global_batch=4")
        for batches, updates, status in ((2, 6, 0), (4, 3, 2)):
            done = lockstep_run("-n", "2", self.script(begin + grouped.format(batches=batches, updates=updates)))
            self.assertEqual(done.returncode, status, done)
            line = "lockstep: opt.step() was not called after 2 batches, and with global_batch=4 a worker adds up 2: to step after k batches give "
            self.assertEqual(done.stdout.count(line + "job.prepare global_batch=2 * k, or step after 2 ("), 2 if status else 0, done)
            self.assertNotIn("Traceback", done.stdout + done.stderr)

    def test_fewer_batches_than_workers_are_refused_with_what_to_write(self):
        done = lockstep_run("-n", "2", self.script(DRAW + PREPARE.format(", global_batch=1") + CALLS.format(6)))
        self.assertEqual(done.returncode, 2, done)
        self.assertIn("less than --workers 2: each needs at least one sample. Give job.prepare global_batch=2 or more, the batches of all", done.stdout)

    def test_a_script_that_asks_behind_the_end_ends_well(self):
        done = run(self.script(DRAW + PREPARE.format("") + "x, y = draw()\n" + STEP.replace("    ", "") + "job.stop('it is enough')\ndraw()\nprint('not here')\n"))
        self.assert_one_line(done, 0, "the job has ended (")
        self.assertNotIn("not here", done.stdout)

    def test_an_iterator_that_is_left_open_ends_with_the_job(self):
        """Of a loader, too: nothing of it is run when the interpreter ends."""
        done = run(self.script(SCRIPT + "model, opt, loader = job.prepare(model, opt, loader, epochs=2)\nbatches = iter(loader)\nx, y = next(batches)\n"
                               + STEP.replace("    ", "") + "job.stop('it is enough')\n"))
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)


if __name__ == "__main__":
    package.main_with_torch()
