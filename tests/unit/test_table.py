from __future__ import annotations

import itertools
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.analysis import render_table
from harness.analysis.texts import seconds_text, slope_text
from harness.errors import AnalysisError
from harness.record import ClockCheck, FeedTimes, RunRecord
from harness.stats import Interval
from tests import factories
from tests.factories import config, failure, record

GOLDEN = Path(__file__).parents[1] / "golden" / "analysis"


def check_golden(name: str, found: str) -> None:
    """Compare with the kept file; ``REGENERATE_GOLDEN=1`` writes it anew: read the difference."""
    path = GOLDEN / name
    if os.environ.get("REGENERATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8")


def test_the_table_of_a_sweep(tmp_path: Path) -> None:
    made = config("horovod", 2, 75, backend="gloo")
    records = [
        *factories.records((1, 2, 16), blocks=3),
        failure(made, 0),  # measured by a later attempt
        failure(config("horovod", 4, 75, backend="gloo"), 0, status="timeout", cause="600 s\nover"),
    ]
    folder = factories.write_results(tmp_path / "s", records)
    check_golden("table.txt", render_table(folder) + "\n")


def test_strong_and_weak_scaling_have_tables_of_their_own(tmp_path: Path) -> None:
    records = [
        *factories.records((1, 2), ("mpi",), (75,), blocks=1),
        *factories.records((1, 2), ("mpi",), (600,), blocks=1, scaling="strong"),
    ]
    weak, strong = render_table(factories.write_results(tmp_path / "s", records)).split("\n\n")
    assert "weak scaling, CPU, batch a rank constant" in weak
    assert "global batch 600" not in weak
    assert "strong scaling, CPU, global batch constant" in strong
    assert "one block: no interval" in strong
    assert "[" not in strong


def test_a_missing_base_is_said_where_the_speedup_would_be(tmp_path: Path) -> None:
    records = factories.records((1, 2), ("mpi",), (75,), blocks=2, base=None, noise=0.0)
    text = render_table(factories.write_results(tmp_path / "s", records))
    assert "no speedup: no launch is its base none@1" in text
    (row,) = [line for line in text.splitlines() if line.startswith("  2 ")]
    cells = re.split(r"  +", row.strip())
    assert cells[3:5] == ["–", "–"]
    still = " ±0 s"  # two blocks without noise
    times = ("1.02 ms", "300 µs", "210 µs", "90.0 µs", "180 µs")
    assert cells[5:] == [time + still for time in times]


def _below(text: str, label: str) -> list[str]:
    """The remarks below the curve that ``label`` begins, in order."""
    lines = iter(text.splitlines())
    next(line for line in lines if line.startswith(label))
    rest = itertools.takewhile(lambda line: line.startswith("  "), lines)
    return [line.removeprefix("  - ") for line in rest if line.startswith("  - ")]


def _two(blocks: int, **parts: Any) -> list[RunRecord]:
    """A base and two ranks over mpi, in blocks that differ, ``parts`` being those of the latter."""
    made = config("horovod", 2, backend="mpi")
    return [
        one
        for block in range(blocks)
        for one in (
            record(config("none"), block, is_base=True),
            record(made, block, factor=1 + block / 100, **parts),
        )
    ]


def test_the_phases_sum_stands_against_the_windows_step(tmp_path: Path) -> None:
    text = render_table(factories.write_results(tmp_path / "s", _two(2)))
    # A step of 715 µs + 300 µs of sync; 2 % of the former are in no phase.
    assert _below(text, "mpi") == [
        "phases at N=2: data 35.6 µs + forward 213 µs + backward 391 µs + exposed sync 299 µs + "
        "update 56.9 µs = 996 µs, the window's step 1.01 ms (−1.4 %)"
    ]  # fmt: skip


def test_what_one_rank_does_between_backward_and_update_is_named(tmp_path: Path) -> None:
    records = _two(2)
    for i, one in enumerate(records):
        if one.config.engine == "none" and one.phases is not None:
            named = sum(
                getattr(one.phases, f"{part}_s")
                for part in ("data", "forward", "backward", "update")
            )
            phases = one.phases.model_copy(update={"sum_s": named + 100e-6})
            records[i] = one.model_copy(update={"phases": phases}).sealed()
    text = render_table(factories.write_results(tmp_path / "s", records))
    (base,) = _below(text, "none")
    assert "+ between backward and update 100 µs + update" in base
    assert "between" not in _below(text, "mpi")[0]


def test_a_slope_may_reach_below_zero() -> None:
    slope = Interval(0.129, -0.16, 0.418, 0.95, 3, "t")
    assert slope_text(slope) == "0.129 [−0.160, 0.418]"
    assert slope_text(replace(slope, low=None, high=None)) == "0.129"


