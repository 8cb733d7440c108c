"""guest_job.py a|b: one side of the job of test_job.py, in the emulated machine of that name.

a: the coordinator and the workers 0 and 1, of which 1 is killed. b: worker 2, slowed down. What the two have to tell each other goes
through the folder /out, which is both machines' and the host's.
"""

import dataclasses
import json
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "cluster"))

import counters  # noqa: E402
from harness import BIN, Job, wait_for  # noqa: E402
from test_ports import listening  # noqa: E402

OUT = pathlib.Path("/out")
ADDRESS = "192.168.77.1:7070"
PATIENCE = 240


def secret():
    path = pathlib.Path("/run/job.secret")
    path.write_bytes((OUT / "secret").read_bytes())
    path.chmod(0o600)
    return path


def tell(name, moved):
    (OUT / f"{name}.new").write_text(json.dumps(dataclasses.asdict(moved)))
    (OUT / f"{name}.new").rename(OUT / name)


def side_a(plan):
    before = counters.read()
    with Job(3, plan["options"], listen=ADDRESS, coordinator_args=["--secret-file", secret()]) as job:
        try:
            job.start_coordinator()
            for index in (0, 1):
                job.start_worker(index, "--secret-file", secret())
            job.wait_for_rounds(plan["kill_after"], PATIENCE)
            # The TCP that was offered beside RDMA is closed by now, and UCX never had a port.
            ports = listening(job.processes["worker0"].pid)
            assert ports == [], f"worker 0 listens on {ports}"
            job.processes["worker1"].kill()
            tell("killed", counters.read() - before)
            summary = job.finish(PATIENCE)
            tell("a.moved", counters.read() - before)
            assert job.wait("worker0", PATIENCE) == 0
            print("the job is", summary["status"])
            wait_for("b's end", (OUT / "b.moved").exists, PATIENCE, look_every=0.1)
        finally:
            shutil.copytree(job.run_dir, OUT / "run")
            for name in job.logs:
                print(f"--- {name}\n{job.log(name)}")


def side_b(plan):
    before = counters.read()
    worker = subprocess.Popen([BIN / "lockstep-worker", "--coordinator", ADDRESS, "--id", "2", "--secret-file", secret(),
                               "--slowdown", plan["slowdown"]], stdin=subprocess.DEVNULL)
    try:
        wait_for("the kill", lambda: (OUT / "killed").exists() or worker.poll() is not None, PATIENCE, look_every=0.02)
        tell("b.moved_before_the_kill", counters.read() - before)
        assert worker.wait(PATIENCE) == 0
        tell("b.moved", counters.read() - before)
    finally:
        worker.kill()
        worker.wait()


if __name__ == "__main__":
    {"a": side_a, "b": side_b}[sys.argv[1]](json.loads((OUT / "plan.json").read_text()))
