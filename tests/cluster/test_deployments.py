"""What examples/ deploys with, when the coordinator dies: the scripts of the Kubernetes and Kubeflow manifests, of Slurm and the systemd units
start it again, and the job goes on. They run as they stand, with addresses and paths of the test; what would start them is imitated here: the
Job controller, srun and systemd. That the examples fit together is tests/unit/deploy's, and a real Slurm test_slurm.py's."""

import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import unittest

try:
    import yaml
except ImportError:
    yaml = None

from harness import BIN, ClusterTest, Job, check_epochs, main, wait_for
from test_standby import ETCD, Etcd, check_run, free_ports

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
PACED = {"emulate.unit_time": "4ms", "job.units": 8, "checkpoint.every": "0s"}
ROUNDS = 60
# The paths by which the examples know what the test has in a folder.
SECRET, CONFIG = "/etc/lockstep/secret/secret", "/etc/lockstep/job/job.ini"
WORKERS_HELD = "the job goes on from round .*, whose parameters {} workers held"


class Deployment(ClusterTest):
    def begin(self, job):
        """With what the examples find: a secret, and a port of the kernel's choice, which is nobody's at the moment."""
        self.job = job
        self.port, self.other_port = free_ports(2)
        self.secret = job.folder / "secret"
        self.secret.write_bytes(os.urandom(32))
        self.secret.chmod(0o400)

    def start(self, name, command, **environment):
        return self.job._start(name, command, {"PATH": f"{self.job.folder}:{BIN}:{os.environ['PATH']}", **environment})

    def coordinator_of(self, name):
        """The pid of the one that runs, which is a child of this script."""
        def found():
            self.assertIsNone(self.job.processes[name].poll(), self.job.log(name))
            script = self.job.processes[name].pid
            for child in pathlib.Path(f"/proc/{script}/task/{script}/children").read_text().split():
                try:
                    if pathlib.Path(f"/proc/{child}/cmdline").read_bytes().startswith(b"lockstep-coordinator\0"):
                        return int(child)
                except OSError:
                    pass
            return None
        return wait_for("a coordinator", found)

    def rounds_after(self, name, count):
        """Waits until the job has so many more closed rounds; `name` is what may not end before."""
        since = len(self.job.rounds())
        wait_for(f"{count} more rounds", lambda: len(self.job.rounds()) >= since + count or self.job.processes[name].poll() is not None)
        self.assertIsNone(self.job.processes[name].poll(), self.job.log(name))

    def went_on(self, log, deaths, workers, status="completed"):
        self.assertEqual(len(re.findall(WORKERS_HELD.format(workers), log)), deaths, log)
        self.assertEqual([line["round"] for line in self.job.rounds()], list(range(len(self.job.rounds()))))
        self.assertEqual(self.job.summary()["status"], status)
        check_run(self, self.job.run_dir)


