"""Keras 3: `lockstep.keras.fit(model, x, y)` where `model.fit(x, y)` was. docs/guides/keras.md has an example.

A batch of Keras is a round of the job: callbacks count rounds. A worker computes units of it, each as a batch of its own. Loss,
metrics, validation and callbacks are Keras' own.

The sums of the metrics, running statistics, and a rate that a callback has set travel with the gradients, behind those of the
parameters. So they count exactly as often as the gradient, and an update is a function of the session's memory alone. Workers that
join, that were behind, or that resume have the same as all others.
"""

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from lockstep import _errors, _session
from lockstep._errors import JobFailed, UsageError
from lockstep._session import Kind, Work

try:
    import keras
except ModuleNotFoundError as error:
    missing = str(error.name).partition(".")[0]
    if missing not in ("keras", "tensorflow", "jax", "torch"):  # it is there, and broken
        raise
    _errors.end_with_one_line()
    if missing == "keras":
        raise UsageError("lockstep.keras is for Keras, and this Python has no keras: pip install keras") from None
    raise UsageError(
        f"Keras takes the backend {missing}, and this Python has no {missing}: set KERAS_BACKEND to torch, jax or tensorflow"
    ) from None

import numpy as np  # which comes with Keras

from lockstep import _kept, _keras_checks, _keras_data, _loop
from lockstep._keras_backends import BACKENDS

_UPDATES = "lockstep.update"  # the name of the extra tensor
# Its first places.
_BEGUN = 0  # 1 once there is a state
_EPOCH = 1  # whose metrics these are; of a gradient, its own times the samples
_ROUNDS = 2  # of that epoch so far
_COUNTED = 3  # of a gradient, of how many things the loss is the mean; 0 where these are the samples
_AHEAD = 4
_OF_A_RATE = 4  # places: the rate; of a gradient, samples whose worker sets it, and for them the rate and its two halves
_STOPPED = "Keras has stopped training (model.stop_training)"
_trained: list[bool] = []  # in this process
_ROUNDED = 1e-5  # the error of a swap
_NEAR = 1e-4  # how far a mean of equal rates may be from them


def fit(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    global_batch: int = 32,
    epochs: int = 1,
    samples: int | None = None,
    units: int | None = None,
    shuffle: bool = True,
    sample_weight: Any = None,
    validation_data: Any = None,
    validation_split: float = 0.0,
    validation_batch_size: int | None = None,
    validation_freq: int | Sequence[int] = 1,
    callbacks: Any = None,
    verbose: int | str = "auto",
    seed: int = 1,
    digest: str = "",
    run_dir: str | None = None,
    resume: bool | Literal["auto"] = False,
    settings: Mapping[str, object] | None = None,
    **keras_only: Any,
) -> Any:
    """Trains a compiled model as a worker of the job that `lockstep run` has started, or in a job of one. Returns Keras' History.

    `x`, `y`, `sample_weight`: arrays, or lists or dicts of them, as of `model.fit`. Or `x` is a function of an array of sample
    numbers that returns (x, y) or (x, y, sample_weight), and `samples` says how many there are.
    `global_batch`: samples of one update, of all workers together. `units`: pieces of it; each is a batch of the model, on one
    worker or another. Without it as many as the policy can use.
    `shuffle`, `validation_data`, `validation_split`, `validation_batch_size`, `validation_freq`: as of `model.fit`. Each worker
    does the whole validation.
    `callbacks`: of Keras. Those that write files work on worker 0 alone. In a callback of your own `self.params["rank"]` is the
    worker's number. `verbose`: of worker 0; "auto" is one line an epoch.
    `seed`: of the order of the samples. `digest`: a text that must be the same on all workers, as a hash of the data.
    `run_dir`, `resume`, `settings`: as of lockstep.init.

    Workers begin with the parameters of worker 0.
    """
    _errors.end_with_one_line()
    _keras_checks.refuse_arguments(keras_only)
    _loop.check_counts(global_batch=global_batch, epochs=epochs, samples=samples, units=units)
    if not 0 <= seed < 1 << 63:
        raise UsageError(f"seed: {seed} is not a whole number from 0 to 2^63 - 1")
    if keras.backend.backend() not in BACKENDS:
        raise UsageError(
            f"Keras' backend {keras.backend.backend()} does not train: set KERAS_BACKEND to torch, jax or tensorflow"
        )
    _keras_checks.refuse_model(model)
    listed = _keras_checks.checked_callbacks(callbacks)
    data = _keras_data.Data(x, y, sample_weight, samples)
    if validation_split and validation_data is None:
        data, validation_data = data.split(validation_split)
    _keras_checks.refuse_loss(model, weighted=data.weighted)
    model._symbolic_build(data_batch=data.batch(np.arange(1)))
    if _trained and "LOCKSTEP_COORDINATOR" in os.environ:
        raise UsageError(
            "lockstep.keras.fit was called twice: a job of lockstep run trains once, so give it all epochs at once"
        )
    job = _Job(model, data, shuffle=shuffle, run_dir=run_dir, resume=resume, settings=settings)
    said = {"job.seed": seed, "job.global_batch": global_batch, "job.epochs": epochs}
    if units is not None:
        said["job.units"] = units
    validation = _Validation(model, validation_data, validation_batch_size or global_batch, validation_freq)
    _trained.append(True)
    try:
        job._join(said, epochs, digest)
        return job._fit(listed, verbose, validation)
    except BaseException as error:
        job._fail(_errors.line_of(error))
        raise
    finally:
        job.close()


