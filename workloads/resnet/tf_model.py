"""ResNet v1.5 in TensorFlow: that of ``torch_model``, number for number.

Images arrive (n, 3, h, w) and are turned once; inside, channels are last, as TensorFlow wants them
on a CPU. Weights come and go by torchvision's names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from workloads.api import Parts, Samples
from workloads.resnet.architecture import (
    CHANNELS,
    Architecture,
    Convolution,
    initial_weights,
)
from workloads.resnet.recipe import (
    EPSILON,
    EVALUATION_BATCH,
    MOMENTUM,
    NORM_MOMENTUM,
    TOP,
    WEIGHT_DECAY,
    scale_and_shift,
)
from workloads.resnet.weights import Float
from workloads.tf_parts import batches, make_parts, no_fused, predict

layers = keras.layers


class BatchNorm(keras.layers.BatchNormalization):  # type: ignore[misc]
    """Batch normalisation in one fused operation, with PyTorch's moving variance.

    Keras 3 composes it of many operations, and moves the variance by that of the batch over n;
    PyTorch, and the fused operation, over n - 1. Weights and statistics are float32 in every
    policy; the activations keep their type.
    """

    def __init__(self, name: str) -> None:
        super().__init__(
            momentum=NORM_MOMENTUM, epsilon=EPSILON, name=name, dtype="float32", autocast=False
        )

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Return the normalised inputs, (n, h, w, channels); in training, move the statistics."""
        outputs, mean, variance = tf.compat.v1.nn.fused_batch_norm(
            inputs,
            tf.convert_to_tensor(self.gamma),
            tf.convert_to_tensor(self.beta),
            None if training else tf.convert_to_tensor(self.moving_mean),
            None if training else tf.convert_to_tensor(self.moving_variance),
            epsilon=EPSILON,
            is_training=bool(training),
        )
        if training:
            for moving, batch in ((self.moving_mean, mean), (self.moving_variance, variance)):
                moving.assign(moving * NORM_MOMENTUM + batch * (1 - NORM_MOMENTUM))
        return outputs


class ResNet(keras.Model):  # type: ignore[misc]
    """Images (n, 3, h, w) to logits (n, classes).

    uint8 images, 0 to 255, are normalised here with ImageNet's mean and standard deviation; images
    of a floating-point type are used as they are.
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__(name=f"resnet{architecture.depth}")
        self.architecture = architecture
        self.network = _network(architecture)

    def call(self, images: Any, training: bool | None = None) -> Any:
        """Return the logits, (n, classes)."""
        last = tf.transpose(images, (0, 2, 3, 1))
        if images.dtype == tf.uint8:
            scale, shift = (tf.constant(values) for values in scale_and_shift())
            last = tf.cast(last, tf.float32) * scale + shift
        return self.network(tf.cast(last, self.compute_dtype), training=training)


class Sgd(keras.optimizers.SGD):  # type: ignore[misc]
    """SGD with PyTorch's momentum and weight decay.

    The decay is part of the gradient (Keras has it apart from the momentum), and the learning rate
    is not part of the momentum (in Keras it is, so that a new rate reaches old gradients late:
    Goyal et al. 2017, remark 2).
    """

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one variable: m = MOMENTUM m + g + WEIGHT_DECAY w, then w -= rate m."""
        rate = tf.cast(learning_rate, variable.dtype)
        decayed = tf.cast(gradient, variable.dtype) + WEIGHT_DECAY * variable
        momentum = self.momentums[self._get_variable_index(variable)]
        self.assign(momentum, MOMENTUM * momentum + decayed)
        self.assign_sub(variable, rate * momentum)


def build(architecture: Architecture, image_size: int, seed: int, zero_gamma: bool) -> Parts:
    """Build the network, a pure function of ``seed``, with what trains it."""
    model = make_model(architecture, initial_weights(architecture, seed, zero_gamma))
    flops = architecture.flops_per_sample(image_size)
    return make_parts(model, cross_entropy, _sgd, evaluate, flops)


