"""The language model in TensorFlow: the same as PyTorch's, its state carried in variables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch")
tf = pytest.importorskip("tensorflow")

import keras  # noqa: E402

from workloads.api import ArraySamples, Parts, WorkloadError  # noqa: E402
from workloads.lstm import Lstm, evaluation, tf_model, torch_model  # noqa: E402
from workloads.lstm.evaluation import Scoring  # noqa: E402
from workloads.lstm.shape import Shape  # noqa: E402

SMALL = Shape(vocabulary=30, embedding=6, hidden=8, layers=2, sequence=5)
BYTES = Scoring(byte_level=True, floor_nats=1.0)


@pytest.fixture(autouse=True)
def one_policy() -> Iterator[None]:
    before = keras.mixed_precision.dtype_policy()
    yield
    keras.mixed_precision.set_dtype_policy(before)


def build() -> Parts:
    return tf_model.build(SMALL, 1, BYTES, None)


def both() -> tuple[Parts, Parts]:
    return torch_model.build(SMALL, 1, BYTES, None), build()


def tokens(rows: int, seed: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 30, (rows, 5), dtype=np.uint8)


def state(model: Any) -> list[NDArray[np.float32]]:
    """The carried state as arrays, of either framework's model."""
    carried = (model.hidden, model.cell)
    if isinstance(model, torch.nn.Module):
        return [one.numpy().copy() for one in carried]
    return [one.value.numpy() for one in carried]


@pytest.mark.parametrize("variant", Lstm.info.variants, ids=lambda variant: variant.name)
def test_variants_have_the_parameters_that_they_state(variant: Any, tmp_path: Any) -> None:
    parts = Lstm(variant.options, tmp_path).parts("tensorflow", 1)
    assert parts.parameters == variant.parameters
    assert parts.gradient_bytes == 4 * variant.parameters
    assert parts.flops_per_sample == variant.flops_per_sample
    assert parts.clip_norm == 1.0


def test_one_seed_gives_both_frameworks_one_model_step_by_step() -> None:
    ours, theirs = both()
    for step, rows in enumerate((4, 4, 4, 3)):  # the last batch begins anew
        inputs, targets = tokens(rows, step), tokens(rows, step + 10)
        with torch.no_grad():
            logits = ours.model(torch.from_numpy(inputs))
            loss = ours.loss(logits, torch.from_numpy(targets))
        found = theirs.model(tf.constant(inputs), training=True)
        assert np.abs(found.numpy() - logits.numpy()).max() < 1e-5
        assert float(theirs.loss(found, tf.constant(targets))) == pytest.approx(float(loss))
        for a, b in zip(state(ours.model), state(theirs.model), strict=True):
            assert a.shape == b.shape == (2, rows, 8)
            assert np.abs(a - b).max() < 1e-5


