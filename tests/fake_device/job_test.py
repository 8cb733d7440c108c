"""Whole jobs with workers on a device that is imitated, whose memory faults when the host touches it: they end with the parameters
of the same job on CPUs, bit for bit."""

import os
import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cluster"))

from harness import BIN, ROUNDS_OF_EACH, ClusterTest, Job, check_epochs, check_same_bits, wait_for  # noqa: E402
from test_paths import can_make_hosts, host  # noqa: E402

WORKER = pathlib.Path(os.environ["LOCKSTEP_FAKE_DEVICE_WORKER"])
DEVICE_LINE = "gradients, parameters and optimizer state stay in its memory"
VERBOSE = ("--log-level", "debug")
MAPPED = "mapped (device memory)"
STAGED = "staged through pinned memory"
# Else one job of each way is enough: what the memory's faults and the sanitizers find they find in that one.
COMPARES = os.environ.get("LOCKSTEP_COMPARE_JOBS", "1") != "0"
LOST = r"worker \d+ is out"  # and not one that was silent for a moment, and had written the checkpoint


def path_lines(job, worker):
    return [line for line in job.log(f"worker{worker}").split("\n") if ": path " in line]


def most_memory(job, worker):
    return int(re.search(r"(\d+) bytes of the device's memory at most", job.log(f"worker{worker}")).group(1))


class DeviceJob(Job):
    """The workers in `on_device` compute on the device, the others on the CPU. `kinds`: of the device, where it is another one."""

    on_device = ()
    kinds = {}

    def one_stood_in(self):
        """On a busy machine one worker may make another's sums, too. That one goes on to the next round while it still makes its own, so
        that it has contributions of both. Said to those who ask for it (`--log-level debug`)."""
        return "stands in for" in self.log("coordinator")

    def start_worker(self, index, *arguments, name=None, **more):
        if index not in self.on_device:
            return super().start_worker(index, *arguments, name=name, **more)
        if index in self.kinds:
            more["environment"] = {**(more.get("environment") or {}), "LOCKSTEP_FAKE_DEVICE_KIND": self.kinds[index]}
        return self._start(name or f"worker{index}",
                           [WORKER, "--coordinator", self.address, "--id", index, *arguments], **more)


def run(test, on_device, workers=3, **options):
    """Rounds and summary of the job."""
    with DeviceJob(workers, **options) as job:
        job.on_device = on_device
        summary = job.start().finish()
        for index in range(workers):
            test.assertEqual(job.wait(f"worker{index}"), 0, job.log(f"worker{index}"))
            test.assertEqual(DEVICE_LINE in job.log(f"worker{index}"), index in on_device)
        test.assertEqual(summary["status"], "completed")
        # Nobody was lost, and came back, on the way; one may have been silent for a moment, on a busy machine.
        test.assertNotRegex(job.log("coordinator"), LOST)
        return job.rounds(), summary


