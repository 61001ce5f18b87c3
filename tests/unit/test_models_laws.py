from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import least_squares

from harness.analysis.frame import arrow_table, facts
from harness.analysis.models import amdahl, gustafson, laws, sample, usl
from harness.analysis.models.api import Place
from harness.analysis.models.fit import nonnegative_log_fit
from harness.analysis.models.laws import LawModel, fit_law
from harness.analysis.models.sample import sample_of
from harness.analysis.scaling import Curve, curves
from harness.errors import AnalysisError
from harness.stats import geometric_interval
from tests.factories import config, record

COUNTS = (1, 2, 4, 8, 16)
BATCH = {"weak": 64, "strong": 4096}
#: Law → a curve's kind of scaling, throughput at N, and the parameters that made it.
WEAK = ("weak", lambda n: 1000 * (n - 0.3 * (n - 1)), {"f": 0.3, "λ": 1000.0})
STRONG = ("strong", lambda n: 4096 / (0.5 * (0.1 + 0.9 / n)), {"f": 0.1, "T1": 0.5})
USL = (
    "weak",
    lambda n: 900 * n / (1 + 0.05 * (n - 1) + 0.002 * n * (n - 1)),
    {"λ": 900.0, "σ": 0.05, "κ": 0.002, "N*": math.sqrt(0.95 / 0.002)},
)
MADE = {amdahl.AMDAHL: STRONG, gustafson.GUSTAFSON: WEAK, usl.USL: USL}


def curve_of(
    rate: Callable[[int], float],
    scaling: str = "weak",
    counts: Sequence[int] = COUNTS,
    *,
    blocks: int = 3,
    noise: float = 0.0,
    drift: float = 0.0,
    seed: int = 1,
    node: int = 64,
    base: bool = False,
) -> Curve:
    """A curve of Horovod whose launches have the throughput ``rate(N)``, times noise."""
    random = np.random.default_rng(seed)
    made = []
    for block in range(blocks):
        shared = random.normal(0, drift)
        for n in counts:
            point = config("horovod", n, BATCH[scaling], backend="mpi", scaling=scaling)
            seen = rate(n) * math.exp(shared + random.normal(0, noise))
            made.append(record(point, block, throughput=seen, node=node))
        if base:
            plain = config("none", 1, BATCH[scaling], scaling=scaling)
            seen = rate(1) * math.exp(shared + random.normal(0, noise))
            made.append(record(plain, block, throughput=seen, is_base=True))
    table = arrow_table([facts(one.model_dump(mode="json")) for one in made])
    return next(c for c in curves(table) if c.engine == "horovod")


def noisy(curve: Curve, noise: float, seed: int, drift: float = 0.0) -> Curve:
    """The same curve with other noise, made without records: many of them are needed."""
    random = np.random.default_rng(seed)
    blocks = sorted({launch.block for point in curve.points for launch in point.launches})
    shared = {block: random.normal(0, drift) for block in blocks}
    points = []
    for point in curve.points:
        launches = tuple(
            replace(
                one,
                throughput_samples_per_s=one.throughput_samples_per_s
                * math.exp(shared[one.block] + random.normal(0, noise)),
            )
            for one in point.launches
        )
        rates = {one.block: one.throughput_samples_per_s for one in launches}
        found = geometric_interval(rates)
        points.append(replace(point, launches=launches, throughput_samples_per_s=found))
    return replace(curve, points=tuple(points))


def values(model: LawModel) -> dict[str, float]:
    return {one.symbol: one.interval.estimate for one in model.parameters}


def width(model: LawModel, symbol: str) -> float:
    (found,) = [one.interval for one in model.parameters if one.symbol == symbol]
    assert found.low is not None
    assert found.high is not None
    assert found.low * (1 - 1e-9) <= found.estimate <= found.high * (1 + 1e-9)
    return found.high - found.low


