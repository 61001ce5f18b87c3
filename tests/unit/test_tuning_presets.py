"""Named sets of Horovod's knobs: where they come from, and what a config makes of them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import cli
from harness.byhand import config_of
from harness.config import HorovodTuning, RunConfig, Sweep, expand, parse_sweep, sweep_to_yaml
from harness.config.identity import canonical, point_id
from harness.config.load import apply_overrides, load_sweep, preset_names
from harness.config.tuning_presets import (
    load_tuning_preset,
    preset_about,
    tuning_preset_names,
)
from harness.config.yaml_dialect import dump, load_text
from harness.errors import ConfigError, ValidationError
from harness.ranks import RankPlace

#: As the package has it: its values follow measurements, and are no part of these tests.
LATENCY = load_tuning_preset("latency")


def sweep(*overrides: str, **keys: Any) -> Sweep:
    data = {
        "name": "s",
        "workload": "stress_strain",
        "batch_size": 75,
        "placement": "1x2",
        "base": None,
        **keys,
    }
    return parse_sweep(apply_overrides(data, overrides))


def knobs(made: Sweep) -> list[dict[str, Any]]:
    return [canonical(config).get("horovod", {}) for config in expand(made).points]


def write(folder: Path, text: str) -> str:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_package_has_them_and_says_what_they_are_for() -> None:
    assert tuning_preset_names() == ("bandwidth", "latency")
    for name in tuning_preset_names():
        assert len(preset_about(name)) > 40
        assert HorovodTuning(**load_tuning_preset(name)).async_completion
    assert LATENCY["cycle_time_ms"] == 0


def test_its_knobs_stand_in_place_of_the_defaults() -> None:
    for made in (
        sweep(horovod="latency"),
        sweep(horovod={"preset": "latency"}),
        sweep("horovod.preset=latency"),
        sweep("horovod.groups=0", horovod="latency"),
    ):
        assert knobs(made) == [LATENCY]


def test_it_is_gone_from_the_point_and_from_its_id() -> None:
    (named,) = expand(sweep(horovod="latency")).points
    (written,) = expand(sweep(horovod=LATENCY)).points
    assert named == written
    assert point_id(named) == point_id(written)
    assert "preset" not in named.model_dump_json()


def test_keys_beside_it_win() -> None:
    assert knobs(sweep(horovod={"preset": "latency", "cycle_time_ms": 0.5})) == [
        {**LATENCY, "cycle_time_ms": 0.5}
    ]
    # At the default's value, too: it was written.
    assert knobs(sweep("horovod.async_completion=false", horovod="latency")) == [
        {"controller": "mpi", "cycle_time_ms": 0.0}
    ]


def test_it_can_be_an_axis_with_no_preset_among_its_values(tmp_path: Path) -> None:
    mine = write(tmp_path, "about: text\ngroups: 3\n")
    made = sweep(horovod={"preset": [None, "latency", mine], "fusion_threshold_mb": [128, 16]})
    assert knobs(made) == [
        {},
        {"fusion_threshold_mb": 16.0},
        LATENCY,
        {**LATENCY, "fusion_threshold_mb": 16.0},
        {"groups": 3},
        {"groups": 3, "fusion_threshold_mb": 16.0},
    ]


def test_it_can_go_together_with_another_axis() -> None:
    made = sweep(
        horovod={"preset": [None, "latency"]},
        batch_size=[75, 700],
        zip=["horovod.preset", "batch_size"],
    )
    found = [(c.batch_size, c.horovod.async_completion) for c in expand(made).points]
    assert found == [(75, False), (700, True)]


def test_an_included_point_may_name_one() -> None:
    made = sweep(include=[{"horovod": {"preset": "latency", "groups": 2}}, {"horovod": "latency"}])
    assert knobs(made) == [{}, {**LATENCY, "groups": 2}, LATENCY]


def test_a_preset_of_an_included_point_stands_before_what_the_sweep_says() -> None:
    """An ``include`` fixes what it names, and by its preset's name it names the knobs."""
    said = {"cycle_time_ms": 5, "groups": 7}
    for entry in ({"horovod": {"preset": "latency"}}, {"horovod.preset": "latency"}):
        assert knobs(sweep(horovod=said, include=[entry]))[1] == {**LATENCY, "groups": 7}
    beside = {"horovod": {"preset": ["latency", None], "cycle_time_ms": 3}}
    assert knobs(sweep(horovod=said, include=[beside]))[1:] == [
        {**LATENCY, "cycle_time_ms": 3, "groups": 7},
        {"cycle_time_ms": 3, "groups": 7},
    ]
    # A preset of the sweep stays behind its own keys and the entry's.
    made = sweep(horovod={"preset": "latency", "groups": 7}, include=[{"horovod.groups": 2}])
    assert knobs(made) == [{**LATENCY, "groups": 7}, {**LATENCY, "groups": 2}]


