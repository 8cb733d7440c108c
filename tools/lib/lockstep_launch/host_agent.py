"""tools/launch runs this agent on each host of a job, under `ssh HOST python -c ...`, which reads this file from its standard input.

Lines of JSON go both ways. The launcher sends `begin` once, then `start`, `signal`, `file`, `more` and `worker_0_ended`, and empty objects
as signs of life. The agent sends a line that is MARK, then `ready` or `error`, and then `address`, `out`, `ended` and `file`. The secret
comes in `begin`, so it is on no command line and in no environment. It lies in a folder for this user alone. The job's config is there too,
and the folder in which workers find the initial model.

The end of the input, or its silence, ends every process that was started here: the launcher is gone, or cannot be heard.
"""

import base64
import codecs
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

MARK = "lockstep host agent"  # earlier output of a login shell is ignored
ADDRESS_LOOK_S = 0.05
FILE_LOOK_S = 0.05
PIECE = 1 << 20  # bytes of a file in a message
PIECES_AHEAD = 16  # pieces that no host has taken yet: the launcher holds them in its memory
OUTPUT_END_S = 1.0  # for the rest in the pipe of a process that has ended, which a child of it may hold open
KILLED_S = 1.0  # for killed processes to disappear
INITIAL = "initial"  # the file with worker 0's model; python/lockstep/_initial.py has the name
ENDED = "ended"  # the file that tells the others that no model comes any more
# Becomes a program that ends with its parent (1 is PR_SET_PDEATHSIG, 9 is SIGKILL). It is not done between fork and exec, since this
# process has threads.
DIE_WITH_PARENT = """
import ctypes, os, signal, sys
for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python itself ignores
    signal.signal(number, signal.SIG_DFL)
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    try:
        if sys.argv[2]:
            try:
                os.sched_setaffinity(0, map(int, sys.argv[2].split(",")))
            except OSError as error:  # as where a processor has gone since
                print(f"not bound to processors {sys.argv[2]}: {error.strerror}", file=sys.stderr)
        os.execvp(sys.argv[3], sys.argv[3:])
    except OSError as error:
        print(f"{sys.argv[3]}: {error.strerror}", file=sys.stderr)
        os._exit(2)
"""
WHERE_PROGRAMS_ARE = "from lockstep import _place; print(_place.program('lockstep-coordinator').parent)"


def ending_with_us(command, processors=()):
    return [sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, str(os.getpid()), ",".join(map(str, processors)), *command]


class Unfit(Exception):
    """One line: the reason why this host cannot take part."""


