"""A job on several hosts."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from command_line import bad_usage, read_regular, refusal
from lockstep_launch import commands, hosts, processors, times
from lockstep_launch.job import ADDRESS_FILE, Job
from lockstep_launch.loop import Feed
from lockstep_launch.processes import RemoteProcess, die_with_launcher
from lockstep_launch.programs import version_of


class HostsJob(Job):
    """A job on several hosts: an agent at each starts and ends the processes there and reports their output."""

    def __init__(self, options, coordinator_program, secret_path):
        super().__init__(options, coordinator_program, None, secret_path)
        self.version = version_of(coordinator_program)
        self.remote = {}  # name: RemoteProcess
        self.told_address = None
        self.passing_on = False  # worker 0's model is on its way to the other hosts
        self.worker_0_ended = False
        self.links, self.at = [], {}  # slot: the link of its host
        default = options.python or (sys.executable if options.package else "python3")
        for host in options.hosts:
            try:
                link = hosts.Link(host, len(self.links), options.ssh_options, default, die_with_launcher(os.getpid()))
            except hosts.BadHosts as error:
                bad_usage(str(error))
            for _ in range(host.workers):
                self.at[len(self.at)] = link
            self.links.append(link)
        self.feeds = {}  # link: its messages
        for link in self.links:
            self.feeds[link] = self._add(link.output, lambda link=link: self._hear(link))
            self._add(link.errors, lambda link=link: self._overhear(link))
            link.send(begin=self._beginning(link))
            link.begin_to_write()

    def _add(self, output, read):
        feed = Feed(output, read)
        self.loop.add(feed)
        return feed

    def _beginning(self, link):
        options = self.options
        has_coordinator = options.elsewhere and link.number == 0
        programs = ["lockstep-coordinator"] if options.package or has_coordinator else []
        programs += [] if options.program else ["lockstep-worker"]
        config = None
        if options.config and has_coordinator:
            try:
                config = [Path(options.config).name, read_regular(options.config).decode(errors="surrogateescape")]
            except OSError as error:
                bad_usage(f"--config {options.config}: {error.strerror}")
        return {"cwd": link.host.cwd or options.cwd or os.getcwd(), "env": dict(value.split("=", 1) for value in options.variables),
                "secret": Path(self.secret_path).read_bytes().hex(), "config": config, "silence_s": hosts.SILENCE_S,
                "package": options.package, "script": options.script if options.package else None, "programs": programs,
                "build_dir": options.build_dir if not options.package else None, "version": self.version, "bound": options.bind_to != "none"}

    def begin(self):
        ready = self._wait_for(lambda: self.stops > 0 or any(link.failure for link in self.links)
                               or all(link.ready for link in self.links), times.CONNECT_S)
        if self.stops > 0:
            return 128 + self.stopped_by
        for link in self.links:
            if link.failure or (not ready and not link.ready):
                return refusal(f"{link.host.name}: {link.failure or f'not ready within {times.CONNECT_S:.0f} s'}")
            if self.options.bind_to != "none":
                try:
                    self._find_places([slot for slot, at in self.at.items() if at is link], link.ready["lists"], link.ready["processors"])
                except processors.NoPlace as error:
                    return refusal(f"{link.host.name}: {error}")
        self._say_places()
        if self.stops > 0:
            return 128 + self.stopped_by
        listen = self.options.listen or self._own_address()
        if isinstance(listen, int):
            return listen
        if not re.search(r"\]:\d+$|^[^:]*:\d+$", listen):
            listen = f"[{listen}]:0" if ":" in listen and not listen.startswith("[") else f"{listen}:0"
        self._start_coordinator(listen)
        for link in self.links:
            slots = [str(slot) for slot, at in self.at.items() if at is link]
            self.say(f"{link.host.name}: worker{'s' if len(slots) > 1 else ''} {', '.join(slots)}")
        return None

    def _start_coordinator(self, listen, again=False):
        if not self.options.elsewhere:
            super()._start_coordinator(listen, again)
            return
        first = self.links[0].ready
        program = os.path.join(first["programs"], "lockstep-coordinator")
        command = commands.coordinator_command(self.options, program, listen, first["config"], first["secret"], again)
        self.coordinator = self._start_remote("coordinator", 0, self.links[0], command, {}, address_file=f"{self.options.run_dir}/{ADDRESS_FILE}")
        self._heed_coordinator()

    def _own_address(self):
        """The coordinator's address, from the two ends of the connections by which sshd has served us; a status where it is not there."""
        asked = self.links[:1] if self.options.elsewhere else self.links
        found = set()
        for link in asked:
            ends = link.ready["connection"].split()
            if len(ends) != 4:
                return refusal(f"{link.host.name}: SSH_CONNECTION is not set there, so the coordinator's address is unknown: name it with --listen")
            found.add(ends[2] if self.options.elsewhere else ends[0])
        if len(found) > 1:
            return refusal(f"the hosts know this machine as {' and '.join(sorted(found))}: name the coordinator's address with --listen")
        (address,) = found
        if self.options.elsewhere and len(self.links) > 1 and (address.startswith("127.") or address == "::1"):
            return refusal(f"ssh reached {asked[0].host.name} at {address}, where the other hosts cannot: name the coordinator's address with --listen")
        return address

    def _run_dir(self):
        return f"{self.links[0].host.name}:{self.options.run_dir}" if self.options.elsewhere else self.options.run_dir

    def stop(self, number):
        if self.coordinator is None:
            self.stops += 1
            self.stopped_by = number
        else:
            super().stop(number)

    def close(self):
        for link in self.links:
            link.end()
            if not link.found:  # it has not arrived there yet
                link.ssh.kill()
        deadline = time.monotonic() + times.HOSTS_END_S
        for link in self.links:
            try:
                link.ssh.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
            link.close()

    def _hear(self, link):
        messages = link.messages()
        for message in messages or ():
            if not self._take(link, message):
                link.cut(f"unexpected word of the agent: {str(message)[:200]}")
                messages = None
                break
        if messages is None:
            self._lost(link)
            return False
        return True

    def _take(self, link, message):
        """False: no agent of ours reports that about its host."""
        if "ready" in message:
            link.ready = message["ready"]
        elif "error" in message:
            link.failure = message["error"]
        elif "address" in message:
            self.told_address = message["address"]
        elif "file" in message:
            if link is not self.at[0]:
                return False
            self._pass_on(message)
        else:
            process = self.remote.get(message.get("out", message.get("ended")))
            if process is None or process.link is not link:
                return False
            if "out" in message:
                process.take(message["text"])
            else:
                process.ended(message["status"])
        return True

    def _pass_on(self, piece):
        """Sends worker 0's model to the other hosts."""
        source = self.at[0]
        hosts.pass_on(piece, source, [link for link in self.links if link is not source])
        self.passing_on = not piece["file"]["last"]
        if self.worker_0_ended and not self.passing_on:
            self._tell_end_of_worker_0()

    def _end_of_worker_0(self):
        self.worker_0_ended = True
        if not self.passing_on:  # else the hosts hear of it after the model
            self._tell_end_of_worker_0()

    def _tell_end_of_worker_0(self):
        if self.options.package:
            for link in self.links:
                link.send(worker_0_ended=True)

    def _turn(self, timeout):
        """It also gives up hosts that do not report the end of killed processes."""
        waiting = [process for process in self.remote.values() if process.status is None and process.kill_by is not None]
        if waiting:
            left = max(0.0, min(process.kill_by for process in waiting) - time.monotonic())
            timeout = left if timeout is None else min(timeout, left)
        super()._turn(timeout)
        for process in waiting:
            if process.status is None and process.kill_by <= time.monotonic():
                process.link.cut(f"no answer for {times.HOST_KILLS_S:.0f} s: the connection is closed")
                self.loop.drop(self.feeds[process.link])
                self._lost(process.link)

    def _overhear(self, link):
        lines = link.error_lines()
        if lines is None:
            return False
        if self.coordinator is not None:
            for line in lines:
                self.say(f"{link.host.name}: {line}")
        return True

    def _lost(self, link):
        if self.coordinator is None:
            return  # begin() reports it
        self.passing_on = self.passing_on and link is not self.at[0]
        for slot in [slot for slot, at in self.at.items() if at is link]:
            self.slots[slot].restarts = 0
            self.slots[slot].again = None
        running = [process for process in self.remote.values() if process.link is link and process.status is None]
        if running or self.address is None:
            self.say(f"{link.host.name}: {link.failure}")
        for process in running:
            process.ended(1)

    def _start_remote(self, name, number, link, command, environment, address_file=None, held_to=()):
        process = self.remote[name] = RemoteProcess(name, number, self.screen, link)
        if link.failure:
            process.ended(1)
        link.send(start={"name": name, "command": command, "env": environment, "address_file": address_file, "processors": sorted(held_to),
                         "shares_initial": self.options.package and name == "worker 0" and len(self.links) > 1})
        return process

    def _listening(self):
        return self.told_address if self.options.elsewhere else super()._listening()

    def _start_worker(self, slot):
        link = self.at[slot]
        ready, environment = link.ready, {}
        held_to, threads = self.places.get(slot, ((), max(1, len(ready["processors"]) // link.host.workers)))
        if self.options.program:
            environment = commands.worker_environment(self.options, slot, self.address, ready["secret"])
            environment["OMP_NUM_THREADS"] = dict(value.split("=", 1) for value in self.options.variables).get("OMP_NUM_THREADS", str(threads))
            command = self.options.program
        else:
            command = commands.worker_command(self.options, slot, os.path.join(ready["programs"], "lockstep-worker"), self.address, ready["secret"])
        if held_to:
            environment.setdefault("OMP_NUM_THREADS", dict(value.split("=", 1) for value in self.options.variables).get("OMP_NUM_THREADS", str(threads)))
        if self.options.package:
            environment["LOCKSTEP_INITIAL"] = ready["initial"]
            command = [link.python, *command[1:]]
        self.slots[slot].starts_now()
        self.workers[slot] = self._start_remote(f"worker {slot}", slot + 1, link, command, environment, held_to=held_to)
