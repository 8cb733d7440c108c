"""A standby takes over from a coordinator that is killed, stopped or ended, and the job goes on: not a sample and not a bit otherwise."""

import base64
import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import time
import unittest
import urllib.request

from harness import BIN, PATIENCE, TOOLS, ClusterTest, Job, check_epochs, main, wait_for

PACED = {"emulate.unit_time": "4ms", "job.units": 8, "checkpoint.every": "0s"}
# In rounds. What is interrupted has no other end.
ENDLESS = 100000
ETCD = shutil.which("etcd")


class Standby:
    def __init__(self, job, name, folder=None, *arguments, listen="127.0.0.1:0"):
        self.job, self.name = job, name
        self.folder = pathlib.Path(folder or job.folder / name)
        job._start(name, [BIN / "lockstep-coordinator", "--standby", "--listen", listen, "--follow", job.address, "--run-dir", self.folder,
                          *arguments])
        self.address = self.said(r"standby: listening on (\S+),").group(1)

    @property
    def process(self):
        return self.job.processes[self.name]

    def said(self, pattern, times=1):
        """Waits until its log has this so often; returns the last match."""
        def there():
            found = list(re.finditer(pattern, self.job.log(self.name)))
            if len(found) < times and self.process.poll() is not None:
                raise AssertionError(f"{self.name} ended: {self.job.log(self.name)}")
            return found[-1] if len(found) >= times else None
        return wait_for(f"{self.name} to say {pattern}", there)

    def complete(self, times=1):
        self.said("this standby is complete", times)
        return self

    def tell(self):
        self.process.send_signal(signal.SIGUSR1)

    def leads(self):
        """The job's coordinator is this one now."""
        job = self.job
        job.processes["coordinator"], job.logs["coordinator"] = self.process, job.logs[self.name]
        job.run_dir, job.address = self.folder, self.address


def kill(job):
    job.processes["coordinator"].kill()
    job.processes["coordinator"].wait()


def check_run(test, folder):
    checked = subprocess.run([TOOLS / "check-run", folder], capture_output=True, text=True, timeout=60 * PATIENCE, check=False)
    test.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)


