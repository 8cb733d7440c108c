"""Keeps the state of each worker's slot: whether the job counts its process as a member, and when to start the next one. The coordinator's
log reports members: it has a line for each worker that joins, and a warning for each that is out. Both reach the launcher in order, also
from another host.
"""

import dataclasses
import re
import time

# They are seconds. The first wait is long enough to see that a coordinator has ended, and its workers with it. The second one is the
# default of liveness.timeout: until the coordinator misses a dead member, a newcomer that cannot reach it is refused.
WAITS_S = (1, 10, 20, 40, 60)
SOON_S = 60.0  # a process that lived longer has worked: the next wait is the first one again
JOINS = re.compile(r" coordinator info worker (\d+) \(incarnation \d+\) joins from ")
OUT = re.compile(r" coordinator warning worker (\d+) is out: (it leaves: )?")


@dataclasses.dataclass
class Slot:
    restarts: int  # that are left
    began: float | None = None  # when its process was started; None: no process was
    starts: int = 0
    joined: bool = False  # this process is a member, or was one
    out_since: float | None = None  # the job continues without this process
    left: bool = False  # it is out because it reported that it leaves
    status: int | None = None  # of the last process, once it has ended
    short_lives: int = 0  # of earlier processes, without any that lived long
    again: float | None = None  # when to start the next process
    no_place_since: float | None = None

    def starts_now(self):
        self.began, self.starts = time.monotonic(), self.starts + 1
        self.joined, self.out_since, self.left, self.status, self.again = False, None, False, None, None

    def wait_for_restart(self):
        """Uses up a restart; returns how long to wait for it."""
        self.restarts -= 1
        soon = self.starts > 1 and time.monotonic() - self.began < SOON_S
        self.short_lives = self.short_lives + 1 if soon else 0
        wait = WAITS_S[min(self.short_lives, len(WAITS_S) - 1)]
        self.again = time.monotonic() + wait
        return wait

    @property
    def put_out(self):
        """The coordinator reported that the process has no part in the job any more; the process may hang."""
        return self.out_since is not None and not self.left

    @property
    def came_too_late(self):
        """The process was started again and is not in the job: once the job is over, it looks for it in vain."""
        return self.starts > 1 and not self.joined

    @property
    def failed_after_the_job(self):
        """The process was in the job to its end, and has failed since."""
        return self.joined and self.out_since is None and self.status not in (None, 0)


def take(line, slots):
    """Reads a line of the coordinator's log, without colours. While a process has not joined, the log refers to the one before."""
    if found := JOINS.search(line):
        slot = slots.get(int(found[1]))
        if slot is not None:
            slot.joined, slot.out_since = True, None
    elif found := OUT.search(line):
        slot = slots.get(int(found[1]))
        if slot is not None and slot.joined and slot.out_since is None:
            slot.out_since, slot.left = time.monotonic(), found[2] is not None
