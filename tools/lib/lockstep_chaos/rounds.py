"""Watches rounds.jsonl grow: when each round was closed, on this machine's clock."""

import os
import time


class Watch:
    def __init__(self, path):
        self.path = path
        self.size = self._size()
        self.grew = []  # the times
        self.began = time.monotonic()

    def _size(self):
        try:
            return os.stat(self.path).st_size
        except OSError:
            return 0

    def look(self):
        size = self._size()
        if size > self.size:
            self.grew.append(time.monotonic())
        self.size = size

    def quiet_since(self):
        return self.grew[-1] if self.grew else self.began


def longest_pause(grew, begin, end):
    """The longest time without a round from `begin` on, among the pauses that have begun by `end`; None: no round was closed after `begin`."""
    pauses = [after - max(before, begin) for before, after in zip(grew, grew[1:]) if after >= begin and before <= end]
    return max(pauses, default=None)
