"""lockstep.jax: workers find what optax alone finds, each sample counts once, and what a script can do wrong is one line."""

import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import frameworks  # noqa: E402
import package  # noqa: E402
from package import HERE, harness  # noqa: E402

WORKER = HERE / "jax_worker.py"
WHOLE_STEPS = {"settings": {"optimizer.linear_scaling": False}}


class JaxTest(frameworks.FrameworkTest):
    def in_order(self, out, samples):
        """The samples of each committed round, by where the batches lay in their epochs."""
        at = {}
        for epoch, position, *found in (map(int, line.split()) for line in re.findall(r"seen ([\d ]+)", out)):
            for i, sample in enumerate(found):
                self.assertEqual(at.setdefault((epoch, position + i), sample), sample)
        rounds = [[at[line["epoch"], i] for part in line["contributors"] for first, end in part["ranges"] for i in range(first, end)]
                  for line in self.rounds()]
        for epoch in {line["epoch"] for line in self.rounds()}:
            self.assertEqual(sorted(at[epoch, i] for i in range(samples)), list(range(samples)))
        return rounds

    def assert_as_alone(self, out, said, samples=128, delta=1e-6):
        alone = self.alone(WORKER, "alone", json.dumps(said | {"order": self.in_order(out, samples)}))
        (wanted,) = re.findall(r"values (\[.*\])", alone.stdout)
        for found in re.findall(r"values (\[.*\])", out):
            for mine, theirs in zip(json.loads(found), json.loads(wanted), strict=True):
                self.assertAlmostEqual(mine, theirs, delta=delta)


class AsAloneTest(JaxTest):
    def test_workers_find_what_optax_finds(self):
        for workers, said in ((2, {"optimizer": "chain"}), (4, {}), (2, {"samples": 100, "units": 5, "init": WHOLE_STEPS})):
            with self.subTest(workers=workers, **said):
                out = self.job(workers, "--policy", "full", WORKER, "job", json.dumps(said))
                self.check(out, said.get("samples", 128), workers)
                self.assert_as_alone(out, said, said.get("samples", 128))
                self.assertEqual(re.findall(r"compiled (\d+) metrics \['loss'\]", out), ["1"] * workers, out)

    def test_a_job_of_one_with_optimizers_of_all_kinds_of_state(self):
        # XLA keeps more than bfloat16 between the operations of one update, and the interpreter of "alone" does not.
        for optimizer, delta in (("sgd", 1e-6), ("lion", 1e-6), ("adafactor", 1e-6), ("noise", 1e-6), ("lookahead", 1e-6), ("bfloat16", 2e-3)):
            with self.subTest(optimizer):
                self.runs += 1
                self.run_dir = self.folder / f"one-{self.runs}"
                said = {"optimizer": optimizer, "init": {"run_dir": str(self.run_dir)}}
                out = self.alone(WORKER, "job", json.dumps(said)).stdout
                self.check(out, 128, 1)
                self.assert_as_alone(out, said, delta=delta)


class MovesTest(JaxTest):
    def test_work_of_a_slow_worker_moves(self):
        said = {"optimizer": "plain", "init": WHOLE_STEPS, "samples": 512, "epochs": 2}
        out = self.job(4, *frameworks.SLOW, WORKER, "job", json.dumps(said))
        self.check(out, 512, 4)
        self.assertTrue(any(line["moved"] for line in self.rounds()), "nothing has moved")
        self.assert_as_alone(out, said, 512)

    def test_a_killed_worker_and_one_that_takes_its_place(self):
        for restarts, ended in ((0, 2), (1, 3)):
            with self.subTest(restarts=restarts):
                said = {"optimizer": "plain", "init": WHOLE_STEPS, "samples": 512, "epochs": 4 + 8 * restarts}
                out = self.job(3, "--set", "emulate.unit_time=5ms", "--restart-workers", restarts, WORKER, "job", json.dumps(said), kill=1)
                self.check(out, 512, ended)
                self.assert_as_alone(out, said, 512)
                if restarts:
                    self.assertIn("worker 1 (incarnation 2) joins", out)

    def test_a_worker_that_raises_says_why_it_leaves(self):
        out = self.job(2, WORKER, "job", json.dumps({"raises": [1, 3]}))
        self.check(out, 128, 1)
        self.assertIn("worker 1 is out: it leaves: ValueError: of the script", out)

    def test_a_job_that_is_interrupted_goes_on_with_the_optimizers_state(self):
        said = json.dumps({"samples": 512, "epochs": 4})
        self.job(2, "--policy", "full", WORKER, "job", said)
        self.interrupted_and_resumed(5, WORKER, "job", said)


BEGIN = """
import json, sys
import jax, jax.numpy as jnp, numpy as np, optax, lockstep.jax
params = {"w": jnp.ones(4)}
x = jnp.arange(64.0).reshape(16, 4) / 64
gradients = jax.jit(jax.value_and_grad(lambda params, x, weights: jnp.average((x @ params["w"]) ** 2, weights=weights)))
def begin(params=params, optimizer=optax.sgd(0.1), samples=16, global_batch=8, epochs=1, **more):
    return lockstep.jax.init(params, optimizer, samples=samples, global_batch=global_batch, epochs=epochs, **more)
def one(job, batch):
    return gradients(job.params, x[batch.indices], batch.weights)
"""
LOOP = """
job = begin({})
for batch in job:
    loss, grads = one(job, batch)
    job.step(grads, loss)
"""


