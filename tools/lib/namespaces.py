"""Several hosts on one machine: network namespaces, each with an address in 10.77.0.0/24, at one bridge. Needs root and iproute2."""

import os
import shutil
import subprocess


class CannotMake(Exception):
    """One line."""


def sh(*words, input=None):
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False, input=input)


def can_be_made():
    if os.geteuid() != 0 or not shutil.which("ip"):
        return False
    name = f"lsprobe{os.getpid()}"
    made = sh("ip", "netns", "add", name).returncode == 0
    sh("ip", "netns", "del", name)
    return made


class Network:
    """A bridge in a namespace of its own, with the hosts at it: the first has 10.77.0.1, the next 10.77.0.2 and so on."""

    def __init__(self, hosts):
        tag = os.getpid()
        self.names = tuple(hosts)
        self.hosts = {host: f"{host}{tag}" for host in self.names}
        self.switch = f"lss{tag}"
        self.made = []

    def __enter__(self):
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _make(self):
        self.run("ip", "netns", "add", self.switch)
        self.made.append(self.switch)
        self.inside(self.switch, "ip", "link", "add", "br0", "type", "bridge")
        self.inside(self.switch, "ip", "link", "set", "br0", "up")
        for number, name in enumerate(self.hosts.values(), 1):
            self.run("ip", "netns", "add", name)
            self.made.append(name)
            self.run("ip", "-n", self.switch, "link", "add", f"p{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            self.inside(self.switch, "ip", "link", "set", f"p{number}", "master", "br0", "up")
            self.inside(name, "ip", "link", "set", "lo", "up")
            self.inside(name, "ip", "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
            self.inside(name, "ip", "link", "set", "eth0", "up")

    def __exit__(self, *_):
        for name in self.made:
            sh("ip", "netns", "del", name)
        self.made = []

    def run(self, *words, input=None):
        done = sh(*words, input=input)
        if done.returncode != 0:
            raise CannotMake(f"{' '.join(map(str, words))}: {done.stderr.strip()}")

    def inside(self, name, *words, input=None):
        self.run("ip", "netns", "exec", name, *words, input=input)

    def address(self, host):
        return f"10.77.0.{self.names.index(host) + 1}"

    def shape(self, host, rate, latency="200ms", burst="64kb"):
        """The host sends at most at `rate`; no packet that has waited less than `latency` is dropped. On a busy machine the rate is kept
        only with a burst of some milliseconds."""
        self.inside(self.hosts[host], "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate, "burst", burst,
                    "latency", latency)

    def limit_flows(self, host, rate, flow, burst="256kb"):
        """The host sends at most at `rate`, and at `flow` over one connection, like in clouds. Each port that a host's kernel gives to a
        client has a class of its own, for the packets from it and, at the other host, to it. Those are the even ones of the range; a
        server on any port gets an odd one."""
        first, last = 0xA000, 0xA0FF
        lines = ["qdisc add dev eth0 root handle 1: htb default 1", f"class add dev eth0 parent 1: classid 1:1 htb rate {rate} burst {burst} cburst {burst}"]
        for port in range(first, last, 2):
            # It has a little of its own and borrows the rest: a class with enough of its own ignores the total.
            lines.append(f"class add dev eth0 parent 1:1 classid 1:{port:x} htb rate 100kbit ceil {flow} burst {burst} cburst {burst} quantum 60000")
            lines += [f"filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip protocol 6 0xff match ip {side} {port} 0xffff "
                      f"flowid 1:{port:x}" for side in ("sport", "dport")]
        self.inside(self.hosts[host], "sysctl", "-qw", f"net.ipv4.ip_local_port_range={first} {last}")
        self.inside(self.hosts[host], "tc", "-batch", "-", input="".join(line + "\n" for line in lines))

    def part(self, *hosts):
        """Drops all packets between these hosts, silently."""
        for host in hosts:
            self.inside(self.switch, "bridge", "link", "set", "dev", f"p{self.names.index(host) + 1}", "isolated", "on")

    def prefix(self, host):
        return ["ip", "netns", "exec", self.hosts[host]]
