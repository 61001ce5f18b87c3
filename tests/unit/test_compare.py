"""B against A: the tests by hand, what is matched with what, and what a reader is told."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis.compare import Comparison, compare, compare_values, render_comparison
from harness.analysis.compare.contrast import difference, holm, ratio, smallest_among
from harness.analysis.plain import json_text
from harness.analysis.results import Results, load_results
from harness.cli import main
from harness.errors import AnalysisError, ConfigError
from harness.record import RunRecord
from tests import factories
from tests.factories import config, failure, record
from tests.unit.test_table import check_golden

HERE = "local:node0"
OTHER = {"cpu_model": "Other CPU 1"}


def blocks(*values: float, allocation: str = HERE) -> dict[tuple[str, int], float]:
    return {(allocation, i): value for i, value in enumerate(values)}


def results(folder: Path, kept: list[RunRecord], **more: Any) -> Results:
    return load_results(factories.write_results(folder, kept), **more)


def launches(rates: dict[str, tuple[float, ...]], n: int = 2, **more: Any) -> list[RunRecord]:
    """One launch a backend and block, with these throughputs."""
    return [
        record(config("horovod", n, backend=backend, **more), repeat, throughput=rate)
        for backend, values in rates.items()
        for repeat, rate in enumerate(values)
    ]


# -- the tests, by hand --------------------------------------------------------------------------


def test_a_paired_ratio_by_hand() -> None:
    """Log-ratios 0.1, 0.2, 0.3: mean 0.2, s = 0.1, t = 0.2 √3 / 0.1, of 2 degrees of freedom."""
    a = blocks(100.0, 200.0, 50.0)
    b = {key: a[key] * math.exp(log) for key, log in zip(a, (0.1, 0.2, 0.3), strict=True)}
    found = ratio(a, b, pairable=True)
    half = 4.302652730 * 0.1 / math.sqrt(3)
    assert found.test == "paired t"
    assert found.effect.estimate == pytest.approx(math.exp(0.2))
    assert found.effect.low == pytest.approx(math.exp(0.2 - half))
    assert found.effect.high == pytest.approx(math.exp(0.2 + half))
    assert found.smallest == pytest.approx(math.expm1(half))
    # With 2 degrees of freedom P(|T| > t) = 1 − t / √(2 + t²).
    t = 0.2 * math.sqrt(3) / 0.1
    assert found.p_value == pytest.approx(1 - t / math.sqrt(2 + t * t))
    assert found.a.estimate == pytest.approx(100.0)  # the cube root of a million


def test_welch_by_hand() -> None:
    """Means 3 and 8; v_A = 1/3, v_B = 4/3: t = 5 / √(5/3), (5/3)² / (1/18 + 16/18) freedom."""
    found = difference(blocks(2.0, 3.0, 4.0), blocks(6.0, 8.0, 10.0), pairable=False)
    freedom = (5 / 3) ** 2 / (1 / 18 + 16 / 18)
    assert found.test == "Welch's t"
    assert found.freedom == pytest.approx(freedom)
    assert found.effect.estimate == pytest.approx(5.0)
    assert found.blocks == (3, 3)
    assert found.p_value is not None
    # Between what 2 and 3 degrees of freedom give: 1 − t/√(2 + t²), and a table's 0.0307.
    t = 5 / math.sqrt(5 / 3)
    assert 0.0307 - 1e-4 < found.p_value < 1 - t / math.sqrt(2 + t * t)
    assert found.effect.low is not None
    assert found.smallest == pytest.approx(5.0 - found.effect.low)
    assert found.effect.method == (
        "Welch's t, 3 blocks of one allocation against 3 blocks of one allocation"
    )


def test_allocations_count_once() -> None:
    a = blocks(1.0, 3.0) | blocks(4.0, 4.0, allocation="slurm:2")
    b = {key: value + shift for (key, value), shift in zip(a.items(), (1, 1, 3, 3), strict=True)}
    found = difference(a, b, pairable=True)
    assert (found.effect.n, found.effect.estimate, found.freedom) == (2, 2.0, 1.0)
    assert found.p_value == pytest.approx(1 - 2 / math.pi * math.atan(2.0))  # Cauchy; t = 2 / 1
    apart = difference(blocks(1.0, 3.0), a, pairable=False)
    assert "2 blocks of one allocation against 2 allocations" in apart.effect.method


def test_few_blocks_are_told_from_none() -> None:
    alone = ratio(blocks(100.0), blocks(110.0), pairable=True)
    assert (alone.p_value, alone.smallest, alone.effect.low) == (None, None, None)
    assert alone.effect.estimate == pytest.approx(1.1)
    assert "no interval" in alone.effect.method
    # One common block gives no interval; two of each side do, unpaired.
    a, b = blocks(1.0, 2.0, 3.0), {(HERE, 2): 4.0, (HERE, 3): 5.0}
    assert difference(a, b, pairable=True).test == "Welch's t"
    one_side = difference(blocks(1.0, 2.0), blocks(3.0), pairable=False)
    assert (one_side.p_value, one_side.effect.high) == (None, None)
    assert one_side.effect.estimate == pytest.approx(1.5)


def test_blocks_without_a_partner_are_counted_and_not_used() -> None:
    found = difference(blocks(1.0, 2.0, 9.0, 9.0), blocks(2.0, 4.0), pairable=True)
    assert (found.blocks, found.unused) == ((2, 2), (2, 0))
    assert found.effect.estimate == pytest.approx(1.5)


def test_equal_values_are_no_difference_and_no_error() -> None:
    for pairable in (True, False):
        same = ratio(blocks(0.1 + 0.2, 0.3), blocks(0.3, 0.3), pairable=pairable)
        assert same.p_value == 1.0
        twice = ratio(blocks(5.0, 5.0), blocks(10.0, 10.0), pairable=pairable)
        assert twice.p_value == 0.0
        assert twice.smallest == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_what_has_no_logarithm_has_no_ratio(value: float) -> None:
    with pytest.raises(AnalysisError, match="not a positive, finite number"):
        ratio(blocks(1.0, value), blocks(1.0, 2.0), pairable=True)


def test_holm_by_hand() -> None:
    """Of three: 3 · 0.01, 2 · 0.03, and 0.04 · 1 = 0.04, which must not be below 0.06."""
    assert holm([0.04, None, 0.01, 0.03]) == pytest.approx((0.06, None, 0.03, 0.06))
    assert holm([0.9, 0.8]) == (1.0, 1.0)
    assert holm([]) == ()


def test_the_smallest_difference_is_larger_among_more_comparisons() -> None:
    """Among five, level 1 − 0.05 / 5: t of 2 degrees of freedom grows from 4.3027 to 9.9248."""
    found = difference(blocks(0.0, 0.0, 0.0), blocks(1.0, 2.0, 3.0), pairable=True)
    assert smallest_among(found, 1) == pytest.approx(found.smallest)
    assert smallest_among(found, 5) == pytest.approx(9.924843 / math.sqrt(3), rel=1e-5)


@pytest.mark.parametrize(("pairable", "sizes"), [(True, (3, 3)), (False, (4, 6))])
def test_intervals_cover_what_they_say(pairable: bool, sizes: tuple[int, int]) -> None:
    """True ratio 1.1; blocks shared by pairs scatter five times as much as a launch."""
    random, covered, found_equal, runs = np.random.default_rng(5), 0, 0, 1500
    for _ in range(runs):
        common = random.normal(0, 0.1, max(sizes)) if pairable else np.zeros(max(sizes))
        a = np.exp(common[: sizes[0]] + random.normal(0, 0.02, sizes[0]))
        noise = random.normal(0, 0.05, sizes[1])
        b = 1.1 * np.exp(common[: sizes[1]] + noise)
        found = ratio(blocks(*a), blocks(*b), pairable=pairable)
        assert found.effect.low is not None
        assert found.effect.high is not None
        covered += found.effect.low <= 1.1 <= found.effect.high
        equal = ratio(blocks(*a), blocks(*(b / 1.1)), pairable=pairable)
        assert equal.p_value is not None
        found_equal += equal.p_value < 0.05
    assert 0.935 < covered / runs < 0.965
    assert 0.035 < found_equal / runs < 0.065


positive = st.floats(1e-3, 1e9)


@given(st.lists(positive, min_size=1, max_size=6), st.lists(positive, min_size=1, max_size=6),
       st.booleans())  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_a_against_b_is_the_reciprocal_of_b_against_a(
    a: list[float], b: list[float], pairable: bool
) -> None:
    there = ratio(blocks(*a), blocks(*b), pairable=pairable)
    back = ratio(blocks(*b), blocks(*a), pairable=pairable)
    assert there.effect.estimate * back.effect.estimate == pytest.approx(1.0)
    assert (there.p_value is None) == (back.p_value is None)
    if there.p_value is not None:
        assert there.p_value == pytest.approx(back.p_value, abs=1e-9)
    if there.effect.low and back.effect.high and math.isfinite(back.effect.high):
        assert there.effect.low * back.effect.high == pytest.approx(1.0)
    assert there.test == back.test


@given(st.lists(st.floats(0, 1), max_size=8))
@settings(max_examples=60, deadline=None)
def test_holm_keeps_the_order_and_lowers_nothing(p_values: list[float]) -> None:
    found = [p for p in holm(p_values) if p is not None]
    assert all(p <= corrected <= 1 for p, corrected in zip(p_values, found, strict=True))
    assert [found[i] for i in np.argsort(p_values, kind="stable")] == sorted(found)


# -- one sweep, two values -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The plain step, and MPI and Gloo on 1, 2 and 4 ranks, in four blocks."""
    folder = tmp_path_factory.mktemp("compare") / "mine"
    made = factories.records((1, 2, 4), ("mpi", "gloo"), (75,), blocks=4)
    return results(folder, [*made, failure(config("horovod", 8, backend="gloo"))])


