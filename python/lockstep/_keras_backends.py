"""The backends of Keras, for lockstep.keras: each computes the gradients of a batch, and makes a step of the optimizer.

Both work on the variables of the model and of its optimizer. After `gradients` the metrics have seen the batch, and running
statistics have changed.
"""

from typing import Any

import keras
import numpy as np
from keras.src import backend

_APART = 0x9E3779B1  # an odd number


def mask_of(scores: Any) -> Any:
    """The mask that layers have given a tensor, or None. With JAX it is kept beside the tensor."""
    find = getattr(backend, "get_keras_mask", None)  # older versions have an attribute alone
    return find(scores) if find else getattr(scores, "_keras_mask", None)


class Backend:
    """`model`: it is built and compiled. `masked`: its one output has a mask, over which its loss is a mean."""

    def __init__(self, model: Any, masked: bool) -> None:
        self._model, self._masked = model, masked
        self._variables = list(model.trainable_variables)
        weights = {id(v) for v in model.non_trainable_weights}
        self._seeds = [v for v in model.non_trainable_variables if id(v) not in weights]

    def gradients(self, x: Any, y: Any, weights: Any, seed: int) -> tuple[float, list[Any], float]:
        """The loss of the batch, its gradients as arrays of NumPy, and of how many things the loss is the mean. These are samples;
        where the output has a mask, what the mask leaves. `seed`: of dropout and the like."""
        # On torch the two numbers of a seed are added up, so those of the layers are to be far apart.
        for number, variable in enumerate(self._seeds):
            variable.assign(np.array([(seed + number * _APART) & 0x7FFFFFFF, 0], variable.dtype))
        return self._gradients_of(x, y, weights, seed)

    def _gradients_of(self, x: Any, y: Any, weights: Any, seed: int) -> tuple[float, list[Any], float]:
        raise NotImplementedError

    def step(self, gradients: list[Any]) -> None:
        """Of the optimizer. `gradients`: arrays of NumPy, which are read before it returns."""
        raise NotImplementedError

    def _counted(self, samples: Any, scores: Any) -> Any:
        """Of how many things a loss is the mean."""
        if not self._masked:
            return samples
        (score,) = keras.tree.flatten(scores)
        return keras.ops.sum(keras.ops.cast(mask_of(score), "float32"))

    def _watch(self, loss: Any, counted: Any, scores: Any, batch: tuple[Any, Any, Any]) -> None:
        """Shows the metrics the batch."""
        self._model._loss_tracker.update_state(loss, sample_weight=counted)
        x, y, weights = batch
        self._model.compute_metrics(x, y, scores, weights)

    def _loss(self, x: Any, y: Any, weights: Any) -> tuple[Any, Any]:
        """With what the model has made of x."""
        scores = self._model(x, training=True) if self._model._call_has_training_arg else self._model(x)
        return self._model._compute_loss(x=x, y=y, y_pred=scores, sample_weight=weights, training=True), scores


class _Torch(Backend):
    def _gradients_of(self, x: Any, y: Any, weights: Any, seed: int) -> tuple[float, list[Any], float]:
        import torch

        samples = len(keras.tree.flatten(x)[0])
        x, y, weights = _tensors((x, y, weights))
        self._model.train()
        self._model.zero_grad()
        with torch.random.fork_rng(devices=[]):  # Dropout without a seed of its own takes torch's
            torch.manual_seed(seed)
            loss, scores = self._loss(x, y, weights)
            loss.backward()
        with torch.no_grad():
            counted = self._counted(samples, scores)
            self._watch(loss, counted, scores, (x, y, weights))
        found = [torch.zeros_like(v.value) if v.value.grad is None else v.value.grad for v in self._variables]
        return float(loss.detach()), [gradient.cpu().numpy() for gradient in found], float(counted)

    def step(self, gradients: list[Any]) -> None:
        import torch

        with torch.no_grad():
            self._model.optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradients], self._variables)


