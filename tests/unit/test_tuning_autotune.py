"""Horovod's own autotuner: what it may choose, how long it takes, and how one sees that it ran."""

from __future__ import annotations

from typing import Any

import pytest

from harness import tuning
from harness.config import HorovodTuning, Measure, RunConfig, parse_sweep
from harness.config.models import AUTOTUNED, Train
from harness.detect import Host, Machine
from harness.engines.active import HorovodRuntime, of_horovod, require
from harness.errors import ConfigError, LaunchError, ValidationError
from harness.launch import Launch
from harness.launch.environment import rank_environment
from harness.provenance.horovod_facts import in_force
from harness.spec import Resolved
from harness.tuner.autotune_log import Chosen, parse_log, read_log
from harness.validate import check_point, plan
from tests.unit.stub_sweep import MACHINE

ON = HorovodTuning(autotune=True)
FREE = {"HOROVOD_CYCLE_TIME", "HOROVOD_FUSION_THRESHOLD", "HOROVOD_CACHE_CAPACITY"}
RUNTIME = HorovodRuntime(size=2, local_size=2, nccl=0, mpi=True)


def config(**keys: Any) -> RunConfig:
    data = {
        "workload": {"name": "stress_strain", "samples": 400},
        "batch_size": 20,
        "backend": "gloo",
        "placement": "1x2",
        "cores_per_rank": 1,
        "horovod": {"autotune": True},
        "measure": {"warmup_steps": tuning.AUTOTUNE_STEPS},
    }
    return RunConfig.model_validate(data | keys)


def test_what_it_chooses_is_not_set_because_a_variable_fixes_it() -> None:
    made, plain = tuning.to_environment(ON), tuning.to_environment(HorovodTuning())
    assert made == {k: v for k, v in plain.items() if k not in FREE} | {"HOROVOD_AUTOTUNE": "1"}
    assert "HOROVOD_AUTOTUNE" not in plain  # pinned to 0, with all that no config has
    assert {tuning.KNOBS[name] for name in AUTOTUNED} == FREE


@pytest.mark.parametrize(
    ("key", "value"), [("cycle_time_ms", 2), ("fusion_threshold_mb", 1), ("cache_capacity", 0)]
)
def test_what_it_chooses_cannot_be_given_beside_it(key: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"autotune chooses {key} by itself; leave {key} out"):
        HorovodTuning.model_validate({"autotune": True, key: value})
    assert HorovodTuning.model_validate({"autotune": False, key: value})


def parameter_manager(cache_is_free: bool) -> tuple[int, int]:
    """Return (steps, judgements) of 0.28.1's ``ParameterManager``, its loops walked through.

    Every step a tensor is seen; hierarchical and torus switches are fixed, as our launches set
    them.
    """
    warmups, samples, steps_per_sample, bayes_max = 3, 5, 10, 20
    steps = judgements = bayes = category = 0
    while True:
        sample = seen = 0
        while sample < samples:  # Update()
            steps += 1
            step, seen = seen, seen + 1
            if step >= (sample + 1) * steps_per_sample:
                sample += 1
        if warmups:  # Tune()
            warmups -= 1
            continue
        judgements += 1
        bayes += 1
        if bayes <= bayes_max:  # BayesianParameter::IsDoneTuning
            continue
        bayes = 0
        category += 1
        if not cache_is_free or category >= 2:  # CategoricalParameter::IsDoneTuning
            return steps, judgements


def test_its_steps_are_those_of_its_source() -> None:
    assert parameter_manager(True) == (tuning.AUTOTUNE_STEPS, tuning.AUTOTUNE_JUDGEMENTS)
    assert (tuning.AUTOTUNE_STEPS, tuning.AUTOTUNE_JUDGEMENTS) == (2295, 42)


def test_a_window_does_not_begin_before_it_is_done() -> None:
    check_point(config(), MACHINE)
    with pytest.raises(ValidationError, match=r"for 2,295 steps, .* set measure.warmup_steps to 2"):
        check_point(config(measure={"warmup_steps": tuning.AUTOTUNE_STEPS - 1}), MACHINE)


def test_where_there_is_no_window_or_no_all_reduce_it_may_be_shorter() -> None:
    short = config(measure={"warmup_steps": 20})
    tuning.check_autotune(short.model_copy(update={"train": Train()}))
    tuning.check_autotune(config(measure={"warmup_steps": 20}, placement="1x1"))
    timeline = Measure(instruments=("timeline",))
    tuning.check_autotune(short.model_copy(update={"measure": timeline}))
    with pytest.raises(ValidationError):
        tuning.check_autotune(short)


def test_the_shell_is_told_the_key() -> None:
    with pytest.raises(ConfigError, match=r"HOROVOD_AUTOTUNE=1 .* and set horovod.autotune: true"):
        tuning.check_environment({"HOROVOD_AUTOTUNE": "1"})