class FakeDeviceJobs(ClusterTest):
    def compare(self, **options):
        runs = {}
        for on_device in ((), (0, 1, 2), (1,)) if COMPARES else ((0, 2),):
            rounds, summary = runs[on_device] = run(self, on_device, **options)
            self.assertEqual(summary["train_loss"], rounds[-1]["loss"])
            mapping = options.get("exchange__mapping", "auto") == "auto"
            for path in summary["paths"]:
                ends = [path[end] in on_device for end in ("from", "to")]
                self.assertEqual(STAGED in path["path"], ends[0] and not (ends[1] and mapping), path)
                if ends[0] == ends[1] and mapping:
                    self.assertEqual(path["path"], MAPPED if ends[0] else "mapped")
        if COMPARES:
            check_same_bits(self, runs)

    def check_as_on_cpu(self, done, **options):
        """`done`: rounds and summary of a job with these options."""
        if COMPARES:
            check_same_bits(self, {"device": done, "cpu": run(self, (), **options)})

    def test_small_model_inline(self):
        self.compare(optimizer__momentum=0.9)
        self.compare(optimizer__momentum=0.9, exchange__mapping="off")

    def test_mapped(self):
        """Sums and updates out of the peers' memory, with two workers on devices and one without."""
        options = dict(model__widths="512,512", exchange__piece_bytes="64KiB", exchange__bucket_bytes="256KiB", job__rounds=12)
        for more in (dict(optimizer__momentum=0.9, optimizer__clip=0.5), dict(optimizer__name="adamw", evaluation__every_epochs=1)):
            self.compare(**options, **more)
        done = run(self, (0, 2), **options)
        self.check_as_on_cpu(done, **options)
        _, summary = done
        for path in summary["paths"]:
            between = {path["from"], path["to"]} == {0, 2}
            self.assertEqual(path["path"] == MAPPED, between, path)

    def test_says_why_it_does_not_map(self):
        """Each path line names the reason, and the results are the same."""
        options = dict(exchange__transport="tcp", job__rounds=12, model__widths="512,512", exchange__piece_bytes="64KiB",
                       exchange__bucket_bytes="256KiB")
        with DeviceJob(3, **options) as job:
            job.on_device = (0, 1, 2)
            job.kinds = {2: "peculiar"}
            summary = job.start().finish()
            self.check_as_on_cpu((job.rounds(), summary), **options)
            self.assertEqual({frozenset((p["from"], p["to"])) for p in summary["paths"] if p["path"] == MAPPED}, {frozenset((0, 1))})
            reason = "it is in the memory of another kind of device (peculiar, not imitated)"
            lines = path_lines(job, 0)
            self.assertEqual([reason in line for line in lines], ["worker 2: " in line for line in lines], lines)
            self.assertTrue(all("another kind of device (imitated, not peculiar)" in line for line in path_lines(job, 2)))
        with DeviceJob(2, **options) as job:
            job.on_device = (0,)
            job.start().finish()
            self.assertIn("it is in the host's memory, and this worker's on a device (imitated)", path_lines(job, 0)[0])
            self.assertIn("it is in the memory of a device (imitated 0), which the host cannot read", path_lines(job, 1)[0])
        with DeviceJob(2, exchange__mapping="off", **options) as job:
            job.on_device = (0, 1)
            summary = job.start().finish()
            self.assertEqual({path["path"] for path in summary["paths"]}, {"tcp, " + STAGED})
            self.assertTrue(path_lines(job, 0)[0].endswith("; not mapped: exchange.mapping is off"), path_lines(job, 0))

    def test_mapped_peers_take_no_staging(self):
        """What the others contribute is read in place, so a worker needs memory for its own part only."""
        options = dict(model__widths="512,512", exchange__transport="tcp", exchange__piece_bytes="64KiB", job__rounds=8)
        memory = {}
        for mapping in ("auto", "off"):
            with DeviceJob(3, exchange__mapping=mapping, **options) as job:
                job.on_device = (0, 1, 2)
                job.start().finish()
                for worker in range(3):
                    self.assertEqual(job.wait(f"worker{worker}"), 0)
                memory[mapping] = min(most_memory(job, worker) for worker in range(3))
                if mapping == "off":  # the reason is the same for both peers, and is said once
                    lines = path_lines(job, 0)
                    self.assertTrue(lines[0].endswith("; not mapped: exchange.mapping is off"), lines)
                    self.assertTrue(lines[1].endswith("; not mapped either"), lines)
        parameters = 4 * (33 * 512 + 513 * 512)  # at least, in bytes
        self.assertGreater(memory["off"] - memory["auto"], 2 * parameters)  # 2 (N - 1) B, or half of it in a short job

    def test_memory_grows_with_what_is_used(self):
        """Contributions and sums take a device's memory one by one: 5 + S times the parameters in a quiet job, where all are mapped, and
        once more for an evaluation."""
        for workers, tensors, optimizer in ((2, 0, {"name": "sgd", "momentum": 0}), (4, 2, {"name": "adamw"})):
            options = {f"optimizer__{key}": value for key, value in optimizer.items()}
            with DeviceJob(workers, model__widths="1024,1024", job__rounds=20, coordinator_args=VERBOSE, **options) as job:
                job.on_device = tuple(range(workers))
                job.start().finish()
                # And samples and activations, here less than once more.
                self.check_held_memory(job, workers, 5 + tensors + 1 + 1, scratch=0)

    def test_replicas_take_a_devices_memory_by_what_is_held(self):
        """5 + S k / N times the parameters in a quiet job, where all are mapped, and once more for an evaluation; also of who writes the
        checkpoint, and of who goes on from one: all of its state passes through the host."""
        replicas, workers, tensors = 1, 4, 2
        with DeviceJob(workers, model__widths="1024,1024", job__rounds=20, optimizer__name="adamw", optimizer__replicas=replicas,
                       checkpoint__every_rounds=5, coordinator_args=VERBOSE) as job:
            job.on_device = tuple(range(workers))
            job.start().finish()
            self.check_held_memory(job, workers, 5 + tensors * replicas / workers + 1 + 1)
            job.config.write_text(job.config.read_text().replace("rounds = 20", "rounds = 30"))
            job.start_coordinator("--resume")
            for worker in range(workers):
                job.start_worker(worker)
            self.assertEqual(job.finish()["rounds"], 30)
            self.check_held_memory(job, workers, 5 + tensors * replicas / workers + 1 + 1)

    def check_held_memory(self, job, workers, most, scratch=16 * 2**20, contribution=1):
        """`scratch`: bytes of an update; `contribution`: a part of one, as a multiple of the parameters."""
        if job.one_stood_in():
            most += contribution
        for worker in range(workers):
            self.assertEqual(job.wait(f"worker{worker}"), 0)
            log = job.log(f"worker{worker}")
            mib, times = re.findall(r"most memory of the exchange: (\S+) MiB, (\S+) times", log)[-1]
            parameters = float(mib) * 2**20 / float(times)
            self.assertLess(int(re.findall(r"(\d+) bytes of the device's memory at most", log)[-1]) - scratch, most * parameters, log)

    def test_replicas(self):
        """State that is shared out, on devices: the bits of a job on CPUs, mapped and by pieces."""
        options = dict(optimizer__name="adamw", optimizer__clip=0.5, optimizer__replicas=2, model__widths="512,512", job__rounds=12,
                       exchange__piece_bytes="64KiB", exchange__bucket_bytes="256KiB", evaluation__every_epochs=1,
                       checkpoint__every_rounds=5, data__synthetic_train=256)
        self.compare(**options)
        self.compare(**options, exchange__mapping="off", exchange__transport="tcp")
        self.compare(**options, exchange__mapping="off")

    def test_replicas_survive_a_killed_worker(self):
        """Shards are copied from one device to another, by the host's memory."""
        options = dict(optimizer__name="adamw", optimizer__lr=0.01, optimizer__replicas=2, model__widths="512,512",
                       job__rounds=100000, exchange__piece_bytes="64KiB", exchange__bucket_bytes="256KiB", emulate__unit_time="5ms",
                       job__min_workers=2, checkpoint__every_rounds=7)
        for mapping in ("auto", "off"):
            with DeviceJob(4, exchange__mapping=mapping, **options) as job:
                job.on_device = (0, 1, 2, 3)
                job.start()
                job.wait_for_rounds(8)
                at = job.kill_worker(1)
                job.wait_for_rounds(at + 8)
                job.start_worker(1, name="worker1-again")
                job.wait_for_contribution(1, at + 1)
                self.assertEqual(job.interrupt()["digest_differs"], [])
                for name in ("worker0", "worker2", "worker3", "worker1-again"):
                    self.assertEqual(job.wait(name), 0, job.log(name))

    def test_pieces_over_tcp(self):
        self.compare(exchange__mapping="off", model__widths="512,512", exchange__piece_bytes="64KiB", exchange__bucket_bytes="256KiB",
                     exchange__transport="tcp", optimizer__name="adamw", optimizer__clip=0.5, job__rounds=12)

    def test_pieces_over_the_best_transport(self):
        self.compare(exchange__mapping="off", model__widths="512,512", exchange__piece_bytes="64KiB", exchange__bucket_bytes="256KiB",
                     optimizer__name="rmsprop", optimizer__momentum=0.9, optimizer__epsilon=1, job__rounds=12,
                     evaluation__every_epochs=1, data__synthetic_train=256)

    def test_says_why_it_stages(self):
        with DeviceJob(2, exchange__transport="tcp") as job:
            job.on_device = (0,)
            job.start().finish()
            lines = [line for line in job.log("worker0").split("\n") if "staged through host memory: " in line]
            self.assertEqual(len(lines), 1, job.log("worker0"))
            self.assertIn("tcp carries host memory only; give all workers a UCX built with CUDA", lines[0])
            self.assertNotIn("staged", job.log("worker1"))

    def test_workers_on_one_host_need_no_gpudirect(self):
        with DeviceJob(2) as job:
            job.on_device = (0, 1)
            job.start_coordinator()
            for index in range(2):
                job.start_worker(index, "--device", "cuda:0", "--require-gpudirect")
            self.assertEqual(job.finish()["status"], "completed")

    @unittest.skipUnless(can_make_hosts(), "no mount namespaces may be made here")
    def test_gpudirect_that_is_required_and_not_there(self):
        with DeviceJob(2, exchange__transport="tcp") as job:
            job.on_device = (0,)
            job.start_coordinator()
            job.start_worker(0, "--device", "cuda:0", "--require-gpudirect", prefix=host(job, "a"))
            job.start_worker(1, prefix=host(job, "b"))
            self.assertEqual(job.wait("worker0"), 2)
            reason = "--require-gpudirect: worker 1 is reached by tcp, staged through pinned memory: this host has no active RDMA port"
            last = job.log("worker0").strip().split("\n")[-1]
            self.assertTrue(last.startswith(reason), last)
            wait_for("the coordinator to hear why", lambda: "it leaves: --require-gpudirect" in job.log("coordinator"))

    def test_on_the_hosts_memory(self):
        with DeviceJob(2, exchange__memory="host") as job:
            job.on_device = (0, 1)
            summary = job.start().finish()
            self.assertEqual({path["path"] for path in summary["paths"]}, {"mapped, staged through host memory"})
            self.assertNotIn(DEVICE_LINE, job.log("worker0"))
            self.check_as_on_cpu((job.rounds(), summary), workers=2)

    def test_numbers_of_two_bytes(self):
        with DeviceJob(2, exchange__memory="host", exchange__dtype="bf16") as job:
            job.on_device = (0, 1)
            summary = job.start().finish()
            self.check_as_on_cpu((job.rounds(), summary), workers=2, exchange__dtype="bf16")
        options = dict(model__widths="512,512", exchange__piece_bytes="64KiB", exchange__bucket_bytes="256KiB", job__rounds=12)
        for more in (dict(exchange__dtype="bf16", optimizer__name="adamw", optimizer__clip=0.5),
                     dict(exchange__dtype="fp16", exchange__rounding="stochastic", optimizer__momentum=0.9)):
            for path in (dict(), dict(exchange__mapping="off", exchange__transport="tcp")):
                self.compare(**options, **more, **path)
        self.compare(exchange__dtype="bf16", exchange__rounding="stochastic")  # inline

    def test_two_bytes_take_less_of_a_devices_memory(self):
        """The gradient in FP32, and half of what a contribution and three sums take."""
        with DeviceJob(4, model__widths="1024,1024", job__rounds=20, optimizer__name="adamw", exchange__dtype="bf16",
                       coordinator_args=VERBOSE) as job:
            job.on_device = (0, 1, 2, 3)
            job.start().finish()
            self.check_held_memory(job, 4, 1 + 4 * 0.5 + 3 + 1 + 1, contribution=0.5)

    def test_few_numbers_of_many_on_the_hosts_memory_alone(self):
        self.assert_wants_the_hosts_memory("exchange.compression", "topk")

    def assert_wants_the_hosts_memory(self, key, value):
        with DeviceJob(2, {key: value}) as job:
            job.on_device = (0,)
            job.start()
            self.assertEqual(job.wait("worker0"), 2)
            reason = (f"{key} = {value} and gradients in the memory of cuda:0 (imitated): compression is for gradients in the host's memory, "
                      "take none (lockstep-worker: or exchange.memory = host)")
            self.assertEqual(job.log("worker0").strip().split("\n")[-1], reason)
            wait_for("the coordinator to hear why", lambda: reason in job.log("coordinator"))

    def test_killed_worker(self):
        """A worker on the device dies, another takes its place and catches up out of the others' memory."""
        options = dict(job__rounds=0, job__epochs=100000, job__min_workers=1, model__widths="512,512",
                       exchange__piece_bytes="64KiB", exchange__bucket_bytes="256KiB", emulate__unit_time="3ms",
                       checkpoint__every_epochs=1, evaluation__every_epochs=1, optimizer__momentum=0.9)
        for mapping in ("auto", "off"):
            with DeviceJob(3, exchange__mapping=mapping, **options) as job:
                job.on_device = (0, 1, 2)
                job.start()
                job.wait_for_rounds(8)
                at = job.kill_worker(2)
                job.start_worker(2, name="worker2-again")
                job.wait_for_contribution(2, at + 1)
                wait_for("three epochs", lambda: job.rounds()[-1]["epoch"] >= 3)
                job.interrupt()
                check_epochs(self, job.rounds(), 2048)
                for name in ("worker0", "worker1", "worker2-again"):
                    self.assertEqual(job.wait(name), 0, job.log(name))
                self.assertEqual("worker 2: path " + MAPPED in job.log("worker0"), mapping == "auto", job.log("worker0"))
                # All members report digests of their parameters, and the coordinator says who is outvoted.
                self.assertNotIn("parameters differ", job.log("coordinator"))

    def test_other_policies(self):
        """Work on a copy of the parameters, units that move while they are computed, contributions in two parts."""
        for policy in ("async", "backup+balance", "flexrr"):
            with DeviceJob(3, policy__name=policy, job__min_workers=1, emulate__unit_time="1ms", model__widths="512,512",
                           exchange__piece_bytes="64KiB", exchange__bucket_bytes="256KiB", evaluation__every_epochs=1) as job:
                job.on_device = (0, 1)
                job.start_coordinator()
                for index in range(3):
                    job.start_worker(index, "--slowdown", "worker=1,factor=4")
                self.assertEqual(job.finish()["status"], "completed")
                for index in range(3):
                    self.assertEqual(job.wait(f"worker{index}"), 0, job.log(f"worker{index}"))
                self.assertNotRegex(job.log("coordinator"), LOST)

    def test_resumed_on_another_device(self):
        """A checkpoint that comes out of one memory goes on in the other."""
        for replicas in ("all", 1):
            self.compare_resumed(optimizer__momentum=0.9, optimizer__replicas=replicas, checkpoint__every_epochs=1)

    def compare_resumed(self, **options):
        runs = {}
        for first in ((0, 1), ()):
            with DeviceJob(2, job__rounds=32, **options) as job:
                job.on_device = first
                job.start().finish()
                checkpoint, = (job.run_dir / "checkpoints").glob("*31.json")
                job.config.write_text(job.config.read_text().replace("rounds = 32", "rounds = 48"))
                # Both go on from the same one.
                for then in ((0, 1), ()) if COMPARES else ((),) if first else ((0, 1),):
                    for index in range(2):
                        self.assertEqual(job.wait(f"worker{index}"), 0, job.log(f"worker{index}"))
                    job.go_back_to(checkpoint)
                    job.on_device = then
                    job.start_coordinator("--resume")
                    for index in range(2):
                        job.start_worker(index)
                    summary = job.finish()
                    self.assertEqual(summary["rounds"], 48)
                    runs[f"{first}, then {then}"] = (job.rounds(), summary)
        if COMPARES:
            check_same_bits(self, runs, 32 + ROUNDS_OF_EACH)


if __name__ == "__main__":
    unittest.main(verbosity=2)
