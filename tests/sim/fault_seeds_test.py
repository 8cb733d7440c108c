"""lockstep-simulate --faults on a terminal: it says how far it is, and Ctrl-C ends it with the results so far and nothing left behind."""

import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM = Path(sys.argv.pop(1)) / "bin" / "lockstep-simulate"


class FaultSeedsTest(unittest.TestCase):
    def test_progress_and_ctrl_c(self):
        for end in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(end.name), tempfile.TemporaryDirectory() as folder:
                ours, theirs = pty.openpty()
                with open(ours, "rb", buffering=0) as terminal:
                    seeds = subprocess.Popen([PROGRAM, "--faults", "--seeds", "1..1000000", "--jobs", "2"], stdout=subprocess.PIPE, stderr=theirs,
                                             env={**os.environ, "TMPDIR": folder}, text=True)
                    os.close(theirs)
                    line = terminal.read(200).decode()  # it blocks until there is one
                    seeds.send_signal(end)
                    out, _ = seeds.communicate(timeout=60)
                self.assertRegex(line, r"\Alockstep-simulate: \d+ of 1000000 seeds have passed, [\d.]+ a second\r\n\Z")
                self.assertEqual(seeds.returncode, 130, out)
                self.assertRegex(out, r"\A\d+ jobs: \d+ rounds, [^\n]*\n\Z")
                self.assertGreaterEqual(int(re.match(r"\d+", out).group()), int(re.search(r"\d+", line).group()))
                self.assertEqual(os.listdir(folder), [])


if __name__ == "__main__":
    unittest.main()
