"""Installs the build into an empty prefix and builds the examples, copied away from this tree, against what is there.

usage: installed_package_test.py CMAKE BUILD_DIR EXAMPLES_DIR CXX_COMPILER
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def run(*command):
    print("+", *command, flush=True)
    subprocess.run([str(word) for word in command], check=True, stdin=subprocess.DEVNULL)


def main():
    cmake, build_dir, examples_dir, compiler = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        prefix, sources, build = (Path(folder, name) for name in ("prefix", "examples", "build"))
        run(cmake, "--install", build_dir, "--prefix", prefix)
        shutil.copytree(examples_dir, sources)
        run(cmake, "-S", sources, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_PREFIX_PATH={prefix}",
            f"-DCMAKE_CXX_COMPILER={compiler}")
        run(cmake, "--build", build)
        for program in ("lockstep-coordinator", "lockstep-worker", "lockstep-launch"):
            run(prefix / "bin" / program, "--help")
    return 0


if __name__ == "__main__":
    sys.exit(main())
