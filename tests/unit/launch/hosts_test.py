"""tools/launch --hosts, with a stand-in for ssh that runs the command here, and with those of launch_test.py for the programs."""

import base64
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
import unittest.mock
from pathlib import Path

LIB = Path(__file__).resolve().parents[3] / "tools/lib"
sys.path.insert(0, str(LIB))
import launch_test  # noqa: E402
from launch_test import TIMEOUT_S, is_running  # noqa: E402
from lockstep_launch import hosts as job_hosts  # noqa: E402

LAUNCH = None  # the path under test, from the command line
AGENT = LIB / "lockstep_launch/host_agent.py"

# Each host is a line of the file HOSTS beside it: NAME WHAT, where WHAT is `is-there` or what ssh does instead.
SSH = """
import json, os, signal, subprocess, sys
folder = os.path.dirname(os.path.abspath(__file__))
arguments = sys.argv[1:]
with open(os.path.join(folder, "ssh.log"), "a") as file:
    file.write(json.dumps(arguments) + "\\n")
at = arguments.index("--")
host, command = arguments[at + 1:]
what = dict(line.split(" ", 1) for line in open(os.path.join(folder, "hosts"))).get(host, "is-there").strip()
if what == "is-not-there":
    print(f"ssh: connect to host {host} port 22: Connection refused", file=sys.stderr)
    sys.exit(255)
if what == "has-another-key":
    print("@@@@@@@@@@@@\\r\\n@ WARNING @\\r\\n@@@@@@@@@@@@\\r\\nHost key verification failed.\\r", file=sys.stderr)
    sys.exit(255)
if what == "closes-its-output":
    os.close(1)
    signal.pause()
if what == "stutters":
    for piece in ("a", "b"):
        print(piece, end="", file=sys.stderr, flush=True)
    print("\\r", file=sys.stderr)
    sys.exit(255)
os.environ.pop("SSH_CONNECTION", None)
if what != "tells-no-address":
    os.environ["SSH_CONNECTION"] = "127.0.0.1 55555 127.0.0.1 22"
print("welcome to", host, end="", flush=True)
os.environ["STAND_IN"] = host
ADDS = {"has-somebody-else-who-talks": (b"lockstep host agent", b"Broadcast message\\n"),
        "tells-of-a-stranger": (b'{"out":', b'{"out": "worker 7", "text": "hello"}\\n'),
        "tells-of-another-host": (b'{"out":', b'{"ended": "worker 0", "status": 0}\\n'),
        "tells-nonsense": (b'{"out":', b'{"out": "worker 2", "text": 5}\\n'),
        "never-ends-its-line": (b'{"out":', b"x" * (5 << 20))}
if what in ADDS:
    agent = subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE)
    after, added = ADDS[what]
    for line in agent.stdout:
        sys.stdout.buffer.write(line + (added if line.startswith(after) else b""))
        sys.stdout.flush()
else:
    agent = subprocess.Popen(["sh", "-c", command])
status = agent.wait()  # a process of its own, as behind sshd: it outlives this one
sys.exit(status if status >= 0 else 255)
"""


