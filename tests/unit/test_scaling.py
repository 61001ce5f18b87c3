from __future__ import annotations

import random as random_module

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis.frame import arrow_table, facts, frame
from harness.analysis.match import BaseName, is_base_of, own_launcher
from harness.analysis.scaling import Curve, curves, failures
from harness.config import RunConfig, Sweep, expand, parse_sweep
from harness.config.identity import canonical
from harness.errors import AnalysisError
from harness.record import RunRecord
from tests import factories
from tests.factories import config, failure, record


def _by_label(records: list[RunRecord], **how: object) -> dict[str, Curve]:
    return {curve.label: curve for curve in curves(frame(records), **how)}


def _json(made: RunConfig) -> str:
    import json

    return json.dumps(canonical(made), sort_keys=True)


def _pair(n: int, point: tuple[float, ...], base: tuple[float, ...]) -> list[RunRecord]:
    """Blocks of a point on ``n`` devices and of its base, by their throughputs."""
    made = config("horovod", n, backend="mpi")
    return [
        *(record(made, i, throughput=rate) for i, rate in enumerate(point)),
        *(record(config("none"), i, throughput=rate, is_base=True) for i, rate in enumerate(base)),
    ]


def test_speedup_and_efficiency_by_hand() -> None:
    # Ratios 3, 3, 3 although the blocks differ by a factor of four: paired, so no spread.
    (point,) = _by_label(_pair(4, (300.0, 600.0, 1200.0), (100.0, 200.0, 400.0)))[
        "mpi, batch 75"
    ].points
    assert point.speedup.estimate == pytest.approx(3.0)
    assert (point.speedup.low, point.speedup.high) == (pytest.approx(3.0), pytest.approx(3.0))
    assert point.efficiency.estimate == pytest.approx(0.75)
    assert point.throughput_samples_per_s.estimate == pytest.approx(600.0)
    assert [launch.speedup for launch in point.launches] == [3.0, 3.0, 3.0]
    assert point.epoch_s.estimate == pytest.approx(750_000 / 600.0)


def test_the_base_is_one_with_an_interval_of_no_width() -> None:
    (point,) = _by_label(_pair(2, (1.0, 2.0), (100.0, 250.0)))["none, batch 75"].points
    assert (point.speedup.estimate, point.speedup.low, point.speedup.high) == (1.0, 1.0, 1.0)
    assert point.efficiency.estimate == 1.0


def test_a_larger_base_counts_its_devices() -> None:
    records = [
        record(config("horovod", 4, backend="mpi"), throughput=400.0, is_base=True),
        record(config("horovod", 8, backend="mpi"), throughput=600.0),
    ]
    curve = _by_label(records)["mpi, batch 75"]
    assert curve.base == BaseName("horovod", 4)
    assert [p.speedup.estimate for p in curve.points] == [1.0, pytest.approx(1.5)]
    assert [p.efficiency.estimate for p in curve.points] == [1.0, pytest.approx(0.75)]


def test_pairing_is_inside_an_allocation() -> None:
    point, base = config("horovod", 2, backend="mpi"), config("none")
    records = [
        record(point, 0, throughput=180.0, allocation="slurm:1"),
        record(base, 0, throughput=100.0, allocation="slurm:1", is_base=True),
        record(point, 1, throughput=90.0, allocation="slurm:2"),
        record(base, 1, throughput=50.0, allocation="slurm:2", is_base=True),
        record(point, 2, throughput=70.0, allocation="slurm:3"),  # its base is in another one
        record(base, 2, throughput=1.0, allocation="slurm:4", is_base=True),
    ]
    (found,) = _by_label(records)["mpi, batch 75"].points
    assert found.speedup.estimate == pytest.approx(1.8)
    assert found.speedup.n == 2
    assert found.speedup.method == "t, 2 allocations"
    assert found.unpaired == 1
    assert found.throughput_samples_per_s.n == 3


