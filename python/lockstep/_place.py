"""Where the library and the programs are: in the package where it was installed, in the build where it is in the tree."""

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

from lockstep._errors import UsageError

_HERE = Path(__file__).resolve().parent
_INSTALLED = _HERE / "_native"
_TREE = _HERE.parent.parent


def _build() -> Path:
    return Path(os.environ.get("LOCKSTEP_BUILD_DIR", _TREE / "build" / "release"))


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise UsageError(f"{path} is not there: build it first, or say where it is with LOCKSTEP_BUILD_DIR")
    return path


def library() -> Path:
    if _INSTALLED.is_dir():
        return _existing(_INSTALLED / "liblockstep.so.1")
    return _existing(_build() / "worker" / "capi" / "liblockstep.so.1")


def programs() -> Path:
    """The folder with lockstep-coordinator and others."""
    return _INSTALLED if _INSTALLED.is_dir() else _build() / "bin"


def program(name: str) -> Path:
    return _existing(programs() / name)


def tool(name: str) -> Path:
    """A script in Python."""
    return _existing(_INSTALLED / name if _INSTALLED.is_dir() else _TREE / "tools" / name)


def launcher() -> ModuleType:
    """The module that tools/launch starts."""
    sys.path.insert(0, str(tool("launch").parent / "lib"))
    return importlib.import_module("lockstep_launch.main")
