"""Warm-up and window: how many steps, in which order, and whose clock counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

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


class Clocked:
    """A step whose k-th run takes ``seconds(k)`` (from 0) on a clock that nothing else moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: Callable[[int], float]) -> None:
        self.now_s = 0.0
        self._seconds = seconds
        self._count = 0
        self.step = FakeStep(before=self._pass)
        monkeypatch.setattr(time, "perf_counter", lambda: self.now_s)

    def _pass(self) -> None:
        self.now_s += self._seconds(self._count)
        self._count += 1

    def warm_up(self, measure: Measure, engine: FakeEngine | None = None) -> WarmUp:
        warm = warm_up(self.step, lambda: (None,), engine or FakeEngine(), measure)
        assert warm.steps == self.step.calls.count("run")
        return warm


SHORT: dict[str, Any] = {"window_s": 1.0, "min_steps": 1}


def test_warm_up_runs_its_steps_where_they_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    clocked = Clocked(monkeypatch, lambda k: 0.1)
    warm = clocked.warm_up(Measure(warmup_steps=6, **SHORT))
    assert warm.steps == 6
    assert warm.step_s == pytest.approx(0.1)
    assert warm.wall_s == pytest.approx(0.6)


def test_the_slowest_rank_has_the_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its pace the time is enough at once; by this rank's own it would not be."""
    clocked = Clocked(monkeypatch, lambda k: 1e-6)
    warm = clocked.warm_up(Measure(warmup_steps=6, **SHORT), FakeEngine(others=[0.25]))
    assert (warm.steps, warm.step_s) == (6, 0.25)


@pytest.mark.parametrize(("asked", "run"), [(0, 4), (1, 4), (2, 4), (4, 5), (5, 5), (7, 7)])
def test_the_pace_comes_from_three_warm_steps_at_least(
    monkeypatch: pytest.MonkeyPatch, asked: int, run: int
) -> None:
    clocked = Clocked(monkeypatch, lambda k: 9.0 if k == 0 else 0.2)
    warm = clocked.warm_up(Measure(warmup_steps=asked, **SHORT))
    assert warm.steps == run
    assert warm.step_s == pytest.approx(0.2)


@pytest.mark.parametrize("warmup_steps", [0, 1, 2, 10, 20])
@pytest.mark.parametrize("window_s", [0.2, 5.0])
def test_the_window_lasts_however_little_warm_up_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, warmup_steps: int, window_s: float
) -> None:
    """A first step of a second, ten that get faster, and then 0.5 ms each."""
    seconds = (1.0, *(0.01 / 2**k for k in range(5)))
    clocked = Clocked(monkeypatch, lambda k: seconds[k] if k < len(seconds) else 0.5e-3)
    measure = Measure(warmup_steps=warmup_steps, window_s=window_s, min_steps=1)
    warm = clocked.warm_up(measure)
    assert planned_steps(measure, warm.step_s) * 0.5e-3 >= 0.95 * window_s
    assert warm.wall_s < 1.02 + max(0.05, 0.25 * window_s)


def test_the_ranks_agree_on_the_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks of unlike speed, each hearing both paces at every gather."""
    measure = Measure(warmup_steps=2, window_s=1.0, min_steps=1)
    paces = {"slow": 0.9e-3, "fast": 0.2e-3}
    counts = set()
    for own, other in (("slow", "fast"), ("fast", "slow")):
        clocked = Clocked(monkeypatch, lambda k, own=own: paces[own])  # type: ignore[misc]
        warm = clocked.warm_up(measure, FakeEngine(others=[paces[other]]))
        assert warm.step_s == pytest.approx(paces["slow"])
        counts.add(warm.steps)
    assert counts == {1 + 3 + 6 + 12 + 24 + 48 + 96}


def test_steps_that_take_no_time_end_the_warm_up_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.measure.window.MAX_STEPS", 1000)
    warm = Clocked(monkeypatch, lambda k: 0.0).warm_up(Measure(warmup_steps=2))
    assert 1000 <= warm.steps < 3000


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
    from harness.instruments import RankFound

    made = config(n=2, batch=30)
    proof = record(made).backend
    assert proof is not None
    windows = [of_rank(2.0, 0.5, 0.6, 0.9, loss=1.0), of_rank(2.5, 0.7, 0.8, 1.0, loss=3.0)]
    found = RankFound(None, None, None, None, None, None, None, 1e9, 1e9 + 2.5)
    results = [RankResult(w, "c0ffee", found, proof, {}) for w in windows]
    summary = _window_summary(made, FakeStep(), WarmUp(20, 4.0, 0.6), results)
    assert summary.samples == 3 * 30 * 2
    assert summary.wall_s == 2.5
    assert summary.rank_wall_s == (2.0, 2.5)
    assert summary.throughput_samples_per_s == 180 / 2.5
    assert summary.step_median_s == 0.75
    assert (summary.first_loss, summary.last_loss) == (2.0, 1.0)
    assert (summary.steps, summary.warmup_steps, summary.warmup_s) == (3, 20, 4.0)
    assert (summary.bytes_reduced, summary.gradient_allreduce) == (1200, True)
