"""Converts a run directory for other tools: TensorBoard, and readers of OpenTelemetry's OTLP/JSON.

In: rounds.jsonl and evaluations.jsonl (docs/reference/run-directory.md), also of a job that still runs: their whole lines. Times
there are seconds since the job's start, which is no time of day; the last round is taken to have closed when rounds.jsonl was
written last.
"""

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

from lockstep._errors import UsageError

_SPANS_OF_A_LINE = 2000  # what a reader has in memory at once
_ROUNDS_OF_A_LINE = 500
_SCOPE = {"name": "lockstep"}
_OURS = ".lockstep"

# What is read of a record.
_OF_A_ROUND = (
    "round", "epoch", "policy", "reason", "loss", "learning_rate", "samples", "contributors", "excluded", "moved", "attempts",
    "units", "times",
)  # fmt: skip
_OF_TIMES = ("start", "ready", "delivered", "commit", "applied")
_OF_AN_EVALUATION = ("round", "loss", "accuracy")

_Round = dict[str, Any]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"export: {message}")


def main(arguments: list[str]) -> int:
    parser = _Parser(prog="lockstep export", description="Writes what a run directory tells in the form of other tools.")
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="of a job that has ended or still runs")
    parser.add_argument("--tensorboard", metavar="DIR", type=Path, help="an event file there; takes torch and tensorboard")
    parser.add_argument("--otlp", metavar="FILE", help="OTLP/JSON, each line a part of the spans or metrics; - is the output")
    options = parser.parse_args(arguments)
    if options.tensorboard is None and options.otlp is None:
        parser.error("nothing to write: --tensorboard DIR or --otlp FILE")
    run = _Run(options.run_dir)
    try:
        if options.tensorboard is not None:
            _to_tensorboard(run, options.tensorboard)
        if options.otlp == "-":
            _to_otlp(run, sys.stdout)
        elif options.otlp is not None:
            with open(options.otlp, "w", encoding="utf-8") as file:
                _to_otlp(run, file)
    except OSError as error:
        raise UsageError(f"export: {error.filename or options.run_dir}: {error.strerror}") from None
    return 0


class _Run:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._rounds = path / "rounds.jsonl"
        if not os.path.isfile(self._rounds):
            raise UsageError(f"export: {path}: there is no rounds.jsonl: no run directory, or no round is closed yet")
        # Of a running job more rounds come behind; what is exported ends here.
        self._size = self._rounds.stat().st_size
        last: _Round | None = None
        for record in self.rounds():
            last = record
        if last is None:
            raise UsageError(f"export: {path}: no round is closed yet")
        self.latest = _end(last)
        self.started = self._rounds.stat().st_mtime - self.latest
        self.count = int(last["round"]) + 1

    def rounds(self) -> Iterator[_Round]:
        return self._lines(self._rounds, self._size, _OF_A_ROUND)

    def evaluations(self) -> Iterator[_Round]:
        path = self.path / "evaluations.jsonl"
        return self._lines(path, path.stat().st_size, _OF_AN_EVALUATION) if os.path.isfile(path) else iter(())

    def summary(self) -> dict[str, Any]:
        """Empty while the job runs."""
        try:
            read: dict[str, Any] = json.loads((self.path / "summary.json").read_text(encoding="utf-8"))
            return read
        except (FileNotFoundError, ValueError):
            return {}

    @staticmethod
    def _lines(path: Path, size: int, keys: tuple[str, ...]) -> Iterator[_Round]:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                size -= len(line)
                if size < 0 or not line.endswith(b"\n"):
                    return
                try:
                    record = json.loads(line)
                    for key in keys:
                        record[key]
                    for key in _OF_TIMES if "times" in keys else ():
                        record["times"][key]
                except (ValueError, TypeError, KeyError):
                    raise UsageError(f"export: {path}:{number}: is no record") from None
                yield record

    def at(self, seconds: float) -> float:
        return self.started + seconds


def _end(record: _Round) -> float:
    times = record["times"]
    return float(times["commit"] if times["applied"] is None else times["applied"])


