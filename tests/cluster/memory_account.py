"""What workers say at their end of the memory that the exchange has taken, and who owned how much of the sums then."""

import re

SHARED = re.compile(r"round ([0-9]+), map ([0-9]+): the sums are shared among worker (.*)")
BUCKET_MIB = 4  # exchange.bucket_bytes
ACCOUNT = re.compile(r"most memory of the exchange: ([0-9.]+) MiB, ([0-9.]+) times the parameters: (.*)")


def account(log):
    """The worker's own account at its peak: {kind: multiple of the parameters}, with `total` and `mib`."""
    found = ACCOUNT.search(log)
    kinds = {part.split()[1]: float(part.split()[0]) for part in found.group(3).split(", ")}
    kinds["total"] = float(found.group(2))
    kinds["mib"] = float(found.group(1))
    return kinds


def copies_for_joiners(one, tensors):
    """The most that `copies` may be of this account where a worker was put behind and copied the state anew."""
    return 2 * tensors * BUCKET_MIB / (one["mib"] / one["total"])


def shares(log, workers):
    """{worker: [its share of each owner map that it had]}: equal ones, until the coordinator (at log level debug) says otherwise."""
    maps = [dict.fromkeys(range(workers), 1)]
    for _, _, text in SHARED.findall(log):
        maps.append({int(worker): int(weight) for worker, weight in re.findall(r"([0-9]+) \(([0-9]+)\)", text)})
    return {worker: [one.get(worker, 0) / sum(one.values()) for one in maps] for worker in range(workers)}


def staged(log, workers):
    """{worker: the largest share that it may stage at a time}: of two owner maps that follow each other. A round's map may change while the
    round is open. And a worker that still lacks sums of a round keeps what it has staged for it, while quicker ones announce the next one's."""
    return {worker: max(map(sum, zip([*shared, 0], [0, *shared]))) for worker, shared in shares(log, workers).items()}
