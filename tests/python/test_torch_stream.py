"""IterableDataset: positions are counted, and each worker fills its own from its own part of the stream."""

import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import HERE, harness  # noqa: E402
from torch_test import LOOP, SCRIPT, TorchTest, lockstep_run, run  # noqa: E402
from test_torch_resume import kill_in_an_epoch  # noqa: E402

WORKER = HERE / "torch_stream.py"


class StreamTest(TorchTest):
    def items(self, worker):
        """Of each epoch: which, and what the dataset has drawn for each."""
        return json.loads((self.folder / f"{worker}.json").read_text())

    def run_worker(self, *words, says=""):
        done = run(WORKER, *words, f"save={self.folder}")
        self.assertEqual((done.returncode, done.stderr), (0, says), done)
        return [[item for item, _ in epoch] for epoch in self.items(0)]

    def run_job(self, *words, workers, run_dir):
        done = lockstep_run("-n", str(workers), "--set", "liveness.timeout=60s", "--run-dir", run_dir, *words)
        self.assertEqual(done.returncode, 0, done)
        sums = re.findall(r"\| parameters (.*)$", done.stdout, re.MULTILINE)
        self.assertEqual((len(sums), len(set(sums))), (workers, 1), done.stdout)
        return sums[0]

    def test_one_worker_has_the_stream_as_it_comes_and_again_where_it_ends(self):
        self.assertEqual(self.run_worker("length=200"), [list(range(200))] * 3)
        says = "lockstep: the stream of worker 0 has ended after 150 items, and its share of samples=200 is 200, so items come again: lower samples=\n"
        self.assertEqual(self.run_worker("length=150", says=says), [[*range(150), *range(50)]] * 3)
        self.assertEqual(self.run_worker("length=230"), [list(range(200))] * 3)

    def test_each_worker_has_its_part(self):
        for words in ([], ["shuffled=1"], ["sharded=1"]):
            with self.subTest(words):
                run_dir = self.folder / f"run{len(words)}{words}"
                self.run_job("--policy", "full", WORKER, "length=240", *words, f"save={self.folder}", workers=2, run_dir=run_dir)
                rounds = self.rounds(run_dir)
                harness.check_epochs(self, rounds, 200)
                parts = [self.items(worker) for worker in range(2)]
                for epoch in range(3):
                    seen = [[item for item, _ in part[epoch]] for part in parts]
                    self.assertEqual(sum(map(len, seen)), 200)
                    self.assertEqual(len(set(seen[0] + seen[1])), 200)  # parts of 120 are enough for what each has
                    if "shuffled=1" not in words:
                        self.assertEqual(seen, [list(range(worker, 2 * len(seen[worker]), 2)) for worker in range(2)])
                if "shuffled=1" in words:
                    self.assertNotEqual(parts[0][0], parts[0][1])
                    # The dataset draws alike on both workers, whatever else they draw: the same item, the same noise.
                    alone = run(WORKER, "length=240", "samples=240", *words, f"save={self.folder}")
                    self.assertEqual(alone.returncode, 0, alone)
                    drawn = [dict(map(tuple, epoch)) for epoch in self.items(0)]
                    for part in parts:
                        for epoch in range(3):
                            self.assertEqual([[item, drawn[epoch][item]] for item, _ in part[epoch]], part[epoch])

    def test_counts_hold_whatever_moves_and_whoever_dies(self):
        run_dir, mark = self.folder / "run", self.folder / "died"
        self.run_job("--policy", "full+flexrr", "--slowdown", "worker=2,factor=6", "--restart-workers", "1", "--set", "job.min_workers=3",
                     "--set", "emulate.unit_time=2ms", WORKER, "die=1", f"mark={mark}", workers=3, run_dir=run_dir)
        self.assertTrue(mark.exists())
        rounds = self.rounds(run_dir)
        harness.check_epochs(self, rounds, 200)
        self.assertEqual(sum(line["samples"] for line in rounds), 600)

    def test_a_job_that_was_killed_goes_on_in_its_counts(self):
        words = [WORKER, "epochs=8", "checkpoint=1"]
        run_dir = self.folder / "run"
        kill_in_an_epoch(self, run_dir, 7, "-m", "lockstep", "run", "-n", "2", "--run-dir", run_dir, *words)
        before = len(self.rounds(run_dir))
        self.run_job("--resume", *words, workers=2, run_dir=run_dir)
        rounds = self.rounds(run_dir)
        self.assertGreater(len(rounds), before)
        harness.check_epochs(self, rounds, 200)

    def test_a_dataset_is_asked_for_an_iterator_once_for_each_pass(self):
        """With one that returns itself, as those of litdata, iter() begins the items anew."""
        stream = SCRIPT + """
class S(IterableDataset):
    passes = 0
    def __iter__(self):
        self.passes, self.at = self.passes + 1, 0
        return self
    def __next__(self):
        if self.at == 24:
            raise StopIteration
        self.at += 1
        return torch.tensor([self.at / 24]), self.at % 2, self.at
loader = DataLoader(S(), batch_size=4)
model, opt, loader = job.prepare(model, opt, loader, epochs=2, samples=20{more})
for epoch in range(2):
    seen = []
    for x, y, items in loader:
        seen += items.tolist()
        F.cross_entropy(model(x), y).backward()
        opt.step()
    assert (seen, loader.dataset.passes) == (list(range(1, 21)), epoch + 1), (seen, loader.dataset.passes)
"""
        self.assert_outcomes([(stream.format(more=more), 0, "") for more in (", sharded=True", "")])

    def test_what_shares_itself_out_too_is_read_once_or_told(self):
        """The launcher's variables tell a dataset of other workers, which get_worker_info() tells it with sharded=True."""
        whole = ("environment", "environment-and-told", "fixed", "own-sharded", "made-undivided")
        done = run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", HERE / "torch_parts.py", ",".join([*whole, "own", "alike", "whole"]))
        self.assertEqual(done.returncode, 0, done)
        outcomes = {kind: dict(re.findall(rf"^{kind} (\d) (.*)$", done.stdout, re.MULTILINE)) for kind in (*whole, "own", "alike", "whole")}
        for kind in whole:
            with self.subTest(kind):
                parts = [json.loads(outcomes[kind][worker]) for worker in "01"]
                for epoch in range(2):
                    self.assertEqual([part[epoch] for part in parts], [list(range(worker, 96, 2)) for worker in range(2)])
        self.assertEqual(json.loads(outcomes["alike"]["1"]), [[7] * 48] * 2)
        says = [line for line in done.stderr.splitlines() if line.startswith("lockstep: the stream")]
        self.assertEqual(len(says), 3, done.stderr)  # all of the job "own"
        self.assertIn("lockstep: the stream begins with other items on other workers, but each worker takes one of every 2 items, ", says[0])
        for worker in range(2):
            line = f"lockstep: the stream of worker {worker} has ended after 24 items, and its share of samples=96 is 48, so items come again: if the dataset"
            self.assertEqual([line in one for one in says].count(True), 1, says)
        refused = [text for text in outcomes["whole"].values() if text.startswith("refused: ")]
        self.assertGreater(len(refused), 0, outcomes["whole"])
        self.assertIn("the first 4 items are the same on all workers. Leave sharded=True out", refused[0])

    def test_what_is_refused_is_one_line(self):
        stream = SCRIPT + "class S(IterableDataset):\n    def __iter__(self):\n        {give}\nloader = DataLoader(S(), batch_size=4{more})\n"
        give = stream.format(give="yield from ((torch.zeros(1), 0),) * 3", more="")
        prepare = "model, opt, loader = job.prepare(model, opt, loader, epochs=2{more})\n"
        self.assert_outcomes([
            (give + prepare.format(more=""), 2, "the dataset is an IterableDataset: give samples=, the number of the stream"),
            (give + prepare.format(more=", samples=0"), 2, "samples: 0 is not a whole number from 1 on"),
            (give + prepare.format(more=", samples=8") + LOOP, 0, ""),
            (give + prepare.format(more=", samples=11") + LOOP + "assert job.metrics.round == 5\n", 0, ""),
            (stream.format(give="yield from ((torch.zeros(1), 0),) * 3", more=", drop_last=True") + prepare.format(more=", samples=11")
             + LOOP + "assert job.metrics.round == 3\n", 0, ""),
            (stream.format(give="return iter(())", more="") + prepare.format(more=", samples=8") + LOOP, 2,
             "the stream has nothing for worker 0 of 1"),
            (stream.format(give="return iter(())", more="") + prepare.format(more=", samples=8, sharded=True") + LOOP, 2,
             "the stream has nothing for worker 0 of 1: it has ended before: give the dataset a shard for each worker"),
            # As the dataset of litdata, within another one.
            (SCRIPT + "class Empty(IterableDataset):\n    def __iter__(self): return iter([])\n"
             "class StreamingDataset(Empty):\n    distributed_env = __import__('types').SimpleNamespace(global_rank=0, world_size=2)\n"
             "StreamingDataset.__module__ = 'litdata.streaming.dataset'\n"
             "class S(Empty):\n    def __init__(self): self.of = {'all': [StreamingDataset(), self]}\nloader = DataLoader(S(), batch_size=4)\n"
             + prepare.format(more=", samples=8"), 2, "the StreamingDataset of litdata has been part 0 of 2 since it was made"),
            ("import lockstep\nwith lockstep.undivided():\n    lockstep.init()\n", 2, "call lockstep.init() outside of it"),
            (SCRIPT + prepare.format(more=", samples=64"), 2, "samples= is for an IterableDataset"),
            (SCRIPT + prepare.format(more=", sharded=True"), 2, "sharded= is for an IterableDataset"),
            (SCRIPT + "import warnings; warnings.simplefilter('error', UserWarning)\nclass S(IterableDataset):\n    def __iter__(self): return iter([])\n"
             "loader = DataLoader(S(), batch_size=4, num_workers=2)\ntry:\n    job.prepare(model, opt, loader, epochs=2, samples=4)\n"
             "except UserWarning as warning:\n    assert 'num_workers=2 is not used' in str(warning), warning\nelse:\n    raise AssertionError\n", 0, ""),
        ])


if __name__ == "__main__":
    package.main_with_torch()