def test_interference_is_a_column_only_where_it_was_measured(tmp_path: Path) -> None:
    assert "interference" not in render_table(factories.write_results(tmp_path / "a", _two(2)))
    records = _two(2, ablation=factories.ablation(380e-6, 300e-6))
    lines = render_table(factories.write_results(tmp_path / "b", records)).splitlines()
    assert lines[2].split()[-2:] == ["isolated", "interference"]
    cells = [line.split("  ")[-1].strip() for line in lines if line.startswith("  2 ")]
    assert cells == ["80.0 µs ±0 s"]  # two launches that say the same
    assert "without its all-reduce a step is 380 µs ±0 s shorter at N=2" in _below(
        "\n".join(lines), "mpi"
    )


def test_the_interference_of_one_launch_has_its_own_standard_error(tmp_path: Path) -> None:
    records = _two(1, ablation=factories.ablation(380e-6, 300e-6))
    lines = render_table(factories.write_results(tmp_path / "s", records)).splitlines()
    (row,) = [line for line in lines if line.startswith("  2 ")]
    assert row.endswith("80.0 µs ±100 µs")


def test_an_interval_that_bounds_nothing_is_called_wide(tmp_path: Path) -> None:
    made = config("horovod", 2, backend="mpi")
    records = [
        record(config("none"), 0, throughput=100.0, is_base=True),
        record(config("none"), 1, throughput=100.0, is_base=True),
        record(made, 0, throughput=100.0),
        record(made, 1, throughput=300.0),
    ]
    text = render_table(factories.write_results(tmp_path / "s", records))
    (row,) = [line for line in text.splitlines() if line.startswith("  2 ")]
    assert "173 [wide]" in row
    assert "1.73 [wide]" in row
    assert "[wide]: ends more than 100 times apart; blocks are too few" in text


def test_a_signed_rank_check_is_there_from_six_blocks(tmp_path: Path) -> None:
    five = render_table(factories.write_results(tmp_path / "five", _two(5)))
    assert "signed-rank" not in five
    six = _below(render_table(factories.write_results(tmp_path / "six", _two(6))), "mpi")
    # S is 2 · 650 µs / 1015 µs in the first block, and 5 % more in the sixth.
    assert "signed-rank check of S: [1.28, 1.34] (96.9 %) at N=2" in six


def test_costly_instruments_are_named_below_their_curve(tmp_path: Path) -> None:
    records = _two(1, overheads={"phases": 0.09, "ablation": 0.04, "telemetry": 0.06})
    records += _two(2, overheads={"phases": 0.07, "ablation": 0.03, "telemetry": -0.02})[2:]
    made = config("horovod", 2, backend="mpi")
    records.append(factories.timeline(made, overhead=0.31))
    found = _below(render_table(factories.write_results(tmp_path / "s", records)), "mpi")
    assert found[2:] == [
        "phases cost 8 % (7 to 9 % in 2 launches) at N=2: its phases are not the window's",
        "telemetry costs 2 % (−2 to 6 % in 2 launches) at N=2: too unsteady to tell",
        "timeline costs 31 % at N=2: its steps are not the window's",
    ]
    assert found[1] == (
        "timeline, a step: negotiation 1.50 ms, queue 40.0 µs, copy in 30.0 µs, all-reduce 600 µs, "
        "copy out 20.0 µs, 10 tensors in 1.5 all-reduces at N=2"
    )


def test_a_cost_has_its_error_and_one_below_nothing_is_no_gain(tmp_path: Path) -> None:
    records = _two(
        1,
        overheads={"phases": 0.0, "ablation": -0.2, "telemetry": 0.15},
        overhead_errors={"ablation": 0.1, "telemetry": 0.12},
    )
    found = _below(render_table(factories.write_results(tmp_path / "s", records)), "mpi")
    assert found[1:] == [
        "ablation costs −20 ±10 % at N=2: too unsteady to tell",
        "telemetry costs 15 ±12 % at N=2: too unsteady to tell",
    ]


def test_unsteady_windows_are_counted_below_their_curve(tmp_path: Path) -> None:
    base, point, *rest = _two(3)
    records = [
        base, factories.with_steadiness(
            point, drifting=True, change=-0.061, outliers=1, outlier_time_share=0.003,
        ),
        *(factories.with_steadiness(one) for one in rest),
    ]  # fmt: skip
    found = _below(render_table(factories.write_results(tmp_path / "s", records)), "mpi")
    assert found[1:] == [
        "the window drifts in 1 of 3 launches (by −6.1 % at most) at N=2",
        "outliers: 1 step in 1 of 3 launches (0.1 % of the time) at N=2",
    ]


