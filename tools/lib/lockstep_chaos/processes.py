"""Finds the processes of a job by a mark in their environment, which all that the launcher starts inherit, also through the stand-in for ssh."""

import dataclasses
import os
from pathlib import Path

MARK = "LOCKSTEP_CHAOS_JOB"


@dataclasses.dataclass(frozen=True)
class Found:
    pid: int
    command: tuple
    environment: dict

    @property
    def role(self):
        """coordinator, a worker's number, or None: another process."""
        name = os.path.basename(self.command[0]) if self.command else ""
        if name == "lockstep-coordinator":
            return "coordinator"
        if name == "lockstep-worker" and "--id" in self.command:
            return int(self.command[self.command.index("--id") + 1])
        if "LOCKSTEP_WORKER" in self.environment and name.startswith("python") and any(word.endswith("torch_script.py") for word in self.command[1:4]):
            return int(self.environment["LOCKSTEP_WORKER"])
        return None


def _state(pid):
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()[0]


def marked(mark):
    """Those that live, zombies aside."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        try:
            variables = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
            if wanted not in variables or _state(entry) in "ZX":
                continue
            command = Path(f"/proc/{entry}/cmdline").read_bytes().decode(errors="surrogateescape").split("\0")[:-1]
        except OSError:
            continue  # it has ended meanwhile, or is another user's
        pairs = (word.decode(errors="surrogateescape").partition("=") for word in variables if word)
        found.append(Found(int(entry), tuple(command), {name: value for name, _, value in pairs}))
    return found


def coordinator(mark):
    return next((process for process in marked(mark) if process.role == "coordinator"), None)


def workers(mark):
    """{number: process}."""
    return {process.role: process for process in marked(mark) if isinstance(process.role, int)}


def send(pid, number):
    """False: it has ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
