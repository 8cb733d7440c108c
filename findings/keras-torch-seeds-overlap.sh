#!/usr/bin/env bash
# On Keras' torch backend the second draw with seed 1 is the first draw with seed 2.
#
# Versions: keras 3.15.1, torch 2.15.0 (PyPI), on the CPU.
# One would guess: two SeedGenerators with different seeds give streams that have nothing to do with each other, as they do on
#   Keras' JAX backend. The state is a pair, [seed, counter].
# What happens: torch's generator gets the sum of the pair. So a draw depends on seed + counter, and Dropout(0.5, seed=s) drops at
#   step t + 1 what Dropout(0.5, seed=s + 1) drops at step t.
# Source: keras/src/backend/torch/random.py, torch_seed_generator: manual_seed(first_seed + second_seed).
# Why it matters: seed + rank is the usual recipe for ranks that should draw different masks and augmentations. Here rank 0 draws
#   those of rank 1 one step later, those of rank 7 seven steps later. The same is true of layers that are numbered.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_python keras==3.15.1 torch==2.15.0 jax==0.10.2 numpy==2.4.6
cat >"$finding_folder/seeds.py" <<'PYTHON'
import keras
import numpy

ones = numpy.ones((4, 1000), "float32")


def masks(seed, steps):
    drop = keras.layers.Dropout(0.5, seed=seed)
    return [keras.ops.convert_to_numpy(drop(ones, training=True)) for _ in range(steps)]


first, second = masks(1, 6), masks(2, 5)
print(sum((a == b).all() for a, b in zip(first[1:], second)), "of 5")
PYTHON

for backend in torch jax; do
  finding_check "keras 3.15.1, $backend: masks of rank 0 that are those of rank 1, a step later" \
    "$(KERAS_BACKEND=$backend CUDA_VISIBLE_DEVICES='' "$python" "$finding_folder/seeds.py")" \
    "$([[ $backend == torch ]] && echo '5 of 5' || echo '0 of 5')"
done