def test_arrivals_on_one_clock_stand_beside_the_wait(tmp_path: Path) -> None:
    clocks = ClockCheck(method="m", offsets_s=(0.0, 0.0), error_s=1e-4, drift=0.0, skew_s=90e-6,
                        wait_s=45e-6, resolved=False)  # fmt: skip
    found = _below(
        render_table(factories.write_results(tmp_path / "s", _two(2, clocks=clocks))), "mpi"
    )
    assert found[1] == (
        "arrivals on one clock: skew 90.0 µs ±0 s, wait 45.0 µs ±0 s, below the clocks' error in 2 "
        "of 2 launches at N=2"
    )


@pytest.mark.parametrize(
    ("cold_s", "told"), [(9e-3, ", 9.00 ms ±0 s from a cold file cache"), (None, "")]
)
def test_a_batch_alone_is_told(cold_s: float | None, told: str, tmp_path: Path) -> None:
    feed = FeedTimes(batches=9, batch_bytes=900, files=1, file_bytes=10_000, warm_s=2e-3,
                     cold_batches=9, cold_s=cold_s, cached_warm=1.0, cached_cold=0.0)  # fmt: skip
    found = _below(render_table(factories.write_results(tmp_path / "s", _two(2, feed=feed))), "mpi")
    assert found[1] == f"a batch alone: 2.00 ms ±0 s to the device{told} at N=2"


def test_a_sequential_interval_is_called_one(tmp_path: Path) -> None:
    plain, last = _two(5), _two(6, sequential=True)[-2:]
    text = render_table(factories.write_results(tmp_path / "s", [*plain, *last]))
    assert "; t, 6 blocks of one allocation, sequential" in text
    assert "sequential: measuring ended when the interval was narrow, which" in text
    assert "sequential" not in render_table(factories.write_results(tmp_path / "t", plain))


def test_placements_of_one_count_are_told_apart_below_the_curve(tmp_path: Path) -> None:
    records = [record(config("horovod", p, backend="mpi")) for p in ("1x4", "2x2")]
    lines = _below(render_table(factories.write_results(tmp_path / "s", records)), "mpi")
    said = [line.partition(":")[0] for line in lines]
    assert said == ["phases at N=4 (4)", "phases at N=4 (2+2)"]


def test_launches_without_a_base_are_counted(tmp_path: Path) -> None:
    made = config("horovod", 2, backend="mpi")
    records = [record(made, 0), record(made, 1), record(config("none"), 0, is_base=True)]
    text = render_table(factories.write_results(tmp_path / "s", records))
    assert "1 launch has no base in the block and no part in S" in text


def test_failures_alone_are_listed_with_their_causes(tmp_path: Path) -> None:
    folder = factories.write_results(tmp_path / "s", [failure(config("none"), cause="x" * 500)])
    text = render_table(folder)
    assert text.startswith("no measurements yet")
    assert "1 launch without a measurement:" in text
    assert max(map(len, text.splitlines())) < 260


def test_a_file_that_cannot_be_read_is_listed(tmp_path: Path) -> None:
    folder = factories.write_results(tmp_path / "s", [record(config("none"))])
    (folder / "runs" / "deadbeef.json").write_text("{")
    assert "deadbeef unreadable: " in render_table(folder)


def test_an_empty_sweep_says_so(tmp_path: Path) -> None:
    assert render_table(factories.write_results(tmp_path / "s", [])) == "no measurements yet"


def test_unlike_machines_are_refused_unless_wanted(tmp_path: Path) -> None:
    other = {**factories.PROVENANCE, "cpu_model": "Old CPU"}
    records = [record(config("none"), 0), record(config("none"), 1, provenance=other)]
    folder = factories.write_results(tmp_path / "s", records)
    with pytest.raises(AnalysisError, match="cpu_model is"):
        render_table(folder)
    text = render_table(folder, mixed=True)
    assert "none, batch 75" in text
    assert "unlike launches mixed: cpu_model is Old CPU (1), Test CPU 3000 (1)" in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (518.2e-6, "518 µs"), (999.6e-6, "1.00 ms"), (1.25e-3, "1.25 ms"), (0.9996, "1.00 s"),
        (87.94e-6, "87.9 µs"), (0.5, "500 ms"), (12.345, "12.3 s"), (4321.0, "4,321 s"),
        (0.0, "0 s"),
    ],
)  # fmt: skip
def test_times_have_the_unit_that_fits(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text