def _values(record: _Round) -> dict[str, float]:
    """Of a round, by name."""
    times = record["times"]
    values = {
        "loss": record["loss"],
        "learning_rate": record["learning_rate"],
        "samples": record["samples"],
        "contributors": len({part["worker"] for part in record["contributors"]}),
        "excluded": len(record["excluded"]),
        "moved": len(record["moved"]),
        "attempts": len(record["attempts"]),
        "round_seconds": times["commit"] - times["start"],
    }
    if times["applied"] is not None:
        values["exchange_seconds"] = times["applied"] - times["commit"]
    return {name: float(value) for name, value in values.items() if value is not None}


def _told(evaluation: _Round) -> list[str]:
    """A loss that is not finite is null."""
    return [name for name in ("loss", "accuracy") if evaluation[name] is not None]


def _to_tensorboard(run: _Run, folder: Path) -> None:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError(
            f"export: --tensorboard takes torch and tensorboard, and {sys.executable} lacks {error.name}: pip install it"
        ) from None
    earlier = _exported(run, folder)
    # The first record tells a TensorBoard that has read the earlier ones to forget them.
    with SummaryWriter(str(folder), purge_step=0, filename_suffix=_suffix(run)) as writer:
        for record in run.rounds():
            step, when = record["round"], run.at(_end(record))
            for name, value in _values(record).items():
                writer.add_scalar(f"round/{name}", value, step, walltime=when)
            for worker, ready in record["times"]["ready"].items():
                waited = ready - record["times"]["start"]
                writer.add_scalar(f"worker/{worker}/ready_seconds", waited, step, walltime=when)
            for worker, waited in record.get("input_wait", {}).items():
                writer.add_scalar(f"worker/{worker}/input_wait_seconds", waited, step, walltime=when)
        for record in run.evaluations():
            for name in _told(record):
                writer.add_scalar(f"test/{name}", record[name], record["round"])
    for path in earlier:
        path.unlink(missing_ok=True)
    print(f"{folder}: {run.count} rounds")


def _suffix(run: _Run) -> str:
    """Of event files: that they are ours, and of which run directory."""
    return f"{_OURS}-{hashlib.sha256(os.path.realpath(run.path).encode()).hexdigest()[:12]}"


def _exported(run: _Run, folder: Path) -> list[Path]:
    """Event files of earlier exports of this run, which the new one takes the place of: else each round would be there twice."""
    found = sorted(path for path in folder.glob("events.out.tfevents.*") if _OURS in path.name)
    others = [path for path in found if not path.name.endswith(_suffix(run))]
    if others:
        raise UsageError(
            f"export: {folder}: has the rounds of another run directory: name a folder of its own, as {folder / run.path.name}"
        )
    return found


# --- OTLP


def _attribute(key: str, value: object) -> dict[str, object]:
    if isinstance(value, bool):
        return {"key": key, "value": {"boolValue": value}}
    if isinstance(value, int):
        return {"key": key, "value": {"intValue": str(value)}}
    if isinstance(value, float):
        return {"key": key, "value": {"doubleValue": value}}
    return {"key": key, "value": {"stringValue": str(value)}}