def test_the_slope_is_fitted_block_by_block_and_is_not_the_efficiency() -> None:
    records = []
    for block, slope in enumerate((0.4, 0.5, 0.6)):
        records.append(record(config("none"), block, throughput=100.0, is_base=True))
        for n in (1, 2, 4):
            rate = 100.0 * (0.3 + slope * n)
            records.append(record(config("horovod", n, backend="mpi"), block, throughput=rate))
    curve = _by_label(records)["mpi, batch 75"]
    assert curve.slope.estimate == pytest.approx(0.5)
    assert curve.slope.high - 0.5 == pytest.approx(0.248414, abs=1e-5)  # s = 0.1, three blocks
    assert curve.points[-1].efficiency.estimate == pytest.approx(0.569, abs=1e-3)


def test_the_slope_of_placements_in_allocations_of_their_own_has_no_interval() -> None:
    records = []
    for n in (1, 2, 4):
        where = f"slurm:{n}"
        records.append(record(config("none"), n, throughput=50.0, is_base=True, allocation=where))
        made = config("horovod", n, backend="mpi")
        records.append(record(made, n, throughput=50.0 * 0.8 * n, allocation=where))
    slope = _by_label(records)["mpi, batch 75"].slope
    assert slope.estimate == pytest.approx(0.8)
    assert (slope.low, slope.method) == (None, "line through the means: no interval")


def test_one_device_count_has_no_slope_and_two_have_no_fit() -> None:
    assert _by_label(_pair(4, (1.0, 1.0), (1.0, 1.0)))["mpi, batch 75"].slope is None
    curves = _by_label(factories.records((1, 2), blocks=2))
    assert curves["mpi, batch 75"].slope is None
    assert len(curves["mpi, batch 75"].points) == 2


def test_curves_are_told_apart_by_what_differs() -> None:
    found = _by_label(factories.records((1, 2), blocks=1))
    assert list(found) == [
        "none, batch 75", "none, batch 700",
        "gloo, batch 75", "gloo, batch 700", "mpi, batch 75", "mpi, batch 700",
    ]  # fmt: skip
    slow = config("horovod", 2, backend="mpi", horovod={"cycle_time_ms": 5.0})
    assert set(_by_label([record(config("horovod", 2, backend="mpi")), record(slow)])) == {
        "mpi, cycle 1 ms, batch 75", "mpi, cycle 5 ms, batch 75",
    }  # fmt: skip
    ddp = config("ddp", 2, backend="gloo")
    assert set(_by_label([record(config("horovod", 2, backend="gloo")), record(ddp)])) == {
        "horovod, gloo, batch 75", "ddp, gloo, batch 75",
    }  # fmt: skip


def test_weak_and_strong_are_never_in_one_curve() -> None:
    """Not even where the batch of a rank is the same at every N measured."""
    weak = record(config("horovod", 2, 300, backend="mpi"))
    strong = record(config("horovod", 2, 600, backend="mpi", scaling="strong"))
    found = _by_label([weak, strong])
    assert {c.scaling for c in found.values()} == {"weak", "strong"}
    assert len(found) == 2


def test_strong_scaling_is_divided_by_the_base_of_its_global_batch() -> None:
    records = [
        record(config("none", 1, 600, scaling="strong"), throughput=10.0, is_base=True),
        record(config("none", 1, 600), throughput=999.0, is_base=True),  # a weak one
        record(config("horovod", 2, 600, scaling="strong", backend="mpi"), throughput=15.0),
    ]
    curve = next(c for c in _by_label(records).values() if c.engine == "horovod")
    assert curve.points[0].speedup.estimate == pytest.approx(1.5)
    assert curve.batch_text == "global batch 600"


def test_a_missing_base_leaves_the_throughput_and_says_so() -> None:
    curve = _by_label(factories.records((1, 2), blocks=2, base=None))["mpi, batch 75"]
    assert (curve.base, curve.note) == (None, "no launch is its base none@1")
    assert [p.speedup for p in curve.points] == [None, None]
    assert curve.slope is None
    assert all(p.throughput_samples_per_s.n == 2 for p in curve.points)


