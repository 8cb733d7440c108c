"""The transports' conformance suite over UCX with rc, on the emulated RDMA device of one machine."""

import os
import pathlib
import re
import tempfile
import unittest

import machine
from counters import Counters

BIN = pathlib.Path(os.environ.get("LOCKSTEP_BIN", machine.HERE.parents[1] / "build/release/bin"))
ADDRESS = "192.168.77.1"


class Conformance(unittest.TestCase):
    def test_over_rc(self):
        environment = {
            "UCX_TLS": os.environ.get("LOCKSTEP_RDMA_UCX_TLS", "rc,self"),
            "UCX_NET_DEVICES": os.environ.get("LOCKSTEP_RDMA_UCX_NET_DEVICES", "rxe0:1"),
            "UCX_IB_GID_INDEX": "0",
            "LOCKSTEP_TEST_LISTEN_HOST": ADDRESS,
            "LOCKSTEP_TEST_SLOW": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = ["/usr/bin/python3", machine.HERE / "guest_conformance.py", BIN / "transport_conformance_test"]
        with tempfile.TemporaryDirectory() as folder, \
                machine.Machine("a", command, folder, ADDRESS, environment, cores=2) as a:
            status = a.wait(540)
            log = a.text("log")
        print(log, flush=True)
        self.assertEqual(status, 0)
        passed = re.search(r"\[  PASSED  \] (\d+) tests", log)
        self.assertGreater(int(passed[1]), 30)
        # The suite moves some 400 MB and more; on TCP there are only those few who connect and go.
        moved = Counters(*map(int, re.search(r"^counters ([\d ]+)$", log, re.M)[1].split()))
        print(moved)
        self.assertGreater(moved.rdma_sent, 100_000)
        self.assertLess(moved.tcp_sent + moved.tcp_received, 2_000)


if __name__ == "__main__":
    machine.skip_unless_available()
    unittest.main(verbosity=2)
