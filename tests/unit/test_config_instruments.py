"""Instruments by engine, and the launches that timelines have to themselves."""

from __future__ import annotations

from typing import Any

import pytest

from harness.config import RunConfig, expand, parse_sweep
from harness.config.identity import point_id
from harness.config.instruments import OFFERED, is_timeline, lacking
from harness.errors import ConfigError
from harness.runner.labels import labels
from harness.validate import _check_instruments

ALL = ["phases", "ablation", "clocks", "telemetry", "timeline"]


def sweep(**keys: Any) -> Any:
    measure = {"instruments": keys.pop("instruments", ALL)} | keys.pop("measure", {})
    data = {"name": "s", "workload": "stress_strain", "batch_size": 75, "measure": measure}
    return expand(parse_sweep(data | {"placement": [1, 2]} | keys))


def test_each_engine_gets_what_it_has() -> None:
    found = sweep(engine=["horovod", "ddp"], backend="gloo")
    by_engine = {point.engine: point.measure.instruments for point in found.points}
    assert by_engine == {
        "horovod": ("phases", "ablation", "clocks", "telemetry"),
        "ddp": ("phases", "ablation", "clocks", "telemetry"),
    }
    assert {base.measure.instruments for base in found.bases if base} == {("phases", "telemetry")}


def test_only_horovod_on_two_ranks_has_a_timeline() -> None:
    found = sweep(engine=["horovod", "ddp"], backend="gloo", measure={"timeline_steps": 7})
    launches = [t for t in found.timelines if t is not None]
    (timeline,) = launches
    assert (timeline.engine, timeline.world_size) == ("horovod", 2)
    assert is_timeline(timeline)
    assert timeline.measure.timeline_steps == 7
    assert not any(is_timeline(point) for point in found.points)


def test_asking_for_a_timeline_changes_no_other_launch() -> None:
    plain = sweep(instruments=["phases"], backend="gloo")
    with_timeline = sweep(
        instruments=["phases", "timeline"], backend="gloo", measure={"timeline_steps": 7}
    )
    ids = [[point_id(p) for p in found.points] for found in (plain, with_timeline)]
    assert ids[0] == ids[1]
    assert plain.timelines == (None, None)


def test_a_longer_window_is_no_other_timeline() -> None:
    ids = [
        [point_id(t) for t in sweep(backend="gloo", measure={"window_s": w}).timelines if t]
        for w in (1.0, 2.0)
    ]
    assert ids[0] == ids[1]


def test_an_instrument_that_no_engine_has_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"no engine of this sweep has timeline; ddp has: phases"):
        sweep(engine="ddp", backend="gloo")
    with pytest.raises(ConfigError, match="has ablation; none has: phases, telemetry"):
        sweep(engine="none", placement=1, instruments=["ablation"])
    with pytest.raises(ConfigError, match="timeline needs a point of 2 ranks or more"):
        sweep(backend="gloo", placement=1)


def test_by_hand_too() -> None:
    def check(engine: str, placement: str, instruments: list[str]) -> None:
        data = {
            "workload": "stress_strain", "engine": engine, "batch_size": 75,
            "placement": placement, "measure": {"instruments": instruments},
        }  # fmt: skip
        _check_instruments(RunConfig.model_validate(data))

    check("horovod", "1x2", ["timeline"])
    check("horovod", "1x2", ALL[:4])
    for engine, placement, wanted, said in (
        ("ddp", "1x2", ["timeline"], "engine ddp has no timeline"),
        ("none", "1x1", ["clocks"], "engine none has no clocks; it has: phases, telemetry"),
        ("horovod", "1x2", ["phases", "timeline"], "a launch of its own"),
        ("horovod", "1x1", ["timeline"], "2 ranks or more"),
    ):
        with pytest.raises(ConfigError, match=said):
            check(engine, placement, wanted)


def test_the_default_is_for_every_engine() -> None:
    default = RunConfig.model_fields["measure"].default
    assert {engine: lacking(engine, default) for engine in OFFERED} == dict.fromkeys(OFFERED, ())


def test_instruments_that_follow_from_the_engine_are_in_no_label() -> None:
    found = sweep(engine=["horovod", "ddp"], backend="gloo")
    said = labels([*found.points, *(base for base in found.bases if base)]).values()
    assert "stress_strain ddp/gloo 2 batch 75" in said
    assert not any("instruments" in label for label in said)
