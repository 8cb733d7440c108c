# For findings with torch.distributed: to be sourced, bash only.
# shellcheck shell=bash
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

# finding_ranks COUNT PROGRAM: runs the Python program once for each rank, with RANK, WORLD_SIZE and FOLDER in its environment.
# Prints what rank 0 writes to its standard output. If rank 0 fails, prints what all ranks wrote to stderr and fails.
finding_ranks() {
  local rank ids=() folder
  folder=$(mktemp -d "$finding_folder/XXXXXX")
  for ((rank = $1 - 1; rank >= 0; --rank)); do
    # shellcheck disable=SC2154  # finding_python sets it
    RANK=$rank WORLD_SIZE=$1 FOLDER=$folder OMP_NUM_THREADS=1 "$python" -W ignore "$2" >"$folder/out.$rank" 2>"$folder/err.$rank" &
    ids+=("$!")
  done
  if ! wait "${ids[-1]}"; then
    cat "$folder"/err.* >&2
    return 1
  fi
  wait "${ids[@]}" || true
  cat "$folder/out.0"
}
