"""tools/launch, with scripts that stand in for the programs: what it starts, forwards, restarts, reports and leaves behind."""

import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
import unittest.mock
from pathlib import Path

LIB = Path(__file__).resolve().parents[3] / "tools/lib"
sys.path.insert(0, str(LIB))
from lockstep_launch import processors, slots  # noqa: E402

LAUNCH = None  # the path under test, from the command line
TIMEOUT_S = 60
ONE_SIGNAL_S = 0.5  # the launcher's

# Both stand-ins speak through a socket on loopback, so that the tests wait for events only. The coordinator prints a line for each
# worker that comes and does what its script (an argument to --plan.do=) says: the worker's first line is its id and its process id.
# --plan.out= names a worker that it puts out then, and --plan.until= a file that it waits for before it ends.
COORDINATOR = """
import os, signal, socket, sys, threading
arguments = sys.argv[1:]
value = lambda name: arguments[arguments.index(name) + 1]
planned = lambda key, otherwise=None: next((a.split("=", 1)[1] for a in arguments if a.startswith(f"--plan.{key}=")), otherwise)
plan = planned("do", "finish")
log = lambda level, text: print("12:34:56.789 coordinator", level, text, flush=True)
checked = [a.partition("=")[2] for a in arguments if a.startswith("--check-slowdown=")]
if checked:
    for spec in checked:
        if "factro" in spec:
            print(f'lockstep-coordinator: --check-slowdown = "{spec}": unknown key', file=sys.stderr)
            sys.exit(2)
        print(spec)
    sys.exit(0)
run_dir, workers = value("--run-dir"), int(value("--workers"))
os.makedirs(run_dir, exist_ok=True)
def stopped(number, _):
    with open(os.path.join(run_dir, "stopped"), "a") as file:
        print(signal.Signals(number).name, file=file)
    os.write(1, f"asked to stop by {signal.Signals(number).name}\\n".encode())  # print() may have been interrupted
    if plan != "stubborn":
        sys.exit(7)
# A signal just before signal.pause() would wake nobody; here it leaves a byte.
woken, waker = os.pipe()
os.set_blocking(waker, False)
signal.set_wakeup_fd(waker)
signal.signal(signal.SIGINT, stopped)
signal.signal(signal.SIGTERM, stopped)
print("arguments:", *arguments, flush=True)
secret = value("--secret-file")
with open(secret, "rb") as file:
    print("secret:", secret, oct(os.stat(secret).st_mode & 0o777), oct(os.stat(os.path.dirname(secret)).st_mode & 0o777),
          len(file.read()), flush=True)
if plan == "fail":
    print("starting", flush=True)
    print("lockstep-coordinator: bad.ini:3: unknown key", file=sys.stderr)
    sys.exit(2)
unknown = next((a.partition("=")[0] for a in arguments if a.startswith("--foo.")), None)
if unknown:
    near = "--workers" if unknown == "--foo.bar" else "--foo.ok"
    print(f'lockstep-coordinator: {unknown}: unknown option (did you mean "{near}"?)', file=sys.stderr)
    sys.exit(2)
where = value("--listen").rsplit(":", 1)
listener = socket.create_server((where[0], int(where[1])))
temporary = os.path.join(run_dir, "address.tmp")
with open(temporary, "w") as file:
    file.write("127.0.0.1:%d\\n" % listener.getsockname()[1])
os.rename(temporary, os.path.join(run_dir, "coordinator.address"))
print("pid", os.getpid(), flush=True)
channels = []
joins = workers + {"one-more": 1, "three-more": 3}.get(plan, 0)
while len(channels) < joins:
    channel, _ = listener.accept()
    said = channel.makefile().readline().strip()
    print("joined:", said, flush=True)
    log("info", f"worker {said.split()[0]} (incarnation 1) joins from 127.0.0.1:1, host h, cpu")
    channels.append(channel)
    if planned("out") and len(channels) == workers:
        log("warning", f"worker {planned('out')} is out: {planned('why', 'no unit finished for 2.0 s')}")
print("all joined", flush=True)
signal.signal(signal.SIGUSR1, lambda *_: [channel.sendall(b"print\\n") for channel in channels])
if plan == "progress":
    sys.stdout.write("\\r\\x1b[Kround 1\\r\\x1b[Kround 2 of many")
    sys.stdout.flush()
if plan in ("wait", "stubborn", "progress"):
    while True:
        os.read(woken, 1)
if plan == "fail-at-last":
    for channel in channels:
        channel.shutdown(socket.SHUT_RDWR)
while planned("until") and not os.path.exists(planned("until")):
    threading.Event().wait(0.02)
print("final line", flush=True)
sys.exit(1 if plan == "fail-at-last" else 3 if plan == "exit3" else 0)
"""