def test_a_base_in_other_blocks_only_divides_the_means_and_is_marked() -> None:
    made = config("horovod", 2, backend="mpi")
    records = [
        record(config("none"), 5, throughput=100.0, is_base=True),
        record(made, 0, throughput=150.0),
    ]
    curve = _by_label(records)["mpi, batch 75"]
    assert (curve.note, curve.apart, curve.base) == (None, "other blocks", BaseName("none", 1))
    (point,) = curve.points
    assert point.apart
    assert point.speedup.estimate == pytest.approx(1.5)
    assert not point.speedup.has_interval
    assert point.launches[0].speedup is None


def test_a_base_that_pairs_with_no_point_has_no_part_where_all_points_have_pairs() -> None:
    other = {**factories.PROVENANCE, "cpu_model": "Old CPU"}
    lone = record(config("none"), 7, throughput=1.0, is_base=True, provenance=other)
    records = [*_pair(2, (150.0, 160.0), (100.0, 100.0)), lone]
    curve = next(c for c in curves(frame(records), mixed=True) if c.engine == "horovod")
    assert (curve.unlike, curve.apart) == (None, None)
    assert list(curve.base_rates.values()) == [100.0, 100.0]


def test_another_base_can_be_named() -> None:
    records = factories.records((1, 2), ("mpi",), (75,), blocks=2, noise=0.0)
    curve = _by_label(records, base="horovod@1")["mpi, batch 75"]
    assert curve.points[0].speedup.estimate == pytest.approx(1.0)
    # Horovod on one device costs 10 % in the factory's model.
    default = _by_label(records)["mpi, batch 75"]
    ratio = curve.points[1].speedup.estimate / default.points[1].speedup.estimate
    assert ratio == pytest.approx(1.1)


@pytest.mark.parametrize("name", ["none", "nune@1", "none@0", "none@x", "@1"])
def test_a_base_that_is_no_name_of_one_is_refused(name: str) -> None:
    with pytest.raises(AnalysisError, match="no engine@devices"):
        curves(frame([]), base=name)


def test_two_marked_bases_must_be_chosen_from() -> None:
    records = [
        record(config("none"), is_base=True),
        record(config("horovod", 1, backend="mpi"), is_base=True),
    ]
    with pytest.raises(AnalysisError, match=r"several bases, horovod@1, none@1; choose one"):
        curves(frame(records))
    assert len(curves(frame(records), base="none@1")) == 2


def test_a_point_that_cannot_tell_its_base_has_none_and_says_why() -> None:
    """A plain step under ``base: horovod@1`` with two backends: either could be meant."""
    records = [record(config("horovod", 1, backend=b), is_base=True) for b in ("mpi", "gloo")] + [
        record(config("none"))
    ]
    found = _by_label(records)
    assert found["none, batch 75"].note == "2 configs of horovod@1 could be its base"
    assert found["mpi, batch 75"].points[0].speedup.estimate == 1.0


def test_one_placement_written_in_two_ways_is_one_point() -> None:
    records = [record(config("none"), throughput=100.0, is_base=True)]
    for placement, rate in ((2, 100.0), ("1x2", 400.0)):
        made = config("horovod", placement, backend="mpi")
        records.append(record(made, throughput=rate))
    (point,) = _by_label(records)["mpi, batch 75"].points
    assert point.speedup.estimate == pytest.approx(2.0)  # the geometric mean of 1 and 4
    assert len(point.launches) == 2


def test_two_placements_of_one_count_are_two_points() -> None:
    records = [record(config("horovod", p, backend="mpi")) for p in ("1x4", "2x2", "3+1")]
    (curve,) = curves(frame(records))
    assert [(p.world_size, p.placement) for p in curve.points] == [
        (4, "4"), (4, "2+2"), (4, "3+1"),
    ]  # fmt: skip


def test_exposed_sync_is_a_mean_over_blocks_and_absent_on_one_device() -> None:
    records = factories.records((1, 2), ("mpi",), (75,), blocks=3, noise=0.0)
    one, two = _by_label(records)["mpi, batch 75"].points
    assert (one.exposed_sync_s, one.transfer_s, one.wait_s) == (None, None, None)
    assert two.exposed_sync_s.estimate == pytest.approx(300e-6)
    assert two.transfer_s.estimate + two.wait_s.estimate == pytest.approx(300e-6)
    assert two.allreduce_p50_s.estimate == pytest.approx(180e-6)


