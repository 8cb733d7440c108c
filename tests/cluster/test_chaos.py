"""tools/chaos with the real programs: about a minute of it with a fixed seed, and that it finds a fault and leaves nothing behind."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

from harness import BIN, PATIENCE, TOOLS, ClusterTest, main, wait_for

sys.path.insert(0, str(TOOLS / "lib"))
from lockstep_chaos import plan, processes  # noqa: E402

SEED = 5
MINUTES = 0.5  # in which jobs are started: two of them
FAULTLESS = ",".join(plan.KINDS)
BAD_WORKER = """#!/bin/bash
echo "Traceback (most recent call last):"
exec -a "$0" {program} "$@"
"""


class Chaos(ClusterTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir()

    def start(self, *words, build=BIN):
        log = open(self.folder / "log", "wb")
        self.addCleanup(log.close)
        process = subprocess.Popen([sys.executable, "-B", TOOLS / "chaos", "--seed", str(SEED), "--build-dir", build, *map(str, words)], stdin=subprocess.DEVNULL,
                                   stdout=log, stderr=log, cwd=self.folder, env={**os.environ, "TMPDIR": str(self.temporary)})
        self.addCleanup(lambda: process.poll() is None and process.kill())
        return process

    def log(self):
        return (self.folder / "log").read_text(errors="replace")

    def end(self, process):
        status = process.wait(400 * PATIENCE)
        self.assertEqual(list(self.temporary.iterdir()), [])
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    self.assertNotIn(f"{processes.MARK}={process.pid}-".encode(), (entry / "environ").read_bytes(), (entry / "cmdline"))
                except OSError:
                    continue
        return status

    def test_a_minute_of_disorder_loses_nothing(self):
        status = self.end(self.start("--minutes", MINUTES, "--json", "result.json"))
        self.assertEqual(status, 0, self.log())
        result = json.loads((self.folder / "result.json").read_text())
        self.assertGreater(len(result["jobs"]), 0)
        self.assertGreater(sum(row["faults"] for row in result["kinds"].values()), 0)
        print(self.log())

    def test_a_fault_is_found_kept_and_can_be_replayed(self):
        build = self.folder / "build"
        (build / "bin").mkdir(parents=True)
        for program in BIN.iterdir():
            (build / "bin" / program.name).symlink_to(program)
        worker = build / "bin" / "lockstep-worker"
        worker.unlink()
        worker.write_text(BAD_WORKER.format(program=BIN / "lockstep-worker"))
        worker.chmod(0o755)
        process = self.start("--job", self.a_short_job(), "--without", FAULTLESS, "--python", "/bin/false", "--out", "kept", build=build)
        self.assertEqual(self.end(process), 1, self.log())
        self.assertIn("a traceback: worker ", self.log())
        job = self.a_short_job()
        self.assertRegex(self.log(), rf"again with: tools/chaos --seed {SEED} --job {job} --without ")
        kept = self.folder / "kept" / f"chaos-{SEED}-{job}"
        self.assertTrue((kept / "run" / "rounds.jsonl").is_file())
        self.assertIn("a traceback", (kept / "schedule.txt").read_text())

    @staticmethod
    def a_short_job():
        return min(range(20), key=lambda number: plan.draw(SEED, number, set()).settings["job.epochs"])

    def has_rounds(self):
        """Unlike a glob, a walk passes over a folder that is removed meanwhile (the tool asks in one of its own what the machine can do)."""
        return any("rounds.jsonl" in files for _, _, files in os.walk(self.temporary))

    def test_ctrl_c_ends_all(self):
        process = self.start("--minutes", 10)
        wait_for("a job's rounds", lambda: self.has_rounds() or process.poll() is not None, 180)
        process.send_signal(signal.SIGINT)
        self.assertEqual(self.end(process), 130, self.log())


if __name__ == "__main__":
    main()
