"""How this process gets into its job: where the coordinator is, or that one is started here, and what the workers say to each other
before they join."""

import os
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from lockstep import _after, _channel, _errors, _initial, _launched, _launchers, _session, _settings
from lockstep._errors import UsageError
from lockstep._own import OwnCoordinator
from lockstep._session import Session


@dataclass
class Entry:
    """As lockstep.init has found it. `close` at the end."""

    coordinator: str | None  # None: there is none yet
    secret_file: str | None
    data_host: str | None
    wanted: int | None  # this worker's number, where a launcher has given it one
    slowdowns: str | None
    run_dir: str | None
    resume: bool | Literal["auto"]
    channel: _channel.Channel | None
    log_level: str
    connect_timeout: float  # seconds
    launched: _launchers.Launched | None = None
    shared: bool = False  # the model has worker 0's values since `join`
    _own: OwnCoordinator | None = None
    _meeting: _launched.Meeting | None = None
    _joined: ClassVar[set[str]] = set()  # coordinators of this process, for all its jobs

    def look(self) -> None:
        """For others that this process has been started with, and for a job that it has had."""
        if self.coordinator is None:
            self.launched = _launched.surroundings()
            self.wanted = self.launched.worker if self.launched else 0
        elif self.coordinator in Entry._joined and self.coordinator == os.environ.get("LOCKSTEP_COORDINATOR"):
            raise UsageError(
                f"this process has had its job at {self.coordinator} (LOCKSTEP_COORDINATOR), and lockstep run starts one job. "
                "Use lockstep run once for each job, or start the script with torchrun or python: then each job has its own "
                "coordinator"
            )

    def workers(self) -> int | None:
        """That the job is to have; None: it is not known before the job is joined."""
        if self.coordinator is None:
            launched = _launched.surroundings()
            return launched.workers if launched else 1
        if self.coordinator != os.environ.get("LOCKSTEP_COORDINATOR"):
            return None
        workers = os.environ.get("LOCKSTEP_WORKERS", "")
        return int(workers) if workers.isdecimal() else None

    def join(self, model: nn.Module, after: _after.After, settings: _settings.Settings, device: str) -> Session:
        """The model, and what is kept after updates, have worker 0's values then, where the workers have been started together.
        `device`: where the model is."""
        self.look()  # the script may have begun a process group since
        if self.launched is not None:
            self.channel = self._meeting = _launched.Meeting(self.launched, self.secret_file)
        if self.channel is not None and self.wanted is not None:
            with after.shared() as kept:
                _initial.share(self.channel, self.wanted, model, kept)
            self.shared = True
        _session.log("worker" if self.wanted is None else f"worker {self.wanted}", self.log_level)
        if self.coordinator is None:
            if self.run_dir is None:  # nobody could read them
                settings = {"checkpoint.every_epochs": "0", "checkpoint.rescue": "false"} | settings
            if self._meeting is not None:
                self.coordinator, self.secret_file, self._own = self._meeting.coordinator(self.run_dir, self.resume)
            else:
                self._own = OwnCoordinator(self.run_dir, resume=self.resume)
                self.coordinator, self.secret_file = self._own.address, self._own.secret_file
        session = Session(
            self.coordinator,
            secret_file=self.secret_file,
            data_host=self.data_host,
            settings=_settings.to_ini(settings),
            slowdowns=self.slowdowns,
            wanted=self.wanted,
            device=device,
            connect_timeout=self.connect_timeout,
        )
        Entry._joined.add(self.coordinator)
        if session.worker == 0:
            self._say_who_has_started(session.workers)
            config = _settings.from_ini(session.config)
            for line in _settings.differences(settings, config) + _settings.unused(config):
                print(f"lockstep: {line}", flush=True)
        return session

    def _say_who_has_started(self, workers: int) -> None:
        if self._own is not None and self.launched is None:
            if warning := _launchers.warning(os.environ):  # else nothing has started more than this one
                _errors.say(warning)
            return
        assert self.coordinator is not None
        print(f"lockstep: {_launchers.started(self.launched, os.environ, workers, self.coordinator)}", flush=True)

    def pass_on(self) -> None:
        """Prints the warnings of the coordinator that was started here, if the job may have other workers."""
        if self._own is not None and self.launched is not None:
            for line in self._own.warnings():
                _errors.say(line)

    @property
    def shares_signals(self) -> bool:
        """SIGINT and SIGTERM are for the whole job: it has this process alone, or a launcher sends them to all its workers."""
        return self._own is not None or self.launched is not None

    @property
    def has_coordinator(self) -> bool:
        """That was started here."""
        return self._own is not None

    def has_ended(self) -> bool:
        """The coordinator that was started here. Any thread."""
        own = self._own
        return own is None or own.has_ended()

    def interrupt(self, *, at_once: bool = False) -> None:
        """Ends the job, in good order or at once, where its coordinator was started here. Also within a handler of a signal."""
        if self._own is not None:
            self._own.interrupt(at_once=at_once)

    def wait_for_end(self) -> None:
        """Of the coordinator that was started here, and with it of the job."""
        try:
            if self._own is not None:
                self._own.finish(self.pass_on)
        finally:
            self._own = None

    def last_words(self) -> str:
        """Of the coordinator that was started here."""
        return "" if self._own is None else self._own.last_line()

    def close(self, *, ended: bool, at_once: bool) -> None:
        """`ended`: the job has come to its end, and so does its coordinator, else it is told to. May be called again."""
        if not ended:
            self.interrupt(at_once=at_once)
        self.wait_for_end()
        if self._meeting is not None:
            self._meeting.close()
