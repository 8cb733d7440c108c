"""The command line of tools/chaos."""

import os
import shutil
import sys
from pathlib import Path

from command_line import Parser, finite
from lockstep_chaos.plan import KINDS

MOST_MINUTES = 7 * 24 * 60
PROGRAMS = ("lockstep-coordinator", "lockstep-worker")


def parse():
    parser = Parser(prog="chaos", allow_abbrev=False, description="Run random jobs of the real programs under random faults, and check from outside "
                    "that they lose nothing. Each sample counts once, all workers have the same parameters, and nothing is left behind.",
                    epilog="Status 0: every job did as documented; 1: one did not, and its folder is kept; 2: wrong usage. "
                    "Faults of links and disks need root, and PyTorch jobs an interpreter with torch; what cannot be done is said and left out.")
    parser.add_argument("--minutes", type=finite, default=10.0, metavar="N", help="start jobs for so long; the last one still ends (default: 10)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="draw the jobs and their faults from this seed (default: 1)")
    parser.add_argument("--job", type=int, metavar="K", help="run only this job of the seed: a failed one prints this command")
    parser.add_argument("--without", default="", metavar="KIND,...", help=f"leave out these kinds of faults, of {', '.join(KINDS)}")
    parser.add_argument("--out", default="runs", metavar="DIR", help="folder in which failed jobs are kept, as chaos-SEED-JOB (default: runs)")
    parser.add_argument("--json", metavar="FILE", help="write the results there, too")
    parser.add_argument("--build-dir", metavar="DIR", help="folder of the built programs (default: build/release)")
    parser.add_argument("--python", metavar="PROGRAM", help="an interpreter with torch (default: $LOCKSTEP_TORCH_PYTHON, else this one)")
    options = parser.parse_args()
    if not 0 < options.minutes <= MOST_MINUTES:
        parser.error(f"--minutes {options.minutes:g}: more than 0, at most {MOST_MINUTES}")
    if options.job is not None and options.job < 0:
        parser.error(f"--job {options.job}: 0 or more")
    options.without = tuple(filter(None, options.without.split(",")))
    for kind in options.without:
        if kind not in KINDS:
            parser.error(f"--without {kind}: the kinds are {', '.join(KINDS)}")
    if options.json is not None:
        parser.check_writable("--json", options.json)
    if os.path.lexists(options.out) and not os.path.isdir(options.out):
        parser.error(f"--out {options.out}: is not a folder")
    top = Path(__file__).resolve().parents[3]
    options.build_dir = Path(options.build_dir or top / "build" / "release").resolve()
    options.programs = next((folder for folder in (options.build_dir / "bin", options.build_dir) if (folder / PROGRAMS[0]).is_file()), None)
    if options.programs is None or not (options.programs / PROGRAMS[1]).is_file():
        parser.error(f"there are no programs in {options.build_dir}: build them with tools/test, or name their folder with --build-dir")
    given, options.python = options.python, options.python or os.environ.get("LOCKSTEP_TORCH_PYTHON", sys.executable)
    if given is not None and shutil.which(given) is None:
        parser.error(f"--python {given}: there is no such program")
    options.top = top
    return options
