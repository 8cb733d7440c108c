"""One of the two ends of a plain TCP connection that sends as many bytes as it receives, both at once. It measures how much the link
between them carries.

    raw_link.py listen ADDRESS BYTES TIMES     prints the port that it listens on
    raw_link.py connect ADDRESS:PORT BYTES TIMES
Each prints how many seconds the bytes took, a line for each time."""

import socket
import sys
import threading
import time


def both_ways(link, size):
    out = memoryview(bytes(min(size, 4 << 20)))

    def send():
        left = size
        while left > 0:
            left -= link.send(out[:left])

    sender = threading.Thread(target=send, daemon=True)
    begun = time.monotonic()
    sender.start()
    into, left = bytearray(4 << 20), size
    while left > 0:
        got = link.recv_into(into, min(left, len(into)))
        if got == 0:
            raise OSError("the other end is gone")
        left -= got
    sender.join()
    return time.monotonic() - begun


def main():
    way, address, size, times = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    if way == "listen":
        with socket.create_server((address, 0)) as listener:
            print(listener.getsockname()[1], flush=True)
            listener.settimeout(60)
            link, _ = listener.accept()
    else:
        host, _, port = address.rpartition(":")
        link = socket.create_connection((host, int(port)), timeout=60)
    with link:
        link.settimeout(600)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(times):
            # Both ends begin together: a byte there and one back.
            link.sendall(b"?")
            if link.recv(1) != b"?":
                raise OSError("the other end is gone")
            print(f"{both_ways(link, size):.6f}", flush=True)


if __name__ == "__main__":
    main()
