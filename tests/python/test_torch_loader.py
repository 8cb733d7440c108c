"""Loader processes: the same samples as without them, whoever reads them and whatever moves, and none that outlives its trainer."""

import collections
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import textwrap

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import HERE, harness  # noqa: E402

PYTHON = package.TORCH_PYTHON
WORKER = HERE / "torch_loader.py"

# A script that takes no care: nothing is guarded, and everything is defined where it is run.
SCRIPT = """
import torch, lockstep, pathlib
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, i):
        return torch.tensor([i / 64]), i % 2
data, more = Data(), {{}}
{change}
job = lockstep.init()
model = nn.Linear(1, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=2, **more)
model, opt, loader = job.prepare(model, opt, loader, epochs=2)
for epoch in range(2):
    for x, y in loader:
        job.backward(F.cross_entropy(model(x), y))
        opt.step()
print("whole", float(model.weight.double().sum()), flush=True)
"""


def run(*arguments, **more):
    return package.run(*arguments, python=PYTHON, **more)


def lockstep_run(*arguments, **more):
    return run("-m", "lockstep", "run", *arguments, **more)


def is_there(pid):
    """Not: a zombie, of which whoever has taken it over knows nothing yet."""
    try:
        return (pathlib.Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class LoaderTest(harness.ClusterTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.begun = self.folder / "begun"
        self.begun.mkdir()

    def script(self, change):
        path = self.folder / "script.py"
        path.write_text(SCRIPT.format(change=textwrap.dedent(change)))
        return path

    def start(self, *words):
        process = package.start(WORKER, *words, f"begun={self.begun}", python=PYTHON)

        def end():
            process.kill()
            for pid in self.loaders():
                if is_there(pid) and re.search(b"torch_loader|multiprocessing", (pathlib.Path("/proc") / str(pid) / "cmdline").read_bytes()):
                    os.kill(pid, signal.SIGKILL)  # they would hold its pipes
            process.communicate()

        self.addCleanup(end)
        return process

    def line(self, process):
        """What it says next, as words."""
        words = process.stdout.readline().split()
        if not words:
            self.fail(f"it has ended: {process.communicate(timeout=package.TIMEOUT_S)}")
        return words

    def loaders(self):
        return [int(path.name) for path in self.begun.iterdir()]

    def assert_gone(self, count):
        pids = self.loaders()
        self.assertEqual(len(pids), count)
        harness.wait_for("the end of the loader processes", lambda: not any(is_there(pid) for pid in pids))

    def assert_one_line(self, ended, status, message):
        self.assertEqual(ended.returncode, status, ended)
        self.assertRegex(ended.stderr, r"\Alockstep: [^\n]+\n\Z")
        self.assertRegex(ended.stderr, message)


class SameTest(LoaderTest):
    def outcome(self, *words):
        done = run(WORKER, *words, f"begun={self.begun}")
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        return re.findall(r"^(?:parameters|samples) .*$", done.stdout, re.MULTILINE)

    def test_any_number_of_processes_gives_the_same_bits_however_they_start(self):
        want = self.outcome()
        self.assertRegex(want[1], " 1500$")
        loaders = 0
        for count, words in ((1, []), (3, []), (2, ["context=forkserver"]), (1, ["context=spawn"]), (2, ["data=subset"])):
            with self.subTest(words, count=count):
                self.assertEqual(self.outcome(f"workers={count}", *words), want)
                loaders += count
                self.assert_gone(loaders)
        together = self.outcome("data=together")
        self.assertNotEqual(together, want)
        self.assertEqual(self.outcome("data=together", "workers=3"), together)

    def test_several_workers_with_and_without_are_the_same_bits(self):
        seen = set()
        for count in (0, 1, 3):
            done = lockstep_run("-n", "2", "--policy", "full", "--set", "liveness.timeout=60s", "--run-dir", self.folder / str(count), WORKER,
                                f"workers={count}")
            self.assertEqual(done.returncode, 0, done)
            parameters = re.findall(r"\| (parameters .*)$", done.stdout, re.MULTILINE)
            self.assertEqual(len(parameters), 2, done.stdout)
            seen.update(parameters)
        self.assertEqual(len(seen), 1, seen)

    def test_work_that_moves_is_read_by_who_computes_it(self):
        """Each sample counts once and is, with its augmentation, what a single process would have read."""
        want = self.outcome()[1].split()[1]
        run_dir = self.folder / "run"
        done = lockstep_run("-n", "3", "--policy", "full+flexrr", "--slowdown", "worker=2,factor=6", "--set", "emulate.unit_time=2ms",
                            "--set", "liveness.timeout=60s", "--run-dir", run_dir, WORKER, "workers=2", f"save={self.folder}",
                            f"begun={self.begun}")
        self.assertEqual(done.returncode, 0, done)
        job = harness.Job(1, folder=self.folder)
        job.run_dir = run_dir
        rounds = job.rounds()
        harness.check_epochs(self, rounds, 500)
        self.assertEqual(sum(line["samples"] for line in rounds), 1500)
        self.assertTrue(any(line["moved"] for line in rounds))
        digest = subprocess.run([PYTHON, "-c", textwrap.dedent("""
            import hashlib, sys, torch
            seen, digest = {}, hashlib.sha256()
            for path in sys.argv[1:]:
                for key, value in torch.load(path).items():
                    assert seen.setdefault(key, value) == value, key
            for key in sorted(seen):
                digest.update(seen[key])
            print(digest.hexdigest())
            """), *map(str, self.folder.glob("*.pt"))], capture_output=True, text=True, check=True).stdout.strip()
        self.assertEqual(digest, want)
        self.assert_gone(6)

    def test_values_of_all_kinds_come_through_and_what_comes_next_is_known(self):
        done = run("-c", """
import numpy, os, torch
from lockstep import _ahead, _packed
shared = torch.arange(12.0).reshape(3, 4)
odd = [torch.zeros(0, 3), torch.tensor(5), torch.randn(2, 3).bfloat16(), torch.tensor([True, False]), torch.randn(3, 3).t(), shared[1],
       torch.zeros(2, dtype=torch.complex64), torch.sparse_coo_tensor([[0], [1]], [2.0], (2, 2)), torch.ones(2, requires_grad=True),
       torch.nn.Parameter(torch.ones(2)), numpy.arange(6).reshape(2, 3), numpy.zeros(0), numpy.array(["a", None], dtype=object), b"x" * 100000,
       {"a": ("b", 1.5)}, None, [shared, shared]]
back = _packed.unpack(_packed.pack(odd))
for one, other in zip(odd, back, strict=True):
    assert type(one) is type(other), (one, other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and one.shape == other.shape and one.requires_grad == other.requires_grad
        assert torch.equal(one.to_dense(), other.to_dense())
    elif isinstance(one, numpy.ndarray):
        assert one.dtype == other.dtype and one.shape == other.shape and (one == other).all()
    elif not isinstance(one, list):
        assert one == other
assert back[-1][0] is back[-1][1] and torch.equal(back[-1][0], shared)
back[5].add_(1)
back[10][0, 0] = 7
assert not any("memfd" in os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{fd}"))

class Order:  # of which every epoch is known that is below
    below = 9
    def reaches(self, epoch):
        return epoch < self.below

def ahead():
    return _ahead.Ahead(order=Order(), samples=100, batch=30, epochs=2, workers=3)
one = ahead()  # a third of each round, the middle one; the last one of an epoch has ten samples
one.saw(0, 0, [(10, 20)])
assert list(one.next(25)) == [(0, 40, 50), (0, 70, 80), (0, 93, 96), (1, 10, 12)], list(one.next(25))
one.saw(0, 1, [(40, 46)])  # and the rest of this one
assert list(one.next(10)) == [(0, 46, 50), (0, 70, 76)], list(one.next(10))
one.saw(0, 1, [(46, 50), (57, 60)])  # what was moved here
one.saw(0, 2, [(70, 72)])
assert list(one.next(12)) == [(0, 72, 80), (0, 87, 90), (0, 93, 94)], list(one.next(12))
one.saw(1, 4, [(10, 30)])  # more than ever
assert list(one.next(1000)) == [(1, 40, 60), (1, 70, 90), (1, 93, 100)], list(one.next(1000))
one.saw(1, 5, [(2, 5), (40, 50)])  # with something that was given back
assert list(one.next(20)) == [(1, 50, 60), (1, 70, 80)], list(one.next(20))
one = ahead()
one.saw(0, 2, [(70, 80)])
assert list(one.next(25)) == [(0, 93, 96), (1, 10, 20), (1, 40, 50), (1, 70, 72)], list(one.next(25))
one.saw(0, 3, [(93, 96)])  # what is read for the next epoch stays wanted
assert list(one.next(22)) == [(1, 10, 20), (1, 40, 50), (1, 70, 72)], list(one.next(22))
Order.below = 1  # of a sampler that has not been asked for more yet
assert list(one.next(22)) == [], list(one.next(22))
one = ahead()
one.saw(0, 1, [(40, 50)])
assert list(one.next(22)) == [(0, 70, 80), (0, 93, 96)], list(one.next(22))

one = _ahead.AheadInParts(samples=50, workers=2, share=10)  # eight parts: 0, 6, 12, 18, 25, 31, 37, 43
one.saw(-2, 0, [(0, 4)])
assert list(one.next(12)) == [(-2, 4, 6), (-2, 12, 18), (-2, 25, 29)], list(one.next(12))
one.saw(-2, 0, [(18, 25)])  # two others' parts between, and the end is near
assert list(one.next(99)) == [(-2, 37, 43)], list(one.next(99))
one.saw(-2, 0, [(0, 6)])  # the next evaluation
assert list(one.next(7)) == [(-2, 18, 25)] and list(one.samples_of(-2, 18, 20)) == [18, 19], list(one.next(7))
one = _ahead.AheadInParts(samples=3, workers=2, share=10)
one.saw(-2, 0, [(1, 2)])
assert list(one.next(7)) == [] and one.longest == 1, list(one.next(7))
print("whole")
""")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "whole\n", ""))