def test_one_block_has_no_interval() -> None:
    for curve in curves(frame(factories.records((1, 2), blocks=1))):
        for point in curve.points:
            assert not point.speedup.has_interval
            assert point.speedup.method == "one block: no interval"


def test_unlike_software_is_refused_by_name_unless_it_is_wanted() -> None:
    other = {**factories.PROVENANCE, "packages": {"torch": "2.12.0"}}
    made = config("horovod", 2, backend="mpi")
    records = [record(made, 0), record(made, 1), record(made, 2, provenance=other)]
    with pytest.raises(
        AnalysisError,
        match=r"curve mpi, batch 75 .*packages\.torch is 2\.13\.0 \(2\), 2\.12\.0 \(1\)",
    ):
        curves(frame(records))
    (mixed,) = curves(frame(records), mixed=True)
    assert mixed.points[0].throughput_samples_per_s.n == 3


def test_a_base_on_another_machine_is_refused() -> None:
    other = {**factories.PROVENANCE, "cpu_model": "Old CPU"}
    records = [
        record(config("horovod", 2, backend="mpi")),
        record(config("none"), is_base=True, provenance=other),
    ]
    with pytest.raises(AnalysisError, match="cpu_model is"):
        curves(frame(records))


def test_hosts_processes_and_missing_keys_are_no_difference() -> None:
    made = config("horovod", 2, backend="mpi")
    other = {**factories.PROVENANCE, "hosts": ["node7"], "ranks": [], "environment": {"A": "1"}}
    older = {"python": factories.PROVENANCE["python"]}
    records = [
        record(made, 0), record(made, 1, provenance=other),
        record(made, 2, provenance=older), record(made, 3, provenance={}),
    ]  # fmt: skip
    assert curves(frame(records))[0].points[0].throughput_samples_per_s.n == 4


def test_failures_stay_visible_and_say_whether_they_were_repaired() -> None:
    made = config("horovod", 8, backend="mpi")
    records = [failure(made, 0), record(made, 0, attempt=2), failure(made, 1, status="timeout")]
    table = frame(records)
    repaired, lost = sorted(failures(table), key=lambda f: f.status)
    assert (repaired.repaired, lost.repaired) == (True, False)
    assert (lost.status, lost.what) == ("timeout", "horovod mpi N=8 batch 75")
    assert "SIGKILL" in lost.cause
    assert len(curves(table)[0].points[0].launches) == 1


def test_nothing_measured_is_no_curve() -> None:
    assert curves(frame([])) == ()
    assert curves(frame([failure(config("none"))])) == ()


def test_a_base_lacks_only_the_instruments_that_its_engine_has_not() -> None:
    wanted = ("phases", "ablation", "clocks")
    point = config("horovod", 2, backend="mpi", measure={"instruments": wanted})
    base = config("none", measure={"instruments": ("phases",)})
    records = [record(point, throughput=150.0), record(base, throughput=100.0, is_base=True)]
    found = _by_label(records)
    assert found["mpi, batch 75"].points[0].speedup.estimate == pytest.approx(1.5)
    assert set(found) == {"mpi, batch 75", "none, batch 75"}  # no choice of the sweep's
    bare = config("none", measure={"instruments": ()})
    assert is_base_of(_json(base), _json(point))
    assert not is_base_of(_json(bare), _json(point))
    fewer = config("horovod", 1, backend="mpi", measure={"instruments": ("phases",)})
    assert not is_base_of(_json(fewer), _json(point))
    longer = config("none", measure={"instruments": ("phases",), "window_s": 9.0})
    assert not is_base_of(_json(longer), _json(point))