@pytest.mark.parametrize("law", MADE, ids=lambda law: law.name)
@pytest.mark.parametrize("from_2", [False, True])
def test_a_law_gives_the_parameters_back_that_made_the_records(law: Any, from_2: bool) -> None:
    scaling, rate, expected = MADE[law]
    model = fit_law(law, curve_of(rate, scaling), from_2=from_2)
    assert values(model) == pytest.approx(expected, rel=1e-6)
    for n in (1024,) if from_2 else (1, 3, 1024):
        samples = BATCH[scaling] * (n if scaling == "weak" else 1)
        assert model.step_s(Place((n,))) == pytest.approx(samples / rate(n), rel=1e-6)


def test_usl_without_crosstalk_has_no_peak_and_says_so() -> None:
    model = usl.fit_usl(curve_of(lambda n: 900 * n / (1 + 0.05 * (n - 1))))
    assert values(model) == pytest.approx({"λ": 900.0, "σ": 0.05, "κ": 0.0}, abs=1e-9, rel=1e-6)
    assert any("κ is at its bound 0" in note for note in model.notes)


def test_usl_is_amdahl_for_strong_scaling_without_crosstalk() -> None:
    curve = curve_of(STRONG[1], "strong")
    same = usl.fit_usl(curve)
    assert values(same)["σ"] == pytest.approx(0.1, rel=1e-6)
    assert same.step_s(Place((64,))) == pytest.approx(
        amdahl.fit_amdahl(curve).step_s(Place((64,))), rel=1e-6
    )


@pytest.mark.parametrize(
    ("fit", "rate", "scaling", "symbol", "value"),
    [
        (amdahl.fit_amdahl, lambda n: 100.0 * n**1.2, "strong", "f", 0.0),
        (amdahl.fit_amdahl, lambda n: 100.0 / n, "strong", "f", 1.0),
        (gustafson.fit_gustafson, lambda n: 100.0 * n**1.2, "weak", "f", 0.0),
        (gustafson.fit_gustafson, lambda n: 100.0 / n, "weak", "f", 1.0),
    ],
)
def test_a_parameter_stays_in_its_bounds_and_is_said_to_be_there(
    fit: Any, rate: Any, scaling: str, symbol: str, value: float
) -> None:
    model = fit(curve_of(rate, scaling))
    assert values(model)[symbol] == value
    assert any("at its bound" in note for note in model.notes)


@pytest.mark.parametrize("law", MADE, ids=lambda law: law.name)
def test_the_fit_is_that_of_scipys_least_squares(law: Any) -> None:
    random = np.random.default_rng(3)
    counts = np.array(COUNTS, dtype=float)
    basis = law.basis(counts)
    true = random.uniform(0.05, 1.0, basis.shape[1])
    logs = np.log(basis @ true) + random.normal(0, 0.2, (25, counts.size))
    for row, beta in zip(logs, nonnegative_log_fit(basis, logs), strict=True):
        other = least_squares(
            lambda x, row=row: np.log(basis @ x) - row, true, bounds=(1e-15, np.inf),
            xtol=1e-14, ftol=1e-14, gtol=1e-14,
        )  # fmt: skip
        assert (beta >= 0).all()
        mine = float(((np.log(basis @ beta) - row) ** 2).sum())
        assert mine <= 2 * other.cost * (1 + 1e-8)


def test_a_fit_does_not_depend_on_how_fast_a_device_is() -> None:
    basis = usl.USL.basis(np.array(COUNTS, dtype=float))
    logs = np.log(basis @ np.array([1e-3, 1e-4, 1e-5]))[None, :]
    slow = nonnegative_log_fit(basis, logs)
    assert nonnegative_log_fit(basis, logs - 30) == pytest.approx(slow * math.exp(-30), rel=1e-9)


def test_fewer_counts_than_parameters_are_refused() -> None:
    basis = usl.USL.basis(np.array([2.0, 4.0, 4.0]))
    with pytest.raises(AnalysisError, match=r"3 parameters need as many .* there are 2"):
        nonnegative_log_fit(basis, np.zeros((1, 3)))
    with pytest.raises(AnalysisError, match=r"3 parameters .* there are 2"):
        usl.fit_usl(curve_of(USL[1], counts=(2, 4)))
    with pytest.raises(AnalysisError, match="without N = 1 there are 2"):
        usl.fit_usl_from_2(curve_of(USL[1], counts=(1, 2, 4)))


