"""Computes what bench-faults prints from the records of its runs. All functions are pure, except those that read a folder.

A *step* is one that counts in the final parameters: (time of its end, epoch, {worker: ranges of samples}). A *process* is one start of the
training script on one worker. All times are of the machine's monotonic clock.
"""

import collections
import dataclasses
import json
import math
import statistics


@dataclasses.dataclass
class Process:
    pid: int
    born: float
    rank: int | None = None
    made: float = math.inf
    ready: float = math.inf
    lines: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Step:
    end: float
    epoch: int
    work: dict  # worker: ranges

    @property
    def samples(self):
        return sum(count(ranges) for ranges in self.work.values())


@dataclasses.dataclass
class History:
    steps: list
    repeated_work: list  # (time, samples) of steps that were computed and rolled back


def count(ranges):
    return sum(end - begin for begin, end in ranges)


def parsed(text):
    """The whole lines: the last one may still be written."""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def processes(folder):
    """All that have begun, by their beginning."""
    found = []
    for path in folder.glob("*.jsonl"):
        lines = parsed(path.read_text())
        if not lines:
            continue
        process = Process(int(path.stem), lines[0]["at"], lines=lines)
        for line in lines:
            if "made" in line:
                process.made = line["at"]
            elif "ready" in line:
                process.rank, process.ready = line["ready"], line["at"]
        found.append(process)
    return sorted(found, key=lambda process: process.born)


