"""Fails when a program names a library of CUDA.

usage: no_cuda.py PROGRAM
"""

import re
import subprocess
import sys

listing = subprocess.run(["ldd", sys.argv[1]], capture_output=True, text=True, check=True).stdout
found = re.findall(r"\b(lib(?:cuda|cudart|cublas|cublasLt|nvidia)\S*\.so\S*)", listing)
if found or "libc.so" not in listing:
    sys.exit(f"{sys.argv[1]} needs {', '.join(found) or 'nothing: ldd does not understand it'}")
