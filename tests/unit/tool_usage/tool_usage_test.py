"""A mistake on a tool's command line is one line and status 2, before any work, and leaves nothing behind."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[3] / "tools"
REFUSES = "#!/bin/sh\necho some log >&2\necho \"$(basename $0): it is refused\" >&2\nexit 2\n"
STEPS = """#!/bin/sh
for word; do [ "$last" = --run-dir ] && dir=$word; last=$word; done
mkdir "$dir"
for at in 1 2 4; do echo "{\\"times\\": {\\"commit\\": $at}}"; done >"$dir/rounds.jsonl"
"""
EXPERIMENTS = TOOLS / "experiments"
PARSED = ("bench-build", "chaos", "check-run", "compare", "ctl", "import-trace", "launch", "lint", "slowdown", *sorted(file.name for file in EXPERIMENTS.iterdir() if os.access(file, os.X_OK) and file.is_file()))


def path_of(tool):
    return next(place / tool for place in (TOOLS, EXPERIMENTS) if (place / tool).is_file())


class ToolUsage(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.build = self.folder / "build"
        (self.build / "bin").mkdir(parents=True)
        for name in ("lockstep-coordinator", "lockstep-worker", "lockstep-bench", "lockstep-simulate"):
            program = self.build / "bin" / name
            program.write_text(REFUSES)
            program.chmod(0o755)
        self.empty = self.folder / "empty"
        self.empty.mkdir()

    def refused(self, tool, *words, said=""):
        with self.subTest(tool=tool, words=words):
            done = subprocess.run([str(path_of(tool)), *map(str, words)], capture_output=True, text=True, cwd=self.empty, timeout=60)
            self.assertEqual((done.returncode, done.stdout), (2, ""), done)
            self.assertRegex(done.stderr, rf"\A{tool}: [^\n]+\n\Z")
            self.assertIn(said, done.stderr)
            self.assertEqual(list(self.empty.iterdir()), [])

    def test_an_option_that_there_is_not(self):
        for tool in PARSED:
            self.refused(tool, "--nope")
        for words in (["--nope"], ["--presett", "tsan"], ["-L", "unit", "--timeout", "5", "--nope=1"], ["--timeout"], ["--preset"]):
            self.refused("test", *words)
        for words in (["--nope"], ["dist", "--nope"], ["dist", "--cuda", "more"]):
            self.refused("wheel", *words)
        for words in (["--nope"], ["--out"], ["--serve", "nowhere"], ["--serve", "--check"]):
            self.refused("docs", *words)

    def test_values(self):
        built = ["--build-dir", self.build]
        self.refused("bench-build", "qickstart", said="expected quickstart, wheel, test")
        self.refused("bench-build", "wheel", said="after quickstart")
        self.refused("bench-build", "--against", "nonsense", said="no such commit")
        self.refused("bench-peers", *built, "--set", "optimizer.lr=1", said="is for --step")
        self.refused("bench-peers", *built, "--step", "--set", "foo", said="KEY=VALUE")
        self.refused("bench-pytorch", *built, "--set", "foo", said="KEY=VALUE")
        self.refused("bench-pytorch", *built, "--python", "nofile", said="--python nofile")
        self.refused("bench-link", *built, "--rate", "foo", said="--rate foo")
        self.refused("chaos", *built, "--minutes", "0", said="--minutes 0: more than 0")
        self.refused("chaos", *built, "--job", "-1", said="--job -1: 0 or more")
        self.refused("chaos", *built, "--without", "foo", said="--without foo: the kinds are kill-worker, ")
        self.refused("chaos", *built, "--python", "nofile", said="--python nofile: there is no such program")
        self.refused("chaos", *built, "--out", self.build / "bin" / "lockstep-worker", said="is not a folder")
        self.refused("chaos", "--build-dir", self.build / "none", said="there are no programs in ")
        self.refused("bench-link", *built, "--flow-limit", "0bit", said="--flow-limit 0bit")
        self.refused("exchange-crossings", *built, "-n", 0, said="0: expected")
        self.refused("exchange-crossings", *built, "-j", 0, said="at least 1")
        self.refused("exchange-crossings", "--build-dir", self.build / "none", said="is not there")
        self.refused("exchange-crossings", *built, "--latency", "foo", said="it is refused")
        self.refused("fault-cost", *built, "--set", "foo", said="KEY=VALUE")
        self.refused("fault-cost", *built, "--policy", "foo", said="it is refused")
        self.refused("auto-gap", *built, "-n", "0", said="0: expected")
        self.refused("auto-gap", *built, "--policies", "auto", said="--policies: names nothing to compare auto with")

    def test_values_that_no_bound_holds_or_that_come_to_nothing(self):
        built = ["--build-dir", self.build]
        for option in ("--bound", "--bound-none", "--step"):
            for value in ("nan", "inf", "-inf", "1e999", "x"):
                self.refused("auto-gap", *built, f"{option}={value}", said=f"argument {option}: {value}: expected a number")
        self.refused("auto-gap", *built, "--patterns", ",", said="--patterns: names no slow-down")
        for step in ("0", "0.000001", "-1"):
            self.refused("auto-gap", *built, "--step", step, said=f"--step {float(step):g}: less than a microsecond for each of 128 units of 4 workers")
        self.refused("auto-gap", *built, "--step", "1e308", said="--step 1e+308: at most 3600")
        self.refused("auto-gap", *built, "-n", 8, "--units", 8, "--step", "0.0000004", said="--step 4e-07: less than")
        for value in ("nan", "inf"):
            self.refused("fault-cost", *built, "--round", value, said=f"argument --round: {value}: expected a number")
        for value in ("0", "0.000003", "-1"):
            self.refused("fault-cost", *built, "--round", value, said="at least a microsecond for each of its 8 units")
        self.refused("fault-cost", *built, "--round", "1e308", said="--round 1e+308: at most 60")
        for value in ("0s", "0.00us"):
            self.refused("backup-curve", *built, "--unit-time", value, said=f"--unit-time {value}: more than 0")
        self.refused("bench-peers", *built, "--peers", ",", said="--peers ,: one of ")
        outside = ["--pid", 1 << 30, "--mode", "stop"]  # a process that there is not
        for value in ("501h", "9" * 400 + "s"):
            for option in ("--for", "--period"):
                self.refused("slowdown", *outside, option, value, said=f"argument {option}: {value}: expected at most 500h")
        self.refused("slowdown", *outside, "--period", "0.9ms", said="--period must be at least 1ms")
        self.refused("slowdown", "--mode", "link", "--dev", "x", "--rate", "0.0kbit", said="--rate 0.0kbit: expected a rate")

    def test_of_few_steps_the_90th_percentile_is_no_longer_than_the_longest(self):
        (self.build / "bin" / "lockstep-simulate").write_text(STEPS)
        words = ["--build-dir", self.build, "--rounds", 3, "-b", 0]
        done = subprocess.run([str(path_of("backup-curve")), *map(str, words)], capture_output=True, text=True, cwd=self.empty, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.splitlines()[-1], "| 0 | 1.500 | 1.900 | 1.000 | 1.000 |")

    def test_sizes_that_differ_have_names_that_differ(self):
        (self.build / "bin" / "lockstep-simulate").write_text('#!/bin/sh\necho \'{"direct": 1, "ring": 2, "tree": 3}\'\n')
        words = ["--build-dir", self.build, "-n", "8", "--bytes", "1024,1536,1048576,1500000", "--oversubscription", "1"]
        done = subprocess.run([str(path_of("exchange-crossings")), *map(str, words)], capture_output=True, text=True, cwd=self.empty, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        for name in ("1 KiB", "1.5 KiB", "1 MiB", "1.43 MiB"):
            self.assertRegex(done.stdout, rf"(?m)^ +1 +8 +{name} ")

    def test_outputs_that_cannot_be_written(self):
        for tool, options in (("exchange-crossings", ("--json", "--svg")), ("fault-cost", ("--json",)), ("bench-peers", ("--json",)),
                              ("bench-pytorch", ("--json",)), ("bench-link", ("--json",)), ("chaos", ("--json",))):
            for option in options:
                self.refused(tool, "--build-dir", self.build, option, self.empty, said="Is a directory")
                self.refused(tool, "--build-dir", self.build, option, self.empty / "no" / "x", said="No such file")

    def test_an_output_is_not_made_for_what_is_refused(self):
        self.refused("fault-cost", "--build-dir", self.build, "--json", self.empty / "x", "--policy", "foo", said="it is refused")


# As these are where the user's language is another one than English, for whoever does not ask for C's.
APT_CACHE = """#!/bin/sh
case "${LC_ALL:-$LANG}" in C) candidate=Candidate ;; *) candidate=Installationskandidat ;; esac
printf '%s:\\n  %s: 1.0\\n' "$2" "$candidate"
"""
PYTHON = """#!/bin/sh
for word; do
  case "$previous" in
    venv) mkdir -p "$word/bin" && cp "$0" "$word/bin/python" && cp "$0" "$word/bin/auditwheel" ;;
    --outdir | --wheel-dir) touch "$word/made.whl" ;;
    --site-dir) mkdir -p "$word" && touch "$word/index.html" ;;
  esac
  previous=$word