def test_a_comparison_of_two_backends(sweep: Results) -> None:
    found = compare_values(sweep, "backend=gloo", "backend=mpi")
    check_golden("compare_backends.txt", render_comparison(found) + "\n")
    assert [pair.verdict for pair in found.pairs] == ["not shown", "faster", "faster"]
    assert (found.a.failed, found.b.failed) == (1, 0)


def test_blocks_of_one_sweep_are_paired(tmp_path: Path) -> None:
    """Blocks ten times apart, B always 10 % faster: unpaired nothing could be told."""
    rates = (1e3, 1e4, 1e5)
    faster = tuple(rate * factor for rate, factor in zip(rates, (1.09, 1.10, 1.11), strict=True))
    mine = results(tmp_path / "s", launches({"gloo": rates, "mpi": faster}))
    (pair,) = compare_values(mine, "backend=gloo", "backend=mpi").pairs
    assert pair.throughput.test == "paired t"
    assert pair.throughput.effect.estimate == pytest.approx((1.09 * 1.10 * 1.11) ** (1 / 3))
    assert pair.verdict == "faster"


def test_two_comparisons_are_mirror_images(sweep: Results) -> None:
    there = compare_values(sweep, "backend=gloo", "backend=mpi")
    back = compare_values(sweep, "backend=mpi", "backend=gloo")
    for one, other in zip(there.pairs, back.pairs, strict=True):
        product = one.throughput.effect.estimate * other.throughput.effect.estimate
        assert product == pytest.approx(1.0)
        assert one.p_corrected == pytest.approx(other.p_corrected)
        step, mirrored = one.parts["step_s"].effect, other.parts["step_s"].effect
        assert step.estimate == pytest.approx(-mirrored.estimate)
    assert {"faster": "slower"}.get(there.pairs[1].verdict) == back.pairs[1].verdict