@unittest.skipIf(yaml is None, "this Python has no yaml (Debian: python3-yaml)")
class Kubernetes(Deployment):
    def manifest(self, name):
        """{the replicated job's name: its Job}, and the ConfigMap's job.ini, if there is one."""
        documents = list(yaml.safe_load_all((EXAMPLES / name).read_text()))
        (spec,) = [document["spec"] for document in documents if document["kind"] in ("JobSet", "ClusterTrainingRuntime")]
        spec = spec.get("template", {}).get("spec", spec)
        (config,) = [document["data"]["job.ini"] for document in documents if document["kind"] == "ConfigMap"] or [None]
        return {one["name"]: one["template"]["spec"] for one in spec["replicatedJobs"]}, config

    def pod(self, job, name, *more, address="127.0.0.1", names=(("lockstep-coordinator-0-0.lockstep", "127.0.0.1"),), **environment):
        """Starts the container's command of a Job's pod, at this address. `names`: what the others are called there and here."""
        (container,) = job["template"]["spec"]["containers"]
        text = container["args"][0]
        for there, here in ((SECRET, self.secret), (CONFIG, self.job.config), ("/runs/", f"{self.job.folder}/runs/"), (":7070", f":{self.port}"),
                            ('"$goes_on"', " ".join(['"$goes_on"', *more])), *names):
            text = text.replace(there, str(here))
        return self.start(name, [*container["command"], text], POD_IP=address, **environment)

    def next_pod(self, job, status):
        """Whether the Job controller makes another pod, after one that ended so: None if it says how the Job ends."""
        status = 128 - status if status < 0 else status  # as the container's runtime tells it
        for rule in job["podFailurePolicy"]["rules"]:
            if status in rule.get("onExitCodes", {"values": []})["values"]:
                return {"FailJob": None, "FailIndex": None, "Ignore": True}[rule["action"]]
        return status != 0 and job["backoffLimitPerIndex"] > 0

    def die_and_go_on(self, coordinator, workers, *more, deaths=2, **environment):
        for death in range(deaths):
            wait_for("the job's address", lambda: (self.job.run_dir / "coordinator.address").exists())
            if death == 0:
                workers()
            self.rounds_after("coordinator", 8)
            process = self.job.processes["coordinator"]
            process.kill()
            self.assertTrue(self.next_pod(coordinator, process.wait()))
            self.pod(coordinator, "coordinator", *more, **environment)
        self.assertEqual(self.job.wait("coordinator"), 0, self.job.log("coordinator"))

    def test_a_new_pod_of_the_coordinator_goes_on_with_the_workers(self):
        jobs, config = self.manifest("kubernetes/jobset.yaml")
        timeout = re.search(r"(?m)^coordinator_timeout = (\w+)$", config)[1]
        with Job(4, PACED, job__rounds=ROUNDS, job__coordinator_timeout=timeout) as job:
            self.begin(job)
            job.run_dir = job.folder / "runs/job"
            self.pod(jobs["coordinator"], "coordinator")

            def workers():
                for worker in range(4):
                    self.pod(jobs["worker"], f"worker{worker}", INDEX=str(worker))

            self.die_and_go_on(jobs["coordinator"], workers)
            for worker in range(4):
                self.assertEqual(job.wait(f"worker{worker}"), 0, job.log(f"worker{worker}"))
                self.assertIn("for at most 900s (job.coordinator_timeout)", job.log(f"worker{worker}"))
            self.went_on(job.log("coordinator"), 2, 4)

    def test_its_config_is_a_config(self):
        jobs, config = self.manifest("kubernetes/jobset.yaml")
        with Job(4) as job:
            self.begin(job)
            job.run_dir = job.folder / "runs/job"
            job.config.write_text(config)
            # Nobody joins: all options have been read, and the folder is there.
            self.pod(jobs["coordinator"], "coordinator", "--job.join_timeout=100ms")
            self.assertEqual(job.wait("coordinator"), 1, job.log("coordinator"))
            self.assertEqual(job.summary()["status"], "failed")
            job.config.write_text(config.replace("rate", "rat").replace("lr", "l"))
            shutil.rmtree(job.run_dir)
            self.pod(jobs["coordinator"], "coordinator")
            status = job.wait("coordinator")
            self.assertEqual(status, 2)
            self.assertIsNone(self.next_pod(jobs["coordinator"], status))

    def test_so_does_that_of_a_script(self):
        for name, where in (("kubernetes/pytorch.yaml", "job"), ("kubeflow/trainer.yaml", "train")):
            with self.subTest(name), Job(4, PACED) as job:
                self.begin(job)
                self.secret = ""
                coordinator = self.manifest(name)[0]["coordinator"]
                coordinator["template"]["spec"]["containers"][0]["args"][0] = re.sub(
                    r"--secret-file \S+ ", "", coordinator["template"]["spec"]["containers"][0]["args"][0])
                job.run_dir = job.folder / "runs" / where
                settings = [f"--{key}={value}" for key, value in {**PACED, "job.rounds": ROUNDS, "job.global_batch": 64, "liveness.timeout": "3s"}.items()]
                self.pod(coordinator, "coordinator", *settings, JOB=where)

                def workers(address=f"127.0.0.1:{self.port}"):
                    for worker in range(4):
                        self.start(f"worker{worker}", [BIN / "own_loop", address])

                self.die_and_go_on(coordinator, workers, *settings, JOB=where)
                for worker in range(4):
                    self.assertEqual(job.wait(f"worker{worker}"), 0, job.log(f"worker{worker}"))
                self.assertIn("coordinator_timeout = 900s\n", (job.run_dir / "config.ini").read_text())
                self.went_on(job.log("coordinator"), 2, 4)

    def test_a_job_that_has_ended_goes_on_from_its_checkpoint(self):
        jobs, _ = self.manifest("kubernetes/jobset.yaml")
        with Job(4, PACED, job__rounds=ROUNDS) as job:
            self.begin(job)
            job.run_dir = job.folder / "runs/job"
            for start in range(2):
                self.pod(jobs["coordinator"], "coordinator")
                for worker in range(4):
                    self.pod(jobs["worker"], f"worker{worker}", INDEX=str(worker))
                if start == 0:
                    wait_for("rounds", lambda: len(job.rounds()) >= 8)
                    job.processes["coordinator"].terminate()  # as when its node is drained
                    status = job.wait("coordinator")
                    self.assertEqual((status, self.next_pod(jobs["coordinator"], status)), (130, None))
                    for worker in range(4):
                        job.wait(f"worker{worker}")
            self.assertEqual(job.wait("coordinator"), 0, job.log("coordinator"))
            self.went_on(job.log("coordinator"), 0, 4)

    def pair(self, job, lease):
        """Starts a pod of the coordinator or of the standby, and the workers, of standby.yaml."""
        jobs, _ = self.manifest("kubernetes/standby.yaml")
        # On one host each has an address of its own, at the same port.
        where = {"coordinator": "127.0.0.1", "standby": "127.0.0.2"}
        names = [(f"lockstep-$other-0-0.lockstep:{self.port}", "$OTHER"), ("etcd://etcd:2379/lockstep", lease)]

        def begin(role):
            other = f"{where['standby' if role == 'coordinator' else 'coordinator']}:{self.port}"
            self.pod(jobs[role], role, address=where[role], names=names, ROLE=role, OTHER=other)

        def workers():
            wait_for("the leader's address", lambda: (job.run_dir / "coordinator.address").exists())
            for worker in range(4):
                self.pod(jobs["worker"], f"worker{worker}", INDEX=str(worker))

        return jobs, begin, workers

    def kill_leader(self, jobs, role):
        os.kill(self.coordinator_of(role), signal.SIGKILL)
        status = self.job.wait(role)
        self.assertEqual((status, self.next_pod(jobs[role], status)), (137, True), self.job.log(role))

    @unittest.skipIf(ETCD is None, "no etcd (Debian: etcd-server)")
    def test_a_standby_leads_and_the_new_pod_follows_it(self):
        with Job(4, PACED, job__rounds=100000, liveness__timeout="4s") as job:
            self.begin(job)
            job.run_dir = job.folder / "runs/job"
            jobs, begin, workers = self.pair(job, Etcd(job).lease)
            begin("standby")  # whichever comes first
            begin("coordinator")
            workers()
            complete = {"standby": 0, "coordinator": 0}
            for death, (leader, other) in enumerate((("coordinator", "standby"), ("standby", "coordinator"))):
                complete[other] += 1
                wait_for("the standby to be complete", lambda: job.log(other).count("this standby is complete: it has") == complete[other])
                self.rounds_after(leader, 8)
                self.kill_leader(jobs, leader)
                wait_for("the other one to lead", lambda: re.search(WORKERS_HELD.format(4), job.log(other)))
                begin(leader)
            complete["standby"] += 1
            wait_for("the standby to be complete", lambda: job.log("standby").count("this standby is complete: it has") == complete["standby"])
            # The one that follows is moved: the job does not notice.
            job.processes["standby"].terminate()
            status = job.wait("standby")
            self.assertEqual((status, self.next_pod(jobs["standby"], status)), (4, True))
            begin("standby")
            complete["standby"] += 1
            wait_for("the standby to be complete", lambda: job.log("standby").count("this standby is complete: it has") == complete["standby"])
            self.rounds_after("coordinator", 8)
            # The leader's node is drained: that is no success of either.
            job.processes["coordinator"].terminate()
            status = {role: job.wait(role) for role in ("coordinator", "standby")}
            self.assertEqual(status, {"coordinator": 130, "standby": 1}, job.log("standby"))
            self.assertEqual([self.next_pod(jobs[role], status[role]) for role in status], [None, None])
            self.went_on(job.log("coordinator") + job.log("standby"), 2, 4, "interrupted")

    @unittest.skipIf(ETCD is None, "no etcd (Debian: etcd-server)")
    def test_with_a_standby_a_job_completes(self):
        with Job(4, PACED, job__rounds=ROUNDS, liveness__timeout="4s") as job:
            self.begin(job)
            job.run_dir = job.folder / "runs/job"
            _, begin, workers = self.pair(job, Etcd(job).lease)
            begin("coordinator")
            begin("standby")
            wait_for("the standby to follow", lambda: "a standby follows" in job.log("coordinator"))
            workers()
            self.assertEqual([job.wait(role) for role in ("coordinator", "standby")], [0, 0], job.log("standby"))
            self.went_on(job.log("coordinator"), 0, 4)


