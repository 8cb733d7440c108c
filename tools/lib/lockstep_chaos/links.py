"""Faults of the links between a job's hosts, which are network namespaces of this machine."""

import namespaces

LAUNCHER = "lcl"
HOSTS = ("lca", "lcb", "lcc")
NOWHERE = "02:00:00:00:00:09"  # nobody has it: a packet to it is lost in silence
RATES = ("2mbit", "10mbit", "50mbit")
# The launcher reaches a host by this in place of ssh.
SSH = """#!{python}
import os, subprocess, sys
arguments = sys.argv[1:]
host, command = arguments[arguments.index("--") + 1:]
os.environ["SSH_CONNECTION"] = f"10.77.0.1 40000 {{host}} 22"
sys.exit(subprocess.run(["ip", "netns", "exec", {hosts}[host], "sh", "-c", command]).returncode)
"""


class Hosts(namespaces.Network):
    """The launcher's host, and so many for the job; the coordinator is on the first of them."""

    def __init__(self, count):
        super().__init__((LAUNCHER, *HOSTS[:count]))

    def job_hosts(self):
        return self.names[1:]

    def namespaces_of(self):
        """{address: namespace} for the stand-in of ssh."""
        return {self.address(host): self.hosts[host] for host in self.job_hosts()}

    def lose(self, sender, receiver):
        """Loses everything that the one sends to the other from now on."""
        self.inside(self.hosts[sender], "ip", "neigh", "replace", self.address(receiver), "lladdr", NOWHERE, "dev", "eth0", "nud", "permanent")

    def restore(self, sender, receiver):
        self.inside(self.hosts[sender], "ip", "neigh", "del", self.address(receiver), "dev", "eth0")

    def slow(self, host, rate):
        self.inside(self.hosts[host], "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "64kb", "latency", "400ms")

    def unslow(self, host):
        self.inside(self.hosts[host], "tc", "qdisc", "del", "dev", "eth0", "root")
