"""guest_conformance.py PROGRAM: in the emulated machine, runs the conformance tests that are UCX's and says what went which way."""

import dataclasses
import subprocess
import sys

import counters

before = counters.read()
done = subprocess.run([sys.argv[1], "--gtest_filter=*/ucx"], check=False, timeout=500)
print("counters", *dataclasses.astuple(counters.read() - before), flush=True)
sys.exit(done.returncode)
