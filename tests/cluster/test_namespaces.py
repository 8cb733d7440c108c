"""Three hosts on one machine: network namespaces joined by veth. Needs root; skipped in plain words without."""

import json
import re
import signal
import statistics
import subprocess
import sys
import unittest

from harness import BIN, TOOLS, ClusterTest, Job, check_epochs, check_same_bits, main, wait_for

sys.path.insert(0, str(TOOLS / "lib"))
import namespaces  # noqa: E402
from namespaces import sh  # noqa: E402


def Network():
    """Of the coordinator and two workers' hosts."""
    return namespaces.Network(("lsc", "lsa", "lsb"))


@unittest.skipUnless(namespaces.can_be_made(), "network namespaces cannot be made here (needs root)")
class Namespaces(ClusterTest):
    def secret(self, job):
        path = job.folder / "secret"
        path.write_text("s" * 40)
        path.chmod(0o600)
        return path

    def run_job(self, network, transport, **options):
        with Job(3, listen="10.77.0.1:0", prefix=network.prefix("lsc"), exchange__transport=transport, **options) as job:
            secret = self.secret(job)
            job.coordinator_args += ["--secret-file", secret]
            job.start_coordinator()
            for index, host in enumerate(("lsa", "lsa", "lsb")):
                job.start_worker(index, "--secret-file", secret, prefix=network.prefix(host))
            summary = job.finish(120)
            return summary, job.rounds()

    def test_over_ucx_and_tcp(self):
        with Network() as network:
            runs = {}
            for transport in ("ucx", "tcp"):
                summary, rounds = self.run_job(network, transport)
                self.assertEqual(summary["status"], "completed")
                self.assertEqual(summary["transport"], transport)
                kinds = {(path["from"], path["to"]): path["path"].split(":")[0] for path in summary["paths"]}
                self.assertEqual(kinds[0, 1], "mapped")  # the same host
                self.assertEqual(kinds[0, 2], transport)
                runs[transport] = (rounds, summary)
            check_same_bits(self, runs)

    def test_slow_link_makes_a_straggler(self):
        with Network() as network:
            # 0.8 MB of its gradient have to go out in each round: two thirds of a second at the least, however busy this machine is.
            network.shape("lsb", "10mbit", latency="10s")
            for transport in ("ucx", "tcp"):
                with self.subTest(transport=transport):
                    self.slow_link_over(network, transport)

    def slow_link_over(self, network, transport):
        """First all wait for it, and it loses its share; then a policy that waits for two of three leaves it out."""
        with Job(3, listen="10.77.0.1:0", prefix=network.prefix("lsc"), exchange__transport=transport, policy__name="full",
                 job__rounds=1000000, job__units=6, model__widths="512,256", data__synthetic_features=256,
                 emulate__unit_time="5ms") as job:
            secret = self.secret(job)
            job.coordinator_args += ["--secret-file", secret, "--http", "10.77.0.1:0"]
            job.start_coordinator()
            for index, host in enumerate(("lsa", "lsa", "lsb")):
                job.start_worker(index, "--secret-file", secret, prefix=network.prefix(host))

            def http():  # there are rounds, so the file is there
                return (job.run_dir / "http.address").read_text().strip()

            def owns(worker):
                done = sh(*network.prefix("lsc"), TOOLS / "ctl", "--http", http(), "--json", "status")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                members = json.loads(done.stdout)["members"]
                return not members or next(member for member in members if member["worker"] == worker)["owner"]

            def waited_for_all():
                return [line for line in job.rounds() if {c["worker"] for c in line["contributors"]} == {0, 1, 2}]
            # By the rule for slow links; on a busy machine now and then because it is silent for too long, as an owner.
            wait_for("the slow link to cost its owner's share", lambda: waited_for_all() and not owns(2), 120)
            # Each of them has waited for the link, after the computing was done; but not one that was made again without worker 2, when it
            # was silent for too long, nor those in which it caught up then and had no units.
            waited = waited_for_all()
            late = [line["times"]["delivered"]["2"] - line["times"]["ready"]["2"] for line in waited]
            in_time = [line["times"]["delivered"][worker] - line["times"]["ready"][worker] for line in waited for worker in "01"]
            self.assertGreater(statistics.median(late), statistics.median(in_time), (late, in_time))
            self.assertFalse([line for line in job.rounds() if 2 in line["excluded"] and len(line["attempts"]) <= 1])

            done = sh(*network.prefix("lsc"), TOOLS / "ctl", "--http", http(), "--secret-file", secret, "policy", "backup")
            self.assertEqual((done.returncode, done.stderr), (0, ""))

            def left_out():
                return [line for line in job.rounds() if line["policy"].startswith("backup") and 2 in line["excluded"]]
            wait_for("a round without the late contribution", left_out, 120)
            for line in left_out():
                self.assertNotIn("2", line["times"]["delivered"])
                self.assertEqual({c["worker"] for c in line["contributors"]}, {0, 1})
            job.processes["coordinator"].send_signal(signal.SIGINT)
            self.assertEqual(job.wait("coordinator"), 130)
            summary = job.summary()
            self.assertEqual((summary["status"], summary["transport"]), ("interrupted", transport))
            kinds = {straggler["worker"]: straggler["kind"] for straggler in summary["stragglers"]}
            self.assertEqual(kinds.get(2), "link", summary["stragglers"])
            check_epochs(self, job.rounds(), 2048)

    def test_hosts_that_do_not_answer_are_named_within_the_time_out(self):
        with Network() as network:
            # The worker on lsb says that peers reach it at an address to which nobody answers.
            network.inside(network.hosts["lsb"], "ip", "addr", "add", "10.78.0.3/24", "dev", "eth0")
            network.inside(network.hosts["lsa"], "ip", "route", "add", "10.78.0.0/24", "via", "10.77.0.9")
            network.inside(network.hosts["lsa"], "ip", "neigh", "add", "10.77.0.9", "lladdr", "02:00:00:00:00:09", "dev", "eth0")
            with Job(2, listen="10.77.0.1:0", prefix=network.prefix("lsc"), liveness__timeout="4s") as job:
                secret = self.secret(job)
                job.coordinator_args += ["--secret-file", secret]
                job.start_coordinator()
                job.start_worker(0, "--secret-file", secret, prefix=network.prefix("lsa"))
                job.start_worker(1, "--secret-file", secret, "--data-host", "10.78.0.3", prefix=network.prefix("lsb"))
                self.assertEqual(job.wait(seconds=80), 1)
                log = job.log("coordinator")
                self.assertIn("info the job uses tcp, because worker 0 does not have ucx: its host has no active RDMA port", log)
                self.assertIn("worker 0 cannot reach worker 1 over tcp", log)
                self.assertNotIn("did not connect", log)

    def test_a_job_goes_on_without_who_is_not_reached(self):
        # The worker on lsb says that peers reach it at an address to which nobody answers; without it there are enough.
        with Network() as network:
            network.inside(network.hosts["lsb"], "ip", "addr", "add", "10.78.0.3/24", "dev", "eth0")
            for host in ("lsa", "lsc"):
                network.inside(network.hosts[host], "ip", "route", "add", "10.78.0.0/24", "via", "10.77.0.9")
                network.inside(network.hosts[host], "ip", "neigh", "add", "10.77.0.9", "lladdr", "02:00:00:00:00:09", "dev", "eth0")
            with Job(3, listen="10.77.0.1:0", prefix=network.prefix("lsc"), liveness__timeout="4s", job__min_workers=2,
                     job__join_timeout="20s", job__rounds=20) as job:
                secret = self.secret(job)
                job.coordinator_args += ["--secret-file", secret]
                job.start_coordinator()
                for index, (host, more) in enumerate((("lsa", ()), ("lsc", ()), ("lsb", ("--data-host", "10.78.0.3")))):
                    job.start_worker(index, "--secret-file", secret, *more, prefix=network.prefix(host))
                self.assertEqual(job.wait(seconds=120), 0)
                log = job.log("coordinator")
                self.assertIn("worker 2 is out: it and 2 of 2 others do not reach each other: worker ", log)
                self.assertIn("it and 2 of 2 others do not reach each other", job.log("worker2"))
                self.assertEqual({c["worker"] for line in job.rounds() for c in line["contributors"]}, {0, 1})

    def test_a_peer_that_is_cut_off_in_silence(self):
        # The two reach the coordinator's host all the time, each other no more: only TCP itself can tell, or that nothing comes.
        with Network() as network, Job(3, {"job.rounds": 100000, "emulate.unit_time": "5ms"}, listen="10.77.0.1:0",
                                       prefix=network.prefix("lsc"), exchange__transport="tcp", liveness__timeout="4s",
                                       job__min_workers=1) as job:
            secret = self.secret(job)
            job.coordinator_args += ["--secret-file", secret]
            job.start_coordinator()
            for index, host in enumerate(("lsa", "lsb", "lsc")):
                job.start_worker(index, "--secret-file", secret, prefix=network.prefix(host))
            job.wait_for_rounds(10)
            network.part("lsa", "lsb")
            wait_for("a connection that is given up", lambda: re.search(
                r"worker [01] cannot reach worker [01]: .*(timed out|nothing was heard)", job.log("coordinator"), re.I), 60)
            before = len(job.rounds())
            job.wait_for_rounds(before + 20)

    def test_a_coordinator_takes_over_while_a_link_is_cut(self):
        # Two workers do not reach each other, and the next coordinator goes on as the one before did: worker 2 owns what all need.
        with Network() as network, Job(3, {"job.rounds": 100000, "emulate.unit_time": "5ms"}, listen="10.77.0.1:0",
                                       prefix=network.prefix("lsc"), exchange__transport="tcp", liveness__timeout="4s") as job:
            secret = self.secret(job)
            job.coordinator_args += ["--secret-file", secret]
            job.start_coordinator()
            for index, host in enumerate(("lsa", "lsb", "lsc")):
                job.start_worker(index, "--secret-file", secret, prefix=network.prefix(host))
            job.wait_for_rounds(10)
            network.part("lsa", "lsb")
            process = job.processes["coordinator"]
            process.kill()
            process.wait()
            job.listen = job.address
            job.start_coordinator("--reattach")
            since = len(job.rounds())
            job.wait_for_rounds(since + 20, 120)
            log = job.log("coordinator")
            self.assertRegex(log, r"worker [01] cannot reach worker [01]: ")
            self.assertIn("whose parameters 3 workers held", log)
            self.assertNotIn(" is out: ", log)
            self.assertEqual({c["worker"] for line in job.rounds()[since + 1:] for c in line["contributors"]}, {0, 1, 2})

    def test_changes_from_another_host_prove_the_secret(self):
        with Network() as network, Job(1, {"job.rounds": 100000, "emulate.unit_time": "5ms"}, listen="10.77.0.1:0",
                                       prefix=network.prefix("lsc")) as job:
            secret = self.secret(job)
            job.coordinator_args = ["--secret-file", secret, "--http", "10.77.0.1:0"]
            job.start_coordinator()
            job.start_worker(0, "--secret-file", secret, prefix=network.prefix("lsa"))
            job.wait_for_rounds(2)
            http = (job.run_dir / "http.address").read_text().strip()

            def ctl(*arguments):
                return sh(*network.prefix("lsb"), TOOLS / "ctl", "--http", http, *arguments)
            self.assertEqual(ctl("status").returncode, 0)
            refused = ctl("slowdown", "factor=2")
            self.assertEqual(refused.returncode, 1)
            self.assertIn("need a proof of the job's secret", refused.stderr)
            wrong = job.folder / "wrong"
            wrong.write_text("w" * 40)
            self.assertIn("wrong secret", ctl("slowdown", "factor=2", "--secret-file", wrong).stderr)
            done = ctl("slowdown", "factor=2", "--secret-file", secret)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn("in force: factor=2", done.stdout)

    def test_no_secret_no_start(self):
        with Network() as network, Job(1) as job:
            done = subprocess.run([*network.prefix("lsc"), BIN / "lockstep-coordinator", "--listen", "10.77.0.1:0", "--workers", "1",
                                   "--config", job.config, "--run-dir", job.run_dir], capture_output=True, text=True, timeout=60,
                                  check=False)
            self.assertEqual(done.returncode, 2)
            self.assertIn("secret", done.stderr)
            done = subprocess.run([*network.prefix("lsa"), BIN / "lockstep-worker", "--coordinator", "10.77.0.1:7000"],
                                  capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 2)
            self.assertIn("secret", done.stderr)


if __name__ == "__main__":
    main()