def test_a_law_is_of_one_kind_of_scaling() -> None:
    with pytest.raises(AnalysisError, match="law of strong scaling"):
        amdahl.fit_amdahl(curve_of(WEAK[1], "weak"))
    with pytest.raises(AnalysisError, match="law of weak scaling"):
        gustafson.fit_gustafson(curve_of(STRONG[1], "strong"))


def test_intervals_of_parameters_cover_what_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """95 % intervals of 60 simulated curves a law; three to five blocks, which drift, too."""
    monkeypatch.setattr(laws, "DRAWS", 200)
    covered = total = 0
    for law, (scaling, rate, expected) in MADE.items():
        plain = {blocks: curve_of(rate, scaling, blocks=blocks) for blocks in (3, 4, 5)}
        for seed in range(60):
            curve = noisy(plain[3 + seed % 3], 0.02, seed, drift=0.05)
            for one in fit_law(law, curve).parameters:
                if one.symbol != "N*":
                    low, high = one.interval.low, one.interval.high
                    assert low is not None
                    assert high is not None
                    covered += low <= expected[one.symbol] <= high
                    total += 1
    assert total == 60 * 7
    assert 0.92 < covered / total < 0.98


@pytest.mark.parametrize("law", MADE, ids=lambda law: law.name)
def test_more_noise_widens_the_interval(law: Any) -> None:
    scaling, rate, _ = MADE[law]
    plain = curve_of(rate, scaling, blocks=4)
    symbol = law.quantities[0].symbol
    widths = [width(fit_law(law, noisy(plain, noise, 5)), symbol) for noise in (0, 0.005, 0.02)]
    assert widths[0] == pytest.approx(0, abs=1e-6)
    assert widths[1] > 0
    assert widths[2] > 2 * widths[1]


def test_a_drift_between_blocks_is_in_the_pace_and_not_in_the_scaling() -> None:
    model = gustafson.fit_gustafson(noisy(curve_of(WEAK[1], blocks=4), 0.0, 1, drift=0.2))
    assert width(model, "f") < 1e-9
    assert width(model, "λ") > 100


def test_one_block_has_no_interval_and_says_so() -> None:
    model = gustafson.fit_gustafson(curve_of(WEAK[1], blocks=1))
    for one in model.parameters:
        assert (one.interval.low, one.interval.high) == (None, None)
        assert one.interval.method == "one block: no interval"
    assert np.ptp(model.draws_s(Place((64,)), 100)) == 0.0


def test_draws_are_the_same_for_the_same_data_and_around_the_estimate() -> None:
    curve = curve_of(WEAK[1], noise=0.02, blocks=4)
    place = Place((64,))
    first, second = (gustafson.fit_gustafson(curve).draws_s(place, 500) for _ in range(2))
    assert (first == second).all()
    assert first.shape == (500,)
    step_s = gustafson.fit_gustafson(curve).step_s(place)
    assert np.median(first) == pytest.approx(step_s, rel=0.01)


def test_a_block_that_lacks_a_point_is_left_out_and_counted() -> None:
    curve = curve_of(WEAK[1], noise=0.05, blocks=4)
    last = curve.points[-1]
    short = replace(curve, points=(*curve.points[:-1], replace(last, launches=last.launches[:3])))
    model = gustafson.fit_gustafson(short)
    assert model.sample.units == 3
    assert "1 block lacks a point and is not in the laws' fits" in model.notes
    three = replace(
        curve, points=tuple(replace(p, launches=p.launches[:3]) for p in curve.points)
    )  # fmt: skip
    assert values(model) == values(gustafson.fit_gustafson(three))


def _scattered(curve: Curve, shift: dict[int, float]) -> Curve:
    """Give each point an allocation of its own, ``shift`` times as fast, with its base."""
    return replace(
        curve,
        points=tuple(
            replace(
                point,
                launches=tuple(
                    replace(
                        one,
                        block=(f"job{point.world_size}", one.block[1]),
                        throughput_samples_per_s=one.throughput_samples_per_s
                        * shift[point.world_size],
                    )
                    for one in point.launches
                ),
            )
            for point in curve.points
        ),
    )