def ddp_history(all_processes, kills, epoch_steps, until):
    """Each start of all workers goes on from a checkpoint, and what the start before it did behind that is undone. A step that one worker
    has ended had the gradients of all."""
    starts = {}  # torchrun's number of the start: its steps
    for process in all_processes:
        first = next((line["begin"] for line in process.lines if "begin" in line), None)
        if first is None:
            continue
        start = starts.setdefault(process.lines[0]["restart"],
                                  {"first": first, "ready": process.ready, "saved": first, "ends": {}, "work": collections.defaultdict(dict)})
        for line in process.lines:
            if line["at"] > until:
                break
            if "begin" in line:
                start["work"][line["begin"]][process.rank] = line["ranges"]
            elif "end" in line:
                start["ends"][line["end"]] = min(line["at"], start["ends"].get(line["end"], math.inf))
            elif "saved" in line:
                start["saved"] = line["saved"]
    ordered = [starts[number] for number in sorted(starts)]
    steps, repeated = [], []
    for number, start in enumerate(ordered):
        kept = math.inf
        if number + 1 < len(ordered):
            kept = ordered[number + 1]["first"]
        elif any(start["ready"] < at for at, _ in kills):  # the next one was not ready until the end
            kept = start["saved"]
        for step, end in sorted(start["ends"].items()):
            made = Step(end, step // epoch_steps, start["work"][step])
            if step < kept:
                steps.append(made)
            else:
                repeated.append((end, made.samples))
    return History(steps, repeated)


def torchft_history(all_processes, epoch_steps, until):
    """A step has the samples of its participants. One that was killed between the commit and its line is known by its begin. At its first
    steps torchft counts those as participants that come back and give zeros, so the number of participants alone does not tell."""
    ends, counted, parts, begun = {}, collections.defaultdict(dict), {}, collections.defaultdict(dict)
    idle = collections.defaultdict(set)
    for process in all_processes:
        last = None
        for line in process.lines:
            if line["at"] > until:
                break
            if "begin" in line:
                last = line["ranges"]
                begun[line["begin"]][process.rank] = last
            elif "end" in line:
                step = line["end"]
                ends[step] = min(line["at"], ends.get(step, math.inf))
                parts[step] = line["parts"]
                if line["counts"]:
                    counted[step][process.rank] = last
                else:
                    idle[step].add(process.rank)
    steps = []
    for step, end in sorted(ends.items()):
        work = dict(counted[step])
        for rank, ranges in begun[step].items():
            if len(work) + len(idle[step]) < parts[step] and rank not in work and rank not in idle[step]:
                work[rank] = ranges
        steps.append(Step(end, step // epoch_steps, work))
    return History(steps, [])


def lockstep_history(all_processes, rounds, until):
    """The coordinator's record says which samples closed rounds have, in seconds since the job's start. No worker begins a round before
    the last one is committed: the shortest such time gives the difference of the clocks."""
    commits = {line["round"]: line["times"]["commit"] for line in rounds}
    begun = {}
    for process in all_processes:
        for line in process.lines:
            if "begin" in line:
                begun[line["begin"]] = min(line["at"], begun.get(line["begin"], math.inf))
    differences = [at - commits[number - 1] for number, at in begun.items() if number - 1 in commits]
    if not differences:
        return History([], [])
    offset = min(differences)
    steps = []
    for line in rounds:
        work = collections.defaultdict(list)
        for part in line["contributors"]:
            work[part["worker"]] += part["ranges"]
        step = Step(line["times"]["commit"] + offset, line["epoch"], dict(work))
        if step.end <= until:
            steps.append(step)
    return History(steps, [])


def unseen(all_processes, rounds):
    """Samples that a closed round counts for a worker whose script has never had them in that round: 0 in a sound job."""
    had = collections.defaultdict(set)
    for process in all_processes:
        for line in process.lines:
            if "begin" in line:
                for begin, end in line["ranges"]:
                    had[line["begin"], process.rank].update(range(begin, end))
    return sum(sample not in had[line["round"], part["worker"]] for line in rounds for part in line["contributors"]
               for begin, end in part["ranges"] for sample in range(begin, end))


def lost_and_repeated(steps, epoch_samples, begin):
    """Over the epochs that have begun after that time and are over: (samples that no step has, samples beyond the first time, samples of
    these epochs)."""
    times, first = collections.defaultdict(collections.Counter), {}
    for step in steps:
        first[step.epoch] = min(step.end, first.get(step.epoch, math.inf))
        for ranges in step.work.values():
            for start, end in ranges:
                times[step.epoch].update(range(start, end))
    over = [epoch for epoch in sorted(times)[:-1] if first[epoch] > begin]
    lost = sum(epoch_samples - len(times[epoch]) for epoch in over)
    repeated = sum(sum(times[epoch].values()) - len(times[epoch]) for epoch in over)
    return lost, repeated, len(over) * epoch_samples


def rate(steps, begin, end):
    return sum(step.samples for step in steps if begin < step.end <= end) / (end - begin)


def pauses(ends, kills, until):
    """For each kill the longest time without a step from then on, up to the next kill."""
    ends = sorted(ends)
    result = []
    for number, (at, _) in enumerate(kills):
        last = kills[number + 1][0] if number + 1 < len(kills) else until
        points = [max([end for end in ends if end <= at], default=at), *(end for end in ends if at < end <= last), last]
        result.append(max(b - a for a, b in zip(points, points[1:])))
    return result


def rejoins(steps, all_processes, kills, until):
    """For each kill: seconds until the worker's next process has begun, seconds until a step has its samples, and the system's own part of
    these, behind the import of torch. None: not until the end."""
    result = []
    for at, rank in kills:
        back = next((process for process in all_processes if process.rank == rank and process.born > at), None)
        joined = None
        if back is not None and back.ready <= until:
            joined = next((step.end for step in steps if step.end > back.ready and rank in step.work), None)
        if joined is None:
            result.append({"start_s": None, "rejoin_s": None, "join_s": None})
        else:
            result.append({"start_s": back.born - at, "rejoin_s": joined - at, "join_s": joined - back.made})
    return result


def probes(all_processes):
    """{step: loss} of the snapshots."""
    return {line["probe"]: line["loss"] for process in all_processes for line in process.lines if "probe" in line}


def measured(system, all_processes, rounds, window, kills, epoch_steps, whole):
    """All figures of a run."""
    begin, end = window
    if system == "ddp":
        history = ddp_history(all_processes, kills, epoch_steps, end)
    elif system == "torchft":
        history = torchft_history(all_processes, epoch_steps, end)
    else:
        history = lockstep_history(all_processes, rounds, end)
    inside = [step for step in history.steps if begin < step.end]
    again = [(at, samples) for at, samples in history.repeated_work if begin < at]
    lost, repeated, of = lost_and_repeated(history.steps, epoch_steps * whole, begin)
    back = rejoins(history.steps, all_processes, kills, end)
    figures = {"samples_per_s": rate(history.steps, begin, end), "steps": len(inside), "shrunk": sum(step.samples < whole for step in inside),
               "lost": lost, "repeated": repeated, "epoch_samples": of, "recomputed": sum(samples for _, samples in again), "kills": len(kills),
               "pause_s": pauses([step.end for step in history.steps] + [at for at, _ in history.repeated_work], kills, end),
               **{name: [one[name] for one in back] for name in ("start_s", "rejoin_s", "join_s")}}
    if rounds is not None:
        figures["unseen"] = unseen(all_processes, rounds)
    return figures


def median(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def ratio(runs, key, base):
    """The median over the runs in which both were measured."""
    ours, theirs = runs.get(key, {}), runs.get(base, {})
    return median([ours[run]["samples_per_s"] / theirs[run]["samples_per_s"] for run in ours if run in theirs and theirs[run]["samples_per_s"]])


COLUMNS = ("model, faults", "system", "samples/s", "x its own", "x DDP", "lost", "repeated", "rolled back", "shrunk steps", "pause s",
           "rejoin s", "start s", "join s", "rejoined", "loss", "distance")


def rows(runs, sizes, scenarios, systems):
    """`runs`: {(size, scenario, system): {run: figures}}."""
    result = []
    for size in sizes:
        for scenario in scenarios:
            for system in systems:
                figures = list(runs.get((size, scenario, system), {}).values())
                if not figures:
                    continue
                joined = [seconds for run in figures for seconds in run["rejoin_s"]]
                result.append({
                    "size": size, "scenario": scenario, "system": system, "samples_per_s": median([run["samples_per_s"] for run in figures]),
                    "of_own": ratio(runs, (size, scenario, system), (size, "quiet", system)),
                    "of_ddp": ratio(runs, (size, scenario, system), (size, "quiet", "ddp")),
                    **{name: sum(run[name] for run in figures)
                       for name in ("lost", "repeated", "epoch_samples", "recomputed", "shrunk", "steps", "kills")},
                    "pause_s": median([seconds for run in figures for seconds in run["pause_s"]]),
                    **{name: median([seconds for run in figures for seconds in run[name]]) for name in ("start_s", "rejoin_s", "join_s")},
                    "rejoined": sum(seconds is not None for seconds in joined),
                    "loss_difference": median([run.get("loss_difference") for run in figures]),
                    "distance": median([run.get("distance") for run in figures]), "equal": [run.get("equal") for run in figures]})
    return result


def text(value, form):
    return "-" if value is None else format(value, form)


def table(all_rows):
    cells = [COLUMNS]
    for row in all_rows:
        killed = row["kills"] > 0
        counted = [str(row[name]) if row["epoch_samples"] else "-" for name in ("lost", "repeated")]  # "-": no whole epoch
        distance = "same bits" if row["equal"] and all(row["equal"]) else text(row["distance"], ".1e")
        cells.append((f"{row['size']}, {row['scenario']}", row["system"], text(row["samples_per_s"], ".0f"), text(row["of_own"], ".2f"),
                      text(row["of_ddp"], ".2f"), *counted, str(row["recomputed"]),
                      f"{row['shrunk']} of {row['steps']}", text(row["pause_s"], ".1f"), text(row["rejoin_s"], ".1f"), text(row["start_s"], ".1f"),
                      text(row["join_s"], ".1f"),
                      f"{row['rejoined']} of {row['kills']}" if killed else "-", text(row["loss_difference"], "+.4f"), distance))
    widths = [max(len(line[i]) for line in cells) for i in range(len(COLUMNS))]
    lines = ["| " + " | ".join(cell.ljust(width) if i < 2 else cell.rjust(width) for i, (cell, width) in enumerate(zip(line, widths))) + " |"
             for line in cells]
    rule = "|" + "|".join("-" * (width + 2) if i < 2 else "-" * (width + 1) + ":" for i, width in enumerate(widths)) + "|"
    return "\n".join([lines[0], rule, *lines[1:]]) + "\n"