def test_curves_that_measure_otherwise_on_purpose_are_named_so() -> None:
    ways = (("phases", "ablation"), ())
    made = [config("horovod", 2, backend="mpi", measure={"instruments": way}) for way in ways]
    assert set(_by_label([record(one) for one in made])) == {
        "mpi, phases + ablation, batch 75", "mpi, none, batch 75",
    }  # fmt: skip


def test_a_timeline_is_no_point_and_is_told_at_the_point_it_looks_into() -> None:
    made = [config("horovod", n, backend="mpi", measure={"window_s": 3.0}) for n in (1, 2, 4)]
    records = [record(one, block) for one in made for block in range(2)]
    records += [factories.timeline(made[1], overhead=0.2)]
    (curve,) = curves(frame(records))
    assert [len(point.launches) for point in curve.points] == [2, 2, 2]
    assert [point.timeline is not None for point in curve.points] == [False, True, False]
    two = curve.points[1]
    assert two.timeline["timeline_negotiation_s"] == pytest.approx(1.5e-3)
    assert dict(two.overheads) == {"phases": (0.01, 0.01), "timeline": (0.2,)}
    assert dict(curve.points[2].overheads) == {"phases": (0.01, 0.01)}


def test_a_timeline_of_other_tuning_is_of_another_curve() -> None:
    made = [config("horovod", 2, backend="mpi", horovod={"cycle_time_ms": c}) for c in (1.0, 5.0)]
    found = _by_label([*map(record, made), factories.timeline(made[1])])
    assert found["mpi, cycle 1 ms, batch 75"].points[0].timeline is None
    assert found["mpi, cycle 5 ms, batch 75"].points[0].timeline is not None


def test_a_timeline_that_failed_says_what_it_was() -> None:
    own = factories.timeline(config("horovod", 2, backend="mpi")).config
    (lost,) = failures(frame([failure(own)]))
    assert lost.what == "horovod mpi N=2 batch 75 timeline"


def test_the_check_from_six_blocks_is_of_the_speedup_or_else_of_the_throughput() -> None:
    rates = (300.0, 310.0, 290.0, 305.0, 315.0, 295.0)
    (point,) = _by_label(_pair(4, rates, (100.0,) * 6))["mpi, batch 75"].points
    assert (point.check.low, point.check.high) == (pytest.approx(2.9), pytest.approx(3.15))
    assert point.speedup.low < point.check.estimate < point.speedup.high
    (point,) = _by_label(_pair(4, rates, (100.0,) * 5))["none, batch 75"].points
    assert point.check is None
    made = config("horovod", 4, backend="mpi")
    alone = [record(made, block, throughput=rate) for block, rate in enumerate(rates)]
    (point,) = _by_label(alone)["mpi, batch 75"].points
    assert (point.check.low, point.check.high) == (pytest.approx(290.0), pytest.approx(315.0))


def test_a_block_that_was_added_marks_every_interval_of_its_point() -> None:
    made, base = config("horovod", 2, backend="mpi"), config("none")
    records = [
        record(one, block, sequential=block == 2, is_base=one is base)
        for one in (made, base, config("horovod", 4, backend="mpi"))
        for block in range(3 if one is not made else 2)
    ]
    two, four = _by_label(records)["mpi, batch 75"].points
    assert not two.sequential
    assert "sequential" not in two.speedup.method
    assert four.sequential
    for found in (four.speedup, four.efficiency, four.throughput_samples_per_s, four.wait_s):
        assert found.method == "t, 3 blocks of one allocation, sequential"


def test_steadiness_is_summed_over_launches() -> None:
    made = config("horovod", 2, backend="mpi")
    records = [
        factories.with_steadiness(record(made, 0), drifting=True, change=0.03, outliers=2,
                                  outlier_time_share=0.01),
        factories.with_steadiness(record(made, 1), drifting=True, change=-0.05, outliers=3,
                                  outlier_time_share=0.03),
        factories.with_steadiness(record(made, 2), change=0.9),
        record(made, 3),
    ]  # fmt: skip
    found = curves(frame(records))[0].points[0].steadiness
    assert (found.launches, found.drifting, found.largest_change) == (3, 2, -0.05)
    assert (found.with_outliers, found.outliers) == (2, 5)
    assert found.outlier_time_share == pytest.approx(0.04 / 3)
    assert curves(frame([record(made)]))[0].points[0].steadiness is None


