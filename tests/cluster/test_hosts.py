"""`lockstep run --hosts` and tools/launch --hosts between three hosts that are network namespaces of this machine: with a real sshd in two of
them where one is installed, and with a stand-in for ssh (`ip netns exec`). Needs root; skipped in plain words without."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

from harness import BIN, TOOLS, ClusterTest, Job, check_epochs, main, wait_for

sys.path.insert(0, str(TOOLS / "lib"))
import namespaces  # noqa: E402

PACKAGE = TOOLS.parent / "python"
LINEAR = TOOLS.parent / "tests/python/linear.py"
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
TIMEOUT_S = 120
HOSTS = ("lhl", "lha", "lhb")  # the launcher's, and the two of the job
# Worker 0 has something for the others before it joins, as a PyTorch script has its model.
SHARING = """
import hashlib, os, pathlib, sys, time
where = pathlib.Path(os.environ["LOCKSTEP_INITIAL"])
if os.environ["LOCKSTEP_WORKER"] == "0":
    (where / "mine").write_bytes(os.urandom(40 << 20))
    os.replace(where / "mine", where / "initial")
while not (where / "initial").exists():
    os.sched_yield()
print("initial", hashlib.sha256((where / "initial").read_bytes()).hexdigest(), "in", where, flush=True)
"""
SSH = """#!{python}
import os, subprocess, sys
arguments = sys.argv[1:]
host, command = arguments[arguments.index("--") + 1:]
os.environ["SSH_CONNECTION"] = f"10.77.0.1 40000 {{host}} 22"
sys.exit(subprocess.run(["ip", "netns", "exec", {hosts}[host], "sh", "-c", command]).returncode)
"""


def in_namespace(name):
    """The processes there."""
    return [int(pid) for pid in namespaces.sh("ip", "netns", "pids", name).stdout.split()]


def command_line(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


class OverHosts:
    """What holds however the hosts are reached."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-hosts-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.network = namespaces.Network(HOSTS)
        try:
            self.network.__enter__()
        except namespaces.CannotMake as error:
            self.skipTest(f"network namespaces cannot be joined here: {error}")
        self.addCleanup(self.network.__exit__)
        self.path = os.environ["PATH"]
        self.options = []
        self.reach()

    def command(self, *arguments, hosts="10.77.0.2:2,10.77.0.3:1", package=True):
        where = ["--hosts", hosts, "--python", sys.executable, "--cwd", self.folder, *self.options, "--run-dir", self.folder / "run"]
        if not package:
            return [*self.network.prefix("lhl"), sys.executable, "-B", TOOLS / "launch", "--build-dir", BIN, *where, *arguments]
        build = os.environ.get("LOCKSTEP_BUILD_DIR", BIN.parent)
        variables = [word for name, value in (("PYTHONPATH", PACKAGE), ("LOCKSTEP_BUILD_DIR", build), ("PYTHONDONTWRITEBYTECODE", 1))
                     for word in ("--env", f"{name}={value}")]
        return [*self.network.prefix("lhl"), sys.executable, "-B", "-m", "lockstep", "run", *where, *variables, *arguments]

    def start(self, *arguments, **options):
        kept = {key: value for key, value in os.environ.items() if not key.startswith("LOCKSTEP_")}
        environment = {**kept, "PATH": self.path, "PYTHONPATH": str(PACKAGE), "LOCKSTEP_BUILD_DIR": str(BIN.parent)}
        process = subprocess.Popen([str(word) for word in self.command(*arguments, **options)], stdin=subprocess.DEVNULL, cwd=self.folder,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        self.addCleanup(process.wait)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        return process

    def run_it(self, *arguments, **options):
        process = self.start(*arguments, **options)
        out, err = process.communicate(timeout=TIMEOUT_S)
        return process.returncode, out, err

    def job(self):
        job = Job(3, folder=self.folder)
        job.run_dir = self.folder / "run"
        return job

    def ours(self):
        """Processes of the job at its hosts."""
        return [line for host in HOSTS[1:] for pid in in_namespace(self.network.hosts[host]) for line in [command_line(pid)]
                if not line.startswith("sshd:") and ("stdin.buffer" in line or "lockstep-" in line or "linear.py" in line)]

    def nothing_is_left(self):
        wait_for("all processes at the hosts to end", lambda: not self.ours(), 60)

    def refused(self, *arguments, **options):
        status, out, err = self.run_it(*arguments, LINEAR, **options)
        self.assertEqual((status, out), (2, ""), err)
        self.assertRegex(err, r"\Alockstep: [^\n]+\n\Z")
        return err

    def test_a_script_trains_on_two_hosts(self):
        script = self.folder / "linear.py"
        script.write_text(SHARING + LINEAR.read_text())
        status, out, err = self.run_it("linear.py")
        self.assertEqual(status, 0, out + err)
        self.assertEqual(len(set(re.findall(r"digest (\w{64})", out))), 1, out)
        self.assertEqual(set(re.findall(r"^worker (\d)    \| ", out, re.MULTILINE)), {"0", "1", "2"})
        check_epochs(self, self.job().rounds(), 1024)
        summary = self.job().summary()
        kinds = {(path["from"], path["to"]): path["path"].split(":")[0] for path in summary["paths"]}
        self.assertEqual((kinds[0, 1], kinds[0, 2]), ("mapped", "tcp"))
        # What worker 0 has for the others has come to the other host, whose folder is another one.
        shared = re.findall(r"initial (\w{64}) in (\S+)", out)
        self.assertEqual((len(shared), len({digest for digest, _ in shared}), len({where for _, where in shared})), (3, 1, 2), shared)
        self.nothing_is_left()

    def test_programs_train_on_two_hosts(self):
        config = Job(3, folder=self.folder).config
        status, out, err = self.run_it("--config", config, package=False)
        self.assertEqual(status, 0, out + err)
        self.assertEqual(self.job().summary()["status"], "completed")

    def test_ctrl_c_ends_the_job_in_good_order_everywhere(self):
        process = self.begin_long_job()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT_S)
        self.assertEqual(process.returncode, 130, out + err)
        self.assertEqual(self.job().summary()["status"], "interrupted")
        self.nothing_is_left()

    def test_the_death_of_the_launcher_ends_everything_everywhere(self):
        process = self.begin_long_job()
        lines = self.ours()
        self.assertTrue(any("lockstep-coordinator" in line for line in lines), lines)
        secrets = {re.search(r"--secret-file (\S+)", line)[1] for line in lines if "--secret-file" in line}
        self.assertEqual(len(secrets), 1)
        secret = pathlib.Path(secrets.pop())
        for form in (secret.read_bytes(), secret.read_bytes().hex().encode()):  # on no command line and in no environment, of nobody
            for entry in pathlib.Path("/proc").iterdir():
                for name in ("cmdline", "environ") if entry.name.isdecimal() else ():
                    try:
                        text = (entry / name).read_bytes()
                    except OSError:
                        continue
                    self.assertNotIn(form, text, f"{entry}/{name}")
        process.kill()
        process.wait(TIMEOUT_S)
        self.nothing_is_left()
        wait_for("the secret to be removed", lambda: not secret.exists(), 60)

    def begin_long_job(self):
        process = self.start("--set", "emulate.unit_time=20ms", "--set", "job.epochs=100000", LINEAR)
        wait_for("rounds", lambda: process.poll() is not None or (self.folder / "run/rounds.jsonl").exists(), 90)
        if process.poll() is not None:
            self.fail("".join(process.communicate()))
        return process

    def test_a_host_without_the_package_is_one_line(self):
        empty = self.folder / "empty"
        empty.mkdir()
        self.assertRegex(self.refused("--env", f"PYTHONPATH={empty}"), r"lockstep: 10\.77\.0\.[23]: \S+python\S* has no lockstep: install ")

    def test_a_host_that_is_not_there_is_one_line(self):
        self.assertIn("lockstep: 10.77.0.9: ssh does not reach it: ", self.refused(hosts="10.77.0.2,10.77.0.9"))


