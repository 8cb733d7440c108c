"""The C interface of the library, as lockstep.h of version ABI has it: layouts, functions, texts and statuses.

The library refuses structures of another size.
"""

import ctypes
import os
from ctypes import c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from typing import Any

from lockstep import _place
from lockstep._errors import UsageError, of_status

ABI = 1

_DLPACK = b"dltensor"  # the capsule refers to it


class JoinOptions(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("coordinator", c_char_p),
        ("secret_file", c_char_p),
        ("data_host", c_char_p),
        ("settings", c_char_p),
        ("slowdowns", c_char_p),
        ("wanted", c_int64),
        ("connect_timeout_s", c_double),
        ("device", c_char_p),
        ("end_when_hung", c_int32),
        ("hung_signal", c_int32),
    ]


class Group(ctypes.Structure):
    _fields_ = [("lr_factor", c_double), ("weight_decay", c_double), ("momentum", c_double)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("shape", ctypes.POINTER(c_uint64)),
        ("dimensions", c_size_t),
        ("group", ctypes.POINTER(Group)),
    ]


class Job(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("parameter_count", c_uint64),
        ("blocks", ctypes.POINTER(c_uint64)),
        ("finish_order", ctypes.POINTER(c_uint32)),
        ("block_count", c_size_t),
        ("tensors", ctypes.POINTER(Tensor)),
        ("tensor_count", c_size_t),
        ("initial", c_void_p),
        ("dataset_digest", c_char_p),
        ("train_samples", c_uint64),
        ("test_samples", c_uint64),
        ("makes_updates", c_int32),
        ("state_tensors", c_uint32),
        ("max_run_samples", c_uint64),
        ("max_run_units", c_uint32),
        ("own_parameters", c_int32),
        ("averages", c_int32),
        ("epoch_ends", c_int32),
        ("costs", ctypes.POINTER(c_float)),
        ("max_run_cost", c_double),
    ]


class Range(ctypes.Structure):
    _fields_ = [("first", c_uint64), ("end", c_uint64)]


class Metric(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("reduction", c_int32), ("value", c_double)]


class Work(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("kind", c_int32),
        ("epoch", c_uint32),
        ("round", c_uint64),
        ("ranges", ctypes.POINTER(Range)),
        ("range_count", c_size_t),
        ("samples", ctypes.POINTER(c_uint32)),
        ("sample_count", c_size_t),
        ("units", c_uint32),
        ("parameters_version", c_uint32),
        ("parameters", c_void_p),
        ("gradient", c_void_p),
        ("device", c_int32),
        ("evaluate", Range),
        ("reason", c_char_p),
        ("failed", c_int32),
        ("unfit", c_int32),
        ("left", c_int32),
        ("early", c_int32),
        ("final_parameters", c_int32),
        ("params_digest", c_char_p),
        ("not_final", c_char_p),
        ("update", c_void_p),
        ("state", c_void_p),
        ("learning_rate", c_float),
        ("fraction", c_float),
        ("update_samples", c_uint64),
        ("steps", c_uint64),
        ("has_counted", c_int32),
        ("counted_epoch", c_uint32),
        ("counted_round", c_uint64),
        ("counted_samples", c_uint64),
        ("counted_loss", c_double),
        ("metrics", ctypes.POINTER(Metric)),
        ("metric_count", c_size_t),
        ("policy", c_char_p),
        ("slow_workers", ctypes.POINTER(c_uint64)),
        ("slow_worker_count", c_size_t),
        ("schedule_position", c_double),
        ("tells_final", c_int32),
        ("late", c_int32),
    ]


_OF_PROTOBUF = "_ZN6google8protobuf2io16CodedInputStreamD1Ev"


def _mode() -> int:
    """How the library is loaded. TensorFlow shows its own Protocol Buffers, of another version, to all that is loaded later; with
    that one the library would crash."""
    shown = hasattr(ctypes.CDLL(None), _OF_PROTOBUF)
    return os.RTLD_LOCAL | os.RTLD_DEEPBIND if shown else ctypes.DEFAULT_MODE


@cache
def library() -> ctypes.CDLL:
    found = ctypes.CDLL(str(_place.library()), mode=_mode())
    found.lockstep_abi_version.restype = c_uint32
    if found.lockstep_abi_version() != ABI:
        raise UsageError(
            f"{_place.library()} has version {found.lockstep_abi_version()} of the interface, this package speaks {ABI}"
        )
    session = c_void_p
    for name, result, arguments in (
        ("version", c_char_p, []),
        ("error", c_char_p, []),
        ("log", c_int32, [c_char_p, c_char_p]),
        ("join", c_int32, [ctypes.POINTER(JoinOptions), ctypes.POINTER(c_void_p)]),
        ("end", None, [session]),
        ("worker", c_uint32, [session]),
        ("incarnation", c_uint32, [session]),
        ("workers", c_uint32, [session]),
        ("config", c_char_p, [session]),
        ("begin", c_int32, [session, ctypes.POINTER(Job)]),
        ("next", c_int32, [session, c_double, ctypes.POINTER(Work)]),
        ("block_final", None, [session, c_uint32]),
        ("block_final_after", c_int32, [session, c_uint32, c_void_p]),
        ("await", c_int32, [session, c_void_p]),
        ("log_metric", c_int32, [session, c_char_p, c_int32, c_double, c_uint64]),
        ("note_reading", None, [session, c_double, c_int64]),
        ("done", c_int32, [session, c_uint64, c_double]),
        ("done_weighted", c_int32, [session, c_uint64, c_uint64, c_double]),
        ("evaluation_done", None, [session, c_double, c_uint64]),
        ("update_done", None, [session]),
        ("cancelled", c_int32, [session]),
        ("interrupt", None, [session, c_char_p]),
        ("stop", c_int32, [session, c_char_p]),
        ("away", c_int32, [session, c_double, c_char_p]),
        ("back", c_int32, [session]),
        ("tell_costs", c_int32, [session, c_uint32, ctypes.POINTER(c_float), c_uint64]),
        ("keep", c_int32, [session, c_void_p, ctypes.POINTER(c_void_p)]),
        ("keep_tensor", c_int32, [session, c_void_p, c_uint64, ctypes.POINTER(c_void_p)]),
        ("release", None, [c_void_p]),
    ):
        function = getattr(found, f"lockstep_{name}")
        function.restype, function.argtypes = result, arguments
    return found


def check(status: int) -> None:
    if status != 0:
        raise of_status(status, text(library().lockstep_error()))


def capsule(tensor: c_void_p) -> Any:
    """Puts a DLManagedTensor into a capsule of DLPack. The consumer renames the capsule and calls the tensor's deleter later."""
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [c_void_p, c_char_p, c_void_p]
    return new(tensor, _DLPACK, None)


def text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def encoded(value: str | None) -> bytes | None:
    return None if value is None else value.encode()