SRUN = """#!/bin/bash
shift # --kill-on-bad-exit=0
for ((task = 0; task < SLURM_NTASKS; task++)); do SLURM_PROCID=$task "$@" & done
wait
"""


class Slurm(Deployment):
    def batch(self, job, *more, **environment):
        self.begin(job)
        for name, text in (("srun", SRUN), ("scontrol", "#!/bin/bash\necho 127.0.0.1\n")):
            (job.folder / name).write_text(text)
            (job.folder / name).chmod(0o755)
        place = {"SLURM_JOB_NODELIST": "here", "SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": str(job.workers)}
        # In the folder where it was submitted.
        return self.start("slurm", ["env", "-C", job.folder, "bash", EXAMPLES / "slurm/apart.sbatch", job.config, job.run_dir, *more], **place, **environment)

    def test_a_coordinator_that_is_killed_is_started_again(self):
        with Job(3, PACED, job__rounds=ROUNDS) as job:
            self.batch(job)
            for death in range(2):
                self.rounds_after("slurm", 8)
                os.kill(self.coordinator_of("slurm"), signal.SIGKILL)
                wait_for("its restart", lambda: f"the coordinator was ended by SIGKILL; restarting it ({2 - death} restarts left)" in job.log("slurm"))
                wait_for("the next one to lead", lambda: len(re.findall(WORKERS_HELD.format(3), job.log("slurm"))) == death + 1)
            self.assertEqual(job.wait("slurm"), 0, job.log("slurm"))
            self.went_on(job.log("slurm"), 2, 3)
            self.assertEqual(list(job.folder.glob(".lockstep-*")), [])  # the secret

    def test_only_so_often(self):
        with Job(2, PACED, job__rounds=100000, job__coordinator_timeout="0s") as job:
            self.batch(job, COORDINATOR_RESTARTS="0", RESTARTS="0")
            self.rounds_after("slurm", 4)
            os.kill(self.coordinator_of("slurm"), signal.SIGKILL)
            self.assertEqual(job.wait("slurm"), 137, job.log("slurm"))
            self.assertNotIn("restarting it", job.log("slurm"))

    def test_a_signal_to_the_batch_job_ends_it_also_after_a_restart(self):
        with Job(2, PACED, job__rounds=100000) as job:
            self.batch(job)
            self.rounds_after("slurm", 4)
            os.kill(self.coordinator_of("slurm"), signal.SIGKILL)
            wait_for("the next one to lead", lambda: re.search(WORKERS_HELD.format(2), job.log("slurm")))
            self.rounds_after("slurm", 4)
            job.processes["slurm"].send_signal(signal.SIGINT)
            self.assertEqual(job.wait("slurm"), 130, job.log("slurm"))
            self.assertEqual(job.summary()["status"], "interrupted")
            check_epochs(self, job.rounds(), 2048)

    def test_a_mistake_is_not_tried_again(self):
        with Job(2) as job:
            job.config.write_text("[job]\nrouns = 5\n")
            self.batch(job)
            self.assertEqual(job.wait("slurm"), 2, job.log("slurm"))
            self.assertEqual(job.log("slurm").count("rouns"), 1)


