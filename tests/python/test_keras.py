"""lockstep.keras: workers find what Keras' own fit finds, each sample counts once, and what a script can do wrong is one line."""

import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import frameworks  # noqa: E402
import package  # noqa: E402
from package import HERE, harness  # noqa: E402

WORKER = HERE / "keras_worker.py"
WHOLE_STEPS = {"settings": {"optimizer.linear_scaling": False}}
BACKENDS = {}  # and an interpreter for each
# Keras sums the gradients of a batch in one go, a job those of its units: their last bits differ. Adam makes more of that where a
# gradient is near 0.
DELTA = 2e-5


class KerasTest(frameworks.FrameworkTest):
    backend = None

    def setUp(self):
        super().setUp()
        self.be(self.backend)

    def be(self, backend):
        """A backend of Keras that the scripts have from here on; None: the first one that there is."""
        name = backend or next(iter(BACKENDS))
        self.python = BACKENDS[name]
        self.environment = {"KERAS_BACKEND": name, "TF_CPP_MIN_LOG_LEVEL": "3"}
        return name

    def order(self, out, samples):
        """The samples of each committed round, by epochs, by where the batches lay in them."""
        at = {}
        for epoch, position, *found in (map(int, line.split()) for line in re.findall(r"seen ([\d ]+)", out)):
            for i, sample in enumerate(found):
                self.assertEqual(at.setdefault((epoch, position + i), sample), sample)
        epochs = {}
        for line in self.rounds():
            epochs.setdefault(line["epoch"], []).append(
                [at[line["epoch"], i] for part in line["contributors"] for first, end in part["ranges"] for i in range(first, end)])
        for epoch in epochs:
            self.assertEqual(sorted(at[epoch, i] for i in range(samples)), list(range(samples)))
        return list(epochs.values())

    def values(self, out):
        return [json.loads(found) for found in re.findall(r"values (\[.*\])", out)]

    def histories(self, out):
        found = re.findall(r"history (\{.*\}) (\[.*\])", out)
        return [json.loads(history) for history, _ in found], [json.loads(epochs) for _, epochs in found]

    def assert_as_alone(self, out, said, samples=128, delta=DELTA):
        alone = self.alone(WORKER, "alone", json.dumps(said | {"order": self.order(out, samples)})).stdout
        (wanted,) = self.values(alone)
        for found in self.values(out):
            for mine, theirs in zip(found, wanted, strict=True):
                self.assertAlmostEqual(mine, theirs, delta=delta)
        ((history,), epochs) = self.histories(alone)
        for found, its_epochs in zip(*self.histories(out), strict=True):  # one that has joined later has the last ones
            self.assertEqual((set(found), its_epochs), (set(history), epochs[0][-len(its_epochs) :]))
            for name, numbers in history.items():
                for mine, theirs in zip(found[name], numbers[-len(its_epochs) :], strict=True):
                    self.assertAlmostEqual(mine, theirs, delta=10 * delta, msg=name)


