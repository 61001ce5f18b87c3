"""The language model in TensorFlow (Keras 3): embedding, LSTM with carried state, projection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from workloads.api import Parts, Samples
from workloads.lstm.evaluation import Scoring, streams
from workloads.lstm.shape import Shape, Weights, initial_weights
from workloads.tf_parts import make_parts, no_fused


class CarriedState(keras.Variable):  # type: ignore[misc]
    """An untrained variable (layers, n, hidden), of which n may change from step to step.

    Keras wants every dimension of a variable to be known, TensorFlow does not; and only a variable
    of Keras is found among a model's. It stays float32 in every policy.
    """

    def __init__(self, layers: int, hidden: int, name: str) -> None:
        self._unknown_rows = tf.TensorShape([layers, None, hidden])
        super().__init__(
            "zeros", shape=(layers, 1, hidden), trainable=False, autocast=False, name=name
        )

    def _initialize(self, value: Any) -> None:
        first = value() if callable(value) else value
        super()._initialize(
            tf.Variable(first, trainable=False, name=self.name, shape=self._unknown_rows)
        )


class LanguageModel(keras.Model):  # type: ignore[misc]
    """Tokens (n, sequence) to logits of the next ones, (n, sequence, vocabulary).

    Row r of a batch goes on where row r of the batch before it ended; no gradient goes through
    what is carried (truncated back-propagation in time). A batch of another size begins with zeros.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.table = self.add_weight(
            shape=(shape.vocabulary, shape.embedding), name="embedding", initializer="zeros"
        )
        # Zeros, because Keras' own initialisation takes seconds and is not used.
        blank = {"kernel_initializer": "zeros", "bias_initializer": "zeros"}
        self.lstm = [
            keras.layers.LSTM(
                shape.hidden,
                return_sequences=True,
                return_state=True,
                recurrent_initializer="zeros",
                unit_forget_bias=False,
                name=f"lstm_{layer}",
                **blank,
            )
            for layer in range(shape.layers)
        ]
        self.projection = keras.layers.Dense(shape.vocabulary, name="projection", **blank)
        for layer, lstm in enumerate(self.lstm):
            lstm.build((None, None, shape.inputs(layer)))
        self.projection.build((None, None, shape.hidden))
        self.hidden = CarriedState(shape.layers, shape.hidden, "hidden")
        self.cell = CarriedState(shape.layers, shape.hidden, "cell")
        self.built = True

    def call(self, tokens: Any, training: bool = False) -> Any:
        """Return the logits, and carry the state on."""
        if tokens.shape[0] is not None:
            with tf.init_scope():  # before a graph's first step: XLA can change no shape in one
                self._fit(tokens.shape[0])
        rows = tf.shape(tokens)[0]
        hidden, cell = _rows(self.hidden.value, rows), _rows(self.cell.value, rows)
        outputs = _embed(tf.convert_to_tensor(self.table), tf.cast(tokens, tf.int32))
        last_hidden, last_cell = [], []
        for layer, lstm in enumerate(self.lstm):
            state = [tf.cast(one[layer], outputs.dtype) for one in (hidden, cell)]
            outputs, *last = lstm(outputs, initial_state=state, training=training)
            last_hidden.append(last[0])
            last_cell.append(last[1])
        for carried, last in ((self.hidden, last_hidden), (self.cell, last_cell)):
            carried.value.assign(tf.stop_gradient(tf.cast(tf.stack(last), tf.float32)))
        return self.projection(outputs)

    def forget(self) -> None:
        """Let every row begin anew."""
        for carried in (self.hidden.value, self.cell.value):
            carried.assign(tf.zeros_like(carried))

    def _fit(self, rows: int) -> None:
        """Give the state so many rows, of zeros, where it has another number."""
        for carried in (self.hidden.value, self.cell.value):
            layers, there, width = carried.read_value().shape
            if there != rows:
                carried.assign(tf.zeros([layers, rows, width]))

    def keep(self, rows: int) -> None:
        """Go on with the first rows alone."""
        for carried in (self.hidden.value, self.cell.value):
            carried.assign(carried[:, :rows])

    @contextmanager
    def reading_elsewhere(self) -> Iterator[None]:
        """Begin with an empty state, and put back the one that there was."""
        carried = self.hidden.value, self.cell.value
        before = [tf.identity(one) for one in carried]
        self.forget()
        try:
            yield
        finally:
            for one, value in zip(carried, before, strict=True):
                one.assign(value)

    @tf.function  # type: ignore[untyped-decorator]
    def loss_of(self, tokens: Any, targets: Any) -> Any:
        """Return the mean cross-entropy a token, nats, not in training."""
        return loss(self(tokens, training=False), targets)


