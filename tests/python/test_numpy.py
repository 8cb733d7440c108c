"""The example in NumPy: one worker and four find the same, and each sample counts once with a slow worker and a killed one."""

import gzip
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import frameworks  # noqa: E402
from package import ROOT, harness  # noqa: E402

EXAMPLE = ROOT / "examples" / "numpy" / "fashion_mnist.py"
TRAIN, TEST = 1024, 200


def write(folder, name, samples, draw):
    """Images of 8 x 8 pixels, whose row of the label is bright."""
    labels = bytes(draw.randrange(10) for _ in range(samples))
    images = b"".join(bytes(draw.randrange(200) + 55 * (pixel // 6 == label) for pixel in range(64)) for label in labels)
    with gzip.open(folder / f"{name}-labels-idx1-ubyte.gz", "wb") as file:
        file.write(bytes([0, 0, 8, 1]) + samples.to_bytes(4, "big") + labels)
    with gzip.open(folder / f"{name}-images-idx3-ubyte.gz", "wb") as file:
        file.write(bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in (samples, 8, 8)) + images)


class NumpyTest(frameworks.FrameworkTest):
    def setUp(self):
        super().setUp()
        draw = random.Random(1)
        write(self.folder, "train", TRAIN, draw)
        write(self.folder, "t10k", TEST, draw)

    def trained(self, workers, *options, ended=None, **more):
        out = self.job(workers, "--set", "job.global_batch=64", *options, EXAMPLE, self.folder, **more)
        self.check(out, TRAIN, workers if ended is None else ended)
        return self.rounds()

    def test_four_workers_find_what_one_finds(self):
        one, accuracy = self.trained(1), self.summary()["test_accuracy"]
        four = self.trained(4)
        self.assertEqual(len(one), len(four))
        for mine, theirs in zip(one, four):
            self.assertAlmostEqual(mine["loss"], theirs["loss"], delta=1e-5)
        self.assertLess(one[-1]["loss"], 0.8 * one[0]["loss"])
        self.assertAlmostEqual(self.summary()["test_accuracy"], accuracy, delta=0.011)

    def test_work_of_a_slow_worker_moves(self):
        rounds = self.trained(4, *frameworks.SLOW)
        self.assertTrue(any(line["moved"] for line in rounds), "nothing has moved")

    def test_a_killed_worker_is_replaced(self):
        for restarts, ended in ((0, 3), (1, 4)):
            with self.subTest(restarts=restarts):
                self.trained(4, "--set", "emulate.unit_time=2ms", "--set", "job.epochs=8", "--restart-workers", restarts, kill=2, ended=ended)


if __name__ == "__main__":
    frameworks.FrameworkTest.python = frameworks.python_with("numpy")
    harness.main()
