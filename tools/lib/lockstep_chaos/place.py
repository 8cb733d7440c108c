"""Where one job runs: its folder, processes, disk and hosts. Made before it and removed after it, whatever happens."""

import collections
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lockstep_chaos import leftovers, links, processes
from lockstep_chaos.disk import Disk
from lockstep_chaos.plan import BATCH, SAMPLES
from lockstep_launch.processes import die_with_launcher
from namespaces import sh

RESTARTS = 1000  # of workers and of the coordinator: a schedule never uses them up
KILLED_S = 20.0  # for killed processes to disappear
SCRIPT = Path(__file__).resolve().with_name("torch_script.py")


class CountedHosts(links.Hosts):
    """Faults of one link may overlap: the last one's end restores it."""

    def __init__(self, count):
        super().__init__(count)
        self.counts = collections.Counter()

    def lose(self, sender, receiver):
        super().lose(sender, receiver)
        self.counts[sender, receiver] += 1

    def restore(self, sender, receiver):
        self.counts[sender, receiver] -= 1
        if self.counts[sender, receiver] == 0:
            super().restore(sender, receiver)

    def slow(self, host, rate):
        super().slow(host, rate)
        self.counts[host] += 1

    def unslow(self, host):
        self.counts[host] -= 1
        if self.counts[host] == 0:
            super().unslow(host)


class Place:
    def __init__(self, plan, options):
        self.plan, self.options, self.tools = plan, options, options.top / "tools"
        self.mark = f"{os.getpid()}-{plan.seed}-{plan.job}"
        self.disk = self.hosts = self.launcher = None
        self.made = contextlib.ExitStack()

    def __enter__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="lockstep-chaos-"))
        try:
            self.temporary = self.folder / "tmp"
            self.temporary.mkdir()
            self.disk = self.made.enter_context(Disk(self.folder)) if self.plan.disk else None
            self.hosts = self.made.enter_context(CountedHosts(len(self.plan.hosts))) if self.plan.hosts else None
            self.run_dir = (self.disk.path if self.disk else self.folder) / "run"
            self.shared_before = leftovers.shared_memory()
            self._write_files()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.end_processes()
        self.made.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write_files(self):
        sections = collections.defaultdict(list)
        for key, value in self.plan.settings.items():
            section, name = key.split(".", 1)
            sections[section].append(f"{name} = {value}\n")
        text = "".join(f"[{section}]\n{''.join(lines)}\n" for section, lines in sections.items())
        (self.folder / "job.ini").write_text(text, encoding="utf-8")
        for number in range(self.plan.workers if self.plan.torch else 0):
            os.mkfifo(self.folder / f"hold-{number}")
        if self.hosts:
            ssh = self.folder / "bin" / "ssh"
            ssh.parent.mkdir()
            ssh.write_text(links.SSH.format(python=sys.executable, hosts=self.hosts.namespaces_of()), encoding="utf-8")
            ssh.chmod(0o755)

    # --- the launcher

    def start(self, log, resume):
        plan, options = self.plan, self.options
        words = ["--run-dir", self.run_dir, "--restart-workers", RESTARTS, "--restart-coordinator", RESTARTS, "--config", self.folder / "job.ini"]
        words += ["--resume"] if resume else []
        if self.hosts:
            addresses = [self.hosts.address(host) for host in self.hosts.job_hosts()]
            words += ["--hosts", ",".join(f"{address}:{count}" for address, count in zip(addresses, plan.hosts)), "--cwd", self.folder]
            words += ["--python", options.python if plan.torch else sys.executable, "--http", f"{addresses[0]}:0"]
        else:
            words += ["-n", plan.workers, "--http", "127.0.0.1:0"]
        if plan.torch:
            command = [options.python, "-B", "-m", "lockstep", "run", *words, SCRIPT, *self.script_arguments()]
        else:
            command = [sys.executable, "-B", self.tools / "launch", "--build-dir", options.build_dir, *words]
        kept = {key: value for key, value in os.environ.items() if not key.startswith("LOCKSTEP_")}
        environment = {**kept, processes.MARK: self.mark, "TMPDIR": str(self.temporary), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "ignore", "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "torch"),
                       "OMP_NUM_THREADS": "1", "PYTHONPATH": str(options.top / "python"), "LOCKSTEP_BUILD_DIR": str(options.build_dir),
                       "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        with open(log, "wb") as out:
            self.launcher = subprocess.Popen([*self.prefix(), *map(str, command)], stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=self.folder,
                                             env=environment, start_new_session=True, preexec_fn=die_with_launcher(os.getpid()))
        return self.launcher

    def script_arguments(self):
        """Of torch_script.py."""
        return [SAMPLES, BATCH, self.plan.settings["job.epochs"], self.folder]

    def runs(self):
        return self.launcher is not None and self.launcher.poll() is None

    def prefix(self):
        """Before a command that reaches the coordinator."""
        return self.hosts.prefix(links.LAUNCHER) if self.hosts else []

    def namespace_of(self, pid):
        """Before a command that is to run where this process does."""
        name = sh("ip", "netns", "identify", pid).stdout.strip() if self.hosts else ""
        return ["ip", "netns", "exec", name] if name else []

    def workers_cut_off(self, *hosts):
        """The numbers of the workers on these hosts, as the launcher places them. Those beside the coordinator, on the first host, are left out:
        a link is no reason to lose them."""
        found, first = set(), 0
        for number, (host, count) in enumerate(zip(self.hosts.job_hosts(), self.plan.hosts)):
            if host in hosts and number > 0:
                found.update(range(first, first + count))
            first += count
        return found

    # --- the end

    def wait_for_end(self, seconds):
        """Until no process of the job is left; False: after so long some are."""
        deadline = time.monotonic() + seconds
        while processes.marked(self.mark):
            if time.monotonic() > deadline:
                return False
            self.pause(0.05)
        return True

    def end_processes(self):
        if self.launcher is not None and self.launcher.poll() is None:
            self.launcher.kill()
        deadline = time.monotonic() + KILLED_S
        while (left := processes.marked(self.mark)) and time.monotonic() < deadline:
            for process in left:
                processes.send(process.pid, signal.SIGKILL)
            self.pause(0.05)
        if self.launcher is not None:
            self.launcher.wait()

    def pause(self, seconds):
        """Returns at once when the launcher ends meanwhile; after that it takes the time."""
        if self.runs():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.launcher.wait(seconds)
        else:
            time.sleep(seconds)

    def keep(self, folder):
        """Moves the run directory and the logs there, out of what is removed."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if self.run_dir.is_dir():
            shutil.copytree(self.run_dir, folder / "run")
        for path in [self.folder / "job.ini", *self.folder.glob("*.log"), *self.folder.glob("schedule*")]:
            if path.is_file():
                shutil.copy(path, folder)