def test_the_parts_of_a_step_add_up_to_its_difference(sweep: Results) -> None:
    pair = compare_values(sweep, "backend=gloo", "backend=mpi").pairs[1]
    parts = {name: found.effect.estimate for name, found in pair.parts.items()}
    assert parts["transfer_s"] + parts["wait_s"] == pytest.approx(parts["exposed_sync_s"])
    assert pair.parts["exposed_sync_s"].kind == "difference"
    assert "gpu_power_w" not in parts  # measured by neither


def test_engines_are_matched_without_what_only_one_has(tmp_path: Path) -> None:
    """DDP has no MPI and no cycle time: its Gloo is matched with both tunings of Horovod's Gloo."""
    made = [
        record(one, repeat)
        for repeat in range(2)
        for one in (
            config("ddp", 2, backend="gloo"),
            config("horovod", 2, backend="gloo"),
            config("horovod", 2, backend="gloo", horovod={"cycle_time_ms": 5}),
            config("horovod", 2, backend="mpi"),
        )
    ]
    mine = results(tmp_path / "s", made)
    found = compare_values(mine, "engine=ddp", "engine=horovod")
    cycles = [pair.config["horovod.cycle_time_ms"] for pair in found.pairs]
    assert sorted(cycles) == ["1", "5"]
    assert all(pair.config["backend"] == "gloo" for pair in found.pairs)
    assert found.only_b == ("engine=horovod, backend=mpi, batch_size=75, N = 2 (2)",)
    assert any("several matches" in note for note in found.notes)
    back = compare_values(mine, "engine=horovod", "engine=ddp")
    assert (len(back.pairs), back.only_a) == (2, found.only_b)


