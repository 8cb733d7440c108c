"""A worker with Keras: dense layers, on data that are drawn from a seed. usage: keras_worker.py alone|job|optimizers JSON

The JSON: {"optimizer": "adam", "epochs": 3, "batch": 32, "samples": 128, "units": null, "model": "plain", "weighted": false,
"validates": false, "function": false, "callbacks": [...], "fit": {...}, "raises": [WORKER, EPOCH]}. "alone" is Keras' own fit without
Lockstep, on the batches of "order". "job" prints "seen EPOCH POSITION SAMPLES" of each batch, and at the end "values" (all weights),
"history" and "parameters" (their digest). "optimizers" is a job of one with each of them, and then Keras alone; it prints how far they
are apart.
"""

import json
import sys
import tempfile

import keras
import numpy as np

how, said = sys.argv[1], json.loads(sys.argv[2])
SAMPLES, EPOCHS, BATCH = said.get("samples", 128), said.get("epochs", 3), said.get("batch", 32)
SCHEDULE = keras.optimizers.schedules.CosineDecay(0.3, 12)
OPTIMIZERS = {
    "plain": lambda: keras.optimizers.SGD(0.1),
    "sgd": lambda: keras.optimizers.SGD(SCHEDULE, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.02, clipnorm=0.5),
    "adamw": lambda: keras.optimizers.AdamW(0.02, weight_decay=0.1, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=5),
    "amsgrad": lambda: keras.optimizers.Adam(0.02, amsgrad=True, clipvalue=0.01),
    "adafactor": lambda: keras.optimizers.Adafactor(0.02),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "accumulated": lambda: keras.optimizers.RMSprop(0.01, gradient_accumulation_steps=2),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1, l1_regularization_strength=0.001),
    "lamb": lambda: keras.optimizers.Lamb(0.01),
    "nadam": lambda: keras.optimizers.Nadam(0.01, global_clipnorm=0.3),
}
draw = np.random.default_rng(1)
x = draw.standard_normal((SAMPLES, 12))
y = (np.sin(3 * x[:, :3]).sum(1) > 0).astype(np.int32)
weights = np.where(np.arange(SAMPLES) % 3 == 0, 2.0, 0.5) if said.get("weighted") else None
if said.get("model") == "masked":  # sequences of 0 to 12 steps, each with a class
    lengths = np.maximum(0, draw.integers(-4, 13, SAMPLES))
    y = (np.sin(3 * x) + np.roll(x, 1, axis=1) > 0).astype(np.int32)
    x = np.where(np.arange(12) < lengths[:, None], x, 0)[..., None]
