"""A sweep multiplied out: axes, zips, includes, excludes, duplicates and bases."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError as PydanticError

from harness.config import Expansion, RunConfig, expand, parse_sweep
from harness.config.expand import MAX_POINTS
from harness.config.identity import point_id
from harness.errors import ConfigError

BASIC: dict[str, Any] = {"name": "s", "workload": "stress_strain"}


def expanded(devices_per_node: int = 1, **keys: Any) -> Expansion:
    if "batch_size" not in keys:
        keys["batch_size"] = 75
    return expand(parse_sweep({**BASIC, **keys}), devices_per_node)


AXES: dict[str, list[Any]] = {
    "backend": ["mpi", "gloo", "nccl"],
    "placement": ["1x1", "1x2", "2x2", "8+2"],
    "batch_size": [1, 2, 3, 4],
    "seed": [1, 2, 3],
    "horovod.cycle_time_ms": [0.1, 1.0, 5.0],
    "measure.window_s": [1.0, 2.0],
    "workload.samples": [10, 20],
}


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    keys: dict[str, Any] = {"workload": {"name": "stress_strain"}}
    for path, value in flat.items():
        *parents, last = path.split(".")
        target = keys
        for parent in parents:
            target = target.setdefault(parent, {})
        target[last] = value
    return keys


def value_of(config: RunConfig, path: str) -> Any:
    if path == "workload.samples":
        return config.workload.options["samples"]
    value: Any = config
    for name in path.split("."):
        value = getattr(value, name)
    return str(value) if path == "placement" else value


@given(
    st.fixed_dictionaries(
        {},
        optional={
            key: st.lists(st.sampled_from(values), min_size=1, unique=True)
            for key, values in AXES.items()
        },
    ),
    st.data(),
)
def test_the_points_are_the_product_of_the_axes_less_what_is_excluded(
    axes: dict[str, list[Any]], data: st.DataObject
) -> None:
    exclude = {
        key: data.draw(st.sampled_from(values))
        for key, values in axes.items()
        if data.draw(st.booleans())
    }
    keys = nested(axes)
    if exclude:
        keys["exclude"] = [exclude]
    left = prod(map(len, axes.values())) - (
        prod(len(v) for k, v in axes.items() if k not in exclude) if exclude else 0
    )
    if left == 0:
        with pytest.raises(ConfigError, match="exclude leaves no points"):
            expanded(**keys)
        return
    points = expanded(**keys).points
    assert len(points) == left == len({point_id(point) for point in points})
    for point in points:
        assert all(value_of(point, key) in values for key, values in axes.items())
        assert not exclude or any(value_of(point, key) != v for key, v in exclude.items())


def test_points_come_in_the_order_written() -> None:
    points = expanded(backend=["mpi", "gloo"], batch_size=[75, 700]).points
    assert [(p.backend, p.batch_size) for p in points] == [
        ("mpi", 75), ("mpi", 700), ("gloo", 75), ("gloo", 700),
    ]  # fmt: skip


def test_engine_none_drops_backend_and_tuning_and_duplicates_go() -> None:
    groups = {"groups": [0, 2]}
    found = expanded(engine=["none", "horovod"], backend=["mpi", "gloo"], horovod=groups)
    assert [p.engine for p in found.points] == ["none"] + ["horovod"] * 4


def test_equal_points_in_other_words_are_one() -> None:
    assert len(expanded(horovod={"cycle_time_ms": [1, 1.0, "1e0", 1.0]}).points) == 1
    assert len(expanded(batch_size=[75, 75.0, "75"]).points) == 1
    assert len(expanded(placement=["2x1", "1+1"]).points) == 1
    assert len(expanded(horovod={"cycle_time_ms": [1, 2]}, workload="w").points) == 2


def test_true_is_not_one_even_beside_one() -> None:
    with pytest.raises(ConfigError, match="expected a number, got True"):
        expanded(horovod={"groups": [1, True]})
    with pytest.raises(ConfigError, match="expected a number, got True"):
        expanded(batch_size=[1, True])


def test_zipped_axes_go_together() -> None:
    points = expanded(
        placement=["1x1", "1x2"], batch_size=[100, 50], seed=[1, 2], zip=["placement", "batch_size"]
    ).points
    assert [(str(p.placement), p.batch_size, p.seed) for p in points] == [
        ("1x1", 100, 1), ("1x1", 100, 2), ("1x2", 50, 1), ("1x2", 50, 2),
    ]  # fmt: skip


def test_an_include_is_one_point_by_name() -> None:
    found = expanded(
        backend=["mpi", "gloo"], batch_size=[75, 700], include=[{"placement": "1x4", "seed": 9}]
    )
    assert found.named == (False, False, False, False, True)
    last = found.points[-1]
    assert (str(last.placement), last.seed, last.backend, last.batch_size) == ("1x4", 9, "mpi", 75)


def test_an_include_may_have_axes_and_scale_otherwise() -> None:
    strong = {"scaling": "strong", "global_batch_size": 64, "placement": ["1x1", "1x2"]}
    points = expanded(include=[strong]).points
    assert [(p.scaling, p.global_batch) for p in points] == [
        ("weak", 75), ("strong", 64), ("strong", 64),
    ]  # fmt: skip


def test_an_include_of_a_multiplied_point_makes_it_named() -> None:
    found = expanded(backend=["mpi", "gloo"], include=[{"backend": "gloo"}])
    assert dict(zip([p.backend for p in found.points], found.named, strict=True)) == {
        "mpi": False, "gloo": True,
    }  # fmt: skip


def test_the_only_point_is_named() -> None:
    assert expanded().named == (True,)


@pytest.mark.parametrize(
    ("entry", "left"),
    [
        ({"backend": "gloo"}, [("mpi", 75), ("mpi", 700)]),
        ({"backend": ["mpi", "gloo"], "batch_size": 75}, [("mpi", 700), ("gloo", 700)]),
        ({"engine": "horovod", "batch_size": "700"}, [("mpi", 75), ("gloo", 75)]),  # a default
        ({"horovod": {"cycle_time_ms": 1}, "backend": "mpi"}, [("gloo", 75), ("gloo", 700)]),
        ({"measure.instruments": ["phases"], "backend": "mpi"}, [("gloo", 75), ("gloo", 700)]),
        ({"placement": 1, "backend": "mpi"}, [("gloo", 75), ("gloo", 700)]),
        ({"workload": "stress_strain", "backend": "mpi"}, [("gloo", 75), ("gloo", 700)]),
    ],
)
def test_exclude_takes_out_what_has_all_of_its_values(
    entry: dict[str, Any], left: list[tuple[str, int]]
) -> None:
    points = expanded(backend=["mpi", "gloo"], batch_size=[75, 700], exclude=[entry]).points
    assert [(p.backend, p.batch_size) for p in points] == left


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        (4, ["2", "1x2", "2x1", "2x4"]),  # a count: every placement of so many ranks
        (2, ["4", "2x2", "2x4"]),
        ("1x2", ["2", "4", "2x1", "2x2", "2x4"]),
        ("1+1", ["2", "4", "1x2", "2x2", "2x4"]),
        (["2x2", "4+4"], ["2", "4", "1x2", "2x1"]),
    ],
)
def test_exclude_compares_placements_and_not_their_words(wanted: Any, left: list[str]) -> None:
    placements = [2, 4, "1x2", "2x1", "2x2", "2x4"]
    points = expanded(placement=placements, exclude=[{"placement": wanted}]).points
    assert [str(p.placement) for p in points] == left


def test_exclude_looks_into_workloads_however_they_are_written() -> None:
    workloads = ["a", {"name": "b", "samples": 3}, {"name": "b", "options": {"samples": 4}}]
    for entry, left in (
        ({"workload": "a"}, 2),
        ({"workload": ["a", "b"], "workload.samples": [3, 4]}, 1),
        ({"workload": {"name": "b", "samples": 3.0}}, 2),
        ({"workload": {"framework": "torch", "samples": 4}}, 2),
    ):
        assert len(expanded(workload=workloads, exclude=[entry]).points) == left, entry


def test_a_point_that_is_refused_can_be_excluded() -> None:
    keys = {"batch_size": None, "scaling": "strong", "global_batch_size": 64}
    points = expanded(placement=["1x2", "1x3"], exclude=[{"placement": 3}], **keys).points
    assert [str(p.placement) for p in points] == ["1x2"]


def test_an_empty_group_says_nothing() -> None:
    assert expanded(horovod={}, execution={}, measure={}).points == expanded().points
    kept = expanded(horovod={"groups": 2}, include=[{"horovod": {}, "seed": 2}]).points
    assert [p.horovod.groups for p in kept] == [2, 2]


def test_an_instrument_named_twice_is_one() -> None:
    twice, once = ({"measure": {"instruments": ["phases"] * n}} for n in (2, 1))
    assert expanded(**twice).points == expanded(**once).points == expanded().points


def test_what_is_dropped_leaves_no_trace() -> None:
    plain = expanded(engine="none", placement="1x1").points[0]
    for keys in (
        {"backend": "gloo", "horovod": {"groups": 2}, "launcher": "mpirun"},
        {"placement_policy": "spread"},
    ):
        point = expanded(engine="none", placement="1x1", **keys).points[0]
        assert point == plain
        assert point.model_dump_json() == plain.model_dump_json()
        assert point_id(point) == point_id(plain)
    assert expanded(engine="none", launcher="srun").points[0].launcher == "srun"


def bases(found: Expansion) -> list[tuple[str, str, str | None, int]]:
    return [
        (b.engine, str(b.placement), b.backend, b.rank_batch) for b in found.bases if b is not None
    ]


def test_the_base_shares_everything_but_what_it_is_named_for() -> None:
    found = expanded(
        placement=["1x1", "1x2"], batch_size=[75, 700], backend="gloo", data="host", seed=3,
        horovod={"cycle_time_ms": 5}, launcher="horovodrun",
    )  # fmt: skip
    assert bases(found) == [("none", "1x1", None, n) for n in (75, 700, 75, 700)]
    base = found.bases[0]
    assert base is not None
    assert (base.data, base.seed, base.launcher) == ("host", 3, None)
    assert base.horovod.cycle_time_ms == 1.0
    assert len(found.launches()) == 6


def test_a_base_of_the_same_engine_keeps_backend_launcher_and_tuning() -> None:
    found = expanded(
        placement="2x2", backend="gloo", launcher="horovodrun", base="horovod@1",
        horovod={"cycle_time_ms": 5},
    )  # fmt: skip
    base = found.bases[0]
    assert base is not None
    assert (str(base.placement), base.backend, base.launcher) == ("1x1", "gloo", "horovodrun")
    assert base.horovod.cycle_time_ms == 5.0


def test_base_node_is_one_full_node() -> None:
    assert bases(expanded(8, placement="2x8", base="node")) == [("horovod", "1x8", None, 75)]


def test_no_base() -> None:
    found = expanded(base=None)
    assert found.bases == (None,)
    assert len(found.launches()) == 1


def test_the_base_of_strong_scaling_has_the_same_global_batch() -> None:
    found = expanded(
        batch_size=None, scaling="strong", global_batch_size=64, placement=["1x2", "1x4"]
    )
    assert bases(found) == [("none", "1x1", None, 64)] * 2


def test_a_base_that_is_impossible_is_said_to_be_the_base() -> None:
    with pytest.raises(ConfigError, match=r"sweep s, base: .*64 cannot be divided by 3"):
        expanded(3, batch_size=None, scaling="strong", global_batch_size=64, base="node")


def test_too_many_points_are_refused_before_they_are_made() -> None:
    with pytest.raises(ConfigError, match=f"more than {MAX_POINTS} points"):
        expanded(seed=list(range(400)), batch_size=list(range(1, 401)))


def test_points_cannot_be_changed() -> None:
    point = expanded().points[0]
    with pytest.raises(PydanticError, match="frozen"):
        point.seed = 4  # type: ignore[misc]


def test_batch_of_a_rank_and_of_all() -> None:
    weak = expanded(placement="1x4").points[0]
    assert (weak.world_size, weak.rank_batch, weak.global_batch) == (4, 75, 300)
    strong = expanded(
        batch_size=None, scaling="strong", global_batch_size=64, placement="1x4"
    ).points[0]
    assert (strong.rank_batch, strong.global_batch) == (16, 64)