def test_another_backend_is_matched_where_there_is_no_nearer_one(tmp_path: Path) -> None:
    made = [
        record(one, repeat)
        for repeat in range(2)
        for one in (config("ddp", 2, backend="gloo"), config("horovod", 2, backend="mpi"))
    ]
    found = compare_values(results(tmp_path / "s", made), "engine=ddp", "engine=horovod")
    (pair,) = found.pairs
    assert pair.config["backend"] == "gloo / mpi"
    assert pair.differs["backend"] == ("gloo", "mpi")
    assert "also different (A / B): backend (gloo / mpi)" in render_comparison(found)


@pytest.mark.parametrize(
    ("more", "a", "b"),
    [
        ({"horovod": {"cycle_time_ms": 5}}, "horovod.cycle_time_ms=1.0", "cycle_time_ms=5"),
        ({"execution": {"precision": "bf16"}}, "execution.precision=fp32", "precision=bf16"),
        ({"execution": {"graph": True}}, "execution.graph=false", "execution.graph=true"),
        ({"workload": {"name": "stress_strain", "framework": "tensorflow"}},
         "framework=torch", "workload.framework=tensorflow"),
        ({"workload": {"name": "stress_strain", "hidden": 8}, "seed": 2}, "seed=1", "seed=2"),
        ({"measure": {"instruments": ["phases", "clocks"]}},
         "measure.instruments=[phases]", "measure.instruments=[phases, clocks]"),
    ],
)  # fmt: skip
def test_any_key_is_an_axis(tmp_path: Path, more: dict[str, Any], a: str, b: str) -> None:
    plain = {"workload": {"name": "stress_strain", "hidden": 8}} if "seed" in more else {}
    made = [
        record(config("horovod", 2, backend="mpi", **keys), repeat)
        for repeat in range(2)
        for keys in (plain, more)
    ]
    (pair,) = compare_values(results(tmp_path / "s", made), a, b).pairs
    assert pair.world_size == 2


def test_placements_are_an_axis_and_are_written_as_in_a_sweep(tmp_path: Path) -> None:
    made = [
        record(config("horovod", placement, backend="mpi"), repeat)
        for repeat in range(2)
        for placement in ("1x4", "2x2")
    ]
    found = compare_values(results(tmp_path / "s", made), "placement=1x4", "placement=2x2")
    (pair,) = found.pairs
    assert (pair.placement, pair.placement_b) == ("4", "2+2")


