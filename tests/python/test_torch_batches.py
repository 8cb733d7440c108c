"""Batch samplers of the script's own: its batches as they are, each once, and updates as DDP makes them of the same batches."""

import collections
import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import HERE, harness  # noqa: E402
from torch_test import LOOP, PREPARE, SCRIPT, TorchTest, lockstep_run, run  # noqa: E402
from test_torch_resume import kill_in_an_epoch  # noqa: E402

WORKER = HERE / "torch_batches.py"


class BatchesTest(TorchTest):
    def alone(self, *words):
        """The sums of the parameters after a plain loop over the batches, and the batches of each epoch."""
        done = run(WORKER, *words)
        self.assertEqual(done.returncode, 0, done)
        return self.sums(done)[0], json.loads(re.search(r"^batches (.*)$", done.stdout, re.MULTILINE).group(1))

    def sums(self, done):
        return [[float(one) for one in found.split()] for found in re.findall(r"parameters (.*)$", done.stdout, re.MULTILINE)]

    def handed(self, run_dir):
        """(worker, epoch, round, batch) -> its samples, of all batches that scripts were given."""
        found = {}
        for path in run_dir.glob("*.jsonl"):
            for line in path.read_text().splitlines() if path.stem.isdecimal() else ():
                epoch, round_, batch, samples = json.loads(line)
                found[int(path.stem), epoch, round_, batch] = samples
        return found

    def check_each_batch_once(self, run_dir, epochs):
        """By what the scripts were given, and by what they have logged with it, which counts when the batch's gradient does."""
        handed = self.handed(run_dir)
        counted = [collections.Counter() for _ in epochs]
        logged = [collections.Counter() for _ in epochs]
        for line in self.rounds(run_dir):
            for contributor in line["contributors"]:
                for first, end in contributor["ranges"]:
                    for batch in range(first, end):
                        counted[line["epoch"]][batch] += 1
                        samples = handed[contributor["worker"], line["epoch"], line["round"], batch]
                        self.assertEqual(samples, epochs[line["epoch"]][batch], (line["round"], batch))
            for name in ("squares", "size"):
                logged[line["epoch"]][name] += line["metrics"][name]["sum"]
        for of_epoch, batches, numbers in zip(counted, epochs, logged, strict=True):
            self.assertEqual(of_epoch, collections.Counter(range(len(batches))))
            self.assertEqual(numbers, {"squares": sum(i * i for batch in batches for i in batch), "size": sum(map(len, batches))})

    def assert_near(self, found, want):
        for one in found:
            for a, b in zip(one, want, strict=True):
                self.assertAlmostEqual(a, b, delta=2e-5)


