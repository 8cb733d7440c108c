"""Loaders with an order of their own, and drop_last: what torch alone trains on, exactly once whatever moves."""

import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import HERE, harness  # noqa: E402
from torch_test import LOOP, PREPARE, PYTHON, SCRIPT, TorchTest, lockstep_run, run  # noqa: E402
from test_torch_resume import kill_in_an_epoch  # noqa: E402

WORKER = HERE / "torch_samples.py"


class SamplesTest(TorchTest):
    def saved(self, kind, who):
        return json.loads((self.folder / f"{kind}-{who}.json").read_text())

    def by_torch(self, kinds):
        done = run(WORKER, "torch=1", f"order={','.join(kinds)}", f"save={self.folder}")
        self.assertEqual(done.returncode, 0, done)
        return {kind: self.saved(kind, "torch") for kind in kinds}

    def by_position(self, kind, workers):
        """Which sample each position of the job was, on whatever worker; it is the same on each that was given it."""
        seen = {}
        for worker in workers:
            for epoch, position, sample in self.saved(kind, worker)["positions"]:
                self.assertEqual(seen.setdefault((epoch, position), sample), sample, (epoch, position))
        return seen


class OrderTest(SamplesTest):
    def test_updates_have_the_samples_that_torch_alone_would_train_on(self):
        kinds = ("sequential", "sequential-drop", "weighted", "subset", "replacement", "by-epoch", "goes-on", "batches")
        want = self.by_torch(kinds)
        done = run(WORKER, f"order={','.join(kinds)}", f"save={self.folder}")
        self.assertEqual(done.returncode, 0, done)
        for kind in kinds:
            with self.subTest(kind):
                epochs = [{} for _ in want[kind]]
                for epoch, update, samples in self.saved(kind, 0)["runs"]:
                    epochs[epoch].setdefault(update, []).extend(samples)
                self.assertEqual([[updates[i] for i in sorted(updates)] for updates in epochs], want[kind])
                count = sum(len(batch) for epoch in want[kind] for batch in epoch)
                self.assertIn(f"{kind}: samples {count} of {len(want[kind][0])} updates", done.stdout)

    def test_the_end_of_an_epoch_that_is_dropped_is_another_one_in_each(self):
        done = run(WORKER, "order=shuffle", f"save={self.folder}")
        self.assertEqual(done.returncode, 0, done)
        self.assertIn("samples 1440 of 12 updates", done.stdout)
        seen = self.by_position("shuffle", [0])
        epochs = [{sample for (of, _), sample in seen.items() if of == epoch} for epoch in range(3)]
        self.assertEqual([len(samples) for samples in epochs], [480] * 3)  # none twice
        self.assertEqual(len({frozenset(samples) for samples in epochs}), 3)
        self.assertEqual(set.union(*epochs), set(range(500)))