class StandbyTest(ClusterTest):
    def run_through(self, deaths, shared=False, **options):
        """Beside a job whose coordinator lives, one whose coordinator is killed so often, each time with a standby."""
        with Job(4, PACED, job__rounds=15 * deaths + 20, **options) as quiet:
            quiet.start()
            wanted = quiet.finish()
        with Job(4, PACED, job__rounds=15 * deaths + 20, **options) as job:
            job.start()
            for death in range(deaths):
                standby = Standby(job, f"standby{death}", job.run_dir if shared else None).complete()
                job.wait_for_rounds(15 * death + 10)
                kill(job)
                standby.tell()
                standby.leads()
                standby.said("whose parameters 4 workers held")
                self.assertNotIn(" is out: ", job.log("coordinator"))
            summary = job.finish()
            for worker in range(4):
                self.assertEqual(job.wait(f"worker{worker}"), 0, job.log(f"worker{worker}"))
            self.assertEqual([line["round"] for line in job.rounds()], list(range(15 * deaths + 20)))
            check_epochs(self, job.rounds(), 2048)
            check_run(self, job.run_dir)
        self.assertEqual(summary["samples_counted"], wanted["samples_counted"])
        self.assertEqual(summary["params_digest"], wanted["params_digest"])

    def test_it_takes_over_with_a_folder_of_its_own(self):
        self.run_through(3)

    def test_it_takes_over_in_the_same_folder(self):
        self.run_through(2, shared=True)

    def test_the_coordinator_dies_right_after_the_standby_is_complete(self):
        # Nobody waits between the two, so the workers must have known the standby's address before.
        with Job(4, PACED, job__rounds=60) as job:
            job.start()
            for death in range(3):
                standby = Standby(job, f"standby{death}", job.run_dir)
                job.wait_for_rounds(10 * death + 10)
                standby.complete()
                kill(job)
                standby.tell()
                standby.leads()
                standby.said("whose parameters 4 workers held")
            job.finish()
            check_epochs(self, job.rounds(), 2048)

    def test_it_takes_over_while_workers_are_killed_and_join(self):
        deaths = 3
        with Job(4, PACED, job__rounds=15 * deaths + 40, job__min_workers=1, liveness__timeout="3s") as job:
            job.start()
            names = [f"worker{worker}" for worker in range(4)]
            for death in range(deaths):
                standby = Standby(job, f"standby{death}", job.run_dir).complete()
                job.wait_for_rounds(max(15 * death + 10, len(job.rounds()) + 2))
                kill(job)
                job.processes[names[death]].kill()
                job.processes[names[death]].wait()
                standby.tell()
                standby.leads()
                standby.said(r"whose parameters \d workers? held")
                names[death] = f"again{death}"
                job.start_worker(death, name=names[death])
            summary = job.finish()
            for name in names:
                self.assertEqual(job.wait(name), 0, job.log(name))
            self.assertEqual((summary["status"], summary["digest_differs"]), ("completed", []))
            self.assertEqual([line["round"] for line in job.rounds()], list(range(15 * deaths + 40)))
            check_epochs(self, job.rounds(), 2048)
            check_run(self, job.run_dir)

    def test_a_stopped_worker_does_not_keep_a_standby_from_being_complete(self):
        with Job(2, PACED, job__rounds=ENDLESS, liveness__timeout="4s", policy__name="partial") as job:
            job.start()
            job.wait_for_rounds(5)
            stopped = job.processes["worker1"]
            stopped.send_signal(signal.SIGSTOP)
            Standby(job, "standby").complete()
            self.assertIn("1 workers have not answered within 1 s: should the coordinator die before they do, they will not know of the standby at",
                          job.log("coordinator"))
            stopped.send_signal(signal.SIGCONT)
            job.interrupt()

    def test_it_is_told_over_http_and_the_other_one_ends(self):
        with Job(2, PACED, job__rounds=ENDLESS) as job:
            job.start()
            first = job.processes["coordinator"]
            standby = Standby(job, "standby", None, "--http", "127.0.0.1:0").complete()
            http = standby.said(r"status: http://(\S+)/status").group(1)
            job.wait_for_rounds(5)

            def ctl(*words):
                return subprocess.run([TOOLS / "ctl", "--http", http, *words], capture_output=True, text=True, timeout=60 * PATIENCE, check=False)
            self.assertRegex(ctl("status").stdout, rf"standby of {re.escape(job.address)}: complete, up to round \d+")
            self.assertRegex(ctl("policy", "backup").stderr, "this is a standby: try /status, /takeover")
            told = ctl("takeover")
            self.assertEqual(told.returncode, 0, told.stderr)
            self.assertRegex(told.stdout, r"takes over from \S+ before round \d+, as told by tools/ctl")
            self.assertEqual(first.wait(60 * PATIENCE), 1)
            self.assertRegex(job.log("coordinator"), rf"error the coordinator at {standby.address} leads the job in term 2, .* this coordinator ends\n$")
            standby.leads()
            standby.said("whose parameters 2 workers held")
            job.wait_for_rounds(len(job.rounds()) + 5)
            job.interrupt()
            check_epochs(self, job.rounds(), 2048)

    def test_a_folder_in_use_is_not_taken(self):
        with Job(2, PACED, job__rounds=ENDLESS) as job:
            job.start()
            standby = Standby(job, "standby", job.run_dir).complete()
            job.wait_for_rounds(5)
            standby.tell()
            standby.said("cannot take over: .*another coordinator is writing to this run directory: end it first")
            since = len(job.rounds())
            job.wait_for_rounds(since + 5)
            job.interrupt()
            self.assertEqual(job.wait("standby"), 0)
            self.assertIn("the job has ended; so does this standby", job.log("standby"))

    def test_a_standby_that_was_given_up_does_not_take_over_and_follows_anew(self):
        with Job(2, PACED, job__rounds=ENDLESS, liveness__timeout="2s", job__coordinator_timeout="120s") as job:
            job.start()
            standby = Standby(job, "standby").complete()
            job.wait_for_rounds(5)
            standby.process.send_signal(signal.SIGSTOP)
            wait_for("the loss of the standby", lambda: "is lost: it has not acknowledged" in job.log("coordinator"))
            since = len(job.rounds())
            job.wait_for_rounds(since + 5)
            kill(job)
            standby.tell()
            standby.process.send_signal(signal.SIGCONT)
            standby.said("cannot take over: the job went on without this standby")
            self.assertFalse((standby.folder / "journal").exists())
            job.listen = job.address
            job.start_coordinator("--reattach")
            standby.complete(2)
            job.wait_for_rounds(len(job.rounds()) + 5)
            kill(job)
            standby.tell()
            standby.leads()
            standby.said("whose parameters 2 workers held")
            job.wait_for_rounds(len(job.rounds()) + 5)
            job.interrupt()
            check_epochs(self, job.rounds(), 2048)

    def test_its_end_costs_a_line(self):
        with Job(2, PACED, job__rounds=40) as job:
            job.start()
            standby = Standby(job, "standby").complete()
            standby.process.kill()
            wait_for("the loss of the standby", lambda: "the job goes on without one" in job.log("coordinator"))
            job.finish()
            self.assertEqual(len(re.findall("standby at .* is lost", job.log("coordinator"))), 1)
            self.assertNotIn(" is out: ", job.log("coordinator"))

    def test_a_stopped_coordinator_finds_that_it_leads_no_more(self):
        with Job(4, PACED, job__rounds=ENDLESS, liveness__timeout="2s") as job:
            job.start()
            first, its_folder = job.processes["coordinator"], job.run_dir
            standby = Standby(job, "standby").complete()
            job.wait_for_rounds(10)
            first.send_signal(signal.SIGSTOP)
            its_rounds = len(job.rounds())
            standby.tell()
            # Workers miss the stopped one after liveness.timeout.
            standby.said("whose parameters 4 workers held")
            before = job.log("coordinator")
            first.send_signal(signal.SIGCONT)
            self.assertEqual(first.wait(60 * PATIENCE), 1)
            said = job.log("coordinator")[len(before):]
            self.assertRegex(said, rf"error the coordinator at {standby.address} leads the job in term 2, .* this coordinator ends\n$")
            # It has decided nothing, and it leaves its folder as a killed one does.
            self.assertFalse((its_folder / "summary.json").exists())
            self.assertLessEqual(len((its_folder / "rounds.jsonl").read_text().splitlines()), its_rounds + 1)
            standby.leads()
            job.wait_for_rounds(len(job.rounds()) + 10)
            self.assertNotIn(" is out: ", job.log("coordinator"))
            job.interrupt()
            check_epochs(self, job.rounds(), 2048)

    def test_what_cannot_be_is_one_line(self):
        def end_of(*arguments):
            ended = subprocess.run([BIN / "lockstep-coordinator", *map(str, arguments)], capture_output=True, text=True, timeout=60 * PATIENCE, check=False)
            self.assertEqual(len(ended.stderr.strip().splitlines()), 1, ended.stderr)
            self.assertEqual(ended.returncode, 2, ended.stderr)
            return ended.stderr
        self.assertIn("--follow: required", end_of("--standby", "--run-dir", "/nowhere"))
        self.assertIn("--follow: is for a --standby", end_of("--follow", "127.0.0.1:1", "--workers", 2, "--run-dir", "/nowhere"))
        self.assertIn("--run-dir: required", end_of("--standby", "--follow", "127.0.0.1:1"))
        self.assertIn("--workers: not with --standby", end_of("--standby", "--follow", "127.0.0.1:1", "--run-dir", "/nowhere", "--workers", 2))
        self.assertIn("--job.seed: not with --standby",
                      end_of("--standby", "--follow", "127.0.0.1:1", "--run-dir", "/nowhere", "--job.seed=3"))

    def test_it_takes_no_folder_of_another_job(self):
        with Job(2, PACED, job__rounds=5) as other, Job(2, PACED, job__rounds=ENDLESS) as job:
            other.start().finish()
            job.start()
            Standby(job, "standby", other.run_dir)
            self.assertEqual(job.wait("standby"), 1)
            self.assertRegex(job.log("standby"), "holds the records of another job; choose another --run-dir for the standby\n$")
            self.assertEqual(len(other.rounds()), 5)


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Etcd:
    """Of one member, on loopback, in the job's folder."""

    def __init__(self, job):
        self.job = job
        self.clients, self.peers = (f"http://127.0.0.1:{port}" for port in free_ports(2))
        self.lease = self.clients.replace("http", "etcd") + "/lockstep-test"
        self.start()

    def start(self):
        self.process = self.job._start("etcd", [ETCD, "--data-dir", self.job.folder / "etcd", "--listen-client-urls", self.clients,
                                                "--advertise-client-urls", self.clients, "--listen-peer-urls", self.peers,
                                                "--initial-advertise-peer-urls", self.peers, "--initial-cluster", f"default={self.peers}"])
        wait_for("etcd", self.answers)

    def answers(self):
        return self.ask("/v3/kv/range", {"key": "eA=="}) is not None

    def ask(self, target, body):
        try:
            request = urllib.request.Request(self.clients + target, json.dumps(body).encode())
            return json.loads(urllib.request.urlopen(request, timeout=5).read())
        except OSError:
            return None

    def kill(self):
        self.process.kill()
        self.process.wait()