class EndTest(LoaderTest):
    def test_an_exception_in_a_dataset_is_raised_with_its_traceback_and_sample(self):
        done = run(WORKER, "workers=2", "raise=77", f"begun={self.begun}")
        self.assertEqual(done.returncode, 1, done)
        self.assertRegex(done.stderr, r"In loader process [01], sample 77 \(position \d+ of epoch 0\):\nTraceback")
        self.assertIn('raise KeyError(f"no such thing as {index}")', done.stderr)  # the line of the dataset
        self.assertEqual(done.stderr.splitlines()[-1], "KeyError: 'no such thing as 77'")
        self.assert_gone(2)

    def test_a_loader_process_that_is_killed_is_one_line(self):
        process = self.start("workers=2", "stop=77")
        what, pid = self.line(process)
        self.assertEqual(what, "stopped")
        os.kill(int(pid), signal.SIGKILL)
        out, err = process.communicate(timeout=package.TIMEOUT_S)
        self.assert_one_line(subprocess.CompletedProcess([], process.returncode, out, err), 1,
                             rf"loader process [01] of 2, process id {pid}, was killed by SIGKILL \(by the kernel, perhaps, for want of memory")
        self.assert_gone(2)

    def test_a_trainer_that_is_killed_takes_its_loader_processes_along(self):
        for context in ("fork", "forkserver"):
            with self.subTest(context):
                process = self.start("workers=2", "stop=77", f"context={context}")  # one of them in the middle of its sample
                self.assertEqual(self.line(process)[0], "stopped")
                process.kill()
                self.assert_gone(2 if context == "fork" else 4)

    def test_ctrl_c_is_one_line_and_no_loader_process_stays(self):
        process = self.start("workers=2", "stop=77")
        self.assertEqual(self.line(process)[0], "stopped")
        for pid in self.loaders():
            ignored = re.search(r"^SigIgn:\s*(\w+)", (pathlib.Path("/proc") / str(pid) / "status").read_text(), re.MULTILINE).group(1)
            self.assertTrue(int(ignored, 16) >> (signal.SIGINT - 1) & 1, ignored)
        for pid in [*self.loaders(), process.pid]:  # as a terminal does
            os.kill(pid, signal.SIGINT)
        out, err = process.communicate(timeout=package.TIMEOUT_S)
        self.assertEqual((process.returncode, out), (130, ""))
        self.assertRegex(err, r"\Alockstep: SIGINT: the job ends [^\n]*\nlockstep: interrupted\n\Z")
        self.assert_gone(2)

    def test_a_dataset_that_hangs_is_told_by_the_time_limit(self):
        done = run(WORKER, "workers=2", "stop=77", "timeout=1", f"begun={self.begun}")
        self.assert_one_line(done, 1, "no samples from the loader processes in 1 s, the timeout of the DataLoader")
        self.assert_gone(2)

    def test_they_have_nothing_of_the_session_and_leave_nothing_open(self):
        process = self.start("workers=3", "end=12")
        what, *pids = self.line(process)
        self.assertEqual((what, sorted(map(int, pids))), ("loop", sorted(self.loaders())))

        def open_files(pid):
            found = []
            for path in (pathlib.Path("/proc") / str(pid) / "fd").iterdir():
                try:
                    found.append(os.readlink(path))
                except FileNotFoundError:  # closed since
                    pass
            return found

        for pid in pids:
            files = open_files(pid)
            self.assertEqual(sum(name.startswith("socket:") for name in files), 1, files)
            self.assertFalse([name for name in files if "/dev/shm" in name or "lockstep-samples" in name and not name.endswith("(deleted)")], files)
        files = open_files(process.pid)
        self.assertFalse([name for name in files if "/dev/shm" in name or "lockstep-samples" in name], files)
        process.kill()
        self.assert_gone(3)


