"""The samples that lockstep.keras trains on: arrays in memory or mapped from a file, or a function of sample numbers."""

import math
from typing import Any

import keras
import numpy as np

from lockstep._errors import UsageError

_FUNCTION = "give arrays, or a function of sample numbers: fit(model, lambda i: (x[i], y[i]), samples=len(x))"

_PARTS = ("x", "y", "sample_weight")
_BATCHES = ("element_spec", "batch_sampler", "__next__")  # of tf.data.Dataset, DataLoader, generators


class Data:
    """Of one part of a job: training, or what validation_split takes away from it."""

    def __init__(self, x: Any, y: Any, weights: Any, samples: int | None) -> None:
        self.weighted = weights is not None
        self._function = x if callable(x) and not hasattr(x, "shape") else None
        if self._function is not None:
            if samples is None or y is not None or weights is not None:
                raise UsageError("x is a function: it returns y and weights, too, and samples= says how many samples there are")
            self._count = samples
            self.weighted = self.batch(np.arange(1))[2] is not None
            self.description = f"{samples} samples by a function"
            return
        self._trees = [
            part if part is None else _arrays(name, part) for name, part in zip(_PARTS, (x, y, weights), strict=True)
        ]
        leaves = _leaves(self._trees)
        counts = {len(leaf) for leaf in leaves}
        if len(counts) != 1 or 0 in counts:
            shown = " and ".join(map(str, sorted(counts))) or "no"
            raise UsageError(f"x, y and sample_weight have {shown} samples: give arrays of one length, from 1 on")
        (self._count,) = counts
        if samples is not None and samples != self._count:
            raise UsageError(f"samples: {samples}, and the arrays have {self._count}: leave it out, or cut the arrays")
        kinds = ", ".join(f"{leaf.dtype}{list(leaf.shape[1:])}" for leaf in leaves)
        self.description = f"{self._count} samples of {kinds}"

    def __len__(self) -> int:
        return self._count

    def batch(self, indices: Any) -> tuple[Any, Any, Any]:
        """x, y and weights of these samples; what there is none of is None."""
        if self._function is None:
            x, y, weights = (
                keras.tree.map_structure(lambda a: None if a is None else a[indices], part) for part in self._trees
            )
        else:
            x, y, weights = unpacked(self._function(indices))
            for name, part in zip(_PARTS, (x, y, weights), strict=True):
                if any(tuple(getattr(leaf, "shape", ()))[:1] != (len(indices),) for leaf in _leaves(part)):
                    raise UsageError(
                        f"the function returns a {name} that is no array of {len(indices)} samples, as it was asked for"
                    )
            x, y, weights = keras.tree.map_structure(lambda a: None if a is None else np.asarray(a), (x, y, weights))
        cast = keras.tree.map_structure(_as_keras_has_it, (x, y, weights))
        return cast[0], cast[1], cast[2]

    def split(self, part: float) -> tuple["Data", tuple[Any, ...]]:
        """The last part for validation, as Keras does it."""
        if self._function is not None:
            raise UsageError("validation_split is for arrays: give validation_data")
        at = math.floor(self._count * (1.0 - part))
        if not 0 < at < self._count:
            raise UsageError(
                f"validation_split: {part} of {self._count} samples leaves none to train on, or none to validate on"
            )
        train, test = (
            [keras.tree.map_structure(lambda a, where=where: None if a is None else a[where], tree) for tree in self._trees]
            for where in (slice(0, at), slice(at, None))
        )
        x, y, weights = train
        return Data(x, y, weights, None), tuple(test)


def _leaves(tree: Any) -> list[Any]:
    return [leaf for leaf in keras.tree.flatten(tree) if leaf is not None]


def unpacked(data: Any) -> tuple[Any, Any, Any]:
    """(x,), (x, y) or (x, y, weights), as Keras has it."""
    parts = tuple(data) if isinstance(data, tuple | list) else (data,)
    if not 1 <= len(parts) <= 3:
        raise UsageError(f"a batch of {len(parts)} parts: (x, y), or (x, y, sample_weight)")
    x, y, weights = (*parts, None, None)[:3]
    return x, y, weights


def _arrays(name: str, tree: Any) -> Any:
    if isinstance(tree, keras.utils.PyDataset) or any(hasattr(tree, name) for name in _BATCHES):
        raise UsageError(f"{name} is a {type(tree).__name__}, which makes batches, and a job shares out samples: {_FUNCTION}")
    return keras.tree.map_structure(lambda leaf: _array(name, leaf), tree)


def _array(name: str, leaf: Any) -> Any:
    if leaf is None or isinstance(leaf, np.ndarray):  # also one that is mapped from a file
        array = leaf
    elif hasattr(leaf, "shape"):
        array = np.asarray(leaf.detach().cpu() if hasattr(leaf, "detach") else leaf)
    else:
        raise UsageError(f"{name} has a {type(leaf).__name__} where an array is expected: {_FUNCTION}")
    if array is not None and (array.ndim == 0 or array.dtype == object):
        raise UsageError(f"{name} has an array of {array.dtype} with the shape {array.shape}: give one number or more a sample")
    return array


def _as_keras_has_it(array: Any) -> Any:
    """The type that model.fit makes of it."""
    if array is None or not np.issubdtype(array.dtype, np.floating):
        return array
    return array.astype(keras.config.floatx(), copy=False)
