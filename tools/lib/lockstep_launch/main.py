"""Starts a job and stays until its end."""

import os
import secrets
import shutil
import subprocess
import tempfile

from command_line import bad_usage
from lockstep_launch.hosts_job import HostsJob
from lockstep_launch.job import Job
from lockstep_launch.options import checked, make_parser, parse_arguments
from lockstep_launch.programs import find_program
from lockstep_launch.screen import ESCAPES

__all__ = ["checked", "launch", "main", "make_parser"]  # for tools/launch and `lockstep run`
SECRET_BYTES = 32


class JobSecret:
    """A secret for one run, in a folder that only this user can read: no other user of the machine can join the job or change it."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="lockstep-")  # 0700
        self.path = os.path.join(self.folder, "secret")
        with open(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))

    def remove(self):
        shutil.rmtree(self.folder, ignore_errors=True)


def main():
    return launch(parse_arguments())


def launch(options):
    coordinator = find_program("lockstep-coordinator", options.build_dir)
    here = options.hosts is None
    worker = find_program("lockstep-worker", options.build_dir) if here and not options.program else None
    check_slowdowns(options, coordinator)
    try:
        secret = JobSecret()
    except OSError as error:
        bad_usage(f"the secret of this run cannot be written: {error}")
    try:
        return run(Job(options, coordinator, worker, secret.path) if here else HostsJob(options, coordinator, secret.path))
    finally:
        secret.remove()


def check_slowdowns(options, coordinator):
    """Refuses a mistake before anything is made or started. Files of traces are read on the workers' hosts."""
    specs = [spec for spec in options.slowdown if options.hosts is None or "file=" not in spec]
    if not specs:
        return
    try:
        done = subprocess.run([coordinator, *(f"--check-slowdown={spec}" for spec in specs)], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, errors="replace", check=False)
    except OSError as error:
        bad_usage(f"{coordinator}: {error.strerror}")
    if done.returncode != 0:
        line = (done.stderr.strip() or f"{coordinator} ended with status {done.returncode}").splitlines()[-1]
        bad_usage(ESCAPES.sub("", line).removeprefix("lockstep-coordinator: ").replace("--check-slowdown", "--slowdown", 1))


def run(job):
    try:
        return job.run()
    finally:
        job.kill_all()
        job.close()
