"""A worker with JAX: two layers of tanh, on data that are drawn from a seed. usage: jax_worker.py alone|job JSON

The JSON: {"optimizer": "adam", "epochs": 3, "batch": 32, "samples": 128, "units": null, "init": {...}, "raises": [WORKER, ROUND]}. With "alone" it is optax
without Lockstep, on the batches of "order". Prints "seen EPOCH POSITION SAMPLES" of each batch, and at the end "compiled" (how often),
"values" (all parameters), and "parameters" (their digest).
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

how, said = sys.argv[1], json.loads(sys.argv[2])
SAMPLES, EPOCHS, BATCH = said.get("samples", 128), said.get("epochs", 3), said.get("batch", 32)
OPTIMIZERS = {
    "plain": lambda: optax.sgd(0.1),
    "sgd": lambda: optax.sgd(0.3, momentum=0.9),
    "adam": lambda: optax.adam(optax.cosine_decay_schedule(0.02, 12)),
    "chain": lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 0.02, 4, 12))),
    "bfloat16": lambda: optax.adam(0.02, mu_dtype=jnp.bfloat16),
    "lion": lambda: optax.inject_hyperparams(optax.lion)(learning_rate=0.003),
    "adafactor": lambda: optax.adafactor(0.01, min_dim_size_to_factor=8),
    "noise": lambda: optax.chain(optax.add_noise(0.01, 0.5, jax.random.key(3)), optax.sgd(0.1)),
    "lookahead": lambda: optax.contrib.schedule_free_adamw(0.02),
}
optimizer = OPTIMIZERS[said.get("optimizer", "adam")]()
draw = np.random.default_rng(1)
x = draw.standard_normal((SAMPLES, 12), np.float32)
y = (np.sin(3 * x[:, :3]).sum(1) > 0).astype(np.int32)
worker = 0
params = {
    "first": {"w": jnp.asarray(draw.standard_normal((12, 16), np.float32) * 0.3), "b": jnp.zeros(16)},
    "second": [jnp.asarray(draw.standard_normal((16, 2), np.float32) * 0.3), jnp.zeros(2)],
}


compiled = 0


def losses(params, x, y):
    hidden = jnp.tanh(x @ params["first"]["w"] + params["first"]["b"])
    scores = hidden @ params["second"][0] + params["second"][1]
    return optax.softmax_cross_entropy_with_integer_labels(scores, y), scores.argmax(1) == y


@jax.jit
def gradients(params, x, y, weights):
    global compiled
    compiled += 1
    return jax.value_and_grad(lambda params: jnp.average(losses(params, x, y)[0], weights=weights))(params)


def show(tree):
    print("values", json.dumps([float(v) for leaf in jax.tree.leaves(tree) for v in np.asarray(leaf).reshape(-1)]), flush=True)


if how == "alone":
    state = optimizer.init(params)
    for indices in said["order"]:
        loss, grads = gradients(params, x[np.array(indices)], y[np.array(indices)], np.ones(len(indices), np.float32))
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    show(params)
    sys.exit()

import lockstep.jax  # noqa: E402


@jax.jit
def evaluate(params, x, y, weights):
    loss, right = losses(params, x, y)
    return loss @ weights, right @ weights


job = lockstep.jax.init(params, optimizer, samples=SAMPLES, global_batch=BATCH, epochs=EPOCHS, units=said.get("units"), seed=5,
                        test_samples=SAMPLES, evaluate=lambda params, batch: evaluate(params, x[batch.indices], y[batch.indices], batch.weights),
                        **said.get("init", {}))
kept = []
for epoch in range(EPOCHS):
    for batch in job:
        loss, grads = gradients(job.params, x[batch.indices], y[batch.indices], batch.weights)
        print("seen", batch.epoch, job._work.ranges[0][0], *batch.indices[: len(batch)].tolist(), flush=True)
        if said.get("raises") == [job.rank, batch.round]:
            raise ValueError("of the script")
        job.step(grads, loss)
        kept.append((job.params, np.asarray(job.params["first"]["w"]).copy()))
assert all((np.asarray(params["first"]["w"]) == before).all() for params, before in kept), "arrays of JAX have changed"
print("compiled", compiled, "metrics", sorted(job.metrics), flush=True)
show(job.params)
print("parameters", job.params_digest, flush=True)