@unittest.skipIf(ETCD is None, "no etcd (Debian: etcd-server)")
class LeaseTest(ClusterTest):
    # A lease of 2 s, the shortest that etcd gives.
    SHORT = {**PACED, "liveness.timeout": "4s"}

    def test_whoever_gets_the_lease_leads(self):
        rounds = 60
        with Job(4, self.SHORT, job__rounds=rounds) as quiet:
            quiet.start()
            wanted = quiet.finish()
        with Job(4, self.SHORT, job__rounds=rounds) as job:
            etcd = Etcd(job)
            job.coordinator_args = ["--lease", etcd.lease]
            job.start()
            for death in range(2):
                standby = Standby(job, f"standby{death}", None, "--lease", etcd.lease).complete()
                job.wait_for_rounds(15 * death + 10)
                standby.tell()
                standby.said("cannot take over: the lease .* decides, and .* holds it: end that coordinator")
                kill(job)
                standby.leads()
                standby.said("whose parameters 4 workers held")
                self.assertIn(f"as told by the lease {etcd.lease}", job.log("coordinator"))
            summary = job.finish()
            check_run(self, job.run_dir)
        self.assertEqual(summary["params_digest"], wanted["params_digest"])

    def test_a_short_absence_of_etcd_changes_nothing(self):
        # A lease of 8 s, which is not renewed for some 2 s.
        with Job(2, PACED, job__rounds=ENDLESS, liveness__timeout="16s") as job:
            etcd = Etcd(job)
            job.coordinator_args = ["--lease", etcd.lease]
            job.start()
            standby = Standby(job, "standby", None, "--lease", etcd.lease).complete()
            job.wait_for_rounds(5)
            etcd.kill()
            wait_for("a renewal that fails", lambda: "does not answer: Connection refused" in job.log("coordinator"))
            etcd.start()
            since = len(job.rounds())
            job.wait_for_rounds(since + 5)
            # It is renewed again: the key outlives the time that was left of it.
            began = time.monotonic()
            wait_for("more than the time to live", lambda: time.monotonic() > began + 9)
            self.assertIn("kvs", etcd.ask("/v3/kv/range", {"key": base64.b64encode(b"lockstep-test").decode()}))
            self.assertNotIn("takes over", job.log("standby"))
            job.interrupt()
            self.assertEqual(standby.process.wait(60 * PATIENCE), 0)
            # The next coordinator need not wait for the lease to expire.
            wait_for("the end of the lease", lambda: "kvs" not in etcd.ask("/v3/kv/range", {"key": base64.b64encode(b"lockstep-test").decode()}), 4)

    def test_without_etcd_the_leader_ends_in_time(self):
        with Job(2, self.SHORT, job__rounds=ENDLESS) as job:
            etcd = Etcd(job)
            job.coordinator_args = ["--lease", etcd.lease]
            job.start()
            standby = Standby(job, "standby", None, "--lease", etcd.lease).complete()
            job.wait_for_rounds(5)
            gone = time.monotonic()
            etcd.kill()
            self.assertEqual(job.wait("coordinator"), 1)
            self.assertLess(time.monotonic() - gone, 2 * PATIENCE)
            self.assertRegex(job.log("coordinator"), r"error the lease etcd://\S+ is lost: etcd at \S+ does not answer: .*; this coordinator ends, .*\n$")
            # Nobody leads until etcd is there again.
            self.assertNotIn("takes over from", job.log("standby"))
            etcd.start()
            standby.leads()
            standby.said("whose parameters 2 workers held")
            job.wait_for_rounds(len(job.rounds()) + 5)
            job.interrupt()

    def test_a_stopped_leader_ends_when_it_goes_on(self):
        with Job(4, self.SHORT, job__rounds=ENDLESS) as job:
            etcd = Etcd(job)
            job.coordinator_args = ["--lease", etcd.lease]
            job.start()
            first = job.processes["coordinator"]
            standby = Standby(job, "standby", None, "--lease", etcd.lease).complete()
            job.wait_for_rounds(10)
            first.send_signal(signal.SIGSTOP)
            standby.said("takes over from")
            first.send_signal(signal.SIGCONT)
            self.assertEqual(first.wait(60 * PATIENCE), 1)
            self.assertRegex(job.log("coordinator"), r"this coordinator ends[^\n]*\n$")
            standby.leads()
            standby.said("whose parameters 4 workers held")
            job.wait_for_rounds(len(job.rounds()) + 5)
            job.interrupt()
            check_epochs(self, job.rounds(), 2048)

    def test_a_second_coordinator_does_not_begin(self):
        with Job(2, self.SHORT, job__rounds=ENDLESS) as job:
            etcd = Etcd(job)
            job.coordinator_args = ["--lease", etcd.lease]
            job.start()
            job.wait_for_rounds(2)
            second = subprocess.run([BIN / "lockstep-coordinator", "--listen", "127.0.0.1:0", "--workers", "2", "--run-dir", job.folder / "other",
                                     "--lease", etcd.lease, "--liveness.timeout=4s"], capture_output=True, text=True, timeout=60 * PATIENCE, check=False)
            self.assertEqual(second.returncode, 1)
            self.assertRegex(second.stderr, r"lockstep-coordinator: the lease etcd://\S+: the coordinator at \S+ \(pid \d+\) holds it\n$")
            job.interrupt()

    def test_what_is_no_lease_is_one_line(self):
        for wrong in ("etcd://127.0.0.1:2379", "http://127.0.0.1:2379/a", "etcd://127.0.0.1/a", "etcd://127.0.0.1:2379/"):
            ended = subprocess.run([BIN / "lockstep-coordinator", "--workers", "2", "--run-dir", "/nowhere", "--lease", wrong],
                                   capture_output=True, text=True, timeout=60 * PATIENCE, check=False)
            self.assertEqual(ended.returncode, 2)
            self.assertRegex(ended.stderr, r"^lockstep-coordinator: --lease = [^\n]*: expected etcd://HOST:2379/NAME[^\n]*\n$")


if __name__ == "__main__":
    main()
