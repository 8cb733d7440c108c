"""Prints a table of runs from their summary.json and reports whether one reached the wanted accuracy."""

import argparse
import json
import os
import re
import sys
from pathlib import Path

MOST_OTHERS = 0.1  # of the processors, by programs that are no part of a run
HEADER = ("workers", "policy", "wall time", "rounds/s", "test accuracy", "samples dropped")


def read(run):
    path = Path(run) / "summary.json"
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        sys.exit(f"quickstart: {path}: {error}")
    if summary["status"] != "completed":
        sys.exit(f"quickstart: {run} was not completed: {summary['status']}")
    return summary


def row(label, summary):
    seconds = summary["wall_seconds"]
    accuracy = summary["test_accuracy"]
    return (label, summary["policy"], f"{seconds:.1f} s", f"{summary['rounds'] / seconds:.1f}" if seconds > 0 else "-",
            f"{100 * accuracy:.2f} %" if accuracy is not None else "-", str(summary["samples_dropped"]))


def sample(path):
    """The clock, and the processor seconds of the whole machine and of the shell's children, as tools/quickstart has noted them."""
    _, children, all_of_it, clock = path.read_text(encoding="utf-8").splitlines()
    ours = sum(60 * float(minutes) + float(seconds) for minutes, seconds in re.findall(r"(\d+)m([\d.]+)s", children.replace(",", ".")))
    # user, nice and system; then, behind idle and iowait, irq, softirq and steal
    ticks = [int(word) for word in all_of_it.split()[1:]]
    return float(clock.split()[0]), sum(ticks[:3] + ticks[5:8]) / os.sysconf("SC_CLK_TCK"), ours


def share_of_others(before, after):
    """Of all processors, by programs that are no part of the run."""
    seconds, used, ours = (late - early for early, late in zip(before, after))
    return (used - ours) / seconds / os.cpu_count() if seconds > 0 else 0.0


def why_not_comparable(others, processors, workers):
    """One line where the times of the runs say little about the policies; empty: nothing speaks against them."""
    if max(others, default=0) > MOST_OTHERS:
        return (f"Other programs used {100 * max(others):.0f} % of this machine's processors during a run, so the times do not compare. "
                "Repeat this on an idle machine.")
    if processors < workers:
        return f"{workers} workers share {processors} processors, so the times compare only roughly. Use a larger machine to compare policies."
    return ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", nargs="+", metavar="LABEL=RUNDIR")
    parser.add_argument("--accuracy-of", type=int, metavar="NUMBER", help="which run, from 1, is judged")
    parser.add_argument("--at-least", type=float, metavar="ACCURACY")
    parser.add_argument("--samples", type=Path, metavar="DIR", help="processor times before and after each run")
    options = parser.parse_args()
    runs = [run.split("=", 1) for run in options.runs]
    summaries = [read(folder) for _, folder in runs]
    rows = [HEADER] + [row(label, summary) for (label, _), summary in zip(runs, summaries)]
    widths = [max(len(cells[column]) for cells in rows) for column in range(len(HEADER))]
    for cells in rows:
        text = [cell.ljust(width) if column < 2 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(cells, widths))]
        print("  ".join(text).rstrip())
    for _, folder in runs:
        print(f"  {folder}")
    if options.samples is not None:
        names = [Path(folder).name for _, folder in runs]
        others = [share_of_others(sample(options.samples / f"{name}.before"), sample(options.samples / f"{name}.after")) for name in names]
        if doubt := why_not_comparable(others, len(os.sched_getaffinity(0)), summaries[0]["workers"]):
            print(doubt)
    if options.accuracy_of is None:
        return 0
    reached = summaries[options.accuracy_of - 1]["test_accuracy"] or 0.0
    if reached < options.at_least:
        print(f"quickstart: test accuracy {100 * reached:.2f} %, wanted at least {100 * options.at_least:.0f} %", file=sys.stderr)
        return 1
    print(f"test accuracy {100 * reached:.2f} %, wanted at least {100 * options.at_least:.0f} %: reached")
    return 0


if __name__ == "__main__":
    sys.exit(main())