class _Validation:
    def __init__(self, model: Any, data: Any, batch: int, freq: int | Sequence[int]) -> None:
        self._model, self._batch, self._freq = model, batch, freq
        self._data = None if data is None else _keras_data.unpacked(data)

    def logs(self, epoch: int, callbacks: Any) -> dict[str, Any]:
        due = (epoch + 1) % self._freq == 0 if isinstance(self._freq, int) else epoch + 1 in self._freq
        if self._data is None or not due:
            return {}
        x, y, weights = self._data
        # What makes its own batches has no batch size for Keras.
        batch = self._batch if y is not None or hasattr(x, "shape") else None
        found = self._model.evaluate(
            x, y, sample_weight=weights, batch_size=batch, verbose=0, callbacks=callbacks, return_dict=True
        )
        return {f"val_{name}": value for name, value in found.items()}


class _Job(_loop.Loop):
    """A job that this process is a worker of, from the model's side."""

    def __init__(
        self,
        model: Any,
        data: _keras_data.Data,
        *,
        shuffle: bool,
        run_dir: str | None,
        resume: bool | Literal["auto"],
        settings: Mapping[str, object] | None,
    ) -> None:
        super().__init__(run_dir=run_dir, resume=resume, settings=settings)
        self._model, self._data, self._shuffles = model, data, shuffle
        optimizer = model.optimizer
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        self._averaged, self._masked = _keras_checks.tried_in_training(model, data)
        self._backend = BACKENDS[keras.backend.backend()](model, self._masked)
        self._variables = list(model.trainable_variables)
        self._frozen = [v for v in model.non_trainable_weights if all(v is not other for other in self._averaged)]
        self._metrics = list(model.metrics_variables)
        _keras_checks.refuse_variables(self._variables + self._averaged, model, self._metrics)
        self._rates = [o.learning_rate for o in getattr(optimizer, "optimizers", [optimizer]) if _has_rate(o)]
        self._state = [v for v in optimizer.variables if all(v is not rate for rate in self._rates)]
        self._first_state = [_array(v).copy() for v in self._state]
        self._sizes = [math.prod(v.shape) for v in self._variables + self._averaged]
        self._trained = sum(self._sizes[: len(self._variables)])
        self._count = sum(self._sizes)
        self._metrics_at = _AHEAD + _OF_A_RATE * len(self._rates)
        self._metrics_count = sum(math.prod(v.shape) for v in self._metrics)
        starts = np.cumsum([0, *(math.prod(v.shape) for v in self._metrics)])
        tracker = model._loss_tracker
        self._places_of_loss = [
            int(starts[at]) for kept in (tracker.total, tracker.count) for at, v in enumerate(self._metrics) if v is kept
        ]
        kinds = [(array.shape, array.dtype) for array in self._first_state]
        self._kept = _kept.Kept(kinds, self._count, self._metrics_at + self._metrics_count)
        self._extra: Any = np.zeros(self._kept.extra, np.float32)  # of the parameters that the model has now
        self._seen = [float("nan") for _ in self._rates]  # the job's rates, as far as this worker knows
        self._of: tuple[int, int] | None = None  # the round and the place of the parameters that the model has
        self._made = (-1.0, -1.0)  # the epoch and the round in it of the last update here
        self._global_batch = 1

    # --- joining

    def _join(self, settings: Mapping[str, object], epochs: int, digest: str) -> None:
        extra = np.zeros(self._kept.extra, np.float32)
        extra[_AHEAD : self._metrics_at : _OF_A_RATE] = [_array(rate) for rate in self._rates]
        values = [_array(v).reshape(-1) for v in self._variables + self._averaged]
        tensors = [_session.Tensor(name, tuple(v.shape)) for name, v in _named(self._variables + self._averaged)]
        self._begin(
            tensors=[*tensors, _session.Tensor(_UPDATES, (self._kept.extra,))],
            initial=np.concatenate([*values, extra]),
            digest=self._digest(digest),
            state_tensors=self._kept.state_tensors,
            samples=len(self._data),
            test_samples=0,
            epochs=epochs,
            settings=settings,
            averages=True,
        )

    def _check(self, config: Mapping[str, str]) -> None:
        self._global_batch = int(config["job.global_batch"])
        for key, wanted, does in (
            ("exchange.dtype", "fp32", "round"),
            ("exchange.compression", "none", "change"),
            ("optimizer.clip", "0", "clip"),
        ):
            if config[key] != wanted:
                advice = ", and clip by clipnorm= of the optimizer" if key == "optimizer.clip" else ""
                raise UsageError(
                    f"{key} = {config[key]} would {does} Keras' metrics, which travel with the gradients: use {wanted}{advice}"
                )

    def _digest(self, digest: str) -> str:
        optimizer = json.dumps(keras.optimizers.serialize(self._model.optimizer), sort_keys=True, default=str)
        kept, frozen = hashlib.sha256(optimizer.encode()), hashlib.sha256()
        for array in self._first_state:
            kept.update(array.tobytes())
        for variable in self._frozen:
            frozen.update(_array(variable).tobytes())
        order = "shuffled" if self._shuffles else "in order"
        name = type(self._model.optimizer).__name__
        text = f"{self._data.description} {order} {digest}".strip()
        return f"{text}; updates by the optimizer {name} {kept.hexdigest()[:16]}" + (
            f"; weights that are not trained {frozen.hexdigest()[:16]}" if self._frozen else ""
        )

    # --- what Keras' fit does

    def _fit(self, listed: list[Any], verbose: int | str, validation: _Validation) -> Any:
        shown = (2 if verbose == "auto" else verbose) if self.rank == 0 else 0
        callbacks = keras.callbacks.CallbackList(
            [c for c in listed if self.rank == 0 or not _keras_checks.writes(c)],
            add_history=True,
            add_progbar=shown != 0,
            model=self._model,
            verbose=shown,
            epochs=self._epochs,
            steps=math.ceil(len(self._data) / self._global_batch),
            rank=self.rank,
            workers=self.size,
        )
        self._model.stop_training = False
        begun, logs = False, {}
        for epoch in range(self._epochs):
            if begun:
                callbacks.on_epoch_begin(epoch)
                self._check_unchanged()
            batches = iter(self)
            batch = next(batches, None)
            if batch is None and not begun and not self._has_metrics_of(epoch):
                continue  # the job is past it
            if not begun:
                callbacks.on_train_begin()
                if self._extra[_BEGUN]:  # in this job it was called before, on other workers or before a resume
                    self._forget_rates()
                callbacks.on_epoch_begin(epoch)
                if self._has_metrics_of(epoch):
                    self._forget_rates()
                self._check_unchanged()
                begun = True
            self._train_epoch(epoch, batch, batches, callbacks)
            if self.ended_early and not self._model.stop_training:
                break
            if self._has_metrics_of(epoch):
                logs = self._logs()
                logs |= validation.logs(epoch, callbacks)
                callbacks.on_epoch_end(epoch, logs)
            if self._model.stop_training:
                self.stop(_STOPPED)
                break
            if self._end is not None:
                break
        if not begun:
            callbacks.on_train_begin()
        self._finalize()
        callbacks.on_train_end(logs)
        return self._model.history

    def _train_epoch(self, epoch: int, batch: _loop.Batch | None, batches: Iterator[_loop.Batch], callbacks: Any) -> None:
        """Leaves when a callback stops training, with the job at its end."""
        round_ = step = -1
        while batch is not None:
            if batch.round != round_:
                if round_ >= 0:
                    callbacks.on_train_batch_end(step, self._logs())
                    if self._model.stop_training:
                        self.stop(_STOPPED)
                        return
                step = int(self._extra[_ROUNDS]) if self._has_metrics_of(epoch) else 0
                callbacks.on_train_batch_begin(step)
                round_ = batch.round
            self._train(batch)
            batch = next(batches, None)
        if round_ >= 0:
            callbacks.on_train_batch_end(step, self._logs())
            if self._model.stop_training:
                self.stop(_STOPPED)

    def _train(self, batch: _loop.Batch) -> None:
        count = len(batch)
        if self._shuffles:
            indices = batch.indices[:count]
        else:
            indices = np.concatenate([np.arange(first, end) for first, end in self._work.ranges])
        self._model.reset_metrics()
        before = [_array(v).copy() for v in self._averaged]
        loss, gradients, counted = self._backend.gradients(*self._data.batch(indices), batch.seed)
        floats = self._floats(self._work.gradient)
        weighed = [(found, counted) for found in gradients] + [(_array(v), count) for v in self._averaged]
        for to, (found, weight) in zip(self._cut(floats), weighed, strict=True):
            to[...] += np.asarray(found, np.float32) * np.float32(weight)
        for variable, value in zip(self._averaged, before, strict=True):
            variable.assign(value)
        extra = floats[self._count :]
        extra[_EPOCH] += count * batch.epoch
        if self._masked:
            extra[_COUNTED] += counted
        for at, rate in self._pending():
            halves = np.float32(rate).view(np.uint32)
            extra[at : at + _OF_A_RATE] += [count, count * rate, count * int(halves >> 16), count * int(halves & 0xFFFF)]
        for to, variable in self._places_of_metrics(extra):
            to[...] += _array(variable).astype(np.float32)
        self._done(loss * count, None)

    def _finalize(self) -> None:
        """Where the optimizer keeps averages of the weights, they are the result."""
        optimizer = self._model.optimizer
        averages = any(each.use_ema for each in getattr(optimizer, "optimizers", [optimizer]))
        if averages and self._made != (self._extra[_EPOCH], self._extra[_ROUNDS]):
            raise JobFailed(
                "this worker was behind at the job's end, and has no averaged weights (use_ema): take another worker's"
            )
        optimizer.finalize_variable_values(self._model.trainable_weights)

    def _has_metrics_of(self, epoch: int) -> bool:
        return bool(self._extra[_ROUNDS] > 0 and self._extra[_EPOCH] == epoch)

    def _logs(self) -> dict[str, Any]:
        """The metrics of the epoch so far, over all workers."""
        for place, variable in self._places_of_metrics(self._extra):
            variable.assign(place.copy().astype(variable.dtype))
        return _plain(self._model.get_metrics_result())

    def _check_unchanged(self) -> None:
        """No callback has changed what the job trains. Where one swaps weights and swaps them back, as SwapEMAWeights with
        TensorFlow, they have rounding errors, which are put right."""
        work = self._held or self._work
        if self._end is not None or not work.parameters:
            return
        floats, variables = self._floats(work.parameters), self._variables + self._averaged
        changed = False
        for (name, variable), value in zip(_named(variables), self._cut(floats), strict=True):
            now = _array(variable)
            changed = changed or not np.array_equal(now, value, equal_nan=True)
            if not np.allclose(now, value, rtol=_ROUNDED, atol=_ROUNDED, equal_nan=True):
                raise UsageError(
                    f"a callback has changed {name}, and a job's updates alone change its parameters: set weights before "
                    "lockstep.keras.fit, or after it"
                )
        if changed:
            self._assign_parameters(floats)

    # --- what the loop asks

    def _use(self, work: Work) -> None:
        at = work.round, work.parameters
        if work.kind is Kind.TRAIN and self._of == at:
            return
        self._of = at if work.kind is Kind.TRAIN else None
        floats = self._floats(work.parameters)
        self._assign_parameters(floats)
        self._extra = floats[self._count :].copy()
        for number, rate in enumerate(self._rates):
            said = float(self._extra[_AHEAD + _OF_A_RATE * number])
            if said != self._seen[number]:
                rate.assign(said)
                self._seen[number] = said

    def _make_update(self, work: Work) -> None:
        update, gradient = self._floats(work.update), self._floats(work.gradient)
        state = self._floats(work.state, state=True) if work.state else np.zeros(0, np.float32)
        extra, its_extra = update[self._count :], gradient[self._count :]
        self._of = None
        self._assign_parameters(update)
        kept = self._kept.read(extra, state) if extra[_BEGUN] else self._first_state
        for variable, value in zip(self._state, kept, strict=True):
            variable.assign(np.array(value))
        own = self._take_rates(extra, its_extra)
        self._backend.step(self._means(gradient, float(its_extra[_COUNTED])))
        self._store(update, np.float32(work.learning_rate * work.fraction))
        update[self._trained : self._count] = gradient[self._trained : self._count]
        self._kept.write(map(_array, self._state), extra, state)
        self._add_metrics(extra, its_extra, work.update_samples)
        extra[_BEGUN] = 1
        self._made = float(extra[_EPOCH]), float(extra[_ROUNDS])
        for rate, value in own:
            rate.assign(value)

    def _means(self, gradient: Any, counted: float) -> list[Any]:
        """The gradients of the mean loss. `counted`: of a sample, of how many things its loss is the mean."""
        means = self._cut(gradient)[: len(self._variables)]
        if not self._masked:
            return means
        return [mean / np.float32(counted) if counted else np.zeros_like(mean) for mean in means]

    def _take_rates(self, extra: Any, its_extra: Any) -> list[tuple[Any, float]]:
        """Sets the rates of an update. Returns those that a callback has set here, and that the update does not have: no samples
        with them have counted so far."""
        own = dict(self._pending())
        for number, rate in enumerate(self._rates):
            at = _AHEAD + _OF_A_RATE * number
            said = _rate_of(its_extra[at : at + _OF_A_RATE])
            if said is not None:
                extra[at] = said
                own.pop(at, None)
            self._seen[number] = float(extra[at])
            rate.assign(self._seen[number])
        return [(self._rates[(at - _AHEAD) // _OF_A_RATE], value) for at, value in own.items()]

    def _store(self, update: Any, factor: Any) -> None:
        """The variables, as a step has changed them, so much of the step."""
        for to, variable in zip(self._cut(update), self._variables, strict=False):
            value = _array(variable)
            if factor != 1:
                value = to + factor * (value - to)
                if variable.constraint is not None:
                    value = _array(variable.constraint(keras.ops.convert_to_tensor(value)))
            to[...] = value

    def _add_metrics(self, extra: Any, its_extra: Any, samples: int) -> None:
        epoch = round(float(its_extra[_EPOCH]))
        metrics = slice(self._metrics_at, self._metrics_at + self._metrics_count)
        if not extra[_BEGUN] or extra[_EPOCH] != epoch:
            extra[_EPOCH], extra[_ROUNDS], extra[metrics] = epoch, 0, 0
        extra[_ROUNDS] += 1
        sums = its_extra[metrics] * np.float32(samples)
        if self._masked:  # a batch has a mean loss, which counts as often as it has samples
            total, count = self._places_of_loss
            sums[total], sums[count] = (sums[total] / sums[count] * samples, samples) if sums[count] else (0, samples)
        extra[metrics] += sums

    # --- within

    def _cut(self, floats: Any) -> list[Any]:
        """Views of the session's memory: trained variables, then running statistics."""
        ends = np.cumsum(self._sizes)
        variables = self._variables + self._averaged
        return [
            floats[end - size : end].reshape(tuple(v.shape)) for v, size, end in zip(variables, self._sizes, ends, strict=True)
        ]

    def _assign_parameters(self, floats: Any) -> None:
        """Copies, because a backend may keep what it is given, and the session's memory changes."""
        for variable, value in zip(self._variables + self._averaged, self._cut(floats), strict=True):
            variable.assign(value.copy())

    def _places_of_metrics(self, extra: Any) -> Iterator[tuple[Any, Any]]:
        at = self._metrics_at
        for variable in self._metrics:
            size = math.prod(variable.shape)
            yield extra[at : at + size].reshape(tuple(variable.shape)), variable
            at += size

    def _forget_rates(self) -> None:
        """The job's rates hold, and not those that callbacks have set here just now."""
        for rate, seen in zip(self._rates, self._seen, strict=True):
            rate.assign(seen)

    def _pending(self) -> Iterator[tuple[int, float]]:
        """Rates that a callback has set since the job had them: their places in the extra tensor."""
        for number, (rate, seen) in enumerate(zip(self._rates, self._seen, strict=True)):
            value = float(_array(rate))
            if value != seen and math.isfinite(value):
                yield _AHEAD + _OF_A_RATE * number, value


def _has_rate(optimizer: Any) -> bool:
    """One that a callback can set; else a schedule makes it out of the count of updates."""
    return isinstance(optimizer.learning_rate, keras.Variable)


def _rate_of(mean: Any) -> float | None:
    """The rate that workers have set, from its places in a mean gradient. None: none has. The mean of equal values has rounding
    errors, which the two halves of their bits have not."""
    part, rate, high, low = map(float, mean)
    if part <= 0:
        return None
    near = rate / part
    exact = np.uint32((round(high / part) << 16) + round(low / part)).view(np.float32)
    return float(exact) if math.isfinite(exact) and abs(exact - near) <= _NEAR * abs(near) else near


def _array(variable: Any) -> Any:
    return keras.ops.convert_to_numpy(variable)


def _named(variables: Sequence[Any]) -> list[tuple[str, Any]]:
    """By their paths, of which several may be equal."""
    paths = [v.path for v in variables]
    unique = len(set(paths)) == len(paths) and _UPDATES not in paths
    return [(path if unique else f"{number}/{path}", v) for number, (path, v) in enumerate(zip(paths, variables, strict=True))]


def _plain(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers of Python, where they are one number."""
    found: dict[str, Any] = {}
    for name, value in logs.items():
        found[name] = keras.ops.convert_to_numpy(value)
        with contextlib.suppress(TypeError, ValueError):
            found[name] = float(found[name])
    return found
