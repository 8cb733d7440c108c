"""A job on a Ray cluster, as the caller sees it (lockstep.ray): places for its actors, and who follows a worker that is lost.

    asked for -> there -> runs -> returned
                      (lost or drained: asked for again)

The coordinator and the least number of workers have a placement group, whose places Ray gives again when a node is lost. Further
workers are actors that wait for room. A job is begun by those that are there; all others join it.
"""

import dataclasses
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from lockstep._call import Failure, raise_first
from lockstep._errors import Error, JobFailed, of_status, say
from lockstep._own import OwnCoordinator
from lockstep._ray_actors import ANSWER_S, POLL_S, Coordinator, Ended, Job, Outcome, Worker, ask

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
_SAY_S = 10.0  # without a word
_MORE_S = 5.0  # to wait for further workers, once the least are there
_AGAIN_S = 2.0  # before a lost worker is followed: the job's own end may be what has ended it
_RESTARTS = 3  # of a worker whose nodes live
_ENDS_S = 60.0  # that a job may take to end after it was told to, or after its functions have returned


@dataclass(frozen=True)
class Wanted:
    least: int
    most: int
    worker: Mapping[str, float]  # resources
    coordinator: Mapping[str, float]
    strategy: str
    timeout: float
    options: tuple[str, ...]  # of the coordinator


@dataclass
class _Slot:
    """A place for a worker. `actor`: None while there is none."""

    bundle: int | None  # of the placement group
    actor: Any = None
    ref: Any = None  # of the call under way
    number: int | None = None  # of the worker, once it was told to run
    node: str = ""  # once it is there
    runs: bool = False
    drained: bool = False
    again_at: float | None = None
    lost_on: list[str] = field(default_factory=list)


