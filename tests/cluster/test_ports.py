"""What a worker has open to the network, by the kernel's own tables, what it says of that, and that strangers there cost nothing."""

import os
import pathlib
import socket
import threading
import unittest

from harness import ClusterTest, Job, count_alike, wait_for

# What no worker says: nothing at all, zeros, another protocol, the length of a giant, and the eight bytes by which UCX's own TCP
# knows its peers, with zeros behind them.
GARBAGE = (b"", bytes(17), b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 4096, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(600),
           bytes.fromhex("caeedeba1bdaba1b") + bytes(64), os.urandom(100_000))
ENDLESS = 100000  # rounds


def text_address(hexadecimal):
    """HOST:PORT of an address in /proc/net/tcp or tcp6, as the logs have it."""
    host, port = hexadecimal.split(":")
    words = [bytes.fromhex(host[at:at + 8])[::-1] for at in range(0, len(host), 8)]
    packed = b"".join(words)
    if len(packed) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, packed)}:{int(port, 16)}"
    return f"[{socket.inet_ntop(socket.AF_INET6, packed)}]:{int(port, 16)}"


def listening(pid):
    """The TCP addresses on which this process listens, sorted."""
    inodes = set()
    for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(link)
        except FileNotFoundError:
            continue  # closed meanwhile
        if target.startswith("socket:["):
            inodes.add(target[len("socket:["):-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                found.add(text_address(words[1]))
    return sorted(found)


class Strangers:
    """Throw garbage at addresses, again and again until stopped; some stay and say no more, some go at once."""

    def __init__(self, addresses):
        self.stopped = threading.Event()
        self.connections = 0
        self.kept = []
        self.threads = [threading.Thread(target=self.throw, args=(address,)) for address in addresses]

    def throw(self, address):
        host, port = address.rsplit(":", 1)
        turn = 0
        while not self.stopped.is_set():
            try:
                with socket.create_connection((host.strip("[]"), int(port)), timeout=5) as stream:
                    self.connections += 1
                    stream.sendall(GARBAGE[turn % len(GARBAGE)])
                    if turn < 2 * len(GARBAGE):
                        self.kept.append(stream.dup())
            except OSError:
                pass  # shut out, which is its right
            turn += 1
            self.stopped.wait(0.01)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        for thread in self.threads:
            thread.join()
        for stream in self.kept:
            stream.close()


class Ports(ClusterTest):
    def start(self, job):
        """Of a job that cannot be over before its ports are looked at."""
        self.assertEqual(job.options["job.rounds"], ENDLESS)
        job.start()
        job.wait_for_rounds(1)
        return {name: listening(process.pid) for name, process in job.processes.items()}

    def said(self, job, name):
        """The line that tells what is open."""
        lines = [line for line in job.log(name).split("\n") if "open to others: " in line]
        self.assertEqual(len(lines), 1, job.log(name))
        return lines[0]

    def test_a_worker_opens_one_port_and_none_of_ucx(self):
        for transport in ("auto", "tcp"):
            with Job(2, exchange__transport=transport, exchange__mapping="off", emulate__unit_time="2ms",
                     job__rounds=ENDLESS) as job:
                ports = self.start(job)
                for name in ("worker0", "worker1"):
                    with self.subTest(transport=transport, worker=name):
                        self.assertEqual(len(ports[name]), 1, ports)
                        line = self.said(job, name)
                        self.assertIn(f"tcp {ports[name][0]}, for workers that prove the job's key", line)
                        self.assertIn("no port of UCX", line)
                        self.assertNotIn("anybody who reaches", job.log(name))
                job.interrupt()

    def test_the_coordinator_tells_its_ports(self):
        with Job(1, coordinator_args=["--http", "127.0.0.1:0"]) as job:
            job.start_coordinator()
            ports = wait_for("both ports", lambda: len(found := listening(job.processes["coordinator"].pid)) == 2 and found)
            line = wait_for("the line", lambda: "open to others" in job.log("coordinator") and self.said(job, "coordinator"))
            for port in ports:
                self.assertIn(port, line)

    def test_ucx_by_name_warns_and_tells_all_its_ports(self):
        with Job(2, exchange__transport="ucx", exchange__mapping="off", emulate__unit_time="2ms", job__rounds=ENDLESS) as job:
            ports = self.start(job)
            for name in ("worker0", "worker1"):
                self.assertGreater(len(ports[name]), 1)
                line = self.said(job, name)
                for port in ports[name]:
                    self.assertIn(port, line)
                warnings = [line for line in job.log(name).split("\n") if "warning" in line and "exchange.transport = ucx" in line]
                self.assertEqual(len(warnings), 1, job.log(name))
                self.assertIn("may write this process's memory or end it", warnings[0])
            job.interrupt()

    def test_garbage_at_every_port_changes_nothing(self):
        runs = []
        for transport, strangers in (("tcp", False), ("tcp", True), ("auto", True)):
            with Job(2, exchange__transport=transport, exchange__mapping="off", emulate__unit_time="2ms", job__rounds=ENDLESS,
                     coordinator_args=["--http", "127.0.0.1:0"]) as job:
                ports = self.start(job)
                addresses = [address for of in ports.values() for address in of] if strangers else []
                with Strangers(addresses) as crowd:
                    if strangers:
                        wait_for("the crowd", lambda: crowd.connections > 2 * len(GARBAGE) * len(addresses))
                    job.wait_for_rounds(len(job.rounds()) + 10)
                    summary = job.interrupt()
                    for name in ("worker0", "worker1"):
                        self.assertEqual(job.wait(name), 0, job.log(name))
                    self.assertNotIn("is out", job.log("coordinator"))
                    self.assertEqual(summary["digest_differs"], [])
                    runs.append(job.rounds())
        self.assertGreater(count_alike(self, *runs), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
