"""The launcher waits here for output of processes, signals, and the next action."""

import os
import selectors
import signal

from command_line import asked_to_end
from lockstep_launch import times


class Feed:
    """A source other than a process, which is read when it has data."""

    def __init__(self, output, read):
        self.output = output
        self.read = read

    def close(self):
        self.output = -1


class Loop:
    """Reads the sources that are added (`output`: a descriptor, `read()`: False at the end, `close()`), in the main thread."""

    def __init__(self, stop):
        """`stop(number)` is called for each signal that asks the launcher to end."""
        self.stop = stop
        self.selector = selectors.DefaultSelector()
        reader, self.signal_writer = os.pipe()
        for end in (reader, self.signal_writer):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self.signal_writer)
        for number in (*asked_to_end(), signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        self.selector.register(reader, selectors.EVENT_READ, None)

    def add(self, source):
        self.selector.register(source.output, selectors.EVENT_READ, source)

    def drop(self, source):
        if source.output >= 0:
            self.selector.unregister(source.output)
            source.close()

    def finish(self, process):
        """Reads the rest of the pipe after its end."""
        while process.output >= 0:
            ready = selectors.DefaultSelector()
            ready.register(process.output, selectors.EVENT_READ)
            if not ready.select(0) or not process.read():
                self.drop(process)
            ready.close()

    def turn(self, timeout, coordinator):
        """Waits for output, a signal or the time-out, and handles it."""
        unsettled = coordinator is not None and bool(coordinator.unsettled)
        if unsettled:
            timeout = times.SETTLE_S if timeout is None else min(timeout, times.SETTLE_S)
        events = self.selector.select(timeout)
        if unsettled and not events:
            coordinator.settle()
        for key, _ in events:
            if key.data is None:
                for number in os.read(key.fd, 4096):
                    if number != signal.SIGCHLD:
                        self.stop(number)
            elif not key.data.read():
                self.drop(key.data)
