"""Encrypted jobs, and somebody on the way between two workers who writes down what passes, and changes it."""

import collections
import re
import socket
import threading
import unittest

from harness import ClusterTest, Job, check_same_bits, wait_for

OVER_TCP = {"exchange.mapping": "off", "exchange.transport": "tcp"}


def listener():
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    made.listen()
    return made


class Between:
    """Takes connections and passes them on to another port of this host; subclasses see and change the bytes."""

    def __init__(self):
        self.listener = listener()
        self.port = self.listener.getsockname()[1]
        self.target = None
        self.sockets = [self.listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        for one in self.sockets:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            one.close()

    def seen(self, data, forth):
        """What goes on in the place of data; forth: from whoever connects."""
        del forth
        return data

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                return
            self.sockets += [near, far]
            for source, sink, forth in ((near, far, True), (far, near, False)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pass, args=(source, sink, forth), daemon=True).start()

    def _pass(self, source, sink, forth):
        try:
            while data := source.recv(1 << 16):
                sink.sendall(self.seen(data, forth))
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class OnTheWire(Between):
    """Of the data connections to one worker."""

    def __init__(self):
        super().__init__()
        self.bytes = bytearray()
        self.flip = threading.Event()

    def seen(self, data, forth):
        self.bytes += data
        if self.flip.is_set() and len(data) > 4096:
            self.flip.clear()
            data = bytearray(data)
            data[len(data) // 2] ^= 1
        return data


class Introducer(Between):
    """Of a worker's control connection: tells the coordinator the wire's port in the place of the worker's own."""

    def __init__(self, coordinator, wire):
        super().__init__()
        self.target = int(coordinator.rsplit(":", 1)[1])
        self.wire = wire

    def seen(self, data, forth):
        # In Ready, where there is one transport; as long as the other, so no length around it changes.
        found = re.search(rb"127\.0\.0\.1:(\d{5})", data) if forth and self.wire.target is None else None
        if found:
            self.wire.target = int(found.group(1))
            data = data.replace(found.group(0), b"127.0.0.1:%05d" % self.wire.port)
        return data


class Encryption(ClusterTest):
    def start_with_a_wire(self, job):
        """The last worker is reached over the wire by all others, which connect to it."""
        wire = OnTheWire()
        self.addCleanup(wire.close)
        job.start_coordinator()
        introducer = Introducer(job.address, wire)
        self.addCleanup(introducer.close)
        for index in range(job.workers - 1):
            job.start_worker(index)
        job.start_worker(job.workers - 1, address=f"127.0.0.1:{introducer.port}")
        return wire

    def test_the_same_result(self):
        runs = {}
        for encryption in ("off", "on"):
            with Job(3, OVER_TCP, exchange__encryption=encryption) as job:
                summary = job.start().finish()
                runs[encryption] = (job.rounds(), summary)
                paths = {path["path"] for path in summary["paths"]}
                self.assertEqual(len(paths), 1, paths)
                self.assertRegex(paths.pop(), r"^tcp \(TLS 1\.3\)$" if encryption == "on" else "^tcp$")
        check_same_bits(self, runs)

    def test_auto_takes_what_encrypts(self):
        with Job(2, exchange__encryption="on", exchange__mapping="off") as job:
            summary = job.start().finish()
            self.assertEqual(summary["transport"], "tcp")
            for index in range(2):
                self.assertIn("tcp (TLS 1.3", job.log(f"worker{index}"))

    def test_what_is_on_the_wire(self):
        for encryption in ("off", "on"):
            with self.subTest(encryption=encryption), Job(2, OVER_TCP, exchange__encryption=encryption) as job:
                wire = self.start_with_a_wire(job)
                job.finish()
                seen = bytes(wire.bytes)
                self.assertGreater(len(seen), 100000)
                plain = encryption == "off"
                # A hello's first eight bytes, and the name of a piece that measures a path (its kind, attempt 0, round 0). Only as
                # long as this do they not stand in some hundred million bytes of random text by chance.
                self.assertEqual(b"LKSH\x01\x00\x01\x00" in seen, plain)
                self.assertEqual(0x70726f62.to_bytes(4, "little") + bytes(12) in seen, plain)
                # Floats share their exponents, so some bytes are frequent; of 256 that are all alike each is 0.4 % of them.
                most = collections.Counter(seen).most_common(1)[0][1] / len(seen)
                if plain:
                    self.assertGreater(most, 0.01)
                else:
                    self.assertLess(most, 0.006)

    def test_a_changed_byte_ends_the_connection_and_not_the_job(self):
        with Job(3, OVER_TCP, exchange__encryption="on", job__rounds=0, job__epochs=4, job__min_workers=1,
                 emulate__unit_time="3ms") as job:
            wire = self.start_with_a_wire(job)
            job.wait_for_rounds(10)
            wire.flip.set()
            wait_for("a changed byte", lambda: not wire.flip.is_set())
            # The coordinator tells what it hears first: of the end that got it, or of the one that was told.
            said = ("bytes from the other end were changed on the way", "bytes to the other end were changed on the way")
            wait_for("one of the two to say so", lambda: any(
                words in job.log(name) for words in said for name in list(job.logs)))
            summary = job.finish()
            self.assertEqual(summary["status"], "completed")
            self.assertEqual(summary["digest_differs"], [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
