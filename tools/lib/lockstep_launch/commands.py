"""Makes the command lines and environments of coordinator and workers, as functions of the options."""

import re

from lockstep_launch.screen import ESCAPES


def coordinator_command(options, program, listen, config, secret_path, again=False):
    """`again`: it takes over from a coordinator that is gone."""
    command = [program, "--listen", listen, "--workers", str(options.n)]
    command += ["--config", config] if config else []
    command += ["--run-dir", options.run_dir]
    command += ["--config-from-workers"] if options.program else []
    command += ["--http", options.http] if options.http else []
    command += ["--reattach"] if again else ["--resume"] if options.resume else []
    command += [f"--{setting}" for setting in options.settings]
    return [*command, "--secret-file", secret_path]


def in_our_words(options, line):
    """Turns a message about the coordinator's options into one about ours: it has --KEY=VALUE for --set KEY=VALUE."""
    line = ESCAPES.sub("", line).removeprefix("lockstep-coordinator: ")
    for key in {setting.partition("=")[0] for setting in options.settings}:
        if re.match(rf"--{re.escape(key)}(?![a-z0-9_.])", line):
            line = re.sub(r' \(did you mean "--[^".]*"\?\)', "", f"--set {line[2:]}").replace('(did you mean "--', '(did you mean "')
            break
    return line


def worker_command(options, slot, program, address, secret_path):
    """The command line of lockstep-worker."""
    command = [program, "--coordinator", address, "--secret-file", secret_path, "--id", str(slot)]
    if options.devices:
        command += ["--device", options.devices[slot % len(options.devices)]]
    for spec in _slowdowns(options, slot):
        command += ["--slowdown", spec]
    return command


def worker_environment(options, slot, address, secret_path):
    """The environment of a program that takes the place of lockstep-worker."""
    return {"LOCKSTEP_COORDINATOR": address, "LOCKSTEP_SECRET_FILE": secret_path, "LOCKSTEP_WORKER": str(slot),
            "LOCKSTEP_WORKERS": str(options.n), "LOCKSTEP_LAUNCHER": options.launcher, "LOCKSTEP_SLOWDOWN": "\n".join(_slowdowns(options, slot))}


def _slowdowns(options, slot):
    return [spec for spec, worker in zip(options.slowdown, options.victims) if worker in (None, slot)]