class _Spans:
    """Ids follow from the run: the same run directory, exported again, has the same."""

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._seed = f"{os.path.realpath(run.path)} {run.started:.0f}"
        self.trace = self._hash("trace", 16)

    def _hash(self, name: str, size: int) -> str:
        return hashlib.sha256(f"{self._seed} {name}".encode()).hexdigest()[: 2 * size]

    def span(self, name: str, key: str, parent: str | None, start: float, end: float, **attributes: object) -> dict[str, object]:
        made = {
            "traceId": self.trace,
            "spanId": self._hash(key, 8),
            "name": name,
            "kind": 1,
            "startTimeUnixNano": _nanos(self._run.at(start)),
            "endTimeUnixNano": _nanos(self._run.at(max(start, end))),
            "attributes": [_attribute(f"lockstep.{name}", value) for name, value in attributes.items() if value is not None],
        }
        return made | ({} if parent is None else {"parentSpanId": self._hash(parent, 8)})

    def of_job(self, summary: dict[str, Any]) -> dict[str, object]:
        told = {key: summary[key] for key in ("status", "policy", "transport", "workers", "rounds", "epochs") if key in summary}
        return self.span("job", "job", None, 0.0, self._run.latest, **told)

    def of_round(self, record: _Round) -> Iterator[dict[str, object]]:
        number, times = record["round"], record["times"]
        key = f"round {number}"
        yield self.span(
            "round",
            key,
            "job",
            times["start"],
            _end(record),
            round=number,
            epoch=record["epoch"],
            policy=record["policy"],
            reason=record["reason"],
            loss=record["loss"],
            excluded=",".join(map(str, record["excluded"])),
        )
        ready = max(times["ready"].values(), default=times["start"])
        delivered = max(times["delivered"].values(), default=ready)
        yield self.span("compute", f"{key} compute", key, times["start"], ready, round=number)
        yield self.span("deliver", f"{key} deliver", key, ready, delivered, round=number)
        yield self.span("commit", f"{key} commit", key, delivered, times["commit"], round=number)
        if times["applied"] is not None:
            yield self.span("exchange", f"{key} exchange", key, times["commit"], times["applied"], round=number)
        begun: dict[int, float] = {}
        for unit in record["units"]:
            begun[unit["worker"]] = min(unit["start"], begun.get(unit["worker"], unit["start"]))
        for worker, at in times["ready"].items():
            start = begun.get(int(worker), times["start"])
            waited = record.get("input_wait", {}).get(worker)
            yield self.span(
                "worker", f"{key} worker {worker}", f"{key} compute", start, at, round=number, worker=int(worker), input_wait=waited
            )


def _nanos(seconds: float) -> str:
    return str(int(seconds * 1e6) * 1000)


_UNITS = {"round_seconds": "s", "exchange_seconds": "s"}


def _to_otlp(run: _Run, out: IO[str]) -> None:
    summary = run.summary()
    resource = {
        "attributes": [_attribute("service.name", "lockstep"), _attribute("lockstep.run_directory", run.path.resolve().name)]
    }
    spans = _Spans(run)

    def write_spans(some: list[dict[str, object]]) -> None:
        _line(out, {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": _SCOPE, "spans": some}]}]})

    def write_metrics(points: dict[str, list[dict[str, object]]]) -> None:
        metrics = [
            {"name": f"lockstep.{name}", "unit": _UNITS.get(name, "1"), "gauge": {"dataPoints": some}}
            for name, some in points.items()
        ]
        _line(out, {"resourceMetrics": [{"resource": resource, "scopeMetrics": [{"scope": _SCOPE, "metrics": metrics}]}]})

    pending = [spans.of_job(summary)]
    points: dict[str, list[dict[str, object]]] = {}
    held = 0
    for record in run.rounds():
        pending += spans.of_round(record)
        when = _nanos(run.at(_end(record)))
        for name, value in _values(record).items():
            point = {"timeUnixNano": when, "asDouble": value, "attributes": [_attribute("lockstep.round", record["round"])]}
            points.setdefault(name, []).append(point)
        held += 1
        if len(pending) >= _SPANS_OF_A_LINE:
            write_spans(pending)
            pending = []
        if held >= _ROUNDS_OF_A_LINE:
            write_metrics(points)
            points, held = {}, 0
    if pending:
        write_spans(pending)
    ends = {record["round"]: _end(record) for record in run.rounds()}
    for record in run.evaluations():
        for name in _told(record):
            attributes = [_attribute("lockstep.round", record["round"])]
            when = _nanos(run.at(ends.get(record["round"], run.latest)))
            point = {"timeUnixNano": when, "asDouble": float(record[name]), "attributes": attributes}
            points.setdefault(f"test_{name}", []).append(point)
    if points:
        write_metrics(points)


def _line(out: IO[str], value: object) -> None:
    out.write(json.dumps(value, separators=(",", ":"), allow_nan=False) + "\n")
