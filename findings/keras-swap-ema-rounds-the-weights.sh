#!/usr/bin/env bash
# With TensorFlow, the callback SwapEMAWeights changes the weights that are trained, each time it swaps them out and back.
#
# Versions: keras 3.15.1, tensorflow-cpu 2.21.0 (PyPI).
# One would guess: the callback puts the averaged weights into the model for a validation, and then the trained ones again, bit for
#   bit, as on Keras' other backends. Validating changes nothing.
# What happens: it swaps in place by a += b, b = a - b, a = a - b. In float32 both come back rounded. A weight that is small beside
#   its average comes back as 0.
# Source: keras/src/callbacks/swap_ema_weights.py, _tf_swap_variables.
# Why it matters: training depends on how often it is validated. Replicas of which one alone validates differ from then on, as do
#   those that compare digests of their weights.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_python keras==3.15.1 tensorflow-cpu==2.21.0 jax==0.10.2 numpy==2.4.6
cat >"$finding_folder/swap.py" <<'PYTHON'
import keras
import numpy

keras.utils.set_random_seed(1)
x, y = numpy.random.default_rng(1).standard_normal((2, 64, 16)).astype("float32")
model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(256, activation="tanh"), keras.layers.Dense(16)])
model.compile(keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.9), "mse")
for _ in range(20):
    model.train_on_batch(x, y)
before = model.get_weights()
model.evaluate(x, y, verbose=0, callbacks=[keras.callbacks.SwapEMAWeights()])
changed = sum(int((a != b).sum()) for a, b in zip(before, model.get_weights()))
print("many" if changed > 1000 else changed)
PYTHON

for backend in tensorflow jax; do
  finding_check "keras 3.15.1, $backend: weights of 8464 that evaluate() has changed" \
    "$(KERAS_BACKEND=$backend TF_CPP_MIN_LOG_LEVEL=3 "$python" "$finding_folder/swap.py" 2>/dev/null)" \
    "$([[ $backend == tensorflow ]] && echo many || echo 0)"
done
