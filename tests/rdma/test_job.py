"""A training job over RoCEv2 between two emulated machines, with a worker that is late and one that is killed.

The counters of the RDMA device have to account for the bulk, those of TCP must not. LOCKSTEP_RDMA_UCX_TLS and
LOCKSTEP_RDMA_UCX_NET_DEVICES put something else in the place of RDMA, with which the test has to fail:
`LOCKSTEP_RDMA_UCX_TLS=tcp LOCKSTEP_RDMA_UCX_NET_DEVICES=eth0 ctest -R rdma_job`.
"""

import json
import os
import pathlib
import secrets
import socket
import sys
import tempfile
import unittest

import machine
from counters import Counters, why_not_rdma

sys.path.insert(0, str(machine.HERE.parent / "cluster"))

from harness import BIN, check_epochs  # noqa: E402

ROUNDS = 32
KILL_AFTER = 20
TRAIN = 1024
FEATURES = 1024
WIDTH = 512
CLASSES = 10
PROBE_BYTES = 8 * (256 << 10)  # what a worker fetches from each peer when they have connected
GRADIENT_BYTES = 4 * (FEATURES * WIDTH + WIDTH + WIDTH * CLASSES + CLASSES)

PLAN = {
    "kill_after": KILL_AFTER,
    "slowdown": "worker=2,factor=5",
    "options": {
        "job.rounds": ROUNDS, "job.global_batch": 12, "job.units": 6, "job.min_workers": 2,
        "model.widths": WIDTH, "data.synthetic_train": TRAIN, "data.synthetic_test": 64, "data.synthetic_features": FEATURES,
        "policy.name": "backup", "backup.workers": 1, "emulate.unit_time": "10ms", "exchange.transport": "auto",
    },
}


class RdmaJob(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        environment = {
            "UCX_TLS": os.environ.get("LOCKSTEP_RDMA_UCX_TLS", "rc,self"),
            "UCX_NET_DEVICES": os.environ.get("LOCKSTEP_RDMA_UCX_NET_DEVICES", "rxe0:1"),
            "UCX_IB_GID_INDEX": "0",
            "UCX_RC_RETRY_COUNT": "6",  # 7, UCX's default, is endless to Soft-RoCE: no peer would ever be found dead
            "LOCKSTEP_BIN": BIN,
            "PYTHONDONTWRITEBYTECODE": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "secret").write_text(secrets.token_hex(32))
            (folder / "plan.json").write_text(json.dumps(PLAN))
            script = machine.HERE / "guest_job.py"
            ends = socket.socketpair()
            with machine.Machine("a", ["/usr/bin/python3", script, "a"], folder, "192.168.77.1", environment, ends[0]) as a, \
                    machine.Machine("b", ["/usr/bin/python3", script, "b"], folder, "192.168.77.2", environment, ends[1]) as b:
                for end in ends:
                    end.close()
                cls.statuses = [b.wait(500), a.wait(60)]
                cls.log_a, cls.log_b = a.text("log"), b.text("log")
            print(f"--- machine a\n{cls.log_a}\n--- machine b\n{cls.log_b}", flush=True)
            if cls.statuses != [0, 0]:
                raise AssertionError(f"the machines' commands ended with {cls.statuses}")
            moved = {path: Counters(**json.loads((folder / path).read_text()))
                     for path in ("a.moved", "b.moved", "b.moved_before_the_kill")}
            cls.moved_a, cls.moved, cls.moved_before = moved.values()
            cls.summary = json.loads((folder / "run/summary.json").read_text())
            cls.rounds = [json.loads(line) for line in (folder / "run/rounds.jsonl").read_text().splitlines()]
        cls.late = [line for line in cls.rounds[:KILL_AFTER] if 2 not in {c["worker"] for c in line["contributors"]}]
        print(f"a gradient: {GRADIENT_BYTES} bytes; {len(cls.rounds)} rounds, worker 2 late in {len(cls.late)} of the "
              f"first {KILL_AFTER}")
        print(f"machine a, whole job: {cls.moved_a}")
        print(f"machine b, whole job: {cls.moved}")
        print(f"machine b, before worker 1 was killed: {cls.moved_before}", flush=True)

    def test_the_job_completes_without_the_killed_worker(self):
        self.assertEqual(self.summary["status"], "completed")
        self.assertEqual(len(self.rounds), ROUNDS)
        check_epochs(self, self.rounds, TRAIN)
        self.assertEqual({c["worker"] for c in self.rounds[-1]["contributors"]}, {0, 2})

    def test_paths_are_the_real_ones(self):
        paths = {(path["from"], path["to"]): path["path"] for path in self.summary["paths"]}
        self.assertEqual(paths[0, 2], "ucx: rc_verbs/rxe0:1 (RDMA)")
        self.assertEqual(paths[2, 0], "ucx: rc_verbs/rxe0:1 (RDMA)")
        self.assertIn("worker 0: path ucx: rc_verbs/rxe0:1 (RDMA)", self.log_b)
        self.assertNotIn("was to be expected", self.log_b)

    def test_the_bulk_went_by_rdma_and_not_by_tcp(self):
        # Whatever it owns, worker 2 takes in at least one gradient's bytes for each round that it applies.
        self.assertEqual(why_not_rdma(self.moved, ROUNDS * GRADIENT_BYTES), [])

    def test_late_gradients_stayed_where_they_were(self):
        self.assertGreater(len(self.late), KILL_AFTER / 2)
        # Worker 2 owns a third at most. Its sums of that go to the two others; the other two thirds of its gradient do if fetched,
        # as they are in the rounds in which it is not late.
        sums = KILL_AFTER * GRADIENT_BYTES * 2 / 3
        late = len(self.late) * GRADIENT_BYTES * 2 / 3
        in_time = (KILL_AFTER - len(self.late)) * GRADIENT_BYTES * 2 / 3
        self.assertLess(self.moved_before.wire_sent, 2 * PROBE_BYTES + sums + in_time + late / 2)


if __name__ == "__main__":
    machine.skip_unless_available()
    unittest.main(verbosity=2)
