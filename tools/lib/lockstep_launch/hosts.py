"""The hosts of a job, and the connection to each, which is an ssh with host_agent.py at its other end. Of a job, only the name of a Python
there is on a command line; the secret and everything else goes through ssh's standard input.
"""

import codecs
import collections
import dataclasses
import itertools
import json
import os
import queue
import re
import shlex
import subprocess
import threading
from pathlib import Path

from command_line import read_regular

AGENT = Path(__file__).resolve().with_name("host_agent.py")
MARK = b"lockstep host agent\n"  # as in host_agent.py
BOOT = "import sys;exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))"
BEAT_S = 5.0
BEAT = b"{}\n"
SILENCE_S = 60.0  # after so long without a beat, every process at a host ends: its launcher's machine is gone
# The wait for a lost host is bounded as well: one that does not answer any more is given up after a quarter of a minute.
SSH_OPTIONS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3")
SSH_END_S = 5.0  # for ssh to end once its output has
LONGEST_TALK = 1 << 16  # bytes in a line of a login shell: a longer one is none of our lines
LONGEST_MESSAGE = 4 << 20  # bytes; the longest that an agent sends is a piece of a file, 1.4 MB
SSH_FAILED = 255  # ssh's own status; any other is that of the command there
NOT_FOUND = (126, 127)  # a shell's status
NAME = r"(?:[A-Za-z0-9_.-]+@)?(?:\[[0-9A-Fa-f:.%a-z]+\]|[A-Za-z0-9_][A-Za-z0-9_.-]*)"
KEYS = ("user", "port", "python", "cwd")


class BadHosts(Exception):
    """One line: the error in the named hosts."""


@dataclasses.dataclass
class Host:
    name: str  # in ssh's form
    workers: int = 1
    user: str | None = None
    port: str | None = None
    python: str | None = None
    cwd: str | None = None


def parse_host(text):
    found = re.fullmatch(rf"({NAME})(?::([0-9]{{1,9}}))?", text)
    if not found:
        raise BadHosts(f"'{text}': expected NAME:WORKERS, as a:2 or user@a:2 or [::1]:2")
    user, _, name = found[1].rpartition("@")
    host = Host(name.strip("[]"), int(found[2] or 1), user or None)
    if not 1 <= host.workers <= 16384:
        raise BadHosts(f"'{text}': expected 1 to 16384 workers")
    return host


def parse(text):
    return _unlike([parse_host(one) for one in text.split(",")])


