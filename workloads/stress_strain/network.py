"""The network of the study as numbers, the same for every framework: shapes, weights, operations.

Weights have PyTorch's layout and order: a convolution's kernel is (out, in, width), a dense layer's
(out, in), and what it flattens is (channels, points).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from workloads.stress_strain.curves import CHANNELS, LABELS, POINTS

FILTERS = 32
WIDTHS = (9, 7)  # of the two convolutions' kernels
POOLS = (2, 4)
POOLED = POINTS // (POOLS[0] * POOLS[1])  # points that are left before the dense layers
HIDDEN = 181

#: Layer name → shape of its kernel; a bias has as many numbers as the kernel's first axis.
KERNELS: Mapping[str, tuple[int, ...]] = {
    "conv1": (FILTERS, CHANNELS, WIDTHS[0]),
    "conv2": (FILTERS, FILTERS, WIDTHS[1]),
    "dense1": (HIDDEN, FILTERS * POOLED),
    "dense2": (LABELS, HIDDEN),
}


def initial_weights(seed: int) -> dict[str, tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Return kernel and bias of each layer, uniform in ±1/sqrt(fan-in), PyTorch's default.

    A pure function of ``seed``, so that one seed gives every framework the same network.
    """
    generator = np.random.Generator(np.random.Philox(key=seed))
    found = {}
    for name, shape in KERNELS.items():
        bound = 1 / math.sqrt(math.prod(shape[1:]))
        kernel, bias = (
            ((2 * generator.random(size, dtype=np.float32) - 1) * bound).astype(np.float32)
            for size in (shape, shape[:1])
        )
        found[name] = (kernel, bias)
    return found


def flops_per_sample() -> float:
    """Return the floating-point operations of one training step, a sample.

    Convention: a multiply-add is two; convolutions and matrix products alone are counted, not
    biases, activations, pooling, loss and optimiser. Backward takes each product twice more, for
    the gradients of weights and of inputs; the first layer's inputs need none.
    """
    points = {"conv1": POINTS, "conv2": POINTS // POOLS[0]}
    forward = {name: 2 * math.prod(shape) * points.get(name, 1) for name, shape in KERNELS.items()}
    return float(3 * sum(forward.values()) - forward["conv1"])
