"""examples/slurm under a real Slurm: its daemons for one host with several tasks, of their own configuration and ports. Needs root, slurm-wlm
and munge (tools/install-deps hosts); skipped in plain words without."""

import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import unittest

from harness import BIN, ClusterTest, Job, check_epochs, main, wait_for

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples/slurm"
PATH = f"{BIN}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
MISSING = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
CONFIG = """ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld}
SlurmdPort={d}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/d.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/d.log
SlurmUser=root
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
"""


def free_ports(count):
    """Nobody's at the moment; what comes between is a start that fails, and is told."""
    sockets = [socket.create_server(("", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@unittest.skipUnless(os.geteuid() == 0, "Slurm's daemons want root here")
@unittest.skipIf(MISSING, f"no Slurm here: {', '.join(MISSING)} missing (tools/install-deps hosts)")
class Slurm(ClusterTest):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-slurm-", ignore_cleanup_errors=True)
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.folder.chmod(0o755)
        for name in ("state", "spool"):
            (cls.folder / name).mkdir()
        key = cls.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        cls.environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(cls.folder / "slurm.conf")}
        host = socket.gethostname().split(".")[0]
        ctld, d = free_ports(2)
        (cls.folder / "slurm.conf").write_text(CONFIG.format(host=host, ctld=ctld, d=d, folder=cls.folder))
        cls.daemon("munged", "--foreground", "--force", "--key-file", key, "--socket", cls.folder / "munge.socket", "--pid-file",
                   cls.folder / "munge.pid", "--log-file", cls.folder / "munge.log", "--seed-file", cls.folder / "munge.seed")
        try:
            wait_for("munged", lambda: (cls.folder / "munge.socket").exists() or cls.ended())
            cls.daemon("slurmctld", "-D")
            cls.daemon("slurmd", "-D", "-N", host)
            wait_for("Slurm's host to be idle", lambda: cls.slurm("sinfo", "--noheader", "--format=%T").stdout.strip() == "idle" or cls.ended(), 60)
        except AssertionError as error:
            cls.cannot(str(error))
        if cls.ended():
            cls.cannot(f"{cls.ended()} has ended")

    processes = {}

    @classmethod
    def daemon(cls, name, *arguments):
        with open(cls.folder / f"{name}.out.log", "wb") as log:
            process = subprocess.Popen([shutil.which(name, path=PATH), *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                       env=cls.environment)
        cls.processes[name] = process
        cls.addClassCleanup(process.wait)
        cls.addClassCleanup(process.terminate)

    @classmethod
    def cannot(cls, why):
        logs = "".join(path.read_text(errors="replace")[-2000:] for path in sorted(cls.folder.glob("*.log")))
        raise unittest.SkipTest(f"Slurm does not run here: {why}: {logs}")

    @classmethod
    def ended(cls):
        return next((name for name, process in cls.processes.items() if process.poll() is not None), None)

    @classmethod
    def slurm(cls, *words, cwd=None, **more):
        return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, env={**cls.environment, **more},
                              cwd=cwd or cls.folder, timeout=120)

    def submit(self, job, *words, **more):
        """The number of the batch job; its output is job.log("slurm")."""
        job.logs["slurm"] = job.folder / "slurm.log"
        job.logs["slurm"].write_text("")
        done = self.slurm("sbatch", "--parsable", "--output", job.logs["slurm"], "--ntasks-per-node=3", *words, cwd=job.folder, **more)
        self.assertEqual(done.returncode, 0, done)
        number = done.stdout.strip()
        self.addCleanup(self.slurm, "scancel", "--quiet", number)
        return number

    def state(self, number):
        done = self.slurm("scontrol", "--oneliner", "show", "job", number)
        return dict(word.split("=", 1) for word in done.stdout.split() if "=" in word)

    def wait_for_end(self, job, number):
        """Its status."""
        ended = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT")
        wait_for("the batch job's end", lambda: self.state(number).get("JobState") in ended, 120, look_every=0.2)
        return int(self.state(number)["ExitCode"].split(":")[0])

    def test_workers_as_tasks_and_the_coordinator_apart(self):
        with Job(3) as job:
            number = self.submit(job, EXAMPLES / "apart.sbatch", job.config, job.run_dir, "--policy.name=full+flexrr")
            self.assertEqual(self.wait_for_end(job, number), 0, job.log("slurm"))
            summary = job.summary()
            self.assertEqual((summary["status"], summary["workers"], summary["policy"]), ("completed", 3, "full+flexrr"))
            check_epochs(self, job.rounds(), 2048)
            self.assertEqual(list(job.folder.glob(".lockstep-*")), [])  # the secret

    def test_a_job_that_is_signalled_goes_on_from_its_checkpoint(self):
        with Job(3, {"job.rounds": 100000, "emulate.unit_time": "2ms"}) as job:
            number = self.submit(job, EXAMPLES / "apart.sbatch", job.config, job.run_dir)
            wait_for("rounds", lambda: len(job.rounds()) >= 5 or self.state(number).get("JobState") == "FAILED", 120)
            self.slurm("scancel", "--batch", "--signal=INT", number)
            self.assertEqual(self.wait_for_end(job, number), 130, job.log("slurm"))
            before = job.summary()
            self.assertEqual(before["status"], "interrupted")
            number = self.submit(job, EXAMPLES / "apart.sbatch", job.config, job.run_dir, f"--job.rounds={before['rounds'] + 3}")
            self.assertEqual(self.wait_for_end(job, number), 0, job.log("slurm"))
            self.assertEqual((job.summary()["status"], job.summary()["rounds"]), ("completed", before["rounds"] + 3))

    def test_wrong_usage_ends_the_batch_job(self):
        with Job(3) as job:
            job.config.write_text("[job]\nrouns = 5\n")
            number = self.submit(job, EXAMPLES / "apart.sbatch", job.config, job.run_dir)
            self.assertEqual(self.wait_for_end(job, number), 2, job.log("slurm"))
            self.assertIn("rouns", job.log("slurm"))
            self.assertFalse((job.run_dir / "summary.json").exists())

    def test_a_script_of_pytorch(self):
        python = os.environ.get("LOCKSTEP_TORCH_PYTHON")
        if not python or subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode != 0:
            self.skipTest("LOCKSTEP_TORCH_PYTHON names no interpreter with torch")
        root = EXAMPLES.parents[1]
        with Job(3) as job:
            script = job.folder / "train.py"
            script.write_text(SCRIPT)
            number = self.submit(job, EXAMPLES / "train.sbatch", script, PYTHON=python, PYTHONPATH=str(root / "python"),
                                 LOCKSTEP_BUILD_DIR=str(BIN.parent), OMP_NUM_THREADS="1")
            self.assertEqual(self.wait_for_end(job, number), 0, job.log("slurm"))
            digests = [line.split()[1] for line in job.log("slurm").splitlines() if line.startswith("digest")]
            self.assertEqual((len(digests), len(set(digests))), (3, 1), job.log("slurm"))
            self.assertEqual(job.summary()["workers"], 3)
            self.assertEqual(list(job.folder.glob(".lockstep-*")), [])


SCRIPT = """
import hashlib
import torch
import lockstep

job = lockstep.init(run_dir="run")
data = torch.utils.data.TensorDataset(torch.randn(512, 8, generator=torch.Generator().manual_seed(1)), torch.arange(512) % 2)
model = torch.nn.Linear(8, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)
model, opt, loader = job.prepare(model, opt, loader, epochs=2)
for epoch in range(2):
    for x, y in loader:
        opt.zero_grad()
        job.backward(torch.nn.functional.cross_entropy(model(x), y))
        opt.step()
print("digest", hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest(), flush=True)
"""


if __name__ == "__main__":
    main()
