"""Runs a job on this machine, from the start of its coordinator to the launcher's exit status."""

import os
import signal
import time
from pathlib import Path

from command_line import BAD_USAGE, bad_usage, refusal
from lockstep_launch import commands, processors, slots, times
from lockstep_launch.ending import Ending
from lockstep_launch.loop import Loop
from lockstep_launch.processes import Process, describe
from lockstep_launch.screen import Screen

ADDRESS_FILE = "coordinator.address"  # the coordinator writes HOST:PORT there once it listens
GONE_FILE = "coordinator.gone"  # tells workers that reach the run directory that no other coordinator comes
PARTIAL_FILE = "rescue.safetensors.partial"  # a worker writes its parameters there
TRY_AGAIN = 3  # a worker's status: the coordinator has no place for it now


class Job:
    def __init__(self, options, coordinator_program, worker_program, secret_path):
        self.options = options
        self.coordinator_program = coordinator_program
        self.worker_program = worker_program
        self.secret_path = secret_path
        self.screen = Screen(options.n, self._reader_gone)
        self.coordinator = None
        self.workers = {}  # slot: Process, while it lives
        self.slots = {slot: slots.Slot(options.restart_workers) for slot in range(options.n)}
        self.places = {}  # slot: the processors that it is held to, and how many threads they have room for
        self.one_failed = False  # of the workers
        self.ending = Ending(self.workers, self.say)
        self.coordinator_restarts = options.restart_coordinator  # that are left
        self.next_press = None  # when the next signal to a process that does not end is due
        self.address = None
        self.stops = 0  # how often we got a signal to end
        self.stopped_at = 0.0  # the first time
        self.stopped_by = signal.SIGINT
        self.status = None  # of the job, where it is not the coordinator's own
        self.own_prefix = self.screen.prefix("launch", 9)
        self.loop = Loop(self.stop)
        self.address_path = Path(options.run_dir) / ADDRESS_FILE
        self.stale_address = self._address_identity()

    def begin(self):
        """Starts the coordinator. Returns None, or a status that ends everything."""
        if self.options.bind_to != "none":
            try:
                self._find_places(range(self.options.n), processors.read(), os.sched_getaffinity(0))
            except processors.NoPlace as error:
                return refusal(error)
        self._start_coordinator("127.0.0.1:0")
        self._say_places()

    def _start_coordinator(self, listen, again=False):
        command = commands.coordinator_command(self.options, self.coordinator_program, listen, self.options.config, self.secret_path, again)
        self.coordinator = self._start("coordinator", 0, command, on_terminal=self.screen.terminal)
        self._heed_coordinator()

    def _heed_coordinator(self):
        self.coordinator.heed = lambda line: slots.take(line, self.slots)

    def _has_coordinator(self):
        """The coordinator may also have just taken over. The workers of a killed one look for the next one where they know it."""
        status = self.coordinator.poll()
        if status is None:
            return True
        killed = status < 0 and self.address is not None and self.stops == 0 and self.status is None
        alive = any(process.poll() is None for process in self.workers.values())
        if not killed or self.coordinator_restarts == 0 or not alive:
            return False
        self.coordinator_restarts -= 1
        self.loop.finish(self.coordinator)
        self.screen.end_progress()
        left = self.coordinator_restarts
        self.say(f"the coordinator {describe(status)}; restarting it ({left} restart{'' if left == 1 else 's'} left), the workers keep their "
                 "parameters")
        self._start_coordinator(self.address, again=True)
        return True

    def run(self):
        """Runs until everything has ended; returns the exit status."""
        if self.coordinator is None:
            over = self.begin()
            if over is not None:
                return over
        while self._has_coordinator():
            self._turn(self._until_next() if self.address else times.ADDRESS_POLL_S)
            if self.address is None:
                self._start_workers_when_listening()
            self._reap_workers()
            self._start_again()
            self._end_what_was_put_out()
        self._end_workers()
        self.screen.end_progress()
        status = self.coordinator.poll()
        if status != 0:
            self.say(f"the coordinator {describe(status)}")
            self._judge_workers(status)
        else:
            self._judge_programs()
        began = self.address is not None or self._listening() is not None
        if began:
            self.say(f"run directory: {self._run_dir()}")
        # With a program, an error may be found when the first worker brings the job's settings.
        if status == BAD_USAGE and self.coordinator.last and (not began or self._is_unsaid()):
            refusal(commands.in_our_words(self.options, self.coordinator.last))
        if self.status is not None:
            return self.status
        return 128 - status if status < 0 else status

    def _run_dir(self):
        return self.options.run_dir

    def say(self, text):
        self.screen.line(self.own_prefix, text)

    def stop(self, number):
        """Once: the coordinator ends the job in good order. Again: all are killed. A signal from timeout(1), which goes to us and to our
        process group, and so to us twice, counts once."""
        now = time.monotonic()
        if self.stops > 0 and now - self.stopped_at < times.ONE_SIGNAL_S:
            return
        if self.stops > 0 and number == signal.SIGHUP:
            return  # kernel and shell both report a closed terminal, and nobody has asked for more
        if self.stops == 0:
            self.stopped_at, self.stopped_by = now, number
        self.stops += 1
        if self.stops == 1 and self.coordinator.poll() is not None:
            self.say(f"{signal.Signals(number).name}: the job is over; ending the programs that still run (a second signal kills them)")
        elif self.stops == 1:
            self.coordinator.signal(number if number != signal.SIGHUP else signal.SIGTERM)  # before any output, which may find no reader
            self.say(f"{signal.Signals(number).name}: the job is to end in good order (a second signal kills all processes)")
        else:
            self.kill_all()

    def _reader_gone(self):
        """The job's output has no reader any more."""
        if self.stops == 0:
            self.stop(signal.SIGTERM)

    def kill_all(self):
        for process in [self.coordinator, *self.workers.values()]:
            if process is not None:
                process.signal(signal.SIGKILL)

    def close(self):
        """Called after everything else."""

    def _start(self, name, number, command, on_terminal=False, environment=None, held_to=None):
        try:
            process = Process(name, number, command, self.screen, on_terminal, environment, held_to)
        except OSError as error:
            bad_usage(f"{command[0]}: {error.strerror}")
        self.loop.add(process)
        return process

    def _turn(self, timeout):
        self.loop.turn(timeout, self.coordinator)

    def _address_identity(self):
        try:
            found = os.stat(self.address_path)
        except OSError:  # the coordinator reports other errors of the run directory
            return None
        return found.st_ino, found.st_mtime_ns

    def _listening(self):
        """The coordinator's address, once it exists."""
        if self._address_identity() in (None, self.stale_address):
            return None
        return self.address_path.read_text(encoding="utf-8").strip()

    def _start_workers_when_listening(self):
        self.address = self._listening()
        if self.address is None:
            return
        self.say(f"run directory: {self._run_dir()}")
        for slot in range(self.options.n):
            self._start_worker(slot)

    def _start_worker(self, slot):
        held_to, threads = self.places.get(slot, (None, max(1, len(os.sched_getaffinity(0)) // self.options.n)))
        if self.options.program:
            environment = commands.worker_environment(self.options, slot, self.address, self.secret_path)
            # Each worker gets its share of the cores, unless the user has set it.
            environment["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(threads))
            command = self.options.program
        else:
            command, environment = commands.worker_command(self.options, slot, self.worker_program, self.address, self.secret_path), {}
        if held_to:
            environment.setdefault("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", str(threads)))
        self.slots[slot].starts_now()
        self.workers[slot] = self._start(f"worker {slot}", slot + 1, command, environment=environment, held_to=held_to)

    def _find_places(self, slots, lists, allowed):
        """Chooses the processors of the workers of one host."""
        taken = processors.places(self.options.bind_to, len(slots), processors.nodes(lists, allowed))
        self.places.update(zip(slots, taken, strict=True))

    def _say_places(self):
        for slot, (held_to, _) in sorted(self.places.items()):
            self.say(f"worker {slot} is bound to processors {processors.words(held_to)}")

    def _reap_workers(self):
        if self.coordinator.poll() is not None:
            return  # the job is over, and so are they
        for number, process in list(self.workers.items()):
            status = process.poll()
            if status is None:
                continue
            self.loop.finish(process)
            del self.workers[number]
            self.ending.forget(number)
            self._reap(number, self.slots[number], status)
        if self.address and not self.workers and self._next_start() is None and self.status is None and self.stops == 0:
            self._without_workers()

    def _reap(self, number, slot, status):
        slot.status = status
        known = slot.no_place_since is not None
        has_place = not self._is_without_place(slot, status)
        if number == 0 and (status == 0 or slot.restarts == 0) and has_place:
            self._end_of_worker_0()
        if status == 0 or self.stops > 0 or self.status is not None:
            return
        self.one_failed = True
        ended = f"worker {number} {describe(status)}"
        if not has_place:
            if not known:
                self.say(f"{ended}: the job has no place for it yet; it is restarted every second, for {times.NO_PLACE_S / 60:.0f} minutes at most")
            slot.again = time.monotonic() + times.TRY_AGAIN_S
        elif status == BAD_USAGE:
            self.say(f"{ended}: the job ends")
            self._give_up(BAD_USAGE)
        elif slot.restarts > 0:
            wait = slot.wait_for_restart()
            self.say(f"{ended}; restarting it in {wait} s ({slot.restarts} restart{'' if slot.restarts == 1 else 's'} left)")
        elif self.workers or self._next_start() is not None:
            self.say(f"{ended}; the others continue if they are at least job.min_workers, else they wait for it, for job.quorum_timeout at most "
                     "(--restart-workers N restarts it)")
        else:
            self.say(ended)

    def _is_without_place(self, slot, status):
        """The process must wait: the coordinator has not missed its predecessor. A program may end with that status for reasons of its
        own."""
        if status == TRY_AGAIN and self.options.restart_workers > 0:
            now = time.monotonic()
            slot.no_place_since = slot.no_place_since or now
            if now - slot.no_place_since < times.NO_PLACE_S:
                return True
        slot.no_place_since = None
        return False

    def _end_of_worker_0(self):
        """Workers that wait for its model need not (python/lockstep/_initial.py)."""
        folder = os.environ.get("LOCKSTEP_INITIAL")
        if self.options.package and folder:
            (Path(folder) / "ended").touch()

    def _next_start(self):
        """The time of the next start; None: no worker is to be started."""
        return min((slot.again for slot in self.slots.values() if slot.again is not None), default=None)

    def _until_next(self):
        """How long there is nothing to do without an event; None: for ever."""
        due = [when for when in (self._next_start(), self.next_press) if when is not None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _start_again(self):
        if self.stops > 0 or self.status is not None:
            for slot in self.slots.values():
                slot.again = None
        if self.coordinator.poll() is not None:
            return  # the job is over, or the next coordinator is started first and finds these restarts still due
        for number, slot in self.slots.items():
            if slot.again is not None and slot.again <= time.monotonic():
                self._start_worker(number)

    def _presses(self):
        """Which processes to end while the job runs, and when, so that others can take their slots. They end by themselves, unless they
        are stopped or hang in the kernel."""
        return {number: self.slots[number].out_since + times.WORKERS_END_S for number in self.workers
                if self.slots[number].put_out and self.slots[number].restarts > 0}

    def _end_what_was_put_out(self):
        going_on = self.stops == 0 and self.status is None
        self.next_press = self.ending.press(self._presses()) if going_on else None

    def _without_workers(self):
        """No worker is left. The job may just have finished: the coordinator has its time to end by itself."""
        over = self._wait_for(lambda: self.coordinator.poll() is not None or self.stops > 0, times.UNSAID_S)
        none_joined = not over and self._is_unsaid()
        if not none_joined:
            self._wait_for(lambda: self.coordinator.poll() is not None, times.WORKERS_END_S)
        if self.coordinator.poll() is None and self.stops == 0:
            if none_joined and not self.one_failed:
                self.say("no worker has joined the job" + (": does the script call lockstep.init()?" if self.options.package else ""))
            self.say("no worker is left: the job ends")
            self._give_up(1)

    def _is_unsaid(self):
        """No program has joined: the first one that does brings the job's settings, which the coordinator then writes down."""
        return bool(self.options.program) and not self.options.elsewhere and not os.path.exists(os.path.join(self.options.run_dir, "config.ini"))

    def _give_up(self, status):
        self.status = status
        self.coordinator.signal(signal.SIGTERM)
        if not self._wait_for(lambda: self.coordinator.poll() is not None, times.WORKERS_END_S):
            self.coordinator.signal(signal.SIGKILL)

    def _wait_for(self, condition, seconds=None):
        deadline = None if seconds is None else time.monotonic() + seconds
        while not condition():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            self._turn(left)
        return True

    def _end_workers(self):
        """The coordinator is gone: the workers must end, by themselves or otherwise."""
        over = time.monotonic()
        self._tell_nobody_comes()
        for process in self.workers.values():
            process.signal(signal.SIGCONT)  # a stopped process could neither hear of it nor end
        said = False
        while alive := [number for number, process in self.workers.items() if process.poll() is None]:
            patience = {number: self._patience(self.slots[number], time.monotonic() - over) for number in alive}
            waited_for = [number for number in alive if patience[number] is None]
            if waited_for and not said and time.monotonic() - over >= times.AFTER_S:
                said = True
                self.say(f"the job is over; waiting for the program of worker {', '.join(map(str, waited_for))} to end (Ctrl-C ends it)")
            next_at = self.ending.press({number: over + seconds for number, seconds in patience.items() if seconds is not None})
            if waited_for and not said:
                next_at = min(over + times.AFTER_S, next_at or over + times.AFTER_S)
            self._turn(None if next_at is None else max(0.0, next_at - time.monotonic()))
        for process in [self.coordinator, *self.workers.values()]:
            self.loop.finish(process)
        for number, process in self.workers.items():
            self.slots[number].status = process.poll()
            if process.poll() != 0 and self.stops == 0:
                self.say(f"worker {number} {describe(process.poll())}")

    def _tell_nobody_comes(self):
        """The workers of a killed coordinator look for the next one, and save their parameters once they know that there is none."""
        killed = self.coordinator.poll() < 0 and self.address is not None and self.stops == 0 and self.status is None
        if not killed or not self.workers or self.options.elsewhere:  # where the run directory is on another host, SIGTERM tells them
            return
        try:
            (Path(self.options.run_dir) / GONE_FILE).touch()
        except OSError as error:
            self.say(f"{GONE_FILE} cannot be written: {error.strerror}")

    def _patience(self, slot, since_end):
        """How long after the job's end this worker's process may run, in seconds; None: for ever."""
        completed = self.coordinator.poll() == 0
        if self.stops > 0 and completed:
            return 0.0
        if self.status is not None or self.coordinator.poll() == BAD_USAGE or slot.came_too_late:
            return times.GIVEN_UP_S  # it may still be looking for the coordinator
        if since_end < times.SAVING_S and (Path(self.options.run_dir) / PARTIAL_FILE).exists():
            return min(since_end + times.WORKERS_END_S, times.SAVING_S)
        # After a completed job, a program may have much to do with its model, and nobody else knows how much.
        return None if self.options.program and completed and not slot.put_out else times.WORKERS_END_S

    def _judge_workers(self, status):
        """Where all workers make the same mistake at once, the coordinator may have ended before any of their processes has."""
        if status == 1 and self.status is None and self.stops == 0 and any(slot.status == BAD_USAGE for slot in self.slots.values()):
            self.status = BAD_USAGE

    def _judge_programs(self):
        """The job has completed. The coordinator does not know whether the programs have saved its model."""
        if not self.options.program or self.status is not None:
            return
        failed = [number for number, slot in self.slots.items() if slot.failed_after_the_job or (number == 0 and slot.status not in (None, 0))]
        if not failed:
            return
        if self.stops > 0:
            self.status = 128 + self.stopped_by
            return
        self.status = 1
        if 0 in failed:
            why = "worker 0, which saves the model in most scripts, has failed"
        else:
            why = f"the program of worker {', '.join(map(str, failed))} has failed after it"
        self.say(f"the job has completed, but {why}: exit status 1")
