"""Softmax regression on Fashion-MNIST in NumPy: lockstep.Session without torch.

    lockstep run -n 4 --policy flexrr --slowdown worker=3,factor=5 examples/numpy/fashion_mnist.py [FOLDER]

FOLDER has the four usual files, compressed; it is that of the package dataset-fashion-mnist of Debian and Ubuntu if you leave it out.
"""

import gzip
import os
import sys

import numpy as np

import lockstep

FOLDER = sys.argv[1] if len(sys.argv) > 1 else "/usr/share/datasets/fashion-mnist"
SETTINGS = "[job]\nepochs = 3\nglobal_batch = 256\n[optimizer]\nlr = 0.1\n"  # defaults of the job


def read(name, head):
    with gzip.open(f"{FOLDER}/{name}.gz") as file:
        return np.frombuffer(file.read(), np.uint8, offset=head)


def split(name):
    labels = read(f"{name}-labels-idx1-ubyte", 8)
    return read(f"{name}-images-idx3-ubyte", 16).reshape(len(labels), -1).astype(np.float32) / 255, labels


def layers(floats):
    """Weights and bias as views of the session's memory."""
    return floats[:-10].reshape(-1, 10), floats[-10:]


x, y = split("train")
test_x, test_y = split("t10k")
initial = np.zeros(x.shape[1] * 10 + 10, np.float32)
tensors = [lockstep.Tensor("weight", (x.shape[1], 10)), lockstep.Tensor("bias", (10,))]
session = lockstep.Session(
    os.environ["LOCKSTEP_COORDINATOR"],  # this and the next three come from lockstep run
    secret_file=os.environ["LOCKSTEP_SECRET_FILE"],
    wanted=int(os.environ["LOCKSTEP_WORKER"]),
    slowdowns=os.environ["LOCKSTEP_SLOWDOWN"],
    settings=SETTINGS,
)
session.begin(
    lockstep.JobDescription(tensors, initial.ctypes.data, "fashion-mnist", train_samples=len(x), test_samples=len(test_x))
)
while (work := session.next(0.2)).kind is not lockstep.Kind.END:  # comes back now and then for Ctrl-C
    if work.kind is lockstep.Kind.NONE:
        continue
    train = work.kind is lockstep.Kind.TRAIN
    images, labels = (x[list(work.samples)], y[list(work.samples)]) if train else (s[slice(*work.evaluate)] for s in (test_x, test_y))
    weight, bias = layers(np.asarray(session.floats(work.parameters)))
    scores = images @ weight + bias
    scores -= scores.max(1, keepdims=True)
    p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    loss_sum = -np.log(p[np.arange(len(labels)), labels]).sum()
    if train:
        p[np.arange(len(labels)), labels] -= 1
        d_weight, d_bias = layers(np.asarray(session.floats(work.gradient)))
        d_weight += images.T @ p  # sums over the samples, not means
        d_bias += p.sum(0)
        session.done(len(labels), float(loss_sum))
    else:
        session.evaluation_done(float(loss_sum), int((scores.argmax(1) == labels).sum()))
if work.failed:
    sys.exit(f"worker {session.worker}: {work.reason}")
print(f"parameters {work.params_digest}", flush=True)
session.end()
