"""Values that go from one process to another through memory that both map.

Tensors and arrays of NumPy lie in one anonymous file (memfd) beside the pickled rest. It is written once and mapped once, whatever
the number of tensors, and takes one file descriptor while it is on its way. The file has no name, in /dev/shm or elsewhere. So a
process that is killed leaves nothing behind, and no limit of /dev/shm applies.

    u64 length of the pickle, u64 number of buffers, u64 length of each | pickle | buffers, each at a multiple of 64 bytes
"""

import ctypes
import io
import mmap
import os
import pickle
import struct
from typing import Any

import torch

_ALIGNMENT = 64


def _tensor(buffer: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(buffer, dtype=dtype).view(shape)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        # What is none of the usual kinds goes as torch pickles it, within the pickle.
        if type(value) is not torch.Tensor or value.layout != torch.strided or value.device.type != "cpu" or value.numel() == 0:
            return NotImplemented
        if value.requires_grad or value.is_quantized or value.is_conj() or value.is_neg():
            return NotImplemented
        flat = value.contiguous()
        memory = (ctypes.c_char * (flat.numel() * flat.element_size())).from_address(flat.data_ptr())
        memory.tensor = flat  # type: ignore[attr-defined]  # as long as the buffer is
        return _tensor, (pickle.PickleBuffer(memory), value.dtype, tuple(value.shape))


def _aligned(at: int) -> int:
    return -(-at // _ALIGNMENT) * _ALIGNMENT


def pack(value: Any) -> int:
    """A file descriptor, the caller's to close."""
    buffers: list[pickle.PickleBuffer] = []
    body = io.BytesIO()
    _Pickler(body, protocol=5, buffer_callback=buffers.append).dump(value)
    views = [buffer.raw() for buffer in buffers]
    head = struct.pack(f"<QQ{len(views)}Q", body.getbuffer().nbytes, len(views), *(view.nbytes for view in views))
    at = _aligned(len(head) + body.getbuffer().nbytes)
    size = at + sum(_aligned(view.nbytes) for view in views)
    file = os.memfd_create("lockstep-samples", os.MFD_CLOEXEC)
    try:
        os.ftruncate(file, size)
        with mmap.mmap(file, size) as memory:
            memory[: len(head)] = head
            memory[len(head) : len(head) + body.getbuffer().nbytes] = body.getvalue()
            for view in views:
                memory[at : at + view.nbytes] = view
                at += _aligned(view.nbytes)
    except BaseException:
        os.close(file)
        raise
    return file


def unpack(file: int) -> Any:
    """Takes `file` over. The mapping stays as long as anything of the value lies in it."""
    try:
        size = os.fstat(file).st_size
        # A mapping of Python's would keep a copy of the descriptor.
        storage = torch.UntypedStorage.from_file(f"/proc/self/fd/{file}", True, size)
    finally:
        os.close(file)
    mapped = (ctypes.c_char * size).from_address(storage.data_ptr())
    mapped.storage = storage  # type: ignore[attr-defined]  # as long as a buffer is in use
    memory = memoryview(mapped).cast("B")
    body, count = struct.unpack_from("<QQ", memory)
    sizes = struct.unpack_from(f"<{count}Q", memory, 16)
    start = 16 + 8 * count
    at = _aligned(start + body)
    buffers = []
    for length in sizes:
        buffers.append(memory[at : at + length])
        at += _aligned(length)
    return pickle.loads(memory[start : start + body], buffers=buffers)