def _rows(state: Any, rows: Any) -> Any:
    """Return a carried state for so many rows: as it is, or zeros where it has another number.

    Without a branch, whose two sides would have unlike shapes, which XLA refuses.
    """
    state = tf.convert_to_tensor(state)
    there = tf.shape(state)[1]
    padding = [[0, 0], [0, tf.maximum(rows - there, 0)], [0, 0]]
    fitted = tf.pad(state[:, : tf.minimum(rows, there)], padding)
    return tf.stop_gradient(tf.where(tf.equal(rows, there), fitted, tf.zeros_like(fitted)))


@tf.custom_gradient  # type: ignore[untyped-decorator]
def _embed(table: Any, tokens: Any) -> tuple[Any, Any]:
    """Look tokens up, with a dense gradient of the table.

    TensorFlow's own is a list of the rows that were looked up, which would be gathered from all
    ranks and not reduced; PyTorch's is dense, and both frameworks shall send the same.
    """
    vocabulary, width = table.shape

    def gradient(upstream: Any) -> tuple[Any, None]:
        flat = tf.reshape(upstream, [-1, width])
        return tf.math.unsorted_segment_sum(flat, tf.reshape(tokens, [-1]), vocabulary), None

    return tf.gather(table, tokens), gradient


def build(shape: Shape, seed: int, scoring: Scoring, clip_norm: float | None) -> Parts:
    """Build the model, a pure function of ``seed``, with what trains it."""

    def evaluate(model: Any, samples: Samples) -> dict[str, float]:
        return scoring.metrics(mean_loss(model, samples))

    return make_parts(
        make_model(shape, seed),
        loss,
        adam,
        evaluate,
        shape.flops_per_sample,
        clip_norm=clip_norm,
        start_epoch=LanguageModel.forget,
    )


def make_model(shape: Shape, seed: int) -> LanguageModel:
    """Return the model with the initial weights of ``seed``."""
    model = LanguageModel(shape)
    load(model, initial_weights(shape, seed))
    return model


def load(model: LanguageModel, weights: Weights) -> None:
    """Put weights, named and laid out as PyTorch has them, into a model; gates are in one order."""
    model.table.assign(weights["embedding.weight"])
    for layer, lstm in enumerate(model.lstm):
        lstm.cell.kernel.assign(weights[f"lstm.weight_ih_l{layer}"].T)
        lstm.cell.recurrent_kernel.assign(weights[f"lstm.weight_hh_l{layer}"].T)
        lstm.cell.bias.assign(weights[f"lstm.bias_ih_l{layer}"])
    model.projection.kernel.assign(weights["projection.weight"].T)
    model.projection.bias.assign(weights["projection.bias"])


def loss(logits: Any, targets: Any) -> Any:
    """Return the mean cross-entropy a token, nats, in float32."""
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=tf.cast(targets, tf.int32), logits=tf.cast(logits, tf.float32)
    )
    return tf.reduce_mean(each)


def adam(model: LanguageModel, learning_rate: float, fused: bool) -> Any:
    """Return Adam with PyTorch's epsilon, built over all trained parameters."""
    no_fused(fused)
    optimiser = keras.optimizers.Adam(learning_rate, epsilon=1e-8)
    optimiser.build(model.trainable_variables)
    return optimiser


def mean_loss(model: LanguageModel, samples: Samples) -> float:
    """Return the mean cross-entropy a token, nats, the split read in order with carried state."""
    total, tokens = 0.0, 0
    with model.reading_elsewhere():
        rows = None
        for indices in streams(len(samples)):
            if rows is not None and len(indices) < rows:
                model.keep(len(indices))
            rows = len(indices)
            inputs, targets = samples.gather(indices)
            found = model.loss_of(tf.convert_to_tensor(inputs), tf.convert_to_tensor(targets))
            total += float(found) * targets.size
            tokens += targets.size
    return total / tokens
