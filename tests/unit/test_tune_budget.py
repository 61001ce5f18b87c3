"""Time for search and validation, and whether the winner is a gain."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import ConfigError
from harness.tuner.budget import SEARCH_SHARE, Costs, Validation, divide, parse_budget
from harness.tuner.verdict import judge


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("20m", 1200), ("1h30m", 5400), ("2h", 7200), ("1M 5S", 65)]
)
def test_a_budget_is_a_time(text: str, seconds: float) -> None:
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "20", "m", "0s", "-5m", "5x", "1e3s", "5m1h"])
def test_what_is_none_is_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--budget: .* is no time; write e.g. 90s"):
        parse_budget(text)


def test_what_an_autotuner_takes_follows_from_the_step() -> None:
    costs = Costs.measured(default_s=30.0, step_s=0.05)
    assert costs == Costs(30.0, 30.0 + 2295 * 0.1)


COSTS = Costs(launch_s=10.0, autotune_s=100.0)


def test_what_is_asked_for_is_what_is_done_where_it_fits() -> None:
    plan = divide(900.0, COSTS, 5, autotune=True)  # 5 * 120 s of 600 s
    assert (plan.validation, plan.validation_s, plan.note) == (Validation(5, True), 600.0, "")


@pytest.mark.parametrize(
    ("budget_s", "blocks", "autotune"),
    [(899.0, 4, True), (720.0, 4, True), (540.0, 3, True), (539.0, 5, False), (150.0, 5, False),
     (149.0, 4, False), (60.0, 2, False)],
)  # fmt: skip
def test_less_time_means_fewer_blocks_then_no_autotuner(
    budget_s: float, blocks: int, autotune: bool
) -> None:
    plan = divide(budget_s, COSTS, 5, autotune=True)
    assert plan.validation == Validation(blocks, autotune)
    assert (f"{blocks} blocks instead of 5" in plan.note) == (blocks < 5)
    assert ("without Horovod's autotuner" in plan.note) == (not autotune)
    assert "(--budget 15m has room for all of it)" in plan.note
    assert "will not be kept" not in plan.note


def test_two_blocks_are_done_in_any_case_and_that_is_said() -> None:
    plan = divide(20.0, COSTS, 5, autotune=True)
    assert plan.validation == Validation(2, False)
    assert "takes about 40 s, more than 13 s, and the budget will not be kept" in plan.note
    asked = divide(20.0, COSTS, 1, autotune=False)
    assert asked.validation == Validation(1, False)
    assert (
        asked.note == "even so it takes about 20 s, more than 13 s, and the budget will not be kept"
    )


@given(
    budget_s=st.floats(1, 1e5),
    launch_s=st.floats(0.1, 1e3),
    autotune_s=st.floats(0.1, 1e4),
    blocks=st.integers(1, 20),
    autotune=st.booleans(),
)
def test_a_plan_keeps_to_its_share_or_says_so(
    budget_s: float, launch_s: float, autotune_s: float, blocks: int, autotune: bool
) -> None:
    costs = Costs(launch_s, launch_s + autotune_s)
    plan = divide(budget_s, costs, blocks, autotune=autotune)
    assert min(2, blocks) <= plan.validation.blocks <= blocks
    assert autotune or not plan.validation.autotune
    assert plan.validation_s == plan.validation.takes_s(costs)
    kept = plan.validation_s <= budget_s * (1 - SEARCH_SHARE)
    assert kept == ("will not be kept" not in plan.note)
    assert bool(plan.note) == (not kept or plan.validation != Validation(blocks, autotune))


def rates(*values: float) -> dict[tuple[str, int], float]:
    return {("local:here", repeat): value for repeat, value in enumerate(values)}


def test_a_gain_is_a_paired_ratio_with_its_interval() -> None:
    # Blocks differ by 3 times, the pair by a factor of 1.1 each time, up to a hair.
    other = rates(100.0, 200.0, 300.0)
    found = judge(rates(110.0, 220.1, 329.9), other, "default")
    assert found is not None
    assert (found.says, found.blocks, found.over) == ("gain", 3, "default")
    assert found.ratio.estimate == pytest.approx(1.1, rel=1e-3)
    assert found.ratio.low is not None
    assert 1.09 < found.ratio.low < 1.1


def test_an_interval_with_1_in_it_shows_nothing() -> None:
    found = judge(rates(110.0, 95.0, 108.0), rates(100.0, 100.0, 100.0), "default")
    assert found is not None
    assert found.says == "not shown"
    assert found.ratio.estimate > 1  # and yet


def test_a_winner_may_lose() -> None:
    found = judge(rates(90.0, 90.1, 89.9), rates(100.0, 100.0, 100.0), "default")
    assert found is not None
    assert found.says == "loss"


def test_one_block_cannot_tell_and_none_is_none() -> None:
    found = judge(rates(150.0), rates(100.0, 100.0), "default")
    assert found is not None
    assert (found.says, found.blocks) == ("cannot tell", 1)
    assert judge({}, rates(100.0), "default") is None
    assert judge({("other", 0): 1.0}, rates(100.0), "default") is None


@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=8))
def test_what_is_said_is_what_the_interval_says(ratios: list[float]) -> None:
    found = judge(rates(*(100 * one for one in ratios)), rates(*(100.0 for _ in ratios)), "x")
    assert found is not None
    assert found.ratio.low is not None
    assert found.ratio.high is not None
    includes = found.ratio.low <= 1 <= found.ratio.high
    assert includes == (found.says == "not shown")
    assert found.ratio.estimate == pytest.approx(math.prod(ratios) ** (1 / len(ratios)))
