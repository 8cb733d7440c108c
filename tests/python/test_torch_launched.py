"""Workers of launchers: which are recognised, how the workers meet, and what goes between them before they join."""

import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import harness  # noqa: E402

PYTHON = package.TORCH_PYTHON

SCRIPT = """
import os, sys, torch, lockstep
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
#before
job = lockstep.init()
#between
torch.seed()
data = TensorDataset(torch.arange(32.0).reshape(32, 1) / 32, torch.arange(32) % 2)
model = nn.Linear(1, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
model, opt, loader = job.prepare(model, opt, DataLoader(data, batch_size=16), epochs=1)
#after
seen = 0
for x, y in loader:
    seen += len(x)
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
os.write(1, f"rank {job.rank} of {job.size}: {[p.tolist() for p in model.parameters()]}\\n".encode())
"""
ALONE_BY_ACCELERATE = ("lockstep: this is a job of one worker, because accelerate launch --cpu starts one, whatever --num_processes says: for more use "
                       "lockstep run -n N or torchrun --nproc-per-node N\n")
GROUP = "torch.distributed.init_process_group('gloo')\n"

# What the launchers set for worker 1 of 4, as far as it is told from others.
ENVIRONMENTS = {
    "MPICH": {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4", "PMI_FD": "9"},
    "Intel MPI": {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4", "I_MPI_HYDRA_UUID": "013a0000-ed1d"},
    "Open MPI": {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "PMIX_RANK": "1",
                 "PMIX_NAMESPACE": "prterun-a-7@1", "PRTE_LAUNCHED": "1"},
    "prterun": {"PMIX_RANK": "1", "PMIX_NAMESPACE": "prterun-a-7@1", "PRTE_LAUNCHED": "1"},
    "PMIx": {"PMIX_RANK": "1", "PMIX_NAMESPACE": "a"},
    "PALS": {"PALS_RANKID": "1", "PMI_RANK": "1", "PMI_SIZE": "4", "PMI_LOCAL_SIZE": "4", "PALS_APID": "6f0c"},
    "MVAPICH": {"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "4", "MV2_COMM_WORLD_LOCAL_SIZE": "4", "MPIRUN_ID": "77", "PMI_ID": "1"},
    "Flux": {"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "4", "FLUX_JOB_NNODES": "1", "FLUX_JOB_ID": "42", "PMI_RANK": "1", "PMI_SIZE": "4"},
    "jsrun": {"JSM_NAMESPACE_RANK": "1", "JSM_NAMESPACE_SIZE": "4", "JSM_NAMESPACE_LOCAL_SIZE": "4", "PMIX_RANK": "1", "PMIX_NAMESPACE": "a"},
}
SRUN = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "1"}
PLACE = {"MASTER_ADDR": "there", "MASTER_PORT": "5"}


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


class LauncherTest(harness.ClusterTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def script(self, text):
        path = self.folder / "script.py"
        path.write_text(textwrap.dedent(text))
        return path

    def run_python(self, text, *arguments, **more):
        return package.run(self.script(text), *arguments, python=PYTHON, **more)

    def workers(self, script, environments):
        """As a launcher starts them: their statuses, and what each has said."""
        path = self.script(script)
        workers = [package.start(path, python=PYTHON, cwd=self.folder, **environment) for environment in environments]
        try:
            said = [worker.communicate(timeout=package.TIMEOUT_S) for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        return [worker.returncode for worker in workers], said

    def assert_together(self, statuses, said, count=2):
        """One job of them all, with one model."""
        self.assertEqual(statuses, [0] * len(statuses), said)
        lines = dict(re.findall(rf"rank (\d) of {count}: (.*)$", "".join(out for out, _ in said), re.MULTILINE))
        self.assertEqual(sorted(lines), [str(i) for i in range(count)], said)
        self.assertEqual(len(set(lines.values())), 1, said)

    def assert_one_line(self, status, said, expected, message):
        self.assertEqual(status, expected, said)
        self.assertIn(f"lockstep: {message}", said[1])
        self.assertNotIn("Traceback", said[1])


class RecognisedTest(LauncherTest):
    def told(self, *environments):
        done = self.run_python("""
            import json, sys
            from lockstep._errors import UsageError
            from lockstep._launched import launched
            for environment in json.loads(sys.argv[1]):
                try:
                    at = launched(environment)
                    print("alone" if at is None else f"{at.launcher} {at.worker} of {at.workers} at {at.host}:{at.port} of {at.job or '-'}")
                except UsageError as error:
                    print(error)
            """, json.dumps(environments))
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        return done.stdout.splitlines()

    def test_launchers_tell_who_is_who_or_it_is_said_what_is_missing(self):
        told = dict(zip(ENVIRONMENTS, self.told(*ENVIRONMENTS.values()), strict=True))
        placed = dict(zip(ENVIRONMENTS, self.told(*({**one, **PLACE} for one in ENVIRONMENTS.values())), strict=True))
        names = {"MPICH": "mpiexec", "Intel MPI": "mpiexec", "Open MPI": "mpirun", "PALS": "PALS", "MVAPICH": "mpirun_rsh", "Flux": "flux", "jsrun": "jsrun"}
        starts = {"Intel MPI": "013a0000-ed1d", "Open MPI": "prterun-a-7@1", "PALS": "6f0c", "MVAPICH": "77", "Flux": "42"}
        for launcher, name in names.items():
            with self.subTest(launcher):
                self.assertEqual(placed[launcher], f"{name} 1 of 4 at there:5 of {starts.get(launcher, '-')}")
                if launcher in starts:  # all on one host, and the port follows from what is this start's alone
                    self.assertRegex(told[launcher], rf"^{name} 1 of 4 at 127\.0\.0\.1:6[1-4]\d\d\d of {re.escape(starts[launcher])}$")
                else:
                    self.assertIn(f"{name} has started 4 workers: say with MASTER_ADDR and MASTER_PORT where they meet", told[launcher])
        for launcher in ("prterun", "PMIx"):
            for lines in (told, placed):
                self.assertIn("has started this as rank 1, but does not tell the number of ranks. Use mpirun, or set RANK, WORLD_SIZE,", lines[launcher])
        remedied = self.told(*({**one, **PLACE, "RANK": "2", "WORLD_SIZE": "3"} for one in ENVIRONMENTS.values()))
        self.assertEqual(set(remedied), {"torchrun 2 of 3 at there:5 of -"})

    def test_one_launcher_within_another(self):
        hydra = ENVIRONMENTS["Intel MPI"]
        within = (
            {**SRUN, "PMI_RANK": "1", "PMI_SIZE": "4"},  # srun with PMI2 is one launcher
            {**SRUN, "PMIX_RANK": "1", "PMIX_NAMESPACE": "slurm.pmix.7.0"},
            {**SRUN, **hydra, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},  # an mpiexec that starts its proxy by srun
            {**SRUN, **ENVIRONMENTS["Open MPI"], "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
            {**hydra, "PMI_SIZE": "1"},
        )
        told = self.told(*within)
        for line, start in zip(told, (r"srun 1 of 4", r"srun 1 of 4", r"mpiexec 1 of 4", r"mpirun 1 of 4", r"alone"), strict=True):
            self.assertTrue(line.startswith(start), told)

    def test_a_launcher_that_is_not_known_is_warned_of(self):
        done = self.run_python(SCRIPT, OTHER_RANK="1", JOB_COMPLETION_INDEX="0", LOCAL_RANK="-1", SLURM_PROCID="0")
        self.assertEqual(done.returncode, 0, done)
        self.assertRegex(done.stderr, r"\Alockstep: this is a job of one worker, but JOB_COMPLETION_INDEX=0, OTHER_RANK=1 in the environment may come "
                         r"from an unknown launcher\. [^\n]*set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each, or use lockstep run\n\Z")


    def test_the_line_at_start(self):
        done = self.run_python("""
            import json, sys
            from lockstep._launchers import Launched, started
            by = Launched("torchrun", 0, 2, "there", 5, serves=True, job="")
            for environment, workers in ((dict(LOCKSTEP_LAUNCHER="lockstep run", LOCKSTEP_COORDINATOR="a:1"), 4),
                                         (dict(LOCKSTEP_LAUNCHER="lockstep run", LOCKSTEP_COORDINATOR="a:1"), 1), (dict(LOCKSTEP_COORDINATOR="a:1"), 3), ({}, 1)):
                print(started(None, environment, workers, "a:1"))
            print(started(by, {}, 2, "a:1"))
            print(started(by, dict(TORCHELASTIC_RUN_ID="x"), 2, "a:1"))
            """)
        self.assertEqual(done.stdout.splitlines(), [
            "lockstep run has started 4 workers, which meet at its coordinator, a:1",
            "lockstep run has started 1 worker; the coordinator is a:1",
            "3 workers, started one by one, meet at the coordinator a:1",
            "the job has 1 worker; the coordinator is a:1",
            "RANK and WORLD_SIZE tell of 2 workers, which meet at there:5; worker 0 has started the coordinator, a:1",
            "torchrun has started 2 workers, which meet at there:5; worker 0 has started the coordinator, a:1",
        ], done)

    def test_accelerate_that_starts_one_process_is_named(self):
        done = self.run_python(SCRIPT, ACCELERATE_MIXED_PRECISION="no", ACCELERATE_USE_CPU="True")
        self.assertEqual((done.returncode, done.stderr), (0, ALONE_BY_ACCELERATE), done)
        self.assertNotIn("lockstep: this is", done.stdout)


class MpiTest(LauncherTest):
    """The launchers themselves where they are installed; what they set in any case."""

    def launch(self, *command, said="mpiexec has started 2 workers, which meet at 127.0.0.1:", **more):
        done = subprocess.run([*map(str, command), PYTHON, "-B", str(self.script(SCRIPT))], cwd=self.folder, capture_output=True, text=True,
                              timeout=package.TIMEOUT_S, check=False, env=package.environment(**more))
        self.assert_together([done.returncode], [(done.stdout, done.stderr)])
        self.assertEqual(done.stdout.count(f"lockstep: {said}"), 1, done)

    def test_workers_of_one_mpich_proxy_meet(self):
        """Its environment has nothing that is this start's alone; the proxy is an ancestor of all."""
        proxy = self.folder / "hydra_pmi_proxy"
        shutil.copy(shutil.which("bash"), proxy)
        start = '(for r in 0 1; do PMI_RANK=$r PMI_SIZE=2 MPI_LOCALNRANKS=2 "$@" & done; wait)'
        self.launch(proxy, "-c", start, "proxy")
        statuses, said = self.workers(SCRIPT, [{"PMI_RANK": str(i), "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"} for i in range(2)])
        for status, one in zip(statuses, said, strict=True):
            self.assert_one_line(status, one, 2, "mpiexec has started 2 workers: say with MASTER_ADDR and MASTER_PORT where they meet")

    @unittest.skipUnless(shutil.which("mpiexec.hydra"), "there is no mpiexec of MPICH or Intel MPI")
    def test_mpiexec_starts_a_job(self):
        self.launch("mpiexec.hydra", "-n", "2")

    @unittest.skipUnless(subprocess.run([PYTHON, "-c", "import accelerate"], capture_output=True, check=False).returncode == 0, "there is no accelerate")
    def test_accelerate_launch_on_the_cpu_starts_one_process_which_is_said(self):
        done = package.run("-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no",
                           "--dynamo_backend", "no", self.script(SCRIPT), python=PYTHON)
        self.assert_together([done.returncode], [(done.stdout, done.stderr)], count=1)
        self.assertIn(ALONE_BY_ACCELERATE, done.stderr)

    @unittest.skipUnless(subprocess.run([PYTHON, "-c", "import deepspeed"], capture_output=True, check=False).returncode == 0, "there is no deepspeed")
    def test_deepspeed_starts_a_job(self):
        script = self.script(SCRIPT)
        done = package.run("-m", "deepspeed.launcher.runner", "--num_accelerators", "2", "--master_port", free_port(), script, python=PYTHON, DS_ACCELERATOR="cpu")
        self.assert_together([done.returncode], [(done.stdout, done.stderr)])
        self.assertIn("\nlockstep: RANK and WORLD_SIZE tell of 2 workers, which meet at 127.0.0.1:", done.stdout)

    @unittest.skipUnless(shutil.which("prterun"), "there is no prterun")
    def test_prterun_starts_a_job_as_its_message_says(self):
        exported = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
        self.launch("prterun", "--allow-run-as-root", "--map-by", ":oversubscribe", "-n", "2", *(word for name in exported for word in ("-x", name)),
                    "sh", "-c", 'RANK=$PMIX_RANK exec "$@"', "sh", said="RANK and WORLD_SIZE tell of 2 workers, which meet at 127.0.0.1:", **exported)


class GroupTest(LauncherTest):
    """Scripts with a process group of torch.distributed, which serves its store at the same port."""

    def of_two(self, script, **more):
        port = free_port()
        return self.workers(script, [{"RANK": str(i), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **more} for i in range(2)])

    def test_the_group_that_is_there_is_the_meeting_place(self):
        statuses, said = self.of_two(SCRIPT.replace("#before\n", GROUP))
        self.assert_together(statuses, said)
        self.assertRegex(said[0][0], r"(?m)^lockstep: 2 workers in a process group meet in its store; worker 0 has started the coordinator, 127\.0\.0\.1:\d+$")
        self.assertNotIn("meet", said[1][0])

    def test_a_group_that_the_environment_does_not_tell_of(self):
        port = free_port()
        group = (f"torch.distributed.init_process_group('gloo', init_method='tcp://127.0.0.1:{port}', rank=int(os.environ['OF_ME']), world_size=2)\n"
                 "assert job.wanted == 0\n")
        script = SCRIPT.replace("#between\n", group)  # known when the job is joined
        self.assert_together(*self.workers(script, [{"OF_ME": str(i)} for i in range(2)]))

    def test_a_group_that_comes_after_the_job(self):
        self.assert_together(*self.of_two(SCRIPT.replace("#after\n", GROUP)))

    def test_under_lockstep_run_there_is_none_which_is_said_in_one_line(self):
        done = package.run("-m", "lockstep", "run", "-n", "2", self.script(SCRIPT.replace("#before\n", GROUP)), python=PYTHON)
        self.assertEqual(done.returncode, 2, done)
        self.assertRegex(done.stdout, r"worker \d +\| lockstep: init_process_group: the workers of lockstep run have no process group of torch.distributed\. "
                         r"Leave it out .* or start the script with torchrun\n")
        self.assertNotIn("Traceback", done.stdout)


class OneJobTest(LauncherTest):
    def test_a_second_job_under_lockstep_run_is_refused_at_once(self):
        script = SCRIPT + "job.close()\n" + SCRIPT.replace("lockstep.init()", "lockstep.init(connect_timeout=3000)")
        done = package.run("-m", "lockstep", "run", "-n", "2", self.script(script), python=PYTHON)
        self.assertEqual(done.stdout.count("rank"), 2, done)
        self.assertEqual(len(re.findall(r"\| lockstep: lockstep run has started 2 workers, which meet at its coordinator, 127\.0\.0\.1:\d+\n", done.stdout)), 1, done)
        self.assertEqual(done.returncode, 1, done)
        said = re.findall(r"worker (\d) +\| lockstep: this process has had its job at .*\. Use lockstep run once for each job, or start the script with torchrun or", done.stdout)
        self.assertEqual(sorted(said), ["0", "1"], done)
        self.assertNotIn("Traceback", done.stdout)
        for i in (0, 1):
            self.assertIn(f"worker {i} ended with status 2", done.stdout)

    def test_a_job_of_one_has_a_number_before_it_is_joined(self):
        between = "print('wanted', job.wanted % 1)\ntry:\n    job.rank\nexcept lockstep.UsageError as error:\n    print(error)\n"
        done = self.run_python(SCRIPT.replace("#between\n", between))
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        self.assertNotIn("lockstep: ", done.stdout, "no launcher has started it")
        self.assertIn("wanted 0\nthere is no job yet: job.prepare joins it (before, job.wanted tells this worker's number)\n", done.stdout)


# Two workers in one process, with a store that nobody else reaches.
MEETING = """
import os, pickle, sys, time, torch
from lockstep import JobFailed, UsageError, _initial, _launched
from lockstep._launchers import Launched
def where(worker):
    return Launched("srun", worker, 2, "127.0.0.1", 1, serves=worker == 0, job="7")
def meet(*secret_files):
    store = _launched.Meeting._stores["127.0.0.1", 1] = torch.distributed.HashStore()
    meetings = []
    for worker, secret_file in enumerate(secret_files):
        _launched.Meeting._made = 0  # as in a process of its own
        meetings.append(_launched.Meeting(where(worker), secret_file))
    return store, *meetings
def refused(kind, part, call):
    try:
        call()
    except kind as error:
        assert part in str(error), error
    else:
        raise AssertionError(part)
"""


class MeetingTest(LauncherTest):
    def assert_passes(self, text):
        done = self.run_python(MEETING + textwrap.dedent(text))
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)

    def test_the_initial_model_is_numbers_and_no_pickle(self):
        self.assert_passes("""
            class Code:
                def __reduce__(self):
                    return os.system, ("touch ran",)
            def model():
                module = torch.nn.Module()
                for i, dtype in enumerate((torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.int64, torch.uint8, torch.bool)):
                    module.register_buffer(f"of_{i}", (torch.randn(4, 3) * 9).to(dtype).t())
                module.register_buffer("count", torch.randint(1 << 40, ()))
                module.register_buffer("none", torch.zeros(0, 2))
                module.weight = torch.nn.Parameter(torch.randn(5))
                return module
            _, zero, one = meet(None, None)
            mine, theirs = model(), model()
            _initial.share(zero, 0, theirs)
            _initial.share(one, 1, mine)
            assert len(mine.state_dict()) == 11
            assert all(torch.equal(value, mine.state_dict()[name]) for name, value in theirs.state_dict().items())

            good = zero.get("initial")
            head = int.from_bytes(good[:8], "little")
            for bad in (pickle.dumps(Code()), b"", good[:7], good[:-1], good.replace(b'"F64"', b'"F65"'), good.replace(b"[5]", b"[ ]"), b"\\2" + bytes(7) + b"[]",
                        (1 << 62).to_bytes(8, "little") + good[8:], good.replace(b"[0, 20]", b"[-1,19]")):
                _, zero, one = meet(None, None)
                zero.put("initial", bad or b" ")
                refused(JobFailed, "the initial model did not come from worker 0 as it was sent: ", lambda: _initial.share(one, 1, model()))
            assert not os.path.exists("ran")
            """)

    def test_a_worker_that_comes_when_its_job_has_ended_says_so(self):
        self.assert_passes("""
            os.mkdir("job")
            folder = _initial.Folder("job")
            assert folder.get("initial") is None
            os.rmdir("job")
            for worker in (0, 1):
                refused(JobFailed, "has ended: its folder job is gone", lambda: _initial.share(folder, worker, torch.nn.Linear(2, 2)))
            open("job", "w").close()  # what else may be wrong
            refused(JobFailed, "the state to begin with cannot be passed on: job: Not a directory", lambda: folder.put("initial", b"1"))
            """)

    def test_with_a_secret_file_what_comes_out_of_the_store_is_proven(self):
        self.assert_passes("""
            for name in ("secret", "other"):
                with open(name, "wb") as file:
                    file.write(os.urandom(32))
            model = torch.nn.Linear(2, 2)
            store, zero, one = meet("secret", "secret")
            _initial.share(zero, 0, model)
            _initial.share(one, 1, torch.nn.Linear(2, 2))
            key = zero._key("initial")
            sent, proof = store.get(f"{key}/0"), store.get(f"{key}/proof")
            store.set(f"{key}/0", sent[:-1] + bytes([sent[-1] ^ 1]))
            refused(UsageError, "was not made with this worker's secret", lambda: _initial.share(one, 1, model))
            store.set(f"{zero._key('job')}/0", sent)  # what was proven as something else
            store.set(f"{zero._key('job')}/proof", proof)
            store.add(zero._key("job"), 1)
            refused(UsageError, "was not made with this worker's secret", lambda: one.coordinator(None, False))

            for has, message in ((("secret", "other"), "was not made with this worker's secret"), (("secret", None), "worker 0 has one and this worker has none"),
                                 ((None, "secret"), "this worker has one and worker 0 has none")):
                _, zero, one = meet(*has)
                _initial.share(zero, 0, model)
                refused(UsageError, message, lambda: _initial.share(one, 1, model))
            refused(UsageError, "secret file missing: No such file", lambda: meet("missing"))
            """)

    def test_others_wait_as_long_as_worker_0_does_for_a_coordinator_that_resumes(self):
        self.assert_passes("""
            _, zero, one = meet(None, None)
            clock = 0.0
            def sleep(seconds):
                global clock
                clock += 100  # a time that nobody has to wait for
                if clock == 3600:  # as long as worker 0 waits for its coordinator to have read its checkpoint
                    zero.put("job", b'["127.0.0.1:1", "00"]')
            time.monotonic, time.sleep = lambda: clock, sleep
            assert one.coordinator("run", "auto")[0] == "127.0.0.1:1"

            _, zero, one = meet(None, None)
            clock = 7200.0
            refused(JobFailed, "worker 0 has started no coordinator in 330 s", lambda: one.coordinator(None, False))
            """)

    def test_nobody_waits_for_worker_0_when_it_has_ended(self):
        step = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "1", "SLURM_STEP_NUM_NODES": "1"}
        script = SCRIPT.replace("lockstep.init()", f"lockstep.init(run_dir={str(self.folder / 'none')!r}, resume=True)")
        statuses, said = self.workers(script, [{**step, "SLURM_PROCID": str(i)} for i in range(2)])
        self.assert_one_line(statuses[0], said[0], 2, f"resume: {self.folder / 'none'} holds no checkpoint")
        self.assert_one_line(statuses[1], said[1], 1, "worker 0 or srun, which serves the store of the workers, has ended: ")


if __name__ == "__main__":
    package.main_with_torch()
