"""Installs the build into an empty prefix and builds the examples, copied away from this tree, against what is there. The headers there
are the public ones with what they include, and no others; each compiles by itself.

usage: installed_package_test.py CMAKE BUILD_DIR EXAMPLES_DIR CXX_COMPILER
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def run(*command):
    print("+", *command, flush=True)
    subprocess.run([str(word) for word in command], check=True, stdin=subprocess.DEVNULL)


# What people begin with: docs/reference/c-interface.md, docs/guides/writing-a-policy.md, and what examples/ includes beside them.
PUBLIC = ("worker/runtime/session.h", "policies/plugin.h", "policies/waiting.h", "policies/work_none.h", "base/random.h")


def check_headers(include, compiler):
    installed = {str(path.relative_to(include)) for path in include.rglob("*.h")}
    if not (include.parent / "lockstep.h").is_file():
        sys.exit("lockstep.h is not installed")
    needed, left = set(), list(PUBLIC)
    while left:
        header = left.pop()
        if header not in needed:
            needed.add(header)
            left += re.findall(r'^#include "(.+)"', (include / header).read_text(), re.MULTILINE)
    if installed != needed:
        sys.exit(f"installed without need: {sorted(installed - needed)}; not installed: {sorted(needed - installed)}")
    for header in sorted(installed):
        run(compiler, "-std=c++20", "-fsyntax-only", f"-I{include}", "-include", header, "-x", "c++", "/dev/null")


def main():
    cmake, build_dir, examples_dir, compiler = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        prefix, sources, build = (Path(folder, name) for name in ("prefix", "examples", "build"))
        run(cmake, "--install", build_dir, "--prefix", prefix)
        check_headers(prefix / "include" / "lockstep", compiler)
        shutil.copytree(examples_dir, sources)
        run(cmake, "-S", sources, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_PREFIX_PATH={prefix}",
            f"-DCMAKE_CXX_COMPILER={compiler}")
        run(cmake, "--build", build)
        for program in ("lockstep-coordinator", "lockstep-worker", "lockstep-launch"):
            run(prefix / "bin" / program, "--help")
    return 0


if __name__ == "__main__":
    sys.exit(main())
