"""Scripts for DistributedDataParallel train as with DDP when they have Lockstep's three lines, and nothing else of them changes."""

import json
import pathlib
import re
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
    WRAPPED = ("plain", "adam_without_set_epoch", "tutorial", "join_and_no_sync")
    GRADIENTS = ("clipped_norm", "clipped_values", "clipped_in_parts", "looked_at", "scaled")
    RATES = ("rates_by_hand", "rates_by_epoch", "rates_by_epoch_and_step", "scheduler_of_its_own", "stepped_each_epoch", "stepped_each_update", "stepped_and_clipped")
    ACCUMULATED = ("accumulated", "accumulated_sum")

    def test_scripts_train_as_with_ddp(self):
        cases = (*self.WRAPPED, *self.GRADIENTS, *self.RATES, *self.ACCUMULATED)
        found = self.trained(2, "full", cases)
        for case in cases:
            with self.subTest(case):
                said = re.findall("^lockstep: (.*)\n", found[case]["said"], re.MULTILINE)
                self.assertIn("2 workers in a process group meet in its store", said.pop(0))
                self.assertIn(UNWRAPPED, said[0])
                per_worker = "batch_size=8 is taken for that of one worker, as DDP has it: a round has 16 samples, of 2 workers together."
                self.assertEqual([line.startswith(per_worker) for line in said[1:]], [] if case in self.ACCUMULATED else [True])
                # What it has printed of gradients and rates: the same numbers, at the same places.
                self.assertEqual([line for line in found[case]["said"].splitlines() if not line.startswith("lockstep: ")],
                                 found[case]["ddp said"].splitlines())

    def test_one_and_four_workers_train_as_with_ddp(self):
        self.trained(1, "full", ("tutorial", "clipped_norm", "stepped_and_clipped"))
        self.trained(4, "full", ("plain", "clipped_norm", "rates_by_epoch"))

    def test_unequal_shares_train_as_with_ddp(self):
        """Worker 0 has several batches in most rounds, so of some no update comes."""
        self.trained(2, "balance", ("plain", "clipped_norm", "looked_at", "clipped_in_parts", "scaled", "stepped_each_epoch", "accumulated"), slow=(1, 4))

    def test_rates_by_hand_are_those_of_the_rounds_where_work_moves(self):
        """The scripts' counts run ahead on one worker, and stay behind on the other."""
        self.trained(2, "balance", ("rates_by_hand", "rates_by_epoch", "rates_by_epoch_and_step", "scheduler_of_its_own", "rates_and_clipped"),
                     slow=(1, 4))
        self.trained(4, "flexrr", ("rates_by_hand", "rates_by_epoch_and_step"), slow=(1, 4))

    def test_calls_of_torch_distributed_go_on_and_never_stop_the_job(self):
        """Where work moves, calls for each batch do not match: the workers end with one line each."""
        found = self.trained(2, "full", ("collectives",))["collectives"]
        self.assertIn("loss ", found["ddp said"])
        self.assertTrue(found["said"].endswith(found["ddp said"]), found)
        statuses, said = self.ranks(2, HERE / "torch_ddp.py", self.folder / "found", "full+flexrr", "collectives", slow=(1, 4))
        if statuses == [0, 0]:
            return  # by chance nothing moved
        self.assertTrue(set(statuses) <= {1, 2}, said)
        lines = [line for _, err in said for line in err.splitlines() if line.startswith("lockstep: ")]
        self.assertTrue(all("Traceback" not in err for _, err in said), said)
        self.assertTrue(any(re.search(r"all workers wait for each other, in [\w ]+ and [\w ]+: where work moves", line)
                            or "a call of torch.distributed has failed, since not all workers have made it" in line for line in lines), said)

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


INSIDE = LOOP.replace("        opt.step()\n", "{}        opt.step()\n")
HOOK = "opt.register_step_pre_hook(lambda *_: [p.grad.mul_(0.5) for p in model.parameters()] and None)"
CHANGES = ("[p.grad.mul_(0.5) for p in model.parameters()]", "model.weight.grad = torch.ones(2, 1)", "model.weight.grad.data.zero_()")
CUSTOM = 'lockstep.init(settings={"optimizer.name": "custom"})'
LIBRARY = """
import types, sys
library = types.ModuleType("library")
library.__file__ = torch.__file__
exec(compile("def clip(model):\\n    import torch\\n    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)", torch.__file__, "exec"), vars(library))
"""


