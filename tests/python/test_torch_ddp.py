"""Scripts for DistributedDataParallel train as with DDP when they have Lockstep's three lines, and nothing else of them changes."""

import json
import pathlib
import socket
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import HERE  # noqa: E402
from torch_test import LOOP, PREPARE, SCRIPT, TorchTest, run  # noqa: E402

NEAR = 2e-6  # the orders of the sums differ
UNWRAPPED = "DistributedDataParallel is unwrapped: the job exchanges the gradients"


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


class DdpTest(TorchTest):
    def ranks(self, workers, *arguments, slow=None):
        """Starts so many of them, as torchrun does; what each has said. `slow`: a rank that is slowed down, and by how much."""
        shared = {"WORLD_SIZE": str(workers), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
        started = []
        try:
            for rank in range(workers):
                more = {"LOCKSTEP_SLOWDOWN": f"worker={slow[0]},factor={slow[1]}"} if slow else {}
                started.append(package.start(*arguments, python=package.TORCH_PYTHON, cwd=self.folder, RANK=str(rank), **shared, **more))
            said = [one.communicate(timeout=package.TIMEOUT_S) for one in started]
        finally:
            for one in started:
                one.kill()
                one.wait()
        return [one.returncode for one in started], said

    def trained(self, workers, policy, cases, **more):
        """By case, what the script of rank 0 has found; all of them are as near to DDP as floats go."""
        out = self.folder / "found"
        statuses, said = self.ranks(workers, HERE / "torch_ddp.py", out, policy, *cases, **more)
        self.assertEqual(statuses, [0] * workers, said)
        found = json.loads(pathlib.Path(f"{out}.0").read_text())
        self.assertEqual(list(found), list(cases))
        for case, one in found.items():
            with self.subTest(case):
                self.assertLess(one["apart"], NEAR, one)
                self.assertGreater(one["moved"], 0.01)
        return found


class WrapperTest(DdpTest):
    CASES = ("plain", "adam_without_set_epoch", "tutorial", "join_and_no_sync")

    def test_scripts_train_as_with_ddp(self):
        found = self.trained(2, "full", self.CASES)
        for case in self.CASES:
            with self.subTest(case):
                said = found[case]["said"]
                self.assertEqual(said.count(UNWRAPPED), 1, said)
                self.assertEqual(said.count("batch_size=8 is taken for that of one worker, as DDP has it: a round has 16 samples, of 2 workers"), 1, said)
                self.assertEqual(said.count("lockstep: "), 2, said)

    def test_one_and_four_workers_and_unequal_shares_train_as_with_ddp(self):
        self.trained(1, "full", ("plain", "tutorial"))
        self.trained(4, "full", ("plain",))
        self.trained(2, "balance", ("plain",), slow=(1, 3))

    def test_samples_that_ddp_would_repeat_count_once(self):
        self.assert_outcomes([(SCRIPT.replace("torch.arange(64.0).reshape(64, 1) / 64, torch.arange(64) % 2", "torch.arange(63.0).reshape(63, 1), torch.arange(63) % 2")
                               + "import contextlib, io\nsaid = io.StringIO()\n"
                               + "loader = DataLoader(data, batch_size=16, sampler=torch.utils.data.DistributedSampler(data, 2, 0))\n"
                               + "with contextlib.redirect_stdout(said):\n    " + PREPARE + LOOP
                               + "assert job.metrics.round == 3 and job.metrics.samples == 31, job.metrics\n"
                               + "assert 'would repeat 1 samples' in said.getvalue(), said.getvalue()\n", 0, "")])

    def test_what_of_ddp_cannot_be_kept_is_one_line(self):
        group = "torch.distributed.init_process_group('gloo', init_method='tcp://127.0.0.1:0', rank=0, world_size=1)\n"
        wrapped = "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        done = run(self.script(SCRIPT.replace("job = lockstep", group + "job = lockstep") + wrapped + "model = nn.Sequential(DDP(model))\n" + PREPARE))
        self.assert_one_line(done, 2, "the model has a DistributedDataParallel inside: leave that out, lockstep takes its place, or wrap last, "
                             "DistributedDataParallel(torch.compile(model))")
        done = run(self.script(SCRIPT.replace("job = lockstep", group + "job = lockstep") + wrapped + "model = DDP(model)\n" + PREPARE
                               + "import copy\ncopied = copy.deepcopy(model)\nassert copied.module is not model.module\n"
                               + "assert torch.equal(copied(torch.ones(1, 1)), model(torch.ones(1, 1)))\nmodel.register_comm_hook(None, None)\n"))
        self.assert_one_line(done, 2, 'lockstep.init(settings={"exchange.dtype": "bf16"})')


if __name__ == "__main__":
    package.main_with_torch()
