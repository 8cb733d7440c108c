"""What the tests of the package with torch have in common."""

import json
import pathlib
import sys
import tempfile
import textwrap

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import HERE, harness  # noqa: E402

PYTHON = package.TORCH_PYTHON
WORKER = HERE / "torch_worker.py"

# The beginning of the small scripts below.
SCRIPT = """
import torch, lockstep
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, IterableDataset
data = TensorDataset(torch.arange(64.0).reshape(64, 1) / 64, torch.arange(64) % 2)
job = lockstep.init(run_dir=None)
model = nn.Linear(1, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=16, shuffle=True)
"""
PREPARE = "model, opt, loader = job.prepare(model, opt, loader, epochs=2)\n"
LOOP = """
for epoch in range(2):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        job.backward(loss)
        opt.step()
"""


def run(*arguments, **more):
    return package.run(*arguments, python=PYTHON, **more)


def lockstep_run(*arguments, **more):
    return run("-m", "lockstep", "run", *arguments, **more)


class TorchTest(harness.ClusterTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def script(self, text):
        path = self.folder / "script.py"
        path.write_text(textwrap.dedent(text))
        return path

    def rounds(self, run_dir):
        job = harness.Job(1, folder=self.folder)
        job.run_dir = run_dir
        return job.rounds()

    def outcomes(self, scripts):
        path = self.folder / "cases.json"
        path.write_text(json.dumps(scripts))
        done = run(HERE / "torch_cases.py", path)
        self.assertEqual(done.returncode, 0, done)
        return json.loads(done.stdout.splitlines()[-1])

    def assert_outcomes(self, cases):
        """Of (script, status, part of the message)."""
        for (script, status, message), outcome in zip(cases, self.outcomes([case[0] for case in cases]), strict=True):
            with self.subTest(message):
                self.assertEqual(outcome[0], status, (script, outcome))
                self.assertIn(message, outcome[1])
                self.assertNotIn("\n", outcome[1])

    def assert_one_line(self, done, status, message):
        self.assertEqual(done.returncode, status, done)
        self.assertRegex(done.stderr, r"\Alockstep: [^\n]+\n\Z")
        self.assertIn(message, done.stderr)
