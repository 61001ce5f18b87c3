"""Warm-up and window: how many steps, in which order, and whose clock counts."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

from harness.bench import _window_summary
from harness.config.models import Measure
from harness.measure.window import RankWindow, WarmUp, planned_steps, run_window, warm_up
from tests.factories import config, record
from tests.unit.fake_engine import FakeEngine, FakeStep


def counted() -> Iterator[tuple[int]]:
    number = 0
    while True:
        yield (number,)
        number += 1


@pytest.mark.parametrize(
    ("window_s", "min_steps", "step_s", "wanted"),
    [
        (5.0, 50, 0.01, 500),
        (5.0, 50, 0.0101, 496),  # rounded up: never shorter than asked
        (5.0, 50, 1.0, 50),
        (0.1, 7, 0.01, 10),
        (0.1, 7, 0.1, 7),
    ],
)
def test_steps_planned(window_s: float, min_steps: int, step_s: float, wanted: int) -> None:
    assert planned_steps(Measure(window_s=window_s, min_steps=min_steps), step_s) == wanted


def test_a_pace_of_zero_plans_a_window_all_the_same() -> None:
    assert planned_steps(Measure(window_s=1e-6, min_steps=3), 0.0) == 1000


def test_warm_up_runs_its_steps_and_takes_the_slowest_pace() -> None:
    step, batches = FakeStep(), counted()
    warm = warm_up(step, lambda: next(batches), FakeEngine(others=[0.25]), Measure(warmup_steps=6))
    assert (warm.steps, step.calls.count("run")) == (6, 6)
    assert warm.step_s == 0.25
    assert warm.wall_s > 0


@pytest.mark.parametrize(("asked", "run"), [(0, 1), (1, 1), (5, 5)])
def test_warm_up_has_at_least_one_step(asked: int, run: int) -> None:
    step, batches = FakeStep(), counted()
    warm = warm_up(step, lambda: next(batches), FakeEngine(), Measure(warmup_steps=asked))
    assert (warm.steps, step.calls.count("run")) == (run, run)
    assert warm.step_s > 0


def test_the_pace_is_that_of_the_second_half() -> None:
    """Compilation in the first steps must not plan the window too short."""
    delays = iter([0.1, 0.0, 0.0, 0.0])
    step, batches = FakeStep(before=lambda: time.sleep(next(delays))), counted()
    warm = warm_up(step, lambda: next(batches), FakeEngine(), Measure(warmup_steps=4))
    assert warm.wall_s >= 0.1
    assert warm.step_s < 0.05


def test_the_window_synchronises_at_its_two_ends_and_nowhere_between() -> None:
    step, batches = FakeStep(), counted()
    step.run((None,))  # warm-up: its bytes and losses are not the window's
    step.calls.clear()
    window = run_window(step, lambda: next(batches), FakeEngine(calls=step.calls), 4)
    assert step.calls == ["barrier", "synchronise", "run", "run", "run", "run", "synchronise"]
    assert step.batches[1:] == [(0,), (1,), (2,), (3,)]
    assert window.reduced_bytes == 1600
    np.testing.assert_allclose(window.losses, [1 / 2, 1 / 3, 1 / 4, 1 / 5])


def test_step_times_and_wall_clock() -> None:
    step = FakeStep(before=lambda: time.sleep(0.01))
    batches = counted()
    window = run_window(step, lambda: next(batches), FakeEngine(), 5)
    assert window.step_s.shape == (5,)
    assert (window.step_s >= 0.01).all()
    assert window.wall_s >= window.step_s.sum()


def test_the_time_a_batch_takes_is_in_the_window() -> None:
    def slow() -> tuple[int]:
        time.sleep(0.01)
        return (0,)

    assert run_window(FakeStep(), slow, FakeEngine(), 3).wall_s >= 0.03


def of_rank(wall_s: float, *step_s: float, loss: float = 1.0) -> RankWindow:
    losses = np.linspace(loss, loss / 2, len(step_s))
    return RankWindow(1e9, wall_s, np.array(step_s), losses, 400 * len(step_s))


def test_throughput_is_over_the_longest_ranks_wall_clock() -> None:
    from harness.bench import RankResult

    made = config(n=2, batch=30)
    proof = record(made).backend
    assert proof is not None
    windows = [of_rank(2.0, 0.5, 0.6, 0.9, loss=1.0), of_rank(2.5, 0.7, 0.8, 1.0, loss=3.0)]
    results = [RankResult(w, "c0ffee", None, None, proof, {}) for w in windows]
    summary = _window_summary(made, FakeStep(), WarmUp(20, 4.0, 0.6), results)
    assert summary.samples == 3 * 30 * 2
    assert summary.wall_s == 2.5
    assert summary.rank_wall_s == (2.0, 2.5)
    assert summary.throughput_samples_per_s == 180 / 2.5
    assert summary.step_median_s == 0.75
    assert (summary.first_loss, summary.last_loss) == (2.0, 1.0)
    assert (summary.steps, summary.warmup_steps, summary.warmup_s) == (3, 20, 4.0)
    assert (summary.bytes_reduced, summary.gradient_allreduce) == (1200, True)
