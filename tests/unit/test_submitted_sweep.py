"""A sweep of many jobs: an allocation an element, its bases beside its points or in other jobs."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.analysis.advise.advising import advise
from harness.analysis.advise.text import render_advice
from harness.analysis.advise.types import Goal
from harness.analysis.apart import apart_notes, apart_text
from harness.analysis.compare.comparison import compare_values
from harness.analysis.diagnose import diagnose, render_diagnosis
from harness.analysis.facets import facets
from harness.analysis.frame import frame
from harness.analysis.models.predict import predict
from harness.analysis.models.render import render_predictions
from harness.analysis.models.whatif import render_what_if, what_if
from harness.analysis.plots import draw
from harness.analysis.plots.pareto import pareto
from harness.analysis.report import report_html
from harness.analysis.results import Results, load_results
from harness.analysis.scaling import Curve, curves
from harness.analysis.table import render_table
from harness.record import RunRecord
from tests import factories
from tests.factories import config
from tests.unit.submitted import BASE_ARRAY, BATCHES, element_record, rate, submitted
from tests.unit.test_table import check_golden

SAID = "its base was measured in other jobs: what differs between jobs looks like scaling"
UNPAIRED = "no base in the block"


def by_label(records: list[RunRecord]) -> dict[str, Curve]:
    return {curve.label: curve for curve in curves(frame(records))}


def true_speedup(placement: str, batch: int) -> float:
    made = config("horovod", placement, batch, backend="mpi")
    nodes = len(made.placement.devices or (1,))
    return rate(made, nodes) / rate(config("none", 1, batch))


@pytest.fixture(scope="module")
def own() -> dict[str, Curve]:
    return by_label(submitted())


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Results:
    records = submitted(shared_base=True, backends=("mpi", "gloo"), batches=(75,))
    return load_results(factories.write_results(tmp_path_factory.mktemp("x") / "s", records))


@pytest.fixture(scope="module")
def another_base(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("x") / "s"
    return load_results(factories.write_results(folder, submitted(batches=(75,))), base="horovod@2")


class TestBasesBesideTheirPoints:
    def test_intervals_count_allocations_and_the_luck_of_one_cancels(
        self, own: dict[str, Curve]
    ) -> None:
        assert len(submitted()) == 4 * 5 * (3 + 3)
        for batch in BATCHES:
            curve = own[f"mpi, batch {batch}"]
            assert [point.placement for point in curve.points] == ["2", "4", "4+4", "8+2"]
            for point, placement in zip(curve.points, ("1x2", "1x4", "2x4", "8+2"), strict=True):
                assert point.speedup.method == "t, 5 allocations"
                assert (point.unpaired, point.apart) == (0, False)
                # Launches differ by a tenth from job to job, their ratios by a hundredth.
                assert point.speedup.estimate == pytest.approx(
                    true_speedup(placement, batch), rel=0.03
                )
                assert point.speedup.relative_half_width < 0.04
                assert point.throughput_samples_per_s.relative_half_width > 0.04

    def test_the_base_has_a_row_of_all_its_launches(self, own: dict[str, Curve]) -> None:
        (point,) = own["none, batch 75"].points
        assert len(point.launches) == 20
        assert point.throughput_samples_per_s.method == "t, 20 allocations"
        assert (point.speedup.estimate, point.speedup.low, point.speedup.high) == (1, 1, 1)
        assert len(own["mpi, batch 75"].base_rates) == 20
        assert own["mpi, batch 75"].apart is None

    def test_the_slope_has_an_interval_of_independent_placements(
        self, own: dict[str, Curve]
    ) -> None:
        slope, intercept = own["mpi, batch 75"].slope, own["mpi, batch 75"].intercept
        assert slope.method == "line through the means, t, 20 allocations"
        assert slope.low < slope.estimate < slope.high
        assert intercept.low < intercept.estimate < intercept.high
        # By hand: variances of the points' logs, through the weights of the line.
        points = own["mpi, batch 75"].points
        counts = np.array([p.world_size for p in points], dtype=float)
        weights = (counts - counts.mean()) / ((counts - counts.mean()) ** 2).sum()
        errors = [
            w * p.speedup.estimate * np.std([np.log(x.speedup) for x in p.launches], ddof=1)
            for w, p in zip(weights, points, strict=True)
        ]
        variances = np.array(errors) ** 2 / 5
        freedom = variances.sum() ** 2 / (variances**2 / 4).sum()
        from scipy.stats import t

        half = t.ppf(0.975, freedom) * np.sqrt(variances.sum())
        assert slope.high - slope.estimate == pytest.approx(half, rel=1e-9)

    def test_a_requeued_job_is_two_allocations_and_its_second_base_is_no_harm(self) -> None:
        records = submitted(batches=(75,))
        base = config("none", 1, 75)
        # Before it was preempted, the job had measured its base, in a slow hour.
        records.append(element_record(100, 0, base, 0.2))
        requeued = [element_record(100, 0, one.config, 1.0, suffix=".r1") for one in records[:2]]
        found = by_label([*records[2:], *requeued])
        point = found["mpi, batch 75"].points[0]
        assert next(one.block[0] for one in point.launches) == "slurm:100.r1"
        assert (point.unpaired, point.speedup.n) == (0, 5)
        assert point.speedup.estimate == pytest.approx(true_speedup("1x2", 75), rel=0.03)
        assert len(found["none, batch 75"].points[0].launches) == 21

    def test_backends_of_one_element_are_paired_and_placements_in_no_way(
        self, tmp_path: Path
    ) -> None:
        records = submitted(batches=(75,), backends=("mpi", "gloo"))
        results = load_results(factories.write_results(tmp_path / "s", records))
        found = compare_values(results, "backend=mpi", "backend=gloo")
        assert len(found.pairs) == 4
        for pair in found.pairs:
            assert pair.throughput.test == "paired t"
            assert pair.throughput.blocks == (5, 5)
            assert pair.throughput.effect.method == "paired t, 5 allocations"
            assert pair.throughput.effect.relative_half_width < 0.05

    def test_no_text_says_that_a_base_is_apart(self, tmp_path: Path) -> None:
        folder = factories.write_results(tmp_path / "s", submitted(batches=(75,)))
        text = render_table(folder)
        assert "95 % intervals: t, 20 allocations; t, 5 allocations" in text
        for absent in (UNPAIRED, "other jobs", "Welch"):
            assert absent not in text


class TestBasesInOtherJobs:
    def test_speedup_is_of_two_means(self) -> None:
        records = submitted(batches=(75,), shared_base=True)
        curve = by_label(records)["mpi, batch 75"]
        assert curve.apart == "other jobs"
        assert str(curve.base) == "none@1"
        assert curve.note is None
        base = [r.window.throughput_samples_per_s for r in records if r.block.is_base]
        for point in curve.points:
            assert point.apart
            assert point.unpaired == 0
            assert all(launch.speedup is None for launch in point.launches)
            mine = [launch.throughput_samples_per_s for launch in point.launches]
            ratio = np.exp(np.mean(np.log(mine)) - np.mean(np.log(base)))
            assert point.speedup.estimate == pytest.approx(ratio)
            assert point.efficiency.estimate == pytest.approx(ratio / point.world_size)
            assert point.speedup.method == (
                "Welch's t, 5 allocations against the base's 5 allocations"
            )
            # The luck of jobs does not cancel: a tenth each, of point and base.
            assert point.speedup.relative_half_width > 0.06
            assert point.check is None

    def test_what_differs_between_jobs_is_in_the_ratio(self) -> None:
        fair, slow = (
            by_label(submitted(batches=(75,), shared_base=True, luck_of_bases=factor))
            for factor in (1.0, 0.5)
        )
        one, other = (found["mpi, batch 75"].points[0].speedup for found in (fair, slow))
        assert other.estimate == pytest.approx(2 * one.estimate)

    def test_the_slope_has_the_error_of_the_base_that_all_points_share(self) -> None:
        curve = by_label(submitted(batches=(75,), shared_base=True))["mpi, batch 75"]
        assert curve.slope.method == "line through the means, t, 25 allocations"
        # Without that error it would be narrower by what the base's own interval has.
        exact = replace(curve, base_rates=dict.fromkeys(curve.base_rates, 1e5))
        from harness.analysis.line import fitted_line

        bare, _ = fitted_line(exact.points, exact.base_rates, 0.95)
        assert bare.relative_half_width < curve.slope.relative_half_width

    def test_a_single_base_gives_no_interval(self) -> None:
        records = submitted(batches=(75,), shared_base=True)
        first = f"slurm:{BASE_ARRAY}"
        kept = [r for r in records if not r.block.is_base or r.block.allocation == first]
        curve = by_label(kept)["mpi, batch 75"]
        assert all(not point.speedup.has_interval for point in curve.points)
        assert not curve.slope.has_interval

    def test_points_with_pairs_keep_them_and_each_says_which_it_is(self) -> None:
        records = submitted(batches=(75,), shared_base=True)
        paired = submitted(("1x4",), batches=(75,), seed=9)  # array 100, now of four devices
        moved = [
            element_record(500, r.block.repeat, r.config, r.window.throughput_samples_per_s
                           / factories.record(r.config).window.throughput_samples_per_s)
            for r in paired
        ]  # fmt: skip
        kept = [r for r in records if r.config.placement.devices != (4,)]
        curve = by_label([*kept, *moved])["mpi, batch 75"]
        assert [point.apart for point in curve.points] == [True, False, True, True]
        four = curve.points[1]
        assert four.speedup.method == "t, 5 allocations"
        assert all(launch.speedup for launch in four.launches)
        assert len(curve.base_rates) == 10
        assert curve.points[0].speedup.method.endswith("the base's 10 allocations")
        assert apart_text(curve) == f"at N=2, N=8, N=10 {SAID}"
        assert curve.slope.method == "line through the means, t, 25 allocations"

    def test_in_one_allocation_it_is_other_blocks(self) -> None:
        point, base = config("horovod", 2, backend="mpi"), config("none")
        records = [factories.record(base, 5, is_base=True), factories.record(point, 0)]
        curve = by_label(records)["mpi, batch 75"]
        assert curve.apart == "other blocks"
        assert "measured in other blocks: what differs between blocks" in apart_text(curve)

    def test_a_base_on_another_machine_is_refused(self) -> None:
        other = {**factories.PROVENANCE, "cpu_model": "Old CPU"}
        records = [
            factories.record(config("horovod", 2, backend="mpi"), allocation="slurm:1"),
            factories.record(config("none"), allocation="slurm:2", is_base=True, provenance=other),
        ]
        from harness.errors import AnalysisError

        with pytest.raises(AnalysisError, match="cpu_model is"):
            by_label(records)


class TestSaid:
    """Every place that shows a speedup of a base apart says so."""

    def test_table(self, shared: Results) -> None:
        text = render_table(shared.folder)
        lines = [line for line in text.splitlines() if SAID in line]
        assert [line.partition(";")[0] for line in lines] == ["gloo, batch 75", "mpi, batch 75"]
        assert UNPAIRED not in text
        check_golden("table_apart.txt", text + "\n")

    @pytest.mark.parametrize("name", ["speedup", "efficiency"])
    def test_figures(self, shared: Results, name: str) -> None:
        (drawn,) = draw(shared, [name])
        said = " ".join(text.get_text() for text in drawn.plot.figure.texts).replace("\n", " ")
        assert SAID.replace("its", "the", 1) in said
        rows = list(csv.DictReader(io.StringIO(drawn.plot.csv_text())))
        points = [row for row in rows if row["row"] == "point" and row["engine"] == "horovod"]
        assert {row["base_apart"] for row in points} == {"other jobs"}
        assert all(row["speedup_low"] and row["method"].startswith("Welch") for row in points)
        bases = [row for row in rows if row["row"] == "point" and row["engine"] == "none"]
        assert {row["base_apart"] for row in bases} == {""}

    def test_the_ideal_is_of_the_base_that_is_apart(self, shared: Results) -> None:
        (drawn,) = draw(shared, ["throughput"])
        base = next(c for c in shared.curves if c.engine == "none").points[0]
        (ideal,) = (
            line for line in drawn.plot.figure.axes[0].get_lines() if line.get_color() == "#222222"
        )
        x, y = ideal.get_xdata()[0], ideal.get_ydata()[0]
        assert y / x == pytest.approx(base.throughput_samples_per_s.estimate)

    def test_report(self, shared: Results) -> None:
        html = report_html(shared)  # with every figure that there is
        assert html.count(SAID.replace("its", "The", 1)) == 2  # the answer, and below the table
        assert f"Caution: {SAID}" in html
        assert "Where no block has both a point and its base" in html
        assert "each a mean over blocks of its own" in html
        assert UNPAIRED not in html

    def test_diagnosis(self, shared: Results) -> None:
        (worst,) = diagnose(shared, worst=1)
        assert SAID in worst.cautions
        assert any("without --shared-base" in one.add for one in worst.missing)
        assert worst.base == "none@1"
        assert f"caution: {SAID}" in render_diagnosis([worst])

    def test_advice(self, shared: Results) -> None:
        advice = advise([shared], Goal(min_efficiency=0.1))
        (one,) = advice.answers
        assert one.provisional is not None
        assert "judged by an E whose base was measured in other jobs" in one.provisional
        assert f"E of all points: {SAID}" in one.notes
        point = next(c for c in one.candidates if c.backend == "mpi" and c.world_size == 8)
        curve = next(c for c in shared.curves if c.backend == "mpi")
        theirs = next(p.efficiency for p in curve.points if p.world_size == 8)
        assert point.efficiency.low == pytest.approx(theirs.low)
        assert point.efficiency.estimate == pytest.approx(theirs.estimate)
        assert SAID in render_advice(advise([shared], Goal()))
        plot = pareto(advice)
        assert plot is not None
        apart = {(row["engine"], row["base_apart"]) for row in plot.rows}
        assert apart == {("none", None), ("horovod", "other jobs")}

    def test_prediction_and_replay(self, shared: Results) -> None:
        part = replace(shared, curves=tuple(c for c in shared.curves if c.backend == "mpi"))
        (found,) = predict(part, [16], devices_per_node=8)
        assert f"S and E: {SAID}" in found.notes
        row = found.predictions[0]
        rates = part.curves[0].base_rates.values()
        base = float(np.exp(np.mean(np.log(list(rates)))))
        assert row.speedup.estimate == pytest.approx(row.throughput_samples_per_s.estimate / base)
        assert SAID in render_predictions([found])
        replays = what_if(part, ["no-sync"])
        assert all(one.apart == SAID for one in replays)
        point = part.curves[0].points[0]
        assert replays[0].measured.speedup == point.speedup
        assert replays[0].replayed.speedup.method == point.speedup.method
        assert SAID in render_what_if(replays)

    def test_a_pair_of_sweeps_is_compared_as_ever(self, shared: Results) -> None:
        found = compare_values(shared, "backend=mpi", "backend=gloo")
        assert {pair.throughput.test for pair in found.pairs} == {"paired t"}

    def test_notes_name_the_curves_where_not_all_are_apart(self) -> None:
        whole = by_label(submitted(batches=(75,), shared_base=True))
        other = by_label(submitted(batches=(300,)))
        found = apart_notes([*whole.values(), *other.values()])
        assert found == (f"mpi, batch 75: {SAID}",)
        assert apart_notes(whole.values()) == (SAID.replace("its", "the", 1),)
        assert apart_notes(other.values()) == ()


class TestDiagnosisApart:
    def test_parts_add_up_to_the_lost_time(self, shared: Results) -> None:
        for one in diagnose(shared, worst=8):
            lost = sum(each.time_s.estimate for each in one.findings if each.kind == "lost")
            assert lost == pytest.approx(one.lost_s.estimate, rel=1e-9)

    def test_the_scatter_of_bases_is_in_the_parts_that_are_held_against_them(
        self, tmp_path: Path
    ) -> None:
        """Points that do not scatter at all, and bases by a tenth: so do their differences."""
        records = submitted(("1x2",), batches=(75,), shared_base=True, noise=0.0)
        steady = [
            r if r.block.is_base else element_record(100, r.block.repeat, r.config, 1.0)
            for r in records
        ]
        results = load_results(factories.write_results(tmp_path / "s", steady))
        (one,) = diagnose(results, worst=1)
        assert one.step_s.high == pytest.approx(one.step_s.low)
        assert one.lost_s.high - one.lost_s.low > 0.05 * one.ideal_s
        parts = {each.limiter: each.time_s for each in one.findings}
        assert parts["contention"].high > parts["contention"].estimate + 1e-6
        assert parts["stragglers"].high == pytest.approx(parts["stragglers"].estimate)


class TestAnotherBase:
    """Elements have one placement: any other that is named as the base was in other jobs."""

    def test_is_apart_except_for_itself(self, another_base: Results) -> None:
        curve = next(c for c in another_base.curves if c.engine == "horovod")
        assert [point.apart for point in curve.points] == [False, True, True, True]
        assert curve.points[0].speedup.estimate == 1.0
        assert apart_text(curve) == f"at N=4, N=8, N=10 {SAID}"
        ratio = true_speedup("2x4", 75) / true_speedup("1x2", 75)
        assert curve.points[2].speedup.estimate == pytest.approx(ratio, rel=0.2)

    def test_with_an_all_reduce_of_its_own_is_diagnosed_too(self, another_base: Results) -> None:
        for one in diagnose(another_base, worst=4):
            lost = sum(each.time_s.estimate for each in one.findings if each.kind == "lost")
            if SAID in one.cautions:
                assert lost == pytest.approx(one.lost_s.estimate, rel=1e-9)


class TestPlots:
    def test_a_node_is_added_between_four_and_eight_and_not_between_eight_and_ten(self) -> None:
        records = submitted(("1x4", "2x4", "8+2"), batches=(75,))
        (facet,) = facets(curves(frame(records)))
        from harness.analysis.plots.speedup import speedup

        for ax in speedup(facet, []).figure.axes:
            drawn = [line for line in ax.get_lines() if line.get_transform() != ax.transData]
            (boundary,) = (line for line in drawn if len(set(line.get_xdata())) == 1)
            assert 4 < boundary.get_xdata()[0] < 8
        (label,) = speedup(facet, []).figure.axes[0].texts
        assert label.get_text() == "2 nodes →"

    def test_eight_and_two_after_one_full_node(self) -> None:
        records = submitted(("1x4", "1x8", "8+2"), batches=(75,))
        (facet,) = facets(curves(frame(records)))
        from harness.analysis.plots.speedup import speedup

        axes = speedup(facet, []).figure.axes[0]
        (label,) = axes.texts
        assert label.get_text() == "2 nodes →"
        assert 8 < label.xy[0] < 10