def test_a_row_of_pandas_and_of_arrow_are_read_alike() -> None:
    records = [*factories.records((1, 2), blocks=2), failure(config("none"), 7)]
    rows = [facts(one.model_dump(mode="json")) for one in records]
    assert curves(arrow_table(rows)) == curves(frame(records))
    assert failures(arrow_table(rows)) == failures(frame(records))


def _sweep(base: str) -> Sweep:
    return parse_sweep(
        {
            "measure": {"instruments": ["phases", "ablation", "timeline"]},
            "name": "s", "workload": "stress_strain", "engine": ["none", "horovod", "ddp"],
            "backend": ["gloo", "nccl"], "placement": ["1x1", "1x2", "4"],
            "batch_size": [75, 700], "base": base, "cores_per_rank": 1,
            "learning_rate": {"rule": ["none", "sqrt"]}, "launcher": [None, "srun"],
            "exclude": [{"engine": "none", "placement": ["1x2", "4"]}],
        }
    )  # fmt: skip


@pytest.mark.parametrize("base", ["none@1", "horovod@1", "ddp@1"])
def test_a_base_is_recognised_exactly_as_a_sweep_assigns_it(base: str) -> None:
    """The base that ``expand`` gives a point fits it, and no other point's base does by mistake."""
    expansion = expand(_sweep(base))
    every = {_json(b) for b in expansion.bases if b is not None}
    for point, own in zip(expansion.points, expansion.bases, strict=True):
        assert own is not None
        fitting = {b for b in every if is_base_of(b, _json(point))}
        if point.engine != own.engine:
            fitting = {b for b in fitting if own_launcher(b)}
        assert _json(own) in fitting
        # A plain step has neither backend nor tuning, so it may fit several bases that have.
        if point.engine != "none" or own.engine == "none":
            assert fitting == {_json(own)}


def test_a_plain_step_that_is_a_point_under_srun_is_no_base_of_the_others() -> None:
    point, own = config("none", launcher="srun"), config("none")
    records = [
        record(config("horovod", 2, backend="mpi", launcher="srun"), throughput=150.0),
        record(own, throughput=100.0, is_base=True),
        record(point, throughput=50.0, is_base=True),
    ]
    curve = next(c for c in curves(frame(records)) if c.engine == "horovod")
    assert curve.points[0].speedup.estimate == pytest.approx(1.5)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 3))
def test_neither_order_nor_noise_of_the_machine_changes_what_is_found(
    seed: int, blocks: int, devices: int
) -> None:
    records = factories.records(tuple(range(1, devices + 1)), ("mpi",), (75,), blocks, seed=seed)
    expected = curves(frame(records))
    shuffled = records[:]
    random_module.Random(seed).shuffle(shuffled)
    assert curves(frame(shuffled)) == expected
    for curve in expected:
        for point in curve.points:
            assert point.efficiency.estimate == pytest.approx(
                point.speedup.estimate / point.world_size
            )
            singles = [launch.speedup for launch in point.launches]
            assert min(singles) * 0.999999 <= point.speedup.estimate <= max(singles) * 1.000001
        if curve.engine == "none":
            assert [p.speedup.estimate for p in curve.points] == [1.0]


@settings(max_examples=15, deadline=None)
@given(st.floats(1e-3, 1e3))
def test_a_machine_that_is_faster_as_a_whole_scales_alike(factor: float) -> None:
    plain = _pair(4, (300.0, 350.0, 310.0), (100.0, 120.0, 99.0))
    fast = _pair(
        4, tuple(factor * r for r in (300.0, 350.0, 310.0)),
        tuple(factor * r for r in (100.0, 120.0, 99.0)),
    )  # fmt: skip
    one, two = (_by_label(r)["mpi, batch 75"].points[0].speedup for r in (plain, fast))
    assert one.estimate == pytest.approx(two.estimate)
    assert one.high == pytest.approx(two.high)