def make_model(architecture: Architecture, state: Mapping[str, Float]) -> ResNet:
    """Return the network with the weights ``state``, all of them and no others."""
    model = ResNet(architecture)
    model.build((None, CHANNELS, None, None))
    variables = variables_by_name(model)
    if variables.keys() != state.keys():
        raise ValueError(f"weights that do not fit: {sorted(variables.keys() ^ state.keys())}")
    for name, variable in variables.items():
        variable.assign(to_keras(state[name]))
    return model


def variables_by_name(model: ResNet) -> dict[str, Any]:
    """Return the Keras variables by torchvision's names, in torchvision's order."""
    found: dict[str, Any] = {}
    for conv in model.architecture.convolutions():
        norm = model.network.get_layer(conv.norm)
        found[f"{conv.name}.weight"] = model.network.get_layer(conv.name).kernel
        found[f"{conv.norm}.weight"] = norm.gamma
        found[f"{conv.norm}.bias"] = norm.beta
        found[f"{conv.norm}.running_mean"] = norm.moving_mean
        found[f"{conv.norm}.running_var"] = norm.moving_variance
    dense = model.network.get_layer("fc")
    return {**found, "fc.weight": dense.kernel, "fc.bias": dense.bias}


def to_keras(values: Float) -> NDArray[np.float32]:
    """Return a tensor in the layout of Keras: (kernel, kernel, in, out), (in, out) or (n,)."""
    axes = {4: (2, 3, 1, 0), 2: (1, 0), 1: (0,)}[values.ndim]
    return np.ascontiguousarray(values.transpose(axes))


def cross_entropy(outputs: Any, targets: Any) -> Any:
    """Return the mean over the samples, in float32 whatever the network computes in."""
    logits = tf.cast(outputs, tf.float32)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits)
    return tf.reduce_mean(losses)


def evaluate(model: Any, samples: Samples) -> dict[str, float]:
    """Return ``accuracy`` (top 1), ``loss``, and ``top5`` where there are more than 5 classes.

    Means over all samples; the model stays as it was.
    """
    loss, right, near = 0.0, 0, 0
    classes = model.architecture.classes
    for images, targets in batches(samples, EVALUATION_BATCH):
        logits = tf.cast(predict(model, images), tf.float32)
        loss += float(cross_entropy(logits, targets)) * len(targets)
        best = tf.math.top_k(logits, min(TOP, classes)).indices.numpy() == targets.numpy()[:, None]
        right += int(best[:, 0].sum())
        near += int(best.sum())
    count = len(samples)
    metrics = {"accuracy": right / count, "loss": loss / count}
    return {**metrics, "top5": near / count} if classes > TOP else metrics


def _network(architecture: Architecture) -> Any:
    """Return the layers as one Keras model: normalised images, channels last, to logits."""
    images = keras.Input((None, None, CHANNELS))
    x = layers.ReLU()(_conv_norm(architecture.stem, images))
    # Zeros pad as well as minus infinity: what comes out of a ReLU is not below them.
    x = layers.MaxPooling2D(3, strides=2)(layers.ZeroPadding2D(1)(x))
    for block in architecture.blocks:
        branch = x
        for index, conv in enumerate(block.branch):
            branch = _conv_norm(conv, layers.ReLU()(branch) if index else branch)
        shortcut = x if block.shortcut is None else _conv_norm(block.shortcut, x)
        x = layers.ReLU(name=block.name)(layers.Add()([branch, shortcut]))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(images, layers.Dense(architecture.classes, name="fc")(x), name="network")


def _conv_norm(conv: Convolution, x: Any) -> Any:
    """Apply a convolution and its normalisation, padded as PyTorch pads: evenly on both sides.

    Keras's "same" pads one side more where the stride is 2.
    """
    padding = conv.kernel // 2
    if padding:
        x = layers.ZeroPadding2D(padding)(x)
    kernel = layers.Conv2D(
        conv.outputs,
        conv.kernel,
        strides=conv.stride,
        use_bias=False,
        kernel_initializer="zeros",
        name=conv.name,
    )
    return BatchNorm(conv.norm)(kernel(x))


def _sgd(model: Any, learning_rate: float, fused: bool) -> Sgd:
    """Return SGD with momentum and weight decay over all trainable parameters of ``model``."""
    no_fused(fused)
    return Sgd(learning_rate, momentum=MOMENTUM)
