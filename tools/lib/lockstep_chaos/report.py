"""The tables at the end, and the same as JSON."""

import collections
import dataclasses
import json
import statistics


def command(options, number):
    words = [f"tools/chaos --seed {options.seed} --job {number}"]
    words += [f"--without {','.join(options.without)}"] if options.without else []
    return " ".join(words)


def line_of(result):
    kinds = collections.Counter(one.kind for one, _ in result.happened)
    pauses = [pause for _, pause in result.happened if pause is not None]
    longest = f"; longest pause {max(pauses):.1f} s" if pauses else ""
    resumed = f", resumed {result.resumes} x" if result.resumes else ""
    faults = ", ".join(kind if count == 1 else f"{count} {kind}" for kind, count in kinds.items()) or "no fault"
    return f"{result.outcome} in {result.seconds:.0f} s{resumed}; {faults}{longest}"


def kinds_of(results):
    """{kind: {faults, refused, jobs by outcome, median and worst pause}}."""
    table = {}
    for result in results:
        for one, pause in result.happened:
            row = table.setdefault(one.kind, {"faults": 0, "refused": 0, "completed": set(), "resumed": set(), "failed": set(), "pauses": []})
            row["faults"] += 1
            row["refused"] += one.refused is not None
            row[result.outcome].add(result.plan.job)
            row["pauses"] += [] if pause is None else [pause]
    for row in table.values():
        pauses = row.pop("pauses")
        row |= {outcome: len(row[outcome]) for outcome in ("completed", "resumed", "failed")}
        row |= {"median_pause_s": round(statistics.median(pauses), 2) if pauses else None, "worst_pause_s": round(max(pauses), 2) if pauses else None}
    return dict(sorted(table.items()))


def text(results, seconds):
    outcomes = collections.Counter(result.outcome for result in results)
    rows = [("fault", "times", "refused", "jobs completed", "resumed", "failed", "median pause", "worst pause")]
    for kind, row in kinds_of(results).items():
        pauses = ["-" if row[key] is None else f"{row[key]:.2f} s" for key in ("median_pause_s", "worst_pause_s")]
        rows.append((kind, *(str(row[key]) for key in ("faults", "refused", "completed", "resumed", "failed")), *pauses))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths)).rstrip() for row in rows]
    total = ", ".join(f"{outcomes[outcome]} {outcome}" for outcome in ("completed", "resumed", "failed"))
    return "\n".join(["", *(lines if len(rows) > 1 else []), f"{len(results)} job{'' if len(results) == 1 else 's'} in {seconds / 60:.1f} min: {total}"])


def as_json(options, results, seconds):
    return json.dumps({
        "seed": options.seed, "seconds": round(seconds, 1), "kinds": kinds_of(results),
        "jobs": [{
            "job": result.plan.job, "title": result.plan.title(), "settings": result.plan.settings, "outcome": result.outcome,
            "seconds": round(result.seconds, 1), "resumes": result.resumes, "documented_failures": result.failures, "findings": result.findings,
            "kept": result.kept, "schedule": [dataclasses.asdict(fault) for fault in result.plan.faults],
            "faults": [{"kind": one.kind, "victim": one.victim, "refused": one.refused, "pause_s": None if pause is None else round(pause, 3)}
                       for one, pause in result.happened],
        } for result in results],
    }, indent=2)
