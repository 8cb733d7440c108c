"""Measures what a gradient of low rank costs in accuracy, whatever exchanges it: one worker trains the README's model on Fashion-MNIST, in
NumPy. It compares PowerSGD (Vogels et al., NeurIPS'19, algorithm 1 and 2, two exchanges a round) with alternating factors (ACP-SGD, Zhang
et al., ICDCS'23, one exchange a round), both with error feedback.

    python3 tools/experiments/peers/low_rank.py [--data DIR] [--seed N] [--rate R] METHOD[:RANK] ...      # none, powersgd:4, turns:8
"""

import argparse
import gzip
import sys
from pathlib import Path

try:
    import numpy as np
except ModuleNotFoundError:
    sys.exit("low_rank.py: NumPy is not there: pip install numpy")

SIZES = (784, 256, 128, 10)
EPOCHS, BATCH, MOMENTUM, WARM_UP = 6, 256, 0.9, 100
METHODS = ("none", "powersgd", "turns")


def read(folder, name, header):
    plain = folder / name
    data = plain.read_bytes() if plain.exists() else gzip.open(f"{plain}.gz").read()
    return np.frombuffer(data, np.uint8, offset=header)


def load(folder):
    images = [read(folder, f"{part}-images-idx3-ubyte", 16).reshape(-1, 784).astype(np.float32) / 255 for part in ("train", "t10k")]
    labels = [read(folder, f"{part}-labels-idx1-ubyte", 8) for part in ("train", "t10k")]
    mean, deviation = images[0].mean(), images[0].std()
    return [(one - mean) / deviation for one in images], labels


def orthonormal(factor, random):
    """Replaces a column of zeros by an arbitrary one."""
    none = np.linalg.norm(factor, axis=0) == 0
    return np.linalg.qr(np.where(none, random.standard_normal(factor.shape), factor).astype(np.float32))[0]


class Compressed:
    """One matrix: the exchanged numbers, the sum that is applied, and the rest that stays here for later."""

    def __init__(self, method, rank, shape, random):
        self.method, self.random = method, random
        self.left, self.right = (random.standard_normal((side, rank)).astype(np.float32) for side in shape)
        self.kept = np.zeros(shape, np.float32)

    def __call__(self, gradient, step):
        whole = gradient + self.kept
        if self.method == "powersgd":
            left = orthonormal(whole @ self.right, self.random)
            self.right = whole.T @ left
            sent = left @ self.right.T
        elif step % 2 == 0:
            right = orthonormal(self.right, self.random)
            self.left = whole @ right
            sent = self.left @ right.T
        else:
            left = orthonormal(self.left, self.random)
            self.right = whole.T @ left
            sent = left @ self.right.T
        self.kept = whole - sent
        return sent


def initial(random):
    """Uses He's initialization before a ReLU, Glorot's for the last layer; biases are 0."""
    limits = [np.sqrt(6 / inputs) for inputs in SIZES[:-2]] + [np.sqrt(6 / (SIZES[-2] + SIZES[-1]))]
    weights = [(limit * random.uniform(-1, 1, (outputs, inputs))).astype(np.float32) for limit, inputs, outputs in zip(limits, SIZES, SIZES[1:])]
    return weights + [np.zeros(outputs, np.float32) for outputs in SIZES[1:]]


def forward(parameters, images):
    layers = [images]
    for k in range(3):
        out = layers[-1] @ parameters[k].T + parameters[3 + k]
        layers.append(np.maximum(out, 0) if k < 2 else out)
    return layers


def gradients(parameters, images, labels):
    layers = forward(parameters, images)
    odds = np.exp(layers[-1] - layers[-1].max(axis=1, keepdims=True))
    odds /= odds.sum(axis=1, keepdims=True)
    samples = np.arange(len(labels))
    loss = -np.log(odds[samples, labels] + 1e-9).mean()
    delta = odds
    delta[samples, labels] -= 1
    delta /= len(labels)
    found = [None] * 6
    for k in (2, 1, 0):
        found[k], found[3 + k] = delta.T @ layers[k], delta.sum(axis=0)
        if k:
            delta = (delta @ parameters[k]) * (layers[k] > 0)
    return loss, found


def train(method, rank, images, labels, seed, rate):
    """The test accuracy; none where the loss was not finite."""
    random = np.random.default_rng(seed)
    parameters = initial(random)
    velocity = [np.zeros_like(one) for one in parameters]
    # The rule of `exchange.compression = powersgd`: matrices that become smaller.
    compressed = {k: Compressed(method, rank, one.shape, random) for k, one in enumerate(parameters)
                  if method != "none" and one.ndim == 2 and 2 * rank <= min(one.shape)}
    count = len(labels[0])
    steps = EPOCHS * -(-count // BATCH)
    step = 0
    for _ in range(EPOCHS):
        order = random.permutation(count)
        for first in range(0, count, BATCH):
            batch = order[first:first + BATCH]
            loss, found = gradients(parameters, images[0][batch], labels[0][batch])
            if not np.isfinite(loss):
                return None
            warm = rate * (step + 1) / WARM_UP
            now = warm if step < WARM_UP else rate * 0.5 * (1 + np.cos(np.pi * (step - WARM_UP) / (steps - WARM_UP)))
            for k, gradient in enumerate(found):
                velocity[k] = MOMENTUM * velocity[k] + (compressed[k](gradient, step) if k in compressed else gradient)
                parameters[k] = parameters[k] - now * velocity[k]
            step += 1
    return (forward(parameters, images[1])[-1].argmax(axis=1) == labels[1]).mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("/usr/share/datasets/fashion-mnist"), help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--rate", type=float, default=0.1, help="the learning rate after the warm-up (%(default)s)")
    parser.add_argument("methods", nargs="+", metavar="METHOD[:RANK]", help=", ".join(METHODS))
    options = parser.parse_args()
    try:
        images, labels = load(options.data)
    except OSError as error:
        parser.error(f"--data {options.data}: {error.strerror}")
    for word in options.methods:
        method, _, rank = word.partition(":")
        if method not in METHODS or not (rank.isdecimal() and int(rank) > 0 or method == "none" and not rank):
            parser.error(f"{word}: expected none, powersgd:RANK or turns:RANK")
    np.seterr(over="ignore", invalid="ignore", divide="ignore")
    for word in options.methods:
        method, _, rank = word.partition(":")
        accuracy = train(method, int(rank or 0), images, labels, options.seed, options.rate)
        print(f"{word}, rate {options.rate}: {'diverged' if accuracy is None else f'{100 * accuracy:.1f} %'}", flush=True)


if __name__ == "__main__":
    main()