validation = {"validation_data": (x[: SAMPLES // 2], y[: SAMPLES // 2])} if said.get("validates") else {}


def layers(kind):
    if kind == "masked":
        yield keras.layers.Masking()
        yield keras.layers.GRU(8, return_sequences=True)
        yield keras.layers.Dense(2, activation="softmax", kernel_regularizer=keras.regularizers.L2(0.001))
        return
    near = {"kernel_regularizer": keras.regularizers.L2(0.001), "kernel_constraint": keras.constraints.MaxNorm(2)}
    yield keras.layers.Dense(16, activation="tanh", **near)
    if kind == "norm":
        yield keras.layers.BatchNormalization()
    if kind == "dropout":
        yield keras.layers.Dropout(0.3)
    yield keras.layers.Dense(2, activation="softmax", activity_regularizer=keras.regularizers.L2(0.01))


def compiled(optimizer):
    keras.utils.set_random_seed(3)
    made = keras.Sequential(layers(said.get("model", "plain")))
    made.compile(OPTIMIZERS[optimizer](), "sparse_categorical_crossentropy", metrics=["accuracy"], weighted_metrics=["accuracy"])
    return made


def batch(indices):
    return (x[indices], y[indices]) if weights is None else (x[indices], y[indices], weights[indices])


def fit_alone(made, order):
    """On the batches of a job, of all epochs one after the other."""
    if len({len(epoch) for epoch in order}) > 1:  # a round that was cut leaves its epoch one more
        assert not callbacks, "they would begin anew in each epoch"
        parts = [made.fit((batch(np.array(at)) for at in epoch), initial_epoch=i, epochs=i + 1, steps_per_epoch=len(epoch),
                          verbose=0, **validation) for i, epoch in enumerate(order)]
        for part in parts[:-1][::-1]:
            parts[-1].epoch[:0] = part.epoch
            for name, found in part.history.items():
                parts[-1].history[name][:0] = found
        return parts[-1]
    batches = (batch(np.array(at)) for epoch in order for at in epoch)
    return made.fit(batches, epochs=len(order), steps_per_epoch=len(order[0]), callbacks=callbacks, verbose=0, **validation)


def values(made):
    return [float(v) for w in made.get_weights() for v in w.reshape(-1)]


class OwnRates(keras.callbacks.Callback):
    """As no script should have them."""

    def on_train_batch_begin(self, step, logs=None):
        self.model.optimizer.learning_rate = 0.1 / (1 + step + self.params["rank"])


CALLBACKS = {
    "plateau": lambda: keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=10, cooldown=0),
    "rates": lambda: keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.7),
    "own": OwnRates,
    "stop": lambda: keras.callbacks.EarlyStopping("loss", patience=2, min_delta=10, restore_best_weights=True),
    "checkpoint": lambda: keras.callbacks.ModelCheckpoint("epoch-{epoch}.weights.h5", save_weights_only=True),
    "csv": lambda: keras.callbacks.CSVLogger("log.csv"),
    "swap": lambda: keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
}
callbacks = [CALLBACKS[name]() for name in said.get("callbacks", [])]


def show(made, history):
    print("values", json.dumps(values(made)), flush=True)
    print("history", json.dumps(history.history), json.dumps(history.epoch), flush=True)


if how == "alone":
    model = compiled(said.get("optimizer", "adam"))
    show(model, fit_alone(model, said["order"]))
    sys.exit()

import lockstep.keras  # noqa: E402


class Watch(keras.callbacks.Callback):
    """Callbacks come in the order of Keras, with metrics, and one worker speaks."""

    def on_train_begin(self, logs=None):
        self.step = self.epoch = None
        assert self.params["rank"] < self.params["workers"] and (self.params["rank"] == 0 or self.params["verbose"] == 0)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        if said.get("raises") == [self.params["rank"], epoch]:
            raise ValueError("of the script")

    def on_train_batch_begin(self, step, logs=None):
        assert self.step is None and self.epoch is not None
        self.step = step

    def on_train_batch_end(self, step, logs=None):
        assert self.step == step and logs["loss"] > 0, (self.step, step, logs)
        self.step = None

    def on_epoch_end(self, epoch, logs=None):
        assert self.epoch == epoch and self.step is None and 0 < logs["accuracy"] <= 1, logs


done = []


class Job(lockstep.keras._Job):
    """Shows which samples each batch has, and where they lie in its epoch."""

    def _train(self, batch):
        super()._train(batch)
        at = self._work.ranges[0][0]
        samples = batch.indices[: len(batch)].tolist() if self._shuffles else range(at, at + len(batch))
        order.setdefault(batch.epoch, {}).setdefault(batch.round, []).extend(samples)
        if how == "job":
            print("seen", batch.epoch, at, *samples, flush=True)

    def close(self):
        super().close()
        done.append(self)


lockstep.keras._Job = Job
order = {}
if how == "optimizers":
    for name in OPTIMIZERS:
        order.clear()
        mine, theirs = compiled(name), compiled(name)
        with tempfile.TemporaryDirectory() as folder:
            lockstep.keras.fit(mine, x, y, epochs=EPOCHS, verbose=0, run_dir=folder)
        fit_alone(theirs, [list(rounds.values()) for rounds in order.values()])
        apart = max(abs(a - b) for a, b in zip(values(mine), values(theirs), strict=True))
        print(name, int(mine.optimizer.iterations), int(theirs.optimizer.iterations), apart, flush=True)
    sys.exit()

model = compiled(said.get("optimizer", "adam"))
given = (batch, None) if said.get("function") else (x, y)
more = {"samples": SAMPLES} if said.get("function") else {} if weights is None else {"sample_weight": weights}
history = lockstep.keras.fit(model, *given, global_batch=BATCH, epochs=EPOCHS, units=said.get("units"), seed=5,
                             callbacks=[Watch(), *callbacks], **more, **validation, **said.get("fit", {}))
show(model, history)
print("optimizer", int(model.optimizer.iterations), "early", done[0].ended_early, "torch" if "torch" in sys.modules else "", flush=True)
print("parameters", done[0].params_digest, flush=True)