class Unit:
    """A unit file's [Service], as systemd would read it."""

    def __init__(self, name, folder, port, other_port, lease):
        self.folder = folder
        text = (EXAMPLES / "systemd" / name).read_text().replace("\\\n", " ")
        lines = [line.split("=", 1) for line in text.split("[Service]")[1].split("[Install]")[0].splitlines() if line and line[0] != "#"]
        self.keys = {key: value for key, value in lines}
        words = (EXAMPLES / "systemd/job.env").read_text()
        self.environment = dict(line.split("=", 1) for line in words.splitlines() if line[0] != "#")
        self.environment.update(COORDINATOR=f"127.0.0.1:{port}", STANDBY=f"127.0.0.1:{other_port}", LEASE=lease and f"--lease={lease}")

    def command(self, instance=""):
        def value(word):
            for there, here in (("/usr/local/bin/", f"{BIN}/"), ("/etc/lockstep/", f"{self.folder}/"), ("%i", instance)):
                word = word.replace(there, here)
            return re.sub(r"\$\$|\$\{(\w+)\}", lambda found: self.environment[found[1]] if found[1] else "$", word)
        working = self.keys.get("WorkingDirectory", "%S").replace("%S", str(self.folder))
        return ["env", "-C", working.removesuffix("/lockstep"), *map(value, shlex.split(self.keys["ExecStart"]))]

    def restarts(self, status):
        unclean = status < 0 and -status not in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)
        if self.keys["Restart"] == "on-abnormal":
            return unclean
        prevented = map(int, self.keys["RestartPreventExitStatus"].split())
        return self.keys["Restart"] == "on-failure" and (unclean or status > 0 and status not in prevented)