class HostsTest(launch_test.LaunchTest):
    def setUp(self):
        super().setUp()
        (self.folder / "hosts").write_text("")
        for name, body in (("ssh", SSH), ("lockstep-coordinator", launch_test.COORDINATOR), ("lockstep-worker", launch_test.WORKER)):
            version = f"import sys\nif '--version' in sys.argv:\n    print('{name} 1.2.3')\n    sys.exit()\n" if name != "ssh" else ""
            (self.folder / name).write_text(f"#!{sys.executable}\n{version}{textwrap.dedent(body)}")
            (self.folder / name).chmod(0o755)
        (self.folder / "tmp").mkdir()  # for what those leave that are killed
        changed = unittest.mock.patch.dict(os.environ, PATH=f"{self.folder}:{os.environ['PATH']}", TMPDIR=str(self.folder / "tmp"))
        changed.start()
        self.addCleanup(changed.stop)

    def command(self, *arguments, plan="finish", hosts=("--hosts", "a:2,b:1", "--listen", "127.0.0.1")):
        return [sys.executable, "-B", LAUNCH, *hosts, "--config", str(self.config), "--run-dir", "run", "--build-dir", str(self.folder),
                "--python", sys.executable, "--set", f"plan.do={plan}", *arguments]

    def refused(self, *arguments, status=2, **options):
        done = self.run_to_end(*arguments, **options)
        self.assertEqual((done.returncode, done.stdout), (status, ""), done)
        self.assertRegex(done.stderr, r"\Alaunch: [^\n]+\n\Z")
        return done.stderr

    def calls(self):
        """By host: they are made at the same time."""
        return sorted((json.loads(line) for line in (self.folder / "ssh.log").read_text().splitlines()), key=lambda call: call[-2])

    def agents(self):
        """By host, the process id of its agent."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    environment = (entry / "environ").read_bytes().split(b"\0")
                    command = (entry / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if f"PATH={self.folder}:".encode() in b"\0".join(environment) and any(b"stdin.buffer.readline" in word for word in command):
                    found.update({word[9:].decode(): int(entry.name) for word in environment if word.startswith(b"STAND_IN=")})
        return found

    def test_a_job_runs_on_its_hosts_and_every_line_has_its_process_in_front(self):
        done = self.run_to_end("--set", "job.rounds=5")
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        self.assertRegex(done.stdout, r"coordinator \| arguments: --listen 127.0.0.1:0 --workers 3 --config \S+/job.ini --run-dir run "
                                      r"--plan.do=finish --job.rounds=5 --secret-file ")
        self.assertEqual(sorted(re.findall(r"joined: (\d)", done.stdout)), ["0", "1", "2"])
        for line in done.stdout.splitlines():
            self.assertRegex(line, r"^(coordinator|worker \d   |launch     ) \| ")
        self.assertIn("launch      | a: workers 0, 1\nlaunch      | b: worker 2\n", done.stdout)
        self.assertIn("launch      | run directory: a:run\n", done.stdout)
        # A secret in a file for this user alone at each host, and the same folder for those of one host; gone afterwards.
        secrets = {worker: re.search(rf"worker {worker}    \| worker's secret: (\S+)", done.stdout)[1] for worker in range(3)}
        self.assertEqual(secrets[0], secrets[1])
        self.assertNotEqual(secrets[0], secrets[2])
        self.assertRegex(done.stdout, rf"coordinator \| secret: {secrets[0]} 0o600 0o700 32\n")
        for secret in secrets.values():
            self.assertFalse(Path(secret).parent.exists(), "it is still there")
        self.assert_none_left(done.stdout)

    def test_nothing_of_the_job_is_on_a_command_line(self):
        self.run_to_end("--env", "TOKEN=word-for-nobody")
        calls = self.calls()
        self.assertEqual([call[-2] for call in calls], ["a", "b"])
        for call in calls:
            self.assertEqual(call[-3], "--")
            self.assertRegex(call[-1], r"\Aexec \S+ -I -u -c 'import sys;exec\(sys.stdin.buffer.read\(int\(sys.stdin.buffer.readline\(\)\)\)\)'\Z")
        self.assertNotIn("word-for-nobody", (self.folder / "ssh.log").read_text())

    def test_a_hosts_file_and_options_for_ssh(self):
        file = self.folder / "machines"
        file.write_text("# ours\n\na:2 user=me port=2222  # the first\nyou@b\n")
        done = self.run_to_end("--ssh-option", "ConnectTimeout=3", hosts=("--hosts-file", str(file), "--listen", "127.0.0.1"))
        self.assertEqual(done.returncode, 0, done)
        a, b = self.calls()
        # ssh takes the first: what the host's line says is before what is for all hosts, and that before ours.
        self.assertEqual(a[:7], ["-T", "-p", "2222", "-l", "me", "-o", "ConnectTimeout=3"])
        self.assertEqual(b[:5], ["-T", "-l", "you", "-o", "ConnectTimeout=3"])
        for call in (a, b):
            self.assertIn("BatchMode=yes", call[5:])

    def test_the_coordinator_may_run_here(self):
        done = self.run_to_end("--coordinator", "here", hosts=("--hosts", "a:2,b:1"))
        self.assertEqual(done.returncode, 0, done)
        self.assertIn(f"--listen 127.0.0.1:0 --workers 3 --config {self.config} --run-dir run ", done.stdout)
        self.assertIn("launch      | run directory: run\n", done.stdout)

    def test_a_program_of_ones_own_and_its_environment(self):
        program = self.folder / "own.py"
        program.write_text(textwrap.dedent("""
            import os, socket
            env = os.environ
            print("own:", env["LOCKSTEP_WORKER"], "of", env["LOCKSTEP_WORKERS"], env["COLOUR"], "threads", env["OMP_NUM_THREADS"], flush=True)
            host, port = env["LOCKSTEP_COORDINATOR"].rsplit(":", 1)
            channel = socket.create_connection((host, int(port)))
            channel.sendall((env["LOCKSTEP_WORKER"] + "\\n").encode())
            channel.recv(1)
            """))
        done = self.run_to_end("--env", "COLOUR", "--env", "OMP_NUM_THREADS=7", "--", sys.executable, str(program), env={"COLOUR": "blue"})
        self.assertEqual(done.returncode, 0, done)
        for worker in range(3):
            self.assertIn(f"worker {worker}    | own: {worker} of 3 blue threads 7\n", done.stdout)

    @unittest.skipIf(len(os.sched_getaffinity(0)) < 2, "one processor")
    def test_workers_are_held_to_processors_of_their_host(self):
        program = self.folder / "held.py"
        program.write_text(textwrap.dedent("""
            import os, socket
            env = os.environ
            print("held:", env["LOCKSTEP_WORKER"], *sorted(os.sched_getaffinity(0)), "threads", env["OMP_NUM_THREADS"], flush=True)
            host, port = env["LOCKSTEP_COORDINATOR"].rsplit(":", 1)
            channel = socket.create_connection((host, int(port)))
            channel.sendall((env["LOCKSTEP_WORKER"] + "\\n").encode())
            channel.recv(1)
            """))
        done = self.run_to_end("--bind-to", "numa", "--", sys.executable, str(program))
        self.assertEqual(done.returncode, 0, done)
        self.assertEqual(len(re.findall(r"worker [012] is bound to processors [0-9,-]+\n", done.stdout)), 3, done)
        self.assertEqual(len(re.findall(r"held: [012] [0-9 ]+ threads \d+\n", done.stdout)), 3, done)
        some = launch_test.two_cores()
        done = self.run_to_end("--bind-to", "core", "--", sys.executable, str(program), only=some)
        held = dict(re.findall(r"held: ([012]) ([0-9 ]+) threads \d+\n", done.stdout))
        if done.returncode == 2:  # two processors of one core
            self.assertIn("a: --bind-to core: 2 workers and 1 core: not each can have one\n", done.stderr)
            return
        self.assertEqual(done.returncode, 0, done)
        self.assertEqual(held, {"0": str(some[0]), "1": str(some[1]), "2": " ".join(map(str, some))})
        done = self.run_to_end("--bind-to", "core", "--", sys.executable, str(program), only=some[:1])
        self.assertEqual((done.returncode, done.stderr), (2, "launch: a: --bind-to core: 2 workers and 1 core: not each can have one\n"), done)

    def test_what_is_wrong_with_a_host_is_one_line_and_status_2(self):
        (self.folder / "hosts").write_text("gone is-not-there\nother has-another-key\nmute tells-no-address\n"
                                           "half closes-its-output\nbad stutters\nloud has-somebody-else-who-talks\n")
        for hosts, more, message in (
                ("a,gone", (), "gone: ssh does not reach it: ssh: connect to host gone port 22: Connection refused"),
                ("a,other", (), "other: ssh does not reach it: Host key verification failed."),
                ("a,half", (), "half: ssh has closed its output and does not end"),
                ("a,bad", (), "bad: ssh does not reach it: ab\n"),
                ("a,loud", (), "loud: unexpected output instead of a line of the agent: Broadcast message"),
                ("a", ("--python", "python-of-nobody"), "a: there is no python-of-nobody; name its Python with --python: "),
                ("a", ("--cwd", "/nowhere"), "a: no working directory /nowhere: No such file or directory"),
                ("mute", (), "mute: SSH_CONNECTION is not set there, so the coordinator's address is unknown: name it with --listen"),
                ("a,b", (), "ssh reached a at 127.0.0.1, where the other hosts cannot")):
            with self.subTest(hosts, more=more):
                self.assertIn(message, self.refused(*more, hosts=("--hosts", hosts)))

    def test_another_version_or_none_is_one_line_and_status_2(self):
        for name, body, message in (("lockstep-worker", "print('lockstep-worker 1.2.4')", "is lockstep 1.2.4, and the launcher is 1.2.3"),
                                    ("lockstep-worker", "import sys; sys.exit('libfmt.so.9: not found')", "does not run: libfmt.so.9: not found"),
                                    ("lockstep-worker", None, "lockstep-worker")):
            with self.subTest(message):
                if body is None:
                    (self.folder / name).unlink()
                else:
                    (self.folder / name).write_text(f"#!{sys.executable}\n{body}\n")
                self.assertIn(message, self.refused())

    def test_wrong_usage_is_one_line_and_status_2(self):
        file = self.folder / "machines"
        for text, message in (("a:2 colour=blue\n", "machines:1: 'colour=blue': expected KEY=VALUE, where KEY is one of user, port, python, cwd"),
                              ("# none\n", "names no host"), ("a\n-oProxyCommand=x\n", "machines:2: '-oProxyCommand=x': expected NAME:WORKERS")):
            file.write_text(text)
            with self.subTest(text):
                self.assertIn(message, self.refused(hosts=("--hosts-file", str(file))))
        for hosts, message in (("a:0", "1 to 16384 workers"), ("a b", "expected NAME:WORKERS"), ("a,a:2", "a is named 2 times"), ("", "'': expected NAME:WORKERS"), ("a:" + "9" * 5000, "expected NAME:WORKERS"),
                               ("-l:2", "expected NAME:WORKERS")):
            with self.subTest(hosts):
                self.assertIn(message, self.refused(hosts=(f"--hosts={hosts}",)))
        self.assertIn("-n 5: the hosts have 3 workers", self.refused("-n", "5"))
        self.assertRegex(self.refused("-n", "5", hosts=("--hosts", "a:1")), r"-n 5: the hosts have 1 worker\n")
        self.assertIn("exclude each other", self.refused("--hosts-file", "x"))
        self.assertIn("launch: --hosts-file: none: No such file or directory", self.refused(hosts=("--hosts-file", "none")))
        file.write_bytes(b"\xff\xfe")
        self.assertIn(f"launch: --hosts-file: {file} is not UTF-8 text", self.refused(hosts=("--hosts-file", str(file))))
        os.mkfifo(self.folder / "fifo")
        for path in (self.folder / "fifo", "/dev/zero"):
            self.assertIn(f"launch: --hosts-file: {path}: is not a regular file", self.refused(hosts=("--hosts-file", str(path))))
        self.assertIn("--env 1x=2: expected KEY=VALUE", self.refused("--env", "1x=2"))
        self.assertIn("--env NOBODYS: this variable is not set here; say --env NOBODYS=VALUE", self.refused("--env", "NOBODYS"))
        self.assertIn("--python needs --hosts", self.refused(hosts=("-n", "2")))

    def test_the_first_signal_goes_to_the_coordinator_and_the_second_kills_all(self):
        process = self.start(plan="stubborn")
        seen = self.read_until(process, "all joined")
        process.send_signal(signal.SIGINT)
        seen += self.read_until(process, "asked to stop by SIGINT")
        self.assertIsNone(process.poll())
        self.stop_again(process)
        seen += process.stdout.read()
        self.assertEqual(process.wait(TIMEOUT_S), 128 + signal.SIGKILL, seen)
        self.assert_none_left(seen)
        process = self.start(plan="wait")
        seen = self.read_until(process, "all joined")
        process.send_signal(signal.SIGTERM)
        seen += process.stdout.read()
        self.assertEqual(process.wait(TIMEOUT_S), 7, seen)
        self.assert_none_left(seen)

    def test_nothing_is_left_at_any_host_when_the_launcher_is_killed(self):
        process = self.start(plan="wait")
        seen = self.read_until(process, "all joined")
        agents = self.agents()
        self.assertEqual(set(agents), {"a", "b"})
        process.kill()
        process.wait(TIMEOUT_S)
        self.assert_none_left(seen)
        for folder in re.findall(r"secret: (\S+)/secret", seen):
            self.wait_until(lambda folder=folder: not Path(folder).exists(), f"{folder} is still there")
        for agent in agents.values():
            self.wait_until(lambda agent=agent: not is_running(agent), "an agent is still there")

    def wait_until(self, condition, message):
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            self.assertLess(time.monotonic(), deadline, message)
            os.sched_yield()

    def test_a_host_that_is_lost_is_its_workers_and_their_restarts(self):
        process = self.start("--restart-workers", "3", plan="wait")
        seen = self.read_until(process, "all joined")
        os.kill(self.agents()["b"], signal.SIGKILL)
        seen += self.read_until(process, "worker 2 ended with status 1; the others continue if they are at least job.min_workers")
        self.assertIn("launch      | b: the connection is lost: ssh ended with status 255\n", seen)  # not the shell's welcome
        process.send_signal(signal.SIGTERM)
        seen += process.stdout.read()
        self.assertEqual(process.wait(TIMEOUT_S), 7, seen)
        self.assert_none_left(seen)

    def test_a_host_whose_agent_talks_nonsense_is_lost_and_the_job_is_not(self):
        for what, words in (("tells-of-a-stranger", "unexpected word of the agent: {'out': 'worker 7', 'text': 'hello'}"),
                            ("tells-of-another-host", "unexpected word of the agent: {'ended': 'worker 0', 'status': 0}"),
                            ("tells-nonsense", "unexpected output instead of a line of the agent: {\"out\": \"worker 2\", \"text\": 5}"),
                            ("never-ends-its-line", "unexpected output instead of a line of the agent: more than 4 MiB without an end")):
            with self.subTest(what):
                (self.folder / "hosts").write_text(f"b {what}\n")
                process = self.start(plan="wait")
                seen = self.read_until(process, "worker 2 ended with status 1; the others continue if they are at least job.min_workers")
                self.assertIn(f"launch      | b: {words}\n", seen)
                process.send_signal(signal.SIGTERM)
                seen += process.stdout.read()
                self.assertEqual(process.wait(TIMEOUT_S), 7, seen)

    def test_all_hosts_hear_that_worker_0_has_ended_before_it_had_a_model(self):
        (self.folder / "lockstep").mkdir()
        (self.folder / "lockstep/__init__.py").touch()
        (self.folder / "lockstep/_place.py").write_text(f"import pathlib\ndef program(name):\n    return pathlib.Path({str(self.folder)!r}, name)\n")
        script = self.folder / "script.py"
        for model in (False, True):
            script.write_text(textwrap.dedent(f"""
                import os, pathlib, sys, threading
                folder, worker = pathlib.Path(os.environ["LOCKSTEP_INITIAL"]), os.environ["LOCKSTEP_WORKER"]
                if worker == "0":
                    if {model}:
                        (folder / "mine").write_bytes(bytes(20 << 20))
                        os.replace(folder / "mine", folder / "initial")
                    sys.exit(0)
                while not (folder / "ended").exists():
                    threading.Event().wait(0.02)
                print("ended, with a model" if (folder / "initial").exists() else "ended", flush=True)
                """))
            launcher = textwrap.dedent(f"""
                import sys
                sys.path.insert(0, {str(LIB)!r})
                from lockstep_launch import main as launch
                options = launch.make_parser().parse_args(sys.argv[1:])
                options.program, options.package, options.script = ["python3", {str(script)!r}], True, {str(script)!r}
                sys.exit(launch.launch(launch.checked(options)))
                """)
            command = self.command("--env", f"PYTHONPATH={self.folder}")
            with self.subTest(model=model):
                process = subprocess.Popen([sys.executable, "-B", "-c", launcher, *command[command.index(LAUNCH) + 1:]], stdout=subprocess.PIPE,
                                           stderr=subprocess.STDOUT, text=True, cwd=self.folder, stdin=subprocess.DEVNULL)
                self.addCleanup(process.stdout.close)
                self.addCleanup(lambda process=process: process.poll() is None and process.kill())
                seen = "".join(self.read_until(process, "| ended") for _ in range(2))
                for worker in (1, 2):
                    self.assertIn(f"worker {worker}    | ended{', with a model' if model else ''}\n", seen)
                process.send_signal(signal.SIGTERM)
                seen += process.stdout.read()
                self.assertEqual(process.wait(TIMEOUT_S), 7, seen)

    def test_a_host_that_is_lost_before_its_workers_are_started_is_told_and_its_workers_are_lost(self):
        go = self.folder / "go"
        os.mkfifo(go)
        program = self.folder / "lockstep-coordinator"
        program.write_text(program.read_text().replace("listener = ", f"print('begun', flush=True)\nopen({str(go)!r}).close()\nlistener = "))
        process = self.start("--restart-workers", "3", plan="wait")
        self.read_until(process, "begun")
        os.kill(self.agents()["b"], signal.SIGKILL)
        self.read_until(process, "b: the connection is lost: ")
        open(go, "w").close()
        self.read_until(process, "worker 2 ended with status 1; the others continue if they are at least job.min_workers")
        process.send_signal(signal.SIGTERM)
        seen = process.stdout.read()
        self.assertEqual(process.wait(TIMEOUT_S), 7, seen)

    def test_a_host_whose_agent_stands_still_does_not_keep_the_launcher(self):
        process = self.start(plan="stubborn")
        seen = self.read_until(process, "all joined")
        agent = self.agents()["b"]
        os.kill(agent, signal.SIGSTOP)
        self.addCleanup(lambda: is_running(agent) and os.kill(agent, signal.SIGKILL))
        process.send_signal(signal.SIGINT)
        seen += self.read_until(process, "asked to stop by SIGINT")
        self.stop_again(process)
        seen += process.stdout.read()
        self.assertEqual(process.wait(TIMEOUT_S), 128 + signal.SIGKILL, seen)
        self.assertIn("launch      | b: no answer for 10 s: the connection is closed\n", seen)
        os.kill(agent, signal.SIGCONT)
        self.assert_none_left(seen)
        self.wait_until(lambda: not is_running(agent), "an agent is still there")

    def test_a_reader_that_goes_away_does_not_keep_the_launcher(self):
        process = self.start(plan="wait")
        seen = self.read_until(process, "all joined")
        # The coordinator's last line and its end come together.
        process.send_signal(signal.SIGSTOP)
        process.stdout.close()
        coordinator = int(re.search(r"pid (\d+)", seen)[1])
        os.kill(coordinator, signal.SIGTERM)
        self.wait_until(lambda: not Path(f"/proc/{coordinator}").exists(), "the coordinator is still there")
        process.send_signal(signal.SIGCONT)
        self.assertEqual(process.wait(TIMEOUT_S), 7)
        self.assert_none_left(seen)

    def test_the_coordinators_host_that_is_lost_ends_the_job(self):
        process = self.start(plan="wait")
        seen = self.read_until(process, "all joined")
        os.kill(self.agents()["a"], signal.SIGKILL)
        seen += process.stdout.read()
        self.assertEqual(process.wait(TIMEOUT_S), 1, seen)
        self.assert_none_left(seen)

    def test_ctrl_c_before_the_hosts_are_there(self):
        self.config.unlink()
        os.mkfifo(self.config.with_name("entered"))
        (self.folder / "ssh").write_text(f"#!{sys.executable}\nimport signal\nopen({str(self.folder / 'entered')!r}, 'w').close()\nsignal.pause()\n")
        self.config.write_text("")
        for number in (signal.SIGINT, signal.SIGTERM):
            process = self.start(hosts=("--hosts", "a"))
            open(self.folder / "entered").close()  # waits until ssh has begun
            process.send_signal(number)
            self.assertEqual(process.wait(TIMEOUT_S), 128 + number)


class AgentTest(unittest.TestCase):
    """The agent by itself, over pipes."""

    def begun(self, silence_s):
        process = subprocess.Popen([sys.executable, str(AGENT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(process.stdout.close)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        self.send(process, begin={"cwd": None, "env": {}, "secret": "00", "config": None, "silence_s": silence_s, "package": False, "script": None,
                                  "bound": False, "programs": ["true"], "build_dir": self.folder, "version": "0"})
        return process

    def agent(self, silence_s):
        process = self.begun(silence_s)
        self.assertEqual([process.stdout.readline() for _ in range(2)], [b"\n", b"lockstep host agent\n"])
        self.ready = json.loads(process.stdout.readline())["ready"]
        return process

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        program = Path(self.folder, "true")
        program.write_text("#!/bin/sh\necho true 0\n")
        program.chmod(0o755)

    def send(self, process, **message):
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()

    def start_one(self, process):
        self.send(process, start={"name": "one", "command": ["sh", "-c", "echo $$; exec sleep 1000"], "env": {}, "address_file": None,
                                  "processors": [], "shares_initial": True})
        return int(json.loads(process.stdout.readline())["text"])

    def assert_ended(self, process, pid):
        self.assertEqual(process.wait(TIMEOUT_S), 0)
        deadline = time.monotonic() + TIMEOUT_S
        while is_running(pid):
            self.assertLess(time.monotonic(), deadline)
            os.sched_yield()
        self.assertFalse(Path(self.ready["secret"]).parent.exists())

    def test_silence_ends_everything(self):
        process = self.agent(silence_s=10)
        self.addCleanup(process.stdin.close)
        self.assert_ended(process, self.start_one(process))  # its input is open, and nothing comes

    def test_the_end_of_the_input_ends_everything(self):
        process = self.agent(silence_s=1000)
        pid = self.start_one(process)
        process.stdin.close()
        self.assert_ended(process, pid)

    def test_a_signal_to_the_agent_ends_everything(self):
        process = self.agent(silence_s=1000)
        self.addCleanup(process.stdin.close)
        pid = self.start_one(process)
        process.send_signal(signal.SIGTERM)
        self.assert_ended(process, pid)

    def test_what_is_asked_for_its_version_and_never_answers_ends_with_the_silence(self):
        pid_file = Path(self.folder, "pid")
        os.mkfifo(pid_file)
        reader = os.open(pid_file, os.O_RDWR)  # nobody waits for the other end
        self.addCleanup(os.close, reader)
        Path(self.folder, "true").write_text(f"#!/bin/sh\necho $$ > {pid_file}\nexec sleep 1000\n")
        process = self.begun(silence_s=10)
        self.addCleanup(process.stdin.close)
        self.assertEqual(process.wait(TIMEOUT_S), 0)
        os.set_blocking(reader, False)
        pid = int(os.read(reader, 100))
        deadline = time.monotonic() + TIMEOUT_S
        while is_running(pid):
            self.assertLess(time.monotonic(), deadline)
            os.sched_yield()

    def test_what_is_started_there_ignores_no_signal(self):
        process = self.agent(silence_s=1000)
        self.send(process, start={"name": "one", "command": ["grep", "SigIgn", "/proc/self/status"], "env": {}, "address_file": None,
                                  "processors": [], "shares_initial": False})
        ignored = int(json.loads(process.stdout.readline())["text"].split()[1], 16)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
            self.assertFalse(ignored >> number - 1 & 1, number)
        process.stdin.close()

    def test_a_large_initial_model_waits_for_the_other_hosts(self):
        process = self.agent(silence_s=1000)
        self.start_one(process)
        data = os.urandom(20 << 20)
        Path(self.ready["initial"], "part-of-worker-0").write_bytes(data)
        os.replace(Path(self.ready["initial"], "part-of-worker-0"), Path(self.ready["initial"], "initial"))
        pieces = [json.loads(process.stdout.readline())["file"] for _ in range(16)]
        # None has said that it has one: something else comes, and not the next piece.
        self.send(process, start={"name": "two", "command": ["true"], "env": {}, "address_file": None, "processors": [], "shares_initial": False})
        self.assertEqual(json.loads(process.stdout.readline()), {"ended": "two", "status": 0})
        for _ in range(5):
            self.send(process, more=1)
            pieces.append(json.loads(process.stdout.readline())["file"])
        self.assertEqual([piece["last"] for piece in pieces], [False] * 20 + [True])
        self.assertEqual(b"".join(base64.b64decode(piece["data"]) for piece in pieces), data)
        process.stdin.close()

    def test_the_initial_model_is_told_once_and_taken_as_a_whole(self):
        first, second = self.agent(silence_s=1000), None
        self.start_one(first)
        data = os.urandom((5 << 20) // 2)
        Path(self.ready["initial"], "part-of-worker-0").write_bytes(data)
        os.replace(Path(self.ready["initial"], "part-of-worker-0"), Path(self.ready["initial"], "initial"))
        pieces = []
        while not pieces or not pieces[-1]["last"]:
            pieces.append(json.loads(first.stdout.readline())["file"])
        self.assertEqual(len(pieces), 4)
        first.stdin.close()
        second = self.agent(silence_s=1000)
        there = Path(self.ready["initial"], "initial")
        for piece in pieces:
            self.assertFalse(there.exists())
            self.send(second, file=piece)
        second.stdin.write(b'{"start": {"name": "end", "command": ["true"], "env": {}, "address_file": null, "processors": [], "shares_initial": false}}\n')
        second.stdin.flush()
        self.assertEqual(json.loads(second.stdout.readline()), {"ended": "end", "status": 0})
        self.assertEqual(there.read_bytes(), data)
        second.stdin.close()


class LinkTest(unittest.TestCase):
    """The launcher's end, with an ssh that takes what it is given or is gone."""

    def link(self, body):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        program = Path(folder.name, "ssh")
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
        with unittest.mock.patch.dict(os.environ, PATH=f"{folder.name}:{os.environ['PATH']}"):
            link = job_hosts.Link(job_hosts.Host("a"), 0, [], "python3", None)
        self.addCleanup(link.close)
        self.addCleanup(link.end)
        return link

    def test_the_source_of_a_file_goes_on_when_all_have_a_piece_or_are_gone(self):
        source, there, gone = self.link("exec cat"), self.link("exec cat >/dev/null"), self.link("exit 0")
        gone.ssh.wait(TIMEOUT_S)
        os.set_blocking(source.output, True)
        for link in (source, there, gone):
            link.begin_to_write()
        for _ in range(3):
            job_hosts.pass_on({"file": {"data": "x" * 100000, "last": False}}, source, [there, gone])
        told = b""
        while told.count(b'{"more": 1}\n') < 3:
            told += os.read(source.output, 1 << 16)


def load_tests(loader, _tests, _pattern):
    """Not those of launch_test.py again, which come with its class."""
    suite = unittest.TestSuite(HostsTest(name) for name in loader.getTestCaseNames(HostsTest) if name in vars(HostsTest))
    suite.addTests(loader.loadTestsFromTestCase(AgentTest))
    suite.addTests(loader.loadTestsFromTestCase(LinkTest))
    return suite


if __name__ == "__main__":
    LAUNCH = launch_test.LAUNCH = os.path.abspath(sys.argv.pop(1))
    unittest.main()
