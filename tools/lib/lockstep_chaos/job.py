"""Runs one job under its schedule of faults, resumes it where the documents say so, and judges it."""

import dataclasses
import time

from lockstep_chaos import judge, leftovers, rounds
from lockstep_chaos.faults import Faults
from lockstep_chaos.place import Place
from lockstep_chaos.plan import SAMPLES, TIMEOUT_S

LOOK_S = 0.02
# Until the first checkpoint: a PyTorch job waits ten minutes for its first worker (docs/reference/operations.md), then come twelve rounds.
BEGIN_S = 700.0
# Without a fault under way, until the next round is closed or the launcher ends: a round that nobody applies takes 6 T three times
# (docs/reference/operations.md), a worker that failed soon again is restarted after 60 s, and it copies for 6 T.
STALL_S = 24 * TIMEOUT_S + 60
# After the launcher's end, for a worker that it has not started: it looks for a coordinator for 3 T, and 15 s are the launcher's own patience.
END_S = 3 * TIMEOUT_S + 20
HIT_S = 75.0  # a worker that was hit so lately may still be missing
MOST_RESUMES = 3


@dataclasses.dataclass
class Result:
    plan: object
    outcome: str = "completed"  # completed, resumed or failed
    seconds: float = 0.0
    resumes: int = 0
    findings: list = dataclasses.field(default_factory=list)
    happened: list = dataclasses.field(default_factory=list)  # (fault, its longest pause of rounds or None)
    failures: list = dataclasses.field(default_factory=list)  # the documented ends after which the job was resumed
    kept: str | None = None


class Stalled(Exception):
    """One line."""


def run(plan, options, say):
    result = Result(plan)
    begun = time.monotonic()
    namespaces, mount = [], None
    with Place(plan, options) as place:
        namespaces = list(place.hosts.made) if place.hosts else []
        mount = place.disk.path if place.disk else None
        notes = []

        def note(text):
            notes.append(f"{time.monotonic() - begun:8.3f} s  {text}")
            say(text)

        try:
            _run_to_end(plan, place, result, note)
        finally:
            if result.findings:
                notes += ["", *result.findings]
            (place.folder / "schedule.txt").write_text("\n".join([plan.title(), "", *notes]) + "\n", encoding="utf-8")
            if result.findings:
                kept = options.out / f"chaos-{plan.seed}-{plan.job}"
                place.keep(kept)
                result.kept = str(kept)
    result.findings += leftovers.of_machine(namespaces, mount)
    result.seconds = time.monotonic() - begun
    if result.findings:
        result.outcome = "failed"
    elif result.resumes:
        result.outcome = "resumed"
    return result


def _run_to_end(plan, place, result, note):
    faults = Faults(plan, place, note)
    while True:
        log = place.folder / f"launch-{result.resumes}.log"
        watch = rounds.Watch(place.run_dir / "rounds.jsonl")
        begun = time.monotonic()
        place.start(log, resume=result.resumes > 0)
        try:
            _play(place, faults, watch)
            stalled = None
        except Stalled as error:
            stalled = str(error)
        ended = time.monotonic()
        faults.end_all()
        if stalled:
            place.end_processes()
            result.findings.append(stalled)
        elif not place.wait_for_end(END_S):
            result.findings += leftovers.of_job(place.mark, place.temporary, place.shared_before)
            place.end_processes()
        faults.end_all()
        _take_pauses(result, faults, watch, begun, ended)
        text = _text_of(place, log)
        result.findings += judge.logs(text)
        if result.findings:
            return
        status = place.launcher.returncode
        if status == 0:
            break
        reason = _reason(place, text, status)
        note(f"the job ends: {reason}")
        if not judge.allowed_failure(text, {one.kind for one in faults.happened}, _facts(plan, faults, ended)):
            result.findings.append(f"the job failed, and no document says that it may: {reason}")
            return
        if result.resumes == MOST_RESUMES:
            result.findings.append(f"it failed {MOST_RESUMES + 1} times, at last with: {reason}")
            return
        result.failures.append(reason)
        # Those who had joined have ended with the job, with other parameters than those of its end.
        joined = place.folder / "joiner.log"
        if joined.exists():
            joined.rename(place.folder / f"joiner-{result.resumes}.log")
        result.resumes += 1
        note("it is resumed")
        if result.resumes == MOST_RESUMES:
            faults.pending = []
    result.findings += judge.completed(place.run_dir, plan.settings["job.epochs"])
    result.findings += judge.records(place.run_dir, SAMPLES)
    result.findings += judge.digests(place.run_dir, text)
    result.findings += leftovers.of_job(place.mark, place.temporary, place.shared_before)


def _play(place, faults, watch):
    """Until the launcher ends. Raises Stalled."""
    begun, first, already = time.monotonic(), None, faults.happened[-1].begun if faults.happened else 0.0
    offset = faults.pending[0].at if already and faults.pending else 0.0  # a resumed job goes on in its schedule
    while place.runs():
        now = time.monotonic()
        watch.look()
        if first is None and watch.grew and any((place.run_dir / "checkpoints").glob("*.json")):
            first = now
        if first is None and now - begun > BEGIN_S:
            raise Stalled(f"no round was closed and no checkpoint written within {BEGIN_S:.0f} s")
        if first is not None:
            faults.turn(now - first + offset)
            quiet = faults.quiet_since()
            if quiet is not None and now - max(watch.quiet_since(), quiet, first) > STALL_S:
                raise Stalled(f"no round was closed for {STALL_S:.0f} s, and no fault was under way")
        place.pause(LOOK_S)
    watch.look()


def _take_pauses(result, faults, watch, begun, ended):
    """The pause after a fault lasts until the next fault at most."""
    of_run = [one for one in faults.happened if begun <= one.begun <= ended]
    for number, one in enumerate(of_run):
        end = of_run[number + 1].begun if number + 1 < len(of_run) else ended
        result.happened.append((one, rounds.longest_pause(watch.grew, one.begun, max(end, one.ended or one.begun))))


def _text_of(place, log):
    paths = [log, *place.folder.glob("joiner.log")]
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in paths if path.exists())


def _reason(place, text, status):
    summary = judge.summary(place.run_dir)
    if summary is not None and summary.get("reason"):
        return f"status {status}, {summary['status']}: {summary['reason']}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"status {status}: {' / '.join(lines[-3:])[:400]}"


def _facts(plan, faults, ended):
    hit = [one.workers for one in faults.happened if one.ended is None or one.ended > ended - HIT_S]
    all_hit = len(frozenset().union(*hit)) == plan.workers
    return {fact for fact, holds in ((judge.ALL_HIT, all_hit), (judge.SHARDED, "optimizer.replicas" in plan.settings)) if holds}
