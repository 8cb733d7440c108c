"""Ends workers' processes that do not end by themselves: SIGTERM, and SIGKILL some time later."""

import signal
import time

from lockstep_launch import times


class Ending:
    def __init__(self, workers, say):
        self.workers = workers  # slot: its process
        self.say = say
        self.pressed = {}  # slot: the signal that its process got to end it, and when; while it lives

    def forget(self, number):
        """The process of this slot has ended."""
        self.pressed.pop(number, None)

    def press(self, due):
        """Sends SIGTERM to the processes that are due (slot: when), and SIGKILL some time later. Returns when the next one is due, or
        None."""
        now = time.monotonic()
        alive = [number for number, process in self.workers.items() if process.poll() is None]
        steps = {number: self._next(number, due.get(number)) for number in alive}
        for name in (signal.SIGTERM, signal.SIGKILL):
            late = [number for number, (step, when) in steps.items() if step == name and when is not None and when <= now]
            if late:
                self.say(f"worker {', '.join(map(str, late))} {'does' if len(late) == 1 else 'do'} not end: {name.name}")
            for number in late:
                self.workers[number].signal(name)
                self.workers[number].signal(signal.SIGCONT)  # a stopped process takes no other signal but SIGKILL
                self.pressed[number] = (name, now)
                steps[number] = self._next(number, None)
        return min((when for _, when in steps.values() if when is not None), default=None)

    def _next(self, number, due):
        """The next signal, and its time (None: never)."""
        name, when = self.pressed.get(number, (None, None))
        if name is None:
            return signal.SIGTERM, due
        return (signal.SIGKILL, when + times.TERM_S) if name == signal.SIGTERM else (None, None)
