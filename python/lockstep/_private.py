"""Folders for this user alone, as for a job's secret. Where the process that has made one was killed, the next process that makes
one removes it.

The owner holds a lock on a file in its folder. A lock ends with its process, whatever becomes of that, and holds across containers
that share the folder and number their processes differently.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "lockstep-"
_OWNER = "owner"


class PrivateFolder:
    """`path`, until `remove`. A forked child leaves it alone: it is its parent's."""

    def __init__(self) -> None:
        _sweep()
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        # Locked before it has its name: who sweeps takes a lock that is free for that of a process that is gone.
        new = self.path / f"{_OWNER}.new"
        self._lock = open(new, "wb")  # noqa: SIM115
        with contextlib.suppress(OSError):  # a file system without locks: nobody sweeps it then
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            new.rename(self.path / _OWNER)
        self._pid = os.getpid()

    def write(self, name: str, data: bytes) -> str:
        """A new file in it; returns its path."""
        path = str(self.path / name)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
        return path

    def remove(self) -> None:
        """May be called again."""
        if os.getpid() == self._pid:
            shutil.rmtree(self.path, ignore_errors=True)
            self._lock.close()


def _sweep() -> None:
    """Removes this user's folders whose owners are gone."""
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as found:
        for entry in found:
            if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    _remove_if_left(entry)


def _remove_if_left(entry: "os.DirEntry[str]") -> None:
    if entry.stat(follow_symlinks=False).st_uid != os.geteuid():
        return
    with open(os.open(os.path.join(entry.path, _OWNER), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(entry.path, ignore_errors=True)
