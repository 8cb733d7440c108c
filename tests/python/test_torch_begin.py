"""What a job begins with where no launcher carries the model from one worker to the others: those of the lowest, by the coordinator."""

import os
import pathlib
import re
import signal
import sys
import tempfile
import textwrap

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import harness  # noqa: E402

# Of more bytes than may be under way at once, with running statistics, and drawn anew by each process.
SCRIPT = """
import hashlib, os, pathlib, signal
import torch, lockstep
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.arange(48.0).reshape(48, 1) / 48, torch.arange(48) % 2)
job = lockstep.init(run_dir=None, settings={"job.min_workers": 3, "liveness.timeout": "60s"})
torch.seed()
WIDE = int(os.environ["WIDE"])
model = nn.Sequential(nn.Linear(1, 2048), nn.BatchNorm1d(2048), nn.ReLU(), nn.Linear(2048, WIDE), nn.ReLU(), nn.Linear(WIDE, 2))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(data, batch_size=24, shuffle=True)
def digest():
    state = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        state.update(tensor.detach().numpy().tobytes())
    return state.hexdigest()[:16]
print("drew", digest(), flush=True)
EPOCHS = int(os.environ["EPOCHS"])
model, opt, loader = job.prepare(model, opt, loader, epochs=EPOCHS)
mark = pathlib.Path(os.environ["MARK"])
for epoch in range(EPOCHS):
    for x, y in loader:
        print("round", job.round, "with", digest(), flush=True)
        if job.rank == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        job.backward(F.cross_entropy(model(x), y))
        opt.step()
print("ended with", digest(), flush=True)
"""


class BeginTest(harness.ClusterTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.script = self.folder / "script.py"
        self.script.write_text(textwrap.dedent(SCRIPT))
        self.mark = self.folder / "mark"
        self.workers = []
        self.addCleanup(self.end)

    def end(self):
        for worker in self.workers:
            worker.kill()
            worker.communicate()

    def start(self, job, worker, **more):
        return package.start(self.script, python=package.TORCH_PYTHON, LOCKSTEP_COORDINATOR=job.address, LOCKSTEP_WORKER=str(worker),
                             MARK=str(self.mark), **more)

    def finish(self, job, epochs):
        """What the workers said."""
        ended = [worker.communicate(timeout=package.TIMEOUT_S) for worker in self.workers]
        self.assertEqual([worker.returncode for worker in self.workers], [0, 0, 0], ended)
        self.assertEqual(job.wait(), 0, job.log("coordinator"))
        harness.check_epochs(self, job.rounds(), 48)
        self.assertEqual(len(job.rounds()), 2 * epochs)
        outs = [out for out, _ in ended]
        self.assertEqual(len({re.search(r"ended with (\S+)", out)[1] for out in outs}), 1)
        return outs

    def test_unseeded_workers_begin_with_those_of_the_lowest(self):
        with harness.Job(3, coordinator_args=["--config-from-workers"]) as job:
            job.config.write_text("")
            job.start_coordinator()
            sizes = {"WIDE": "1024", "EPOCHS": "12"}
            self.workers = [self.start(job, worker, **sizes) for worker in range(3)]
            killed, err = self.workers[1].communicate(timeout=package.TIMEOUT_S)
            self.assertEqual(self.workers[1].returncode, -signal.SIGKILL, err)
            self.workers[1] = self.start(job, 1, **sizes)  # the others wait for it, in round 0
            outs = [*self.finish(job, 12), killed]
            self.assertIn("the job begins with the parameters of worker 0, 8.1 MiB", job.log("coordinator"))
        drawn = [re.search(r"drew (\S+)", out)[1] for out in outs]
        self.assertEqual(len(set(drawn)), 4, "each drew others")
        rounds = [dict(re.findall(r"round (\d+) with (\S+)", out)) for out in outs]
        # The one that was started again has nothing to do in round 0, and has what the others have in those that it computes in.
        self.assertEqual([each.get("0") for each in rounds], [drawn[0], None, drawn[0], drawn[0]], rounds)
        for number in map(str, range(1, 24)):
            self.assertEqual(len({each[number] for each in rounds[:3] if number in each}), 1, (number, rounds))
        self.assertTrue(rounds[1], "it has computed in none")

    def test_the_one_that_gives_them_dies_in_the_midst_of_it(self):
        """Of some hundreds of MiB, encrypted."""
        secret = self.folder / "secret"
        secret.write_bytes(os.urandom(32))
        secret.chmod(0o600)
        self.mark.touch()
        with harness.Job(3, coordinator_args=["--config-from-workers", "--secret-file", secret]) as job:
            job.config.write_text("")
            job.start_coordinator()
            more = {"WIDE": "32768", "EPOCHS": "1", "LOCKSTEP_SECRET_FILE": str(secret)}
            self.workers = [self.start(job, worker, **more) for worker in range(3)]
            harness.wait_for("worker 0 to give", lambda: "the job begins with the parameters of worker 0" in job.log("coordinator"),
                             seconds=package.TIMEOUT_S, look_every=0.005)
            self.workers[0].kill()
            self.workers[0].communicate()
            self.assertNotIn("a round is", job.log("coordinator"))
            self.workers[0] = self.start(job, 0, **more)
            outs = self.finish(job, 1)
            self.assertIn("the job begins with the parameters of worker 1, 256", job.log("coordinator"))
        drawn = [re.search(r"drew (\S+)", out)[1] for out in outs]
        rounds = [dict(re.findall(r"round (\d+) with (\S+)", out)) for out in outs]
        self.assertEqual({each["0"] for each in rounds if "0" in each}, {drawn[1]}, rounds)


if __name__ == "__main__":
    package.main_with_torch()