class CarelessTest(LoaderTest):
    def test_a_script_that_takes_no_care_works(self):
        """Nothing guarded, a dataset of its own that cannot be pickled, and a file whose position all of its processes would share."""
        (self.folder / "data").write_bytes(b"".join(bytes([i % 251]) * 4096 for i in range(64)))
        change = f"""
            class Data(Dataset):
                def __init__(self):
                    self.file = open({str(self.folder / "data")!r}, "rb", buffering=0)
                    self.double = lambda i: 2 * i
                def __len__(self):
                    return 64
                def __getitem__(self, i):
                    self.file.seek(4096 * i)
                    content = b"".join(self.file.read(64) for _ in range(64))
                    assert content == bytes([i % 251]) * 4096, (i, content[:8])
                    return torch.tensor([self.double(i) / 128]), i % 2
            data, more = Data(), {{"collate_fn": lambda many: (torch.stack([x for x, _ in many]), torch.tensor([y for _, y in many]))}}
            """
        path = self.script(change)
        done = run(path)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        path.write_text(path.read_text().replace("num_workers=2", "num_workers=0"))
        self.assertEqual(run(path).stdout, done.stdout)

    def test_what_other_ways_to_start_cannot_do_is_one_line(self):
        done = run(self.script("""
            data.file = open(__file__, "rb")
            more = {"multiprocessing_context": "forkserver"}
            """))
        self.assert_one_line(done, 2, r"the dataset cannot be sent to loader processes \(cannot pickle '_io\.BufferedReader' object\), because 'forkserver'")
        for context in ("forkserver", "spawn"):
            done = run(self.script(f"more = {{'multiprocessing_context': '{context}'}}"))  # not within if __name__ == "__main__"
            self.assertEqual(done.returncode, 2, done)
            self.assertIn("Begin the job within if __name__ == '__main__':", done.stderr)
            self.assertRegex(done.stderr.splitlines()[-1], "^lockstep: loader process [01] of 2, .* before its first sample")
            self.assertNotIn("Traceback", done.stderr)
        # As in a notebook: there is no file that could be run for its definitions.
        done = run("-c", SCRIPT.format(change="more = {'multiprocessing_context': 'forkserver'}"))
        self.assert_one_line(done, 2, r"cannot use the objects that it was sent \(AttributeError: Can't get attribute 'Data' .*multiprocessing_context='fork'")
        self.assertIn("whole", run("-c", SCRIPT.format(change="")).stdout)

    def test_one_job_after_the_other(self):
        script = SCRIPT.format(change="")
        done = run("-c", script + script[script.index("job = lockstep"):])
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        lines = done.stdout.splitlines()
        self.assertEqual((len(lines), len(set(lines))), (2, 1), lines)

    def test_what_is_not_used_or_goes_wrong_at_the_start_is_said(self):
        done = run("-c", SCRIPT.format(change="""
import warnings
warnings.simplefilter("always")
more = {"generator": torch.Generator(), "pin_memory": True}
"""))
        self.assertEqual(done.returncode, 0, done)
        self.assertIn("the DataLoader's generator is not used: the order of the samples", done.stderr)
        self.assertIn("the DataLoader's pin_memory is not used: there is no accelerator to pin memory for", done.stderr)
        done = run("-c", SCRIPT.format(change="more = {'worker_init_fn': lambda number: {}[number]}"))
        self.assertEqual(done.returncode, 1, done)
        self.assertRegex(done.stderr, "In loader process [01], before its first sample:\nTraceback")
        self.assertRegex(done.stderr.splitlines()[-1], "^KeyError: [01]$")
        done = run("-c", SCRIPT.format(change="Data.__getitem__ = lambda self, i: lambda: i"))
        self.assertEqual(done.returncode, 1, done)
        self.assertIn("A sample of the dataset cannot be sent to the training process", done.stderr)

    def test_batches_are_pinned_where_there_is_an_accelerator(self):
        """Stands in for one: what is handed out has been through Tensor.pin_memory, of the training and of the evaluation."""
        done = run("-c", SCRIPT.format(change="""
if hasattr(torch, "accelerator"):
    torch.accelerator.is_available = lambda: True
    torch.accelerator.current_accelerator = lambda *_: torch.device("cuda")
else:  # before 2.6
    torch.cuda.is_available = lambda: True
more = {"pin_memory": True}
pinned = []
def pin(tensor, *_):
    pinned.append(tensor.clone())
    return pinned[-1]
torch.Tensor.pin_memory = pin
def is_pinned(tensor):
    return any(tensor is one for one in pinned)
def judge(model, batch):
    assert all(map(is_pinned, batch))
    return 0.0, 0
init = lockstep.init
def init_and_evaluate():
    job = init()
    job.evaluate(judge, DataLoader(data, batch_size=16, pin_memory=True))
    return job
lockstep.init = init_and_evaluate
""").replace("    for x, y in loader:", "    for x, y in loader:\n        assert is_pinned(x) and is_pinned(y)"))
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)


