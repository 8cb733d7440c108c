"""The console script `lockstep`: `run` starts a script as the workers of a job on this machine; the others are programs."""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable

from lockstep import _call, _place
from lockstep._errors import Error

_USAGE = """usage: lockstep run -n WORKERS [--policy NAME] [options] SCRIPT [ARGUMENT ...]     run a job on this machine
       lockstep run --hosts A:WORKERS,B:WORKERS [options] SCRIPT [ARGUMENT ...]   run it on several, by ssh
       lockstep status --run-dir DIR                                              show how a running job is doing
       lockstep ctl --run-dir DIR policy NAME                                     change a running job, or look at it
       lockstep doctor [--json FILE]                                              check whether this machine is fit for it
       lockstep compare --out DIR [options] -- SCRIPT [ARGUMENT ...]              compare policies under slow-downs
       lockstep export RUN_DIR --tensorboard DIR --otlp FILE                      hand the rounds on to other tools
       lockstep simulate [options]                                                simulate thousands of workers
       lockstep import-trace TRACE --out RUNDIR [options]                         make a run directory of another job's trace
       lockstep coordinator [options]                                             start a coordinator by itself
       lockstep --version

Each command shows its options with --help."""


def _run(arguments: list[str], program: list[str] | None = None) -> int:
    """`program`: in place of a script."""
    launcher = _place.launcher()
    parser = launcher.make_parser()
    parser.prog = "lockstep run"
    parser.description = "Start SCRIPT as each of n workers of a job, with a coordinator, on this machine or on several hosts."
    parser.epilog = (
        "Settings that are missing from --config and --set come from the script. The exit status is 0 if the job has completed, "
        "the script of worker 0 has succeeded and no script has failed after the job."
    )
    parser.add_argument("--policy", metavar="NAME", help="how to handle stragglers, as auto or backup; sets policy.name")
    if program is None:
        parser.add_argument("script", metavar="SCRIPT", help="a Python script that calls lockstep.init()")
        rest = parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="an argument of the script")
        rest.required = False  # older argparse says of what may be empty that it is missing
    options = parser.parse_args(arguments)
    options.package = True
    options.launcher = "lockstep run" if program is None else "lockstep.launch"
    if program is not None and (options.hosts is not None or options.hosts_file is not None):
        parser.error("lockstep.launch starts workers on this machine: use lockstep run for several hosts")
    if program is None and options.hosts is None and options.hosts_file is None and not os.path.isfile(options.script):
        parser.error(f"there is no script {options.script}")
    if options.devices:
        parser.error("--device is for lockstep-worker; choose the device in the script")
    if options.policy is not None:
        options.settings.append(f"policy.name={options.policy}")
    if options.build_dir is None:
        options.build_dir = str(_place.programs())
    options.program = program or [sys.executable, "-u", options.script, *options.arguments]
    options = launcher.checked(options)
    with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:  # for this user alone
        os.environ["LOCKSTEP_INITIAL"] = folder
        return int(launcher.launch(options))


def main() -> int:
    return _ended(_command)


def call(folder: str, arguments: list[str]) -> int:
    """For lockstep.launch: as `lockstep run` with these options, and the function in the folder as the program."""
    program = f"{_call.IMPORT}from lockstep import _called\nsys.exit(_called.main(sys.argv[1]))"
    return _ended(lambda: _run(arguments, [sys.executable, "-u", "-c", program, _call.PACKAGE, folder]))


def _ended(command: Callable[[], int]) -> int:
    sys.argv[0] = "lockstep"
    try:
        return command()
    except Error as error:
        print(f"lockstep: {error}", file=sys.stderr)
        return error.status


def _command() -> int:
    match sys.argv[1:]:
        case ["run", *arguments]:
            return _run(arguments)
        case ["coordinator" | "doctor" | "simulate" as name, *arguments]:
            program = str(_place.program(f"lockstep-{name}"))
            os.execv(program, [program, *arguments])
        case ["compare" | "ctl" | "import-trace" as name, *arguments]:
            os.execv(sys.executable, [sys.executable, str(_place.tool(name)), *arguments])
        case ["status", *arguments]:
            os.execv(sys.executable, [sys.executable, str(_place.tool("ctl")), "status", *arguments])
        case ["export", *arguments]:
            from lockstep import _export

            return _export.main(arguments)
        case ["--version"]:
            from lockstep import version

            print(f"lockstep {version()}")
            return 0
        case ["--help"] | ["-h"]:
            print(_USAGE)
            return 0
        case _:
            print(_USAGE, file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main())
