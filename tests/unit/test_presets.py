from __future__ import annotations

import pytest

from harness.config import Expansion, Measure, expand, load_sweep, preset_names
from harness.runner.estimate import START_S, launch_s

ALL = (
    "batch_size",
    "data_paths",
    "demo",
    "engines",
    "frameworks",
    "graphs",
    "lstm_weak",
    "resnet_tuned",
    "resnet_weak",
    "stress_strain_strong",
    "stress_strain_weak",
    "training",
)


def _expand(name: str) -> Expansion:
    return expand(load_sweep(name))


def test_presets_are_the_ones_the_readme_names() -> None:
    assert preset_names() == ALL


@pytest.mark.parametrize("name", ALL)
def test_a_preset_loads_and_expands_to_distinct_points(name: str) -> None:
    expansion = _expand(name)
    assert len(set(map(repr, expansion.points))) == len(expansion.points) > 1
    assert load_sweep(name).name == name.replace("_", "-")


@pytest.mark.parametrize("name", ALL)
def test_no_point_is_illegal_by_itself(name: str) -> None:
    """An engine without distribution has one device, and a base is never larger than its points."""
    for point, base in zip(_expand(name).points, _expand(name).bases, strict=True):
        assert point.engine != "none" or point.world_size == 1
        assert base is None or base.world_size <= point.world_size


def test_the_demo_is_two_bases_and_eight_points_in_two_blocks() -> None:
    sweep = load_sweep("demo")
    expansion = expand(sweep)
    points = {(c.backend, c.world_size, c.batch_size) for c in expansion.points}
    assert points == {(b, n, k) for b in ("mpi", "gloo") for n in (1, 2) for k in (75, 700)}
    assert len(expansion.launches()) == 10
    assert {c.engine for c in expansion.launches()} == {"none", "horovod"}
    assert sweep.measure.blocks == 2
    assert {c.cores_per_rank for c in expansion.launches()} == {1}


def test_the_demo_fits_four_minutes_on_two_cores() -> None:
    """A budget by arithmetic, with the guess that ``validate`` makes."""
    sweep = load_sweep("demo")
    block_s = sum(launch_s(config.measure) for config in expand(sweep).launches())
    assert block_s * sweep.measure.blocks < 240


def test_the_time_of_a_launch_has_its_window_and_its_phases() -> None:
    plain = Measure(window_s=4.0, instruments=())
    assert launch_s(plain) == START_S + 4.0
    assert launch_s(Measure(window_s=4.0)) == START_S + 6.0


def test_strong_scaling_keeps_the_global_batch() -> None:
    assert {c.global_batch for c in _expand("stress_strain_strong").points} == {600, 4800}
    assert {c.global_batch for c in _expand("stress_strain_weak").points} == {
        n * k for n in (1, 2, 4, 8) for k in (75, 700)
    }


def test_the_batch_size_preset_has_no_base() -> None:
    expansion = _expand("batch_size")
    assert set(expansion.bases) == {None}
    assert [c.batch_size for c in expansion.points] == [75, 150, 300, 700, 1500, 3000, 5000]


def test_engines_compares_each_engine_at_every_legal_count() -> None:
    counts: dict[str, set[int]] = {}
    for config in _expand("engines").points:
        counts.setdefault(config.engine, set()).add(config.world_size)
    assert counts == {"none": {1}, "horovod": {1, 2, 4}, "ddp": {1, 2, 4}}
