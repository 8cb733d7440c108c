"""A program that was started here, or that an agent has started on another host."""

import codecs
import ctypes
import errno
import fcntl
import os
import pty
import shutil
import signal
import struct
import subprocess
import termios
import time

from lockstep_launch import processors, times
from lockstep_launch.screen import Output


class Process(Output):
    """One program, in a session of its own: the terminal's Ctrl-C reaches it only through us."""

    def __init__(self, name, number, command, screen, on_terminal=False, environment=None, held_to=None):
        super().__init__(name, number, screen)
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.shows_progress = on_terminal
        if on_terminal:
            # The coordinator sees a terminal and rewrites its progress line; we keep it at the bottom.
            self.output, writer = pty.openpty()
            size = shutil.get_terminal_size()
            columns = max(20, size.columns - screen.width - 4)
            fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", size.lines, columns, 0, 0))
        else:
            self.output, writer = os.pipe()
        os.set_blocking(self.output, False)
        try:
            self.popen = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=writer, stderr=writer,
                                          start_new_session=True, env={**os.environ, **(environment or {})}, preexec_fn=die_with_launcher(os.getpid(), held_to))
        finally:
            os.close(writer)

    def read(self):
        """Passes on the output that is there; False at the end."""
        try:
            data = os.read(self.output, 65536)
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno != errno.EIO:  # a pseudo-terminal reports in this way that all writers are gone
                raise
            data = b""
        if not data:
            self.finish(self.decoder.decode(b"", True))
            return False
        self.take(self.decoder.decode(data))
        return True

    def poll(self):
        """Its status, once it has ended."""
        return self.popen.poll()

    def signal(self, number):
        if self.popen.poll() is None:
            os.killpg(self.popen.pid, number)

    def close(self):
        if self.output >= 0:
            os.close(self.output)
            self.output = -1


class RemoteProcess(Output):
    """One program on another host, from its agent's messages."""

    output = -1  # its output comes over the link

    def __init__(self, name, number, screen, link):
        super().__init__(name, number, screen)
        self.link = link
        self.status = None
        self.kill_by = None  # when it must have ended, or its host does not answer

    def poll(self):
        return self.status

    def signal(self, number):
        if self.status is None:
            self.link.send(signal={"name": self.name, "number": int(number)})
            if number == signal.SIGKILL and self.kill_by is None:
                self.kill_by = time.monotonic() + times.HOST_KILLS_S

    def ended(self, status):
        if self.status is None:
            self.status = status
            self.finish()


def die_with_launcher(launcher, held_to=None):
    """The child runs it before the program, so that no process stays behind when we end. It is held to these processors, if any."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    set_parent_death_signal = 1

    def arrange():
        prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != launcher:  # it died before this was arranged
            os._exit(1)
        if held_to:
            try:
                os.sched_setaffinity(0, held_to)
            except OSError as error:  # for instance where a processor has gone since
                os.write(2, f"not bound to processors {processors.words(held_to)}: {error.strerror}\n".encode())

    return arrange


def describe(status):
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"
