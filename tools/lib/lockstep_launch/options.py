"""Reads the command line, and computes the settings that follow from it before any process starts."""

import configparser
import datetime
import os
import re
import shutil
import sys

from command_line import Parser, bad_usage
from lockstep_launch import hosts, processors, slots


def make_parser():
    parser = Parser(description="Start a job: a coordinator and n workers, on this machine or, with --hosts, on several machines by ssh.",
                    allow_abbrev=False,
                    epilog="Put -- PROGRAM [ARGUMENT ...] at the end to start that program as each worker instead of lockstep-worker. Its "
                    "environment has LOCKSTEP_COORDINATOR, LOCKSTEP_SECRET_FILE, LOCKSTEP_WORKER (this worker's number), LOCKSTEP_WORKERS (how "
                    "many there are) and LOCKSTEP_SLOWDOWN. Settings that are missing from --config and --set come from the program. The exit "
                    "status is 0 if the job has completed, the program of worker 0 has succeeded and no program has failed after the job.")
    parser.set_defaults(launcher="tools/launch")  # as workers are told
    parser.add_argument("-n", type=int, metavar="WORKERS", help="number of workers; required without --hosts")
    for name, words in (("min", "with fewer workers the job waits"), ("max", "more workers may join later, up to so many")):
        parser.add_argument(f"--{name}-workers", type=int, metavar="N", help=f"{words}; the same as --set job.{name}_workers=N")
    parser.add_argument("--config", metavar="FILE", help="the job's INI file; required without a PROGRAM")
    parser.add_argument("--run-dir", metavar="DIR", help="folder for records and checkpoints; default: runs/DATE-TIME-POLICY")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings",
                        help="set one key of the configuration, as policy.name=backup; it wins over --config; may be repeated")
    parser.add_argument("--slowdown", action="append", default=[], metavar="SPEC",
                        help="slow down one worker, as worker=3,factor=5, or all workers, as factor=2; may be repeated")
    parser.add_argument("--device", action="append", default=[], metavar="DEVICE", dest="devices",
                        help="device of the workers, cpu or cuda:0; if repeated, the workers take the devices in turn")
    parser.add_argument("--http", metavar="HOST:PORT", help="address at which the coordinator serves its status page")
    parser.add_argument("--resume", action="store_true", help="continue the job in --run-dir from its newest checkpoint")
    parser.add_argument("--restart-workers", type=int, default=0, metavar="N",
                        help=f"restart each failed worker, at most N times; the first restart waits {slots.WAITS_S[0]} s, and a worker that "
                        f"fails again within a minute waits {', '.join(map(str, slots.WAITS_S[1:-1]))} and {slots.WAITS_S[-1]} s")
    parser.add_argument("--restart-coordinator", type=int, default=3, metavar="N",
                        help="restart a coordinator that was killed, at most N times (default: 3); the workers keep their parameters and go "
                        "on with it")
    parser.add_argument("--bind-to", choices=processors.HOW, default="none",
                        help="bind each worker, and with it its memory, to the processors of a NUMA node (numa) or to cores of its own (core); "
                        "default: none, the kernel chooses")
    parser.add_argument("--build-dir", metavar="DIR", help="folder of the built programs; default: build/release, else PATH")
    hosts = parser.add_argument_group("several hosts, by ssh (docs/guides/several-hosts.md)")
    hosts.add_argument("--hosts", metavar="HOST:WORKERS,...", help="as a:2,user@b:2; install the same version on all of them")
    hosts.add_argument("--hosts-file", metavar="FILE", help="one host on each line: NAME:WORKERS, then user=, port=, python= or cwd=")
    hosts.add_argument("--ssh-option", action="append", default=[], metavar="KEY=VALUE", dest="ssh_options",
                       help="option for ssh -o, as Port=2222 or IdentityFile=KEY; may be repeated")
    hosts.add_argument("--python", metavar="PROGRAM", help="Python on the hosts; default: python3, for a script the path of the one here")
    hosts.add_argument("--cwd", metavar="DIR", help="working directory on the hosts; default: the path of the one here")
    hosts.add_argument("--env", action="append", default=[], metavar="KEY[=VALUE]", dest="variables",
                       help="variable for all processes on the hosts; without a value, the one that is set here; may be repeated")
    hosts.add_argument("--coordinator", choices=("first", "here"), default="first",
                       help="run the coordinator on the first host (default), with the run directory there, or on this machine")
    hosts.add_argument("--listen", metavar="ADDRESS[:PORT]", help="address of the coordinator that all hosts reach; default: the address at "
                       "which ssh reached the first host, or at which the hosts know this machine")
    return parser


def parse_arguments():
    arguments, program = sys.argv[1:], []
    if "--" in arguments:
        end = arguments.index("--")
        arguments, program = arguments[:end], arguments[end + 1:]
        if not program:
            bad_usage("--: expected a program after it")
    options = make_parser().parse_args(arguments)
    options.program = program
    options.package = False
    return checked(options)


