"""The rate of a step: rules in the global batch, and the warm-up to what they say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config.models import LearningRate
from harness.learning_rate import Schedule, learning_rate, schedule
from workloads.api import WorkloadInfo

INFO = WorkloadInfo("w", "W", ("torch",), 1, "mse", learning_rate=0.001, learning_rate_batch=50)


@pytest.mark.parametrize(
    ("wanted", "rate"),
    [
        ({}, 0.001),
        ({"rule": "sqrt"}, 0.002),  # 200 / 50 = 4
        ({"rule": "linear"}, 0.004),
        ({"base": 0.01, "rule": "linear"}, 0.04),
        ({"base": 0.01, "base_batch": 400, "rule": "linear"}, 0.005),
        ({"base": 0.01, "base_batch": 800, "rule": "sqrt"}, 0.005),
        ({"base": 0.01, "base_batch": 400}, 0.01),
    ],
)
def test_a_rule_follows_the_global_batch(wanted: dict[str, Any], rate: float) -> None:
    assert learning_rate(LearningRate(**wanted), INFO, 200) == pytest.approx(rate)


def test_a_warm_up_begins_at_the_base_rate_and_reaches_the_rules_after_its_epochs() -> None:
    wanted = LearningRate(rule="linear", warmup_epochs=0.5)
    made = schedule(wanted, INFO, 250, steps_per_epoch=20)  # k = 5, ten steps of warm-up
    found = [made.at(step) for step in (0, 1, 5, 9, 10, 11, 1000)]
    assert found == pytest.approx([0.001, 0.0014, 0.003, 0.0046, 0.005, 0.005, 0.005])


def test_a_part_of_a_step_of_warm_up_is_no_trouble() -> None:
    wanted = LearningRate(rule="linear", warmup_epochs=0.5)
    made = schedule(wanted, INFO, 100, steps_per_epoch=5)
    assert [made.at(step) for step in range(4)] == pytest.approx([0.001, 0.0014, 0.0018, 0.002])


@pytest.mark.parametrize("rule", ["sqrt", "linear"])
def test_a_batch_that_does_not_raise_the_rate_has_no_warm_up(rule: Any) -> None:
    for batch in (50, 25):
        made = schedule(LearningRate(rule=rule, warmup_epochs=5), INFO, batch, 100)
        assert made.at(0) == made.at(600) == learning_rate(LearningRate(rule=rule), INFO, batch)


def test_without_a_warm_up_the_first_step_has_the_rate() -> None:
    assert schedule(LearningRate(rule="linear"), INFO, 200, 10).at(0) == pytest.approx(0.004)


@given(
    st.floats(1e-6, 1.0), st.floats(1.0, 1e3), st.floats(0, 1e4), st.lists(st.integers(0, 20_000))
)
def test_a_schedule_never_falls_and_stays_between_base_and_rule(
    start: float, factor: float, warmup: float, steps: list[int]
) -> None:
    made = Schedule(start, start * factor, warmup)
    rates = [made.at(step) for step in sorted(steps)]
    assert rates == sorted(rates)
    assert all(start <= rate <= made.rate * (1 + 1e-12) for rate in rates)
