"""What a machine's RDMA device and its TCP have moved, and the judgement whether the bulk went by RDMA."""

import dataclasses
import pathlib

# Packets of rxe0 carry 4096 bytes at most, and TCP's segments on eth0 no more than its MTU; see guest.sh.
RDMA_PACKET_BYTES = 4096
SEGMENT_BYTES = 4200


@dataclasses.dataclass
class Counters:
    rdma_sent: int = 0  # packets
    rdma_received: int = 0
    tcp_sent: int = 0  # segments, of all sockets and devices of the machine
    tcp_received: int = 0
    wire_sent: int = 0  # bytes that left the machine by eth0, RDMA's packets among them
    wire_received: int = 0

    def __sub__(self, before):
        return Counters(*(mine - theirs for mine, theirs in zip(dataclasses.astuple(self), dataclasses.astuple(before))))

    def __str__(self):
        return (f"rxe0 sent_pkts {self.rdma_sent} rcvd_pkts {self.rdma_received}, "
                f"TCP OutSegs {self.tcp_sent} InSegs {self.tcp_received}, "
                f"eth0 tx_bytes {self.wire_sent} rx_bytes {self.wire_received}")


def parse(rdma_sent, rdma_received, snmp, wire_sent, wire_received):
    """From the text of the two devices' counters and of /proc/net/snmp."""
    names, values = (line.split()[1:] for line in snmp.splitlines() if line.startswith("Tcp:"))
    tcp = dict(zip(names, map(int, values)))
    return Counters(int(rdma_sent), int(rdma_received), tcp["OutSegs"], tcp["InSegs"], int(wire_sent), int(wire_received))


def read():
    """Of the machine that this runs on."""
    rdma = pathlib.Path("/sys/class/infiniband/rxe0/ports/1/hw_counters")
    wire = pathlib.Path("/sys/class/net/eth0/statistics")
    return parse((rdma / "sent_pkts").read_text(), (rdma / "rcvd_pkts").read_text(), pathlib.Path("/proc/net/snmp").read_text(),
                 (wire / "tx_bytes").read_text(), (wire / "rx_bytes").read_text())


def why_not_rdma(moved, bulk_bytes):
    """What speaks against `bulk_bytes` having gone between two machines by RDMA, in lines; nothing if nothing does.

    `moved` are the counters of one of them, both directions. The device has to have moved packets enough for all of the bulk, the wire
    so many bytes, and TCP no more than a twentieth of it; control messages are far less.
    """
    lines = []
    needed = bulk_bytes // RDMA_PACKET_BYTES
    packets = moved.rdma_sent + moved.rdma_received
    if packets < needed:
        lines.append(f"{bulk_bytes} bytes take {needed} RDMA packets at least, the device moved {packets}")
    if moved.wire_sent + moved.wire_received < bulk_bytes:
        lines.append(f"only {moved.wire_sent + moved.wire_received} bytes were on the wire")
    by_tcp = (moved.tcp_sent + moved.tcp_received) * SEGMENT_BYTES
    if by_tcp > bulk_bytes // 20:
        lines.append(f"TCP may have moved {by_tcp} bytes, which is more than a twentieth of {bulk_bytes}")
    return lines