def plain_sgd(model: Any) -> None:
    """One step at rate 1: what two Adams make of gradients near zero is not the model's matter."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter -= parameter.grad


@pytest.mark.parametrize("jit_compile", [False, True])
def test_training_in_a_graph_is_that_of_torch(jit_compile: bool) -> None:
    ours, theirs = both()

    @tf.function(jit_compile=jit_compile)  # type: ignore[untyped-decorator]
    def differentiate(inputs: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = theirs.loss(theirs.model(inputs, training=True), targets)
        return loss, tape.gradient(loss, theirs.model.trainable_variables)

    for step in range(4):
        inputs, targets = tokens(4, step), tokens(4, step + 10)
        loss = ours.loss(ours.model(torch.from_numpy(inputs)), torch.from_numpy(targets))
        ours.model.zero_grad()
        loss.backward()
        plain_sgd(ours.model)
        found, gradients = differentiate(tf.constant(inputs), tf.constant(targets))
        assert not any(isinstance(one, tf.IndexedSlices) for one in gradients)
        for variable, one in zip(theirs.model.trainable_variables, gradients, strict=True):
            variable.assign_sub(one)
        assert float(found) == pytest.approx(loss.item(), abs=1e-5)
    assert differentiate.experimental_get_tracing_count() == 1
    embedding = ours.model.embedding.weight.grad.numpy()
    assert np.abs(gradients[0].numpy() - embedding).max() < 1e-5
    for a, b in zip(state(ours.model), state(theirs.model), strict=True):
        assert np.abs(a - b).max() < 1e-5


def test_a_graph_begins_anew_where_the_state_has_other_rows() -> None:
    parts = build()
    step = tf.function(lambda inputs: parts.model(inputs, training=True))
    fresh = step(tf.constant(tokens(4, 1))).numpy()
    parts.model.hidden.value.assign(tf.ones([2, 1, 8]))  # as of before the first step
    assert np.array_equal(step(tf.constant(tokens(4, 1))).numpy()[:, 1:].shape, (4, 4, 30))
    step(tf.constant(tokens(3, 2)))
    assert np.allclose(step(tf.constant(tokens(4, 1))).numpy(), fresh, atol=1e-6)
    assert step.experimental_get_tracing_count() == 2  # of 4 rows and of 3


def test_carried_state_is_among_the_untrained_variables() -> None:
    model = build().model
    untrained = {variable.path: variable.value for variable in model.non_trainable_variables}
    for name in ("hidden", "cell"):
        assert isinstance(untrained[name], tf.Variable)
        assert untrained[name].shape.as_list() == [2, None, 8]
    assert {variable.path for variable in model.trainable_variables}.isdisjoint(untrained)


def test_start_epoch_forgets() -> None:
    parts = build()
    assert parts.start_epoch is not None
    inputs = tf.constant(tokens(3, 1))
    fresh = parts.model(inputs).numpy()
    assert not np.array_equal(parts.model(inputs).numpy(), fresh)
    parts.start_epoch(parts.model)
    assert np.array_equal(parts.model(inputs).numpy(), fresh)


def test_gradients_stop_where_a_sample_begins() -> None:
    parts = build()
    first, second, targets = (tf.constant(tokens(2, seed)) for seed in (1, 2, 3))
    with tf.GradientTape() as tape:
        parts.model(first)
        through = state(parts.model)
        loss = parts.loss(parts.model(second), targets)
    both_seen = tape.gradient(loss, parts.model.trainable_variables)
    for carried, value in zip((parts.model.hidden, parts.model.cell), through, strict=True):
        carried.value.assign(value)
    with tf.GradientTape() as tape:
        loss = parts.loss(parts.model(second), targets)
    for a, b in zip(both_seen, tape.gradient(loss, parts.model.trainable_variables), strict=True):
        assert np.array_equal(a.numpy(), b.numpy())
    unread = sorted(set(first.numpy().ravel().tolist()) - set(second.numpy().ravel().tolist()))
    assert unread
    assert np.abs(both_seen[0].numpy()[unread]).sum() == 0


def test_evaluation_is_that_of_torch_and_leaves_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (torch_model, tf_model):
        monkeypatch.setattr(module, "streams", lambda count: evaluation.streams(count, 3))
    run = np.random.default_rng(5).integers(0, 30, 56, dtype=np.uint8)
    split = ArraySamples(run[:-1].reshape(11, 5), run[1:].reshape(11, 5))
    ours, theirs = both()
    theirs.model(tf.constant(tokens(4, 1)))
    before = state(theirs.model)
    found = theirs.evaluate(theirs.model, split)
    assert found == pytest.approx(ours.evaluate(ours.model, split), rel=1e-5)
    assert found.keys() >= {"perplexity", "bits_per_byte", "excess_nats"}
    for a, b in zip(before, state(theirs.model), strict=True):
        assert np.array_equal(a, b)


def test_the_state_stays_float32_where_the_policy_is_bfloat16() -> None:
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    parts = build()
    inputs, targets = tf.constant(tokens(3, 1)), tf.constant(tokens(3, 2))
    with tf.GradientTape() as tape:
        outputs = parts.model(inputs, training=True)
        loss = parts.loss(outputs, targets)
    gradients = tape.gradient(loss, parts.model.trainable_variables)
    assert outputs.dtype == tf.bfloat16
    assert {one.dtype for one in gradients} == {loss.dtype} == {tf.float32}
    assert {one.dtype for one in state(parts.model)} == {np.dtype("float32")}
    keras.mixed_precision.set_dtype_policy("float32")
    full = build()
    assert float(loss) == pytest.approx(float(full.loss(full.model(inputs), targets)), abs=0.02)


def test_optimiser_is_adam_over_every_trained_variable() -> None:
    parts = build()
    optimiser = parts.optimiser(parts.model, 1e-2, False)
    assert type(optimiser) is keras.optimizers.Adam
    assert optimiser.epsilon == torch.optim.Adam([torch.zeros(1)]).defaults["eps"]
    before = [variable.numpy() for variable in parts.model.trainable_variables]
    optimiser.apply_gradients([(tf.ones(v.shape), v) for v in parts.model.trainable_variables])
    for variable, value in zip(parts.model.trainable_variables, before, strict=True):
        assert np.allclose(value - variable.numpy(), 1e-2, atol=1e-5)
    assert sum(value.size for value in before) == parts.parameters


def test_a_fused_optimiser_is_refused() -> None:
    parts = build()
    with pytest.raises(WorkloadError, match="no fused optimisers"):
        parts.optimiser(parts.model, 1e-2, True)