def read(path):
    """Reads a host on each line, NAME[:WORKERS] and then KEY=VALUE; # begins a comment for people."""
    hosts = []
    try:
        lines = read_regular(path).decode().splitlines()
    except OSError as error:
        raise BadHosts(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadHosts(f"{path} is not UTF-8 text") from None
    for number, line in enumerate(lines, 1):
        try:
            words = shlex.split(line, comments=True)
            if not words:
                continue
            host = parse_host(words[0])
            for word in words[1:]:
                key, equals, value = word.partition("=")
                if not equals or key not in KEYS or not value:
                    raise BadHosts(f"'{word}': expected KEY=VALUE, where KEY is one of {', '.join(KEYS)}")
                setattr(host, key, value)
        except (BadHosts, ValueError) as error:
            raise BadHosts(f"{path}:{number}: {error}") from None
        hosts.append(host)
    if not hosts:
        raise BadHosts(f"{path} names no host")
    return _unlike(hosts, f"{path}: ")


def _unlike(hosts, where=""):
    for name, count in collections.Counter(host.name for host in hosts).items():
        if count > 1:
            raise BadHosts(f"{where}{name} is named {count} times")
    return hosts


def _readable(line):
    return re.sub(r"[^ -~\u00a0-\uffff]", "", codecs.decode(line, "utf-8", "replace")).strip()


def _all_numbers(value):
    return isinstance(value, list) and all(isinstance(one, int) for one in value)


def _all_texts(value):
    return isinstance(value, dict) and all(isinstance(one, str) for one in value.values())


# The messages of an agent, as in host_agent.py: keys, and the types of their values.
FORMS = (
    {"ready": {"connection": str, "processors": _all_numbers, "lists": _all_texts, "programs": str | None, "secret": str, "config": str | None,
               "initial": str}},
    {"error": str}, {"address": str}, {"out": str, "text": str}, {"ended": str, "status": int}, {"file": {"data": str, "last": bool}},
)


def _fits(value, form):
    if isinstance(form, dict):
        return isinstance(value, dict) and value.keys() == form.keys() and all(_fits(value[key], form[key]) for key in form)
    return form(value) if form in (_all_numbers, _all_texts) else isinstance(value, form)


def _message(line):
    """Returns None where no agent wrote that."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if any(_fits(message, form) for form in FORMS) else None


def _line(message):
    return json.dumps(message).encode() + b"\n"


def pass_on(message, source, links):
    """Sends it to these links. `source` is told once all have it, so that the slowest one sets the pace and nothing piles up here."""
    line, taken = _line(message), itertools.count(1)  # next() is one step for all threads

    def written():
        if next(taken) == len(links):
            source.send(more=1)

    for link in links:
        link.post(line, written)


class Link:
    """The connection to one host. Used by one thread; never waits for the host."""

    def __init__(self, host, number, options, python, preexec):
        self.host, self.number = host, number
        self.ready = None  # the agent's message about its host
        self.failure = None  # why there is no connection (any more), one line
        self.found = False  # the agent is there
        self.said = collections.deque(maxlen=8)  # output of ssh and the shell there: the last lines
        self.buffer = self.error_buffer = b""
        self.python = host.python or python
        command = ["ssh", "-T"]
        command += ["-p", host.port] if host.port else []  # the first of two options counts, for all of ssh's
        command += ["-l", host.user] if host.user else []
        for option in (*options, *SSH_OPTIONS):
            command += ["-o", option]
        # -I: the home directory and PYTHONPATH cannot replace the modules that the agent imports.
        command += ["--", host.name, f"exec {shlex.quote(self.python)} -I -u -c {shlex.quote(BOOT)}"]
        self.errors, writer = os.pipe()
        try:
            self.ssh = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=writer, bufsize=0,
                                        start_new_session=True, preexec_fn=preexec)
        except OSError as error:
            os.close(self.errors)
            raise BadHosts(f"ssh: {error.strerror}") from None
        finally:
            os.close(writer)
        self.output = self.ssh.stdout.fileno()
        for end in (self.output, self.errors):
            os.set_blocking(end, False)
        self.outgoing = queue.SimpleQueue()
        agent = AGENT.read_bytes()
        self.post(b"%d\n" % len(agent) + agent)

    def begin_to_write(self):
        """It runs in a thread of its own, so that a host that does not read delays nobody, and hosts hear of us while our own output is
        stopped. It starts once all processes are started: code between fork and exec does not work with threads."""
        self.writer = threading.Thread(target=self._write, daemon=True)
        self.writer.start()

    def send(self, **message):
        self.post(_line(message))

    def post(self, data, written=None):
        """Another thread calls written() once ssh has taken the data, and likewise where there is no ssh any more."""
        self.outgoing.put((data, written))

    def end(self):
        self.post(None)

    def _write(self):
        broken = False
        while True:
            try:
                data, written = self.outgoing.get(timeout=BEAT_S)
            except queue.Empty:
                data, written = BEAT, None
            try:
                while data and not broken:
                    data = data[self.ssh.stdin.write(data):]
                if data is None:
                    self.ssh.stdin.close()
            except OSError:
                broken = True  # ssh has ended, which its output shows
            if data is None:
                return
            if written:
                written()

    def messages(self):
        """The messages that have come; None at the end, with `failure`."""
        try:
            data = os.read(self.output, 1 << 16)
        except BlockingIOError:
            return []
        if not data:
            self._ended()
            return None
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        found = []
        for line in lines:
            if self.found:
                message = _message(line)
                if message is None:
                    self.failure = self.failure or f"unexpected output instead of a line of the agent: {_readable(line)[:200]}"
                    self.cut()
                    return None
                found.append(message)
            elif line + b"\n" == MARK:
                self.found = True
                self.said.clear()  # a login shell's greeting explains no later error
            else:
                self._note(line)
        if not self.found:
            self.buffer = self.buffer[-LONGEST_TALK:]
        elif len(self.buffer) > LONGEST_MESSAGE:
            self.cut(f"unexpected output instead of a line of the agent: more than {LONGEST_MESSAGE >> 20} MiB without an end")
            return None
        return found

    def cut(self, failure=None):
        """Its end: no more output is read from it."""
        self.failure = self.failure or failure
        if self.ssh.poll() is None:
            self.ssh.kill()

    def error_lines(self):
        """The output of ssh and the agent's Python; None at the end."""
        data = self._read_errors()
        if data is None:
            return []
        return self._error_lines_in(data) if data else None

    def _read_errors(self):
        """Returns None where nothing is there now."""
        try:
            return os.read(self.errors, 1 << 16)
        except BlockingIOError:
            return None

    def _error_lines_in(self, data):
        *lines, self.error_buffer = (self.error_buffer + data).split(b"\n")  # a line may come in pieces
        self.error_buffer = self.error_buffer[-LONGEST_TALK:]
        for line in lines:
            self._note(line)
        return [text for text in map(_readable, lines) if text]

    def _note(self, line):
        text = _readable(line)
        if text:
            self.said.append(text)

    def _ended(self):
        try:
            status = self.ssh.wait(SSH_END_S)
        except subprocess.TimeoutExpired:  # a process that a login shell has started may keep its connection
            self.failure = self.failure or "ssh has closed its output and does not end"
            self.ssh.kill()
            status = self.ssh.wait()
        data = self._read_errors()
        while data:
            self._error_lines_in(data)
            data = self._read_errors()
        self._note(self.error_buffer)
        last = self.said[-1] if self.said else f"ssh ended with status {status}"
        if self.found:
            failure = f"the connection is lost: {last}"
        elif status == SSH_FAILED:
            failure = f"ssh does not reach it: {last}"
        elif status in NOT_FOUND:
            failure = f"there is no {self.python}; name its Python with --python: {last}"
        else:
            failure = f"{self.python} does not run there; name another Python with --python: {last}"
        self.failure = self.failure or failure  # the agent's own message says more

    def close(self):
        if self.ssh.poll() is None:
            self.ssh.kill()
            self.ssh.wait()
        for end in (self.ssh.stdin, self.ssh.stdout):
            try:
                end.close()
            except OSError:
                pass
        if self.errors >= 0:
            os.close(self.errors)
            self.errors = -1
