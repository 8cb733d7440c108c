"""guest_conformance.py FOLDER: in the emulated machine, what the programs of that folder say of RDMA: lockstep-doctor of the machine,
then the conformance tests of UCX as `auto` takes it, and what went which way meanwhile.
"""

import dataclasses
import pathlib
import subprocess
import sys

import counters

programs = pathlib.Path(sys.argv[1])
subprocess.run([programs / "lockstep-doctor", "--json", "/out/doctor.json", "--patience", "60s"], check=False, timeout=300)
before = counters.read()
done = subprocess.run([programs / "transport_conformance_test", "--gtest_filter=*/ucx_addresses"], check=False, timeout=500)
print("counters", *dataclasses.astuple(counters.read() - before), flush=True)
sys.exit(done.returncode)