class EachBackendTest(KerasTest):
    def test_workers_find_what_keras_finds(self):
        said = {"validates": True, "callbacks": ["rates"], "weighted": True, "samples": 120, "fit": WHOLE_STEPS}
        for name in BACKENDS:
            with self.subTest(name):
                self.be(name)
                out = self.job(2, "--policy", "full", WORKER, "job", json.dumps(said))
                self.check(out, 120, 2)
                self.assert_as_alone(out, said, 120)
                has_torch = "torch" if name == "torch" else ""
                self.assertEqual(re.findall(r"optimizer (\d+) early False ?(\w*)", out), [("12", has_torch)] * 2, out)

    def test_a_mask_on_the_output_counts_steps(self):
        """Units of two sequences, of which some have no step at all: each counts as often as it has steps."""
        said = {"model": "masked", "units": 16, "validates": True, "optimizer": "plain", "fit": WHOLE_STEPS}
        for name in BACKENDS:
            with self.subTest(name):
                self.be(name)
                out = self.job(2, *frameworks.SLOW, WORKER, "job", json.dumps(said))
                self.check(out, 128, 2)
                self.assert_as_alone(out, said)

    def test_a_slow_worker_and_a_killed_one(self):
        said = {"optimizer": "plain", "samples": 384, "fit": WHOLE_STEPS, "epochs": 6}
        for name in BACKENDS:
            with self.subTest(name):
                self.be(name)
                out = self.job(3, *frameworks.SLOW, WORKER, "job", json.dumps(said), kill=2, after=20)
                self.check(out, 384, 2)
                self.assertTrue(any(line["moved"] for line in self.rounds()), "nothing has moved")
                self.assert_as_alone(out, said, 384)

    def test_a_job_of_one_with_optimizers_of_all_kinds_of_state(self):
        for name in BACKENDS:
            with self.subTest(name):
                self.be(name)
                out = self.alone(WORKER, "optimizers", "{}").stdout
                found = re.findall(r"^(\w+) (\d+) (\d+) (\S+)$", out, re.MULTILINE)
                self.assertEqual(len(found), 11, out)
                for optimizer, mine, theirs, apart in found:
                    self.assertEqual(mine, theirs, optimizer)
                    self.assertLess(float(apart), DELTA, optimizer)


class OneBackendTest(KerasTest):
    def test_dropout_and_running_statistics_do_not_depend_on_who_computes(self):
        for kind in ("dropout", "norm"):
            with self.subTest(kind):
                said = json.dumps({"model": kind, "units": 8, "optimizer": "plain"})
                found = []
                for workers in (1, 3):
                    out = self.job(workers, "--policy", "full", WORKER, "job", said)
                    self.check(out, 128, workers)
                    found += self.values(out)
                for values in found:
                    for mine, theirs in zip(values, found[0], strict=True):
                        self.assertAlmostEqual(mine, theirs, delta=DELTA)

    def test_callbacks_decide_alike_and_one_worker_writes(self):
        said = {"validates": True, "callbacks": ["plateau", "csv", "checkpoint"], "epochs": 4, "function": True, "weighted": True}
        out = self.job(2, WORKER, "job", json.dumps(said))
        self.check(out, 128, 2)
        self.assertEqual((self.folder / "log.csv").read_text().splitlines()[0].split(",")[0], "epoch")
        self.assertEqual([line.split(",")[0] for line in (self.folder / "log.csv").read_text().splitlines()[1:]], list("0123"))
        self.assertEqual(len(list(self.folder.glob("epoch-*.weights.h5"))), 4)
        self.assertEqual(self.histories(out)[0][0]["learning_rate"], self.histories(out)[0][1]["learning_rate"])
        self.assert_as_alone(out, said)

    def test_early_stopping_ends_the_job_for_all(self):
        out = self.job(3, WORKER, "job", json.dumps({"callbacks": ["stop"], "epochs": 30, "optimizer": "plain"}))
        self.check(out, 128, 3)
        self.assertEqual((len(self.rounds()), self.summary()["status"]), (3 * 4, "completed"))
        self.assertEqual(len(re.findall("early True", out)), 3)
        values = self.values(out)
        self.assertEqual(values, [values[0]] * 3)  # the best weights, of the first epoch

    def test_rates_that_differ_by_worker_are_one_rate(self):
        out = self.job(3, WORKER, "job", json.dumps({"callbacks": ["own"], "optimizer": "plain"}))
        self.check(out, 128, 3)

    def test_a_worker_that_takes_a_killed_ones_place_has_its_rate_and_metrics(self):
        said = {"optimizer": "plain", "fit": WHOLE_STEPS, "samples": 384, "epochs": 10, "callbacks": ["rates"]}
        out = self.job(3, "--set", "emulate.unit_time=10ms", "--restart-workers", 1, WORKER, "job", json.dumps(said), kill=1)
        self.check(out, 384, 3)
        self.assertIn("worker 1 (incarnation 2) joins", out)
        self.assert_as_alone(out, said, 384)

    def test_a_worker_that_raises_says_why_it_leaves(self):
        out = self.job(2, WORKER, "job", json.dumps({"raises": [1, 1]}))
        self.check(out, 128, 1)
        self.assertIn("worker 1 is out: it leaves: ValueError: of the script", out)

    def test_a_job_that_is_interrupted_goes_on_with_state_rate_and_metrics(self):
        said = {"samples": 512, "epochs": 4, "callbacks": ["rates"], "optimizer": "adamw"}
        plain = self.job(2, "--policy", "full", WORKER, "job", json.dumps(said))
        resumed = self.interrupted_and_resumed(20, WORKER, "job", json.dumps(said))
        (first, *_), (epochs, *_) = self.histories(plain)
        for found, its_epochs in zip(*self.histories(resumed), strict=True):
            self.assertEqual(its_epochs, epochs[1:])
            self.assertEqual(found, {name: numbers[1:] for name, numbers in first.items()})


