# For findings about etcd: sets $etcd to the server of Debian 12 and writes etcd.py, which runs it, to the temporary folder.
# shellcheck shell=bash
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

etcd=$(command -v etcd || true)
if [[ -z $etcd ]] || ! "$etcd" --version | grep -q '^etcd Version: 3\.4\.23$'; then
  (cd "$finding_folder" && apt-get download --quiet --quiet etcd-server=3.4.23-4+b4 2>apt.log) || {
    cat "$finding_folder/apt.log" >&2
    exit 1
  }
  dpkg -x "$finding_folder"/etcd-server_*.deb "$finding_folder/etcd"
  etcd=$finding_folder/etcd/usr/bin/etcd
fi

cat >"$finding_folder/etcd.py" <<'PYTHON'
"""One etcd server on loopback, with ports that the kernel has chosen, spoken to by its HTTP/JSON gateway."""

import atexit
import base64
import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.request


def encoded(text):
    return base64.b64encode(text.encode()).decode()


class Etcd:
    def __init__(self, program):
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            other.bind(("127.0.0.1", 0))
            self.client, peer = (f"http://127.0.0.1:{each.getsockname()[1]}" for each in (one, other))
        self.folder = tempfile.mkdtemp(dir=os.path.dirname(os.path.abspath(__file__)))
        self.command = [program, "--name", "a", "--data-dir", f"{self.folder}/data", "--initial-cluster", f"a={peer}",
                        "--listen-client-urls", self.client, "--advertise-client-urls", self.client,
                        "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        self.process = None
        atexit.register(self.kill)

    def start(self):
        with open(f"{self.folder}/log", "ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        while True:
            try:
                self.ask("kv/range", {"key": encoded("ready")})
                return
            except OSError:
                if self.process.poll() is not None:
                    raise
                time.sleep(0.05)

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def ask(self, method, question):
        request = urllib.request.Request(f"{self.client}/v3/{method}", json.dumps(question).encode())
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())
PYTHON