WORKER = """
import os, socket, sys
import signal
arguments = sys.argv[1:]
value = lambda name: arguments[arguments.index(name) + 1]
slot = value("--id")
print("worker arguments:", *arguments[4:], flush=True)
print("worker's secret:", value("--secret-file"), flush=True)
died = os.path.join(os.path.dirname(os.path.abspath(__file__)), "died")
if os.environ.get("WORKER_LOOKS_IN_VAIN") == slot and os.path.exists(died):
    print("looks for the coordinator", flush=True)
    signal.pause()
if os.environ.get("WORKER_BAD_USAGE") == slot:
    print("worker: --device: no such device", file=sys.stderr)
    sys.exit(2)
host, port = value("--coordinator").rsplit(":", 1)
channel = socket.create_connection((host, int(port)))
channel.sendall(("%s %d\\n" % (slot, os.getpid())).encode())
if os.environ.get("WORKER_DIES") == slot and not os.path.exists(died):
    open(died, "w").close()
    os.kill(os.getpid(), 9)
if os.environ.get("WORKER_COMES_TOO_EARLY") == slot:
    # Dies, is refused twice, and has its place then.
    try:
        with open(died) as file:
            times = len(file.read())
    except FileNotFoundError:
        times = 0
    with open(died, "a") as file:
        file.write("x")
    if times in (1, 2):
        sys.exit(3)
    if times == 0:
        os.kill(os.getpid(), 9)
if os.environ.get("WORKERS_DIE"):
    sys.exit(5)
for line in channel.makefile():
    print("still here", flush=True)
while os.environ.get("WORKER_STAYS") == slot:
    try:  # the next coordinator is started where this one was
        channel = socket.create_connection((host, int(port)))
        channel.sendall(("%s %d\\n" % (slot, os.getpid())).encode())
        channel.recv(1)
    except ConnectionError:
        signal.sigtimedwait([], 0.02)
sys.exit(int(os.environ.get("WORKER_LOST", "0")))
"""


def two_cores():
    """A processor of each of two cores, in ascending order; two of one core where there is but one."""
    cores = [min(core) for node in processors.nodes(processors.read(), os.sched_getaffinity(0)) for core in node]
    return sorted(cores[:2] if len(cores) > 1 else sorted(os.sched_getaffinity(0))[:2])


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # before it was opened, and after
        return False
    return state != "Z"


class LaunchTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        for name, body in (("lockstep-coordinator", COORDINATOR), ("lockstep-worker", WORKER)):
            program = self.folder / name
            program.write_text(f"#!{sys.executable}\n{textwrap.dedent(body)}")
            program.chmod(0o755)
        self.config = self.folder / "job.ini"
        self.config.write_text("[policy]\nname = backup\n")
        self.run_dir = self.folder / "run"

    def command(self, *arguments, plan="finish", workers=2):
        return [sys.executable, "-B", LAUNCH, "-n", str(workers), "--config", str(self.config), "--run-dir", str(self.run_dir),
                "--build-dir", str(self.folder), "--set", f"plan.do={plan}", *arguments]

    def run_to_end(self, *arguments, env=None, only=None, **options):
        """`only`: the processors that the launcher may run on."""
        return subprocess.run(self.command(*arguments, **options), capture_output=True, text=True, timeout=TIMEOUT_S,
                              cwd=self.folder, stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})},
                              preexec_fn=only and (lambda: os.sched_setaffinity(0, only)))

    def start(self, *arguments, env=None, **options):
        return self.start_command(self.command(*arguments, **options), env)

    def start_command(self, command, env=None):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.folder,
                                   stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})})
        self.addCleanup(process.stdout.close)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        return process

    def read_until(self, process, text):
        seen = []
        for line in process.stdout:
            seen.append(line)
            if text in line:
                return "".join(seen)
        self.fail(f"'{text}' did not come; this did:\n{''.join(seen)}")

    def stop_again(self, process):
        """Once the time in which two signals are one is over, since the first one has been acted on."""
        with self.assertRaises(subprocess.TimeoutExpired):
            process.wait(ONE_SIGNAL_S + 0.1)
        process.send_signal(signal.SIGINT)

    def assert_none_left(self, output):
        for pid in re.findall(r"(?:pid|joined: \d+) (\d+)", output):
            deadline = time.monotonic() + TIMEOUT_S
            while is_running(pid):
                self.assertLess(time.monotonic(), deadline, f"process {pid} was left behind")
                os.sched_yield()

    def test_each_run_has_a_secret_of_its_own(self):
        seen = set()
        for arguments, plan in (([], "finish"), ([], "fail"), ([], "exit3")):
            done = self.run_to_end(*arguments, plan=plan)
            path, *about = re.search(r"coordinator \| secret: (\S+) (\S+) (\S+) (\d+)", done.stdout).groups()
            self.assertEqual(about, ["0o600", "0o700", "32"])
            self.assertFalse(Path(path).parent.exists(), "it is still there")
            self.assertNotIn(path, seen)
            seen.add(path)
            for worker in re.findall(r"worker's secret: (\S+)", done.stdout):
                self.assertEqual(worker, path)
        process = self.start(plan="stubborn")
        output = self.read_until(process, "all joined")
        path = re.search(r"coordinator \| secret: (\S+)", output)[1]
        self.assertTrue(Path(path).exists())
        process.send_signal(signal.SIGTERM)
        self.read_until(process, "asked to stop by")
        self.stop_again(process)
        process.wait(TIMEOUT_S)
        self.assertFalse(Path(path).parent.exists(), "it is still there")

    def test_a_job_runs_and_every_line_has_its_process_in_front(self):
        done = self.run_to_end("--http", "127.0.0.1:8080", "--set", "job.rounds=5", workers=3)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(f"coordinator | arguments: --listen 127.0.0.1:0 --workers 3 --config {self.config} "
                      f"--run-dir {self.run_dir} --http 127.0.0.1:8080 --plan.do=finish --job.rounds=5 --secret-file ", done.stdout)
        self.assertEqual(sorted(re.findall(r"joined: (\d)", done.stdout)), ["0", "1", "2"])
        for line in done.stdout.splitlines():
            self.assertRegex(line, r"^(coordinator|worker \d   |launch     ) \| ")
        self.assertIn("final line", done.stdout)
        self.assertNotIn("\x1b", done.stdout)
        self.assert_none_left(done.stdout)

    def test_sizes_become_settings(self):
        done = self.run_to_end("--min-workers", "1", "--max-workers", "4")
        self.assertIn(" --plan.do=finish --job.min_workers=1 --job.max_workers=4 --secret-file ", done.stdout)

    def test_devices_go_round_the_workers(self):
        done = self.run_to_end("--device", "cpu", "--device", "cuda:0", workers=3)
        for worker, device in enumerate(("cpu", "cuda:0", "cpu")):
            self.assertRegex(done.stdout, rf"worker {worker}    \| worker arguments: --id {worker} --device {device}\n")

    def test_slowdowns_go_to_their_worker_or_to_all(self):
        done = self.run_to_end("--slowdown", "worker=1,factor=5", "--slowdown", "factor=2")
        self.assertRegex(done.stdout, r"worker 0    \| worker arguments: --id 0 --slowdown factor=2\n")
        self.assertRegex(done.stdout, r"worker 1    \| worker arguments: --id 1 --slowdown worker=1,factor=5 --slowdown factor=2\n")

    def test_a_slowdown_with_a_mistake_is_refused_before_anything_is_made(self):
        done = self.run_to_end("--slowdown", "factor=2", "--slowdown", "worker=1,factro=5")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertEqual(done.stderr, 'launch: --slowdown = "worker=1,factro=5": unknown key\n')
        self.assertFalse(self.run_dir.exists())

    def test_a_program_of_ones_own_takes_the_workers_place_and_says_what_the_job_is(self):
        program = self.folder / "own.py"
        program.write_text(textwrap.dedent("""
            import os, socket, sys
            env = os.environ
            print("own:", *sys.argv[1:], env["LOCKSTEP_WORKER"], "of", env["LOCKSTEP_WORKERS"],
                  repr(env["LOCKSTEP_SLOWDOWN"]), "by", env["LOCKSTEP_LAUNCHER"], "threads", env["OMP_NUM_THREADS"], flush=True)
            assert os.path.getsize(env["LOCKSTEP_SECRET_FILE"]) == 32
            host, port = env["LOCKSTEP_COORDINATOR"].rsplit(":", 1)
            channel = socket.create_connection((host, int(port)))
            channel.sendall((env["LOCKSTEP_WORKER"] + "\\n").encode())
            channel.recv(1)
            """))
        ended = subprocess.run([sys.executable, "-B", LAUNCH, "-n", "2", "--run-dir", str(self.run_dir), "--build-dir", str(self.folder),
                                "--slowdown", "worker=1,factor=5", "--slowdown", "factor=2",
                                "--", sys.executable, str(program), "--lr", "--n=3"],
                               capture_output=True, text=True, timeout=TIMEOUT_S, cwd=self.folder, stdin=subprocess.DEVNULL,
                               env={**os.environ, "OMP_NUM_THREADS": "7"})
        self.assertEqual(ended.returncode, 0, ended)
        self.assertRegex(ended.stdout, r"coordinator \| arguments: (?!.*--config ).*--config-from-workers")
        self.assertIn("worker 0    | own: --lr --n=3 0 of 2 'factor=2' by tools/launch threads 7\n", ended.stdout)
        self.assertIn(r"worker 1    | own: --lr --n=3 1 of 2 'worker=1,factor=5\nfactor=2' by tools/launch threads 7", ended.stdout)

    @unittest.skipIf(len(os.sched_getaffinity(0)) < 2, "one processor")
    def test_workers_are_held_to_processors(self):
        worker = self.folder / "lockstep-worker"
        worker.write_text(worker.read_text().replace("import os, socket, sys\n", "import os, socket, sys\n"
                                                     "print('held to', *sorted(os.sched_getaffinity(0)), flush=True)\n"))
        some = two_cores()
        done = self.run_to_end("--bind-to", "core", only=some)
        if done.returncode == 2:  # two processors of one core
            self.assertEqual(done.stderr, "launch: --bind-to core: 2 workers and 1 core: not each can have one\n")
        else:
            for slot, cpu in enumerate(some):
                self.assertIn(f"launch      | worker {slot} is bound to processors {cpu}\n", done.stdout)
                self.assertIn(f"worker {slot}    | held to {cpu}\n", done.stdout)
        done = self.run_to_end("--bind-to", "numa")
        self.assertEqual((done.returncode, len(re.findall(r"\| worker [01] is bound to processors [0-9,-]+\n", done.stdout))), (0, 2), done)
        done = self.run_to_end("--bind-to", "core", only=some[:1])
        self.assertEqual((done.returncode, done.stdout, done.stderr), (2, "", "launch: --bind-to core: 2 workers and 1 core: not each can have one\n"))
        done = self.run_to_end("--bind-to", "socket")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--bind-to", done.stderr)
        done = self.run_to_end()
        self.assertNotIn("is bound to", done.stdout)

    def test_who_reads_nothing_of_where_workers_are_held_ends_the_job_in_good_order(self):
        command = " ".join(map(shlex.quote, self.command("--bind-to", "numa")))
        done = subprocess.run(["sh", "-c", f"{command} | true"], capture_output=True, text=True, timeout=TIMEOUT_S, cwd=self.folder,
                              stdin=subprocess.DEVNULL)
        self.assertEqual(done.stderr, "")

    def after_the_job(self, *settings, seconds=None):
        """A launcher whose job has completed and whose programs go on, with what it has said so far, and what lets them end."""
        program, mark = self.folder / "own.py", self.folder / "mark"
        program.write_text(textwrap.dedent("""
            import os, socket, sys, threading
            host, port = os.environ["LOCKSTEP_COORDINATOR"].rsplit(":", 1)
            channel = socket.create_connection((host, int(port)))
            channel.sendall(("%s %d\\n" % (os.environ["LOCKSTEP_WORKER"], os.getpid())).encode())
            channel.recv(1)
            while not os.path.exists(sys.argv[1]):
                threading.Event().wait(0.05)
            print("saved", flush=True)
            """))
        command = [sys.executable, "-B", LAUNCH, "-n", "2", "--run-dir", str(self.run_dir), "--build-dir", str(self.folder), *settings,
                   "--", sys.executable, str(program), str(mark)]
        process = subprocess.Popen(self.with_other_times(command, **seconds) if seconds else command, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, cwd=self.folder, stdin=subprocess.DEVNULL)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait, TIMEOUT_S)
        return process, self.read_until(process, "the job is over; waiting for the program of worker 0, 1 to end"), mark

    def test_what_a_program_does_after_its_job_is_waited_for(self):
        process, seen, mark = self.after_the_job()
        mark.touch()
        seen += process.stdout.read()
        self.assertEqual(process.wait(TIMEOUT_S), 0)
        self.assertEqual(seen.count("| saved\n"), 2, seen)
        self.assertNotIn("SIGTERM", seen)

    def test_what_a_program_that_has_left_does_after_its_job_is_waited_for(self):
        process, seen, mark = self.after_the_job("--set", "plan.out=1", "--set", "plan.why=it leaves: the worker ends", seconds={"WORKERS_END_S": 0.0, "AFTER_S": 0.1})
        mark.touch()
        seen += process.stdout.read()
        self.assertEqual((process.wait(TIMEOUT_S), seen.count("| saved\n")), (0, 2), seen)

    def test_what_a_program_does_after_its_job_is_ended_by_a_signal(self):
        process, seen, _ = self.after_the_job()
        process.send_signal(signal.SIGINT)
        seen += process.stdout.read()
        self.assertEqual(process.wait(TIMEOUT_S), 130)
        self.assertIn("SIGINT: the job is over; ending the programs that still run", seen)
        self.assertIn("worker 0, 1 do not end: SIGTERM", seen)
        self.assert_none_left(seen)

    def command_of(self, program, *settings, seconds=None):
        """A job of two that completes, with this text as its workers' program, which begins as a member."""
        file = self.folder / "own.py"
        file.write_text(textwrap.dedent("""
            import os, signal, socket, sys
            host, port = os.environ["LOCKSTEP_COORDINATOR"].rsplit(":", 1)
            channel = socket.create_connection((host, int(port)))
            worker = os.environ["LOCKSTEP_WORKER"]
            channel.sendall(f"{worker} {os.getpid()}\\n".encode())
            """) + textwrap.dedent(program))
        command = [sys.executable, "-B", LAUNCH, "-n", "2", "--run-dir", str(self.run_dir), "--build-dir", str(self.folder),
                   *(word for setting in settings for word in ("--set", setting)), "--", sys.executable, str(file)]
        return self.with_other_times(command, **seconds) if seconds else command

    def job_of(self, program, *settings, **options):
        done = self.run_command(self.command_of(program, *settings, **options))
        self.assertNotIn("Traceback", done.stdout + done.stderr)
        self.assert_none_left(done.stdout)
        return done

    def test_a_program_that_fails_after_its_job_is_the_launchers_status(self):
        saves = "worker 0, which saves the model in most scripts, has failed"
        for failing, settings, status, why in (("01", (), 1, saves), ("0", (), 1, saves), ("1", (), 1, "the program of worker 1 has failed after it"),
                                               ("0", ("plan.out=0",), 1, saves), ("1", ("plan.out=1",), 0, ""), ("", (), 0, "")):
            with self.subTest(failing, settings=settings):
                done = self.job_of(f"channel.recv(1)\nsys.exit(9 if worker in '{failing}' else 0)\n" if failing else "channel.recv(1)\n", *settings)
                self.assertEqual(done.returncode, status, done)
                said = f"launch      | the job has completed, but {why}: exit status 1\n"
                self.assertEqual(said in done.stdout, status == 1, done.stdout)

    def test_a_program_that_ends_with_its_job_has_been_in_it_to_the_end(self):
        """The launcher hears of its end before the coordinator's."""
        end = self.folder / "end"
        process = self.start_command(self.command_of("sys.exit(9) if worker == '1' else channel.recv(1)\n", f"plan.until={end}"))
        seen = self.read_until(process, "worker 1 ended with status 9")
        end.touch()
        seen += process.stdout.read()
        self.assertEqual(process.wait(TIMEOUT_S), 1, seen)

    def test_a_program_that_was_put_out_and_is_stopped_does_not_keep_the_launcher(self):
        for out, status in ((("plan.out=1",), 0), ((), 1)):  # the second one is not missed by the end of the job
            with self.subTest(out):
                done = self.job_of("""
                    if worker == "1":
                        os.kill(os.getpid(), signal.SIGSTOP)
                        sys.exit(9)
                    channel.recv(1)
                    """, *out)
                self.assertEqual(done.returncode, status, done)
                self.assertIn("launch      | worker 1 ended with status 9\n", done.stdout)

    def test_a_program_that_was_put_out_and_hangs_is_ended(self):
        mark = self.folder / "hangs"
        hangs = f"""
            if worker == "1":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                open({str(mark)!r}, "w").close()
                signal.pause()
            channel.recv(1)
            """
        done = self.job_of(hangs, "plan.out=1", f"plan.until={mark}", seconds={"WORKERS_END_S": 0.0, "TERM_S": 0.1})
        self.assertEqual(done.returncode, 0, done)
        self.assertIn("launch      | worker 1 does not end: SIGKILL\n", done.stdout)

    def run_program(self, program):
        return subprocess.run([sys.executable, "-B", LAUNCH, "-n", "2", "--run-dir", str(self.run_dir), "--build-dir", str(self.folder),
                               "--", program], capture_output=True, text=True, timeout=TIMEOUT_S, cwd=self.folder, stdin=subprocess.DEVNULL)

    def test_a_program_that_is_not_there_is_told_before_anything_is_started(self):
        (self.folder / "script.py").write_text("")
        for program, words in (("nofile", "nofile: there is no such program on PATH"), ("./nofile", "./nofile: No such file or directory"),
                               ("script.py", "script.py: there is no such program on PATH; for the file in this folder say ./script.py"),
                               ("./script.py", "./script.py is not executable"), ("/", "/ is no program")):
            done = self.run_program(program)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (2, "", f"launch: {words}\n"))
        self.assertFalse(self.run_dir.exists())

    def test_programs_that_end_without_having_joined_are_told_so(self):
        for program, told in (("true", True), ("false", False)):
            done = self.run_program(program)
            self.assertEqual(done.returncode, 1, done)
            lines = "launch      | no worker has joined the job\nlaunch      | no worker is left: the job ends\n"
            self.assertEqual(lines in done.stdout, told, done.stdout)

    def test_the_coordinators_status_is_the_jobs(self):
        self.assertEqual(self.run_to_end(plan="exit3").returncode, 3)
        failed = self.run_to_end(plan="fail")
        self.assertEqual(failed.returncode, 2)
        self.assertIn("coordinator | lockstep-coordinator: bad.ini:3: unknown key\n", failed.stdout)
        self.assertEqual(failed.stderr, "launch: bad.ini:3: unknown key\n")
        self.assertNotIn("run directory", failed.stdout)

    def test_what_the_coordinator_says_of_a_setting_is_told_of_set(self):
        for key, hint in (("foo.bar", ""), ("foo.o", ' (did you mean "foo.ok"?)')):
            failed = self.run_to_end("--set", f"{key}=1")
            self.assertEqual((failed.returncode, failed.stderr), (2, f"launch: --set {key}: unknown option{hint}\n"))

    def test_a_stale_address_of_an_earlier_start_is_not_used(self):
        self.run_dir.mkdir()
        (self.run_dir / "coordinator.address").write_text("127.0.0.1:1\n")
        done = self.run_to_end("--resume")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn(" --resume ", done.stdout)

    def test_the_first_signal_goes_to_the_coordinator_once(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            process = self.start(plan="wait")
            seen = self.read_until(process, "all joined")
            process.send_signal(number)
            seen += process.stdout.read()
            self.assertEqual(process.wait(TIMEOUT_S), 7)
            self.assertEqual(seen.count(f"asked to stop by {number.name}"), 1)
            self.assert_none_left(seen)

    def test_the_second_signal_kills_all(self):
        process = self.start(plan="stubborn")
        seen = self.read_until(process, "all joined")
        process.send_signal(signal.SIGINT)
        seen += self.read_until(process, "asked to stop by SIGINT")
        self.assertIsNone(process.poll())
        self.stop_again(process)
        seen += process.stdout.read()
        self.assertEqual(process.wait(TIMEOUT_S), 128 + signal.SIGKILL)
        self.assert_none_left(seen)

    def test_two_signals_at_once_are_one(self):
        process = self.start(plan="wait")  # under timeout(1), which signals it and its process group
        seen = self.read_until(process, "all joined")
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        seen += process.stdout.read()
        self.assertEqual(process.wait(TIMEOUT_S), 7, seen)
        self.assertEqual(len(re.findall(r"asked to stop by", seen)), 1, seen)
        self.assert_none_left(seen)

    def test_nothing_is_left_when_the_launcher_is_killed(self):
        process = self.start(plan="wait")
        seen = self.read_until(process, "all joined")
        process.kill()
        process.wait(TIMEOUT_S)
        self.assertEqual(len(re.findall(r"(?:pid|joined: \d+) (\d+)", seen)), 3)
        self.assert_none_left(seen)

    def test_a_killed_worker_does_not_end_the_job(self):
        done = self.run_to_end(env={"WORKER_DIES": "1"})
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("final line", done.stdout)

    def test_a_dead_worker_is_started_again_as_often_as_asked(self):
        done = self.run_to_end("--restart-workers", "1", plan="one-more", env={"WORKER_DIES": "1"})
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("worker 1 was ended by SIGKILL; restarting it in 1 s (0 restarts left)", done.stdout)
        self.assertEqual(len(re.findall(r"joined: 1 ", done.stdout)), 2)

    def test_a_restarted_worker_that_finds_its_place_taken_tries_again(self):
        # The stand-in coordinator counts connections: of each try of worker 1 one, and one of worker 0.
        done = self.run_to_end("--restart-workers", "1", plan="three-more", env={"WORKER_COMES_TOO_EARLY": "1"})
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(len(re.findall(r"joined: 1 ", done.stdout)), 4)
        self.assertIn("worker 1 was ended by SIGKILL; restarting it in 1 s (0 restarts left)", done.stdout)
        self.assertNotIn("the job ends", done.stdout)
        self.assertEqual(done.stdout.count("the job has no place for it yet; it is restarted every second, for 10 minutes at most"), 1)

    def with_other_times(self, command, waits=None, **seconds):
        """The command with a launcher that has these constants."""
        other = self.folder / "launch-with-other-times"
        other.write_text(textwrap.dedent(f"""
            import sys
            sys.path.insert(0, {str(LIB)!r})
            from lockstep_launch import main, slots, times
            slots.WAITS_S = {waits} or slots.WAITS_S
            for name, value in {seconds}.items():
                getattr(times, name)
                setattr(times, name, value)
            sys.exit(main.main())
            """))
        return [str(other) if word == LAUNCH else word for word in command]

    def run_command(self, command, **env):
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=self.folder, stdin=subprocess.DEVNULL,
                              env={**os.environ, **env})

    def test_a_program_that_has_no_place_for_too_long_has_failed(self):
        command = self.with_other_times(self.command("--restart-workers", "3", plan="three-more"), NO_PLACE_S=0.0, waits=(0,))
        done = self.run_command(command, WORKER_COMES_TOO_EARLY="1")
        self.assertEqual(done.returncode, 0, done)
        for left in ("2 restarts", "1 restart", "0 restarts"):  # it is killed, and has no place twice
            self.assertEqual(done.stdout.count(f"restarting it in 0 s ({left} left)"), 1, done.stdout)
        self.assertNotIn("no place", done.stdout)

    def test_a_worker_that_keeps_dying_is_restarted_less_and_less_often(self):
        process = self.start("--restart-workers", "3", plan="three-more", workers=1, env={"WORKERS_DIE": "1"})
        seen = self.read_until(process, "worker 0 ended with status 5; restarting it in 1 s (2 restarts left)")
        seen += self.read_until(process, "worker 0 ended with status 5; restarting it in 10 s (1 restart left)")
        process.send_signal(signal.SIGTERM)
        seen += process.stdout.read()
        self.assertEqual(process.wait(TIMEOUT_S), 7, seen)
        self.assertEqual(len(re.findall(r"joined: 0 ", seen)), 2, seen)

    def test_a_coordinator_that_was_killed_is_started_again_where_it_was(self):
        process = self.start("--restart-coordinator", "2", plan="wait", workers=1, env={"WORKER_STAYS": "0"})
        seen = ""
        for left in ("1 restart", "0 restarts"):
            seen = self.read_until(process, "all joined")
            os.kill(int(re.search(r"pid (\d+)", seen)[1]), signal.SIGKILL)
            seen += self.read_until(process, f"the coordinator was ended by SIGKILL; restarting it ({left} left)")
            again = self.read_until(process, "arguments:")
            address = (self.run_dir / "coordinator.address").read_text().strip()
            self.assertRegex(again, rf"--listen {re.escape(address)} .* --reattach")
        seen = self.read_until(process, "all joined")
        os.kill(int(re.search(r"pid (\d+)", seen)[1]), signal.SIGKILL)
        seen += process.stdout.read()
        self.assertEqual(process.wait(TIMEOUT_S), 128 + signal.SIGKILL, seen)
        self.assertNotIn("restarting it", seen)
        self.assertEqual(seen.count("worker arguments"), 0, seen)  # those of the first start go on

    def test_a_worker_that_waits_for_its_restart_gets_it_although_the_coordinator_dies(self):
        process = self.start("--restart-workers", "1", plan="wait", env={"WORKER_STAYS": "0", "WORKER_DIES": "1"})
        seen = self.read_until(process, "worker 1 was ended by SIGKILL; restarting it in 1 s")
        os.kill(int(re.search(r"pid (\d+)", seen)[1]), signal.SIGKILL)
        self.read_until(process, "the coordinator was ended by SIGKILL; restarting it")
        hang = threading.Timer(TIMEOUT_S, process.kill)
        hang.start()
        self.addCleanup(hang.cancel)
        self.read_until(process, "all joined")
        process.kill()  # and all that it has started
        process.wait(TIMEOUT_S)

    def test_no_worker_is_started_for_a_job_that_is_over(self):
        over = self.folder / "over"
        process = self.start("--restart-workers", "3", "--set", f"plan.until={over}", plan="fail-at-last", env={"WORKER_LOST": "1"})
        seen = "".join(self.read_until(process, "ended with status 1") for _ in range(2))
        over.touch()
        seen += process.stdout.read()
        self.assertEqual(process.wait(TIMEOUT_S), 1, seen)
        self.assertEqual(seen.count("worker arguments"), 2, seen)

    def test_a_worker_that_looks_for_a_job_that_is_over_is_ended_soon(self):
        command = self.with_other_times(self.command("--restart-workers", "1", "--restart-coordinator", "0", plan="wait"),
                                        WORKERS_END_S=1000.0)
        process = self.start_command(command, env={"WORKER_DIES": "1", "WORKER_LOOKS_IN_VAIN": "1"})
        seen = self.read_until(process, "looks for the coordinator")
        os.kill(int(re.search(r"pid (\d+)", seen)[1]), signal.SIGKILL)
        self.assertEqual(process.wait(TIMEOUT_S), 128 + signal.SIGKILL)
        seen += process.stdout.read()
        self.assertIn("worker 1 does not end: SIGTERM\n", seen)
        self.assert_none_left(seen)

    def test_what_was_put_out_and_does_not_end_is_replaced(self):
        (self.folder / "lockstep-worker").write_text(f"#!{sys.executable}\n" + textwrap.dedent(WORKER).replace(
            "for line in", "if slot == '1' and not os.path.exists(died):\n    open(died, 'w').close()\n"
            "    os.kill(os.getpid(), signal.SIGSTOP)\n    signal.pause()\nfor line in").replace(
            "host, port =", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nhost, port ="))
        command = self.with_other_times(self.command("--restart-workers", "1", "--set", "plan.out=1", plan="one-more"), WORKERS_END_S=0.2, TERM_S=0.2)
        done = self.run_command(command)
        self.assertEqual(done.returncode, 0, done)
        for line in ("worker 1 does not end: SIGTERM", "worker 1 does not end: SIGKILL", "worker 1 was ended by SIGKILL; restarting it in 1 s (0 restarts left)"):
            self.assertIn(f"launch      | {line}\n", done.stdout)
        self.assertEqual(len(re.findall(r"joined: 1 ", done.stdout)), 2)

    def test_a_worker_that_was_told_nonsense_ends_the_job(self):
        done = self.run_to_end(plan="wait", env={"WORKER_BAD_USAGE": "0"})
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("worker: --device: no such device", done.stdout)
        self.assertIn("asked to stop by SIGTERM", done.stdout)
        self.assert_none_left(done.stdout)

    def test_a_mistake_that_all_workers_make_at_once_is_told_by_the_status(self):
        """The coordinator is left without workers and ends first."""
        done = self.run_to_end(plan="fail-at-last", env={"WORKER_LOST": "2"})
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assert_none_left(done.stdout)

    def test_bad_usage_is_one_line_and_status_2(self):
        (self.folder / "empty").mkdir()
        (self.folder / "locked").mkdir(0)
        base = ["-n", "2", "--config", str(self.config)]
        for arguments in ([], ["-n", "0", "--config", str(self.config)], ["-n", "2", "--config", "none.ini"],
                          [*base, "--set", "nonsense"], [*base, "--slowdown", "worker=2,factor=3"],
                          [*base, "--slowdown", "fast"], [*base, "--resume"], [*base, "--unknown"],
                          [*base, "--restart-workers", "-1"], [*base, "--min-workers", "0"], [*base, "--max-workers", "many"],
                          [*base, "--max-workers", "4", "--set", "job.max_workers=4"], [*base, "--build-dir", str(self.folder / "empty")],
                          ["-n", "2", "--config", "x" * 300], [*base, "--resume", "--run-dir", "x" * 300],
                          ["-n", "2", "--config", "locked/job.ini"], [*base, "--resume", "--run-dir", "locked/run"],
                          ["-n", "2", "--", "./" + "x" * 300], ["-n", "2", "--", "locked/program"]):
            with self.subTest(arguments):
                done = subprocess.run([sys.executable, "-B", LAUNCH, *arguments], capture_output=True, text=True,
                                      timeout=TIMEOUT_S, cwd=self.folder)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertRegex(done.stderr, r"^launch: [^\n]+\n$")
        self.assertFalse((self.folder / "runs").exists())

    def test_the_default_run_directory_bears_the_policy(self):
        command = self.command("--set", "policy.name=full+flexrr")
        at = command.index("--run-dir")
        del command[at:at + 2]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=TIMEOUT_S, cwd=self.folder)
        (run_dir,) = (self.folder / "runs").iterdir()
        self.assertRegex(run_dir.name, r"^\d{8}-\d{6}-full\+flexrr$")

    def on_terminal(self, **env):
        """What a terminal gets to see of a job with a progress line, whose workers then each print a line, until it is stopped."""
        master, terminal = pty.openpty()
        process = subprocess.Popen(self.command(plan="progress"), stdin=terminal, stdout=terminal, stderr=terminal,
                                   cwd=self.folder, env={**os.environ, "TERM": "xterm", **env})
        os.close(terminal)
        seen = ""

        def see(until):
            nonlocal seen
            deadline = time.monotonic() + TIMEOUT_S
            while not re.search(until, seen):
                self.assertTrue(select.select([master], [], [], max(0, deadline - time.monotonic()))[0], seen)
                seen += os.read(master, 65536).decode()

        see(r"round 2 of many$")
        os.kill(int(re.search(r"pid (\d+)", seen).group(1)), signal.SIGUSR1)
        see(r"(?s)(still here.*){2}round 2 of many$")
        process.send_signal(signal.SIGTERM)
        while process.poll() is None:
            try:
                os.read(master, 65536)
            except OSError:
                break
        self.assertEqual(process.wait(TIMEOUT_S), 7)
        os.close(master)
        return seen

    def test_the_progress_line_stays_below_the_others_on_a_terminal(self):
        seen = self.on_terminal(NO_COLOR="")
        self.assertIn("\x1b[36mcoordinator | \x1b[0mround 2 of many", seen)
        # Each line erases the progress line, takes its place, and the progress line follows.
        self.assertRegex(seen, r"\r\x1b\[K\x1b\[32mworker 0    \| \x1b\[0mstill here\r\n\r\x1b\[K\x1b\[36mcoordinator \|")

    def test_no_color_takes_the_colours_and_leaves_the_progress_line(self):
        seen = self.on_terminal(NO_COLOR="1")
        self.assertIn("\rcoordinator | round 2 of many".replace("\r", "\r\x1b[K"), seen)
        self.assertNotRegex(seen, r"\x1b\[\d+m")

    def test_a_signal_ends_the_job_although_its_reader_has_gone_away(self):
        process = self.start(plan="wait")  # as `tools/launch | tee log` at Ctrl-C, which tee gets as well
        seen = self.read_until(process, "all joined")
        process.stdout.close()
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(TIMEOUT_S), 7)
        self.assert_none_left(seen)

    def test_a_terminal_that_is_closed_ends_the_job_in_good_order(self):
        for term in ("xterm", "dumb"):
            with self.subTest(term):
                pid, master = pty.fork()
                if pid == 0:
                    os.chdir(self.folder)
                    os.environ["TERM"] = term
                    command = self.command(plan="wait")
                    os.execv(command[0], command)
                seen = ""
                while "all joined" not in seen:
                    self.assertTrue(select.select([master], [], [], TIMEOUT_S)[0], seen)
                    seen += os.read(master, 65536).decode()
                os.close(master)  # kernel and shell both tell of it
                self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 7, seen)
                self.assertEqual((self.run_dir / "stopped").read_text(), "SIGTERM\n")
                self.assert_none_left(seen)
                (self.run_dir / "stopped").unlink()

    def test_a_terminal_that_is_closed_is_no_second_signal(self):
        process = self.start(plan="stubborn")
        seen = self.read_until(process, "all joined")
        process.send_signal(signal.SIGHUP)
        self.read_until(process, "asked to stop by SIGTERM")
        with self.assertRaises(subprocess.TimeoutExpired):
            process.wait(ONE_SIGNAL_S + 0.1)
        process.send_signal(signal.SIGHUP)
        # What comes after the first of these is heard after the signal.
        for _ in range(2):
            os.kill(int(re.search(r"pid (\d+)", seen)[1]), signal.SIGUSR1)
            for _ in range(2):
                self.read_until(process, "still here")
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        self.assertEqual(process.wait(TIMEOUT_S), 128 + signal.SIGKILL)
        self.assert_none_left(seen)

    @unittest.skipUnless(os.path.exists("/dev/full"), "there is no /dev/full")
    def test_a_log_on_a_full_disk_ends_the_job_in_good_order(self):
        with open("/dev/full", "w") as full:
            process = subprocess.Popen(self.command(plan="wait"), stdout=full, stderr=full, cwd=self.folder, stdin=subprocess.DEVNULL)
        self.assertEqual(process.wait(TIMEOUT_S), 7)
        self.assertEqual((self.run_dir / "stopped").read_text(), "SIGTERM\n")

    def test_others_text_is_passed_on_in_any_locale(self):
        worker = self.folder / "lockstep-worker"
        worker.write_text(worker.read_text().replace("import os, socket, sys\n", "import os, socket, sys\n"
                                                     "sys.stdout.buffer.write(b'gr\\xc3\\xbc\\xc3\\x9fe \\xe2\\x96\\x88\\n')\nsys.stdout.flush()\n"))
        for encoding, words in (("ascii", "gr??e ?"), ("utf-8", "gr\u00fc\u00dfe \u2588"), ("utf-8:strict", "gr\u00fc\u00dfe \u2588")):
            done = subprocess.run(self.command(), capture_output=True, timeout=TIMEOUT_S, cwd=self.folder, stdin=subprocess.DEVNULL,
                                  env={**os.environ, "PYTHONIOENCODING": encoding})
            self.assertEqual((done.returncode, done.stderr), (0, b""))
            self.assertIn(f"worker 1    | {words}\n", done.stdout.decode())

    def test_a_reader_that_goes_away_ends_the_job(self):
        process = self.start(plan="wait")
        seen = self.read_until(process, "all joined")
        process.stdout.close()
        pid = re.search(r"joined: 0 (\d+)", seen).group(1)
        os.kill(int(pid), signal.SIGKILL)  # makes it print
        self.assertEqual(process.wait(TIMEOUT_S), 7)
        self.assert_none_left(seen)


