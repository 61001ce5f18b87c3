"""The stress-strain network in TensorFlow: that of ``torch_model``, number for number."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from workloads.api import Parts, Samples
from workloads.stress_strain.curves import CHANNELS, LABELS, POINTS
from workloads.stress_strain.network import (
    FILTERS,
    HIDDEN,
    POOLED,
    POOLS,
    WIDTHS,
    flops_per_sample,
    initial_weights,
)
from workloads.tf_parts import batches, make_parts, no_fused, predict

_EVALUATION_BATCH = 4096


def build(seed: int) -> Parts:
    """Build the network, a pure function of ``seed``, with what trains it."""
    return make_parts(make_model(seed), mean_squared_error, _adam, evaluate, flops_per_sample())


def make_model(seed: int) -> Any:
    """Return the network, curves (n, 3, 200) to normalised G0 and a, (n, 2).

    Keras convolves on a CPU with the channels last alone, so the curves are turned first; the
    weights are turned to fit, once, so that nothing else has to be.
    """
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((CHANNELS, POINTS)),
            layers.Permute((2, 1), name="points_first"),
            layers.Conv1D(FILTERS, WIDTHS[0], padding="same", activation="relu", name="conv1"),
            layers.MaxPooling1D(POOLS[0], name="pool1"),
            layers.Conv1D(FILTERS, WIDTHS[1], padding="same", activation="relu", name="conv2"),
            layers.MaxPooling1D(POOLS[1], name="pool2"),
            layers.Flatten(name="flatten"),
            layers.Dense(HIDDEN, activation="relu", name="dense1"),
            layers.Dense(LABELS, name="dense2"),
        ],
        name="stress_strain",
    )
    for name, (kernel, bias) in initial_weights(seed).items():
        model.get_layer(name).set_weights([to_keras(name, kernel), bias])
    return model


def to_keras(name: str, kernel: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a kernel in the layout of Keras: (width, in, out), or (in, out).

    The first dense layer's inputs are flattened points by channels here, and channels by points in
    PyTorch.
    """
    if name == "dense1":
        by_channel = kernel.reshape(HIDDEN, FILTERS, POOLED)
        return np.ascontiguousarray(by_channel.transpose(2, 1, 0).reshape(-1, HIDDEN))
    return np.ascontiguousarray(kernel.transpose())


def mean_squared_error(outputs: Any, targets: Any) -> Any:
    """Return the mean over samples and labels, in float32 whatever the network computes in."""
    return tf.reduce_mean(tf.math.squared_difference(tf.cast(outputs, tf.float32), targets))


def evaluate(model: Any, samples: Samples) -> dict[str, float]:
    """Return ``{"mse": ...}``, the mean over samples and both labels; the model stays as it was."""
    total = 0.0
    for inputs, labels in batches(samples, _EVALUATION_BATCH):
        wrong = tf.cast(predict(model, inputs), tf.float64) - tf.cast(labels, tf.float64)
        total += float(tf.reduce_sum(tf.square(wrong)))
    return {"mse": total / (len(samples) * LABELS)}


def _adam(model: Any, learning_rate: float, fused: bool) -> Any:
    """Return Adam over all trainable parameters of ``model``, with PyTorch's epsilon."""
    no_fused(fused)
    return keras.optimizers.Adam(learning_rate, epsilon=1e-8)
