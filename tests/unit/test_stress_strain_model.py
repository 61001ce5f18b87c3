"""The network: its size, its seeding, its evaluation, and that it learns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from workloads.api import (  # noqa: E402
    ArraySamples,
    Parts,
    WorkloadError,
)
from workloads.stress_strain import StressStrain, torch_model  # noqa: E402


def make(samples: int, folder: Path) -> StressStrain:
    workload = StressStrain({"samples": samples}, folder)
    workload.prepare()
    return workload


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_parameters_and_gradient_bytes_are_those_of_the_study() -> None:
    parts = torch_model.build(0)
    assert parts.framework == "torch"
    assert parts.parameters == StressStrain.info.parameters == 153_441
    assert parts.gradient_bytes == 4 * 153_441 == 613_764
    # Conv 3*32*9+32, conv 32*32*7+32, linear 800*181+181, linear 181*2+2.
    sizes = [sum(p.numel() for p in m.parameters()) for m in parts.model.layers]
    assert [size for size in sizes if size] == [896, 7_200, 144_981, 364]
    assert parts.model(torch.zeros(5, 3, 200)).shape == (5, 2)


def test_flops_agree_with_torchs_own_count() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model = torch_model.make_model(0)
    with FlopCounterMode(display=False) as counter:
        model(torch.randn(8, 3, 200)).sum().backward()
    assert torch_model.flops_per_sample() == 5_862_972
    assert counter.get_total_flops() / 8 == torch_model.flops_per_sample()


def test_initialisation_is_a_function_of_the_seed_and_leaves_the_global_state() -> None:
    torch.manual_seed(99)
    state = torch.get_rng_state()
    first = torch_model.make_model(5).state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(100)
    again = torch_model.make_model(5).state_dict()
    other = torch_model.make_model(6).state_dict()
    assert first.keys() == again.keys()
    for name, value in first.items():
        assert torch.equal(value, again[name])
        assert not torch.equal(value, other[name])
        assert torch.isfinite(value).all()


def test_initial_weights_are_uniform_within_the_default_bounds() -> None:
    ours, default = torch_model.make_model(1), torch_model.StressStrainNet()
    pairs = zip(ours.parameters(), default.parameters(), strict=True)
    for mine, theirs in ((a.detach(), b.detach()) for a, b in pairs):
        if mine.numel() >= 500:  # enough numbers for their extremes to tell the bound
            assert float(mine.abs().max()) == pytest.approx(float(theirs.abs().max()), rel=0.02)
            assert float(mine.std()) == pytest.approx(float(theirs.std()), rel=0.1)


def test_loss_is_the_mean_so_that_shards_average_to_the_global_batch(tmp_path: Path) -> None:
    parts = torch_model.build(0)
    inputs, labels = map(torch.from_numpy, make(400, tmp_path).train().gather(np.arange(150)))
    model = parts.model.requires_grad_(False)
    whole = parts.loss(model(inputs), labels)
    halves = [parts.loss(model(inputs[s]), labels[s]) for s in (slice(75), slice(75, None))]
    assert float(sum(halves)) / 2 == pytest.approx(float(whole), rel=1e-5)


def test_optimiser_is_adam_over_every_parameter() -> None:
    parts = torch_model.build(0)
    optimiser = parts.optimiser(parts.model, 1e-3, False)
    assert type(optimiser) is torch.optim.Adam
    held = [p for group in optimiser.param_groups for p in group["params"]]
    assert sum(p.numel() for p in held) == 153_441
    assert optimiser.param_groups[0]["lr"] == 1e-3


def test_evaluation_is_exact_over_uneven_batches_and_leaves_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = make(400, tmp_path).test()
    parts = torch_model.build(0)
    with torch.no_grad():
        prediction = parts.model(torch.from_numpy(samples.inputs.copy())).numpy()
    expected = np.mean((prediction - samples.targets) ** 2)
    monkeypatch.setattr(torch_model, "_EVALUATION_BATCH", 33)  # 100 = 3 * 33 + 1
    parts.model.train()
    parts.model.layers[3].eval()  # a mode of its own must survive too
    modes = [module.training for module in parts.model.modules()]
    state = torch.get_rng_state()
    assert parts.evaluate(parts.model, samples)["mse"] == pytest.approx(float(expected), rel=1e-5)
    assert [module.training for module in parts.model.modules()] == modes
    assert all(p.grad is None for p in parts.model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_splits_are_three_quarters_and_the_rest(tmp_path: Path) -> None:
    workload = make(402, tmp_path)
    train, test = workload.train(), workload.test()
    assert (workload.train_size(), len(train), len(test)) == (301, 301, 101)
    together = np.concatenate([train.targets, test.targets])
    assert np.array_equal(together, workload._data.labels)
    assert StressStrain({}, tmp_path).train_size() == 750_000


def test_gather_copies_in_order_and_refuses_what_is_not_there(tmp_path: Path) -> None:
    train = make(400, tmp_path).train()
    order = np.array([299, 0, 7, 7], np.int64)
    inputs, labels = train.gather(order)
    whole_inputs, whole_labels = train.arrays()
    assert np.array_equal(inputs, np.stack([whole_inputs[i] for i in order]))
    assert np.array_equal(labels, np.stack([whole_labels[i] for i in order]))
    assert inputs.flags.c_contiguous
    inputs[:] = 0  # a copy: it can be written, and the file does not change
    assert not np.array_equal(train.gather(order)[0], inputs)
    for outside in (300, -1):
        with pytest.raises(IndexError, match="300 samples"):
            train.gather(np.array([0, outside]))
    assert train.gather(np.array([], np.int64))[0].shape == (0, 3, 200)


def test_a_framework_without_a_model_is_one_line(tmp_path: Path) -> None:
    workload = StressStrain({}, tmp_path)
    with pytest.raises(WorkloadError, match="has no jax model; it has: torch, tensorflow"):
        workload.parts("jax", seed=0)


def train_epoch(parts: Parts, samples: ArraySamples, learning_rate: float, batch: int) -> None:
    """Train on every sample once, in a seeded order."""
    optimiser = parts.optimiser(parts.model, learning_rate, False)
    order = np.random.default_rng(0).permutation(len(samples))
    for start in range(0, len(order), batch):
        inputs, labels = map(torch.from_numpy, samples.gather(order[start : start + batch]))
        optimiser.zero_grad()
        parts.loss(parts.model(inputs), labels).backward()
        optimiser.step()


@pytest.mark.usefixtures("one_thread")
def test_it_learns_within_one_epoch_of_100_000_samples(tmp_path: Path) -> None:
    # Measured at the study's batch and learning rate: mean squared error / variance of the labels
    # of 0.021 after one epoch (1,000 steps), 0.0052 after six. A constant prediction gives 1.
    workload = make(100_000, tmp_path)
    parts = workload.parts("torch", seed=1)
    test = workload.test()
    variance = float(test.targets.var(axis=0).mean())
    assert variance == pytest.approx(1 / 12, rel=0.02)
    untrained = parts.evaluate(parts.model, test)["mse"]
    assert untrained > variance
    info = workload.info
    train_epoch(parts, workload.train(), info.learning_rate, info.learning_rate_batch)
    assert parts.evaluate(parts.model, test)["mse"] <= 0.05 * variance