class UpdatesTest(BatchesTest):
    def test_updates_are_those_of_a_plain_loop_that_averages_batches_as_ddp_does(self):
        """Also of a last round that has fewer, and whatever the sizes: from 1 sample to 64."""
        for sampler, workers, batch, words in (("tokens", 2, None, []), ("tokens", 4, None, []),
                                               ("grouped", 2, 4, ["momentum=1"]), ("list", 1, None, []), ("packed", 2, None, ["epochs=6"])):
            with self.subTest((sampler, workers, batch)):
                run_dir = self.folder / f"{sampler}-{workers}-{batch}"
                run_dir.mkdir()
                words = [f"sampler={sampler}", *words]
                in_round = batch or workers
                want, epochs = self.alone(*words, f"alone={in_round}")
                done = lockstep_run("-n", workers, "--run-dir", run_dir, WORKER, *words, f"save={run_dir}",
                                    *([f"batch={batch}"] if batch else []))
                self.assertEqual(done.returncode, 0, done)
                self.check_each_batch_once(run_dir, epochs)
                sums = self.sums(done)
                self.assertEqual(len(sums), workers)
                self.assert_near(sums, want)
                updates = -(-len(epochs[0]) // in_round)
                self.assertEqual(done.stdout.count(f"updates {updates} of {in_round} batches"), workers, done.stdout)
                self.assertEqual([line["samples"] for line in self.rounds(run_dir)][:updates],
                                 [min(in_round, len(epochs[0]) - at) for at in range(0, len(epochs[0]), in_round)])
                if sampler == "packed":
                    self.assertEqual(len(re.findall(r"lockstep: Packed has given \d+ batches for epoch 2, and its length was \d+: epochs of the job", done.stdout)), 1)
                elif sampler != "list":
                    self.assertEqual(done.stdout.count("told [0, 1, 2]"), workers, done.stdout)

    def test_batches_are_the_same_with_loader_processes(self):
        """That read ahead what is drawn for each sample; a dataset that gives many at once is asked for whole batches."""
        for words in (["sampler=tokens", "draws=1"], ["sampler=balanced", "draws=1", "together=1"]):
            with self.subTest(words):
                ends = [lockstep_run("-n", "2", "--run-dir", self.folder / f"run{len(words)}{number}", WORKER, *words, *more)
                        for number, more in enumerate(([], ["workers=2"]))]
                self.assertEqual([end.returncode for end in ends], [0, 0], ends)
                found = [self.sums(end) for end in ends]
                self.assertEqual(len(found[0]), 2)
                self.assertEqual(found[0], found[1])

    def test_weights_make_samples_count_one_each(self):
        """job.weigh(len(x)): the update of a round is that of one batch of all of its samples."""
        done = run(self.script(SCRIPT + """
batches = [[0], [1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [11, 12]]
start = [p.clone() for p in model.parameters()]
model, opt, loader = job.prepare(model, opt, DataLoader(data, batch_sampler=batches), epochs=1, global_batch=2)
for number, (x, y) in enumerate(loader):
    loss = F.cross_entropy(model(x), y)
    assert len(x) == len(batches[number])
    if number % 2:
        job.weigh(len(x))
        loss.backward()
    else:
        job.backward(loss * len(x), reduction="sum", weight=len(x))
    opt.step()
plain = nn.Linear(1, 2)
for p, value in zip(plain.parameters(), start):
    p.data = value.clone()
for x, y in (data[0:4], data[4:13]):
    plain.zero_grad()
    F.cross_entropy(plain(x), y).backward()
    for p in plain.parameters():
        p.data -= 0.1 * p.grad
for p, q in zip(model.parameters(), plain.parameters()):
    assert torch.allclose(p, q, atol=1e-6), (p, q)
print(job.metrics.round, job.metrics.samples)
"""))
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "1 2\n", ""), done)


class ManyTest(BatchesTest):
    def test_batches_move_from_a_slow_worker_and_count_once(self):
        run_dir = self.folder / "run"
        run_dir.mkdir()
        words = ["sampler=tokens", "momentum=1"]
        want, epochs = self.alone(*words, "alone=11")
        done = lockstep_run("-n", "2", "--policy", "full+flexrr", "--slowdown", "worker=1,factor=6", "--set", "emulate.unit_time=10ms",
                            "--run-dir", run_dir, WORKER, *words, "batch=11", f"save={run_dir}")
        self.assertEqual(done.returncode, 0, done)
        self.check_each_batch_once(run_dir, epochs)
        rounds = self.rounds(run_dir)
        self.assertTrue(any(line["moved"] for line in rounds))
        if not any(line["requeued"] for line in rounds):  # a part that was stuck for a while may come in a later round
            self.assert_near(self.sums(done), want)

    def test_a_worker_that_is_killed_and_comes_back_costs_no_batch(self):
        for policy, words in (("full", ["workers=1"]), ("full+flexrr", [])):
            with self.subTest(policy):
                run_dir, mark = self.folder / policy, self.folder / f"died-{policy}"
                run_dir.mkdir()
                # So many that the job waits for it, also where a busy processor has left the worker out before it dies.
                _, epochs = self.alone("sampler=tokens", "epochs=9", "alone=8")
                done = lockstep_run("-n", "4", "--policy", policy, "--restart-workers", "1", "--set", "job.min_workers=4", "--set", "liveness.timeout=60s",
                                    "--set", "emulate.unit_time=2ms", "--run-dir", run_dir, WORKER, "sampler=tokens", "epochs=9", "batch=8", *words,
                                    "die=1", f"mark={mark}", f"save={run_dir}")
                self.assertEqual(done.returncode, 0, done)
                self.assertTrue(mark.exists())
                self.check_each_batch_once(run_dir, epochs)
                sums = self.sums(done)
                self.assertEqual((len(sums), len(set(map(tuple, sums)))), (4, 1), done.stdout)

    def test_a_job_that_was_killed_goes_on_with_the_next_batch(self):
        for sampler in ("tokens", "packed"):
            with self.subTest(sampler):
                self.assert_goes_on(sampler)

    def assert_goes_on(self, sampler):
        words = [WORKER, f"sampler={sampler}", "epochs=8", "checkpoint=1", "momentum=1", "draws=1"]
        _, epochs = self.alone(f"sampler={sampler}", "epochs=8", "alone=2")
        whole, run_dir = self.folder / f"{sampler}-whole", self.folder / f"{sampler}-run"
        whole.mkdir()
        run_dir.mkdir()
        ends = [lockstep_run("-n", "2", "--run-dir", whole, *words, f"save={whole}")]
        self.assertEqual(ends[0].returncode, 0, ends)
        in_epoch = len(self.rounds(whole)) // 8
        kill_in_an_epoch(self, run_dir, in_epoch, "-m", "lockstep", "run", "-n", "2", "--run-dir", run_dir, *words, f"save={run_dir}")
        ends.append(lockstep_run("-n", "2", "--resume", "--run-dir", run_dir, *words, f"save={run_dir}"))
        self.assertEqual(ends[1].returncode, 0, ends)
        for folder in (whole, run_dir):
            self.check_each_batch_once(folder, epochs)
        sums = [tuple(one) for end in ends for one in self.sums(end)]
        self.assertEqual((len(sums), len(set(sums))), (4, 1), sums)


