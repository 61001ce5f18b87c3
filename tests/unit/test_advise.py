"""What is advised from windows: objectives, limits, ties, refusals; values by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis.advise import Advice, Answer, Goal, advise, parse_goal, render_advice
from harness.analysis.advise.parsing import parse_deadline
from harness.analysis.plots.pareto import front, pareto
from harness.analysis.plots.style import figure_bytes, style
from harness.analysis.results import Results, load_results
from harness.config import RunConfig
from harness.errors import AnalysisError, ConfigError
from harness.record import RunRecord
from tests import factories
from tests.factories import TRAIN_SAMPLES, config, failure, record
from tests.unit.test_table import check_golden

#: Epochs of 750 s, 417 s, 231 s and 206 s; E of 1, 0.9, 0.81 and 0.455.
RATES = {1: 1000.0, 2: 1800.0, 4: 3240.0, 8: 3640.0}
Jitter = Mapping[int, Sequence[float]]


def of(n: int, **more: Any) -> RunConfig:
    return config("none", 1, **more) if n == 1 else config("horovod", n, backend="mpi", **more)


def made(
    rates: Mapping[int, float], blocks: int = 3, jitter: Jitter | None = None, **more: Any
) -> list[RunRecord]:
    """Return blocks that differ by 10 % each in all their launches, and by ``jitter`` of one N."""
    return [
        record(
            of(n, **more),
            block,
            throughput=rate * (1 + block / 10) * (jitter or {}).get(n, (1.0,) * blocks)[block],
            is_base=n == 1,
        )
        for block in range(blocks)
        for n, rate in rates.items()
    ]  # fmt: skip


def loaded(folder: Path, records: Sequence[RunRecord], **more: Any) -> Results:
    return load_results(factories.write_results(folder, records), **more)


def asked(folder: Path, records: Sequence[RunRecord], goal: Goal | None = None) -> Answer:
    (one,) = advise([loaded(folder, records)], goal or Goal()).answers
    return one


def chosen(one: Answer) -> int:
    assert one.recommended is not None, one.refusal
    return one.recommended.world_size


def test_without_limits_it_is_the_knee(tmp_path: Path) -> None:
    # Time² · N: 562,500; 347,222; 214,335; 339,633.
    one = asked(tmp_path, made(RATES))
    best = one.recommended
    assert best is not None
    assert best.world_size == 4
    assert dict(best.ask) == {
        "placement": "1x4", "engine": "horovod", "backend": "mpi", "batch_size": "75",
    }  # fmt: skip
    # The geometric mean of the blocks' paces 1, 1.1 and 1.2.
    epoch_s = TRAIN_SAMPLES / 3240.0 / (1.1 * 1.2) ** (1 / 3)
    assert best.time_s.estimate == pytest.approx(epoch_s)
    assert best.device_hours.estimate == pytest.approx(4 * epoch_s / 3600)
    assert best.efficiency is not None
    assert best.efficiency.estimate == pytest.approx(0.81)
    assert one.objective.name == "knee"
    assert "least time × device-hours: the knee" in one.objective.text
    assert one.runner_up is not None
    assert one.runner_up.world_size == 8
    # sqrt(214,335 / 339,633): its time would have to fall to 0.794 of what it is.
    assert one.to_win == "it would win if its time fell by 21 %"


def test_with_a_least_efficiency_it_is_the_fastest_that_keeps_to_it(tmp_path: Path) -> None:
    records = made(RATES)
    one = asked(tmp_path, records, Goal(min_efficiency=0.8))
    assert chosen(one) == 4
    assert one.why[0].startswith("--min-efficiency bound: N=8, mpi, batch 75 (")
    assert one.why[0].endswith("would be better, from --min-efficiency 0.45 down")
    assert chosen(asked(tmp_path, records, Goal(min_efficiency=0.85))) == 2
    assert chosen(asked(tmp_path, records, Goal(min_efficiency=0.95))) == 1
    loose = asked(tmp_path, records, Goal(min_efficiency=0.4))
    assert chosen(loose) == 8
    assert loose.why[0] == "--min-efficiency did not bind"


def test_efficiency_is_judged_by_the_lower_end(tmp_path: Path) -> None:
    # E of N=4 is 0.81 on average, and its interval reaches below 0.8.
    records = made(RATES, 3, {4: (0.96, 1.0, 1 / 0.96)})
    one = asked(tmp_path, records, Goal(min_efficiency=0.8))
    assert chosen(one) == 2
    (four,) = [c for c in one.candidates if c.world_size == 4]
    assert four.efficiency is not None
    assert four.efficiency.estimate == pytest.approx(0.81)
    assert four.misses[0].startswith("E's lower end 0.7")


def test_with_a_deadline_it_is_the_cheapest_that_meets_it(tmp_path: Path) -> None:
    records = made(RATES, 1)  # epochs of 750, 417, 231 and 206 s
    assert chosen(asked(tmp_path, records, Goal(deadline_s=800.0))) == 1
    one = asked(tmp_path, records, Goal(deadline_s=500.0))
    assert chosen(one) == 2
    assert one.why[0] == (
        "--deadline bound: N=1, none, batch 75 (12.5 min, 0.208 device-hours) would be better, "
        "from --deadline 13m on"
    )
    both = asked(tmp_path, records, Goal(deadline_s=300.0, min_efficiency=0.8))
    assert chosen(both) == 4
    assert "--min-efficiency did not bind" in both.why


def test_a_deadline_is_judged_by_the_upper_end(tmp_path: Path) -> None:
    # Blocks are 10 % apart, so N=4 takes 213 s on average and up to 280 s.
    one = asked(tmp_path, made(RATES), Goal(deadline_s=220.0))
    assert one.recommended is None
    assert one.refusal is not None
    assert "no point meets the deadline of 3.67 min" in one.refusal
    assert "too late by the upper end of its interval" in one.refusal
    assert "its estimate does meet it, so more blocks (measure.blocks) may settle it" in one.refusal


def test_a_deadline_out_of_reach_names_the_fastest(tmp_path: Path) -> None:
    one = asked(tmp_path, made(RATES, 1), Goal(deadline_s=100.0))
    assert one.refusal == (
        "no point meets the deadline of 1.67 min; the fastest is N=8, mpi, batch 75 "
        "(3.43 min, 0.458 device-hours), 1.77 min (106 %) too late by its time"
    )


def test_no_point_is_efficient_enough(tmp_path: Path) -> None:
    results = loaded(tmp_path, made(RATES))
    curves = tuple(curve for curve in results.curves if curve.engine != "none")
    (one,) = advise([replace(results, curves=curves)], Goal(min_efficiency=0.95)).answers
    assert one.refusal is not None
    assert one.refusal.startswith("no point is as efficient as 0.95 by its interval's lower end")
    assert "N=2, mpi, batch 75" in one.refusal


def test_both_limits_may_exclude_each_other(tmp_path: Path) -> None:
    one = asked(tmp_path, made(RATES, 1), Goal(deadline_s=220.0, min_efficiency=0.8))
    assert one.refusal is not None
    assert one.refusal.startswith("no point keeps to both limits; of those that are efficient")
    assert "N=4, mpi, batch 75" in one.refusal


def test_what_cannot_be_told_apart_is_a_tie_and_the_smaller_wins(tmp_path: Path) -> None:
    # N=4 is 1 % faster than N=2 on average, and by -11 % to 15 % in blocks.
    rates = {1: 1000.0, 2: 1950.0, 4: 1970.0}
    records = made(rates, 3, {4: (0.9, 1.0, 1.12)})
    one = asked(tmp_path, records, Goal(min_efficiency=0.1))
    assert chosen(one) == 2
    assert one.tied == ("N=4, mpi, batch 75",)
    assert one.why[0].startswith("N=4, mpi, batch 75 (")
    assert "cannot be told from it: ratio of their time 0.98" in one.why[0]
    assert one.why[0].endswith("the smaller is preferred")
    assert one.to_win is not None
    assert one.to_win.endswith("more blocks may tell")
    # The same difference without noise is one.
    still = asked(tmp_path / "s", made(rates), Goal(min_efficiency=0.1))
    assert (chosen(still), still.tied) == (4, ())


def test_pairs_decide_where_blocks_drift_together(tmp_path: Path) -> None:
    """Blocks are 10 % apart and the intervals of times overlap, yet in each block N=4 wins."""
    one = asked(tmp_path, made({1: 1000.0, 2: 1800.0, 4: 1850.0}), Goal(min_efficiency=0.1))
    four, two = one.candidates[:2]
    assert four.time_s.high is not None
    assert four.time_s.high > two.time_s.estimate
    assert (chosen(one), one.tied) == (4, ())


def test_one_block_gives_a_provisional_answer(tmp_path: Path) -> None:
    one = asked(tmp_path, made(RATES, 1))
    assert chosen(one) == 4
    assert one.provisional is not None
    assert one.provisional.startswith("by estimates alone: all points have one block")
    assert asked(tmp_path / "s", made(RATES, 2)).provisional is None


def test_no_batch_size_is_chosen_by_throughput(tmp_path: Path) -> None:
    records = [*made(RATES), *made({n: 9 * r for n, r in RATES.items()}, batch=700)]
    results = loaded(tmp_path / "s", records)
    advice = advise([results], Goal())
    assert [one.title for one in advice.answers] == [
        "stress_strain (torch), CPU, batch 75 of a rank",
        "stress_strain (torch), CPU, batch 700 of a rank",
    ]
    for one, batch in zip(advice.answers, (75, 700), strict=True):
        assert {candidate.batch for candidate in one.candidates} == {batch}
        assert not one.chooses_batch
        assert one.notes[0].startswith("no batch size is chosen: throughput alone does not tell")
        assert f"hvdscale train {tmp_path}/s/sweep.yaml --set train.target=VALUE" in one.notes[0]
        assert "the global batch grows with N" in one.notes[1]


def test_batch_sizes_of_one_point_each_are_no_choice(tmp_path: Path) -> None:
    records = [r for k in (75, 300, 700) for r in made({1: 1000.0 * k}, batch=k)]
    one = asked(tmp_path, records)
    assert len(one.candidates) == 3
    assert one.recommended is None
    assert one.refusal is not None
    assert one.refusal.startswith("each batch size (or precision) was measured at one point only")
    with style():
        rows = pareto(Advice(Goal(), (one,), ())).rows
    assert not any(row["front"] for row in rows)


def test_a_precision_is_chosen_like_a_batch_size(tmp_path: Path) -> None:
    half = made({n: 2 * r for n, r in RATES.items()}, execution={"precision": "bf16"})
    answers = advise([loaded(tmp_path, [*made(RATES), *half])], Goal()).answers
    assert [one.title for one in answers] == [
        "stress_strain (torch), CPU, batch 75 of a rank",
        "stress_strain (torch), CPU, batch 75 of a rank, execution.precision bf16",
    ]


def test_tuning_that_differs_is_asked_for(tmp_path: Path) -> None:
    tuned = [
        record(of(4, horovod={"cycle_time_ms": 0.5}), block, throughput=3500 * (1 + block / 10))
        for block in range(3)
    ]
    one = asked(tmp_path, [*made(RATES), *tuned])
    best = one.recommended
    assert best is not None
    assert best.label == "N=4, mpi, cycle 0.5 ms, batch 75"
    assert best.ask["horovod.cycle_time_ms"] == "0.5"
    (plain,) = [c for c in one.candidates if c.label == "N=4, mpi, cycle 1 ms, batch 75"]
    assert best.options == plain.options + 1  # the simpler of two alike would be preferred


def test_nodes_are_in_the_placement_asked_for(tmp_path: Path) -> None:
    records = [
        record(of(n), block, throughput=r, is_base=n == 1, node=8)
        for block in range(2)
        for n, r in {1: 1000.0, 10: 9000.0, 16: 15000.0}.items()
    ]
    one = asked(tmp_path, records)
    found = {c.label: c.ask["placement"] for c in one.candidates}
    assert found == {
        "N=1, none, batch 75": "1x1",
        "N=10 (8+2), mpi, batch 75": "8+2",
        "N=16 (8+8), mpi, batch 75": "2x8",
    }


def test_one_point_alone_is_no_choice(tmp_path: Path) -> None:
    records = made({1: 1000.0})
    one = asked(tmp_path, records)
    assert one.refusal is not None
    assert one.refusal.startswith("only one point is there, N=1, none, batch 75 (")
    assert "measure others, e.g. with --set 'placement=[1,2,4]'" in one.refusal
    late = asked(tmp_path, records, Goal(deadline_s=1.0)).refusal
    assert late is not None
    assert "it does not keep to the limits: " in late
    kept = asked(tmp_path, records, Goal(deadline_s=1e5)).refusal
    assert kept is not None
    assert "it keeps to the limits" in kept


def test_without_a_base_efficiency_cannot_be_judged(tmp_path: Path) -> None:
    records = [one for one in made(RATES) if one.config.world_size > 1]
    one = asked(tmp_path, records, Goal(min_efficiency=0.8))
    assert one.refusal is not None
    assert one.refusal.startswith("efficiency cannot be judged: no launch is its base none@1")
    assert "--base" in one.refusal
    assert chosen(asked(tmp_path, records)) == 4  # the knee needs no base


def test_nothing_measured(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match="holds no measurements; run the sweep first"):
        asked(tmp_path / "empty", [])
    failed = [failure(of(2), block) for block in range(2)]
    with pytest.raises(AnalysisError, match="all 2 launches failed, the last one: rank 1: killed"):
        asked(tmp_path / "failed", failed)


def test_what_failed_is_said(tmp_path: Path) -> None:
    advice = advise([loaded(tmp_path, [*made(RATES), failure(of(16), 0)])], Goal())
    assert advice.notes == ("1 launch failed and count for nothing: horovod mpi N=16 batch 75",)


def test_unlike_machines_are_not_compared(tmp_path: Path) -> None:
    other = factories.PROVENANCE | {"cpu_model": "Another CPU"}
    sweeps = [
        loaded(tmp_path / "a", made(RATES)),
        loaded(
            tmp_path / "b",
            [record(of(16), k, throughput=9000.0, provenance=other) for k in range(2)],
        ),
    ]
    with pytest.raises(AnalysisError, match=r"cpu_model is Test CPU 3000 .*--mixed"):
        advise(sweeps, Goal())
    advice = advise(sweeps, Goal(), mixed=True)
    assert len(advice.answers[0].candidates) == 5
    assert "unlike launches are compared: cpu_model is Test CPU 3000" in advice.notes[0]


def test_jobs_do_not_compete(tmp_path: Path) -> None:
    other = {"name": "stress_strain", "options": {"samples": 1000}}
    records = [*made(RATES), *made(RATES, workload=other)]
    titles = [one.title for one in advise([loaded(tmp_path, records)], Goal()).answers]
    assert len(titles) == 2
    assert any("samples 1000" in title for title in titles)


def test_one_point_of_two_sweeps_counts_once(tmp_path: Path) -> None:
    first, second = made(RATES, 2), made({n: 1.1 * r for n, r in RATES.items()}, 2)
    sweeps = [loaded(tmp_path / "a", first), loaded(tmp_path / "b", second)]
    (one,) = advise(sweeps, Goal()).answers
    assert len(one.candidates) == len(RATES)
    for candidate in one.candidates:
        assert candidate.time_s.n == 4
        assert len({block.pair for block in candidate.blocks}) == 4
    (same,) = advise([sweeps[0], sweeps[0]], Goal()).answers
    assert same.candidates[0].time_s.n == 2


def test_an_empty_folder_beside_a_full_one_is_said(tmp_path: Path) -> None:
    sweeps = [loaded(tmp_path / "a", made(RATES)), loaded(tmp_path / "b", [])]
    advice = advise(sweeps, Goal())
    assert chosen(advice.answers[0]) == 4
    assert f"{tmp_path}/b holds no measurements" in advice.notes[0]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90.0), ("45m", 2700.0), ("2h", 7200.0), ("1d12h", 129600.0), ("1.5h", 5400.0),
     ("1h 30m", 5400.0), ("2.05s", 2.05)],
)  # fmt: skip
def test_deadlines(text: str, seconds: float) -> None:
    assert parse_deadline(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "2", "h", "2 hours", "-2h", "1h2", "30m1h", "0s", "inf", "٣h"]
)
def test_bad_deadlines_are_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--deadline: .*write e.g. 90s, 45m, 2h or 1d12h"):
        parse_deadline(text)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((80.0, None, None), "--min-efficiency: 80 is not above 0 and at most 1"),
        ((0.0, None, None), "--min-efficiency: 0 is not"),
        ((float("nan"), None, None), "--min-efficiency: nan is not"),
        ((None, None, "mse"), "--target: 'mse' is no METRIC=VALUE"),
        ((None, None, "=1"), "--target: '=1' is no METRIC=VALUE"),
        ((None, None, "mse=low"), "--target: 'mse=low' is no METRIC=VALUE"),
        ((None, None, "mse=nan"), "--target: 'mse=nan' is no METRIC=VALUE"),
    ],
)
def test_bad_flags_are_one_line(flags: tuple[Any, Any, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_goal(*flags)
    assert says in str(caught.value)


costs = st.lists(
    st.tuples(st.sampled_from((1, 2, 4, 8)), st.floats(1.0, 1000.0)), min_size=1, max_size=12
)


@settings(max_examples=50)
@given(costs)
def test_no_candidate_beats_one_of_the_front(found: list[tuple[int, float]]) -> None:
    template = TEMPLATE.candidates[0]
    candidates = [
        replace(
            template,
            world_size=n,
            time_s=replace(template.time_s, estimate=time_s),
            device_hours=replace(template.device_hours, estimate=n * time_s / 3600),
        )
        for n, time_s in found
    ]
    kept = front(candidates)
    for one in candidates:
        for best in kept:
            assert not (
                one.time_s.estimate < best.time_s.estimate
                and one.device_hours.estimate < best.device_hours.estimate
            )
        assert any(
            best.time_s.estimate <= one.time_s.estimate
            and best.device_hours.estimate <= one.device_hours.estimate
            for best in kept
        )


@pytest.fixture(scope="module", autouse=True)
def _template(tmp_path_factory: pytest.TempPathFactory) -> None:
    global TEMPLATE
    TEMPLATE = asked(tmp_path_factory.mktemp("template"), made({1: 1000.0, 2: 1500.0}, 1))


TEMPLATE: Answer


def test_the_text_of_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the folder's path is in the text
    results = loaded(Path("s"), factories.records((1, 2, 4, 8, 16), blocks=4))
    goal = Goal(min_efficiency=0.7)
    check_golden("advise.txt", render_advice(advise([results], goal)) + "\n")


def test_the_figure_has_every_number_in_its_csv(tmp_path: Path) -> None:
    results = loaded(tmp_path, factories.records((1, 2, 4), blocks=3))
    advice = advise([results], Goal(min_efficiency=0.7))
    with style():
        plot = pareto(advice)
        first, again = (figure_bytes(pareto(advice).figure, "svg") for _ in range(2))
    assert first == again
    check_golden("pareto.csv", plot.csv_text())
    assert sum(row["advised"] for row in plot.rows) == 2
    texts = [text.get_text() for ax in plot.figure.axes for text in ax.texts]
    assert sorted(texts) == sorted(str(row["devices"]) for row in plot.rows)
