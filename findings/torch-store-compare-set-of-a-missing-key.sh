#!/usr/bin/env bash
# In torch.distributed, compare_set on a missing key answers with the value that the caller expected, as if the store held it.
#
# Versions: torch 2.15.0 (PyPI): HashStore, FileStore and TCPStore.
# One would guess: an error, or an empty answer, since there is no such key.
# What happens: compare_set("leader", "a", "a") answers b"a", as it does where the store holds "a". The key exists neither before
#   it nor after it.
# Source: the method compareSet of each store (torch/csrc/distributed/c10d: HashStore.cpp, FileStore.cpp, TCPStore.cpp). The
#   documentation tells only when the value is set.
# Why it matters: a leader that confirms its claim in this way reads "still mine" after the store has lost the key, by a restart
#   or a delete_key, and while another one may claim it. Ask check() too, or read the key back.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_python torch==2.15.0 numpy==2.4.6
cat >"$finding_folder/finding.py" <<'PYTHON'
import sys

import torch.distributed as dist

for store in (dist.HashStore(), dist.FileStore(sys.argv[1], 1), dist.TCPStore("127.0.0.1", 0, 1, True)):
    answer = store.compare_set("leader", "a", "a").decode()
    print(type(store).__name__, answer, "there" if store.check(["leader"]) else "missing", end="; ")
PYTHON

echo 'torch 2.15.0: compare_set("leader", "a", "a") on an empty store'
finding_check "answers, and the key afterwards" "$("$python" -W ignore "$finding_folder/finding.py" "$finding_folder/store")" \
  "HashStore a missing; FileStore a missing; TCPStore a missing; "