class RefusedTest(DdpTest):
    """What cannot be kept is refused with a line that names what to write, which is run here, too."""

    def test_changes_of_gradients(self):
        of_script = "the script has changed gradients between the backward pass and opt.step()"
        library = SCRIPT + LIBRARY + "{}" + PREPARE + INSIDE.format("        library.clip(model)\n")
        self.assert_outcomes([
            *((SCRIPT + PREPARE + INSIDE.format(f"        {change}\n"), 2, of_script) for change in CHANGES),
            (SCRIPT + PREPARE + INSIDE.format(f"        {CHANGES[0]}\n"), 2, HOOK),
            (SCRIPT + HOOK + "\n" + PREPARE + LOOP, 0, ""),
            (SCRIPT + PREPARE + INSIDE.format("        norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])\n"
                                              "        nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm)\n"), 2,
             "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"),
            (SCRIPT + PREPARE + INSIDE.format("        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"), 0, ""),
            # A library may clip where the script's own code says nothing of it.
            (library.format(""), 2, "if a library clips, let the script's optimizer make the updates, " + CUSTOM),
            (library.format("").replace("lockstep.init(run_dir=None)", CUSTOM), 0, ""),
            (SCRIPT + PREPARE + "for epoch in range(2):\n    for x, y in loader:\n        F.cross_entropy(model(x), y).backward()\n"
             "        model.weight.grad\n        nn.utils.clip_grad_norm_(model.parameters(), 1.0 + job.round)\n        opt.step()\n", 2,
             "p.grad was read before clip_grad_norm_ or clip_grad_value_, which clips otherwise than in the batch before"),
        ])

    def test_accumulation_names_the_batch(self):
        accumulate = LOOP.replace("        opt.step()\n", "        if job.round % 2:\n            opt.step()\n")
        self.assert_outcomes([(SCRIPT + PREPARE + accumulate, 2, "To accumulate gradients over k batches, give job.prepare global_batch=16 * k")])

    def test_names_in_the_script_choose_its_optimizer(self):
        """And those in the code of an optimizer do not, nor where the script says which rule it wants."""
        own = "class Own(torch.optim.SGD):\n    def unused(self):\n        return self.param_groups[0]['params'][0].grad\n"
        rule = "assert job.config['optimizer.name'] == {!r}, job.config['optimizer.name']\n"
        named = "def unused(opt):\n    {}\n"
        uses = ("torch.nn.utils.clip_grad_norm_(opt, 1)", "return opt.p.grad", "for g in opt.param_groups:\n        g['lr'] = 1", "return opt.state_dict()")
        self.assert_outcomes([
            (SCRIPT + own + PREPARE + rule.format("sgd"), 0, ""),
            *((SCRIPT + named.format(use) + PREPARE + rule.format("custom"), 0, "") for use in uses),
            (SCRIPT + named.format("print(opt.param_groups[0]['lr'], model.state_dict())") + PREPARE + rule.format("sgd"), 0, ""),
            (SCRIPT.replace("run_dir=None", "settings={'optimizer.name': 'sgd'}") + named.format(uses[0]) + PREPARE + rule.format("sgd"), 0, ""),
            (SCRIPT.replace("run_dir=None", "settings={'policy.name': 'local'}") + named.format(uses[0]) + PREPARE, 2,
             "The script's optimizer makes the updates (custom) because the script handles gradients (clip_grad_norm_)"),
        ])

    def test_the_state_of_the_optimizer(self):
        self.assert_outcomes([
            (SCRIPT + PREPARE + LOOP + "getattr(opt, 'state_dict')()\n", 2, CUSTOM),
            (SCRIPT.replace("lockstep.init(run_dir=None)", CUSTOM) + PREPARE + LOOP + "assert getattr(opt, 'state_dict')()['param_groups']\n", 0, ""),
        ])


if __name__ == "__main__":
    package.main_with_torch()
