"""What is searched, in which order, and whether the best is found."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config import HorovodTuning, RunConfig
from harness.errors import MissingDependencyError, ValidationError
from harness.legal import CombinationError
from harness.spec import Resolved
from harness.tuner.propose import Candidate, candidates, require_optuna
from harness.tuner.space import KNOBS, Knob, Space, legal_space, turned, words

DEFAULT = HorovodTuning()
BASE = RunConfig.model_validate(
    {"workload": "stress_strain", "batch_size": 20, "placement": "1x2", "backend": "mpi"}
)


def decided(config: RunConfig, controller: str = "mpi") -> Resolved:
    return Resolved(
        launcher="mpirun",
        backend=config.backend,
        controller=config.horovod.controller or controller,
        placement=(2,),
        hosts=("node0",),
        device="cpu",
        cores_per_rank=1,
        bind=True,
    )


def space(*names: str) -> Space:
    return Space(DEFAULT, tuple(knob for knob in KNOBS if knob.name in names))


EVERY = Space(DEFAULT, KNOBS)
ON_A_CPU = space("cycle_time_ms", "fusion_threshold_mb", "groups", "cache_capacity")
choices = st.fixed_dictionaries({k.name: st.integers(0, len(k.values) - 1) for k in KNOBS})


@given(choices)
def test_a_choice_is_a_tuning_and_back(choice: dict[str, int]) -> None:
    assert EVERY.choice(EVERY.tuning(choice)) == choice


@given(choices)
def test_what_is_turned_makes_the_tuning_of_the_default(choice: dict[str, int]) -> None:
    made = EVERY.tuning(choice)
    assert HorovodTuning(**{**DEFAULT.model_dump(), **turned(made, DEFAULT)}) == made
    assert (words(made, DEFAULT) == "the default") == (made == DEFAULT)


def test_every_value_of_a_list_is_once_there_and_the_defaults_are() -> None:
    for knob in KNOBS:
        assert len(set(knob.values)) == len(knob.values)
        if knob.name != "controller":  # open by default
            assert HorovodTuning(**knob.tuned(knob.place_of(DEFAULT))) == DEFAULT


@pytest.mark.parametrize(
    ("value", "nearest"), [(0.03, 0.02), (0.04, 0.05), (0.001, 0.0), (3.3, 5.0), (700.0, 10.0)]
)
def test_a_value_that_is_in_no_list_stands_by_the_nearest(value: float, nearest: float) -> None:
    knob = KNOBS[0]
    assert knob.name == "cycle_time_ms"
    assert knob.values[knob.place_of(HorovodTuning(cycle_time_ms=value))] == nearest


def names(found: Space) -> dict[str, tuple[Any, ...]]:
    return {knob.name: knob.values for knob in found.knobs}


def test_each_value_is_asked_for_and_what_is_refused_is_not_searched() -> None:
    def check(config: RunConfig) -> Resolved:
        if config.horovod.async_completion:
            raise ValidationError("needs a GPU")
        if config.horovod.controller == "gloo":
            raise CombinationError("no controller gloo")
        if config.horovod.groups > 4:
            raise ValidationError("too many")
        return decided(config)

    found, reasons = legal_space(BASE, check)
    assert names(found)["groups"] == (0, 1, 2, 4)
    assert set(names(found)) == {
        "cycle_time_ms", "fusion_threshold_mb", "groups", "cache_capacity", "route",
    }  # fmt: skip
    assert "async_completion true is not searched: needs a GPU" in reasons
    assert "controller gloo is not searched: no controller gloo" in reasons
    assert sum(reason.startswith("groups ") for reason in reasons) == 2


def test_what_the_user_has_set_is_not_searched() -> None:
    base = BASE.model_copy(update={"horovod": HorovodTuning(cycle_time_ms=3, groups=2)})
    found, _ = legal_space(base, decided, {"cycle_time_ms", "torus_allreduce"})
    assert "cycle_time_ms" not in names(found)
    assert "route" not in names(found)
    assert {found.tuning(found.choice(DEFAULT)).cycle_time_ms} == {3.0}


def test_compression_is_searched_where_it_is_allowed() -> None:
    assert "compression" not in names(legal_space(BASE, decided)[0])
    found, _ = legal_space(BASE, decided, allow_lossy=True)
    assert names(found)["compression"] == ("none", "fp16")


@pytest.mark.parametrize(("resolved", "other"), [("mpi", "gloo"), ("gloo", "mpi")])
def test_the_controller_that_is_taken_anyway_is_no_second_setting(
    resolved: str, other: str
) -> None:
    found, _ = legal_space(BASE, lambda config: decided(config, resolved))
    assert names(found)["controller"] == (None, other)
    named = BASE.model_copy(update={"horovod": HorovodTuning(controller="gloo")})
    assert names(legal_space(named, decided)[0])["controller"] == ("mpi", "gloo")


def test_a_point_that_cannot_run_is_an_error_of_its_own() -> None:
    def check(config: RunConfig) -> Resolved:
        raise ValidationError("too large for the machine")

    with pytest.raises(ValidationError, match="too large"):
        legal_space(BASE, check)


# What a throughput could look like: samples a second of a tuning.


def additive(tuning: HorovodTuning) -> float:
    """Every knob by itself, with an optimum inside of its list."""
    cycle = abs(math.log2(max(tuning.cycle_time_ms, 0.01) / 0.05))
    fusion = abs(math.log2(max(tuning.fusion_threshold_mb, 0.5) / 32))
    return (
        1000
        - 60 * cycle
        - 30 * fusion
        - 20 * abs(tuning.groups - 4)
        - (0 if tuning.cache_capacity else 150)
    )


def of_a_step(tuning: HorovodTuning) -> float:
    """A step of 60 ms, and exposed sync in which cycle time, fusion, groups and cache interact."""
    parts = tuning.groups or max(1.0, min(160.0, 100 / max(tuning.fusion_threshold_mb, 0.6)))
    negotiation = 0.3 if tuning.controller == "gloo" else 0.05
    negotiation += 0.0 if tuning.cache_capacity else 1.0
    waits = 0.0 if tuning.async_completion else 2.0
    exposed = 0.5 * tuning.cycle_time_ms + negotiation * parts + 8 / parts + waits
    return 1e6 / (60 + 3 * exposed)


GPU = space(
    "cycle_time_ms", "fusion_threshold_mb", "groups", "cache_capacity", "async_completion",
    "controller",
)  # fmt: skip
SURFACES = {"additive": (additive, ON_A_CPU), "of a step": (of_a_step, GPU)}


def searched(
    surface: Callable[[HorovodTuning], float | None], where: Space, seed: int, trials: int = 40
) -> list[tuple[HorovodTuning, float | None]]:
    """Return what is tried and found, the default first."""
    proposals = candidates(where, [Candidate(DEFAULT, "default")], seed)
    candidate, found = next(proposals, None), []
    while candidate is not None and len(found) < trials:
        found.append((candidate.tuning, surface(candidate.tuning)))
        try:
            candidate = proposals.send(found[-1][1])
        except StopIteration:
            break
    return found


def best_there_is(surface: Callable[[HorovodTuning], float], where: Space) -> float:
    grids = [range(len(knob.values)) for knob in where.knobs]
    keys = [knob.name for knob in where.knobs]
    every = (dict(zip(keys, places, strict=True)) for places in product(*grids))
    return max(surface(where.tuning(choice)) for choice in every)


@pytest.mark.parametrize("name", SURFACES)
def test_the_best_is_found_within_5_percent_in_40_trials(name: str) -> None:
    surface, where = SURFACES[name]
    best = best_there_is(surface, where)
    assert surface(DEFAULT) < 0.8 * best  # there is something to find
    for seed in range(10):
        found = max(rate or 0.0 for _, rate in searched(surface, where, seed))
        assert found >= 0.95 * best, f"seed {seed}"


def test_the_same_measurements_and_seed_give_the_same_search() -> None:
    one, other = (searched(of_a_step, GPU, 3, 25) for _ in range(2))
    assert one == other
    assert searched(of_a_step, GPU, 4, 25) != one


def test_the_first_come_first_and_none_comes_twice() -> None:
    latency = HorovodTuning(controller="mpi", cycle_time_ms=0, async_completion=True)
    odd = HorovodTuning(fusion_threshold_mb=77)  # in no list
    first = [Candidate(t, "named") for t in (DEFAULT, latency, odd, DEFAULT)]
    proposals = candidates(GPU, first, 1)
    found = [next(proposals)]
    while len(found) < 40:
        found.append(proposals.send(of_a_step(found[-1].tuning)))
    assert [one.tuning for one in found[:3]] == [DEFAULT, latency, odd]
    assert [one.origin for one in found[:4]] == ["named", "named", "named", "search"]
    assert len({one.tuning for one in found}) == len(found)


def test_trials_that_fail_do_not_end_a_search() -> None:
    def surface(tuning: HorovodTuning) -> float | None:
        return None if tuning.groups in (1, 4) or not tuning.cache_capacity else additive(tuning)

    for seed in range(3):
        found = searched(surface, ON_A_CPU, seed)
        assert len(found) == 40
        assert any(rate is None for _, rate in found)
        # The best of groups that do not fail: 2, 40 below the best there is.
        assert max(rate or 0.0 for _, rate in found) > 0.95 * 960


def test_where_everything_fails_it_goes_on_too() -> None:
    found = searched(lambda tuning: None, ON_A_CPU, 1, 20)
    assert len({tuning for tuning, _ in found}) == 20


def test_a_small_space_is_tried_whole_and_then_over() -> None:
    small = Space(DEFAULT, (Knob("groups", (0, 1, 2), ("groups",)), KNOBS[3]))
    found = searched(of_a_step, small, 1, 100)
    assert len(found) == small.size == 6
    assert searched(of_a_step, Space(DEFAULT, ()), 1, 100) == [(DEFAULT, of_a_step(DEFAULT))]


def test_without_the_optimiser_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'hvdscale\[tune\]'") as caught:
        require_optuna()
    assert caught.value.exit_code == 2
