"""The imitated device of tests/fake_device as "cuda:0": importing this makes the package take the liblockstep that has it.

The device's memory faults when it is touched where the session says that it is. `host` is where it can be; `Late` is a gradient as a GPU has it
while kernels are under way: what the program adds to it comes to the device's memory with the stream, late.
"""

import ctypes
import os

from lockstep import _place

_path = os.environ["LOCKSTEP_ON_FAKE_DEVICE"]
_place.library = lambda: _path
_library = ctypes.CDLL(_path)
_library.lockstep_imitated_stream.restype = ctypes.c_void_p
_library.lockstep_imitated_host.restype = ctypes.c_void_p
_library.lockstep_imitated_host.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
_library.lockstep_imitated_copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64]

stream = _library.lockstep_imitated_stream()


def host(address, floats):
    """As an array of ctypes."""
    return (ctypes.c_float * floats).from_address(_library.lockstep_imitated_host(address, 4 * floats))


class Late:
    """`array`: what the program reads and writes."""

    def __init__(self, address, floats):
        self._address, self._floats = address, floats
        self.array = (ctypes.c_float * floats)()
        self.begin()

    def begin(self):
        """It is as the device has it."""
        ctypes.memmove(self.array, host(self._address, self._floats), 4 * self._floats)

    def ask(self):
        """The stream: what it is then comes to the device."""
        _library.lockstep_imitated_copy(stream, self._address, ctypes.addressof(self.array), 4 * self._floats)
        return stream
