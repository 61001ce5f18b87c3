"""The compiled step: whole batches and parts of them, its state, its marks, XLA, clipping."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.config import RunConfig
from harness.engines.api import BOUNDARIES
from harness.errors import LaunchError
from workloads.api import Parts

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from harness.engines import tf_state  # noqa: E402
from harness.engines.tf_failures import out_of_memory, unimplemented  # noqa: E402
from harness.engines.tf_step import TfStep  # noqa: E402
from workloads.tf_parts import make_parts  # noqa: E402

RATE = 0.5


class Net(keras.Model):
    """Dense layers with statistics, dropout, a lookup and a variable that Keras overlooks."""

    def __init__(self, plain: bool) -> None:
        super().__init__()
        self.table = keras.layers.Embedding(7, 3)
        self.hidden = keras.layers.Dense(5, activation="tanh")
        self.norm = None if plain else keras.layers.BatchNormalization()
        self.drop = None if plain else keras.layers.Dropout(0.3, seed=3)
        self.out = keras.layers.Dense(2)
        self.unused = self.add_weight(shape=(4,), name="unused")
        self.calls = tf.Variable(0, trainable=False)

    def call(self, inputs: Any, training: bool = False) -> Any:
        self.calls.assign_add(1)
        rows = tf.cast(tf.abs(inputs[:, 0]) * 3, tf.int32) % 7
        values = self.hidden(inputs) + tf.pad(self.table(rows), [[0, 0], [0, 2]])
        if self.norm is not None:
            values = self.drop(self.norm(values, training=training), training=training)
        return self.out(values)


def squared(outputs: Any, targets: Any) -> Any:
    return tf.reduce_mean(tf.math.squared_difference(tf.cast(outputs, tf.float32), targets))


def sgd(model: Any, rate: float, fused: bool) -> Any:
    return keras.optimizers.SGD(rate, momentum=0.5)


def parts(plain: bool = False, clip_norm: float | None = None) -> Parts:
    keras.utils.set_random_seed(4)
    model = Net(plain)
    model(tf.zeros((2, 3)))
    return make_parts(model, squared, sgd, lambda made, samples: {}, 0.0, clip_norm=clip_norm)


def make(given: Parts | None = None, deterministic: bool = False, **execution: Any) -> TfStep:
    given = given or parts()
    config = RunConfig.model_validate(
        {
            "workload": {"name": "stress_strain", "framework": "tensorflow"},
            "engine": "none",
            "batch_size": 12,
            "execution": execution,
            "deterministic": deterministic,
        }
    )
    return TfStep(given, given.optimiser(given.model, RATE, False), config, "/CPU:0")


def batch(size: int = 12, seed: int = 1) -> tuple[Any, Any]:
    generator = np.random.default_rng(seed)
    return tuple(
        tf.constant(generator.standard_normal((size, n)), dtype=tf.float32) for n in (3, 2)
    )


def values(step: TfStep) -> list[np.ndarray]:
    return [v.numpy() for v in step.model.trainable_variables]


def assert_close(one: TfStep, other: TfStep, **tolerance: float) -> None:
    for a, b in zip(values(one), values(other), strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


def by_hand(given: Parts, clip_norm: float | None = None) -> Callable[[Any], float]:
    """Return a step as a user would write it, eagerly."""
    optimiser = given.optimiser(given.model, RATE, False)

    def train(pair: Any) -> float:
        with tf.GradientTape() as tape:
            loss = given.loss(given.model(pair[0], training=True), pair[1])
        weights = given.model.trainable_variables
        wanted = tape.gradient(loss, [w.value for w in weights])
        gradients = [
            tf.zeros(w.shape) if g is None else tf.convert_to_tensor(g)
            for g, w in zip(wanted, weights, strict=True)
        ]
        if clip_norm is not None:
            norm = np.sqrt(sum(float(tf.reduce_sum(g * g)) for g in gradients))
            gradients = [g * min(1.0, clip_norm / norm) for g in gradients]
        optimiser.apply(gradients, weights)
        return float(loss)

    return train


@pytest.mark.parametrize("clip_norm", [None, 0.05])
def test_a_step_is_the_one_a_user_would_write(clip_norm: float | None) -> None:
    step, given = make(parts(clip_norm=clip_norm)), parts()
    train = by_hand(given, clip_norm)
    for seed in range(3):
        pair = batch(seed=seed)
        assert float(step.run(pair)) == pytest.approx(train(pair), rel=1e-5)
    for mine, theirs in zip(values(step), given.model.trainable_variables, strict=True):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-4, atol=1e-6)


def test_losses_stay_on_the_device_and_are_not_overwritten() -> None:
    step = make()
    kept = [step.run(batch(seed=seed)) for seed in range(3)]
    assert all(isinstance(loss, tf.Tensor) for loss in kept)
    found = step.losses(kept)
    assert found.dtype == np.float64
    assert len(set(found.tolist())) == 3
    assert step.losses([]).shape == (0,)


def test_one_shape_is_traced_once_whatever_the_learning_rate() -> None:
    step = make()
    for rate in (0.0, 0.5):
        step.set_learning_rate(rate)
        before = step.checksum()
        step.run(batch())
        assert (step.checksum() == before) == (rate == 0.0)
    assert len(step._traced) == 1
    step.run(batch(6))
    assert len(step._traced) == 2


@pytest.mark.parametrize("accumulate", [2, 3])
def test_equal_parts_give_the_gradients_of_the_whole_batch(accumulate: int) -> None:
    whole, split = make(parts(plain=True)), make(parts(plain=True), accumulate=accumulate)
    for seed in range(3):
        losses = [float(step.run(batch(seed=seed))) for step in (whole, split)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert_close(whole, split, rtol=1e-4, atol=1e-6)
    assert int(split.model.calls) - int(whole.model.calls) == 3 * (accumulate - 1)


def test_a_batch_without_equal_parts_is_refused() -> None:
    step = make(accumulate=5)
    before = step.checksum()
    with pytest.raises(LaunchError, match="batch of 12 has no 5 equal parts"):
        step.run(batch())
    assert step.checksum() == before


@pytest.mark.parametrize("snapshot_first", [True, False])
def test_what_is_put_back_goes_on_bit_for_bit(snapshot_first: bool) -> None:
    step = make()
    if not snapshot_first:  # there is momentum, and more variables are known
        step.run(batch())
    before = step.snapshot()
    everything = [v.numpy() for v in step._state()]

    def train() -> tuple[list[float], str, float]:
        losses = step.losses([step.run(batch(seed=seed)) for seed in range(3)])
        return losses.tolist(), step.checksum(), np.random.random()

    first = train()
    step.restore(before)
    for variable, value in zip(step._state(), everything, strict=False):
        np.testing.assert_array_equal(variable.numpy(), value)
    assert train() == first
    assert train()[0] != first[0]


def test_the_state_has_every_kind_of_variable() -> None:
    step = make()
    found = {id(variable) for variable in step._state()}
    model = step.model
    for variable in (
        model.norm.moving_mean,
        model.drop.seed_generator.state,
        model.calls,
        step.optimiser.iterations,
        *step.optimiser.variables,
        model.unused,
    ):
        assert id(tf_state.plain(variable)) in found, variable


def test_a_variable_that_was_made_later_cannot_be_put_back() -> None:
    step = make()
    before = step.snapshot()
    step.model.hidden.extra = tf.Variable(1.0, trainable=False, name="late")
    with pytest.raises(LaunchError, match=r"late:0: made after the state was copied"):
        step.restore(before)


def test_a_gradient_is_the_local_one_and_leaves_everything() -> None:
    step = make(parts(clip_norm=1e-3))
    step.run(batch())
    state = [v.numpy() for v in step._state()]
    flat = step.gradient(batch(seed=7)).value.numpy()
    for variable, value in zip(step._state(), state, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    model = step.model
    with tf.GradientTape() as tape:
        inputs, targets = batch(seed=7)
        loss = squared(model(inputs, training=True), targets)
    wanted = tape.gradient(loss, [v.value for v in model.trainable_variables])
    whole = [
        np.zeros(v.shape) if g is None else tf.convert_to_tensor(g).numpy()
        for g, v in zip(wanted, model.trainable_variables, strict=True)
    ]
    np.testing.assert_allclose(flat, np.concatenate([g.ravel() for g in whole]), atol=1e-6)
    assert flat.dtype == np.float32


def test_marks_are_seconds_of_the_hosts_clock_in_order() -> None:
    step = make()
    plain = make()
    started = time.perf_counter()
    marked_losses = [float(step.run_marked(lambda s=seed: batch(seed=s))) for seed in range(4)]
    ended = time.perf_counter()
    assert marked_losses == [float(plain.run(batch(seed=seed))) for seed in range(4)]
    marks = step.take_marks()
    assert marks.shape == (4, len(BOUNDARIES))
    assert (np.diff(marks.ravel()) >= -2e-6).all()  # timestamps have microseconds
    assert started <= marks[0, 0]
    assert marks[-1, -1] <= ended
    assert (np.diff(marks, axis=1)[:, 1:3] > 0).all()  # forward and backward are apart
    assert step.take_marks().shape == (0, len(BOUNDARIES))


def test_marks_that_are_expected_are_ready_and_training_is_as_before() -> None:
    step, other = make(), make()
    step.expect_marks(3)  # nothing is known of a batch yet
    for one in (step, other):
        one.run(batch())
    state = [v.numpy() for v in step._state()]
    step.expect_marks(3)
    assert len(step._traced) == 2
    for variable, value in zip(step._state(), state, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    assert step.take_marks().shape == (0, len(BOUNDARIES))
    assert float(step.run_marked(batch)) == float(other.run(batch()))
    assert len(step._traced) == 2


def test_where_nothing_can_be_marked_inside_only_the_ends_are() -> None:
    step = make(deterministic=True)
    step.run_marked(batch)
    (marks,) = step.take_marks()
    assert np.isnan(marks).tolist() == [False, False, True, True, True, False]
    assert marks[0] <= marks[1] <= marks[5]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_xla_computes_the_same_and_says_so(accumulate: int) -> None:
    plain = make(parts(plain=True), accumulate=accumulate)
    compiled = make(parts(plain=True), compile=True, accumulate=accumulate)
    for seed in range(2):
        plain.run(batch(seed=seed))
        compiled.run(batch(seed=seed))
    assert_close(plain, compiled, rtol=1e-4, atol=1e-6)
    assert compiled.options == {
        "execution.compile: true": f"{accumulate} calls in a step must be compiled by XLA"
    }
    assert plain.options == {}
    compiled.run_marked(batch)
    (marks,) = compiled.take_marks()
    assert np.isnan(marks).tolist() == [False, False, True, False, False, False]


def test_checksums_are_of_the_weights_and_not_of_layers_numbers() -> None:
    one, other = make(), make()
    names = [step.model.hidden.name for step in (one, other)]
    assert names[0] != names[1]
    assert one.checksum() == other.checksum()
    other.model.unused.assign([0.0, 0.0, 0.0, 1e-30])
    assert one.checksum() != other.checksum()


def test_weights_are_copies_with_the_statistics() -> None:
    step = make()
    before = step.weights()
    step.run(batch())
    after = step.weights()
    assert before.keys() == after.keys()
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert any("moving_mean" in name for name in changed)
    assert sum(v.size for v in after.values()) == sum(v.size for v in values(step)) + 2 * 5


def test_what_tensorflow_says_of_memory_becomes_one_line_with_a_cure() -> None:
    said = "Graph execution error: OOM when allocating tensor with shape[9,9] and type float on /x"
    assert out_of_memory(said, 96) == (
        "the host's memory is full: a step with a batch of 96 samples on this rank asked for "
        "shape[9,9] and type float; lower batch_size, or raise execution.accumulate"
    )


def test_a_step_that_found_no_memory_says_its_batch() -> None:
    """Asked of the allocator for real: more than any address space has."""

    def loss(outputs: Any, targets: Any) -> Any:
        # Of a size that is known when it runs, or it would be folded away.
        count = tf.cast(tf.shape(outputs)[0], tf.int64) * (1 << 42)
        return squared(outputs, targets) + tf.reduce_max(tf.fill([count], outputs[0, 0]))

    step = make(replace(parts(plain=True), loss=loss))
    with pytest.raises(LaunchError, match=r"batch of 12 samples .* lower batch_size"):
        step.run(batch())


def test_a_missing_kernel_is_one_line() -> None:
    said = "Graph execution error:\n\nDetected at node x\nNo deterministic Y is implemented.\n [[x"
    assert unimplemented(said) == (
        "TensorFlow has no kernel for a part of this step: No deterministic Y is implemented. Set "
        "deterministic or execution.compile to false"
    )