@unittest.skipUnless(namespaces.can_be_made(), "network namespaces cannot be made here (needs root)")
class WithoutSshd(OverHosts, ClusterTest):
    def reach(self):
        there = {self.network.address(host): self.network.hosts[host] for host in HOSTS}
        stand_in = self.folder / "bin" / "ssh"
        stand_in.parent.mkdir()
        stand_in.write_text(SSH.format(python=sys.executable, hosts=json.dumps(there)))
        stand_in.chmod(0o755)
        self.path = f"{stand_in.parent}:{self.path}"

    test_a_host_that_is_not_there_is_one_line = None  # of ssh itself


@unittest.skipUnless(namespaces.can_be_made(), "network namespaces cannot be made here (needs root)")
@unittest.skipUnless(SSHD and shutil.which("ssh") and shutil.which("ssh-keygen"), "no sshd is installed (tools/install-deps hosts)")
class WithSshd(OverHosts, ClusterTest):
    """Its own configuration, host keys and user key; in a namespace of its own, so that its port is nobody else's."""

    def reach(self):
        pathlib.Path("/run/sshd").mkdir(exist_ok=True)  # as sshd's start script makes it
        for key in ("user", "lha", "lhb", "unknown"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / key], check=True)
        (self.folder / "authorized").write_text((self.folder / "user.pub").read_text())
        (self.folder / "known").write_text("".join(f"[{self.network.address(host)}]:2222 {(self.folder / f'{host}.pub').read_text()}"
                                                   for host in HOSTS[1:]))
        for host in HOSTS[1:]:
            config = self.folder / f"{host}.config"
            config.write_text(f"Port 2222\nListenAddress {self.network.address(host)}\nHostKey {self.folder / host}\nPidFile none\nUsePAM no\n"
                              f"AuthorizedKeysFile {self.folder / 'authorized'}\nStrictModes no\nPermitRootLogin prohibit-password\n"
                              "PasswordAuthentication no\n")
            with open(self.folder / f"{host}.log", "wb") as log:
                server = subprocess.Popen([*self.network.prefix(host), SSHD, "-D", "-e", "-f", config], stdin=subprocess.DEVNULL, stdout=log,
                                          stderr=log)
            self.addCleanup(server.wait)
            self.addCleanup(server.terminate)
            wait_for("sshd", lambda host=host, server=server: server.poll() is not None
                     or "listening" in (self.folder / f"{host}.log").read_text())
            if server.poll() is not None:
                self.skipTest("sshd does not run here: " + (self.folder / f"{host}.log").read_text().strip())
        self.options = [word for option in (f"UserKnownHostsFile={self.folder / 'known'}", "GlobalKnownHostsFile=/dev/null", "Port=2222",
                                            f"IdentityFile={self.folder / 'user'}", "IdentitiesOnly=yes", "StrictHostKeyChecking=yes", "User=root")
                        for word in ("--ssh-option", option)]
        words = [word if word != "--ssh-option" else "-o" for word in self.options]
        tried = namespaces.sh(*self.network.prefix("lhl"), "ssh", "-o", "BatchMode=yes", *words, "10.77.0.2", "true")
        if tried.returncode != 0:
            self.skipTest("this user cannot log in by a key here: " + tried.stderr.strip())

    def test_a_wrong_host_key_is_one_line(self):
        known = self.folder / "known"
        lines = known.read_text().splitlines()
        key = (self.folder / "unknown.pub").read_text().strip()
        known.write_text(f"{lines[0]}\n[10.77.0.3]:2222 {key}\n")
        self.assertEqual(self.refused(), "lockstep: 10.77.0.3: ssh does not reach it: Host key verification failed.\n")

    def test_a_key_that_is_not_allowed_is_one_line(self):
        (self.folder / "authorized").write_text((self.folder / "unknown.pub").read_text())
        self.assertRegex(self.refused(), r"lockstep: 10.77.0.[23]: ssh does not reach it: root@10.77.0.[23]: Permission denied \(publickey[a-z,-]*\)\.\n")


if __name__ == "__main__":
    main()
