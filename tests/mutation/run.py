#!/usr/bin/env python3
"""Puts one fault after the other into a scratch copy of the tree and says which test finds it.

usage: tests/mutation/run.py [--only TEXT ...] [--scratch DIR] [-j N] [--list]

Nobody runs this by itself: it builds the core and its tests once for each fault, which takes a minute or two on a
machine that has nothing else to do. The copy is of what is committed. Status 1 when a fault is found by nothing, or
when the text that it replaces is not there: then mutations.py has to follow the program, which mutations_test.py sees
in each run of the tests.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable

from mutations import MUTATIONS, Mutation

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIMULATE = "lockstep-simulate"

# Name: (target, command in the build folder). The cheap ones first.
SUITES = {
    "unit": ("coordinator_core_test", ["bin/coordinator_core_test"]),
    "golden": ("coordinator_golden_test", ["bin/coordinator_golden_test"]),
    "conversations": ("conversation_golden_test", ["bin/conversation_golden_test"]),
    "worker": ("worker_core_test", ["bin/worker_core_test"]),
    "property": ("coordinator_simulation_test", ["bin/coordinator_simulation_test"]),
    "sim": ("simulate_test", ["bin/simulate_test"]),
    "faults": (SIMULATE, [f"bin/{SIMULATE}", "--faults", "--seeds", "1..250", "-j", "2"]),
}
TIME_LIMIT_S = 900


def run(command: list[str], cwd: pathlib.Path, log: pathlib.Path, limit: float | None = None) -> int:
    with log.open("w") as out:
        try:
            code = subprocess.run(command, cwd=cwd, stdout=out, stderr=subprocess.STDOUT, timeout=limit).returncode
            if code < 0:
                out.write(f"\nended by signal {-code}\n")
            return code
        except subprocess.TimeoutExpired:
            out.write("\nran out of time\n")
            return 124


def prepare(scratch: pathlib.Path, log: pathlib.Path) -> None:
    source = scratch / "tree"
    source.mkdir(parents=True, exist_ok=True)
    for old in source.iterdir():  # of an earlier run; what was built stays
        if old.name == "build":
            continue
        if old.is_dir():
            shutil.rmtree(old)
        else:
            old.unlink()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    # As of now, so that what an earlier run has changed is built again.
    subprocess.run(["tar", "-x", "-m", "-C", str(source)], input=archive, check=True)
    # As the caller's own build is configured, so that a compiler cache is of use.
    cache = ROOT / "build/release/CMakeCache.txt"
    same = []
    if cache.exists():
        for key in ("CMAKE_CXX_COMPILER_LAUNCHER", "CMAKE_EXE_LINKER_FLAGS"):
            found = re.search(rf"^{key}:\w+=(.+)$", cache.read_text(), re.MULTILINE)
            same += [f"-D{key}={found[1]}"] if found else []
    if run(["cmake", "--preset", "release", "-DLOCKSTEP_BUILD_TESTS=ON", *same], source, log):
        sys.exit(f"cannot configure: see {log}")


# What a test's own output says of the first failure.
def headline(text: str) -> str:
    for pattern in (r"\[  FAILED  \] (\S+)", r"^(seed \d+ fails: .*)$", r"(check failed.*|ran out of time)"):
        if found := re.search(pattern, text, re.MULTILINE | re.IGNORECASE):
            return found[1][:160]
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:160] if lines else "no output"


def first_failure(suites: Iterable[str], source: pathlib.Path, log: pathlib.Path, jobs: int) -> str | None:
    for suite in suites:
        target, command = SUITES[suite]
        if run(["cmake", "--build", "build/release", "-j", str(jobs), "--target", target], source, log):
            sys.exit(f"{target} does not build: see {log}")
        if run(command, source / "build/release", log, TIME_LIMIT_S):
            return f"{suite}: {headline(log.read_text(errors='replace'))}"
    return None


def misfit(mutation: Mutation, root: pathlib.Path) -> str | None:
    """Why it cannot be put into the tree at `root`."""
    file = root / mutation.file
    if not file.is_file():
        return f"{mutation.name}: there is no {mutation.file}"
    if mutation.new == mutation.old:
        return f"{mutation.name}: changes nothing"
    count = file.read_text().count(mutation.old)
    return None if count == 1 else f"{mutation.name}: its text stands {count} times in {mutation.file}"


def try_one(mutation: Mutation, source: pathlib.Path, log: pathlib.Path, jobs: int) -> str | None:
    """The suite that fails and how; None: nothing does."""
    file = source / mutation.file
    text = file.read_text()
    file.write_text(text.replace(mutation.old, mutation.new))
    try:
        return first_failure(mutation.run, source, log, jobs)
    finally:
        file.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="those whose name or file contains this; may be repeated")
    parser.add_argument("--scratch", type=pathlib.Path, default=ROOT / "build/mutation")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    wanted = options.only or [""]
    chosen = [m for m in MUTATIONS if any(text in m.name or text in m.file for text in wanted)]
    if options.list:
        for mutation in chosen:
            print(f"{mutation.file}: {mutation.name}")
        return 0
    options.scratch.mkdir(parents=True, exist_ok=True)
    log = options.scratch / "log"
    prepare(options.scratch, log)
    if misfits := [why for mutation in chosen if (why := misfit(mutation, options.scratch / "tree"))]:
        sys.exit("\n".join(misfits))
    # What fails by itself finds nothing.
    needed = {suite for mutation in chosen for suite in mutation.run}
    if failure := first_failure([s for s in SUITES if s in needed], options.scratch / "tree", log, options.jobs):
        sys.exit(f"fails without any fault: {failure}")
    alive = 0
    for mutation in chosen:
        began = time.monotonic()
        found = try_one(mutation, options.scratch / "tree", log, options.jobs)
        alive += found is None
        took = time.monotonic() - began
        print(f"{mutation.name} ({mutation.file}): {found or 'FOUND BY NOTHING'} [{took:.0f} s]", flush=True)
    print(f"{len(chosen)} faults, {len(chosen) - alive} found")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
