"""Streams of libraries that share items out by themselves: whoever starts the workers, each item is read once, or one line says why not."""

import functools
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402
from package import HERE, harness  # noqa: E402
from torch_test import PYTHON, TorchTest, run  # noqa: E402

WORKER = HERE / "torch_libraries.py"
STARTS = {
    "lockstep run": ("-m", "lockstep", "run", "-n", "2", "--run-dir", "run"),
    "torchrun": ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
}


@functools.cache
def is_there(library):
    return subprocess.run([PYTHON, "-c", f"import {library}"], capture_output=True, check=False).returncode == 0


class LibraryTest(TorchTest):
    def use(self, library):
        if not is_there(library):
            self.skipTest(f"{PYTHON} has no {library}")
        self.words = [WORKER, f"library={library}", f"data={self.folder / 'data'}"]
        written = run(*self.words, "write=1")
        self.assertEqual(written.returncode, 0, written)

    def assert_each_item_once(self, start, *words):
        done = run(*STARTS[start], *self.words, f"save={self.folder}", *words)
        self.assertEqual(done.returncode, 0, done)
        self.assertNotIn("lockstep: the stream", done.stdout + done.stderr)
        parts = [json.loads((self.folder / f"{worker}.json").read_text()) for worker in range(2)]
        for epoch in range(2):
            self.assertEqual([len(part[epoch]) for part in parts], [50, 50])
            self.assertEqual(sorted(parts[0][epoch] + parts[1][epoch]), list(range(100)))
        if "sharded=1" not in words:
            self.assertEqual(parts[0][0], list(range(0, 100, 2)))  # each takes every other one

    def assert_refused(self, start, message, *words):
        done = run(*STARTS[start], *self.words, f"save={self.folder}", *words)
        self.assertEqual(done.returncode, 2 if start == "lockstep run" else 1, done)  # torchrun says 1, whatever its workers say
        self.assertRegex(done.stdout + done.stderr, rf"lockstep: [^\n]*{message}")

    def test_litdata(self):
        """Which takes its part when it is made: of WORLD_SIZE, and always the first where torch.distributed is not initialized."""
        self.use("litdata")
        self.assert_each_item_once("lockstep run")
        self.assert_each_item_once("torchrun", "undivided=1", "sharded=1")
        self.assert_refused("torchrun", "has been part 0 of 2 since it was made.*with lockstep.undivided")

    def test_webdataset(self):
        """Which takes its part with each pass."""
        self.use("webdataset")
        self.assert_each_item_once("lockstep run", "sharded=1")
        self.assert_each_item_once("torchrun")
        self.assert_each_item_once("torchrun", "sharded=1")

    def test_mosaicml_streaming(self):
        self.use("streaming")
        self.assert_each_item_once("lockstep run")
        self.assert_refused("lockstep run", "it would wait for them at a barrier of its own", "sharded=1")
        self.assert_refused("torchrun", "has been part . of 2 since it was made.*with lockstep.undivided")
        self.assert_each_item_once("torchrun", "undivided=1")

    def test_datasets(self):
        self.use("datasets")
        self.assert_each_item_once("torchrun")
        self.assert_each_item_once("torchrun", "sharded=1")
        self.assert_refused("torchrun", "has been part . of 2 since it was made.*leave split_dataset_by_node out", "split=1")


if __name__ == "__main__":
    package.main_with_torch()
