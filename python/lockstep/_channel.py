"""How the workers of a job send each other data before they join: the initial model goes this way."""

from typing import Protocol


class Channel(Protocol):
    restarts: bool  # worker 0 may be one that was started again, and finds what the one before it has put there

    def put(self, name: str, data: bytes) -> None:
        """Once for a name; it is there as a whole or not at all."""

    def get(self, name: str) -> bytes | None:
        """None: it is not there yet."""


given: Channel | None = None  # by what has started this process as a worker (_ray_actors.py)