class RayJob:
    """`run` once. `ended`: the remains of the job, once it is over."""

    def __init__(self, wanted: Wanted, run_dir: str, resume: bool | Literal["auto"], called: bytes) -> None:
        self.ended: Ended | None = None
        self._wanted, self._run_dir, self._resume, self._called = wanted, run_dir, resume, called
        self._slots = [_Slot(i + 1 if i < wanted.least else None) for i in range(wanted.most)]
        self._group: Any = None
        self._coordinator: Any = None
        self._home = ""  # the coordinator's node
        self._job: Job | None = None
        self._numbers = 0  # that workers have
        self._closing = False  # nobody is followed
        self._values: dict[int, Any] = {}
        self._failures: dict[int, Failure] = {}
        self._why_drained = ""
        self._nothing = threading.Event()  # is never set

    def run(self) -> tuple[Ended, Any]:
        """The remains of the job, and the result of the first worker's function."""
        try:
            self._place()
            self._begin()
            self._follow()
            return self._result()
        except KeyboardInterrupt:
            self._end_in_order("interrupted")
            raise
        except Error as error:
            if self._job is not None and self.ended is None:
                self._end_in_order(str(error))
            raise
        finally:
            self._close()

    # --- places

    def _place(self) -> None:
        wanted = self._wanted
        bundles = [dict(wanted.coordinator), *(dict(wanted.worker) for _ in range(wanted.least))]
        begun = time.monotonic()
        self._group = placement_group(bundles, strategy=wanted.strategy)
        ready, said = self._group.ready(), False
        while not ray.wait([ready], timeout=min(POLL_S, wanted.timeout))[0]:
            waited = time.monotonic() - begun
            if waited >= wanted.timeout:
                raise JobFailed(f"no room on the Ray cluster in {wanted.timeout:g} s: {missing(bundles)}")
            if waited >= _SAY_S and not said:
                said = True
                say(f"waiting for room on the Ray cluster, up to {wanted.timeout:g} s: {missing(bundles)}")
        self._coordinator = self._actor(Coordinator, wanted.coordinator, 0, max_concurrency=4)

    def _actor(self, kind: type, resources: Mapping[str, float], bundle: int | None, **more: Any) -> Any:
        named = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
        options: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0, **more}
        options |= {named[key]: value for key, value in resources.items() if key in named}
        options["resources"] = {key: value for key, value in resources.items() if key not in named}
        if bundle is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)
        return ray.remote(kind).options(**options).remote()

    def _ask_for(self, slot: _Slot) -> None:
        slot.actor = self._actor(Worker, self._wanted.worker, slot.bundle)
        slot.ref = slot.actor.where.remote()
        slot.node, slot.runs, slot.drained, slot.again_at = "", False, False, None

    # --- the beginning

    def _begin(self) -> None:
        wanted = self._wanted
        end = time.monotonic() + wanted.timeout
        for slot in self._slots:
            self._ask_for(slot)
        there: list[_Slot] = []
        more_until: float | None = None
        while len(there) < wanted.most:
            waiting = [slot for slot in self._slots if not slot.node]
            bound = end if more_until is None else min(end, more_until)
            self._wait(waiting, min(POLL_S, max(0.0, bound - time.monotonic())))
            self._ask_again()
            there = [slot for slot in self._slots if slot.node]
            if len(there) >= wanted.least and more_until is None:
                more_until = time.monotonic() + _MORE_S
            if time.monotonic() >= bound:
                break
        if len(there) < wanted.least:
            raise JobFailed(
                f"{len(there)} of {wanted.least} workers' processes have started in {wanted.timeout:g} s on the Ray cluster, "
                "though it has room: the logs of its raylets say why"
            )
        self._home = ask(self._coordinator.where, seconds=wanted.timeout)
        options = ["--min-workers", str(wanted.least), "--max-workers", str(wanted.most), *wanted.options]
        outcome: Outcome = ask(
            *(self._coordinator.start, self._run_dir, len(there), self._resume, options),
            seconds=OwnCoordinator.patience(self._resume) + ANSWER_S,
        )
        if outcome.how == "failed":
            raise of_status(outcome.value.status or JobFailed.status, outcome.value.line)
        address, secret = outcome.value
        self._job = Job(0, len(there), address, secret, self._coordinator)
        for slot in there:
            self._let_run(slot)

    def _let_run(self, slot: _Slot) -> None:
        assert self._job is not None
        if slot.number is None:
            slot.number, self._numbers = self._numbers, self._numbers + 1
        slot.ref, slot.runs = slot.actor.run.remote(dataclasses.replace(self._job, worker=slot.number), self._called), True

    # --- while it is on

    def _follow(self) -> None:
        poll = self._coordinator.poll.remote()
        busy_at, said = time.monotonic(), False  # when functions ran last, while the job was on
        while True:
            self._wait([slot for slot in self._slots if slot.ref is not None], POLL_S, poll)
            if self.ended is None and ray.wait([poll], timeout=0)[0]:
                poll = self._polled(poll)
            running, now = [slot for slot in self._slots if slot.runs], time.monotonic()
            if self.ended is not None:
                if not running:
                    self._take_last_reports()
                    return
                if now - busy_at > _SAY_S and not said:
                    said = True
                    say(f"the job has ended; the function goes on in {_words(running)}")
                continue
            if running or not self._values:
                busy_at = now
            elif now - busy_at > _ENDS_S:
                raise JobFailed(f"the functions have returned, and the job has not ended in {_ENDS_S:.0f} s")
            self._look_for_drains()
            self._ask_again()

    def _polled(self, poll: Any) -> Any:
        """The next one."""
        try:
            ended, warnings = ray.get(poll, timeout=ANSWER_S)
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
            raise JobFailed(
                f"the coordinator's node {self._home[:8]} or its process is lost; resume=True goes on from the newest checkpoint"
            ) from None
        for line in warnings:
            say(line)
        if not ended:
            return self._coordinator.poll.remote()
        self.ended = ask(self._coordinator.ended)
        self._closing = True
        for slot in self._slots:
            if not slot.runs:
                self._give_up(slot)
        return None

    def _take_last_reports(self) -> None:
        """The functions go on after the job's end, as to evaluate."""
        try:
            self.ended = ask(self._coordinator.ended)
        except JobFailed as error:
            say(f"{error}: reports of the functions after the job's end are lost")

    def _wait(self, slots: Iterable[_Slot], seconds: float, *more: Any) -> None:
        """For an answer of one of them or more."""
        refs = {slot.ref: slot for slot in slots if slot.ref is not None}
        if also := [ref for ref in more if ref is not None]:
            refs |= dict.fromkeys(also)
        if not refs:  # all are to be asked for again
            self._nothing.wait(seconds)
            return
        ray.wait(list(refs), num_returns=1, timeout=seconds)
        for ref in ray.wait(list(refs), num_returns=len(refs), timeout=0)[0]:
            if (slot := refs[ref]) is not None:
                self._answered(slot, ref)

    def _answered(self, slot: _Slot, ref: Any) -> None:
        try:
            answer = ray.get(ref)
        except ray.exceptions.RayActorError as error:
            self._lost(slot, _reason(error), counts=_DEAD_NODE not in str(error) or bool(slot.node))
            return
        if not slot.runs:
            slot.node, slot.ref = answer, None
            if self._job is not None and not self._closing:
                self._let_run(slot)
            return
        assert slot.number is not None
        slot.runs, slot.ref = False, None
        slot.actor.__ray_terminate__.remote()  # what a script does at its exit, as to leave or close its job, is done then
        if answer.how == "left" and not self._closing:
            say(f"worker {slot.number} has left its node {slot.node[:8]}; another one is asked for")
            self._give_up(slot)
            slot.again_at = time.monotonic()
            return
        if answer.how == "failed":
            failure = dataclasses.replace(answer.value, at=time.monotonic())
            self._failures[slot.number] = failure
            if failure.is_of_job():
                self._lost(slot, failure.line)
            elif self.ended is None:
                raise_first({slot.number: failure}, failure.status, "")
            return
        self._values[slot.number] = answer.value
        if slot.number == 0:
            ask(self._coordinator.put, "ended", b"")

    def _lost(self, slot: _Slot, reason: str, *, counts: bool = True) -> None:
        if counts:
            slot.lost_on.append(slot.node)
        before, slot.runs = slot.node, False
        self._give_up(slot)
        if self._closing:
            return
        slot.again_at = time.monotonic() + _AGAIN_S
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]} | {""}
        name = "a new worker" if slot.number is None else f"worker {slot.number}"
        if sum(node in alive for node in slot.lost_on) > _RESTARTS:
            raise JobFailed(f"{name} was lost {_RESTARTS + 1} times, and not with its node: {reason}")
        at = f" on node {before[:8]}" if before else ""
        say(f"{name}{at} is lost: {reason}; another one is asked for")

    def _ask_again(self) -> None:
        for slot in self._slots:
            if slot.again_at is not None and not self._closing and time.monotonic() >= slot.again_at:
                self._ask_for(slot)

    def _look_for_drains(self) -> None:
        draining = _draining()
        for slot in self._slots:
            if slot.runs and not slot.drained and slot.node in draining:
                slot.drained = True
                why = ask(self._coordinator.drain, slot.number)
                what = f"does not leave: {why}" if why else "leaves it"
                say(f"node {slot.node[:8]} is being drained; worker {slot.number} {what}")
        if self._home in draining and not self._why_drained:
            self._why_drained = f"node {self._home[:8]}, which has the coordinator, is being drained"
            say(f"{self._why_drained}: the job ends in good order")
            ask(self._coordinator.interrupt)

    # --- the end

    def _result(self) -> tuple[Ended, Any]:
        assert self.ended is not None
        summary = self.ended.summary
        status = 0 if summary.get("status") == "completed" else JobFailed.status
        reason = summary.get("reason") or self.ended.last_line or "the coordinator has ended without a summary"
        raise_first({n: f for n, f in self._failures.items() if not f.is_of_job()}, 0, "")
        if self._why_drained and status != 0:
            raise JobFailed(f"{self._why_drained}: the job has ended in good order; resume=True goes on from its checkpoint")
        if status != 0:
            raise of_status(status, f"{reason}; the run directory is {self._run_dir}")
        value = self._values.get(min(self._values)) if self._values else None
        return self.ended, None if value is None else ray.cloudpickle.loads(value)

    def _end_in_order(self, why: str) -> None:
        """With a checkpoint."""
        if self._job is None or self.ended is not None:
            return
        try:
            ask(self._coordinator.interrupt)
            say(f"{why}: the job is to end in good order, in {_ENDS_S:.0f} s at most")
            end = time.monotonic() + _ENDS_S
            while time.monotonic() < end:
                if ask(self._coordinator.poll)[0]:
                    self.ended = ask(self._coordinator.ended)
                    return
        except JobFailed:  # the first reason is the one to tell
            pass

    def _give_up(self, slot: _Slot) -> None:
        if slot.actor is not None:
            ray.kill(slot.actor)
        slot.actor = slot.ref = slot.again_at = None

    def _close(self) -> None:
        """At once."""
        self._closing = True
        for slot in self._slots:
            self._give_up(slot)
        if self._coordinator is not None:
            try:
                ask(self._coordinator.close)
            except JobFailed:  # with its actor it ends anyway
                pass
            ray.kill(self._coordinator)
        if self._group is not None:
            remove_placement_group(self._group)


