#!/usr/bin/env bash
# A keep-alive for a lease that has lapsed is no error in etcd: the answer is 200, and only the field TTL is missing.
#
# Versions: etcd 3.4.23 (Debian 12, etcd-server), HTTP/JSON gateway.
# One would guess: the keep-alive answers 404 with "requested lease not found", as a put under such a lease does.
# What happens: the keep-alive answers 200 with the lease's id. A lease that is alive has the field TTL beside it. A lease of one
#   second is granted as one of two, also without a word.
# Source: etcdserver/api/v3rpc/lease.go, leaseKeepAlive: an unknown lease becomes TTL 0, and the JSON form leaves zeros out. The
#   least time is one and a half election timeouts, rounded up (etcdserver/server.go).
# Why it matters: a coordinator that renews its lease and looks at the status believes for ever that it leads, beside the standby
#   that has taken over. A leader has to treat an answer without a positive TTL as the loss of its lease.
set -euo pipefail
# shellcheck source=findings/lib/etcd.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/etcd.sh"

cat >"$finding_folder/finding.py" <<'PYTHON'
import sys
import time
import urllib.error

from etcd import Etcd, encoded

etcd = Etcd(sys.argv[1])
etcd.start()
grant = etcd.ask("lease/grant", {"TTL": 1})
lease = grant["ID"]
alive = etcd.ask("lease/keepalive", {"ID": lease})["result"]
while etcd.ask("lease/timetolive", {"ID": lease}).get("TTL") != "-1":
    time.sleep(0.1)
lapsed = etcd.ask("lease/keepalive", {"ID": lease})["result"]
try:
    etcd.ask("kv/put", {"key": encoded("leader"), "value": encoded("a"), "lease": lease})
    put = 200
except urllib.error.HTTPError as error:
    put = error.code
etcd.kill()
print(f"granted {grant['TTL']}; alive {','.join(sorted(alive))}; lapsed {','.join(sorted(lapsed))}; put {put}")
PYTHON

echo "etcd 3.4.23: a lease of one second, kept alive before and after it has lapsed"
finding_check "seconds granted, fields of both answers with status 200, status of a put" \
  "$(PYTHONPATH=$finding_folder python3 -B "$finding_folder/finding.py" "$etcd")" \
  "granted 2; alive ID,TTL,header; lapsed ID,header; put 404"