@pytest.mark.parametrize(
    ("a", "b", "error", "said"),
    [
        ("bakend=mpi", "bakend=gloo", AnalysisError, "did you mean 'backend'"),
        ("bakend=mpi", "bakend=gloo", AnalysisError, r"backend \(mpi, gloo\)"),
        ("backend=mpi", "backend=goo", AnalysisError, "did you mean 'gloo'.*measured: mpi, gloo"),
        ("cycle_time_ms=1", "cycle_time_ms=2", AnalysisError, "measured: 1"),
        ("backend=mpi", "seed=1", ConfigError, "two values of one key"),
        ("backend=mpi", "backend=mpi", ConfigError, "are the same"),
        ("backend", "backend=mpi", ConfigError, "no key=value"),
        ("placement=x", "placement=2", ConfigError, "not a placement"),
        ("seed=[", "seed=1", ConfigError, "not a YAML value"),
        ("seed=2026-13-45", "seed=1", ConfigError, "not a YAML value: month"),
        ("seed=" + "[" * 5000, "seed=1", ConfigError, "not a YAML value"),
        ("placement=1", "placement=4", None, ""),
    ],
)
def test_what_is_no_axis_is_said(
    sweep: Results, a: str, b: str, error: type[Exception] | None, said: str
) -> None:
    if error is None:
        assert compare_values(sweep, a, b).pairs  # not a mistake, if unusual
        return
    with pytest.raises(error, match=said):
        compare_values(sweep, a, b)


def test_points_without_their_like_say_how_near_they_are(tmp_path: Path) -> None:
    made = launches({"mpi": (1.0, 1.0)}, 2) + launches({"gloo": (1.0, 1.0)}, 4)
    mine = results(tmp_path / "s", made)
    with pytest.raises(AnalysisError, match=r"nearest differ in placement \(2, 4\)"):
        compare_values(mine, "backend=mpi", "backend=gloo")


def test_scalings_of_other_batches_say_that_these_differ(tmp_path: Path) -> None:
    weak = factories.records((2, 4), ("mpi",), (75,), 2)
    strong = factories.records((2, 4), ("mpi",), (1024,), 2, scaling="strong")
    found = results(tmp_path / "s", [*weak, *strong])
    with pytest.raises(AnalysisError, match="a rank's batch or the device count is another"):
        compare_values(found, "scaling=weak", "scaling=strong")


def test_values_measured_in_different_allocations_say_that_no_test_parts_them(
    tmp_path: Path,
) -> None:
    made = [
        record(config("horovod", 4, backend=backend), r, factor=1 + 0.01 * r, allocation=place)
        for backend, place in (("mpi", "job:1"), ("gloo", "job:2"))
        for r in range(4)
    ]
    found = compare_values(results(tmp_path / "s", made), "backend=mpi", "backend=gloo")
    assert found.pairs[0].throughput.test == "Welch's t"
    assert any("no test can tell it from the difference of A and B" in one for one in found.notes)
    assert found.a.is_apart_from(found.b)
    assert "or its allocation is: each side has its own" in render_comparison(found).splitlines()[0]


def test_one_block_cannot_tell(tmp_path: Path) -> None:
    mine = results(tmp_path / "s", launches({"mpi": (100.0,), "gloo": (50.0,)}))
    found = compare_values(mine, "backend=gloo", "backend=mpi")
    (pair,) = found.pairs
    assert (pair.verdict, pair.p_corrected, pair.smallest) == ("cannot tell", None, None)
    assert pair.throughput.effect.estimate == pytest.approx(2.0)
    text = render_comparison(found)
    assert text.startswith("Whether B differs from A cannot be told: the only point has one block.")
    assert "measure.blocks: 3 or more" in text


def test_unlike_machines_within_a_sweep_are_refused(tmp_path: Path) -> None:
    theirs = factories.PROVENANCE | OTHER
    made = launches({"mpi": (100.0, 101.0)})
    made += [
        record(config("horovod", 2, backend="gloo"), repeat, provenance=theirs)
        for repeat in range(2)
    ]
    mine = results(tmp_path / "s", made)
    with pytest.raises(AnalysisError, match=r"cpu_model.*--mixed"):
        compare_values(mine, "backend=mpi", "backend=gloo")
    mixed = compare_values(mine, "backend=mpi", "backend=gloo", mixed=True)
    assert [one.key for one in mixed.unlike] == ["cpu_model"]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (lambda one: factories.with_steadiness(one, drifting=True), "2 of 2 windows of A drift"),
        (lambda one: one, None),
    ],
)
def test_windows_that_drift_are_named(
    tmp_path: Path, parts: Callable[[RunRecord], RunRecord], said: str | None
) -> None:
    made = launches({"mpi": (100.0, 101.0), "gloo": (100.0, 102.0)})
    made = [parts(one) if one.config.backend == "mpi" else one for one in made]
    notes = compare_values(
        results(tmp_path / "s", made), "backend=mpi", "backend=gloo"
    ).notes  # fmt: skip
    assert [note for note in notes if "drift" in note] == (
        [f"{said}: hvdscale collect says where"] if said else []
    )


