"""The transports' conformance suite over UCX with rc, on the emulated RDMA device of one machine, and what the doctor says of that."""

import json
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
    @classmethod
    def setUpClass(cls):
        environment = {
            "UCX_TLS": os.environ.get("LOCKSTEP_RDMA_UCX_TLS", "rc,self"),
            "UCX_NET_DEVICES": os.environ.get("LOCKSTEP_RDMA_UCX_NET_DEVICES", "rxe0:1"),
            "UCX_IB_GID_INDEX": "0",
            "UCX_RC_RETRY_COUNT": "6",  # 7, UCX's default, is endless to Soft-RoCE: no peer would ever be found dead
            "LOCKSTEP_TEST_LISTEN_HOST": ADDRESS,
            "LOCKSTEP_TEST_EMULATED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = ["/usr/bin/python3", machine.HERE / "guest_conformance.py", BIN]
        with tempfile.TemporaryDirectory() as folder, \
                machine.Machine("a", command, folder, ADDRESS, environment, cores=2) as a:
            cls.status = a.wait(540)
            cls.log = a.text("log")
            cls.doctor = json.loads((pathlib.Path(folder) / "doctor.json").read_text())
        print(cls.log, flush=True)

    def test_over_rc(self):
        self.assertEqual(self.status, 0)
        passed = re.search(r"\[  PASSED  \] (\d+) tests", self.log)
        self.assertGreater(int(passed[1]), 30)
        # The suite moves some 400 MB and more; on TCP there are only those few who connect and go.
        moved = Counters(*map(int, re.search(r"^counters ([\d ]+)$", self.log, re.M)[1].split()))
        print(moved)
        self.assertGreater(moved.rdma_sent, 100_000)
        self.assertLess(moved.tcp_sent + moved.tcp_received, 2_000)

    def test_the_doctor_sees_the_device_and_that_it_works(self):
        port, = self.doctor["rdma"]
        self.assertEqual((port["device"], port["port"], port["state"], port["link_layer"], port["netdev"], port["address"]),
                         ("rxe0", 1, "ACTIVE", "Ethernet", "eth0", ADDRESS))
        self.assertIn("RoCE v2", {gid["type"] for gid in port["gids"]})
        speed, = (row for row in self.doctor["bandwidth"] if row["transport"] == "ucx rc over rxe0:1")
        self.assertEqual(speed["path"], "ucx: rc_verbs/rxe0:1 (RDMA)")
        self.assertGreater(speed["gb_per_s"], 0)
        problems = [line for line in self.doctor["lines"] if line["verdict"] == "problem"]
        self.assertEqual(problems, [])


if __name__ == "__main__":
    machine.skip_unless_available()
    unittest.main(verbosity=2)
