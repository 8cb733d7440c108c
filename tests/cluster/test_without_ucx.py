"""The same programs where there is no UCX: it is hidden from the dynamic loader, by an auditor of it (LOCKSTEP_HIDE_UCX)."""

import json
import os
import subprocess

from harness import BIN, ClusterTest, Job, main
from test_paths import can_make_hosts, host, with_rdma_port

HIDDEN = {"LD_AUDIT": os.environ["LOCKSTEP_HIDE_UCX"]}
REASON = "UCX is not on this machine: libucp.so.0: cannot open shared object file"  # the loader may go on


class WithoutUcx(ClusterTest):
    def test_a_job_runs_over_tcp(self):
        with Job(2, exchange__mapping="off") as job:
            job.start(environment=HIDDEN)
            job.finish()
            for index in range(2):
                self.assertEqual(job.wait(f"worker{index}"), 0)
                self.assertRegex(job.log(f"worker{index}"), r"worker \d: path tcp, ")

    def test_so_does_one_in_c_by_the_shared_library(self):
        with Job(1, job__global_batch=64) as job:
            job.start_coordinator()
            job._start("worker0", [BIN / "lockstep-c-worker", job.address], HIDDEN)
            job.finish()
            self.assertEqual(job.wait("worker0"), 0, job.log("worker0"))

    def test_a_host_with_rdma_goes_on_over_tcp_and_says_why(self):
        if not can_make_hosts():
            self.skipTest("no mount namespaces may be made here")
        with Job(2) as job:
            job.start_coordinator()
            job.start_worker(0, prefix=host(job, "a", with_rdma_port(job.folder)), environment=HIDDEN)
            job.start_worker(1, prefix=host(job, "b"), environment=HIDDEN)
            self.assertEqual(job.finish()["transport"], "tcp")
            self.assertIn(f"the job uses tcp, because worker 0 does not have ucx: {REASON}", job.log("coordinator"))
            self.assertRegex(job.log("worker0"), f"worker 1: RDMA was to be expected, but {REASON}.*; lockstep-doctor tells")
            self.assertNotIn("was to be expected", job.log("worker1"))

    def test_ucx_by_its_name_ends_with_one_line(self):
        with Job(1, exchange__transport="ucx") as job:
            job.start(environment=HIDDEN)
            self.assertEqual(job.wait("worker0"), 2)
            errors = [line for line in job.log("worker0").splitlines() if "error" in line or "lockstep-worker:" in line]
            self.assertEqual(len(errors), 1, job.log("worker0"))
            self.assertIn(REASON, errors[0])

    def test_the_doctor_tells_and_has_a_remedy(self):
        done = subprocess.run([BIN / "lockstep-doctor", "--json", "-"], capture_output=True, text=True, check=False,
                              env={**os.environ, **HIDDEN})
        found = json.loads(done.stdout)
        self.assertIsNone(found["ucx"]["version"])
        self.assertIn(REASON, found["ucx"]["error"])
        line = next(line for line in found["lines"] if (line["section"], line["name"]) == ("versions", "UCX"))
        self.assertEqual(line["value"], found["ucx"]["error"])
        self.assertIn("libucx0", line["remedy"])
        self.assertNotIn("ucx", {row["transport"] for row in found["bandwidth"]})


if __name__ == "__main__":
    main()