@pytest.mark.parametrize("name", preset_names())
def test_what_is_kept_of_the_packages_sweeps_is_the_same_sweep(name: str) -> None:
    made = load_sweep(name)
    again = parse_sweep(load_text(sweep_to_yaml(made), "kept"))
    assert expand(again).points == expand(made).points


def test_a_preset_is_no_key_to_exclude_by() -> None:
    with pytest.raises(ConfigError, match="a point has the knobs of its preset and not the name"):
        expand(sweep(horovod="latency", exclude=[{"horovod": {"preset": "latency"}}]))


def test_a_name_that_no_file_can_have_is_no_preset() -> None:
    with pytest.raises(ConfigError, match="is no file and no tuning preset"):
        sweep(horovod="x" * 5000)


def test_a_point_is_excluded_by_what_its_preset_says() -> None:
    made = sweep(horovod={"preset": [None, "latency"]}, exclude=[{"horovod": {"cycle_time_ms": 0}}])
    assert knobs(made) == [{}]


def test_a_base_without_horovod_has_nothing_of_it() -> None:
    made = expand(sweep(horovod="latency", base="none@1"))
    assert made.bases[0] is not None
    assert made.bases[0].horovod == HorovodTuning()


def test_what_is_kept_of_a_sweep_needs_the_file_no_more(tmp_path: Path) -> None:
    mine = write(tmp_path, "groups: 3\n")
    made = sweep(
        horovod={"preset": [mine, "latency"], "cycle_time_ms": [1, 2]},
        include=[
            {"horovod": {"preset": mine, "cycle_time_ms": 7}},
            {"horovod.preset": mine, "batch_size": 80},
        ],
    )
    kept = sweep_to_yaml(made)
    Path(mine).unlink()
    again = parse_sweep(load_text(kept, "kept"))
    assert expand(again).points == expand(made).points
    assert len(expand(again).points) == 6
    written = load_text(kept, "kept")["horovod"]["preset"]
    assert all({*one, "cycle_time_ms"} == set(HorovodTuning.model_fields) for one in written)


def test_a_config_by_itself_takes_one_too(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"workload": "stress_strain", "batch_size": 75}
    made = RunConfig.model_validate({**keys, "horovod": {"preset": "latency", "cycle_time_ms": 3}})
    assert canonical(made)["horovod"] == {**LATENCY, "cycle_time_ms": 3.0}
    assert HorovodTuning.model_validate("latency") == HorovodTuning(**LATENCY)


def test_by_hand_it_goes_before_launcher_and_shell() -> None:
    place = RankPlace("horovodrun", 0, 2, 0)
    environ = {"HOROVOD_CYCLE_TIME": "7", "HOROVOD_FUSION_THRESHOLD": "1048576"}
    made = config_of(
        "stress_strain", {"batch_size": 5, "backend": "nccl"}, ["horovod=latency"], place, environ
    )
    assert canonical(made)["horovod"] == {**LATENCY, "fusion_threshold_mb": 1.0}