def test_another_precision_is_not_only_a_matter_of_pace(tmp_path: Path) -> None:
    made = launches({"mpi": (100.0, 101.0)})
    made += launches({"mpi": (200.0, 201.0)}, execution={"precision": "bf16"})
    found = compare_values(results(tmp_path / "s", made), "precision=fp32", "precision=bf16")
    assert any("compare accuracy" in note for note in found.notes)


# -- two sweeps ----------------------------------------------------------------------------------


def two(tmp_path: Path, a: list[RunRecord], b: list[RunRecord]) -> Comparison:
    return compare(results(tmp_path / "before", a), results(tmp_path / "after", b))


def test_two_sweeps_are_not_paired_and_say_on_what_they_ran(tmp_path: Path) -> None:
    """Equal names of blocks are no pairs: every ratio is 2, and paired that would be certain."""
    mine = launches({"mpi": (100.0, 104.0, 96.0)})
    theirs = [
        one.model_copy(update={"provenance": factories.PROVENANCE | OTHER}).sealed()
        for one in launches({"mpi": (200.0, 208.0, 192.0)})
    ]
    found = two(tmp_path, mine, theirs)
    (pair,) = found.pairs
    assert pair.throughput.test == "Welch's t"
    assert pair.throughput.effect.estimate == pytest.approx(2.0)
    assert pair.verdict == "faster"
    (unlike,) = found.unlike
    assert (unlike.key, unlike.a, unlike.b) == ("cpu_model", ("Test CPU 3000",), ("Other CPU 1",))
    head = render_comparison(found).splitlines()[0]
    assert head == (
        "B is faster at the only point (+100 %). "
        "On unlike hardware or software (A / B): cpu_model (Test CPU 3000 / Other CPU 1)."
    )
    assert "not measured side by side" in found.notes[0]


def test_what_could_have_been_shown_is_said_where_nothing_is(tmp_path: Path) -> None:
    rates: dict[str, tuple[float, ...]] = {
        "mpi": (100.0, 104.0, 96.0),
        "gloo": (101.0, 102.0, 97.0),
    }
    one, both = (
        launches(rates),
        launches(rates) + launches({**rates, "gloo": (90.0, 99.0, 108.0)}, 4),
    )
    heads = []
    for name, made in (("one", one), ("both", both)):
        found = compare_values(results(tmp_path / name, made), "backend=mpi", "backend=gloo")
        heads.append(render_comparison(found).splitlines()[0])
        shown = [f"{100 * pair.smallest:.2g} %" for pair in found.pairs if pair.smallest]
        assert all(text in heads[-1] for text in shown)
    assert heads[0].startswith("No difference is shown at the only point; the smallest that could")
    assert heads[0].endswith("% there.")
    assert heads[1].startswith("No difference is shown at any of 2 points; the smallest that could")
    assert heads[1].endswith("% by the point.")


def test_settings_of_the_shell_are_named_by_side(tmp_path: Path) -> None:
    environment = {"OMP_NUM_THREADS": "1", "NCCL_ALGO": "Ring"}
    theirs = [
        one.model_copy(
            update={"provenance": factories.PROVENANCE | {"environment": environment}}
        ).sealed()
        for one in launches({"mpi": (1.0, 2.0)})
    ]
    (unlike,) = two(tmp_path, launches({"mpi": (1.0, 2.0)}), theirs).unlike
    assert (unlike.key, unlike.a, unlike.b) == ("environment.NCCL_ALGO", ("unset",), ("Ring",))


