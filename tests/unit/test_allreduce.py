"""The isolated all-reduce: iterations, the check of its sum, bandwidths by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.engines.api import World
from harness.errors import LaunchError
from harness.measure.allreduce import (
    BUDGET_S,
    ITERATIONS,
    MIN_ITERATIONS,
    WARMUP,
    run_isolated,
    summarise,
)
from tests.unit.fake_engine import FakeEngine


def world(rank: int, size: int) -> World:
    return World(rank, size, rank, size)


def engine(rank: int, size: int, others_pace_s: float = 0.0) -> FakeEngine:
    """Return an engine whose all-reduce adds what ``size`` ranks would have filled in."""
    made = FakeEngine(others=[others_pace_s])
    rest = size * (size + 1) / 2 - (rank + 1)
    made.sums = lambda buffer: buffer + np.float32(rest)
    return made


def test_the_right_sum_passes() -> None:
    made = engine(rank=1, size=4)
    times = run_isolated(made, world(1, 4), 4096)
    assert times.shape == (ITERATIONS,)
    assert (times >= 0).all()
    assert made.reduced_buffers == WARMUP + ITERATIONS


def test_a_slow_network_gets_fewer_iterations() -> None:
    """As the slowest rank's pace says, so that all ranks run the same number."""
    assert len(run_isolated(engine(0, 2, BUDGET_S / 10), world(0, 2), 64)) == 10
    assert len(run_isolated(engine(0, 2, 100.0), world(0, 2), 64)) == MIN_ITERATIONS


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda sums: sums * 2, "gave 20.0 instead of 10 in 16 places on rank 2"),
        (lambda sums: np.append(sums[:-1], np.float32(7)), "gave 7.0 instead of 10 in 1 places"),
        (lambda sums: sums * np.float32(np.nan), "gave nan instead of 10"),
    ],
)
def test_a_wrong_sum_is_refused(change: Any, said: str) -> None:
    made = engine(rank=2, size=4)
    right = made.sums
    made.sums = lambda buffer: change(right(buffer))
    with pytest.raises(LaunchError, match=said):
        run_isolated(made, world(2, 4), 64)


def test_a_size_that_is_no_multiple_of_a_float_is_rounded_down() -> None:
    sizes: list[int] = []
    made = engine(0, 2)
    plain = made.make_buffer
    made.make_buffer = lambda size: sizes.append(size) or plain(size)  # type: ignore[func-returns-value]
    run_isolated(made, world(0, 2), 67)
    assert sizes == [64]


def test_bandwidths_by_hand() -> None:
    """nccl-tests' doc/PERFORMANCE.md: busbw = bytes / time × 2(n−1)/n.

    Of four ranks the slowest of each iteration counts: 1, 2, 4 ms, median 2 ms. A million bytes in
    2 ms are 0.5 GB/s, and on the bus 0.5 × 2 × 3/4 = 0.75 GB/s.
    """
    ranks = [np.array([1e-3, 2e-3, 3e-3])] * 3 + [np.array([0.5e-3, 1e-3, 4e-3])]
    found = summarise(ranks, 1_000_000)
    assert (found.bytes, found.iterations) == (1_000_000, 3)
    assert found.latency_p50_s == pytest.approx(2e-3)
    assert found.latency_p99_s == pytest.approx(3.96e-3)
    assert found.algbw_bytes_per_s == pytest.approx(0.5e9)
    assert found.busbw_bytes_per_s == pytest.approx(0.75e9)


@pytest.mark.parametrize(("size", "factor"), [(2, 1.0), (4, 1.5), (8, 1.75)])
def test_the_factor_of_the_bus(size: int, factor: float) -> None:
    found = summarise([np.array([1e-3])] * size, 1000)
    assert found.busbw_bytes_per_s == pytest.approx(factor * found.algbw_bytes_per_s)
