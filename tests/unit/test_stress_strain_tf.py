"""The network in TensorFlow: the same as in PyTorch, from the same seed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
torch = pytest.importorskip("torch")
tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from workloads.api import Parts, WorkloadError  # noqa: E402
from workloads.stress_strain import StressStrain, network, tf_model, torch_model  # noqa: E402

GOLDEN = [-0.015960133, -0.075606711, 0.088320158]


@pytest.fixture(scope="module")
def both() -> tuple[Parts, Parts]:
    return torch_model.build(7), tf_model.build(7)


def curves(count: int = 50) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    inputs = generator.standard_normal((count, 3, 200), dtype=np.float32)
    return inputs, generator.random((count, 2), dtype=np.float32)


def test_size_and_operations_are_the_same(both: tuple[Parts, Parts]) -> None:
    for parts in both:
        assert parts.parameters == 153_441
        assert parts.gradient_bytes == 613_764
        assert parts.flops_per_sample == 5_862_972


def test_weights_of_one_seed_are_the_same_numbers(both: tuple[Parts, Parts]) -> None:
    theirs = torch.cat([p.detach().flatten() for p in both[0].model.parameters()]).numpy()
    mine = np.concatenate([v.numpy().ravel() for v in both[1].model.trainable_variables])
    np.testing.assert_array_equal(np.sort(mine), np.sort(theirs))


def test_outputs_loss_and_gradients_are_the_same(both: tuple[Parts, Parts]) -> None:
    inputs, labels = curves()
    in_torch, in_tf = both
    predicted = in_torch.model(torch.from_numpy(inputs))
    loss = in_torch.loss(predicted, torch.from_numpy(labels))
    loss.backward()
    with tf.GradientTape() as tape:
        outputs = in_tf.model(inputs, training=True)
        mine = in_tf.loss(outputs, labels)
    np.testing.assert_allclose(outputs.numpy(), predicted.detach().numpy(), rtol=1e-5, atol=1e-5)
    assert float(mine) == pytest.approx(loss.item(), rel=1e-5)
    weights = [v.value for v in in_tf.model.trainable_variables]
    gradients = dict(zip(network.KERNELS, tape.gradient(mine, weights)[::2], strict=True))
    layers = [layer for layer in in_torch.model.layers if hasattr(layer, "weight")]
    for (name, gradient), layer in zip(gradients.items(), layers, strict=True):
        wanted = tf_model.to_keras(name, layer.weight.grad.numpy())
        np.testing.assert_allclose(gradient.numpy(), wanted, rtol=1e-3, atol=1e-6, err_msg=name)


def test_the_seed_decides() -> None:
    one, same, other = (network.initial_weights(seed)["conv1"][0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).mean() > 0.99
    # Pinned: a model of a seed is the same in a year.
    np.testing.assert_allclose(one.ravel()[:3], GOLDEN, rtol=1e-6)


def test_evaluation_is_the_same_over_uneven_batches_and_leaves_the_model(
    both: tuple[Parts, Parts], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = StressStrain({"samples": 400}, tmp_path)
    workload.prepare()
    monkeypatch.setattr(tf_model, "_EVALUATION_BATCH", 33)  # 100 = 3 * 33 + 1
    before = [v.numpy() for v in both[1].model.variables]
    mine, theirs = (parts.evaluate(parts.model, workload.test())["mse"] for parts in both[::-1])
    assert mine == pytest.approx(theirs, rel=1e-5)
    for variable, value in zip(both[1].model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_a_fused_optimiser_is_refused(both: tuple[Parts, Parts]) -> None:
    with pytest.raises(WorkloadError, match="has no fused optimisers"):
        both[1].optimiser(both[1].model, 1e-3, True)


def test_it_computes_in_bfloat16_where_the_policy_says_so() -> None:
    inputs, labels = curves(8)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        parts = tf_model.build(7)
    finally:
        keras.config.set_dtype_policy(before)
    outputs = parts.model(inputs)
    assert outputs.dtype == tf.bfloat16
    assert parts.loss(outputs, labels).dtype == tf.float32
    assert parts.gradient_bytes == 613_764  # weights stay float32


def test_another_backend_of_keras_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(WorkloadError, match="Keras runs on jax here; set KERAS_BACKEND=tensorflow"):
        tf_model.build(1)