BEGIN = """
import json, os, sys
import keras, numpy as np, lockstep.keras
x, y = np.arange(64.0).reshape(16, 4) / 64, np.arange(16) % 2
def made(*layers, optimizer="sgd", loss="mse", **more):
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
    model.compile(optimizer, loss, **more)
    return model
def fit(model=None, x=x, y=y, global_batch=8, **more):
    return lockstep.keras.fit(model or made(), x, y, global_batch=global_batch, verbose=0, **more)
class Own(keras.Model):
    def train_step(self, *data):
        return {}
own = Own()
own.compile("sgd", "mse")
class Mine(keras.Model):
    def compute_loss(self, *data, **more):
        return super().compute_loss(*data, **more)
class Loss(keras.losses.MeanSquaredError):
    def __call__(self, *data, **more):
        return super().__call__(*data, **more)
def masked(loss="mse", kind=keras.Model, adds=None, outputs=1):
    given = keras.Input((4, 1))
    steps = keras.layers.Dense(2, activity_regularizer=adds)(keras.layers.Masking()(given))
    model = kind(given, [steps] * outputs if outputs > 1 else steps)
    model.compile("sgd", [loss] * outputs if outputs > 1 else loss)
    return fit(model, x[..., None], y if outputs == 1 else [y] * outputs)
class Sets(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.set_weights([w * 2 for w in self.model.get_weights()])
"""
REFUSED = (
    ("fit(global_batch=0)", "global_batch: 0 is not a whole number from 1 on"),
    ("fit(epochs=1.5)", "epochs: 1.5 is not"),
    ("fit(batch_size=4)", "batch_size is for model.fit: global_batch= is the number of samples"),
    ("fit(class_weight={0: 1})", "class_weight is for model.fit: give sample_weight="),
    ("fit(3)", "int is no keras.Model"),
    ("fit(keras.Sequential([keras.layers.Dense(1)]))", "model.compile(optimizer=..., loss=...) before"),
    ("fit(own)", "Own has a train_step of its own"),
    ("fit(made(optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())))", "set_dtype_policy('mixed_bfloat16')"),
    ("fit(made(optimizer=keras.optimizers.SGD(loss_scale_factor=8.0)))", "loss_scale_factor of the optimizer is for float16"),
    ("fit(made(steps_per_execution=2))", "compile(steps_per_execution=2): leave it out"),
    ("fit(made(loss=keras.losses.MeanSquaredError(reduction='sum')))", "has reduction='sum', and a job takes means"),
    ("fit(made(keras.layers.Dense(2, dtype='float64')))", "is float64 and not float32"),
    ("masked(outputs=2)", "a mask is on one of several outputs: a job cannot tell of how many steps"),
    ("masked(adds='l2')", "a mask is on the output of a model whose layers add losses"),
    ("masked(kind=Mine)", "a mask is on the output, and Mine has a compute_loss of its own"),
    ("masked(loss=Loss())", "a mask is on the output, and the loss has a __call__ of its own"),
    ("fit(callbacks=[keras.callbacks.BackupAndRestore('b')])", "BackupAndRestore: leave it out"),
    ("fit(callbacks=[Sets()], epochs=2)", "a callback has changed sequential"),
    ("fit(x=x[:3])", "have 3 and 16 samples: give arrays of one length"),
    ("fit(x=[1.0, 2.0])", "x has a float where an array is expected: give arrays, or a function"),
    ("fit(x=((x, y) for _ in range(3)))", "x is a generator, which makes batches, and a job shares out samples"),
    ("fit(x=lambda i: (x[i], y[i]))", "x is a function: it returns y and weights"),
    ("fit(x=lambda i: (x[:3], y[i]), y=None, samples=16)", "the function returns a x that is no array of 1 samples"),
    ("fit(validation_split=1.0)", "validation_split: 1.0 of 16 samples leaves none to train on"),
    ("fit(settings={'exchange.dtype': 'bf16'})", "exchange.dtype = bf16 would round Keras' metrics"),
    ("fit(settings={'optimizer.clip': 1.0})", "and clip by clipnorm= of the optimizer"),
    ("fit(settings={'policy.name': 'async'})", "async"),
    ("fit(resume=True)", "resume needs the run_dir"))
