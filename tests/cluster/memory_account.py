"""What workers say at their end of the memory that the exchange has taken, and who owned how much of the sums then."""

import re

SHARED = re.compile(r"round ([0-9]+): the sums are shared among worker (.*)")
ACCOUNT = re.compile(r"most memory of the exchange: ([0-9.]+) MiB, ([0-9.]+) times the parameters: (.*)")


def account(log):
    """The worker's own account at its peak: {kind: multiple of the parameters}, with `total` and `mib`."""
    found = ACCOUNT.search(log)
    kinds = {part.split()[1]: float(part.split()[0]) for part in found.group(3).split(", ")}
    kinds["total"] = float(found.group(2))
    kinds["mib"] = float(found.group(1))
    return kinds


def shares(log, workers):
    """{worker: [its share of each owner map that it had]}: equal ones, until the coordinator (at log level debug) says otherwise."""
    maps = [dict.fromkeys(range(workers), 1)]
    for _, text in SHARED.findall(log):
        maps.append({int(worker): int(weight) for worker, weight in re.findall(r"([0-9]+) \(([0-9]+)\)", text)})
    return {worker: [one.get(worker, 0) / sum(one.values()) for one in maps] for worker in range(workers)}
