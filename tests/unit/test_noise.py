"""The gradient noise scale: known covariances, unbiased parts, and what takes part in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from harness.engines.api import World
from harness.measure import noise
from harness.measure.noise import Norms, estimate, measure_norms, norm_sq
from tests.unit.fake_engine import FakeEngine, FakeStep


def drawn(
    gradient: NDArray[np.float64], deviations: NDArray[np.float64], b: int, n: int, batches: int
) -> Norms:
    """Draw gradients of n ranks' batches of b samples: normal, with the deviations of a sample."""
    random = np.random.default_rng(5)
    shape = (batches, n, gradient.size)
    local = gradient + deviations / np.sqrt(b) * random.standard_normal(shape)
    small = np.square(local).sum(axis=2).mean(axis=1)
    return Norms(b, n * b, small, np.square(local.mean(axis=1)).sum(axis=1))


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 64),
    st.integers(2, 8),
    st.floats(0.2, 3.0),
    st.lists(st.floats(0.1, 4.0), min_size=2, max_size=5),
)
def test_the_known_noise_of_gaussian_gradients_is_found(
    b: int, n: int, length: float, deviations: list[float]
) -> None:
    gradient = np.full(len(deviations), length)
    found = estimate(drawn(gradient, np.array(deviations), b, n, 40_000), step=7)
    trace, norm = float(np.square(deviations).sum()), float(gradient @ gradient)
    # Of 40,000 batches; in small batches noise is large beside |G|², and so is its scatter.
    assert found.noise_trace == pytest.approx(trace, rel=0.05)
    assert found.gradient_norm_sq == pytest.approx(norm, abs=0.05 * (norm + trace / b))
    assert (found.step, found.batches, found.small_batch, found.large_batch) == (
        7,
        40_000,
        b,
        n * b,
    )


def test_the_formulas_by_hand() -> None:
    # |G|² = 3 and tr Σ = 40: at 10 samples 3 + 4, at 40 samples 3 + 1.
    found = estimate(Norms(10, 40, np.array([7.0]), np.array([4.0])), step=0)
    assert found.gradient_norm_sq == pytest.approx(3.0)
    assert found.noise_trace == pytest.approx(40.0)
    assert found.noise_scale == pytest.approx(40 / 3)


def test_means_are_divided_and_ratios_are_not_averaged() -> None:
    small, large = np.array([7.0, 17.0]), np.array([4.0, 14.0])  # |G|² = 3 and 13, tr Σ = 40
    assert estimate(Norms(10, 40, small, large), 0).noise_scale == pytest.approx(40 / 8)


@pytest.mark.parametrize("large_sq", [1.0, 0.5])
def test_noise_that_hides_the_gradient_has_no_scale(large_sq: float) -> None:
    found = estimate(Norms(1, 4, np.array([4.0]), np.array([large_sq])), 0)
    assert found.gradient_norm_sq <= 0
    assert found.noise_scale is None


@pytest.mark.parametrize(
    "norms",
    [Norms(4, 4, np.ones(1), np.ones(1)), Norms(1, 4, np.ones(0), np.ones(0)),
     Norms(1, 4, np.ones(2), np.ones(1))],
)  # fmt: skip
def test_nothing_to_estimate_from_is_an_error(norms: Norms) -> None:
    with pytest.raises(ValueError, match="no noise scale"):
        estimate(norms, 0)


def test_a_norm_is_summed_in_double_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "_CHUNK", 1000)
    values = np.full(30_001, 1e-3, dtype=np.float32)
    assert norm_sq(values) == pytest.approx(30_001 * float(np.float32(1e-3)) ** 2, rel=1e-12)
    assert norm_sq(np.zeros(0)) == 0.0
    assert norm_sq(np.full(4, 1e30, dtype=np.float32)) == pytest.approx(4e60)


class Feed:
    """Batch k is the number k."""

    steps_per_epoch = 100

    def __init__(self, position: int) -> None:
        self.position = position
        self.given: list[int] = []

    def next(self) -> int:
        self.given.append(self.position)
        self.position += 1
        return self.given[-1]

    def seek(self, position: int) -> None:
        self.position = position


class Step(FakeStep):
    """The gradient of batch k is (k, 1), always in the same memory."""

    memory = np.zeros(2, dtype=np.float32)

    def gradient(self, batch: Any) -> Any:
        self.memory[:] = (batch, 1)
        return self.memory


def test_one_rank_takes_pairs_of_successive_batches_and_goes_back() -> None:
    feed = Feed(position=10)
    found = measure_norms(Step(), feed, FakeEngine(), World(0, 1, 0, 1), 25, batches=2)
    assert feed.given == [10, 11, 12, 13]
    assert feed.position == 10
    assert (found.small_batch, found.large_batch) == (25, 50)
    assert list(found.small_sq) == pytest.approx([(101 + 122) / 2, (145 + 170) / 2])
    assert list(found.large_sq) == pytest.approx([10.5**2 + 1, 12.5**2 + 1])


def test_several_ranks_take_their_mean_from_the_all_reduce() -> None:
    feed = Feed(position=3)
    engine = FakeEngine(others=[20.0, 30.0])  # what two other ranks say of their norms
    engine.sums = lambda buffer: buffer + np.float32([9, 2])
    found = measure_norms(Step(), feed, engine, World(0, 3, 0, 3), 25, batches=1)
    assert (found.small_batch, found.large_batch) == (25, 75)
    assert list(found.small_sq) == pytest.approx([(10 + 20 + 30) / 3])
    assert list(found.large_sq) == pytest.approx([(12**2 + 3**2) / 9])
    assert (feed.given, feed.position) == ([3], 3)


def test_the_position_is_put_back_after_a_failure_too() -> None:
    class Broken(FakeStep):
        def gradient(self, batch: Any) -> Any:
            raise MemoryError

    feed = Feed(position=3)
    with pytest.raises(MemoryError):
        measure_norms(Broken(), feed, FakeEngine(), World(0, 1, 0, 1), 25)
    assert feed.position == 3