class SlotTest(unittest.TestCase):
    def test_waits_grow_while_processes_live_shortly(self):
        slot, now = slots.Slot(restarts=10), 0.0
        with unittest.mock.patch.object(slots.time, "monotonic", lambda: now):
            waits = []
            for lived in (5, 5, 5, 5, 5, 59, 61, 5):
                slot.starts_now()
                now += lived
                waits.append(slot.wait_for_restart())
                now += waits[-1]
                self.assertEqual(slot.again, now)
        self.assertEqual(waits, [1, 10, 20, 40, 60, 60, 1, 10])
        self.assertEqual(slot.restarts, 2)

    def test_a_word_about_the_process_before_is_none_about_this_one(self):
        slot = slots.Slot(restarts=1)
        joins, out = "1 coordinator info worker 1 (incarnation 1) joins from h:1, host h, pid 1, cpu", "1 coordinator warning worker 1 is out: gone"
        slot.starts_now()
        slots.take(joins, {1: slot})
        slots.take(out, {1: slot})
        self.assertTrue(slot.put_out)
        slot.starts_now()
        slots.take(out, {1: slot})
        self.assertFalse(slot.put_out)
        self.assertTrue(slot.came_too_late)
        slots.take(joins, {1: slot})
        self.assertFalse(slot.came_too_late)
        slots.take(out.replace("gone", "it leaves: ValueError"), {1: slot})
        self.assertFalse(slot.put_out)
        self.assertIsNotNone(slot.out_since)


if __name__ == "__main__":
    # What a shell starts in the background ignores Ctrl-C, and so would all that is started from here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    LAUNCH = os.path.abspath(sys.argv.pop(1))
    unittest.main()
