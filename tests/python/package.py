"""Runs scripts with the package out of the tree."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests" / "cluster"))
import harness  # noqa: E402

BUILD = pathlib.Path(os.environ.get("LOCKSTEP_BUILD_DIR", ROOT / "build" / "release"))
TORCH_PYTHON = os.environ.get("LOCKSTEP_TORCH_PYTHON", sys.executable)
ON_FAKE_DEVICE = os.environ.get("LOCKSTEP_ON_FAKE_DEVICE", str(BUILD / "tests" / "fake_device" / "liblockstep_on_fake_device.so"))
TIMEOUT_S = 120 * harness.PATIENCE
OURS = ("LOCKSTEP_COORDINATOR", "LOCKSTEP_SECRET_FILE", "LOCKSTEP_WORKER", "LOCKSTEP_SLOWDOWN", "LOCKSTEP_LOG_LEVEL", "LOCKSTEP_INITIAL", "LOCKSTEP_LAUNCHER",
        "RANK", "WORLD_SIZE", "SLURM_STEP_ID", "OMPI_COMM_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # a launcher's, too


def environment(**more):
    kept = {key: value for key, value in os.environ.items() if key not in OURS}
    return {**kept, "PYTHONPATH": str(ROOT / "python"), "LOCKSTEP_BUILD_DIR": str(BUILD), "LOCKSTEP_ON_FAKE_DEVICE": ON_FAKE_DEVICE, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **more}


def heed_ctrl_c():
    """What a shell starts in the background ignores it, and so would all that is started from there."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(*arguments, python=sys.executable, cwd=None, **more):
    return subprocess.Popen([python, "-B", *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, cwd=cwd, env=environment(**more), preexec_fn=heed_ctrl_c)


def run(*arguments, python=sys.executable, **more):
    """Ends with an object that has returncode, stdout and stderr. In an empty folder, which is looked at afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        process = start(*arguments, python=python, cwd=folder, **more)
        try:
            out, err = process.communicate(timeout=TIMEOUT_S)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def main_with_torch():
    """Runs the tests of a script that want torch in TORCH_PYTHON; without it they are skipped, as ctest has it."""
    if subprocess.run([TORCH_PYTHON, "-c", "import torch"], capture_output=True, check=False).returncode != 0:
        print(f"skipped: {TORCH_PYTHON} has no torch; LOCKSTEP_TORCH_PYTHON names an interpreter that has")
        sys.exit(77)
    harness.main()
