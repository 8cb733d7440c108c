#!/usr/bin/env bash
# After `import tensorflow` each library that is loaded later is linked to the Protocol Buffers inside TensorFlow.
#
# Versions: tensorflow-cpu 2.21.0 (PyPI).
# One would guess: what a Python package links statically is its own. CPython loads extension modules with RTLD_LOCAL, so that their
#   symbols are nobody else's.
# What happens: the import puts functions of google::protobuf into the process's global scope. A library that ctypes loads afterwards
#   gets some of its calls from there, although it was linked with another libprotobuf.so, and the rest from its own. After an import
#   in the other order it gets all from its own.
# Source: tensorflow/python/pywrap_dlopen_global_flags.py, which sets RTLD_GLOBAL while TensorFlow loads its library.
# Why it matters: communication libraries speak Protocol Buffers. Two versions mixed in one object corrupt memory, in the order of
#   imports that most scripts have. RTLD_DEEPBIND for such a library avoids it.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_python tensorflow-cpu==2.21.0
cat >"$finding_folder/scope.py" <<'PYTHON'
import ctypes

name = "_ZN6google8protobuf2io16CodedInputStreamD1Ev"  # google::protobuf::io::CodedInputStream::~CodedInputStream()
before = hasattr(ctypes.CDLL(None), name)
import tensorflow  # noqa: E402

print(before, hasattr(ctypes.CDLL(None), name))
PYTHON

finding_check "tensorflow-cpu 2.21.0: Protocol Buffers in the global scope before and after the import" \
  "$(TF_CPP_MIN_LOG_LEVEL=3 "$python" "$finding_folder/scope.py" 2>/dev/null)" "False True"
