"""docs/start/tutorial-pytorch.md, as it stands there: the plain script, the three lines, and the commands that end by themselves."""

import pathlib
import re
import shlex
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import ROOT, harness  # noqa: E402
from torch_test import PYTHON, TorchTest  # noqa: E402

PAGE = (ROOT / "docs" / "start" / "tutorial-pytorch.md").read_text()
SAMPLES = 24_000


def block(language):
    """The first one."""
    return re.search(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL).group(1)


def changed(text, difference):
    """As a reader would by hand."""
    for hunk in re.split(r"^@@\n", difference, flags=re.MULTILINE):
        lines = hunk.splitlines(keepends=True)
        before, after = ("".join(line[1:] for line in lines if line[0] in which) for which in (" -", " +"))
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    return text


class TutorialTest(TorchTest):
    def do(self, *command):
        done = subprocess.run([PYTHON, "-B", *command], cwd=self.folder, capture_output=True, text=True, check=False,
                              timeout=package.TIMEOUT_S, env=package.environment())
        self.assertEqual(done.returncode, 0, done)
        return done.stdout

    def assert_trained(self, said):
        self.assertGreater(float(re.search(r" s, test accuracy (\S+) %$", said, re.MULTILINE).group(1)), 97, said)

    def test_word_for_word(self):
        script = self.folder / "train.py"
        script.write_text(block("python"))
        self.assertNotIn("lockstep", script.read_text())
        self.assert_trained(self.do(script))
        script.write_text(changed(script.read_text(), block("diff")))
        self.assert_trained(self.do(script))
        commands = re.findall(r"^\$ lockstep (run (?:(?!--http|--resume|--restart).)* train\.py|export \S+ --otlp \S+)$", PAGE, re.MULTILINE)
        self.assertEqual([command.split()[0] for command in commands], ["run", "run", "run", "export"])
        for command in commands:
            with self.subTest(command):
                words = shlex.split(command)
                said = self.do("-m", "lockstep", *words)
                if words[0] == "run":
                    self.assert_trained(said)
                    rounds = self.rounds(self.folder / words[words.index("--run-dir") + 1])
                    harness.check_epochs(self, rounds, SAMPLES)
                    # Who waits for all has the updates of the page; others may need more.
                    self.assertTrue(len(rounds) == 500 or ("auto" in words and len(rounds) > 500), len(rounds))
        self.assertIn("resourceSpans", (self.folder / "rounds.otlp").read_text())


if __name__ == "__main__":
    package.main_with_torch()
