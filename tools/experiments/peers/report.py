"""Computes medians, ratios and tables from the measurements of bench-peers. All functions are pure."""

import statistics

# Their times are limits of the machine, not of an exchange.
LIMITS = ("limit:sum", "limit:sum+step", "limit:memcpy", "limit:tcp", "limit:ucx-shm", "limit:ucx-tcp")


def size_text(count):
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size and count % (size // 16 or 1) == 0:
            return f"{count / size:g} {unit}"
    return f"{count} B"


def time_text(microseconds):
    if microseconds is None:
        return "-"
    if microseconds < 1000:
        return f"{microseconds:.0f} us"
    return f"{microseconds / 1000:.{2 if microseconds < 10000 else 1 if microseconds < 100000 else 0}f} ms"


def medians(samples):
    """Turns {(system, workers, bytes): [median of each run]} into the median over the runs, which is the one that is reported."""
    return {key: statistics.median(runs) for key, runs in samples.items() if runs}


def paired_ratio(samples, system, base, workers, size):
    """How many times as long as `base` a system takes: the median over the runs in which both were measured, so that a busy machine
    counts on both sides."""
    ratios = [theirs / ours for theirs, ours in zip(samples.get((system, workers, size), ()), samples.get((base, workers, size), ())) if ours > 0]
    return statistics.median(ratios) if ratios else None


def base_of(system):
    """The system of ours that a system is compared with: over TCP, ours over TCP."""
    return "lockstep-tcp" if system == "openmpi-tcp" else "lockstep"


def rows(samples, systems, workers, sizes):
    middle = medians(samples)
    out = []
    for size in sizes:
        row = {"workers": workers, "bytes": size, "median_us": {}, "ratio": {}, "ratio_over_tcp": {}}
        for system in systems:
            time = middle.get((system, workers, size))
            if time is None:
                continue
            row["median_us"][system] = time
            if system != "lockstep":
                row["ratio"][system] = paired_ratio(samples, system, base_of(system), workers, size)
            # A system that always uses TCP is compared with our TCP as well.
            if system in ("gloo", "torch"):
                row["ratio_over_tcp"][system] = paired_ratio(samples, system, "lockstep-tcp", workers, size)
        out.append(row)
    return out


def table(all_rows, systems):
    lines = []
    for workers in sorted({row["workers"] for row in all_rows}):
        chosen = [row for row in all_rows if row["workers"] == workers]
        cells = [[f"{workers} processes"] + list(systems)]
        for row in chosen:
            line = [size_text(row["bytes"])]
            for system in systems:
                text = time_text(row["median_us"].get(system))
                ratio = row["ratio"].get(system)
                over_tcp = row["ratio_over_tcp"].get(system)
                if ratio is not None:
                    text += f" x{ratio:.2f}"
                if over_tcp is not None:
                    text += f" (tcp x{over_tcp:.2f})"
                line.append(text)
            cells.append(line)
        widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
        lines += ["  ".join(cell.rjust(width) for cell, width in zip(line, widths)).rstrip() for line in cells] + [""]
    return "\n".join(lines)
