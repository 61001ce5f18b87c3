"""Horovod's knobs as environment variables, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import tuning
from harness.config.models import HorovodTuning
from harness.errors import ConfigError

MIB = 1024 * 1024

tunings = st.builds(
    HorovodTuning,
    cycle_time_ms=st.floats(0, 1e4, allow_subnormal=False),
    fusion_threshold_mb=st.integers(0, 2**39).map(lambda count_bytes: count_bytes / MIB),
    async_completion=st.booleans(),
    cache_capacity=st.integers(0, 10**6),
    hierarchical_allreduce=st.booleans(),
    torus_allreduce=st.booleans(),
)


@given(tunings)
def test_round_trip(made: HorovodTuning) -> None:
    assert HorovodTuning(**tuning.from_environment(tuning.to_environment(made))) == made


def test_values() -> None:
    made = HorovodTuning(
        cycle_time_ms=0.1,
        fusion_threshold_mb=64,
        async_completion=True,
        cache_capacity=0,
        hierarchical_allreduce=True,
        torus_allreduce=True,
    )
    assert tuning.to_environment(made) == {
        "HOROVOD_CYCLE_TIME": "0.1",
        "HOROVOD_FUSION_THRESHOLD": "67108864",
        "HOROVOD_ENABLE_ASYNC_COMPLETION": "1",
        "HOROVOD_CACHE_CAPACITY": "0",
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "1",
        "HOROVOD_TORUS_ALLREDUCE": "1",
    }


def test_defaults_are_put_in_force_too() -> None:
    """A shell may have set others."""
    assert tuning.to_environment(HorovodTuning()) == {
        "HOROVOD_CYCLE_TIME": "1.0",
        "HOROVOD_FUSION_THRESHOLD": str(128 * MIB),
        "HOROVOD_ENABLE_ASYNC_COMPLETION": "0",
        "HOROVOD_CACHE_CAPACITY": "1024",
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "0",
        "HOROVOD_TORUS_ALLREDUCE": "0",
    }


def test_only_what_is_set_is_taken_over() -> None:
    assert tuning.from_environment({"HOROVOD_RANK": "1"}) == {}
    assert tuning.from_environment({"HOROVOD_CYCLE_TIME": "5"}) == {"cycle_time_ms": 5.0}


@pytest.mark.parametrize(("text", "meant"), [("1", True), ("0", False), ("-1", False), ("2", True)])
def test_a_switch_is_read_as_horovod_reads_it(text: str, meant: bool) -> None:
    """``SetBoolFromEnv`` of env_parser.cc, and operations.cc: on where the number is above 0."""
    for name, field in {
        "HOROVOD_ENABLE_ASYNC_COMPLETION": "async_completion",
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "hierarchical_allreduce",
        "HOROVOD_TORUS_ALLREDUCE": "torus_allreduce",
    }.items():
        assert tuning.from_environment({name: text}) == {field: meant}


@pytest.mark.parametrize("name", [tuning.CACHE_CAPACITY, tuning.TORUS_ALLREDUCE])
def test_a_count_is_not_cut_short(name: str) -> None:
    """``strtol`` would make 1 of 1e3."""
    with pytest.raises(ConfigError, match=f"environment: {name}='1e3' is not a whole number"):
        tuning.from_environment({name: "1e3"})


@pytest.mark.parametrize("name", [tuning.CYCLE_TIME, tuning.FUSION_THRESHOLD])
def test_no_number_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"environment: {name}='fast' is not a number"):
        tuning.from_environment({name: "fast"})


def test_a_knob_without_a_key_is_refused_where_it_changes_something() -> None:
    defaults = {name: f"{value:g}" for name, value in tuning.NOT_IN_CONFIG.items()}
    tuning.check_environment({})
    tuning.check_environment(defaults)
    for name in defaults:
        with pytest.raises(ConfigError, match=f"environment: {name}=7 changes .* unset it"):
            tuning.check_environment({**defaults, name: "7"})


@pytest.mark.parametrize("text", ["", "0", "DYNAMIC", "/tmp/timeline.json"])
@pytest.mark.parametrize("name", tuning.NEVER_SET)
def test_a_knob_that_has_no_off_is_refused_where_it_is_set_at_all(name: str, text: str) -> None:
    """``getenv`` of operations.cc: Horovod asks whether it is there, not what it says."""
    with pytest.raises(ConfigError, match=f"environment: {name}={text} changes .* unset it"):
        tuning.check_environment({name: text})


def test_all_that_is_to_be_unset_is_named_at_once() -> None:
    environ = {"HOROVOD_TIMELINE": "t", "HOROVOD_AUTOTUNE": "1", "HOROVOD_ELASTIC": "0"}
    with pytest.raises(ConfigError, match=r"HOROVOD_TIMELINE=t \(and HOROVOD_AUTOTUNE\) changes"):
        tuning.check_environment(environ)


def test_launches_pin_the_same_knobs() -> None:
    from harness.launch import environment

    pinned = {name: float(value) for name, value in environment._PINNED.items()}
    assert pinned == tuning.NOT_IN_CONFIG
