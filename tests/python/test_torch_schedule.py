"""A scheduler stands where the updates are that were counted, also where rounds are parts or are computed again."""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import HERE, harness  # noqa: E402
from torch_test import TorchTest, lockstep_run, run  # noqa: E402


class ScheduleTest(TorchTest):
    def test_a_schedule_goes_back_with_a_round_that_is_computed_again(self):
        """The rate of an update is that of its number, however the worker came there; one that lets each step follow from the one before
        goes on from where it was."""
        done = run(self.script("""
            import torch
            from torch.optim import lr_scheduler
            from lockstep._update import Schedule
            makers = {
                "exponential": lambda opt: lr_scheduler.ExponentialLR(opt, 0.9),
                "onecycle": lambda opt: lr_scheduler.OneCycleLR(opt, 0.1, total_steps=50),
                "chained": lambda opt: lr_scheduler.ChainedScheduler([lr_scheduler.ExponentialLR(opt, 0.9), lr_scheduler.ConstantLR(opt, 0.5)]),
            }
            def optimizer(lr):
                return torch.optim.Adam([{"params": [torch.nn.Parameter(torch.zeros(1))]}, {"params": [torch.nn.Parameter(torch.zeros(1))]}], lr=lr)
            def shown(opt):
                return [(float(group["lr"]), group["betas"]) for group in opt.param_groups]
            for name, make in makers.items():
                for lr in (0.1, torch.tensor(0.1)):
                    want, opt = [], optimizer(lr if isinstance(lr, float) else lr.clone())
                    scheduler = make(opt)
                    for _ in range(50):
                        want.append(shown(opt))
                        opt.step()
                        scheduler.step()
                    opt = optimizer(lr if isinstance(lr, float) else lr.clone())
                    schedule = Schedule(make(opt), opt, 10, False)
                    for update in (0, 1, 2, 1, 2, 3, 3.75, 9, 7, 8.5, 9, 8, 12, 12, 39):  # of rounds over part of their samples parts
                        schedule.advance(update)
                        assert shown(opt) == want[int(update)], (name, lr, update, shown(opt), want[int(update)])
                    if name == "onecycle":  # torch's own refuses to go on; a job may have more updates than it was told of
                        for update in (49, 50, 139, 48, 139):
                            schedule.advance(update)
                            assert shown(opt) == want[min(update, 49)], (update, shown(opt), want[49])
                        continue
                    try:
                        for update in range(40, 140):
                            schedule.advance(update)
                        schedule.advance(2)
                    except Exception as error:
                        assert "steps ahead of the job" in str(error), (name, error)
                    else:
                        assert False
            """))
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_schedule_stands_behind_whole_rounds_whatever_their_parts_add_up_to(self):
        """Sums of parts in binary are a little more or less than a whole number."""
        done = run(self.script("""
            import math
            from fractions import Fraction
            from lockstep import _update
            rounded = 0
            for batch in (1, 48, 1219, 2797):
                for whole in (0, 3, 100):
                    for counted in range(batch):
                        for samples in (1, batch - counted):
                            position = whole + counted / batch  # as the coordinator has it
                            want = math.ceil(whole + Fraction(counted + samples, batch))
                            found = _update.position_after(position, samples, batch)
                            assert found == want, (batch, whole, counted, samples, found, want)
                            rounded += math.ceil(position + samples / batch) != want
            assert rounded > 0, "the plain sum is as good"
            """))
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)

    def test_a_scheduler_of_the_scripts_own_goes_by_what_was_counted(self):
        """Where rounds are closed over less there are more of them, and the rates last as many samples as without."""
        script = self.script(f"""
            import sys
            sys.path.insert(0, {str(HERE)!r})
            from torch_worker import *
            job = lockstep.init(seed=5)
            model = make_model()
            opt = OwnRule(model.parameters(), lr=0.05)
            sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 1 / (1 + 0.1 * step))
            loader = DataLoader(make_data(), batch_size=BATCH, shuffle=True)
            model, opt, loader, sched = job.prepare(model, opt, loader, sched, epochs=3)
            for _ in range(3):
                for x, y in loader:
                    print("rate", job.round, opt.param_groups[0]["lr"], flush=True)
                    opt.zero_grad()
                    loss_of(model, x, y).backward()
                    opt.step()
                    sched.step()
            """)
        run_dir = self.folder / "run"
        done = lockstep_run("-n", "3", "--policy", "backup", "--slowdown", "worker=2,factor=8", "--set", "emulate.unit_time=2ms",
                            "--run-dir", run_dir, script)
        self.assertEqual(done.returncode, 0, done)
        rounds = self.rounds(run_dir)
        harness.check_epochs(self, rounds, 500)
        self.assertGreater(len(rounds), 3 * 9)
        want, counted, epoch = {}, 0, 0
        for line in rounds:
            counted = counted if line["epoch"] == epoch else 0
            epoch = line["epoch"]
            want[line["round"]] = 0.05 / (1 + 0.1 * (9 * epoch + counted // 60))
            counted += line["samples"]
        said = re.findall(r"\| rate (\d+) (\S+)$", done.stdout, re.MULTILINE)
        self.assertGreaterEqual(len(said), 2 * len(rounds))
        for number, rate in said:
            self.assertAlmostEqual(float(rate), want[int(number)], places=9, msg=f"round {number}")


if __name__ == "__main__":
    package.main_with_torch()
