"""Checks of lockstep.keras: a refusal is one line that says what to write instead. They also find the weights that change in
training."""

from typing import Any

import keras
import numpy as np

from lockstep._errors import UsageError
from lockstep._keras_backends import mask_of
from lockstep._keras_data import Data

_OF_FIT = {  # arguments of model.fit that a job has otherwise
    "batch_size": "global_batch= is the number of samples in an update, of all workers together",
    "class_weight": "give sample_weight=, as np.vectorize(class_weight.get)(y)",
    "initial_epoch": "a job goes on where its checkpoint is: lockstep run --resume",
    "steps_per_epoch": "an epoch has each sample once",
    "validation_steps": "cut validation_data",
}
_WRITERS = ("ModelCheckpoint", "OrbaxCheckpoint", "CSVLogger", "TensorBoard", "RemoteMonitor")
_TRIED = 4  # samples


def refuse_arguments(given: dict[str, Any]) -> None:
    for name in given:
        if name not in _OF_FIT:
            raise TypeError(f"lockstep.keras.fit() has no argument {name!r}")
        raise UsageError(f"{name} is for model.fit: {_OF_FIT[name]}")


def refuse_model(model: Any) -> None:
    if not isinstance(model, keras.Model):
        raise UsageError(f"model: {type(model).__name__} is no keras.Model of Keras 3")
    if not model.compiled or model.optimizer is None:
        raise UsageError("the model has no optimizer: model.compile(optimizer=..., loss=...) before lockstep.keras.fit")
    step = next(kind for kind in type(model).__mro__ if "train_step" in vars(kind))
    if not step.__module__.startswith("keras."):
        raise UsageError(
            f"{step.__name__} has a train_step of its own, and a job's updates are made by all its workers: leave it out, and "
            "write compute_loss or compute_metrics"
        )
    optimizer = model.optimizer
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise UsageError(
            "mixed_float16 scales the loss by what one worker sees: write keras.config.set_dtype_policy('mixed_bfloat16')"
        )
    for each in getattr(optimizer, "optimizers", [optimizer]):
        if each.loss_scale_factor is not None:
            raise UsageError("loss_scale_factor of the optimizer is for float16: leave it out")
    if model.steps_per_execution != 1:
        raise UsageError(f"compile(steps_per_execution={model.steps_per_execution}): leave it out, a round is one step")
    if keras.distribution.distribution() is not None:
        raise UsageError("keras.distribution is set: leave it out, each worker of a job has the whole model")
    if keras.backend.backend() == "torch":
        if model.jit_compile:
            raise UsageError("compile(jit_compile=True) is not supported with torch: leave it out")
        for layer in model._flatten_layers():
            if isinstance(layer, keras.layers.TorchModuleWrapper) and any(True for _ in layer.module.buffers()):
                raise UsageError(
                    f"{layer.name} wraps a torch module with buffers, which Keras does not know: use a layer of Keras"
                )


def refuse_loss(model: Any, *, weighted: bool) -> None:
    for loss in keras.tree.flatten(model.loss):
        how = getattr(loss, "reduction", "sum_over_batch_size")
        if how not in ("sum_over_batch_size", "mean") and (weighted or how != "mean_with_sample_weight"):
            raise UsageError(
                f"the loss {type(loss).__name__} has reduction={how!r}, and a job takes means over samples: write "
                "reduction='sum_over_batch_size'"
            )


def checked_callbacks(callbacks: Any) -> list[Any]:
    if isinstance(callbacks, keras.callbacks.CallbackList):
        raise UsageError("callbacks: give a list of them, not a CallbackList")
    listed: list[Any] = keras.tree.flatten(callbacks) if callbacks else []
    for callback in listed:
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            raise UsageError("BackupAndRestore: leave it out, the job has checkpoints: lockstep run --run-dir DIR --resume")
    return listed


def writes(callback: Any) -> bool:
    """To files or elsewhere: so one worker is to do it."""
    return any(kind.__name__ in _WRITERS and kind.__module__.startswith("keras.") for kind in type(callback).__mro__)


def tried_in_training(model: Any, data: Data) -> tuple[list[Any], bool]:
    """The weights that a forward pass of training sets, as the running statistics of BatchNormalization; and whether the output
    has a mask."""
    x = data.batch(np.arange(min(len(data), _TRIED)))[0]
    x = keras.tree.map_structure(keras.ops.convert_to_tensor, x)
    with keras.StatelessScope(collect_losses=True) as scope:
        scores = model(x, training=True) if model._call_has_training_arg else model(x)
    masks = [mask_of(each) is not None for each in keras.tree.flatten(scores)]
    if any(masks):
        _refuse_masked(model, len(masks), bool(scope.losses))
    return [v for v in model.non_trainable_weights if scope.get_current_value(v) is not None], any(masks)


def _refuse_masked(model: Any, outputs: int, adds_losses: bool) -> None:
    """The loss must be a mean over what the mask leaves, as Keras' losses make it."""
    step = next(kind for kind in type(model).__mro__ if "compute_loss" in vars(kind))
    own = [loss for loss in keras.tree.flatten(model.loss) if isinstance(loss, keras.losses.Loss)]
    what = (
        "one of several outputs"
        if outputs > 1
        else "the output of a model whose layers add losses"
        if adds_losses
        else f"the output, and {step.__name__} has a compute_loss of its own"
        if not step.__module__.startswith("keras.")
        else "the output, and the loss has a __call__ of its own"
        if any(type(loss).__call__ is not keras.losses.Loss.__call__ for loss in own)
        else None
    )
    if what is not None:
        raise UsageError(
            f"a mask is on {what}: a job cannot tell of how many steps the loss is the mean; leave mask_zero out, and give "
            "sample_weight of the shape of y"
        )


def refuse_variables(variables: list[Any], model: Any, metrics: list[Any]) -> None:
    if not model.trainable_variables:
        raise UsageError("the model has nothing to train")
    for variable in variables:
        if keras.backend.standardize_dtype(variable.dtype) != "float32":
            raise UsageError(
                f"{variable.path} is {variable.dtype} and not float32: use the dtype policy float32 or mixed_bfloat16"
            )
        if getattr(variable, "overwrite_with_gradient", False):
            raise UsageError(f"{variable.path} is set by its gradient, as float8 has it: use the dtype policy mixed_bfloat16")
    model.reset_metrics()
    for variable in metrics:
        if variable.aggregation != "sum" or np.any(keras.ops.convert_to_numpy(variable)):
            raise UsageError(f"the metric's {variable.path} does not add up over workers: leave the metric out of compile()")