# Reads at random, and says who has read what for an evaluation.
EVALUATED = """
import os, sys, torch, lockstep
from torch import nn
from torch.utils.data import DataLoader, Dataset
COUNT, LOG = int(sys.argv[1]), sys.argv[2]
class Held(Dataset):
    def __len__(self):
        return 600
    def __getitem__(self, i):
        if i == int(sys.argv[3]):
            raise KeyError("held")
        with open(LOG, "a") as log:
            log.write(f"{os.getpid()}\\n")
        return torch.rand(())
class Data(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, i):
        return torch.tensor([i / 64]), i % 2
job = lockstep.init()
job.evaluate(lambda model, values: (values.double().sum(), 0), DataLoader(Held(), batch_size=20, num_workers=COUNT))
model = nn.Linear(1, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
model, opt, loader = job.prepare(model, opt, DataLoader(Data(), batch_size=16, num_workers=COUNT), epochs=2)
for epoch in range(2):
    for x, y in loader:
        nn.functional.cross_entropy(model(x), y).backward()
        opt.step()
print("drawn", float(torch.rand(())), flush=True)
"""


class EvaluateTest(LoaderTest):
    def setUp(self):
        super().setUp()
        (self.folder / "evaluated.py").write_text(EVALUATED)

    def evaluate(self, count, workers=1):
        run_dir, log = self.folder / f"{count}-{workers}", self.folder / f"log-{count}-{workers}"
        done = lockstep_run("-n", workers, "--set", "liveness.timeout=60s", "--run-dir", run_dir, self.folder / "evaluated.py", count, log, -1)
        self.assertEqual(done.returncode, 0, done)
        records = [json.loads(line) for line in (run_dir / "evaluations.jsonl").read_text().splitlines()]
        return done, records, collections.Counter(log.read_text().split())

    def test_loader_processes_read_what_is_evaluated_with_the_same_result(self):
        """Whatever is drawn for a sample: the same in each process, in each evaluation, and apart from what the script draws."""
        drawn, losses = set(), set()
        for count in (0, 1, 3):
            done, records, read = self.evaluate(count)
            self.assertEqual(records[-1]["samples"], 600)
            losses.update(record["loss"] for record in records)
            drawn.update(re.findall(r"\| (drawn .*)$", done.stdout, re.MULTILINE))
            self.assertGreaterEqual(sum(read.values()), 600 * len(records) + 24)
            # The training process reads 16, to tell whether all have the same, and 8 of them again.
            self.assertEqual(len(read), 1 + count, read)
            self.assertEqual(24 in read.values(), count > 0, read)
        self.assertEqual(len(losses), 1, losses)
        self.assertEqual(len(drawn), 1, drawn)
        _, records, _ = self.evaluate(2, workers=2)
        self.assertAlmostEqual(records[-1]["loss"], losses.pop(), places=9)

    def test_an_exception_in_what_is_evaluated_is_the_script_s(self):
        done = run(self.folder / "evaluated.py", 2, self.folder / "log", 301)
        self.assertEqual(done.returncode, 1, done)
        self.assertIn("sample 301 (position 301 of the evaluation)", done.stderr)
        self.assertIn("KeyError: 'held'", done.stderr)


