"""Chooses the processors to which the workers of a host are held: --bind-to of tools/launch. The kernel gives their places in lists as
"0-3,8" in files, which are read here or, on another host, by host_agent.py.
"""

import glob
import os

FILES = ("sys/devices/system/node/node*/cpulist", "sys/devices/system/cpu/cpu*/topology/thread_siblings_list")
HOW = ("none", "numa", "core")


class NoPlace(Exception):
    """One line: the reason why the workers cannot be held as requested."""


def read(root="/"):
    """The kernel's lists, by the names of their files below the root; an unreadable one is missing."""
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
    """For each NUMA node its cores, and for each core its allowed processors: a list of lists of sets."""
    allowed = set(allowed)
    siblings = {}
    for text in (text for path, text in lists.items() if path.endswith("thread_siblings_list")):
        together = numbers(text) & allowed
        siblings.update((cpu, together) for cpu in together)
    of_node = [numbers(text) & allowed for _, text in sorted(((len(path), path), text) for path, text in lists.items() if path.endswith("cpulist"))]
    of_node.append(allowed.difference(*of_node))  # without a node: all, where the kernel has none
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
    """For each worker its processors and its number of own cores: side by side on nodes, or with cores of their own."""
    count = len(of_nodes)
    on_nodes = [range(i * count // workers, max((i + 1) * count // workers, i * count // workers + 1)) for i in range(workers)]
    taken = [[core for node in mine for core in of_nodes[node]] for mine in on_nodes]
    if how == "numa":
        return [(set().union(*cores), max(1, len(cores) // on_nodes.count(mine))) for cores, mine in zip(taken, on_nodes, strict=True)]
    cores = sum(map(len, of_nodes))
    if cores < workers:
        raise NoPlace(f"--bind-to core: {workers} workers and {cores} core{'s' if cores > 1 else ''}: not each can have one")
    if any(len(cores) < on_nodes.count(mine) for cores, mine in zip(taken, on_nodes, strict=True)):  # a node that is too small
        taken, on_nodes = [[core for node in of_nodes for core in node]] * workers, [range(count)] * workers
    own = []
    for worker, mine in enumerate(on_nodes):
        index, of = worker - on_nodes.index(mine), on_nodes.count(mine)
        own.append(taken[worker][index * len(taken[worker]) // of:(index + 1) * len(taken[worker]) // of])
    return [(set().union(*cores), len(cores)) for cores in own]