REFUSED_BY_INIT = (
    ("samples=0", "samples: 0 is not a whole number from 1 on"),
    ("epochs=1.5", "epochs: 1.5 is not"),
    ("test_samples=4", "evaluate= and test_samples= go together"),
    ("params={}", "params has no arrays"),
    ("params={'w': jnp.ones(4), 'steps': 3}", "params: steps is int and not float32"),
    ("params=jnp.ones(4, jnp.bfloat16)", "params: params is bfloat16 and not float32: keep the parameters in float32"),
    ("optimizer=0.1", "optimizer: float has no init and update"),
    ("optimizer=optax.lbfgs()", "the optimizer's update wants more than (grads, state, params)"),
    ("settings={'optimizer.name': 'sgd'}", "optimizer.name is custom here"),
    ("settings={'policy.name': 'async'}", "async"),
    ("resume=True", "resume needs the run_dir"),
    ("resume='yes', run_dir='r'", "neither True nor False nor 'auto'"))
# What a script has instead of job.step(grads, loss).
REFUSED_BY_LOOP = (
    ("pass", "job.step(grads, loss) was not called for this batch"),
    ("break\nlist(job)", "the loop was left before job.step was called for its batch"),
    ("job.step(grads, loss); job.step(grads, loss)", "job.step is for the batch in hand, once"),
    ("job.step(loss, grads)", "grads is another tree than params"),
    ("job.step(grads, grads['w'])", "the loss has the shape (4,): job.step wants the mean, one number"),
    ("job.step({'w': grads['w'][:2]}, loss)", "grads: w has the shape (2,), and the parameter (4,)"),
    ("job.step(grads, loss, weight=0.5)", "weight: 0.5 is not a whole number"),
    ("job.step(grads, loss); job.log({'a': 1})", "job.log is for the batch in hand"),
    ("job.step(grads, loss)\nlist(job)", "the job has 1 epochs, and this is one pass more: give epochs=2"))
REFUSALS = """
for script in json.loads(sys.argv[1]):
    job = None
    try:
        exec(script)
        print("nothing", flush=True)
    except lockstep.UsageError as error:
        print(error, flush=True)
    if job is not None:
        job.close()
"""


class MisuseTest(JaxTest):
    def test_what_is_refused(self):
        cases = [(f"begin({said})", message) for said, message in REFUSED_BY_INIT]
        cases += [(LOOP.format("").replace("job.step(grads, loss)", instead), message) for instead, message in REFUSED_BY_LOOP]
        done = self.alone("-c", BEGIN + REFUSALS, json.dumps([script for script, _ in cases]))
        for (script, message), said in zip(cases, done.stdout.splitlines(), strict=True):
            with self.subTest(script):
                self.assertIn(message, said)

    def refused(self, script, message, **more):
        done = package.run("-c", BEGIN + script, python=self.python, **more)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done)
        self.assertRegex(done.stderr, r"\Alockstep: [^\n]+\n\Z")
        self.assertIn(message, done.stderr)

    def test_padding_that_the_loss_takes_for_samples_is_refused(self):
        self.refused("""
job = begin(units=3)
for batch in job:
    loss, grads = gradients(job.params, x[batch.indices], np.ones(len(batch.indices)))
    job.step(grads, loss)
""", "this batch has 2 samples and 1 of padding, which the loss takes for samples")

    def test_other_launchers_and_a_missing_jax(self):
        self.refused("begin()", "torchrun has started 2 workers of this script: use lockstep run -n 2", WORLD_SIZE="2", RANK="0",
                     MASTER_ADDR="127.0.0.1", MASTER_PORT="29000")
        done = package.run("-c", "import sys; sys.modules['jax'] = None; import lockstep.jax", python=self.python)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done)
        self.assertIn("lockstep: lockstep.jax is for JAX, and this Python has no jax: pip install jax optax\n", done.stderr)

    def test_workers_with_different_optimizers_are_told_apart(self):
        script = self.folder / "differs.py"
        script.write_text(BEGIN + LOOP.format("optimizer=optax.sgd(0.1 if __import__('os').environ['LOCKSTEP_WORKER'] == '0' else 0.2)"))
        out = self.job(3, script, status=2)
        self.assertRegex(out, r"worker 0 +\| lockstep: .*updates by the optimizer")

    def test_the_script_may_leave_its_loop_and_stop(self):
        out = self.alone("-c", BEGIN + """
job = begin(epochs=50)
for epoch in range(50):
    for batch in job:
        loss, grads = one(job, batch)
        job.step(grads, loss)
        job.log({"twice": 2 * loss}) if False else None
    if epoch == 2:
        break
before = np.asarray(job.params["w"]).copy()
assert set(job.metrics) == {"loss"}, job.metrics
job.stop("enough")
assert job.ended_early and list(job) == [] and job.rank == 0 and job.size == 1
print(job.params["w"].tolist() == before.tolist(), job.round >= 4)
""").stdout
        self.assertEqual(out, "True True\n")


if __name__ == "__main__":
    frameworks.FrameworkTest.python = frameworks.python_with("jax", "optax")
    harness.main()
