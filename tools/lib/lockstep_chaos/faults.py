"""Makes the faults of a schedule when they are due, and ends them. Nothing here waits: a look at the job comes every few milliseconds."""

import dataclasses
import os
import signal
import subprocess
import sys
import time

from lockstep_chaos import links, processes
from lockstep_chaos.plan import EXCHANGED
from lockstep_launch.processes import die_with_launcher

JOIN_AGAIN_S = 1.0  # a worker that found no place, or was killed, as the launcher does
TOO_SLOW = 3  # the factor of a slow-down


@dataclasses.dataclass
class Happened:
    kind: str
    victim: str  # for people
    workers: frozenset  # their numbers: those that the fault keeps from the job
    begun: float  # on this machine's clock
    until: float
    ended: float | None = None
    refused: str | None = None  # by the coordinator, in its words


class Faults:
    def __init__(self, plan, place, say):
        """`place`: the job: its mark, folder, tools, disk and hosts."""
        self.plan, self.place, self.say = plan, place, say
        self.pending = list(plan.faults)
        self.happened = []
        self.active = []  # of (happened, undo); undo() is False as long as it is too early
        self.asked = []  # of (happened, running tools/ctl)
        self.joiners = {}  # number: Joiner
        self.drained = False

    def turn(self, since_first_checkpoint):
        now = time.monotonic()
        for happened, asked in list(self.asked):
            if asked.poll() is not None:
                self._answered(happened, asked)
        for entry in list(self.active):
            if entry[0].until <= now and entry[1]() is not False:
                self._over(entry)
        for joiner in self.joiners.values():
            joiner.look(now)
        while self.pending and self.pending[0].at <= since_first_checkpoint:
            self._begin(self.pending.pop(0), now)

    def end_all(self):
        """The launcher has ended. Once more after the last process: a disk is repaired then. The last fault ends first, as one may lie over
        another."""
        for entry in list(reversed(self.active)):
            if entry[0].kind == "drain-worker" or entry[1]() is not False:
                self._over(entry)
        for happened, asked in list(self.asked):
            asked.kill()
            asked.wait()
            self._answered(happened, asked)

    def quiet_since(self):
        """The time at which the last fault began, or was to end. The job lives with faults that are not undone later. None: one is still on."""
        now = time.monotonic()
        if any(one.ended is None and one.until > now for one in self.happened):
            return None
        return max((one.ended or one.until for one in self.happened), default=0.0)

    def _over(self, entry):
        self.active.remove(entry)
        entry[0].ended = time.monotonic()

    def _begin(self, fault, now):
        make = getattr(self, "_" + fault.kind.replace("-", "_"))
        made = make(fault)
        if made is None:
            return  # nobody is there to be hit
        victim, workers, undo = made
        happened = Happened(fault.kind, victim, frozenset(workers), now, now + fault.seconds)
        self.happened.append(happened)
        self.say(f"{fault.kind} {victim}" + (f" for {fault.seconds:.1f} s" if fault.seconds else ""))
        if isinstance(undo, subprocess.Popen):
            self.asked.append((happened, undo))
        elif undo is None:
            happened.ended = now
        else:
            self.active.append((happened, undo))

    # --- processes

    def _worker(self, fault):
        workers = processes.workers(self.place.mark)
        return workers[sorted(workers)[int(fault.victim * len(workers))]] if workers else None

    def _kill_worker(self, fault):
        worker = self._worker(fault)
        if worker is None or not processes.send(worker.pid, signal.SIGKILL):
            return None
        return f"worker {worker.role}", {worker.role}, None

    def _stop_worker(self, fault):
        worker = self._worker(fault)
        if worker is None or not processes.send(worker.pid, signal.SIGSTOP):
            return None
        return f"worker {worker.role}", {worker.role}, lambda: processes.send(worker.pid, signal.SIGCONT) or True

    def _hold_interpreter(self, fault):
        worker = self._worker(fault)
        if worker is None:
            return None
        try:
            fifo = os.open(self.place.folder / f"hold-{worker.role}", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return None  # it has not got so far, or is held already
        with open(fifo, "w", encoding="ascii") as file:
            file.write(f"{fault.seconds}")
        return f"worker {worker.role}", {worker.role}, lambda: True

    def _coordinator_gets(self, number):
        found = processes.coordinator(self.place.mark)
        return found if found is not None and processes.send(found.pid, number) else None

    def _kill_coordinator(self, _):
        return None if self._coordinator_gets(signal.SIGKILL) is None else ("", (), None)

    def _stop_coordinator(self, _):
        found = self._coordinator_gets(signal.SIGSTOP)
        return None if found is None else ("", (), lambda: processes.send(found.pid, signal.SIGCONT) or True)

    # --- requests

    def _ctl(self, *words):
        return subprocess.Popen([*self.place.prefix(), sys.executable, "-B", str(self.place.tools / "ctl"), "--run-dir", str(self.place.run_dir), *words],
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def _answered(self, happened, asked):
        self.asked.remove((happened, asked))
        text = asked.stdout.read().strip()
        asked.stdout.close()
        if asked.returncode != 0:
            happened.refused = text.removeprefix("ctl: ") or "no answer"
            self.say(f"{happened.kind} {happened.victim} is refused: {happened.refused}")
        if happened.ended is None and all(entry[0] is not happened for entry in self.active):
            happened.ended = time.monotonic()

    def _change_policy(self, fault):
        policy = EXCHANGED[int(fault.other * len(EXCHANGED))]
        return f"to {policy}", (), self._ctl("policy", policy)

    def _slow_worker(self, fault):
        worker = self._worker(fault)
        if worker is None:
            return None
        return f"worker {worker.role}", (), self._ctl("slowdown", f"worker={worker.role},factor={TOO_SLOW},for={fault.seconds:.1f}s")

    def _drain_worker(self, fault):
        """Once in a job: the launcher must keep a worker of its own. Then another one with the same command takes the slot."""
        worker = self._worker(fault)
        if worker is None or self.drained or self.plan.workers < 2:
            return None
        self.drained = True
        within = self.place.namespace_of(worker.pid)
        ctl = self._ctl("drain", str(worker.role))

        def replace():
            if ctl.poll() is None or os.path.exists(f"/proc/{worker.pid}"):
                return False
            if ctl.returncode == 0:
                self.joiners[worker.role] = Joiner(worker, within, self.place)
                now = time.monotonic()
                self.happened.append(Happened("join-worker", f"worker {worker.role}", frozenset(), now, now, now))
                self.say(f"join-worker worker {worker.role}")
            return True

        victim = f"worker {worker.role}"
        self.active.append((happened := Happened("drain-worker", victim, frozenset({worker.role}), time.monotonic(), time.monotonic() + fault.seconds), replace))
        self.happened.append(happened)
        self.asked.append((happened, ctl))
        self.say(f"drain-worker {victim}")
        return None  # it has entered itself

    # --- links and disk

    def _pair(self, fault):
        hosts = list(self.place.hosts.job_hosts())
        first = hosts.pop(int(fault.victim * len(hosts)))
        return first, hosts[int(fault.other * len(hosts))]

    def _losing(self, *ways):
        for way in ways:
            self.place.hosts.lose(*way)

        def undo():
            for way in ways:
                self.place.hosts.restore(*way)

        return undo

    def _cut_link(self, fault):
        one, other = self._pair(fault)
        return f"{one} and {other}", self.place.workers_cut_off(one, other), self._losing((one, other), (other, one))

    def _one_way_link(self, fault):
        one, other = self._pair(fault)
        return f"{one} to {other}", self.place.workers_cut_off(one, other), self._losing((one, other))

    def _slow_link(self, fault):
        host, rate = self._pair(fault)[0], links.RATES[int(fault.other * len(links.RATES))]
        self.place.hosts.slow(host, rate)
        return f"{host} at {rate}", (), lambda: self.place.hosts.unslow(host)

    def _full_disk(self, _):
        self.place.disk.fill()
        return "", (), self.place.disk.make_room

    def _read_only_disk(self, _):
        """It stays so until the job has ended."""
        self.place.disk.break_it()
        return "", (), lambda: False if processes.marked(self.place.mark) else self.place.disk.repair()


class Joiner:
    """A worker that was started by hand: in the slot of one that has left, with its command."""

    def __init__(self, worker, within, place):
        self.worker, self.within, self.place = worker, within, place
        self.again = None
        self._start()

    def _start(self):
        with open(self.place.folder / "joiner.log", "ab") as log:
            self.process = subprocess.Popen([*self.within, *self.worker.command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.place.folder,
                                            env=self.worker.environment, start_new_session=True, preexec_fn=die_with_launcher(os.getpid()))

    def look(self, now):
        if self.again is not None and self.again <= now:
            self.again = None
            self._start()
        elif self.again is None and self.process.poll() not in (None, 0) and self.place.runs():
            self.again = now + JOIN_AGAIN_S