class Systemd(Deployment):
    def units(self, job, lease=""):
        self.begin(job)
        return [Unit(f"lockstep-{name}.service", job.folder, self.port, self.other_port, lease) for name in ("coordinator", "standby", "worker@")]

    def run_unit(self, name, unit, instance=""):
        self.start(name, unit.command(instance), **unit.environment)

    def kill(self, name, unit):
        self.job.processes[name].kill()
        self.assertTrue(unit.restarts(self.job.processes[name].wait()))

    def test_a_coordinator_that_is_killed_is_started_again(self):
        with Job(4, PACED, job__rounds=ROUNDS) as job:
            coordinator, _, worker = self.units(job)
            job.run_dir = job.folder / "job"
            self.run_unit("coordinator", coordinator)
            for index in range(4):
                self.run_unit(f"worker{index}", worker, str(index))
            for _ in range(2):
                self.rounds_after("coordinator", 8)
                self.kill("coordinator", coordinator)
                self.run_unit("coordinator", coordinator)
            self.assertEqual(job.wait("coordinator"), 0, job.log("coordinator"))
            for index in range(4):
                self.assertEqual(job.wait(f"worker{index}"), 0, job.log(f"worker{index}"))
            self.went_on(job.log("coordinator"), 2, 4)
            self.assertFalse(coordinator.restarts(0))

    def test_a_job_that_was_stopped_goes_on_from_its_checkpoint(self):
        with Job(4, PACED, job__rounds=ROUNDS) as job:
            coordinator, _, worker = self.units(job)
            job.run_dir = job.folder / "job"
            for start in range(2):
                self.run_unit("coordinator", coordinator)
                for index in range(4):
                    self.run_unit(f"worker{index}", worker, str(index))
                if start == 0:
                    wait_for("rounds", lambda: len(job.rounds()) >= 8)
                    job.processes["coordinator"].terminate()
                    self.assertIn(str(job.wait("coordinator")), coordinator.keys["SuccessExitStatus"].split())
                    for index in range(4):
                        job.wait(f"worker{index}")
            self.assertEqual(job.wait("coordinator"), 0, job.log("coordinator"))
            self.went_on(job.log("coordinator"), 0, 4)

    def test_a_mistake_is_not_tried_again(self):
        with Job(4) as job:
            coordinator, _, worker = self.units(job)
            job.config.write_text("[job]\nrouns = 5\n")
            self.run_unit("coordinator", coordinator)
            status = job.wait("coordinator")
            self.assertEqual((status, coordinator.restarts(status)), (2, False), job.log("coordinator"))
            self.secret.chmod(0o600)
            self.secret.write_bytes(b"short")
            self.run_unit("worker", worker, "0")
            status = job.wait("worker")
            self.assertEqual((status, worker.restarts(status)), (2, False), job.log("worker"))
            self.assertEqual([worker.restarts(status) for status in (0, 1, 3, -signal.SIGKILL)], [False, True, True, True])

    @unittest.skipIf(ETCD is None, "no etcd (Debian: etcd-server)")
    def test_a_standby_leads_with_the_lease_and_is_started_again_too(self):
        # Endless, or the lease is free again while the one that was killed waits for it.
        with Job(4, PACED, job__rounds=100000, liveness__timeout="4s") as job:
            etcd = Etcd(job)
            coordinator, standby, worker = self.units(job, etcd.lease)
            job.run_dir = job.folder / "job"
            self.run_unit("standby", standby)  # whichever comes first
            self.run_unit("coordinator", coordinator)
            for index in range(4):
                self.run_unit(f"worker{index}", worker, str(index))
            wait_for("the standby to be complete", lambda: "this standby is complete: it has" in job.log("standby"))
            self.kill("standby", standby)
            self.run_unit("standby", standby)
            wait_for("it to be complete again", lambda: job.log("standby").count("this standby is complete: it has") == 2)
            self.rounds_after("coordinator", 8)
            self.kill("coordinator", coordinator)
            wait_for("the standby to lead", lambda: re.search(WORKERS_HELD.format(4), job.log("standby")))
            job.run_dir = job.folder / "standby"
            # The one that is started again ends, and is not tried again.
            self.run_unit("coordinator", coordinator)
            status = job.wait("coordinator")
            self.assertEqual((status, coordinator.restarts(status)), (1, False), job.log("coordinator"))
            self.assertIn("holds it", job.log("coordinator"))
            self.rounds_after("standby", 4)
            self.kill("standby", standby)
            self.run_unit("standby", standby)
            wait_for("it to lead again", lambda: len(re.findall(WORKERS_HELD.format(4), job.log("standby"))) == 2)
            self.rounds_after("standby", 4)
            job.processes["standby"].terminate()
            self.assertEqual(job.wait("standby"), 130, job.log("standby"))
            self.went_on(job.log("standby"), 2, 4, "interrupted")

    @unittest.skipIf(shutil.which("systemd-analyze") is None, "no systemd-analyze (Debian: systemd)")
    def test_systemd_takes_the_units(self):
        with Job(4) as job:
            units = []
            for path in sorted((EXAMPLES / "systemd").glob("*.service")):
                units.append(job.folder / path.name)
                units[-1].write_text(path.read_text().replace("/usr/local/bin/", f"{BIN}/"))
            done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stderr, len(units)), (0, "", 3))


if __name__ == "__main__":
    main()
