"""The blocks of docs/start and docs/guides run as they stand, page by page, each in a folder like a clone with the programs built.

usage: blocks_test.py [--torch] [PAGE ...]      without --torch: the pages that need none
"""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(ROOT / "tests" / "python")]
import pages  # noqa: E402
from package import BUILD, OURS, TORCH_PYTHON, harness  # noqa: E402

LIMIT_S = 120 * harness.PATIENCE  # of a block
COPIED = ("tools", "python", "examples")  # what looks for the build beside itself
SCRIPT_PAGE = "docs/start/pytorch.md"  # its train.py is that of all pages that have none of their own
MARK = "LOCKSTEP_DOCS_PAGE"
# A terminal's Ctrl-C reaches a program in the foreground, and not what a shell has started behind it.
FOREGROUND = "import os, signal, sys; os.setsid(); signal.signal(signal.SIGINT, signal.SIG_DFL); os.execvp('bash', ['bash', '-e', sys.argv[1]])"


def own_network():
    """The words that start a program with a loopback of its own, so that the ports of a page are free; none where that is forbidden."""
    for unshare in (["unshare", "-n"], ["unshare", "-rn"]):
        words = [*unshare, "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
        with contextlib.suppress(OSError):
            if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0:
                return words
    return []


NETWORK = own_network()


class Failed(Exception):
    """What a person needs to know, in lines."""


def has_ended(pid):
    try:
        return re.search(r"^State:\s+Z", pathlib.Path(f"/proc/{pid}/status").read_text(), re.MULTILINE) is not None  # until the shell looks
    except (FileNotFoundError, ProcessLookupError):
        return True


class Page:
    """A page's folder and shell."""

    def __init__(self, folder, torch):
        self.folder = pathlib.Path(folder).resolve()
        self.out = self.folder / ".blocks"
        self.mark = f"{os.getpid()}-{self.folder.name}"
        self._lay_out(torch)
        kept = {key: value for key, value in os.environ.items() if key not in OURS and not key.startswith("LOCKSTEP_TEST")}
        environment = {**kept, "PATH": f"{self.out / 'bin'}:{harness.BIN}:{kept['PATH']}", "PYTHONPATH": str(self.folder / "python"),
                       "LOCKSTEP_BUILD_DIR": str(BUILD), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "PYTHONDONTWRITEBYTECODE": "1", MARK: self.mark}
        self.shell = subprocess.Popen([*NETWORK, "bash", "--noprofile", "--norc"], stdin=subprocess.PIPE, cwd=self.folder, env=environment, text=True,
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        self._say("set -eo pipefail")
        self.running = None  # the block that runs on

    def _lay_out(self, torch):
        (self.out / "bin").mkdir(parents=True)
        for path in ROOT.iterdir():
            if path.name in COPIED:
                shutil.copytree(path, self.folder / path.name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
            elif path.name not in ("build", "runs", ".git") and not path.name.startswith("build-"):
                (self.folder / path.name).symlink_to(path)
        (self.folder / "build" / "examples").mkdir(parents=True)
        (self.folder / "build" / "release").symlink_to(BUILD)
        (self.folder / "build" / "examples" / "own_loop").symlink_to(harness.BIN / "own_loop")
        python = shutil.which(TORCH_PYTHON) if torch else sys.executable
        for name, words in (("python", ""), ("lockstep", "-m lockstep"), ("torchrun", "-m torch.distributed.run")):
            (self.out / "bin" / name).write_text(f'#!/bin/sh\nexec {python} {words} "$@"\n')
            (self.out / "bin" / name).chmod(0o755)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.shell.stdin.close()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.shell.wait()

    def processes(self):
        """Whatever the page has started and not ended, by what stands in its environment."""
        word = f"{MARK}={self.mark}".encode()
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if word in (folder / "environ").read_bytes().split(b"\0"):
                    yield int(folder.name)

    def _say(self, line):
        try:
            self.shell.stdin.write(f"{line}\n")
            self.shell.stdin.flush()
        except BrokenPipeError:
            pass  # seen at the next look at the shell

    def _wait(self, what, condition):
        end = time.monotonic() + LIMIT_S
        while not condition():
            if self.shell.poll() is not None and not condition():
                raise Failed(f"ended with status {self.shell.returncode}")
            if time.monotonic() > end:
                raise Failed(f"{what} has not come within {LIMIT_S:.0f} s")
            time.sleep(0.02)

    def printed(self, block):
        path = self.out / f"{block.line}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def run(self, block):
        script, out, done = (self.out / f"{block.line}.{end}" for end in ("sh", "out", "done"))
        if block.language == "python":
            (self.folder / (block.name or f"block{block.line}.py")).write_text(block.body)
            if block.name:
                return
            script.write_text(f"python block{block.line}.py\n")
        else:
            script.write_text(block.body)
        if block.mark == "after Ctrl-C":
            self.interrupt()
        if block.mark == "runs until Ctrl-C":
            self._say(f"python3 -c \"{FOREGROUND}\" {script} >{out} 2>&1 </dev/null & echo $! >{done}")
            self._wait("its start", lambda: done.exists() and done.read_text().strip())
            self.running = int(done.read_text())
            said = re.compile(block.said)
            self._wait(f"'{block.said}'", lambda: said.search(self.printed(block)) or has_ended(self.running))
            if not said.search(self.printed(block)):
                raise Failed("ended before the Ctrl-C")
            return
        self._say(f"source {script} >{out} 2>&1 </dev/null\ntouch {done}")
        self._wait("its end", done.exists)

    def interrupt(self):
        running, self.running = self.running, None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running, signal.SIGINT)
        self._wait("the end after Ctrl-C", lambda: has_ended(running))


class Counts:
    def __init__(self):
        self.ran = self.saved = self.compared = 0
        self.marked = []


def run_page(text, name, counts, torch, script=None):
    """Raises Failed where something is wrong."""
    found = list(pages.blocks(text))
    wrong = list(pages.mistakes(found))
    if wrong:
        raise Failed("\n".join(f"{name}: {line}" for line in wrong))
    counts.marked += [f"{name}:{block.line}: {block.said}" for block in found if block.mark == "not run"]
    if not any(block.runs() for block in found):
        return
    last = None  # whose output the next one of console is
    with tempfile.TemporaryDirectory(prefix="lockstep-docs-") as folder, Page(folder, torch) as page:
        if script is not None:
            (page.folder / "train.py").write_text(script)
        for block in found:
            if block.language == "console":
                if last is not None and block.mark != "not run":
                    lost = pages.missing(block.body, page.printed(last), str(page.folder))
                    if lost:
                        raise Failed(f"{name}:{block.line}: the block of line {last.line} did not print\n" + "\n".join(lost) + f"\nbut\n{page.printed(last)[-4000:]}")
                    counts.compared += 1
                continue
            last = block if block.runs() else None
            if block.runs():
                try:
                    page.run(block)
                except Failed as failed:
                    raise Failed(f"{name}:{block.line}: {failed}\n{block.body}--- printed\n{page.printed(block)[-6000:]}") from None
                counts.ran += not block.name
                counts.saved += bool(block.name)
        if page.running:
            page.interrupt()


class RunnerTest(unittest.TestCase):
    """A page that is wrong fails."""

    def fails(self, text, said):
        with self.assertRaises(Failed) as caught:
            run_page(text, "page.md", Counts(), torch=False)
        self.assertIn(said, str(caught.exception))

    def test_a_page_that_is_right(self):
        counts = Counts()
        run_page("<!-- runs until Ctrl-C: on -->\n```sh\necho on; sleep 1000 >/dev/null\n```\n\n```sh\nx=5; echo $x s\n```\n```console\n7 s\n```\n"
                 "Save it as `a.py`:\n```python\nprint('a')\n```\n  <!-- after Ctrl-C -->\n  ```sh\n  test $x = 5; python a.py\n  ```\n"
                 "<!-- not run: no -->\n```sh\nfalse\n```\n```console\nno\n```\n", "page.md", counts, torch=False)
        self.assertEqual((counts.ran, counts.saved, counts.compared, counts.marked), (3, 1, 1, ["page.md:21: no"]))

    def test_a_command_that_fails(self):
        self.fails("```sh\necho some; false\ntrue\n```\n", "page.md:1: ended with status 1\necho some; false\ntrue\n--- printed\nsome\n")

    def test_an_output_that_is_another_one(self):
        self.fails("```sh\necho 5 words\n```\n```console\n...\n7 swords\n```\n", "page.md:4: the block of line 1 did not print\n7 swords\nbut\n5 words\n")

    def test_marks_and_names(self):
        self.fails("<!-- not run: -->\n```sh\n```\n<!-- not run -->\n```sh\n```\n", "page.md: line 5: the mark 'not run' has no text")
        self.fails("<!-- after Ctrl-C -->\n```sh\n```\n", "page.md: line 2: nothing runs that could get a Ctrl-C")
        self.fails("Save this as `a.py`.\n```python\n```\n", "page.md: line 2: no block runs a.py")


class PagesTest(unittest.TestCase):
    counts = Counts()
    torch = False
    chosen = ()

    def test_pages(self):
        script = next(block.body for block in pages.blocks((ROOT / SCRIPT_PAGE).read_text()) if block.name == "train.py")
        for path in sorted([*(ROOT / "docs" / "start").glob("*.md"), *(ROOT / "docs" / "guides").glob("*.md")]):
            name, text = path.relative_to(ROOT).as_posix(), path.read_text()
            if (self.chosen and name not in self.chosen) or any(block.runs() and block.wants_torch() for block in pages.blocks(text)) != self.torch:
                continue
            start, wrong = time.monotonic(), None
            try:
                run_page(text, name, self.counts, self.torch, script if self.torch and name != SCRIPT_PAGE else None)
            except Failed as failed:
                wrong = str(failed)
            with self.subTest(name):
                self.assertIsNone(wrong, wrong)
            if any(block.runs() for block in pages.blocks(text)):
                print(f"{time.monotonic() - start:6.1f} s  {name}", flush=True)


def main():
    words = sys.argv[1:]
    PagesTest.torch = "--torch" in words
    PagesTest.chosen = [pathlib.Path(word).resolve().relative_to(ROOT).as_posix() for word in words if word != "--torch"]
    if PagesTest.torch and subprocess.run([TORCH_PYTHON, "-c", "import torch"], capture_output=True, check=False).returncode != 0:
        print(f"skipped: {TORCH_PYTHON} has no torch; LOCKSTEP_TORCH_PYTHON names an interpreter that has")
        return 77
    if not NETWORK:
        print("no network namespaces here: the pages' ports (7070, 8080) have to be free")
    suite = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromTestCase(case) for case in ((PagesTest,) if PagesTest.chosen else (RunnerTest, PagesTest)))
    result = unittest.TextTestRunner(verbosity=0).run(suite)
    counts = PagesTest.counts
    print(f"{counts.ran} blocks ran, {counts.saved} scripts were saved for them, {counts.compared} outputs agree; {len(counts.marked)} blocks are marked:")
    for line in counts.marked:
        print(f"  {line}")
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
