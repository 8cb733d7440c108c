"""The wheel that tools/wheel has made, installed into an empty environment outside the tree. LOCKSTEP_WHEEL names it, else build/dist
is looked into; skipped where there is none. What takes torch takes it from LOCKSTEP_TORCH_PYTHON's environment."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import HERE, ROOT, harness  # noqa: E402

WHEELS = [pathlib.Path(os.environ["LOCKSTEP_WHEEL"])] if "LOCKSTEP_WHEEL" in os.environ else sorted((ROOT / "build/dist").glob("*.whl"))
PYTHON = os.environ.get("LOCKSTEP_TORCH_PYTHON", sys.executable)
EXAMPLE = ROOT / "examples/pytorch/fashion_mnist.py"
DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")
# What the wheel's programs may take from the machine: the C library and what comes with it, and zlib, as all manylinux wheels.
SYSTEM = re.compile(r"(ld-linux[\w-]*|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|z))\.so\.\d+\Z")


class WheelTest(harness.ClusterTest):
    @classmethod
    def setUpClass(cls):
        if not WHEELS:
            raise unittest.SkipTest("there is no wheel: tools/wheel makes one")
        folder = tempfile.TemporaryDirectory(prefix="lockstep-wheel-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.bin = cls.folder / "venv/bin"
        torch = subprocess.run([PYTHON, "-c", "import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))"],
                               capture_output=True, text=True, check=False)
        cls.torch = torch.stdout.strip()
        subprocess.run([PYTHON, "-m", "venv", cls.folder / "venv"], check=True)
        subprocess.run([cls.bin / "python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", WHEELS[-1]], check=True)
        cls.site = next((cls.folder / "venv/lib").glob("python3*/site-packages"))
        if cls.torch:
            (cls.site / "torch_of_the_test.pth").write_text(cls.torch + "\n")

    def run_here(self, *command, timeout=package.TIMEOUT_S, **more):
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("LOCKSTEP_", "PYTHON", "LD_"))}
        return subprocess.run([str(word) for word in command], cwd=self.folder, capture_output=True, text=True, timeout=timeout, check=False,
                              env={**kept, "PATH": f"{self.bin}:/usr/bin:/bin", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **more})

    def native(self):
        files = [path for path in [*(self.site / "lockstep/_native").rglob("*"), *(self.site / "lockstep.libs").glob("*")]
                 if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"]
        self.assertGreaterEqual({path.name for path in files}, {"liblockstep.so.1", "lockstep-coordinator", "lockstep-doctor", "lockstep-simulate"})
        return files

    @unittest.skipIf(shutil.which("readelf") is None, "there is no readelf")
    def test_it_brings_its_libraries(self):
        files = self.native()
        there = {path.name for path in files}
        for path in files:
            dynamic = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
            for name in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
                self.assertTrue(name in there or SYSTEM.match(name), f"{path.name} needs {name}")
            for where in re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", dynamic):
                self.assertTrue(all(one.startswith("$ORIGIN") for one in where.split(":")), f"{path.name} looks into {where}")

    def test_each_command_is_there(self):
        self.assertRegex(self.run_here("lockstep", "--version").stdout, r"\Alockstep \d+\.\d+\.\d+\n\Z")
        for words, message in ((["run", "--help"], "--policy"), (["coordinator", "--help"], "--workers"), (["simulate", "--help"], "--faults"),
                               (["ctl", "--help"], "drain"), (["status", "--help"], "--run-dir"), (["doctor", "--help"], "--json"), (["compare", "--help"], "--patterns"),
                               (["export", "--help"], "--otlp"), (["import-trace", "--help"], "--unit-costs")):
            done = self.run_here("lockstep", *words)
            self.assertEqual(done.returncode, 0, done)
            self.assertIn(message, done.stdout)
        done = self.run_here("lockstep", "doctor", "--json", "-")
        self.assertIn(done.returncode, (0, 1), done)  # 1: a problem of this machine
        ucx = json.loads(done.stdout)["ucx"]
        self.assertTrue(ucx["built_with"], ucx)
        self.assertTrue(ucx["version"] or ucx["error"].startswith("UCX is not on this machine: "), ucx)
        done = self.run_here("lockstep", "compare", "--config", ROOT / "examples/fashion_mnist_mlp.ini", "--out", "compared")
        self.assertEqual((done.returncode, done.stderr), (2, "compare: lockstep-worker is not part of the Python package: give -- SCRIPT, or --simulate\n"))
        done = self.run_here("lockstep", "compare", "--config", ROOT / "examples/fashion_mnist_mlp.ini", "--out", "compared", "--simulate",
                             "-n", "4", "--runs", "1", "--policies", "full", "--patterns", "one-slow", "--set", "job.epochs=1")
        self.assertEqual(done.returncode, 0, done)
        done = self.run_here("lockstep", "export", "compared/one-slow/full-1", "--otlp", "otlp.jsonl")
        self.assertEqual(done.returncode, 0, done)
        done = self.run_here("lockstep", "simulate", "--faults", "--seeds", "1..3")
        self.assertEqual(done.returncode, 0, done)

    def test_a_job_in_plain_python_takes_nothing_out_of_the_tree(self):
        script = self.folder / "linear.py"
        script.write_text((HERE / "linear.py").read_text()
                          + '\nfor line in sorted({line.split()[-1] for line in open("/proc/self/maps") if "/" in line}):\n    print("maps", line)\n')
        done = self.run_here("lockstep", "run", "-n", "2", "--http", "127.0.0.1:0", script)
        self.assertEqual(done.returncode, 0, done)
        self.assertEqual(len(set(re.findall(r"digest (\w{64})", done.stdout))), 1, done.stdout)
        mapped = re.findall(r"\| maps (.*)$", done.stdout, re.MULTILINE)
        self.assertIn(str(self.site / "lockstep/_native/liblockstep.so.1"), mapped)
        self.assertEqual([path for path in mapped if path.startswith(str(ROOT))], [])

    @unittest.skipUnless(DATA.is_dir(), f"there is no {DATA}")
    def test_the_example_reaches_the_same_with_four_workers_one_of_them_slow(self):
        if not self.torch:
            self.skipTest(f"{PYTHON} has no torch")
        epochs = os.environ.get("LOCKSTEP_TEST_EPOCHS", "2")
        reached = []
        for command in ([self.bin / "python", EXAMPLE], ["lockstep", "run", "-n", "4", "--policy", "auto", "--slowdown",
                                                         "worker=3,factor=5", EXAMPLE]):
            done = self.run_here(*command, "--epochs", epochs, timeout=600)
            self.assertEqual(done.returncode, 0, done)
            print(re.search(r"\d+ updates in [\d.]+ s, test.*", done.stdout).group(0))
            reached += [float(x) for x in re.findall(r"test accuracy ([\d.]+) %", done.stdout)]
        self.assertAlmostEqual(*reached, delta=1.0)


if __name__ == "__main__":
    harness.main()