# Worker 1 is slow at what is said: its disk, or its processor.
SLOW = """
import os, sys, time, torch, lockstep
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
from lockstep._processes import _Read
what, count = sys.argv[1], int(sys.argv[2])
class Data(Dataset):
    slow = False
    def __len__(self):
        return 96
    def __getitem__(self, i):
        if self.slow:
            time.sleep(0.01)
        return torch.tensor([i / 96]), i % 2
job = lockstep.init()
data, model = Data(), nn.Linear(1, 2)
data.slow = what == "reading" and os.environ["LOCKSTEP_WORKER"] == "1"
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=8, num_workers=count)
model, opt, loader = job.prepare(model, opt, loader, epochs=2)
for epoch in range(2):
    for x, y in loader:
        if count:
            known = job._batches._processes._known.values()
            assert job._batches.ahead == sum(len(one.samples) for one in known if isinstance(one, _Read))
        else:
            assert job._batches.ahead is None
        if what == "computing" and job.rank == 1:
            time.sleep(0.01 * len(x))
        job.backward(F.cross_entropy(model(x), y))
        opt.step()
"""


class SlowTest(LoaderTest):
    def slow(self, what, count, policy="full", more=()):
        script, run_dir = self.folder / "slow.py", self.folder / f"{what}{count}{policy}"
        script.write_text(SLOW)
        done = lockstep_run("-n", "3", "--policy", policy, *more, "--run-dir", run_dir, script, what, count)
        self.assertEqual(done.returncode, 0, done)
        job = harness.Job(1, folder=self.folder)
        job.run_dir = run_dir
        waited = [sum(line["input_wait"].get(worker, 0) for line in job.rounds()) for worker in "012"]
        kinds = {one["worker"]: one["kind"] for one in json.loads((run_dir / "summary.json").read_text())["stragglers"]}
        return kinds[1], waited

    def test_who_waits_for_samples_is_told_from_who_computes_slowly(self):
        for count in (0, 1):
            with self.subTest(count=count):
                kind, waited = self.slow("reading", count)
                self.assertEqual(kind, "input")
                # 64 samples of 10 ms, which one process reads while there is nothing to compute.
                self.assertGreater(waited[1], 0.3)
                self.assertGreater(waited[1], 2 * waited[0])
        self.assertEqual(self.slow("computing", 0)[0], "compute")
        # Hardly any of its work is counted, and none waited for.
        self.assertEqual(self.slow("reading", 0, "backup", ("--set", "emulate.unit_time=5ms"))[0], "input")


if __name__ == "__main__":
    package.main_with_torch()