FAULTS = {
    "latncy": r"'latncy' is no file and no tuning preset \(did you mean 'latency'\?\); "
    "tuning presets: bandwidth, latency",
    "no/such.yaml": r"no/such.yaml: cannot be read: No such file .*\(a path is seen from the ",
    "": "'' is no file and no tuning preset",
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_none_is_one_line(name: str) -> None:
    with pytest.raises(ConfigError, match=FAULTS[name]) as caught:
        sweep(horovod={"preset": name})
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


TEXTS = {
    "cycletime_ms: 1": r"mine.yaml: cycletime_ms: .* such key \(did you mean 'cycle_time_ms'\?\)",
    "preset: latency": "mine.yaml: preset: a tuning preset has no such key",
    "cycle_time_ms: -1": "mine.yaml: cycle_time_ms: .* greater than or equal to 0",
    "cycle_time_ms: [1, 2]": "mine.yaml: cycle_time_ms: ",
    "about: [1]": "mine.yaml: about: expected text",
    "- 1": "mine.yaml: expected keys and values",
    "groups: 1\ngroups: 2": "line 2: key 'groups' is there twice",
    "a: " + "x" * 70_000: "larger than 64 KiB",
}


@pytest.mark.parametrize("text", TEXTS)
def test_a_file_that_is_none_is_one_line(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=TEXTS[text]):
        sweep(horovod={"preset": write(tmp_path, text)})


@pytest.mark.parametrize("value", [3, True, 1.5])
def test_a_preset_is_a_name(value: object) -> None:
    with pytest.raises(ConfigError, match=r"horovod.preset: .* is no preset; give a name \(band"):
        sweep(horovod={"preset": value})


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    assert knobs(sweep(horovod={"preset": write(tmp_path, "about: nothing\n")})) == [{}]
    assert load_tuning_preset(write(tmp_path, "")) == {}


def test_a_wrong_key_is_told_the_near_one() -> None:
    with pytest.raises(ConfigError, match=r"horovod.presets: unknown key \(did you mean 'preset'"):
        sweep(horovod={"presets": "latency"})


tunings = st.builds(
    HorovodTuning,
    controller=st.sampled_from([None, "mpi", "gloo"]),
    cycle_time_ms=st.floats(0, 1e4, allow_subnormal=False),
    fusion_threshold_mb=st.floats(0, 1e4, allow_subnormal=False),
    groups=st.integers(0, 100),
    cache_capacity=st.integers(0, 4096),
    compression=st.sampled_from(["none", "fp16"]),
    async_completion=st.booleans(),
)


@given(made=tunings)
def test_any_tuning_can_be_written_as_a_file(
    made: HorovodTuning, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("preset") / "tuned.yaml"
    path.write_text(dump({"about": "x", **made.model_dump()}), encoding="utf-8")
    (point,) = expand(sweep(horovod={"preset": str(path)})).points
    assert point.horovod == made


def test_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["presets"]) == 0
    text = capsys.readouterr().out
    assert "latency: controller mpi, cycle_time_ms 0" in text
    assert "demo" in text
    assert cli.main(["presets", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tunings"]["latency"]["knobs"] == LATENCY
    assert "demo" in found["sweeps"]


def settled_for_allreduce(
    launcher: str,
    tuning: str | None,
    monkeypatch: pytest.MonkeyPatch,
    libraries: str = "all",
    cycle_time_ms: str = "7",
) -> dict[str, str]:
    """Return the environment that a rank of ``hvdscale allreduce`` makes for itself, on a CPU."""
    from harness.cli import collectives

    environ = {"PATH": os.environ["PATH"], "HOROVOD_CYCLE_TIME": cycle_time_ms}
    monkeypatch.setattr(os, "environ", environ)
    monkeypatch.setattr("harness.byhand.detect_gpus", lambda: ())
    request = collectives._request("4K", "all_reduce", libraries, 3)
    collectives._settled(RankPlace(launcher, 0, 2, 0), None, request, tuning)
    return environ


def test_allreduce_takes_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = write(tmp_path, "cycle_time_ms: 0.05\nfusion_threshold_mb: 1\n")
    environ = settled_for_allreduce("mpirun", mine, monkeypatch)
    assert environ["HOROVOD_CYCLE_TIME"] == "0.05"
    assert environ["HOROVOD_FUSION_THRESHOLD"] == "1048576"
    assert settled_for_allreduce("mpirun", None, monkeypatch)["HOROVOD_CYCLE_TIME"] == "7.0"


def test_allreduce_refuses_one_that_cannot_be_active(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError, match=r"horovod.async_completion needs a CUDA device"):
        settled_for_allreduce("mpirun", "latency", monkeypatch)
    with pytest.raises(ConfigError, match="--tuning is for Horovod, which torchrun starts none"):
        settled_for_allreduce("torchrun", "latency", monkeypatch)


def test_allreduce_refuses_one_that_says_nothing_of_what_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = write(tmp_path, "cycle_time_ms: 0.05\n")
    with pytest.raises(ConfigError, match="which --libraries leaves out; add horovod"):
        settled_for_allreduce("mpirun", mine, monkeypatch, libraries="torch")
    mine = write(tmp_path, "autotune: true\n")
    with pytest.raises(ConfigError, match="with autotune Horovod would try settings while"):
        settled_for_allreduce("mpirun", mine, monkeypatch, cycle_time_ms="1")


def test_by_hand_knobs_of_another_engine_are_no_silence() -> None:
    place = RankPlace("mpirun", 0, 2, 0)
    flags: dict[str, int | str | None] = {"batch_size": 3}
    with pytest.raises(ConfigError, match="ddp: these are knobs of engine ddp"):
        config_of("stress_strain", flags, ("ddp.bucket_mb=1",), place, {})
    ddp: dict[str, int | str | None] = {**flags, "engine": "ddp"}
    place = RankPlace("torchrun", 0, 2, 0)
    assert config_of("stress_strain", ddp, ("ddp.bucket_mb=1",), place, {}).ddp.bucket_mb == 1
