#!/usr/bin/env bash
# With JAX, the metrics of Keras' fit() count masked steps; evaluate() and the other backends leave them out.
#
# Versions: keras 3.15.1, jax 0.10.2, tensorflow-cpu 2.21.0 (PyPI).
# One would guess: a mask on the output (Masking, Embedding(mask_zero=True)) holds for metrics as it does for the loss, and the
#   accuracy that fit() shows in a pass is that of evaluate() with the same weights.
# What happens: with JAX the loss of fit() honours the mask, its metrics do not, compile(weighted_metrics=...) included. The mask is
#   kept beside the tensor, by its identity, and what jax.value_and_grad returns is another tensor. Nothing says so. Neither
#   jit_compile=False nor run_eagerly=True changes it.
# Source: keras/src/backend/jax/trainer.py, train_step and _update_metrics_variables; keras/src/backend/common/tensor_attributes.py.
# Why it matters: the training accuracy of padded sequences is mostly that of the padding. EarlyStopping or a checkpoint of the best
#   "accuracy" decides by it, and a model that moves from TensorFlow to JAX seems to learn worse or better than it does.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_python keras==3.15.1 tensorflow-cpu==2.21.0 jax==0.10.2 numpy==2.4.6
cat >"$finding_folder/masks.py" <<'PYTHON'
import sys

import keras
import numpy

# 16 sequences of 3 real steps, all of class 1, and 9 steps of padding. The model says class 1 everywhere.
x = numpy.zeros((16, 12, 1), "float32")
x[:, :3] = 1
y = (x[..., 0] > 0).astype("int32")
always = keras.layers.Dense(2, kernel_initializer="zeros", bias_initializer=keras.initializers.Constant([0.0, 1.0]))
model = keras.Sequential([keras.layers.Masking(), always])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
how = {"eager": {"run_eagerly": True}, "compiled": {}}[sys.argv[1]]
model.compile(keras.optimizers.SGD(0.0), loss, weighted_metrics=["accuracy"], **how)
fitted = model.fit(x, y, batch_size=16, verbose=0).history
found = model.evaluate(x, y, batch_size=16, verbose=0, return_dict=True)
same = abs(fitted["loss"][0] - found["loss"]) < 1e-6
print(f"fit {fitted['accuracy'][0]:.2f} evaluate {found['accuracy']:.2f} loss {'same' if same else 'differs'}")
PYTHON

for backend in tensorflow jax; do
  for how in compiled eager; do
    finding_check "keras 3.15.1, $backend, $how: accuracy of a model that is right in all steps that are not masked" \
      "$(KERAS_BACKEND=$backend TF_CPP_MIN_LOG_LEVEL=3 "$python" "$finding_folder/masks.py" $how 2>/dev/null)" \
      "$([[ $backend == tensorflow ]] && echo "fit 1.00 evaluate 1.00 loss same" || echo "fit 0.25 evaluate 1.00 loss same")"
  done
done
