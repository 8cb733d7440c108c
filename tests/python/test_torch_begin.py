"""What a job begins with where no launcher carries the model from one worker to the others: those of the lowest, by the coordinator."""

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
model = nn.Sequential(nn.Linear(1, 2048), nn.BatchNorm1d(2048), nn.ReLU(), nn.Linear(2048, 1024), nn.ReLU(), nn.Linear(1024, 2))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(data, batch_size=24, shuffle=True)
def digest():
    state = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        state.update(tensor.detach().numpy().tobytes())
    return state.hexdigest()[:16]
print("drew", digest(), flush=True)
model, opt, loader = job.prepare(model, opt, loader, epochs=12)
mark = pathlib.Path(os.environ["MARK"])
for epoch in range(12):
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
    def test_unseeded_workers_begin_with_those_of_the_lowest(self):
        with tempfile.TemporaryDirectory() as folder, harness.Job(3, coordinator_args=["--config-from-workers"]) as job:
            script = pathlib.Path(folder) / "script.py"
            script.write_text(textwrap.dedent(SCRIPT))
            mark = pathlib.Path(folder) / "mark"
            job.config.write_text("")
            job.start_coordinator()

            def start(worker):
                return package.start(script, python=package.TORCH_PYTHON, LOCKSTEP_COORDINATOR=job.address, LOCKSTEP_WORKER=str(worker),
                                     MARK=str(mark))
            workers = [start(worker) for worker in range(3)]
            try:
                killed_out, killed_err = workers[1].communicate(timeout=package.TIMEOUT_S)
                self.assertEqual(workers[1].returncode, -signal.SIGKILL, killed_err)
                workers[1] = start(1)  # the others wait for it, in round 0
                ended = [worker.communicate(timeout=package.TIMEOUT_S) for worker in workers]
            finally:
                for worker in workers:
                    worker.kill()
                    worker.communicate()
            self.assertEqual([worker.returncode for worker in workers], [0, 0, 0], ended)
            self.assertEqual(job.wait(), 0, job.log("coordinator"))
            harness.check_epochs(self, job.rounds(), 48)
            self.assertIn("the job begins with the parameters of worker 0, 8.1 MiB", job.log("coordinator"))
        outs = [out for out, _ in ended] + [killed_out]
        drawn = [re.search(r"drew (\S+)", out)[1] for out in outs]
        self.assertEqual(len(set(drawn)), 4, "each drew others")
        rounds = [dict(re.findall(r"round (\d+) with (\S+)", out)) for out in outs]
        # The one that was started again has nothing to do in round 0, and has what the others have in those that it computes in.
        self.assertEqual([each.get("0") for each in rounds], [drawn[0], None, drawn[0], drawn[0]], rounds)
        for number in map(str, range(1, 24)):
            self.assertEqual(len({each[number] for each in rounds[:3] if number in each}), 1, (number, rounds))
        self.assertTrue(rounds[1], "it has computed in none")
        self.assertEqual(len({re.search(r"ended with (\S+)", out)[1] for out, _ in ended}), 1)


if __name__ == "__main__":
    package.main_with_torch()
