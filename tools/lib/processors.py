"""To which processors the workers of a host are held: --bind-to of tools/launch.

Where they are says the kernel, in lists as "0-3,8" in files, which are read here or, of another host, by tools/lib/host_agent.py.
"""

import glob
import os

FILES = ("sys/devices/system/node/node*/cpulist", "sys/devices/system/cpu/cpu*/topology/thread_siblings_list")
HOW = ("none", "numa", "core")


class NoPlace(Exception):
    """One line: why the workers cannot be held as was asked."""


def read(root="/"):
    """The kernel's lists, by the names of their files below the root; what cannot be read is not there."""
    lists = {}
    for pattern in FILES:
        for path in glob.glob(os.path.join(root, pattern)):
            try:
                with open(path, encoding="ascii") as file:
                    lists[os.path.relpath(path, root)] = file.read()
            except (OSError, ValueError):
                pass
    return lists


def numbers(text):
    """{0, 1, 2, 3, 8} of "0-3,8"."""
    found = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last.isdigit() or not last):
            found.update(range(int(first), int(last or first) + 1))
    return found


def words(processors):
    """ "0-3,8" of {0, 1, 2, 3, 8}."""
    runs = []
    for cpu in sorted(processors):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def nodes(lists, allowed):
    """Of each NUMA node the cores, and of each core its processors, of those that are allowed: a list of lists of sets."""
    allowed = set(allowed)
    siblings = {}
    for text in (text for path, text in lists.items() if path.endswith("thread_siblings_list")):
        together = numbers(text) & allowed
        siblings.update((cpu, together) for cpu in together)
    of_node = [numbers(text) & allowed for _, text in sorted(((len(path), path), text) for path, text in lists.items() if path.endswith("cpulist"))]
    of_node.append(allowed.difference(*of_node))  # of no node: all, where the kernel has none
    found = []
    for cpus in filter(None, of_node):
        cores, rest = [], set(cpus)
        for cpu in sorted(cpus):
            if cpu in rest:
                cores.append(siblings.get(cpu, {cpu}) & rest)
                rest -= cores[-1]
        found.append(cores)
    return found


def places(how, workers, of_nodes):
    """For each worker its processors and how many cores are its own: side by side on nodes, or with cores of their own."""
    if how == "numa":
        count = len(of_nodes)
        taken = [of_nodes[i * count // workers:max((i + 1) * count // workers, i * count // workers + 1)] for i in range(workers)]
        shares = [sum(other == mine for other in taken) for mine in taken]
        taken = [[core for node in mine for core in node] for mine in taken]
        return [(set().union(*cores), max(1, len(cores) // share)) for cores, share in zip(taken, shares, strict=True)]
    cores = [core for node in of_nodes for core in node]
    if len(cores) < workers:
        raise NoPlace(f"--bind-to core: {workers} workers and {len(cores)} core{'s' if len(cores) > 1 else ''}: not each can have one")
    taken = [cores[i * len(cores) // workers:(i + 1) * len(cores) // workers] for i in range(workers)]
    return [(set().union(*mine), len(mine)) for mine in taken]
