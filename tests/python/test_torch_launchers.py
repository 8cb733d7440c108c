"""Launchers start a job: torchrun, mpirun and srun, on one host and on several."""

import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import harness  # noqa: E402
from torch_test import LOOP, PREPARE, PYTHON, SCRIPT, TorchTest, run  # noqa: E402


class LaunchedTest(TorchTest):
    SCRIPT = (SCRIPT.replace("model = nn", "torch.seed()\nmodel = nn") + PREPARE + LOOP
              # At once: the workers of a launcher write to one pipe.
              + 'import os\nvalues = [x for p in model.parameters() for x in p.flatten().tolist()]\n'
              + 'os.write(1, f"rank {job.rank} of {job.size}: {values}\\n".encode())\n')

    def free_port(self):
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            return str(one.getsockname()[1])

    def launch(self, *command, script=None, **more):
        environment = package.environment(**more)
        command = [*command, pathlib.Path(PYTHON), self.script(self.SCRIPT if script is None else script)]
        return subprocess.run([str(word) for word in command], cwd=self.folder, capture_output=True, text=True, timeout=package.TIMEOUT_S, check=False,
                              env=environment)

    def assert_three_alike(self, done):
        self.assertEqual(done.returncode, 0, done)
        lines = dict(re.findall(r"rank (\d) of 3: (.*)$", done.stdout, re.MULTILINE))
        self.assertEqual(sorted(lines), ["0", "1", "2"], done)
        self.assertEqual(len(set(lines.values())), 1, done.stdout)

    def test_torchrun_starts_a_job(self):
        for how in (["--standalone"], ["--master-addr", "127.0.0.1", "--master-port", self.free_port()]):
            with self.subTest(how):
                done = run("-m", "torch.distributed.run", *how, "--nproc-per-node", "3", self.script(self.SCRIPT))
                self.assert_three_alike(done)
                self.assertRegex(done.stdout, r"(?m)^lockstep: torchrun has started 3 workers, which meet at \S+:\d+; worker 0 has started the coordinator, \S+:\d+$")

    def test_torchrun_that_starts_all_workers_again_goes_on_from_the_checkpoint(self):
        run_dir = self.folder / "run"
        # Worker 0 alone would come to the end before torchrun ends it.
        init = f"run_dir={str(run_dir)!r}, resume='auto', settings={{'checkpoint.every_rounds': 1, 'job.min_workers': 2}}"
        script = self.script(SCRIPT.replace("run_dir=None", init) + PREPARE + f"""
import os, pathlib, signal, time
begun = None
for epoch in range(2):
    for x, y in loader:
        begun = job.round if begun is None else begun
        F.cross_entropy(model(x), y).backward()
        while job.rank == 1 and job.round == 5 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            if list(pathlib.Path({str(run_dir)!r}, "checkpoints").glob("round-*.json")):
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.01)
        opt.step()
os.write(1, f"rank {{job.rank}} of {{job.size}}, restart {{os.environ['TORCHELASTIC_RESTART_COUNT']}}, begun {{begun}}\\n".encode())
""")
        done = run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "2", script)
        self.assertEqual(done.returncode, 0, done)
        said = re.findall(r"rank (\d) of 2, restart 1, begun (\d+)", done.stdout)
        self.assertEqual(sorted(rank for rank, _ in said), ["0", "1"], done)
        self.assertGreater(min(int(begun) for _, begun in said), 0, done)
        harness.check_epochs(self, self.rounds(run_dir), 64)

    def test_one_torchrun_for_each_worker_starts_one_that_dies_again(self):
        """And no other one: the coordinator is apart. With min_workers the job waits for it."""
        mark = self.folder / "mark"
        script = self.script(SCRIPT.replace("run_dir=None", "settings={'job.min_workers': 3, 'liveness.timeout': '60s'}") + PREPARE + f"""
import os, pathlib, signal
mark = pathlib.Path({str(mark)!r})
for epoch in range(2):
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        if job.rank == 1 and job.round == 3 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        opt.step()
print("parameters", *(p.double().sum().item() for p in model.parameters()), "restarts", os.environ["TORCHELASTIC_RESTART_COUNT"])
""")
        with harness.Job(3, coordinator_args=["--config-from-workers"]) as job:
            job.config.write_text("")
            job.start_coordinator()
            workers = [package.start("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "--max-restarts", "3", script,
                                     python=PYTHON, LOCKSTEP_COORDINATOR=job.address) for _ in range(3)]
            try:
                ended = [worker.communicate(timeout=package.TIMEOUT_S) for worker in workers]
            finally:
                for worker in workers:
                    worker.terminate()  # ends what it has started, too
                    worker.wait()
            self.assertEqual([worker.returncode for worker in workers], [0, 0, 0], ended)
            self.assertEqual(job.wait(), 0)
            self.assertTrue(mark.exists())
            harness.check_epochs(self, job.rounds(), 64)
        said = re.findall(r"parameters (.*) restarts (\d)$", "".join(out for out, _ in ended), re.MULTILINE)
        self.assertEqual((len(said), len({sums for sums, _ in said}), sorted(count for _, count in said)), (3, 1, ["0", "0", "1"]), ended)

    @unittest.skipUnless("Open MPI" in (subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False).stdout
                                        if shutil.which("mpirun") else ""), "there is no mpirun of Open MPI")
    def test_mpirun_starts_a_job(self):
        mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3"]
        self.assert_three_alike(self.launch(*mpirun, MASTER_ADDR="127.0.0.1", MASTER_PORT=self.free_port()))
        # On one host it need not be said where they meet.
        self.assert_three_alike(self.launch(*mpirun))

    def test_what_launchers_tell_of_the_place(self):
        script = self.script("import json, sys\nfrom lockstep._errors import UsageError\nfrom lockstep._launched import launched\n"
                             "for environment in json.loads(sys.argv[1]):\n"
                             "    try:\n"
                             "        at = launched(environment)\n"
                             "        print(at.launcher, at.worker, at.workers, at.host, at.port, at.serves, at.job)\n"
                             "    except UsageError as error:\n"
                             "        print(error)\n")
        step = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "4"}
        slurm = [{**step, "SLURM_PROCID": worker, "SLURM_STEP_NUM_NODES": nodes, "SLURM_STEP_NODELIST": hosts}
                 for nodes, hosts in (("1", "a"), ("2", "a1,b2"), ("5", "gpu-node[003-007]"), ("4", "r[1-2]n[01-02],x")) for worker in "03"]
        of_mpirun = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_NAMESPACE": "9"}
        more = [{**slurm[2], "MASTER_ADDR": "c", "MASTER_PORT": "5"}, {**of_mpirun, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"},
                {**of_mpirun, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}]
        done = run(script, json.dumps([*slurm, *more]))
        lines = done.stdout.splitlines()
        self.assertEqual(len(lines), len(slurm) + len(more), done)
        port = lines[0].split()[4]
        self.assertIn(int(port), range(61000, 65000))
        hosts = ["127.0.0.1", "a1", "gpu-node003", "r1n01"]
        self.assertEqual(lines[:8], [f"srun {worker} 4 {host} {port} {worker == 0} 77/3/" for host in hosts for worker in (0, 3)])
        self.assertEqual(lines[8], "srun 0 4 c 5 True 77/3/")
        self.assertRegex(lines[9], r"^mpirun 1 4 127\.0\.0\.1 6[1-4]\d\d\d False 9$")
        self.assertIn("mpirun has started 4 workers: say with MASTER_ADDR and MASTER_PORT where they meet", lines[10])

    def test_on_several_hosts_the_coordinator_is_where_others_reach_it(self):
        """By what the host of worker 0 knows itself as, on Debian 127.0.1.1."""
        script = self.script("""
            import json, socket, sys
            from lockstep import _launched
            from lockstep._errors import UsageError

            def resolved(host, *_, **__):
                if host not in told["names"]:
                    raise socket.gaierror(socket.EAI_NONAME, "unknown")
                return [(socket.AF_INET6 if ":" in address else socket.AF_INET, 0, 0, "", (address, 0)) for address in told["names"][host]]

            class Socket:
                def __init__(self, *_):
                    pass
                def __enter__(self):
                    return self
                def __exit__(self, *_):
                    pass
                def connect(self, to):
                    self.own = told["ways"].get(to[0])
                    if self.own is None:
                        raise OSError("no way there")
                def getsockname(self):
                    return self.own, 1

            socket.getaddrinfo, socket.socket = resolved, Socket
            socket.if_nameindex = lambda: [(1, "lo"), *[(2, "eth0")] * told["network"]]
            for told in json.loads(sys.argv[1]):
                try:
                    print(_launched.listen_host(_launched.launched(told["environment"])))
                except UsageError as error:
                    print(error)
            """)
        slurm = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0", "SLURM_STEP_NUM_NODES": "2",
                 "SLURM_STEP_NODELIST": "n[1-2]"}
        agents = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "5"}
        itself = {"127.0.1.1": ["127.0.1.1"], "n1": ["127.0.1.1"], "n2": ["10.0.0.2"], "192.0.2.1": ["192.0.2.1"], "localhost": ["127.0.0.1"]}
        cases = (
            # Known by an address that others reach, alone or beside one that they do not.
            (slurm, {"n1": ["10.0.0.1"]}, {}, "n1"),
            (slurm, {"n1": ["127.0.1.1", "10.0.0.1"]}, {}, "10.0.0.1"),
            (slurm, {"n1": ["::1", "fe80::1", "2001:db8::5"]}, {}, "2001:db8::5"),
            # Else that from which the way to the others begins.
            (slurm, itself, {"10.0.0.2": "10.0.0.1", "192.0.2.1": "172.16.0.1"}, "10.0.0.1"),
            (agents, itself, {"192.0.2.1": "172.16.0.1"}, "172.16.0.1"),
            (agents, itself, {}, "worker 0's host knows its name n1 as 127.0.1.1, which other hosts do not reach, and has no other address. "
                                 "Set MASTER_ADDR to the address by which they reach it"),
            # All on one host, as is said or as there is no other.
            ({**slurm, "SLURM_STEP_NUM_NODES": "1"}, itself, {}, "127.0.0.1"),
            ({**agents, "LOCAL_WORLD_SIZE": "4"}, itself, {"192.0.2.1": "172.16.0.1"}, "n1"),
            ({**agents, "MASTER_ADDR": "127.0.1.1"}, itself, {"192.0.2.1": "172.16.0.1"}, "127.0.1.1"),
            ({**agents, "MASTER_ADDR": "localhost"}, itself, {"192.0.2.1": "172.16.0.1"}, "localhost"),
            ({**agents, "MASTER_ADDR": "unknown"}, itself, {"192.0.2.1": "172.16.0.1"}, "unknown"),
            ({name: value for name, value in agents.items() if name != "LOCAL_WORLD_SIZE"}, itself, {}, "n1"),
        )
        told = [{"environment": environment, "names": names, "ways": ways, "network": True} for environment, names, ways, _ in cases]
        done = run(script, json.dumps([*told, {**told[5], "network": False}]))
        self.assertEqual(done.stdout.splitlines(), [*(expected for *_, expected in cases), "n1"], done)

    def srun(self, script, environments=({}, {}, {})):
        """What srun sets, without it."""
        port = self.free_port()
        path = self.script(script)
        workers = [package.start(path, python=PYTHON, SLURM_STEP_ID="0", SLURM_PROCID=str(i), SLURM_STEP_NUM_TASKS="3",
                                 MASTER_ADDR="127.0.0.1", MASTER_PORT=port, **more) for i, more in enumerate(environments)]
        try:
            ended = [worker.communicate(timeout=package.TIMEOUT_S) for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        return [worker.returncode for worker in workers], ended

    def test_what_srun_sets_starts_a_job(self):
        statuses, ended = self.srun(self.SCRIPT)
        self.assertEqual(statuses, [0, 0, 0], ended)
        self.assert_three_alike(subprocess.CompletedProcess([], 0, "".join(out for out, _ in ended)))

    def test_one_job_after_the_other_with_a_secret_that_all_have(self):
        """The second one begins with its own model and coordinator, and the store has nothing to join with."""
        secret = self.folder / "secret"
        secret.write_bytes(os.urandom(32))
        look = ('import json\nmeeting = job._entry.channel\nassert json.loads(meeting.get("job"))[1] is None\n'
                'begun = [p.tolist() for p in model.parameters()]\n')
        first = SCRIPT.replace("model = nn", "torch.seed()\nmodel = nn") + PREPARE + look + LOOP
        second = self.SCRIPT.replace(LOOP, "assert meeting is not job._entry.channel\nif job._entry.wanted == 0:\n    assert begun != [p.tolist() for p in model.parameters()]\n" + LOOP)
        statuses, ended = self.srun(first + second, [{"LOCKSTEP_SECRET_FILE": str(secret)}] * 3)
        self.assertEqual(statuses, [0, 0, 0], ended)
        self.assert_three_alike(subprocess.CompletedProcess([], 0, "".join(out for out, _ in ended)))
        statuses, ended = self.srun(self.SCRIPT, [{"LOCKSTEP_SECRET_FILE": str(secret)}, {}, {"LOCKSTEP_SECRET_FILE": str(secret)}])
        self.assertEqual(statuses[1], 2, ended)
        self.assertIn("lockstep: LOCKSTEP_SECRET_FILE: worker 0 has one and this worker has none", ended[1][1])


if __name__ == "__main__":
    package.main_with_torch()
