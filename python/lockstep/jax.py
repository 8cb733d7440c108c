"""JAX and optax: the script keeps its loop, its `jit` and its optax optimizer. docs/guides/jax.md has an example.

JAX's arrays never change, and the session's memory does with each update. So `job.params` is a copy, one for each round. Within an
update nobody else sees the arrays: parameters, gradient and state are read in place where JAX takes memory of that alignment.
Gradients of a run are added to the session's memory out of JAX's own.
"""

import hashlib
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from lockstep import _errors, _session
from lockstep._errors import UsageError
from lockstep._session import Work

try:
    import jax
    import jax.numpy as jnp
except ModuleNotFoundError as error:
    if error.name != "jax":  # it is there, and broken
        raise
    _errors.end_with_one_line()
    raise UsageError("lockstep.jax is for JAX, and this Python has no jax: pip install jax optax") from None

import numpy as np  # which comes with jax

from lockstep import _kept, _loop

Batch = _loop.Batch
Evaluate = Callable[[Any, Batch], tuple[Any, Any]]

_NAME = "optimizer state"


def init(
    params: Any,
    optimizer: Any,
    *,
    samples: int,
    global_batch: int,
    epochs: int,
    units: int | None = None,
    test_samples: int = 0,
    evaluate: Evaluate | None = None,
    seed: int = 1,
    digest: str = "",
    run_dir: str | None = None,
    resume: bool | Literal["auto"] = False,
    settings: Mapping[str, object] | None = None,
) -> "Job":
    """Joins the job that `lockstep run` has started, or begins a job of one worker, with these parameters: a pytree of float32.

    `optimizer`: of optax, or any object with the same init and update. All workers make each update, so all hold its state.
    `samples`: how many the data set has. `global_batch`: samples of one update, of all workers together. `epochs`: passes over the
    job. `units`: pieces of a global batch; each is a batch of the loop, on one worker or another. Without it as many as the policy
    can use.
    `evaluate`: a function of parameters and a batch of test samples, of which there are `test_samples`. It returns the sum of their
    losses and how many are right, both with batch.weights.
    `seed`: of the order of the samples. `digest`: a text that must be the same on all workers, as a hash of the data.
    `run_dir`, `resume`, `settings`: as of lockstep.init.

    Workers begin with the parameters of worker 0.
    """
    _errors.end_with_one_line()
    _loop.check_counts(samples=samples, global_batch=global_batch, epochs=epochs, units=units, test_samples=test_samples or None)
    if (evaluate is None) != (test_samples == 0):
        raise UsageError("evaluate= and test_samples= go together: a function of (params, batch), and a number of test samples")
    if not 0 <= seed < 1 << 63:
        raise UsageError(f"seed: {seed} is not a whole number from 0 to 2^63 - 1")
    job = Job(params, optimizer, evaluate, run_dir=run_dir, resume=resume, settings=settings)
    said = {"job.seed": seed, "job.global_batch": global_batch, "job.epochs": epochs}
    job._join(said | ({} if units is None else {"job.units": units}), samples, test_samples, epochs, digest)
    return job


