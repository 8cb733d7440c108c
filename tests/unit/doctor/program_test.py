"""The program on this machine, whatever that is: what it says has to fit together."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

BIN = pathlib.Path(os.environ.get("LOCKSTEP_BIN", pathlib.Path(__file__).resolve().parents[3] / "build/release/bin"))
STATUS = {"ok": 0, "warning": 0, "problem": 1}


def doctor(*arguments, **environment):
    return subprocess.run([BIN / "lockstep-doctor", *arguments], capture_output=True, text=True, check=False, timeout=60,
                          env={**os.environ, **environment})


class DoctorProgram(unittest.TestCase):
    def test_text(self):
        done = doctor()
        for word in ("versions", "RDMA", "locked memory", "memory files", "bandwidth", "mapped"):
            self.assertIn(word, done.stdout)
        self.assertNotIn("\033", done.stdout)
        self.assertEqual(done.stderr, "")
        self.assertIn(done.returncode, (0, 1))

    def test_json(self):
        done = doctor("--json", "-")
        found = json.loads(done.stdout)
        verdicts = [line["verdict"] for line in found["lines"]]
        self.assertEqual(found["verdict"], max(verdicts, key=["ok", "warning", "problem"].index))
        self.assertEqual(done.returncode, STATUS[found["verdict"]])
        for line in found["lines"]:
            self.assertEqual(line["remedy"] is None, line["verdict"] == "ok", line)
        speeds = {row["transport"]: row for row in found["bandwidth"] if row["memory"] == "host"}
        for transport in ("mapped", "tcp"):
            self.assertIsNone(speeds[transport]["error"])
            self.assertGreater(speeds[transport]["gb_per_s"], 0)

    def test_gpus_agree_with_the_copies_measured(self):
        found = json.loads(doctor("--json", "-").stdout)
        devices = {device["device"] for device in found["cuda"]["devices"]}
        memories = {row["memory"] for row in found["bandwidth"]} - {"host"}
        self.assertLessEqual(memories, devices)
        self.assertEqual(bool(memories), bool(devices))
        self.assertEqual(found["cuda"]["version"] is not None, found["cuda"]["built"])

    def test_memory_of_a_gpu_that_is_not_there(self):
        if json.loads(doctor("--json", "-").stdout)["cuda"]["devices"]:
            self.skipTest("there are GPUs")
        for arguments in (["copy", "host", "cuda:0"], ["tcp", "127.0.0.1", "cuda:0"]):
            done = doctor("--measure", *arguments)
            self.assertEqual(done.returncode, 1, arguments)
            self.assertEqual(len(done.stdout.splitlines()), 1, done.stdout)
            self.assertIn("CUDA", done.stdout)

    def test_a_ucx_that_finds_nothing_is_told(self):
        if not (json.loads(doctor("--json", "-").stdout)["ucx"] or {}).get("version"):
            self.skipTest("no UCX")
        done = doctor("--json", "-", UCX_TLS="self")
        found = json.loads(done.stdout)
        remedies = {line["name"]: line["remedy"] for line in found["lines"] if line["verdict"] != "ok"}
        self.assertIn("UCX_TLS", remedies["transports"])
        self.assertEqual(done.returncode, STATUS[found["verdict"]])

    def test_a_file_beside_the_text(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "doctor.json"
            done = doctor("--json", path)
            self.assertIn("bandwidth", done.stdout)
            self.assertIn("lines", json.loads(path.read_text()))

    def test_wrong_use(self):
        for arguments in (["--jsno", "-"], ["--json"], ["more"], ["--patience", "4"], ["--json", "/nowhere/x.json"]):
            done = doctor(*arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    unittest.main(verbosity=2)