done
"""
OFFLINE = """#!/bin/sh
for word; do
  [ "$previous" != venv ] || { mkdir -p "$word/bin" && cp "$0" "$word/bin/python"; }
  [ "$word" != pip ] || { echo "ERROR: no network" >&2 && exit 1; }
  previous=$word
done
"""


class StandIns(unittest.TestCase):
    """Scripts with small ones in the place of the system's programs."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.bin = self.folder / "bin"
        self.bin.mkdir()

    def put(self, name, text):
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def run_tool(self, *words, cwd=None, **environment):
        return subprocess.run(list(map(str, words)), capture_output=True, text=True, cwd=cwd or self.folder, timeout=60, stdin=subprocess.DEVNULL,
                              env={**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}", **environment})

    def test_packages_are_found_in_any_language(self):
        self.put("dpkg-query", "#!/bin/sh\nexit 1\n")
        self.put("apt-cache", APT_CACHE)
        self.put("apt-get", f"#!/bin/sh\necho \"$@\" >>{self.folder}/asked\n")
        self.put("sudo", "#!/bin/sh\n[ \"$1\" = -n ] && shift\nexec \"$@\"\n")
        done = self.run_tool(TOOLS / "install-deps", "wheel", LANG="de_DE.UTF-8", LANGUAGE="de", LC_ALL="")
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        asked = (self.folder / "asked").read_text()
        for package in ("cmake", "libucx-dev", "python3-venv"):
            self.assertRegex(asked, rf" install -y .*\b{package}\b")

    def docs_tool(self):
        tree = self.folder / "tree"
        (tree / "tools" / "lib" / "docs").mkdir(parents=True)
        for name in ("docs", "lib/common.sh", "lib/docs/requirements.txt"):
            shutil.copy(TOOLS / name, tree / "tools" / name)
        return tree / "tools" / "docs"

    def test_a_site_needs_environments_and_packages(self):
        tool = self.docs_tool()
        self.put("python3", "#!/bin/sh\nexit 1\n")
        done = self.run_tool(tool)
        self.assertEqual(done.returncode, 2, done)
        self.assertRegex(done.stderr, r"\Adocs: python3 cannot make environments here: install python3-venv [^\n]*\n\Z")
        self.put("python3", OFFLINE)
        done = self.run_tool(tool, "--check")
        self.assertEqual(done.returncode, 1, done)
        self.assertRegex(done.stderr, r"\Adocs: pip could not install [^\n]*: ERROR: no network [^\n]*\n\Z")

    def test_a_site_goes_where_the_user_stands_and_replaces_nothing_else(self):
        tool, here = self.docs_tool(), self.folder / "here"
        (here / "full").mkdir(parents=True)
        (here / "full" / "file").touch()
        self.put("python3", PYTHON)
        done = self.run_tool(tool, "--out", "full", cwd=here)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done)
        self.assertIn("something that is no site", done.stderr)
        done = self.run_tool(tool, "--out", "site", cwd=here)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        self.assertTrue((here / "site" / "index.html").exists(), done)

    def test_a_wheel_goes_where_the_user_stands(self):
        tree, here = self.folder / "tree", self.folder / "here"
        (tree / "tools" / "lib").mkdir(parents=True)
        here.mkdir()
        for name in ("wheel", "lib/common.sh"):
            shutil.copy(TOOLS / name, tree / "tools" / name)
        (tree / "tools" / "install-deps").write_text("#!/bin/sh\n")
        (tree / "tools" / "install-deps").chmod(0o755)
        self.put("python3", PYTHON)
        for words, made in ((["dist"], here / "dist"), ([self.folder / "there"], self.folder / "there"), ([], tree / "build" / "dist")):
            done = self.run_tool(tree / "tools" / "wheel", *words, cwd=here)
            self.assertEqual((done.returncode, done.stderr), (0, ""), done)
            self.assertTrue((made / "made.whl").exists(), done)


if __name__ == "__main__":
    unittest.main()