class Agent:
    def __init__(self, source, sink):
        self.source, self.sink = source, sink
        self.writing = threading.Lock()
        self.folder = None
        self.processes = {}
        self.shared = False  # the initial model has gone to the others
        self.room = threading.Semaphore(PIECES_AHEAD)
        self.over = threading.Event()
        self.heard = time.monotonic()

    def run(self):
        self.say_line("\n" + MARK)
        try:
            for line in self.source:
                self.heard = time.monotonic()
                message = json.loads(line)
                for name, handle in (("begin", self.begin), ("start", self.start), ("signal", self.signal), ("file", self.take_file),
                                     ("more", self.send_more), ("worker_0_ended", self.note_end_of_worker_0)):
                    if name in message:
                        handle(message[name])
        except Unfit as error:
            self.say({"error": str(error)})
        except Exception as error:
            self.say({"error": f"{type(error).__name__}: {error}"})
        self.end()

    def say(self, message):
        self.say_line(json.dumps(message))

    def say_line(self, line):
        try:
            with self.writing:
                self.sink.write(line.encode() + b"\n")
                self.sink.flush()
        except OSError:
            pass  # the launcher is gone: the input ends as well

    # --- at the beginning

    def begin(self, what):
        threading.Thread(target=self._watch_silence, args=(what["silence_s"],), daemon=True).start()
        try:
            if what["cwd"]:
                os.chdir(what["cwd"])
        except OSError as error:
            raise Unfit(f"no working directory {what['cwd']}: {error.strerror} (name another one with --cwd)") from None
        os.environ.update(what["env"])
        if what["script"] and not os.path.isfile(what["script"]):
            raise Unfit(f"there is no script {what['script']} in {os.getcwd()}")
        programs = self._programs(what)
        self.folder = tempfile.mkdtemp(prefix="lockstep-")  # 0700
        secret, initial = os.path.join(self.folder, "secret"), os.path.join(self.folder, "initial")
        self._write(secret, bytes.fromhex(what["secret"]))
        os.mkdir(initial, 0o700)
        config = None
        if what["config"]:  # its name, for messages, and its text
            config = os.path.join(self.folder, what["config"][0])
            self._write(config, what["config"][1].encode("utf-8", "surrogateescape"))
        self.initial = initial
        self.heard = time.monotonic()  # all this may have taken some time
        self.say({"ready": {"connection": os.environ.get("SSH_CONNECTION", ""), "processors": sorted(os.sched_getaffinity(0)),
                            "lists": self._lists() if what["bound"] else {}, "programs": programs, "secret": secret, "config": config, "initial": initial}})

    @staticmethod
    def _lists():
        """The kernel's lists of processors, for processors.py."""
        lists = {}
        for path in [*glob.glob("/sys/devices/system/node/node*/cpulist"), *glob.glob("/sys/devices/system/cpu/cpu*/topology/thread_siblings_list")]:
            try:
                with open(path, encoding="ascii") as file:
                    lists[path.lstrip("/")] = file.read()
            except (OSError, ValueError):
                pass
        return lists

    @staticmethod
    def _write(path, data):
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)

    def _programs(self, what):
        """The folder with the programs of Lockstep here that have the launcher's version; None: there is none."""
        if not what["programs"]:
            return None
        if what["package"]:
            found = self._ask([sys.executable, "-c", WHERE_PROGRAMS_ARE])
            if found.returncode != 0:
                last = (found.stderr.strip().splitlines() or ["no word"])[-1]
                if "No module named 'lockstep'" in last:
                    raise Unfit(f"{sys.executable} has no lockstep: install the wheel there, or name another Python with --python")
                raise Unfit(f"lockstep of {sys.executable} cannot be used: {last}")
            folder = found.stdout.strip()
        else:
            folder = self._folder_of(what["programs"], what["build_dir"])
        for name in what["programs"]:
            program = os.path.join(folder, name)
            if not os.path.exists(program):
                raise Unfit(f"there is no {program}")
            asked = self._ask([program, "--version"])
            if asked.returncode != 0:
                raise Unfit(f"{program} does not run: {(asked.stderr.strip().splitlines() or ['no word'])[-1]}")
            version = (asked.stdout.split() or ["?"])[-1]
            if version != what["version"]:
                raise Unfit(f"{program} is lockstep {version}, and the launcher is {what['version']}: install the same version on all hosts")
        return folder

    @staticmethod
    def _ask(command):
        """It may take long (a file system that hangs): it ends with this process, which the silence ends."""
        return subprocess.run(ending_with_us(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              universal_newlines=True, check=False)

    @staticmethod
    def _folder_of(programs, build_dir):
        if build_dir:
            for folder in (os.path.join(build_dir, "bin"), build_dir):
                if os.path.isfile(os.path.join(folder, programs[0])):
                    return folder
            raise Unfit(f"there is no {programs[0]} in {build_dir}")
        found = shutil.which(programs[0])
        if found is None:
            raise Unfit(f"{programs[0]} is not on PATH: install lockstep there, or name its folder with --build-dir")
        return os.path.dirname(found)

    # --- processes

    def start(self, what):
        name, command = what["name"], what["command"]
        address = self._identity(what["address_file"])
        process = subprocess.Popen(ending_with_us(command, what["processors"]), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, start_new_session=True, env={**os.environ, **what["env"]})
        self.processes[name] = process
        reader = threading.Thread(target=self._forward, args=(name, process.stdout.fileno()), daemon=True)
        reader.start()
        sharing = threading.Event()
        threading.Thread(target=self._await, args=(name, process, reader, sharing), daemon=True).start()
        if what["address_file"]:
            threading.Thread(target=self._tell_address, args=(process, what["address_file"], address), daemon=True).start()
        if what["shares_initial"]:
            threading.Thread(target=self._share_initial, args=(process, sharing), daemon=True).start()
        else:
            sharing.set()

    def _forward(self, name, output):
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while True:
            data = os.read(output, 65536)
            text = decoder.decode(data, not data)
            if text:
                self.say({"out": name, "text": text})
            if not data:
                return

    def _await(self, name, process, reader, sharing):
        status = process.wait()
        reader.join(OUTPUT_END_S)
        sharing.wait()
        self.say({"ended": name, "status": status})

    @staticmethod
    def _identity(path):
        try:
            found = os.stat(path) if path else None
        except OSError:
            return None
        return found and (found.st_ino, found.st_mtime_ns)

    def _tell_address(self, process, path, stale):
        while process.poll() is None and not self.over.wait(ADDRESS_LOOK_S):
            if self._identity(path) not in (None, stale):
                with open(path, encoding="utf-8") as file:
                    self.say({"address": file.read().strip()})
                return

    def _share_initial(self, process, begun):
        """Sends the model of worker 0 to the other hosts once it exists; it is written beside its place and renamed. `begun` is set once
        the first piece is on its way, or none will be: the end of worker 0 is reported after that."""
        path = os.path.join(self.initial, INITIAL)
        try:
            while not self.shared:
                ended = process.poll() is not None  # read it first: the model may have been its last output
                if os.path.exists(path):
                    self.shared = True
                    self._send_pieces(path, begun)
                elif ended or self.over.wait(FILE_LOOK_S):
                    return
        finally:
            begun.set()

    def _send_pieces(self, path, begun):
        with open(path, "rb") as file:
            last = False
            while not last:
                self.room.acquire()
                piece = file.read(PIECE)
                last = not piece
                self.say({"file": {"data": base64.b64encode(piece).decode(), "last": last}})
                begun.set()

    def send_more(self, pieces):
        for _ in range(pieces):
            self.room.release()

    def take_file(self, piece):
        part = os.path.join(self.initial, "part")
        with open(part, "ab") as file:
            file.write(base64.b64decode(piece["data"]))
        if piece["last"]:
            os.replace(part, os.path.join(self.initial, INITIAL))

    def note_end_of_worker_0(self, _):
        with open(os.path.join(self.initial, ENDED), "wb"):
            pass

    def signal(self, what):
        process = self.processes.get(what["name"])
        if process is not None and process.poll() is None:
            try:
                os.killpg(process.pid, what["number"])
            except ProcessLookupError:
                pass

    # --- at the end

    def _watch_silence(self, silence_s):
        while not self.over.wait(max(0.0, self.heard + silence_s - time.monotonic())):
            if time.monotonic() - self.heard >= silence_s:
                self.end()

    def end(self):
        """It ends this process as well."""
        self.over.set()
        for process in list(self.processes.values()):
            if process.poll() is None:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        deadline = time.monotonic() + KILLED_S
        for process in list(self.processes.values()):  # a process that still writes into the folder keeps it from being removed
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)
        os._exit(0)


def main():
    agent = Agent(sys.stdin.buffer, os.fdopen(os.dup(1), "wb"))
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # the end of the input reports it; not SIG_IGN, which the programs would inherit
    signal.signal(signal.SIGTERM, lambda *_: agent.end())
    agent.run()


main()