def test_what_each_sweep_has_once_is_what_is_compared(tmp_path: Path) -> None:
    """Sweeps of two cycle times: the plain steps, equal in both, are controls."""
    base = [record(config("none"), i, throughput=rate) for i, rate in enumerate((10.0, 11.0))]
    slow = launches({"mpi": (100.0, 104.0)}, horovod={"cycle_time_ms": 5})
    found = two(tmp_path, base + launches({"mpi": (200.0, 201.0)}), base + slow)
    assert dict(found.varied) == {"horovod.cycle_time_ms": ("1", "5")}
    control, pair = found.pairs
    assert (control.control, pair.control) == (True, False)
    assert control.throughput.effect.estimate == pytest.approx(1.0)
    assert found.compared == (pair,)
    assert pair.p_corrected == pair.throughput.p_value  # the control is no comparison of its own
    text = render_comparison(found)
    assert "A: before, horovod.cycle_time_ms=1;" in text
    assert "engine=none, batch_size=75 (control)" in text
    assert any("controls do not differ" in note for note in found.notes)


def test_another_batch_in_part_of_a_sweep_is_no_match(tmp_path: Path) -> None:
    """75 is in both, so 700 and 1400 are points that only one has, and not two of a kind."""
    mine = launches({"mpi": (1.0, 2.0)}) + launches({"mpi": (1.0, 2.0)}, batch=700)
    theirs = launches({"mpi": (1.0, 2.0)}) + launches({"mpi": (1.0, 2.0)}, batch=1400)
    found = two(tmp_path, mine, theirs)
    assert [pair.config["batch_size"] for pair in found.pairs] == ["75"]
    assert (len(found.only_a), len(found.only_b)) == (1, 1)


def test_a_placement_is_what_it_was_resolved_to_and_measure_may_differ(tmp_path: Path) -> None:
    mine = [record(config("horovod", "1x2", backend="mpi"), i) for i in range(2)]
    theirs = [
        record(config("horovod", 2, backend="mpi", measure={"window_s": 9}), i) for i in range(2)
    ]
    found = two(tmp_path, mine, theirs)
    (pair,) = found.pairs
    assert pair.differs["measure.window_s"] == ("5", "9")
    assert "measured differently: measure.window_s (5 / 9)" in found.notes


def test_what_was_left_open_is_what_was_in_force(tmp_path: Path) -> None:
    found = two(
        tmp_path, launches({"mpi": (1.0, 2.0)}), launches({"mpi": (1.0, 2.0)}, launcher="mpirun")
    )
    (pair,) = found.pairs
    assert not pair.differs
    assert not found.varied


def test_two_workloads_have_no_ratio(tmp_path: Path) -> None:
    lstm = {"name": "lstm"}
    with pytest.raises(AnalysisError, match=r"workload\.name \(stress_strain, lstm\)"):
        two(tmp_path, launches({"mpi": (1.0,)}), launches({"mpi": (1.0,)}, workload=lstm))


def test_a_sweep_is_not_compared_with_itself(sweep: Results) -> None:
    with pytest.raises(ConfigError, match="the same sweep"):
        compare(sweep, sweep)


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ([], "holds no measurements; run the sweep first"),
        ([failure(config("horovod", 2))], "its only launch failed.*out of memory"),
    ],
)
def test_nothing_measured_is_said(tmp_path: Path, kept: list[RunRecord], said: str) -> None:
    with pytest.raises(AnalysisError, match=said):
        two(tmp_path, launches({"mpi": (1.0,)}), kept)


# -- the command line ----------------------------------------------------------------------------


def test_the_command_prints_json(sweep: Results, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["compare", str(sweep.folder), "backend=gloo", "backend=mpi", "--json"]
    assert main(argv) == 0
    printed = capsys.readouterr().out
    expected = compare_values(sweep, "backend=gloo", "backend=mpi")
    assert json.loads(printed) == json.loads(json_text(expected))
    assert json.loads(printed)["pairs"][1]["verdict"] == "faster"


@pytest.mark.parametrize("what", [["one"], ["one", "backend=mpi"], ["a", "b", "c"]])
def test_the_command_says_what_it_takes(
    what: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *what]) == 2
    assert "compare takes two sweeps" in capsys.readouterr().err