class Job(_loop.Loop):
    """A job that this process is a worker of, as `init` returns it. Each pass over it is an epoch of batches."""

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        evaluate: Evaluate | None,
        *,
        run_dir: str | None,
        resume: bool | Literal["auto"],
        settings: Mapping[str, object] | None,
    ) -> None:
        super().__init__(run_dir=run_dir, resume=resume, settings=settings)
        self._leaves = _Leaves(params)
        self._updates = _Updates(optimizer, self._leaves)
        self._evaluates = evaluate
        self._params = params
        self._of: tuple[int, int] | None = None  # the round and the place that they are a copy of

    @property
    def params(self) -> Any:
        """Of the batch in hand, at an epoch's end those of that, and after the last epoch those that the job has ended with. They
        stay as they are."""
        return self._params

    def step(self, grads: Any, loss: Any, *, weight: int | None = None) -> None:
        """Ends the batch in hand. `grads`, `loss`: of the mean over its samples, or over so many tokens, pixels or whatever, if
        `weight` says so: then for each batch of the job."""
        batch = self._batch
        if batch is None:
            raise UsageError("job.step is for the batch in hand, once: for batch in job: ... job.step(grads, loss)")
        if weight is not None and not (isinstance(weight, int) and 0 <= weight <= 2**31):
            raise UsageError(f"weight: {weight!r} is not a whole number from 0 to 2^31: int(tokens), or int(round(1000 * weight))")
        if not batch._weighed and weight is None:
            raise UsageError(
                f"this batch has {len(batch)} samples and {len(batch.indices) - len(batch)} of padding, which the loss takes for "
                "samples: write jnp.average(losses, weights=batch.weights)"
            )
        if np.shape(loss) != ():
            raise UsageError(f"the loss has the shape {np.shape(loss)}: job.step wants the mean, one number")
        count = len(batch) if weight is None else weight
        given = self._leaves.checked(grads)
        value = float(loss)
        self._leaves.add(given, self._floats(self._work.gradient), count)
        self._done(value * count, weight)

    # --- what the loop asks

    def _join(self, settings: Mapping[str, object], samples: int, test_samples: int, epochs: int, digest: str) -> None:
        self._begin(
            tensors=[*self._leaves.tensors, _session.Tensor(_NAME, (self._updates.extra,))],
            initial=np.concatenate([*self._leaves.flat(self._params), np.zeros(self._updates.extra, np.float32)]),
            digest=f"{samples} samples {digest}".strip() + f"; updates by the optimizer {self._updates.digest}",
            state_tensors=self._updates.state_tensors,
            samples=samples,
            test_samples=test_samples,
            epochs=epochs,
            settings=settings,
        )

    def _use(self, work: Work) -> None:
        if self._of != (work.round, work.parameters):
            self._params = self._leaves.copied(self._floats(work.parameters))
            self._of = work.round, work.parameters

    def _make_update(self, work: Work) -> None:
        state = self._floats(work.state, state=True) if work.state else np.zeros(0, np.float32)
        self._updates.make(self._floats(work.update), self._floats(work.gradient), state, work.learning_rate * work.fraction)

    def _evaluate(self, work: Work, batch: Batch) -> tuple[float, int]:
        if self._evaluates is None:
            return 0.0, 0
        loss, right = self._evaluates(self._leaves.copied(self._floats(work.parameters)), batch)
        return float(loss), round(float(right))


class _Leaves:
    """The parameters as a pytree, and where its leaves lie in the session's memory, one behind the other."""

    def __init__(self, params: Any) -> None:
        found, self.tree = jax.tree_util.tree_flatten_with_path(params)
        if not found:
            raise UsageError("params has no arrays: lockstep.jax.init wants a pytree of them")
        names = [jax.tree_util.keystr(path, simple=True, separator=".") or "params" for path, _ in found]
        if len(set(names)) < len(names) or _NAME in names:
            names = [jax.tree_util.keystr(path) for path, _ in found]
        for name, (_, leaf) in zip(names, found, strict=True):
            if getattr(leaf, "dtype", None) != np.float32:
                raise UsageError(
                    f"params: {name} is {getattr(leaf, 'dtype', type(leaf).__name__)} and not float32: keep the parameters in "
                    "float32, cast them in the loss, and keep what is not trained out of params"
                )
            if not getattr(leaf, "is_fully_addressable", True):
                raise UsageError(f"params: {name} is spread over several processes: each worker of a job has all parameters")
        self.names = names
        self.shapes = [tuple(leaf.shape) for _, leaf in found]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.count = sum(self.sizes)
        self.tensors = [_session.Tensor(name, shape) for name, shape in zip(names, self.shapes, strict=True)]
        self._where = [getattr(leaf, "sharding", None) for _, leaf in found]

    def flat(self, tree: Any) -> list[Any]:
        """The leaves as vectors of NumPy."""
        return [np.asarray(leaf, np.float32).reshape(-1) for leaf in jax.tree.leaves(tree)]

    def checked(self, grads: Any) -> list[Any]:
        """The leaves of a tree that is like that of the parameters."""
        leaves, tree = jax.tree.flatten(grads)
        if tree != self.tree:
            raise UsageError(f"grads is another tree than params, {tree} and {self.tree}: job.step(grads, loss), in this order")
        for name, shape, leaf in zip(self.names, self.shapes, leaves, strict=True):
            if np.shape(leaf) != shape:
                raise UsageError(f"grads: {name} has the shape {np.shape(leaf)}, and the parameter {shape}")
        return list(leaves)

    def cut(self, floats: Any) -> list[Any]:
        """Views of the session's memory, in the leaves' shapes."""
        ends = np.cumsum(self.sizes)
        return [floats[end - size : end].reshape(shape) for end, size, shape in zip(ends, self.sizes, self.shapes, strict=True)]

    def view(self, floats: Any) -> Any:
        return jax.tree.unflatten(self.tree, self.cut(floats))

    def copied(self, floats: Any) -> Any:
        """Arrays of JAX, where the script's own were. Each is of memory that nobody writes to."""
        leaves = [jax.device_put(leaf.copy(), where) for leaf, where in zip(self.cut(floats), self._where, strict=True)]
        return jax.tree.unflatten(self.tree, leaves)

    def add(self, leaves: list[Any], floats: Any, factor: int) -> None:
        for view, leaf in zip(self.cut(floats), leaves, strict=True):
            view[...] += np.asarray(leaf, np.float32) * np.float32(factor)

    def store(self, tree: Any, floats: Any) -> None:
        for view, leaf in zip(self.cut(floats), jax.tree.leaves(tree), strict=True):
            view[...] = np.asarray(leaf)


