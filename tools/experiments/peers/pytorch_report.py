"""Computes rates, ratios and tables from the measurements of bench-pytorch. All functions are pure."""

import statistics


def rate(steps, warm_up):
    """Samples a second of [(time of its end, its samples)], from the end of the last step of warm-up on. An unknown end is None."""
    counted, begun, end, waiting = 0, None, None, 0
    for number, (ended, samples) in enumerate(steps):
        if begun is not None:
            waiting += samples
        if ended is None:
            continue
        if begun is None:
            begun = ended if number >= warm_up - 1 else None
        else:
            counted, end, waiting = counted + waiting, ended, 0
    if end is None or end <= begun:
        raise ValueError(f"{len(steps)} steps, of which {warm_up} are warm-up, are too few")
    return counted / (end - begun)


def ratio(samples, system, base, workers, pattern):
    """How many times as fast as `base` a system is: the median over the runs in which both were measured, so that a busy machine counts
    on both sides."""
    ours, theirs = (samples.get((name, workers, pattern), {}) for name in (system, base))
    ratios = [ours[run] / theirs[run] for run in ours if run in theirs]
    return statistics.median(ratios) if ratios else None


def rows(samples, systems, workers, patterns, batch):
    out = []
    for count in workers:
        for pattern in patterns:
            row = {"workers": count, "pattern": pattern, "samples_per_s": {}, "times_ddp": {}, "step_ms": {}}
            for system in systems:
                rates = samples.get((system, count, pattern), {})
                if not rates:
                    continue
                row["samples_per_s"][system] = statistics.median(rates.values())
                row["step_ms"][system] = 1e3 * count * batch / row["samples_per_s"][system]  # of so many samples
                if system != "ddp":
                    row["times_ddp"][system] = ratio(samples, system, "ddp", count, pattern)
            out.append(row)
    return out


def table(all_rows, systems):
    cells = [["workers, pattern", *systems]]
    for row in all_rows:
        line = [f"{row['workers']}, {row['pattern']}"]
        for system in systems:
            rate_of = row["samples_per_s"].get(system)
            times = row["times_ddp"].get(system)
            line.append("-" if rate_of is None else f"{rate_of:.0f}" + (f" x{times:.2f}" if times is not None else ""))
        cells.append(line)
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths)).rstrip() for line in cells) + "\n"
