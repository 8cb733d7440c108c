"""Runs jobs until the time is over, prints how each has ended, and the tables at the end."""

import ctypes.util
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import namespaces
from command_line import asked_to_end
from lockstep_chaos import disk, job, options, plan, report

INTERRUPTED = 130


def abilities(chosen):
    """The abilities of this machine, of torch, hosts, disk and ucx. Says which it lacks, and what is left out for that."""
    able = set()
    torch = subprocess.run([chosen.python, "-c", "import torch, lockstep"], capture_output=True, check=False,
                           env={"PYTHONPATH": str(chosen.top / "python"), "LOCKSTEP_BUILD_DIR": str(chosen.build_dir), "PATH": "/usr/bin:/bin"})
    with tempfile.TemporaryDirectory(prefix="lockstep-chaos-") as folder:
        found = {
            "torch": (torch.returncode == 0, f"{chosen.python} cannot import torch and lockstep: all workers are C++"),
            "hosts": (namespaces.can_be_made(), "network namespaces cannot be made (needs root and ip): no faults of links"),
            "disk": (disk.can_be_made(folder), "a disk cannot be made (needs root, loop devices and e2fsprogs): no faults of disks"),
            "ucx": (ctypes.util.find_library("ucp") is not None, "there is no UCX: those jobs use mapped memory or TCP"),
        }
    for name, (can, otherwise) in found.items():
        if can:
            able.add(name)
        else:
            say(otherwise)
    return able


def say(text):
    print(text, flush=True)


def main():
    chosen = options.parse()
    chosen.out = Path(chosen.out).resolve()
    for number in asked_to_end():
        signal.signal(number, signal.default_int_handler)
    begun, results, status = time.monotonic(), [], 0
    try:
        able = abilities(chosen)
        number = chosen.job or 0
        while chosen.job is not None or time.monotonic() - begun < 60 * chosen.minutes:
            results.append(run_one(number, able, chosen))
            number += 1
            if chosen.job is not None:
                break
    except KeyboardInterrupt:
        say("interrupted: the job in work is ended and removed")
        status = INTERRUPTED
    except namespaces.CannotMake as error:
        print(f"chaos: {error}", file=sys.stderr)
        status = 1
    seconds = time.monotonic() - begun
    if results:
        say(report.text(results, seconds))
    failed = [result for result in results if result.findings]
    for result in failed:
        say(f"job {result.plan.job} failed; again with: {report.command(chosen, result.plan.job)}")
    if chosen.json:
        Path(chosen.json).write_text(report.as_json(chosen, results, seconds) + "\n", encoding="utf-8")
    return status or (1 if failed else 0)


def run_one(number, able, chosen):
    drawn = plan.draw(chosen.seed, number, able, chosen.without)
    say(f"job {number}: {drawn.title()}")
    told = (lambda text: say(f"    {text}")) if chosen.job is not None else (lambda text: None)
    result = job.run(drawn, chosen, told)
    say(f"job {number}: {report.line_of(result)}")
    for failure in result.failures:
        say(f"    resumed after {failure}")
    for finding in result.findings:
        say(f"    {finding}")
    if result.kept:
        say(f"    kept in {result.kept}; again with: {report.command(chosen, number)}")
    return result
