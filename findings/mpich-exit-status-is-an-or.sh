#!/usr/bin/env bash
# MPICH's mpiexec ends with the bitwise OR of its ranks' statuses: a status that no rank has.
#
# Versions: mpich 5.0.2 (PyPI).
# One would guess: the status of the first rank that failed, or 1.
# What happens: ranks that end with 4 and 3 make mpiexec end with 7, those that end with 1 and 2 make it end with 3.
# Source: src/pm/hydra/mpiexec/mpiexec.c, the end of main(): it ORs the wait statuses of all ranks.
# Why it matters: a launcher or scheduler that tells "retry" from "give up" by the status takes two failures for a third one.
#   Statuses that are single bits, or a status file for each rank, survive it.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_venv mpich==5.0.2
mpiexec=$(dirname "$python")/mpiexec
# status COMMAND: the status of mpiexec over two ranks that run COMMAND with their rank in $PMI_RANK.
status() {
  local status=0
  "$mpiexec" -n 2 bash -c "$1" >"$finding_folder/output" 2>&1 || status=$?
  echo "$status"
}

echo "mpich 5.0.2: mpiexec -n 2"
# shellcheck disable=SC2016
{
  finding_check "status for ranks that exit with 4 and 3" "$(status 'exit $((4 - PMI_RANK))')" 7
  finding_check "status for ranks that exit with 1 and 2" "$(status 'exit $((1 + PMI_RANK))')" 3
}