REFUSALS = """
for script in json.loads(sys.argv[1]):
    try:
        exec(script)
        print("nothing", flush=True)
    except lockstep.UsageError as error:
        print(error, flush=True)
"""


class MisuseTest(KerasTest):
    def test_what_is_refused(self):
        done = self.alone("-c", BEGIN + REFUSALS, json.dumps([script for script, _ in REFUSED]))
        for (script, message), said in zip(REFUSED, done.stdout.splitlines(), strict=True):
            with self.subTest(script):
                self.assertIn(message, said)

    def refused(self, script, message, **more):
        done = package.run("-c", script, python=self.python, **(self.environment | more))
        self.assertEqual((done.returncode, done.stdout), (2, ""), done)
        self.assertRegex(done.stderr, r"(\A|\n)lockstep: [^\n]+\n\Z")
        self.assertIn(message, done.stderr)

    def test_other_launchers_and_what_is_missing(self):
        self.refused(BEGIN + "fit()", "torchrun has started 2 workers of this script: use lockstep run -n 2", WORLD_SIZE="2", RANK="0",
                     MASTER_ADDR="127.0.0.1", MASTER_PORT="29000")
        self.refused("import sys; sys.modules['keras'] = None; import lockstep.keras", "this Python has no keras: pip install keras")
        self.refused("import sys; sys.modules['tensorflow'] = None; import lockstep.keras", "set KERAS_BACKEND to torch, jax or tensorflow",
                     KERAS_BACKEND="tensorflow")

    def test_workers_that_differ_are_told_apart(self):
        rank = "int(os.environ['LOCKSTEP_WORKER'])"
        for differs, message in ((f"fit(made(optimizer=keras.optimizers.SGD(0.1 + {rank})))", "updates by the optimizer"),
                                 (f"keras.utils.set_random_seed({rank}); fit(made(keras.layers.Dense(3, trainable=False)))", "weights that are not trained")):
            with self.subTest(message):
                script = self.folder / "differs.py"
                script.write_text(BEGIN + differs)
                self.assertRegex(self.job(2, script, status=1), rf"worker \d +\| lockstep: .*{message}")

    def test_a_second_fit(self):
        script = self.folder / "twice.py"
        script.write_text(BEGIN + "fit(); fit()")
        self.assertIn("lockstep: lockstep.keras.fit was called twice", self.job(2, script, status=1))
        self.assertEqual(self.alone("-c", BEGIN + "fit(); fit(); print('both')").stdout, "both\n")


if __name__ == "__main__":
    for backend in ("torch", "jax", "tensorflow"):
        found = frameworks.find_python("keras", variable="LOCKSTEP_KERAS_PYTHON", KERAS_BACKEND=backend)
        if found:
            BACKENDS[backend] = found
    if not BACKENDS:
        frameworks.skip("keras and a backend of it", "LOCKSTEP_KERAS_PYTHON")
    harness.main()
