"""Several hosts on one machine: network namespaces, each with an address in 10.77.0.0/24, at one bridge. Needs root and iproute2."""

import os
import shutil
import subprocess


class CannotMake(Exception):
    """One line."""


def sh(*words):
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)


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

    def run(self, *words):
        done = sh(*words)
        if done.returncode != 0:
            raise CannotMake(f"{' '.join(map(str, words))}: {done.stderr.strip()}")

    def inside(self, name, *words):
        self.run("ip", "netns", "exec", name, *words)

    def address(self, host):
        return f"10.77.0.{self.names.index(host) + 1}"

    def shape(self, host, rate, latency="200ms", burst="64kb"):
        """What the host sends goes out at `rate` at most; nothing is dropped that has waited less than `latency`. On a busy machine the rate is
        kept only with a burst of some milliseconds."""
        self.inside(self.hosts[host], "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate, "burst", burst,
                    "latency", latency)

    def part(self, *hosts):
        """What these hosts send each other is dropped; nobody is told."""
        for host in hosts:
            self.inside(self.switch, "bridge", "link", "set", "dev", f"p{self.names.index(host) + 1}", "isolated", "on")

    def prefix(self, host):
        return ["ip", "netns", "exec", self.hosts[host]]
