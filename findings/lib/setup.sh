# Shared by the scripts of findings/: to be sourced, bash only.
# shellcheck shell=bash

finding_folder=$(mktemp -d)
trap 'rm -rf "$finding_folder"' EXIT

# finding_venv NAME==VERSION ...: installs these packages into a new virtual environment and sets $python to its interpreter.
finding_venv() {
  python3 -m venv "$finding_folder/venv"
  python=$finding_folder/venv/bin/python
  "$python" -m pip install --quiet --disable-pip-version-check "$@"
}

# finding_python NAME==VERSION ...: the same for large packages, but takes the interpreter $PYTHON if that has all of them.
finding_python() {
  if [[ -n "${PYTHON:-}" ]] && "$PYTHON" - "$@" <<'PYTHON'; then
import importlib.metadata
import sys

missing = []
for requirement in sys.argv[1:]:
    name, version = requirement.split("==")
    try:
        if importlib.metadata.version(name).split("+")[0] != version:
            missing.append(requirement)
    except importlib.metadata.PackageNotFoundError:
        missing.append(requirement)
if missing:
    sys.exit(f"PYTHON lacks {' '.join(missing)}: installing into a new virtual environment")
PYTHON
    python=$PYTHON
  else
    finding_venv "$@"
  fi
}

# finding_check WHAT SEEN EXPECTED: prints what was seen, and ends with status 1 if the finding claims something else.
finding_check() {
  printf '%s: %s\n' "$1" "$2"
  if [[ "$2" != "$3" ]]; then
    printf '%s: the behaviour has changed: %s was %s\n' "${0##*/}" "$1" "$3" >&2
    exit 1
  fi
}
