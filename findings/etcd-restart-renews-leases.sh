#!/usr/bin/env bash
# Each restart of etcd gives all leases their full time again, those of dead clients too.
#
# Versions: etcd 3.4.23 (Debian 12, etcd-server).
# One would guess: a lease of five seconds whose owner is dead is gone five seconds later, or at once after an outage of etcd.
# What happens: etcd restarts three times, each time when the lease has had three of its five seconds. Nobody renews the lease,
#   and after twice its time the key under it is still there, with all five seconds to come.
# Source: the time that remains is kept in memory only. A server that becomes the leader starts all leases anew (lease/lessor.go:
#   initAndRecover, Promote). The option --experimental-enable-lease-checkpoint is off.
# Why it matters: a standby that waits for the lease of a dead coordinator waits for as long as etcd is unstable, and that is when
#   it is needed most. A bound on the fail-over has to count from etcd's last election.
set -euo pipefail
# shellcheck source=findings/lib/etcd.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/etcd.sh"

cat >"$finding_folder/finding.py" <<'PYTHON'
import sys
import time

from etcd import Etcd, encoded

etcd = Etcd(sys.argv[1])
etcd.start()
lease = etcd.ask("lease/grant", {"TTL": 5})["ID"]
etcd.ask("kv/put", {"key": encoded("leader"), "value": encoded("a"), "lease": lease})
granted = time.monotonic()
for _ in range(3):
    time.sleep(3)
    etcd.kill()
    etcd.start()
late = time.monotonic() - granted > 9
left = int(etcd.ask("lease/timetolive", {"ID": lease})["TTL"])
held = etcd.ask("kv/range", {"key": encoded("leader")}).get("count") == "1"
etcd.kill()
print("held" if late and held else "gone", "four-or-more" if left >= 4 else left)
PYTHON

echo "etcd 3.4.23: three restarts, three seconds apart, with a lease of five seconds that nobody renews"
finding_check "the key after more than nine seconds, and the seconds left" \
  "$(PYTHONPATH=$finding_folder python3 -B "$finding_folder/finding.py" "$etcd")" "held four-or-more"
