#!/usr/bin/env bash
# A process that Popen has just started has, as others see it, no environment and no command line yet.
#
# Versions: psutil 7.2.2 (PyPI), CPython 3.11 and newer, Linux 6.x.
# One would guess: Popen waits until the program is there (it reports a program that does not exist), so psutil finds the child by
#   a variable in its environment at once.
# What happens: now and then environ() is {}, cmdline() is [] and no error is raised; a moment later both are whole. Of 5000 idle
#   starts some dozens to hundreds are seen so, with all processors busy more than half.
# Source: Popen waits for the end of a pipe that exec closes. Linux closes such descriptors (begin_new_exec) before the program's
#   loader says where arguments and environment lie (create_elf_tables sets mm->arg_start and mm->env_start), and /proc/PID/environ
#   and cmdline are empty until then.
# Why it matters: launchers and job managers find the processes of a job by a variable that all inherit. One look right after a
#   start misses a process, which then is left behind or counted as gone. Wait until the program says something.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_python psutil==7.2.2
cat >"$finding_folder/starts.py" <<'PYTHON'
import subprocess
import sys
import time

import psutil

empty = recovered = 0
for _ in range(5000):
    child = subprocess.Popen(["sleep", "100"], env={"JOB": "7"})
    process = psutil.Process(child.pid)
    if process.environ() == {}:
        empty += 1
        until = time.monotonic() + 10
        while process.environ().get("JOB") != "7" and time.monotonic() < until:
            pass
        recovered += process.environ().get("JOB") == "7" and process.cmdline() == ["sleep", "100"]
    child.kill()
    child.wait()
print(f"{empty} of 5000 were empty at first", file=sys.stderr)
print("some" if empty else "none", "all" if recovered == empty else "not all")
PYTHON

echo "psutil 7.2.2: environ() of a child right after Popen has returned"
finding_check "empty at first, whole a moment later" "$("$python" "$finding_folder/starts.py")" "some all"