class _Updates:
    """The optimizer as the maker of the job's updates.

    Its state lies in the session's memory. The first value of the extra tensor is 1 once there is a state.
    """

    def __init__(self, optimizer: Any, leaves: _Leaves) -> None:
        if not callable(getattr(optimizer, "init", None)) or not callable(getattr(optimizer, "update", None)):
            raise UsageError(f"optimizer: {type(optimizer).__name__} has no init and update as those of optax have")
        self._optimizer, self._leaves = optimizer, leaves
        self._keys: dict[int, Any] = {}  # leaves of the state that are random keys, and of which kind
        self._step = jax.jit(self._plain_step)
        shown = jax.tree.unflatten(leaves.tree, [jax.ShapeDtypeStruct(shape, np.float32) for shape in leaves.shapes])
        state = jax.eval_shape(optimizer.init, shown)
        factor = jax.ShapeDtypeStruct((), np.float32)
        try:
            traced, after = jax.make_jaxpr(self._stepped, return_shape=True)(shown, shown, state, factor)
        except TypeError as error:
            raise UsageError(
                "the optimizer's update wants more than (grads, state, params), and a job's updates know nothing else: "
                f"{str(error).splitlines()[0]}"
            ) from None
        self._tree = jax.tree.structure(state)
        jax.eval_shape(self._note_keys, state)
        kinds = [[(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)] for tree in (state, after[1])]
        if jax.tree.structure(after[1]) != self._tree or kinds[0] != kinds[1]:
            raise UsageError("the optimizer's state has other shapes or types after an update than before: it must keep them")
        constants = b"".join(np.asarray(constant).tobytes() for constant in traced.consts)
        text = re.sub(r"0x[0-9a-f]+", "", str(traced.jaxpr)).encode()
        self.digest = hashlib.sha256(text + constants).hexdigest()[:16]
        plain = jax.eval_shape(self._plain, state)
        self._kept = _kept.Kept([(leaf.shape, leaf.dtype) for leaf in plain], leaves.count, ahead=1)
        self.state_tensors, self.extra = self._kept.state_tensors, self._kept.extra

    def _stepped(self, params: Any, grads: Any, state: Any, factor: Any) -> tuple[Any, Any]:
        updates, state = self._optimizer.update(grads, state, params)
        return jax.tree.map(lambda p, u: (p + factor * u).astype(p.dtype), params, updates), state

    def _note_keys(self, state: Any) -> None:
        leaves = enumerate(jax.tree.leaves(state))
        self._keys = {i: jax.random.key_impl(leaf) for i, leaf in leaves if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)}

    def _plain(self, state: Any) -> list[Any]:
        """The leaves of the state as arrays of numbers."""
        leaves = jax.tree.leaves(state)
        return [jax.random.key_data(leaf) if i in self._keys else leaf for i, leaf in enumerate(leaves)]

    def _plain_step(self, params: Any, grads: Any, plain: list[Any], factor: Any) -> tuple[Any, list[Any]]:
        leaves = [jax.random.wrap_key_data(a, impl=self._keys[i]) if i in self._keys else a for i, a in enumerate(plain)]
        params, state = self._stepped(params, grads, jax.tree.unflatten(self._tree, leaves), factor)
        return params, self._plain(state)

    def make(self, params: Any, gradient: Any, state: Any, factor: float) -> None:
        """In the session's memory."""
        extra = params[self._leaves.count :]
        before = jax.tree.map(jnp.asarray, self._leaves.view(params))
        kept = self._plain(self._optimizer.init(before)) if extra[0] == 0 else self._kept.read(extra, state)
        after = jax.block_until_ready(self._step(before, self._leaves.view(gradient), kept, np.float32(factor)))
        del before, kept
        self._leaves.store(after[0], params)
        self._kept.write(after[1], extra, state)
        extra[0] = 1
