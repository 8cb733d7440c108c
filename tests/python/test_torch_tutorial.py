"""docs/start/, as it stands there: the scripts, the lines that make plain torch of one, and the commands that start jobs of them."""

import pathlib
import re
import shlex
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import ROOT, harness  # noqa: E402
from torch_test import PYTHON, TorchTest  # noqa: E402

RUN = re.compile(r"^lockstep (run .* (\w+\.py))$", re.MULTILINE)


def page(name):
    return (ROOT / "docs" / "start" / name).read_text()


def block(text, language):
    """The first one."""
    return re.search(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL).group(1)


def without(text, difference):
    """As it was before somebody made that change by hand."""
    for hunk in re.split(r"^@@\n", difference, flags=re.MULTILINE):
        lines = hunk.splitlines(keepends=True)
        before, after = ("".join(line[1:] for line in lines if line[0] in which) for which in (" -", " +"))
        assert text.count(after) == 1, after
        text = text.replace(after, before)
    return text


class StartTest(TorchTest):
    def do(self, *command):
        done = subprocess.run([PYTHON, "-B", *command], cwd=self.folder, capture_output=True, text=True, check=False,
                              timeout=package.TIMEOUT_S, env=package.environment())
        self.assertEqual(done.returncode, 0, done)
        return done.stdout

    def assert_trained(self, said):
        self.assertGreater(float(re.search(r" s, (?:test )?accuracy (\S+) %$", said, re.MULTILINE).group(1)), 97, said)

    def assert_commands(self, name, script, *, commands, samples, updates):
        """Those that start the script train with each sample once in an epoch."""
        text = page(name)
        (self.folder / script).write_text(block(text, "python"))
        self.assert_trained(self.do(script))
        found = [command for command, started in RUN.findall(text) if started == script]
        self.assertEqual(len(found), commands)
        for command in found:
            with self.subTest(command):
                words = shlex.split(command)
                self.assert_trained(self.do("-m", "lockstep", *words))
                rounds = self.rounds(self.folder / words[words.index("--run-dir") + 1])
                harness.check_epochs(self, rounds, samples)
                # A policy that waits for all makes the updates of the page; others may need more.
                self.assertTrue(len(rounds) == updates or ("auto" in words and len(rounds) > updates), len(rounds))

    def test_five_minutes_with_pytorch(self):
        self.assert_commands("pytorch.md", "train.py", commands=3, samples=12_000, updates=250)

    def test_your_own_loop(self):
        text = page("own-loop.md")
        plain = without(block(text, "python"), block(text, "diff"))
        self.assertNotIn("lockstep", plain)
        (self.folder / "plain.py").write_text(plain)
        self.assert_trained(self.do("plain.py"))
        self.assert_commands("own-loop.md", "spirals.py", commands=1, samples=24_000, updates=500)


if __name__ == "__main__":
    package.main_with_torch()
