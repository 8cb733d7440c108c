"""Tensors as bytes in the safetensors format: a JSON header with names, types, shapes and places, and the values behind it.

Bytes from elsewhere are only read as numbers. Nothing in them is run, unlike a pickle.
"""

import ctypes
import json
import math
from collections.abc import Mapping
from typing import Any

import torch

_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_OF_NAME = {name: dtype for dtype, name in _TYPES.items()}
_LENGTH = 8  # bytes of the header's length, little-endian


def holds(tensor: torch.Tensor) -> bool:
    """The format can."""
    return tensor.dtype in _TYPES and tensor.layout is torch.strided


def pack(tensors: Mapping[str, torch.Tensor]) -> bytes:
    header: dict[str, Any] = {}
    values: list[bytes] = []
    end = 0
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        begin, end = end, end + plain.numel() * plain.element_size()
        header[name] = {"dtype": _TYPES[plain.dtype], "shape": list(plain.shape), "data_offsets": [begin, end]}
        values.append(ctypes.string_at(plain.data_ptr(), end - begin) if end > begin else b"")
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _LENGTH)
    return b"".join([len(text).to_bytes(_LENGTH, "little"), text, *values])


def unpack(data: bytes) -> dict[str, torch.Tensor]:
    """ValueError: it is not in that format."""
    view = memoryview(data)
    begin = _LENGTH + int.from_bytes(view[:_LENGTH], "little")
    if not _LENGTH < begin <= len(view):
        raise ValueError("the header is longer than all of it")
    try:
        header = json.loads(bytes(view[_LENGTH:begin]))
        return {name: _tensor(entry, view[begin:]) for name, entry in header.items() if name != "__metadata__"}
    except (AttributeError, KeyError, RecursionError, TypeError) as error:
        raise ValueError(f"the header is not as it has to be ({type(error).__name__}: {error})") from None


def _tensor(entry: Any, values: memoryview) -> torch.Tensor:
    dtype, shape, (begin, end) = _OF_NAME[entry["dtype"]], entry["shape"], entry["data_offsets"]
    if not all(isinstance(number, int) and number >= 0 for number in [begin, end, *shape]):
        raise ValueError("the header has a number that is none")
    size = math.prod(shape) * torch.empty(0, dtype=dtype).element_size()
    if end - begin != size or end > len(values):
        raise ValueError("the header has a tensor of another size than that of its values")
    if size == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(values[begin:end]), dtype=dtype).reshape(shape)