def checked(options):
    """Returns them with the settings that follow; ends the program where they make no job."""
    take_hosts(options)
    if options.n is None:
        bad_usage("the following arguments are required: -n")
    if options.n < 1:
        bad_usage("-n: expected at least one worker")
    if options.restart_workers < 0:
        bad_usage("--restart-workers: expected 0 or more restarts")
    if options.restart_coordinator < 0:
        bad_usage("--restart-coordinator: expected 0 or more restarts")
    if options.config is None and not options.program:
        bad_usage("the following arguments are required: --config")
    if options.config is not None and not os.path.isfile(options.config):
        bad_usage(f"--config: there is no file {options.config}{why_not(options.config)}")
    if options.resume and not options.run_dir:
        bad_usage("--resume: name the job to continue with --run-dir")
    if options.resume and not options.elsewhere and not os.path.isdir(options.run_dir):
        bad_usage(f"--resume: there is no run directory {options.run_dir}{why_not(options.run_dir)}")
    for name in ("min", "max"):
        take_size(options, name, getattr(options, f"{name}_workers"))
    for setting in options.settings:
        if not re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+)+=.*", setting, re.DOTALL):
            bad_usage(f"--set {setting}: expected section.key=value")
    if options.program and options.devices:
        bad_usage("--device is for lockstep-worker; choose the device in your program")
    if options.program and options.hosts is None:
        check_program(options.program[0])
    options.victims = [victim(spec, options.n) for spec in options.slowdown]
    if options.run_dir is None:
        options.run_dir = default_run_dir(options)
    return options


def take_size(options, name, workers):
    """Makes a setting of --min-workers or --max-workers."""
    if workers is None:
        return
    if workers < 1:
        bad_usage(f"--{name}-workers: expected at least one worker")
    key = f"job.{name}_workers"
    if any(setting.startswith(f"{key}=") for setting in options.settings):
        bad_usage(f"--{name}-workers: it is the same as --set {key}: give one of them")
    options.settings.append(f"{key}={workers}")


def why_not(path):
    """The system's message about it, unless it just does not exist."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return ""
    except OSError as error:
        return f": {error.strerror}"
    return ""


def check_program(name):
    """Checks it before any process starts for it."""
    if shutil.which(name) is not None:
        return
    if "/" not in name:
        bad_usage(f"{name}: there is no such program on PATH" + (f"; for the file in this folder say ./{name}" if os.path.isfile(name) else ""))
    if not os.path.exists(name):
        bad_usage(f"{name}{why_not(name) or ': No such file or directory'}")
    bad_usage(f"{name} is {'not executable' if os.path.isfile(name) else 'no program'}")


def take_hosts(options):
    """hosts: those that were named, or None; elsewhere: the coordinator, and with it the run directory, is on another machine."""
    if options.hosts is not None and options.hosts_file is not None:
        bad_usage("--hosts and --hosts-file exclude each other")
    try:
        if options.hosts_file is not None:
            options.hosts = hosts.read(options.hosts_file)
        elif options.hosts is not None:
            options.hosts = hosts.parse(options.hosts)
    except hosts.BadHosts as error:
        bad_usage(f"{'--hosts' if options.hosts_file is None else '--hosts-file'}: {error}")
    options.elsewhere = options.hosts is not None and options.coordinator == "first"
    if options.hosts is None:
        for name, value in (("--ssh-option", options.ssh_options), ("--python", options.python), ("--cwd", options.cwd), ("--env", options.variables),
                            ("--listen", options.listen), ("--coordinator", options.coordinator == "here")):
            if value:
                bad_usage(f"{name} needs --hosts")
        return
    workers = sum(host.workers for host in options.hosts)
    if options.n not in (None, workers):
        bad_usage(f"-n {options.n}: the hosts have {workers} worker{'s' if workers > 1 else ''}")
    options.n = workers
    options.variables = [with_value(variable) for variable in options.variables]
    for name, values in (("--ssh-option", options.ssh_options), ("--env", options.variables)):
        for value in values:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*=.*", value, re.DOTALL):
                bad_usage(f"{name} {value}: expected KEY=VALUE")


def with_value(variable):
    """Gives KEY alone its value here: so a secret value need not be on our own command line."""
    if "=" in variable:
        return variable
    if variable not in os.environ:
        bad_usage(f"--env {variable}: this variable is not set here; say --env {variable}=VALUE")
    return f"{variable}={os.environ[variable]}"


def victim(spec, workers):
    """The worker of a slow-down; None: every worker. lockstep-coordinator checks the rest."""
    found = None
    for item in spec.split(","):
        key, equals, value = item.partition("=")
        if not equals:
            bad_usage(f"--slowdown {spec}: expected key=value instead of '{item}'")
        if key.strip() == "worker":
            if not value.strip().isdecimal() or int(value) >= workers:
                bad_usage(f"--slowdown {spec}: the workers are 0 to {workers - 1}")
            found = int(value)
        elif key.strip() == "workers" and value.strip().isdecimal() and int(value) > workers:
            bad_usage(f"--slowdown {spec}: the workers are 0 to {workers - 1}")
    return found


def default_run_dir(options):
    policy = "full"
    config = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        config.read(options.config or [])
        policy = config.get("policy", "name", fallback=policy)
    except (configparser.Error, UnicodeDecodeError):
        pass  # only a name depends on it; the coordinator reports errors in the file
    for setting in options.settings:
        key, _, value = setting.partition("=")
        policy = value if key == "policy.name" else policy
    policy = re.sub(r"[^A-Za-z0-9_+-]", "_", policy) or "full"
    stem = f"runs/{datetime.datetime.now():%Y%m%d-%H%M%S}-{policy}"
    candidate, number = stem, 1
    while not options.elsewhere and os.path.exists(candidate):
        number += 1
        candidate = f"{stem}-{number}"
    return candidate
