"""The language model's sizes, and what follows from them: parameters, work, initial weights.

Weights are made by NumPy and named and laid out as PyTorch has them, so that for one seed the
model is the same in every framework. Each LSTM layer has one trained bias: a second one, as cuDNN
and PyTorch have it, adds nothing to the function and doubles that bias's step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Weights = dict[str, NDArray[np.float32]]

GATES = 4  # input, forget, cell, output: this order in PyTorch and in Keras


@dataclass(frozen=True)
class Shape:
    """Embedding, LSTM layers one on another, projection to the vocabulary."""

    vocabulary: int
    embedding: int
    hidden: int
    layers: int
    sequence: int  # tokens a sample

    def inputs(self, layer: int) -> int:
        """Return the width of what an LSTM layer, counted from 0, reads."""
        return self.hidden if layer else self.embedding

    @property
    def parameters(self) -> int:
        """The number of trained parameters."""
        rows = GATES * self.hidden
        lstm = sum(rows * (self.inputs(layer) + self.hidden + 1) for layer in range(self.layers))
        return self.vocabulary * (self.embedding + self.hidden + 1) + lstm

    @property
    def flops_per_sample(self) -> float:
        """The floating-point operations of one training step, a sample of ``sequence`` tokens.

        Convention: a multiply-add is two; matrix products alone are counted, not the embedding (a
        look-up), biases, gates, loss and optimiser. Backward takes each product twice more, for
        the gradients of weights and of inputs; the state that a sample begins with needs none.
        """
        rows = GATES * self.hidden
        products = sum(rows * (self.inputs(layer) + self.hidden) for layer in range(self.layers))
        token = 2 * (products + self.hidden * self.vocabulary)
        first_state = 2 * rows * self.hidden * self.layers
        return float(3 * token * self.sequence - first_state)


def initial_weights(shape: Shape, seed: int) -> Weights:
    """Return float32 weights by PyTorch's names, a pure function of ``seed``.

    Embedding standard normal; matrices uniform in +-1/sqrt(hidden), as PyTorch does by default;
    biases zero, but the forget gates' one, so that memory is kept from the start (Jozefowicz,
    Zaremba and Sutskever 2015).
    """
    hidden, rows = shape.hidden, GATES * shape.hidden
    generator = np.random.Generator(np.random.Philox(key=[seed, 0]))
    bound = 1 / math.sqrt(hidden)

    def uniform(*size: int) -> NDArray[np.float32]:
        return (generator.random(size, np.float32) * 2 - 1) * np.float32(bound)

    weights: Weights = {
        "embedding.weight": generator.standard_normal(
            (shape.vocabulary, shape.embedding), np.float32
        )
    }
    for layer in range(shape.layers):
        bias = np.zeros(rows, np.float32)
        bias[hidden : 2 * hidden] = 1
        weights[f"lstm.weight_ih_l{layer}"] = uniform(rows, shape.inputs(layer))
        weights[f"lstm.weight_hh_l{layer}"] = uniform(rows, hidden)
        weights[f"lstm.bias_ih_l{layer}"] = bias
    weights["projection.weight"] = uniform(shape.vocabulary, hidden)
    weights["projection.bias"] = np.zeros(shape.vocabulary, np.float32)
    return weights
