"""Models on a GPU: on the imitated device the same bits as on the CPU, whatever is late; on a real one, where there is one, what the CPU comes
to, by rounding, and the same bits again."""

import concurrent.futures
import itertools
import json
import pathlib
import re
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import HERE, harness  # noqa: E402
from torch_test import SCRIPT, PREPARE, TorchTest, lockstep_run, run  # noqa: E402

MODEL = HERE / "torch_gpu.py"
BY_TCP = ("--set", "exchange.mapping=off", "--set", "exchange.transport=tcp")
CASES = ((), ("optimizer=AdamW", "clip=1"), ("optimizer=NAdam",), ("norm=1", "evaluate=1"), ("norm=1", "optimizer=Adagrad"))
ASK = """
import lockstep, torch
if not torch.cuda.is_available():
    print("this torch sees no GPU")
else:
    try:
        lockstep.Session("127.0.0.1:1", device="cuda:0", connect_timeout=0.01)
    except lockstep.Error as error:
        if str(error).startswith("device "):  # else it is that nobody listens there
            print(error)
"""


def why_no_gpu():
    """None where torch and the library can have one."""
    try:
        done = run("-c", ASK)
    except subprocess.TimeoutExpired:
        return "torch did not say whether there is one in time"
    return done.stdout.strip() or None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["torch does not start"])[-1]


class GpuCase(TorchTest):
    numbers = itertools.count()

    def job(self, device, *words, workers=2, options=BY_TCP):
        run_dir = self.folder / f"run{next(self.numbers)}"
        done = lockstep_run("-n", workers, "--run-dir", run_dir, *options, MODEL, f"device={device}", *words, LOCKSTEP_LOG_LEVEL="info",
                            CUBLAS_WORKSPACE_CONFIG=":4096:8")
        self.assertEqual(done.returncode, 0, done)
        parameters = re.findall(r"\| parameters (\w{64})", done.stdout)
        self.assertEqual((len(parameters), len(set(parameters))), (workers, 1), done.stdout)
        losses = [line["loss"] for line in self.rounds(run_dir)]
        return parameters[0], losses, json.loads((run_dir / "summary.json").read_text()), done.stdout


class ImitatedTest(GpuCase):
    def test_the_same_bits_as_on_the_host(self):
        for words in CASES:
            with self.subTest(words):
                host = self.job("cpu", *words)
                device = self.job("imitated", *words)
                self.assertEqual(device[:2], host[:2])
                self.assertEqual(device[2]["params_digest"], host[2]["params_digest"])
                self.assertEqual(device[2]["test_accuracy"], host[2]["test_accuracy"])
                self.assertIn("staged through pinned memory", str(device[2]["paths"]))
                said = re.findall(r"final before the end of a contribution's last run: (\S+) % of the blocks", device[3])
                self.assertEqual(len(said), 2, device[3])
                self.assertTrue(all(float(percent) > 60 for percent in said), said)  # of a model with norms not all are

    def test_mapped_between_workers(self):
        host, device = self.job("cpu", options=()), self.job("imitated", options=())
        self.assertEqual(device[0], host[0])
        self.assertIn("mapped (device memory)", str(device[2]["paths"]))

    def test_state_that_is_shared_out(self):
        for options in (BY_TCP, ()):
            host, device = (self.job(on, options=(*options, "--set", "optimizer.replicas=1"), workers=3) for on in ("cpu", "imitated"))
            self.assertEqual(device[:2], host[:2])

    def test_numbers_of_two_bytes(self):
        for words, settings in (((), ("exchange.dtype=fp16",)), (("optimizer=NAdam",), ("exchange.dtype=bf16", "exchange.rounding=stochastic"))):
            for options in (BY_TCP, ()):
                more = [word for setting in settings for word in ("--set", setting)]
                host, device = (self.job(on, *words, options=(*options, *more)) for on in ("cpu", "imitated"))
                self.assertEqual(device[:2], host[:2])

    def test_what_it_cannot_be(self):
        for setting, message in (("exchange.compression=topk", "exchange.compression = topk and gradients in the memory of cuda:0: compression is for"),
                                 ("exchange.memory=host", "exchange.memory = host and gradients in the memory of cuda:0: leave it at auto"),
                                 ("policy.name=local", "policy.name = local and gradients computed on cuda:0: local steps are taken on the CPU")):
            with self.subTest(setting):
                done = lockstep_run("-n", "1", "--set", setting, MODEL, "device=imitated")
                self.assertEqual(done.returncode, 2, done)
                self.assertIn(message, done.stdout + done.stderr)
                self.assertNotIn("Traceback", done.stdout + done.stderr)

    def test_models_that_are_elsewhere(self):
        self.assert_outcomes([(SCRIPT + "model.to('meta')\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n" + PREPARE, 2,
                               "weight is on meta: lockstep trains PyTorch models on the CPU and on CUDA GPUs")])


class GpuTest(GpuCase):
    """On a real one."""

    @classmethod
    def setUpClass(cls):
        reason = why_no_gpu()
        if reason:
            raise unittest.SkipTest(reason)

    def test_the_cpus_losses_and_the_same_bits_again(self):
        # What takes the time is to begin with torch and the GPU, so the jobs of a case are side by side.
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for words in CASES:
                with self.subTest(words):
                    jobs = [pool.submit(self.job, "cpu", *words), pool.submit(self.job, "cuda", *words),
                            pool.submit(self.job, "cuda", *words), pool.submit(self.job, "cuda", *words, options=())]
                    (_, want, _, _), first, again, mapped = [job.result() for job in jobs]
                    self.assertEqual(len(first[1]), len(want))
                    worst = max(abs(a - b) for a, b in zip(first[1], want, strict=True))
                    self.assertLess(worst, 5e-3)
                    self.assertEqual(again[0], first[0])
                    self.assertEqual(mapped[0], first[0])
                    self.assertIn("mapped (device memory)", str(mapped[2]["paths"]))
                    print(*words, f"at most {worst:.1e} off the CPU's losses", flush=True)

    def test_gradients_travel_during_the_pass(self):
        said = re.findall(r"final before the end of a contribution's last run: (\S+) % of the blocks", self.job("cuda")[3])
        self.assertTrue(said and all(float(percent) > 90 for percent in said), said)

    def test_one_worker_and_a_model_on_two_devices(self):
        self.job("cuda", workers=1)
        self.assert_outcomes([(SCRIPT + "model.weight.data = model.weight.data.cuda()\n" + PREPARE, 2,
                               "weight is on cuda:0 and bias on cpu: all trained parameters must be on one device")])


if __name__ == "__main__":
    package.main_with_torch()