def test_points_in_allocations_of_their_own_are_compared_by_their_bases() -> None:
    shift = {1: 1.0, 2: 0.9, 4: 1.1, 8: 1.05, 16: 0.95}
    curve = _scattered(curve_of(WEAK[1], noise=0.0, base=True), shift)
    model = gustafson.fit_gustafson(curve)
    assert values(model)["f"] == pytest.approx(0.3, rel=1e-6)
    pace = 1000 * math.prod(shift.values()) ** (1 / 5)  # of one device, a mean over the jobs
    assert values(model)["λ"] == pytest.approx(pace, rel=1e-6)
    assert any("relative to its block's base" in note for note in model.notes)
    bare = replace(
        curve,
        points=tuple(
            replace(p, launches=tuple(replace(one, speedup=None) for one in p.launches))
            for p in curve.points
        ),
    )
    other = gustafson.fit_gustafson(bare)
    assert abs(values(other)["f"] - 0.3) > 0.01  # the jobs' luck looks like scaling, and it says:
    assert any("without a base beside it" in note for note in other.notes)


def test_several_allocations_count_once_each() -> None:
    curve = curve_of(WEAK[1], noise=0.02, blocks=6)
    points = tuple(
        replace(p, launches=tuple(
            replace(one, block=(f"job{one.block[1] % 3}", one.block[1])) for one in p.launches
        ))
        for p in curve.points
    )  # fmt: skip
    found = sample_of(points)
    assert (found.units, found.freedom, found.method) == (3, 2, "t, 3 allocations")


def test_no_law_speaks_across_nodes_that_were_not_measured() -> None:
    alone = gustafson.fit_gustafson(curve_of(WEAK[1]))
    for ask in (alone.step_s, alone.terms, lambda place: alone.draws_s(place, 10)):
        with pytest.raises(AnalysisError, match=r"knows nothing of networks.*measure on two nodes"):
            ask(Place((16, 16)))
    several = gustafson.fit_gustafson(curve_of(WEAK[1], node=8))
    assert several.step_s(Place((16, 16))) == pytest.approx(alone.step_s(Place((32,))))


def test_a_law_from_2_does_not_speak_of_one_device() -> None:
    model = gustafson.fit_gustafson_from_2(curve_of(WEAK[1]))
    assert model.name == "gustafson from 2"
    with pytest.raises(AnalysisError, match="N = 1 has none"):
        model.step_s(Place((1,)))


@settings(max_examples=30, deadline=None)
@given(
    law=st.sampled_from(list(MADE)),
    n=st.integers(2, 10_000),
    scatter=st.lists(st.floats(0.5, 2.0), min_size=5, max_size=5),
)
def test_terms_sum_to_the_step(law: Any, n: int, scatter: list[float]) -> None:
    scaling, rate, _ = MADE[law]
    by_count = dict(zip(COUNTS, scatter, strict=True))
    curve = _CURVES.setdefault(law.name, curve_of(rate, scaling, blocks=1))
    points = tuple(
        replace(p, launches=tuple(
            replace(one, throughput_samples_per_s=one.throughput_samples_per_s
                    * by_count[p.world_size]) for one in p.launches
        ))
        for p in curve.points
    )  # fmt: skip
    model = fit_law(law, replace(curve, points=points))
    place = Place((n,))
    terms = model.terms(place)
    assert sum(term.time_s for term in terms) == pytest.approx(model.step_s(place), rel=1e-9)
    assert all(term.time_s >= -1e-12 * model.step_s(place) for term in terms)
    assert len({term.name for term in terms}) == len(terms)


_CURVES: dict[str, Curve] = {}


def test_draws_of_means_have_the_t_quantiles_of_their_blocks() -> None:
    curve = curve_of(lambda n: 1000.0 * n, blocks=3, noise=0.01)
    found = sample_of(curve.points)
    drawn = found.draws(sample.DRAWS)[:, 2]
    logs = [math.log(one.throughput_samples_per_s) for one in curve.points[2].launches]
    half = 4.302653 * float(np.std(logs, ddof=1)) / math.sqrt(3)
    low, high = np.percentile(drawn - np.mean(logs), [2.5, 97.5])
    assert high == pytest.approx(half, rel=0.12)
    assert low == pytest.approx(-half, rel=0.12)
