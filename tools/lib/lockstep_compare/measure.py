"""Reads time and samples from a run directory (docs/reference/run-directory.md)."""

import bisect
import json
import os
import statistics
from collections import defaultdict
from pathlib import Path

from command_line import open_regular


class BadRun(Exception):
    """One line that names the file."""


# The fields of the records that are read, in the form of `check_shape`.
NUMBER = (int, float)
PERHAPS = (int, float, type(None))
RANGES = [((int,), (int,))]
SAMPLES_OF_A_ROUND = {"round": (int,), "epoch": (int,), "samples": (int,), "contributors": [{"ranges": RANGES}], "dropped": RANGES,
                      "requeued": RANGES}
A_ROUND = SAMPLES_OF_A_ROUND | {
    "units": [{"worker": (int,), "range": ((int,), (int,)), "start": NUMBER, "end": NUMBER}], "excluded": [(int,)],
    "moved": [{"from": (int,), "to": (int,), "range": ((int,), (int,))}],
    "times": {"start": NUMBER, "ready": {str: NUMBER}, "delivered": {str: NUMBER}, "commit": NUMBER, "applied": PERHAPS}}
KINDS = {int: "a whole number", float: "a number", type(None): "null"}
AN_EVALUATION = {"round": (int,), "accuracy": NUMBER}
SAMPLES_OF_A_JOB = {key: (int,) for key in ("epochs", "samples_counted", "samples_moved", "samples_dropped")}
A_JOB = SAMPLES_OF_A_JOB | {"workers": (int,), "wall_seconds": NUMBER, "test_accuracy": PERHAPS, "train_loss": PERHAPS,
                            "samples_requeued": (int,)}