class RefusedTest(BatchesTest):
    OWN = """
class Own:
    passes = 0
    def __len__(self):
        return 4
    def __iter__(self):
        self.passes += 1
        {give}
loader = DataLoader(data, batch_sampler=Own())
"""
    BATCHES = OWN.format(give="yield from [[0, 1], [2], [3, 4, 5], [6]]")

    def test_lists_that_a_job_cannot_take_are_one_line(self):
        def own(give, more=""):
            return SCRIPT + self.OWN.format(give=give) + PREPARE.replace("epochs=2", f"epochs=2{more}") + LOOP

        def taken(more):
            return SCRIPT + self.BATCHES + PREPARE.replace("epochs=2", f"epochs=2{more}") + LOOP

        no_length = "del Own.__len__\n"
        ragged = "yield from [[i] for i in range(3 + self.passes)]"
        distributed = "from torch.utils.data import BatchSampler, DistributedSampler\nclass Sub(BatchSampler): pass\n"
        self.assert_outcomes([
            (taken(""), 0, ""),
            (taken(", global_batch=4, units=4, fixed_batch=True"), 0, ""),
            (SCRIPT + "loader = DataLoader(data, batch_sampler=[[1, 2], [3]])\n" + PREPARE + LOOP + "assert job.metrics.round == 3\n", 0, ""),
            (own("yield from [[0], [1, 2], [], [3]]"), 2, "Own has given batch 2 of epoch 0 without any sample: leave empty batches out"),
            (own("yield from [[0], [1, 'x'], [2], [3]]"), 2,
             "Own has given something else than the numbers of samples in batch 1 of epoch 0 ('str' object"),
            (own("yield from [[0], [1.5], [2], [3]]"), 2, "than the numbers of samples in batch 1 of epoch 0"),
            (own("yield from range(4)"), 2, "Own has given something else than a list of samples as batch 0 of epoch 0 ('int' object"),
            (own("yield from [[0], [1], [2], [3, 64]]"), 2, "Own has given sample 64 in batch 3 of epoch 0, of a dataset that has 64"),
            (own("yield from [[0], [1], [2], [3, -1]]"), 2, "Own has given sample -1 in batch 3 of epoch 0, of a dataset that has 64"),
            (own("yield from [[0], [1], [2]]"), 0, ""),
            (own(ragged), 0, ""),
            (own("return iter([])"), 2, "Own has given no batches for epoch 0, and its length was 4: with samples= of job.prepare"),
            (own("while True: yield [0]"), 2, "Own has given 17 or more batches for epoch 0, and its length was 4: with samples= of"),
            (own(ragged, ", samples=4"), 0, ""),
            (own(ragged, ", samples=5"), 2, "Own has given 4 batches for epoch 0, and job.prepare was told samples=5"),
            (own(ragged, ", samples=0"), 2, "samples: 0 is not a whole number from 1 on"),
            (own("while True: yield [0]", ", samples=3") + "assert job.metrics.round == 5\n", 0, ""),
            (SCRIPT + self.BATCHES + no_length + PREPARE, 2, "the batch sampler, Own, has no length: give job.prepare samples=, the number"),
            (SCRIPT + "loader = DataLoader(data, batch_sampler=[])\n" + PREPARE, 2, "the batch sampler has no batches"),
            (SCRIPT + distributed + "loader = DataLoader(data, batch_sampler=Sub(DistributedSampler(data, 2, 0), 8, False))\n" + PREPARE, 2,
             "the DistributedSampler is of one of 2 replicas, and the job shares batches out by itself"),
            (SCRIPT + distributed + "loader = DataLoader(data, batch_sampler=Sub(DistributedSampler(data, 1, 0), 8, False))\n" + PREPARE
             + LOOP + "assert job.metrics.round == 15\n", 0, ""),
            (taken(", global_batch=4, units=2"), 2, "units=2 of global_batch=4 batches: a unit is one batch of the batch sampler"),
            (taken(", global_batch=4").replace("run_dir=None", "run_dir=None, settings={'job.units': 2}"), 2,
             "job.units = 2 of job.global_batch = 4 batches, as the job's config says: a unit is one batch"),
            (taken("").replace("job.backward(loss)", "job.backward(loss * len(x), reduction='sum')"), 2,
             "reduction='sum': batches of a batch sampler or a function count one each"),
            (taken("").replace("job.backward(loss)", "job.backward(loss); job.log({'a': 1.0}, samples=2)"), 2,
             "job.log: samples= has no use with batches of a batch sampler"),
        ])

    def test_the_samples_of_a_loss_that_is_no_number_are_named(self):
        done = run(self.script(SCRIPT + self.BATCHES + PREPARE + LOOP.replace("job.backward(loss)", "job.backward(loss * (1 if len(x) < 3 else torch.nan))")))
        self.assertIn("the loss of worker 0 in round 2 is nan, of the samples 3, 4, 5 of the dataset", done.stderr)

    def test_how_many_batches_a_round_has_is_to_be_said_where_the_workers_are_not_known(self):
        """As where a worker is started by hand."""
        script = self.script(SCRIPT + self.BATCHES + PREPARE)
        done = run(script, LOCKSTEP_COORDINATOR="127.0.0.1:9", LOCKSTEP_WORKER="0")
        self.assert_one_line(done, 2, "give global_batch=, the number of batches in a round")

    def test_lists_that_differ_between_workers_end_the_job_with_one_line(self):
        """At once where they do from the beginning, else with the first round that shows it; also where only their cuts differ."""
        for give, message in (("yield from [[job.rank], [1], [2, 3], [4]]", r"worker \d has batches in the order of Own [0-9a-f]{12}"),
                              ("yield from ([[0, 1], [2], [3], [4]] if job.rank else [[0], [1, 2], [3], [4]])",
                               r"worker \d has batches in the order of Own [0-9a-f]{12}"),
                              ("yield from [[0], [job.rank * (self.passes > 1)], [2], [3]]",
                               "have given different samples for epoch 1, as round 2 shows")):
            with self.subTest(give):
                script = self.script(SCRIPT + self.OWN.format(give=give) + PREPARE + LOOP)
                done = lockstep_run("-n", "2", "--set", "liveness.timeout=60s", "--run-dir", self.folder / "run", script)
                if "passes" not in give:  # else the worker that sees it first may leave before the other does, which goes on
                    self.assertNotEqual(done.returncode, 0, done)
                self.assertRegex(done.stdout + done.stderr, message)
                self.assertNotIn("Traceback", done.stdout + done.stderr)


if __name__ == "__main__":
    package.main_with_torch()
