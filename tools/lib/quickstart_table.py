"""Prints a table of runs from their summary.json and reports whether one reached the wanted accuracy."""

import argparse
import json
import sys
from pathlib import Path

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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", nargs="+", metavar="LABEL=RUNDIR")
    parser.add_argument("--accuracy-of", type=int, metavar="NUMBER", help="which run, from 1, is judged")
    parser.add_argument("--at-least", type=float, metavar="ACCURACY")
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