class _TensorFlow(Backend):
    def __init__(self, model: Any, masked: bool) -> None:
        super().__init__(model, masked)
        import tensorflow as tf

        def gradients(x: Any, y: Any, weights: Any) -> Any:
            values = [v.value for v in self._variables]
            with tf.GradientTape() as tape:
                loss, scores = self._loss(x, y, weights)
            counted = self._counted(tf.shape(keras.tree.flatten(x)[0])[0], scores)
            self._watch(loss, counted, scores, (x, y, weights))
            found = tape.gradient(loss, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            return loss, [tf.convert_to_tensor(gradient) for gradient in found], counted

        def step(gradients: Any) -> None:
            model.optimizer.apply(gradients, self._variables)

        self._gradients, self._step = gradients, step
        if not model.run_eagerly:
            self._gradients = tf.function(gradients, reduce_retracing=True, jit_compile=model.jit_compile)
            self._step = tf.function(step, jit_compile=model.jit_compile)

    def _gradients_of(self, x: Any, y: Any, weights: Any, seed: int) -> tuple[float, list[Any], float]:
        x, y, weights = _tensors((x, y, weights))
        loss, found, counted = self._gradients(x, y, weights)
        return float(loss), [gradient.numpy() for gradient in found], float(counted)

    def step(self, gradients: list[Any]) -> None:
        self._step([keras.ops.convert_to_tensor(g.copy()) for g in gradients])


class _Jax(Backend):
    def __init__(self, model: Any, masked: bool) -> None:
        super().__init__(model, masked)
        import jax

        def loss_of(*given: Any, **more: Any) -> Any:
            loss, kept = model.compute_loss_and_updates(*given, **more)
            return loss, (*kept, self._counted(len(keras.tree.flatten(given[3])[0]), kept[1]))

        def gradients(state: Any, x: Any, y: Any, weights: Any) -> Any:
            trained, others, metrics, optimizer = state
            (_, (loss, scores, others, metrics, counted)), found = jax.value_and_grad(loss_of, has_aux=True)(
                trained, others, metrics, x, y, weights, training=True, optimizer_variables=optimizer
            )
            # As Keras does it: outside, where the scores have no mask any more.
            with keras.StatelessScope(list(zip(model.metrics_variables, metrics, strict=True))) as scope:
                self._watch(loss, counted, scores, (x, y, weights))
            return loss, found, others, [scope.get_current_value(v) for v in model.metrics_variables], counted

        def step(gradients: Any, trained: Any, optimizer: Any) -> Any:
            return model.optimizer.stateless_apply(optimizer, gradients, trained)

        self._gradients, self._step = gradients, step
        if model.jit_compile and not model.run_eagerly:
            self._gradients, self._step = jax.jit(gradients), jax.jit(step)

    def _gradients_of(self, x: Any, y: Any, weights: Any, seed: int) -> tuple[float, list[Any], float]:
        model = self._model
        kept = (self._variables, model.non_trainable_variables, model.metrics_variables, model.optimizer.variables)
        state = [[v.value for v in variables] for variables in kept]
        loss, found, others, metrics, counted = self._gradients(state, x, y, weights)
        _assign(model.non_trainable_variables, others)
        _assign(model.metrics_variables, metrics)
        return float(loss), [np.asarray(gradient) for gradient in found], float(counted)

    def step(self, gradients: list[Any]) -> None:
        import jax

        kept = model_variables, optimizer_variables = self._variables, self._model.optimizer.variables
        found = jax.block_until_ready(self._step(gradients, *[[v.value for v in variables] for variables in kept]))
        _assign(model_variables, found[0])
        _assign(optimizer_variables, found[1])


def _tensors(tree: Any) -> Any:
    return keras.tree.map_structure(lambda array: None if array is None else keras.ops.convert_to_tensor(array), tree)


def _assign(variables: Any, values: Any) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


BACKENDS = {"torch": _Torch, "tensorflow": _TensorFlow, "jax": _Jax}