class ManyTest(SamplesTest):
    def test_work_that_moves_and_workers_that_die_keep_the_order(self):
        """One of four is slow, another one is killed and started again: it asks the sampler for all passes before."""
        torch = self.by_torch(("weighted", "by-epoch"))
        for kind, count, words in (("shuffle", 480, ["workers=1"]), ("weighted", 330, []), ("by-epoch", 330, ["workers=1"])):
            with self.subTest(kind):
                run_dir, mark = self.folder / f"run-{kind}", self.folder / f"died-{kind}"
                done = lockstep_run("-n", "4", "--policy", "full+flexrr", "--slowdown", "worker=2,factor=6", "--restart-workers", "1",
                                    "--set", "job.min_workers=4", "--set", "emulate.unit_time=2ms", "--set", "liveness.timeout=60s", "--run-dir", run_dir,
                                    WORKER, f"order={kind}", *words, "die=1", f"mark={mark}", f"save={self.folder}")
                self.assertEqual(done.returncode, 0, done)
                self.assertTrue(mark.exists())
                rounds = self.rounds(run_dir)
                harness.check_epochs(self, rounds, count)
                self.assertEqual(sum(line["samples"] for line in rounds), 3 * count)
                sums = re.findall(r"\| parameters (.*)$", done.stdout, re.MULTILINE)
                self.assertEqual((len(sums), len(set(sums))), (4, 1), done.stdout)
                seen = self.by_position(kind, range(4))
                if kind in torch:
                    want = [[sample for batch in epoch for sample in batch] for epoch in torch[kind]]
                    for (epoch, position), sample in seen.items():
                        self.assertEqual(sample, want[epoch][position], (epoch, position))
                self.assertEqual(len([epoch for epoch, _ in seen if epoch == 2]), count)  # what a killed worker had is written nowhere

    def test_a_job_that_was_killed_goes_on_in_the_same_order(self):
        for kind, count in (("goes-on", 210), ("weighted-drop", 320)):
            with self.subTest(kind):
                words = [WORKER, f"order={kind}", "epochs=8", "checkpoint=1"]
                whole, run_dir = self.folder / f"whole-{kind}", self.folder / f"run-{kind}"
                ends = [lockstep_run("-n", "2", "--run-dir", whole, *words)]
                self.assertEqual(ends[0].returncode, 0, ends)
                kill_in_an_epoch(self, run_dir, len(self.rounds(whole)) // 8, "-m", "lockstep", "run", "-n", "2", "--run-dir", run_dir, *words)
                ends.append(lockstep_run("-n", "2", "--resume", "--run-dir", run_dir, *words))
                self.assertEqual(ends[1].returncode, 0, ends)
                sums = [re.findall(r"\| parameters (.*)$", end.stdout, re.MULTILINE) for end in ends]
                self.assertEqual((len(sums[0]), len(set(sums[0] + sums[1]))), (2, 1), sums)
                harness.check_epochs(self, self.rounds(run_dir), count)


class OwnGeneratorTest(SamplesTest):
    DATA = """
import random
class Data(torch.utils.data.Dataset):
    def __init__(self):
        self.generator = random.Random(7)
    def __len__(self):
        return 64
    def __getitem__(self, i):
        return torch.tensor([i / 64 * {draw}.choice((-1, 1))]), i % 2
loader = DataLoader(Data(), batch_size=16, shuffle=True)
"""

    def test_a_dataset_that_draws_from_a_generator_of_its_own_is_told_so(self):
        """It begins anew when the job goes on, and what it has drawn on one worker is not what it draws on another."""
        own, seeded = (run(self.script(SCRIPT + self.DATA.format(draw=draw) + PREPARE + LOOP)) for draw in ("self.generator", "random"))
        self.assert_one_line(own, 0, "of the dataset differs when it is read again with the same seeds, so it draws from a generator of its own")
        self.assertEqual((seeded.returncode, seeded.stderr), (0, ""), seeded)


class RefusedTest(SamplesTest):
    OWN = """
class Own(torch.utils.data.Sampler):
    def __len__(self):
        return 32
    def __iter__(self):
        {give}
loader = DataLoader(data, batch_size=16, sampler=Own())
"""

    def test_what_no_order_comes_of_is_one_line(self):
        def own(give):
            return SCRIPT + self.OWN.format(give=give)

        more = "from torch.utils.data import BatchSampler, DistributedSampler, SequentialSampler\n"
        plain = "loader = DataLoader(data, batch_size=16, "
        self.assert_outcomes([
            (own("yield from range(31)") + PREPARE, 2, "Own has given 31 samples for epoch 0, and its length was 32"),
            (own("yield from __import__('itertools').count()") + PREPARE, 2, "Own has given more samples for epoch 0, and its length was 32"),
            (own("yield from range(40, 72)") + PREPARE, 2, "Own has given sample 71 of a dataset that has 64"),
            (own("yield from range(33)") + PREPARE, 2, "Own has given more samples for epoch 0, and its length was 32"),
            (own("yield from [-1] * 32") + PREPARE, 2, "Own has given sample -1 of a dataset"),
            (own("yield from 'x' * 32") + PREPARE, 2, "Own has given something else than the numbers of samples ('str' object"),
            (own("yield from range(32)") + PREPARE + LOOP, 0, ""),
            (SCRIPT + plain + "sampler=(i for i in range(3)))\n" + PREPARE, 2, "the sampler, generator, has no length"),
            (SCRIPT + plain + "sampler=[])\n" + PREPARE, 2, "the sampler has no samples"),
            (SCRIPT + plain + "sampler=[3, 1, 2])\n" + PREPARE + LOOP, 0, ""),
            (SCRIPT + more + "class Own(DistributedSampler): pass\n" + plain + "sampler=Own(data, 2, 0))\n" + PREPARE, 2, "the Own is of one of 2 replicas"),
            (SCRIPT + more + plain + "sampler=DistributedSampler(data, 1, 0))\n" + PREPARE + LOOP, 0, ""),
            (SCRIPT + "loader = DataLoader(data, batch_size=None)\n" + PREPARE, 2, "batch_size=None"),
            (SCRIPT + "loader = DataLoader(data, batch_size=65, shuffle=True, drop_last=True)\n" + PREPARE, 2,
             "an epoch has 64 samples, an update 65, and drop_last=True leaves out what is less than an update"),
            (SCRIPT + "loader = DataLoader(data, batch_size=65, shuffle=True, drop_last=True)\n"  # with the job's batch there is something
             + PREPARE.replace("epochs=2", "epochs=2, global_batch=30") + LOOP + "assert job.metrics.round == 3\n", 0, ""),
            (SCRIPT.replace("run_dir=None", "run_dir=None, settings={'job.global_batch': 48}")
             + "loader = DataLoader(data, batch_size=16, shuffle=True, drop_last=True)\n"
             + PREPARE + "assert len(loader) == 1\n" + LOOP + "assert job.metrics.round == 1\n", 0, ""),
        ])

    def test_samplers_that_differ_between_workers_end_the_job_with_one_line(self):
        """At once where they do from the beginning, else with the first round that shows it."""
        for draw, message in (("job.rank", r"worker \d has samples in the order of Own [0-9a-f]{12}"),
                              ("self.passes > 1 and job.rank", "have given different samples for epoch 1, as round 2 shows")):
            with self.subTest(draw):
                script = self.script(SCRIPT + self.OWN.format(give=f"""
        self.passes = getattr(self, "passes", 0) + 1
        first = {draw} + torch.randint(64, ()).item()
        for i in range(32):
            yield (first + i) % 64""") + PREPARE + LOOP)
                done = lockstep_run("-n", "2", "--set", "liveness.timeout=60s", "--run-dir", self.folder / "run", script)
                self.assertNotEqual(done.returncode, 0, done)
                self.assertRegex(done.stdout + done.stderr, message)
                self.assertNotIn("Traceback", done.stdout + done.stderr)


if __name__ == "__main__":
    package.main_with_torch()
