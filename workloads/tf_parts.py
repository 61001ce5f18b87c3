"""What models in TensorFlow share: counting, evaluating. Keras 3 on the TensorFlow backend."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from workloads.api import Parts, Samples, WorkloadError


def make_parts(
    model: Any,
    loss: Callable[[Any, Any], Any],
    optimiser: Callable[[Any, float, bool], Any],
    evaluate: Callable[[Any, Samples], dict[str, float]],
    flops_per_sample: float,
    *,
    clip_norm: float | None = None,
    start_epoch: Callable[[Any], None] | None = None,
) -> Parts:
    """Return the parts of a built Keras model, its trainable parameters and their bytes counted.

    ``model(inputs, training=...)`` is called by whoever trains; ``loss(outputs, targets)`` takes
    the outputs first, as in PyTorch, and returns the mean over the samples, in float32.
    """
    if keras.backend.backend() != "tensorflow":
        raise WorkloadError(
            f"Keras runs on {keras.backend.backend()} here; set KERAS_BACKEND=tensorflow, or "
            "backend in ~/.keras/keras.json"
        )
    trained = model.trainable_variables
    return Parts(
        framework="tensorflow",
        model=model,
        loss=loss,
        optimiser=optimiser,
        evaluate=evaluate,
        parameters=sum(math.prod(v.shape) for v in trained),
        gradient_bytes=sum(math.prod(v.shape) * tf.as_dtype(v.dtype).size for v in trained),
        flops_per_sample=flops_per_sample,
        clip_norm=clip_norm,
        start_epoch=start_epoch,
    )


def no_fused(fused: bool) -> None:
    """Raise WorkloadError where a fused optimiser is asked for: Keras has none."""
    if fused:
        raise WorkloadError(
            f"Keras {keras.__version__} has no fused optimisers; set "
            "execution.fused_optimiser to false"
        )


_predict: Any = tf.function(
    lambda model, inputs: model(inputs, training=False), reduce_retracing=True, autograph=False
)


def predict(model: Any, inputs: Any) -> Any:
    """Return ``model(inputs, training=False)``, compiled once a model; it changes nothing in it.

    For models that carry no state from batch to batch, and whose ``call`` is plain TensorFlow.
    """
    return _predict(model, inputs)


def batches(samples: Samples, size: int) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
    """Yield all samples in order as (inputs, targets), ``size`` at a time."""
    for start in range(0, len(samples), size):
        stop = min(start + size, len(samples))
        inputs, targets = samples.gather(np.arange(start, stop, dtype=np.int64))
        yield tf.convert_to_tensor(inputs), tf.convert_to_tensor(targets)
