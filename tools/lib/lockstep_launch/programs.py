"""Finds the programs: in the build of the tree, or beside an installed launcher."""

import os
import shutil
import subprocess
from pathlib import Path

from command_line import bad_usage

TOP = Path(__file__).resolve().parents[3]  # of the tree, or where it is installed
FOLDER = TOP / "build" / "release" / "bin" if Path(__file__).resolve().parents[2].name == "tools" else TOP / "bin"


def find_program(name, build_dir):
    folders = [FOLDER] if build_dir is None else [Path(build_dir) / "bin", Path(build_dir)]
    for folder in folders:
        program = folder / name
        if os.path.isfile(program) and os.access(program, os.X_OK):
            return str(program)
    on_path = shutil.which(name) if build_dir is None else None
    if on_path is None:
        bad_usage(f"{name} is neither in {folders[0]} nor on PATH: build it with tools/test, or name its folder with --build-dir"
                  if build_dir is None else f"there is no {name} in {build_dir}")
    return on_path


def version_of(program):
    told = subprocess.run([program, "--version"], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if told.returncode != 0:
        bad_usage(f"{program} does not run: {told.stderr.strip()}")
    return told.stdout.split()[-1]
