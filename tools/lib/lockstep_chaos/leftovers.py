"""Looks for things that a job must not leave behind: processes, temporary files, shared memory, network namespaces and mounts."""

import os
from pathlib import Path

from lockstep_chaos import processes
from namespaces import sh

SHARED = Path("/dev/shm")


def shared_memory():
    """The names in /dev/shm."""
    try:
        return set(os.listdir(SHARED))
    except OSError:
        return set()


def _somebody_has(path):
    """Whether a process has this file open or mapped; another job on this machine may have made it."""
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        try:
            if any(os.readlink(f"/proc/{entry}/fd/{number}") == str(path) for number in os.listdir(f"/proc/{entry}/fd")):
                return True
            if str(path) in Path(f"/proc/{entry}/maps").read_text(encoding="utf-8", errors="replace"):
                return True
        except OSError:
            continue
    return False


def of_job(mark, temporary, shared_before):
    """Lines. `temporary`: the job's TMPDIR, which must be empty by now. `shared_before`: shared_memory() at its start."""
    lines = [f"a process is left: {process.pid} {' '.join(process.command)[:120]}" for process in processes.marked(mark)]
    lines += [f"a temporary file is left: {name}" for name in sorted(os.listdir(temporary))]
    lines += [f"shared memory is left: {SHARED / name}" for name in sorted(shared_memory() - shared_before) if not _somebody_has(SHARED / name)]
    return lines


def of_machine(namespaces, mount):
    """Lines. `namespaces`: names that were made for the job; `mount`: the folder of its disk, or None."""
    there = {line.split()[0] for line in sh("ip", "netns", "list").stdout.splitlines() if line.strip()} if namespaces else set()
    lines = [f"a network namespace is left: {name}" for name in namespaces if name in there]
    return lines + ([f"a mount is left: {mount}"] if mount is not None and os.path.ismount(mount) else [])