def read_text(path):
    try:
        with open_regular(path) as file:
            return file.read().decode()
    except OSError as error:
        raise BadRun(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadRun(f"{path}: is no text") from error


def check_shape(what, shape, path, name=""):
    """Checks the shape of a value.

    (type, ...): the value has one of these types.
    {key: shape}: a record with at least these keys. {str: shape}: a record with any keys.
    [shape]: a list of any length. (shape, ...): a list of this length."""
    if isinstance(shape, dict):
        if not isinstance(what, dict):
            raise BadRun(f"{path}: {name or 'it'} is no record")
        for key, of_key in (dict.fromkeys(what, shape[str]) if str in shape else shape).items():
            place = f"{name}.{key}" if name else key
            if key not in what:
                raise BadRun(f"{path}: there is no '{place}'")
            check_shape(what[key], of_key, path, place)
    elif isinstance(shape, list) or not isinstance(shape[0], type):
        if not isinstance(what, list) or (isinstance(shape, tuple) and len(what) != len(shape)):
            raise BadRun(f"{path}: {name} is no list" + (f" of {len(shape)}" if isinstance(shape, tuple) else ""))
        for number, item in enumerate(what):
            check_shape(item, shape[0] if isinstance(shape, list) else shape[number], path, f"{name}[{number}]")
    elif not isinstance(what, shape) or isinstance(what, bool):
        wanted = [KINDS[kind] for kind in shape if kind is not int or float not in shape]
        raise BadRun(f"{path}: {name} is {json.dumps(what)[:40]}, not {' or '.join(wanted)}")


def read_lines(path, ended=True):
    """`ended`: no writer is left, so an incomplete line is an error."""
    rows = []
    for number, line in enumerate(read_text(path).splitlines(keepends=True), 1):
        if not ended and not line.endswith("\n"):
            break
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise BadRun(f"{path}:{number}: {error}") from error
    return rows


def size(ranges):
    return sum(end - begin for begin, end in ranges)


class Run:
    """Reads a job that has ended, with two rounds at least. `only_samples`: reads the fields for check_samples(), also of a job that
    still runs."""

    def __init__(self, folder, only_samples=False):
        self.folder = Path(folder)
        summary = self.folder / "summary.json"
        self.ended = os.path.exists(summary) or not only_samples
        self.rounds = read_lines(self.folder / "rounds.jsonl", self.ended)
        for number, record in enumerate(self.rounds, 1):
            check_shape(record, SAMPLES_OF_A_ROUND if only_samples else A_ROUND, f"{self.folder / 'rounds.jsonl'}:{number}")
        evaluations = self.folder / "evaluations.jsonl"
        self.evaluations = read_lines(evaluations) if os.path.exists(evaluations) and not only_samples else []
        for number, record in enumerate(self.evaluations, 1):
            check_shape(record, AN_EVALUATION, f"{evaluations}:{number}")
        self.summary = None
        if self.ended:
            try:
                self.summary = json.loads(read_text(summary))
            except ValueError as error:
                raise BadRun(f"{summary}: {error}") from error
            check_shape(self.summary, SAMPLES_OF_A_JOB if only_samples else A_JOB, summary)
        if only_samples:
            return
        if len(self.rounds) < 2:
            raise BadRun(f"{self.folder}: fewer than two rounds are closed")
        self.workers = self.summary["workers"]
        self.elsewhere = {}  # of workers without a speed in this run: their speeds in others, as know_speeds() finds them
        counted = sum(record["samples"] for record in self.rounds[1:])
        speed = sum(sum(speeds.values()) for speeds in self.speeds()[1:])
        if counted <= 0 or sum(self.round_seconds()) <= 0 or speed <= 0:
            raise BadRun(f"{self.folder}: no samples count that took time")

    def round_seconds(self, skip=2):
        """The rounds' seconds from commit to commit, without the first ones (formation, caches, a policy's learning)."""
        commits = [r["times"]["commit"] for r in self.rounds]
        seconds = [b - a for a, b in zip(commits, commits[1:])]
        return seconds[skip:] or seconds

    def timed_rounds(self):
        """[(record, seconds)] in the form of round_seconds()."""
        seconds = self.round_seconds()
        return list(zip(self.rounds[-len(seconds):], seconds))

    def measured_speeds(self):
        """Samples per second of each worker in each round in which it computed counted samples, while it computed."""
        known = [{} for _ in self.rounds]
        for row, record in zip(known, self.rounds):
            done, busy = defaultdict(int), defaultdict(float)
            for unit in record["units"]:
                done[unit["worker"]] += unit["range"][1] - unit["range"][0]
                busy[unit["worker"]] += unit["end"] - unit["start"]
            row.update({worker: done[worker] / busy[worker] for worker in done if busy[worker] > 0})
        return known

    def speeds(self):
        """The same for rounds where it computed nothing that counts, too. The nearest round gives the speed, of two the earlier one;
        where there is none, `elsewhere` does."""
        known = self.measured_speeds()
        filled = [dict(row) for row in known]
        for worker in range(self.workers):
            rounds = [number for number, row in enumerate(known) if worker in row]
            for number, row in enumerate(filled):
                at = bisect.bisect_left(rounds, number)
                nearest = min(rounds[max(at - 1, 0):at + 1], key=lambda other: abs(other - number), default=None)  # noqa: B023
                if nearest is not None:
                    row[worker] = known[nearest][worker]
                elif worker in self.elsewhere:
                    row[worker] = self.elsewhere[worker]
        return filled

    def untold(self):
        """Workers that were given units and never computed a counted one, so that nothing here shows their speed."""
        told = {unit["worker"] for record in self.rounds for unit in record["units"]}
        return {worker for record in self.rounds for worker in record["excluded"]} - told

    def ideal_seconds(self, skip=2):
        """All work of a round over all speed available in it, without any waiting; None where a worker's speed is unknown."""
        if self.untold() - set(self.elsewhere):
            return None
        ideal = []
        for record, speeds in zip(self.rounds, self.speeds()):
            planned = record["samples"] + size(record["requeued"]) + size(record["dropped"])
            total = sum(speeds.values())
            ideal.append(planned / total if total > 0 else 0.0)
        return ideal[1:][skip:] or ideal[1:]

    def of_ideal(self, skip=2):
        """Seconds for each counted sample, over its time without any waiting: 1 is ideal, also where samples are left out."""
        planned = [r["samples"] + size(r["requeued"]) + size(r["dropped"]) for r in self.rounds]
        seconds, ideal = self.round_seconds(skip), self.ideal_seconds(skip)
        if ideal is None:
            return None
        counted = sum(r["samples"] for r in self.rounds[-len(seconds):])
        return sum(seconds) / counted / (sum(ideal) / sum(planned[-len(ideal):])) if sum(ideal) > 0 else None

    def samples_per_second(self, skip=2):
        seconds = self.round_seconds(skip)
        return sum(r["samples"] for r in self.rounds[-len(seconds):]) / sum(seconds)

    def seconds_to(self, accuracy):
        """Seconds until the commit of the first round whose parameters reach this accuracy on the test set; None: never."""
        commits = {r["round"]: r["times"]["commit"] for r in self.rounds}
        reached = [commits[e["round"]] for e in self.evaluations if e["accuracy"] >= accuracy and e["round"] in commits]
        return min(reached, default=None)

    def computing(self):
        """For each round the seconds of each worker in units, from the commit before to its own: under async a unit spans several."""
        commits = [record["times"]["commit"] for record in self.rounds]
        busy = [defaultdict(float) for _ in commits]
        for record in self.rounds:
            for unit in record["units"]:
                begin, number = unit["start"], bisect.bisect_right(commits, unit["start"])
                while number < len(commits) and begin < unit["end"]:
                    end = min(unit["end"], commits[number])
                    busy[number][unit["worker"]] += end - begin
                    begin, number = end, number + 1
        return busy

    def attribution(self, skip=2):
        """For each worker the seconds of its rounds in computing, in delivering and applying, and in waiting."""
        out = {worker: {"compute": 0.0, "exchange": 0.0, "waiting": 0.0} for worker in range(self.workers)}
        records = self.rounds[skip + 1:] or self.rounds[1:]
        for before, record, busy in zip(self.rounds[-len(records) - 1:], records, self.computing()[-len(records):]):
            length = record["times"]["commit"] - before["times"]["commit"]
            applied = before["times"]["applied"]
            apply = max(0.0, (applied or before["times"]["commit"]) - before["times"]["commit"])
            for worker, share in out.items():
                ready = record["times"]["ready"].get(str(worker))
                delivered = record["times"]["delivered"].get(str(worker))
                exchange = apply + (delivered - ready if ready is not None and delivered is not None else 0.0)
                compute = min(busy[worker], length)
                if worker in record["excluded"]:  # the work of an excluded worker is not recorded: it computed all along
                    compute = max(0.0, length - exchange)
                share["compute"] += compute
                share["exchange"] += min(exchange, length - compute)
                share["waiting"] += max(0.0, length - compute - exchange)
        return out

    def emulated(self):
        return bool(self.summary.get("emulated"))


def finished_epochs(run):
    """While the job runs, it may still be at the last one that has a closed round."""
    epochs = sorted({record["epoch"] for record in run.rounds})
    return epochs[:-1] if run.summary is None else epochs[:run.summary["epochs"]]


def check_samples(run, dataset=None):
    """The errors in how samples were counted: a list of lines, empty when each counts once. `dataset`: samples of an epoch; else the
    largest position that a finished epoch names."""
    errors = []
    epochs = defaultdict(list)
    left_out = defaultdict(list)
    counted = 0
    for record in run.rounds:
        in_round = 0
        for contribution in record["contributors"]:
            in_round += size(contribution["ranges"])
            epochs[record["epoch"]] += [(*bounds, record["round"]) for bounds in contribution["ranges"]]
        if in_round != record["samples"]:
            errors.append(f"round {record['round']}: {record['samples']} samples are said to be in ranges of {in_round}")
        counted += in_round
        left_out[record["epoch"]] += record["dropped"]
    finished = finished_epochs(run)
    length = dataset or max((end for epoch in finished for _, end, _ in epochs[epoch]), default=0)
    for epoch, ranges in sorted(epochs.items()):
        at = 0
        holes = 0
        for begin, end, number in sorted(ranges):
            if begin < at:
                errors.append(f"epoch {epoch}: samples {begin} to {min(end, at)} count twice, again in round {number}")
            holes += max(0, begin - at)
            at = max(at, end)
        if dataset and at > dataset:
            errors.append(f"epoch {epoch}: positions up to {at} count, where an epoch has {dataset} samples")
        if epoch in finished and holes + max(0, length - at) != size(left_out[epoch]):
            errors.append(f"epoch {epoch}: {holes + max(0, length - at)} samples of {length} do not count, {size(left_out[epoch])} are said "
                          "to be dropped")
    if run.summary is not None and counted != run.summary["samples_counted"]:
        errors.append(f"summary.json: {run.summary['samples_counted']} samples counted, {counted} in the rounds")
    return errors


def moved_units(record):
    """First positions of the units whose last worker is not the planned one: a unit may change hands several times, and come back."""
    planned, last = {}, {}
    for move in record["moved"]:
        planned.setdefault(move["range"][0], move["from"])
        last[move["range"][0]] = move["to"]
    return {first for first in last if last[first] != planned[first]}


def know_speeds(policies):
    """policies: {policy: [Run]} under one pattern. Gives each run the speeds of workers that only other runs show: the median over
    these. Returns the workers that no run shows."""
    every = [run for group in policies.values() for run in group]
    nobody = set()
    for worker in set().union(*(run.untold() for run in every)):
        known = [[speeds[worker] for speeds in run.measured_speeds() if worker in speeds] for run in every]
        known = [statistics.median(speeds) for speeds in known if speeds]
        for run in every:
            if worker in run.untold() and known:
                run.elsewhere[worker] = statistics.median(known)
        if not known:
            nobody.add(worker)
    return nobody


def median_run(runs):
    """The run in the middle by time per round."""
    return sorted(runs, key=lambda run: statistics.median(run.round_seconds()))[(len(runs) - 1) // 2]


def row(runs, target, skip=2):
    """Medians over the runs of one policy under one pattern."""
    def median(values):
        values = list(values)
        return statistics.median(values) if values and None not in values else None

    per_round = [statistics.mean(run.round_seconds(skip)) for run in runs]
    ideal = [run.ideal_seconds(skip) for run in runs]
    return {
        "runs": len(runs),
        "rounds": median(len(run.rounds) for run in runs),
        "round_ms": 1e3 * median(per_round),
        "ideal_ms": None if None in ideal else 1e3 * median(statistics.mean(seconds) for seconds in ideal),
        "of_ideal": median(run.of_ideal(skip) for run in runs),
        "samples_per_s": median(run.samples_per_second(skip) for run in runs),
        "wall_s": median(run.summary["wall_seconds"] for run in runs),
        "accuracy": median(run.summary["test_accuracy"] for run in runs),
        "seconds_to_target": median(run.seconds_to(target) for run in runs),
        "loss": median(run.summary["train_loss"] for run in runs),
        "moved": median(run.summary["samples_moved"] for run in runs),
        "requeued": median(run.summary["samples_requeued"] for run in runs),
        "dropped": median(run.summary["samples_dropped"] for run in runs),
        "errors": sum(len(check_samples(run)) for run in runs),
    }