@pytest.mark.parametrize("name", sorted(FREE))
def test_a_sweep_is_refused_where_the_shell_fixes_what_it_chooses(name: str) -> None:
    data = config().model_dump(mode="json", exclude_defaults=True)
    sweep = parse_sweep({"name": "s", "base": None, **data})
    with pytest.raises(ConfigError, match=f"{name}=1 would keep .* leave horovod.autotune out"):
        plan(sweep, MACHINE, {name: "1"})
    assert plan(sweep, MACHINE, {}).points == (config(),)
    plain = parse_sweep({"name": "s", "base": None, **data, "horovod": {}})
    assert len(plan(plain, MACHINE, {name: "1"}).points) == 1


@pytest.mark.parametrize("name", ["WARMUP_SAMPLES", "STEPS_PER_SAMPLE", "BAYES_OPT_MAX_SAMPLES"])
def test_nobody_changes_how_long_it_takes(name: str) -> None:
    with pytest.raises(ConfigError, match=f"HOROVOD_AUTOTUNE_{name}=1"):
        tuning.check_environment({f"HOROVOD_AUTOTUNE_{name}": "1"})


def launched(made: RunConfig) -> dict[str, str]:
    machine = Machine(hosts=(Host("node0", 8, 8),), device="cpu")
    resolved = Resolved(
        launcher="horovodrun",
        backend="gloo",
        controller="gloo",
        placement=(2,),
        hosts=("node0",),
        device="cpu",
        cores_per_rank=1,
        bind=True,
    )
    return rank_environment(
        Launch(made, machine, resolved, "python", ("-m", "x"), "/logs/id/1/run.json", 60.0)
    )


def test_a_launch_lets_it_choose_and_keeps_its_log() -> None:
    env = launched(config())
    assert env["HOROVOD_AUTOTUNE"] == "1"
    assert env["HOROVOD_AUTOTUNE_LOG"] == "/logs/id/1/autotune.csv"
    assert not FREE & set(env)
    plain = launched(config(horovod={}))
    assert plain["HOROVOD_AUTOTUNE"] == "0"
    assert "HOROVOD_AUTOTUNE_LOG" not in plain
    assert set(plain) >= FREE


def test_a_rank_shows_that_it_runs() -> None:
    env = launched(config())
    found = require(of_horovod(ON, RUNTIME, env))
    assert found["horovod.autotune: true"] == "HOROVOD_AUTOTUNE=1, nothing fixed by the environment"
    assert require(of_horovod(HorovodTuning(), RUNTIME, launched(config(horovod={})))) == {}


@pytest.mark.parametrize("environ", [{}, {"HOROVOD_AUTOTUNE": "0"}])
def test_or_that_it_does_not(environ: dict[str, str]) -> None:
    with pytest.raises(LaunchError, match=r"horovod.autotune: true was asked for, but is not act"):
        require(of_horovod(ON, RUNTIME, environ))


@pytest.mark.parametrize("name", sorted(FREE))
def test_or_that_it_has_nothing_to_choose(name: str) -> None:
    with pytest.raises(LaunchError, match=f"{name} fixed by the environment"):
        require(of_horovod(ON, RUNTIME, {**launched(config()), name: "1"}))


def test_nobody_autotunes_unasked() -> None:
    with pytest.raises(LaunchError, match=r"horovod.autotune: false was asked for"):
        require(of_horovod(HorovodTuning(), RUNTIME, {"HOROVOD_AUTOTUNE": "1"}))


def test_provenance_does_not_name_values_that_it_moves() -> None:
    assert not FREE & set(in_force(launched(config())))
    assert set(in_force(launched(config(horovod={})))) >= FREE
    assert "HOROVOD_AUTOTUNE_LOG" not in in_force(launched(config()))  # of each launch its own


HEAD = (
    "hierarchical_allreduce,hierarchical_allgather,torus_allreduce,cache_enabled,cycle,fusion,s\n"
)
ROWS = "0,0,0, 0,5,4,20.181\n" * 42


def test_its_log_says_what_it_chose(tmp_path: Any) -> None:
    best = "0,0,0, 1,2.60485,25.7626,74.2975\n"
    assert parse_log(HEAD + ROWS + best) == Chosen(2.60485, 25.7626, True)
    path = tmp_path / "autotune.csv"
    path.write_text(HEAD + ROWS + best)
    assert read_log(path) == Chosen(2.60485, 25.7626, True)


@pytest.mark.parametrize(
    "text", ["", HEAD, HEAD + ROWS, HEAD + ROWS + "0,0", HEAD + ROWS + "a," * 7]
)
def test_a_log_without_an_end_says_nothing(text: str, tmp_path: Any) -> None:
    assert parse_log(text) is None
    assert read_log(tmp_path / "none.csv") is None