_DEAD_NODE = "its node has died"


def _reason(error: BaseException) -> str:
    """One line of what Ray says of a lost actor."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if any("creation task" in line for line in lines):
        return lines[-1]
    said = [line for line in lines[1:] if line.startswith("The ")]
    return (said or lines or [type(error).__name__])[0].partition(" Some common causes")[0].partition(" The task may")[0]


def _draining() -> Mapping[str, int]:
    """Ray has no public name for it, and Ray Train reads it here, too."""
    state = ray._private.state.state
    return state.get_draining_nodes() if hasattr(state, "get_draining_nodes") else {}


def _words(slots: Iterable[_Slot]) -> str:
    numbers = [str(slot.number) for slot in slots]
    return f"worker{'' if len(numbers) == 1 else 's'} {', '.join(numbers)}"


def missing(bundles: list[dict[str, float]]) -> str:
    """The resources that a cluster lacks for these, in one line."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for bundle in bundles:
        if not any(all(node.get(key, 0) >= value for key, value in bundle.items()) for node in nodes):
            return f"no node has {', '.join(f'{value:g} {key}' for key, value in bundle.items())}"
    total, free = ray.cluster_resources(), ray.available_resources()
    needed = {key: sum(bundle.get(key, 0) for bundle in bundles) for bundle in bundles for key in bundle}
    for has, word in ((total, "in all"), (free, "free")):
        lacking = {key: value for key, value in needed.items() if has.get(key, 0) < value}
        if short := [f"{value:g} {key} (it has {has.get(key, 0):g} {word})" for key, value in lacking.items()]:
            return f"it needs {' and '.join(short)} for the coordinator and {len(bundles) - 1} workers"
    return "it has enough in all, and not on nodes as placement_strategy wants it"
