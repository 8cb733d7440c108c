"""Checks a job that has ended, by its run directory, its logs and its exit status. Each function returns lines, one for each
thing that is wrong.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2]
DIGEST = re.compile(r"this worker has the job's last parameters, SHA-256 (\w+)")
# Lines that no process may write, whatever happens to it.
CRASHES = (
    (re.compile(r"Traceback \(most recent call last\)"), "a traceback"),
    (re.compile(r"check failed|[Aa]ssertion .* failed"), "a failed check"),
    (re.compile(r"terminate called|Segmentation fault|core dumped|double free|corrupted (size|double-linked)"), "a crash"),
    (re.compile(r"was ended by SIG(?!KILL|TERM\b)[A-Z]+"), "an end by a signal that nobody sent"),
    (re.compile(r"(WARNING|ERROR): [A-Za-z]+Sanitizer"), "a sanitizer's report"),
    (re.compile(r"broke the protocol"), "a broken protocol"),
    (re.compile(r"Fatal Python error"), "a crash of Python"),
)
# The lines with which the documents (docs/guides/resume.md, docs/reference/operations.md) let a job fail, the kinds of faults of which one
# must have been there, and a fact that must hold beside it (or None).
ALL_HIT = "each worker was hit by a fault not long before"
SHARDED = "no worker holds all of the optimizer's state"
LOST_ALL = ("kill-worker", "stop-worker", "hold-interpreter", "cut-link", "one-way-link", "drain-worker")
DISKS = ("full-disk", "read-only-disk")
ALLOWED = (
    (re.compile(r"no worker is left: the job ends|no worker holds the parameters any more(?!: the coordinator)"), LOST_ALL, ALL_HIT),
    (re.compile(r"the last copy of shard \d+ of the optimizer's state is lost"), (*LOST_ALL, "kill-coordinator"), SHARDED),
    (re.compile(r"No space left on device|Read-only file system|Input/output error"), DISKS, None),
)


def records(run_dir, samples):
    """Each sample of each finished epoch exactly once."""
    done = subprocess.run([sys.executable, str(TOOLS / "check-run"), str(run_dir), "--samples", str(samples)], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return []
    return [f"check-run: {line.removeprefix('check-run: ')}" for line in (done.stdout + done.stderr).splitlines()] or [f"check-run ended with status {done.returncode}"]


def summary(run_dir):
    """The summary, or None."""
    try:
        return json.loads((Path(run_dir) / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def completed(run_dir, epochs):
    """The job says that it has done all that was wanted."""
    found = summary(run_dir)
    if found is None:
        return ["there is no readable summary.json"]
    lines = [] if found["status"] == "completed" else [f"summary.json: {found['status']}: {found.get('reason')}"]
    lines += [] if found["epochs"] == epochs else [f"summary.json: {found['epochs']} epochs of {epochs}"]
    return lines + ([] if found["samples_dropped"] == 0 else [f"summary.json: {found['samples_dropped']} samples were dropped"])


def digests(run_dir, log):
    """All workers that were there at the end have the parameters of which summary.json has the digest. `log`: the last run's, with the lines
    of the workers."""
    found = summary(run_dir) or {}
    digest = found.get("params_digest")
    if digest is None:
        return ["summary.json has no params_digest"]
    lines = [f"summary.json: the parameters of worker {worker} differ" for worker in found.get("digest_differs", [])]
    told = DIGEST.findall(log)
    lines += [f"a worker has the parameters {other}, and summary.json {digest}" for other in sorted(set(told) - {digest, "not"})]
    return lines if told else [*lines, "no worker says which parameters it has"]


def logs(text):
    """No crash, no traceback."""
    return [f"{what}: {line.strip()[:200]}" for line in text.splitlines() for pattern, what in CRASHES if pattern.search(line)]


def allowed_failure(text, kinds, facts):
    """Whether the documents let a job fail with this output after faults of these kinds."""
    return any(pattern.search(text) and any(kind in kinds for kind in causes) and fact in (None, *facts) for pattern, causes, fact in ALLOWED)
