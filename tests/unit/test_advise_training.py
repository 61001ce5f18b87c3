"""What is advised from trainings and the gradient noise scale; values by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness import cli
from harness.analysis.advise import Advice, Answer, Candidate, Goal, Target, advise, render_advice
from harness.analysis.advise.trained import noise_scale, trainings_of
from harness.analysis.results import Results, load_results
from harness.config.models import Train
from harness.errors import AnalysisError
from harness.record import RunRecord, Training
from tests import factories
from tests.factories import config, record
from tests.unit.test_table import check_golden
from tests.unit.test_train_analysis import training

AIM = 0.04
#: At batch 75 a rank the target takes 2 epochs, at 700 it takes 5.
SHORT, LONG = [0.5, 0.1, 0.03], [0.5, 0.3, 0.2, 0.1, 0.05, 0.03]


def trained(batch: int, block: int, found: Training, n: int = 2, **more: Any) -> RunRecord:
    made = config(
        "horovod", n, batch, backend="mpi", train=Train(epochs=9, target=found.target), **more
    )
    empty: dict[str, Any] = {"window": None, "phases": None, "allreduce": None, "overheads": {}}
    return record(made, block, kind="train", training=found, **empty)


def runs(
    batch: int, values: Sequence[float], pace: float, *, target: float | None = AIM, n: int = 2,
    blocks: int = 3, noise: Sequence[tuple[float, float]] = (), **more: Any,
) -> list[RunRecord]:  # fmt: skip
    return [
        trained(
            batch,
            k,
            training(values, target=target, pace=pace * (1 + k / 100), noise=noise),
            n,
            **more,
        )
        for k in range(blocks)
    ]


def windows(rates: dict[tuple[int, int], float], blocks: int = 3, **more: Any) -> list[RunRecord]:
    """Return launches of (N, batch) at a throughput; blocks are 1 % apart."""
    return [
        record(
            config("horovod", n, batch, backend="mpi", **more),
            block,
            throughput=rate * (1 + block / 100),
        )
        for block in range(blocks)
        for (n, batch), rate in rates.items()
    ]


def loaded(folder: Path, records: Sequence[RunRecord]) -> Results:
    return load_results(factories.write_results(folder, records))


def asked(folder: Path, records: Sequence[RunRecord], goal: Goal | None = None) -> Answer:
    (one,) = advise([loaded(folder, records)], goal or Goal()).answers
    return one


def by_size(one: Answer) -> dict[tuple[int, int], Candidate]:
    return {(c.world_size, c.batch): c for c in one.candidates}


def best(one: Answer) -> Candidate:
    assert one.recommended is not None, one.refusal
    return one.recommended


MEAN_PACE = (1.0 * 1.01 * 1.02) ** (1 / 3)


def test_a_batch_size_is_chosen_by_time_to_the_target(tmp_path: Path) -> None:
    # 2 epochs of 10 s against 5 epochs of 6 s: the larger batch is faster an epoch and loses.
    one = asked(tmp_path, [*runs(75, SHORT, 10.0), *runs(700, LONG, 6.0)])
    assert (best(one).batch, one.chooses_batch) == (75, True)
    assert best(one).basis == "measured"
    assert best(one).time_s.estimate == pytest.approx(20.0 * MEAN_PACE)
    assert best(one).device_hours.estimate == pytest.approx(2 * 20.0 * MEAN_PACE / 3600)
    assert best(one).epochs == pytest.approx(2.0)
    wall_s = best(one).wall_s
    assert wall_s is not None
    assert wall_s.estimate > best(one).time_s.estimate  # with its evaluations
    assert one.cost_of == "training to mse ≤ 0.04"
    assert one.notes[0] == "the target is that of the trainings, mse ≤ 0.04"
    # 5 epochs of 3 s: now it wins.
    other = asked(tmp_path / "s", [*runs(75, SHORT, 10.0), *runs(700, LONG, 3.0)])
    assert best(other).batch == 700


def test_another_target_is_read_off_the_same_trainings(tmp_path: Path) -> None:
    records = [*runs(75, SHORT, 10.0), *runs(700, LONG, 6.0)]
    one = asked(tmp_path, records, Goal(target=Target("mse", 0.1)))
    found = by_size(one)
    assert found[2, 75].time_s.estimate == pytest.approx(10.0 * MEAN_PACE)
    assert found[2, 700].time_s.estimate == pytest.approx(18.0 * MEAN_PACE)


def test_higher_may_be_better(tmp_path: Path) -> None:
    up = training([0.1, 0.5, 0.9], target=0.9, lower=False)
    slow = training([0.1, 0.3, 0.5, 0.9], target=0.9, lower=False)
    records = [trained(b, k, t) for b, t in ((75, up), (700, slow)) for k in range(2)]
    one = asked(tmp_path, records, Goal(target=Target("accuracy", 0.5)))
    assert {c.batch: c.epochs for c in one.candidates} == pytest.approx({75: 1.0, 700: 2.0})
    assert one.cost_of == "training to accuracy ≥ 0.5"


def test_an_untrained_count_is_computed_at_the_same_global_batch_only(tmp_path: Path) -> None:
    """Trained at N=2, batch 150 a rank: 4 ranks of 75 have its global batch, 4 of 150 have not."""
    records = [
        *runs(150, SHORT, 10.0),
        *windows({(2, 150): 75_000.0, (4, 75): 150_000.0, (4, 150): 160_000.0}),
    ]
    one = asked(tmp_path, records)
    found = by_size(one)
    assert set(found) == {(2, 150), (4, 75)}
    four = found[4, 75]
    assert four.basis == "computed"
    # 2 epochs of 750,000 / 150,000 s; the trained point keeps what its training took.
    assert four.time_s.estimate == pytest.approx(2 * 5.0 / MEAN_PACE)
    assert "as trained at global batch 300 (N=2) × epoch time measured here" in four.source
    assert found[2, 150].time_s.estimate == pytest.approx(20.0 * MEAN_PACE)
    assert any(
        note.startswith("1 point is not judged: no training at global batch 600, and no gradient")
        for note in one.notes
    )
    assert "computed: epochs to the target as trained" in "\n".join(one.notes)


def test_other_numerics_are_other_epochs(tmp_path: Path) -> None:
    """Epochs of fp32 say nothing of bf16 at the same global batch."""
    half: dict[str, Any] = {"execution": {"precision": "bf16"}}
    records = [
        *runs(150, SHORT, 10.0),
        *windows({(4, 75): 150_000.0}),
        *windows({(4, 75): 300_000.0}, **half),
    ]
    one = asked(tmp_path, records)
    assert {c.ask.get("execution.precision") for c in one.candidates} == {None}
    assert set(by_size(one)) == {(2, 150), (4, 75)}


#: |G|² and tr(Σ) at three evaluations: 1 / B_noise is 1/300 on average of the last two.
NOISE = [(1000.0, 100.0), (600.0, 3.0), (600.0, 1.0)]


def test_the_noise_scale_leaves_the_first_estimate_out(tmp_path: Path) -> None:
    found = noise_scale(trainings_of([loaded(tmp_path, runs(75, SHORT, 10.0, noise=NOISE))]))
    assert found is not None
    assert 1 / found.estimate == pytest.approx(300.0)  # of 3/600 and 1/600
    assert found.n == 2
    hidden = [(1000.0, 100.0), (600.0, 1.0), (600.0, -3.0)]
    records = runs(75, SHORT, 10.0, noise=hidden)
    assert noise_scale(trainings_of([loaded(tmp_path / "s", records)])) is None


def test_epochs_are_carried_to_another_batch_by_the_noise_scale(tmp_path: Path) -> None:
    records = [*runs(75, SHORT, 10.0, noise=NOISE), *windows({(4, 75): 150_000.0})]
    one = asked(tmp_path, records)
    four = by_size(one)[4, 75]
    assert four.basis == "noise scale"
    # E = 2 · (1 + 300/300) / (1 + 150/300); an epoch takes 5 s.
    assert four.epochs == pytest.approx(2 * 2.0 / 1.5)
    assert four.time_s.estimate == pytest.approx(2 * 2.0 / 1.5 * 5.0 / MEAN_PACE)
    # 1 / B_noise of two estimates reaches from 0 to 0.0245: (1 + 300x) / (1 + 150x) from 1 to 1.79
    assert four.time_s.low is not None
    assert four.time_s.low == pytest.approx(2 * 5.0 / MEAN_PACE, rel=0.03)
    assert any(note.startswith("gradient noise scale 300 samples, [41, no") for note in one.notes)


def test_a_batch_that_failed_is_not_computed_from_another(tmp_path: Path) -> None:
    """At global batch 300 training did not get there: the noise scale may not say that it does."""
    records = [
        *runs(75, SHORT, 10.0, noise=NOISE),
        *runs(150, [0.5, 0.4, 0.4], 6.0, noise=NOISE),
        *windows({(4, 75): 150_000.0, (2, 75): 80_000.0}),
    ]
    one = asked(tmp_path, records)
    assert set(by_size(one)) == {(2, 75)}
    assert any("not each time to the target, so not counted: N=2 at global batch 300 (0 of 3)"
               in note for note in one.notes)  # fmt: skip


def test_the_noise_scale_alone_chooses_a_batch(tmp_path: Path) -> None:
    """Without a target reached: epoch time × (1 + B / 300)."""
    records = [
        *runs(75, [0.5, 0.4, 0.3], 10.0, target=None, noise=NOISE),
        *windows({(1, 75): 50_000.0, (1, 300): 75_000.0, (1, 3000): 90_000.0}),
    ]
    one = asked(tmp_path, records, Goal(min_efficiency=None))
    found = by_size(one)
    assert found[1, 75].time_s.estimate == pytest.approx(15.0 * 1.25 / MEAN_PACE)
    assert found[1, 300].time_s.estimate == pytest.approx(10.0 * 2.0 / MEAN_PACE)
    assert found[1, 3000].time_s.estimate == pytest.approx(750 / 90 * 11.0 / MEAN_PACE)
    assert best(one).batch == 75
    assert one.cost_of == "the progress of one epoch with small batches"
    assert one.notes[0] == "the trainings had no target; name one: --target mse=VALUE"
    # 18.75 against 20 s, where the noise scale may be anything from 41 to no end: a tie.
    assert "N=1, mpi, batch 300" in one.tied


def test_without_target_and_noise_each_batch_has_its_answer(tmp_path: Path) -> None:
    records = [
        *runs(75, [0.5, 0.4], 10.0, target=None),
        *windows({(n, k): n * k * 100.0 for n in (1, 2) for k in (75, 700)}),
    ]
    advice = advise([loaded(tmp_path, records)], Goal())
    assert [one.chooses_batch for one in advice.answers] == [False, False]


def test_several_targets_must_be_named(tmp_path: Path) -> None:
    records = [*runs(75, SHORT, 10.0), *runs(700, LONG, 3.0, target=0.05)]
    advice = advise([loaded(tmp_path, records)], Goal())
    assert not any(one.chooses_batch for one in advice.answers)
    said = "the trainings had several targets; name one: --target mse=0.04, mse=0.05"
    assert said in advice.answers[0].notes
    assert best(asked(tmp_path, records, Goal(target=Target("mse", 0.05)))).batch == 700


def test_a_target_that_nobody_reached(tmp_path: Path) -> None:
    one = asked(tmp_path / "s", runs(75, SHORT, 10.0), Goal(target=Target("mse", 0.001)))
    assert one.refusal == (
        "no training reached mse ≤ 0.001; the best came to 0.03 (global batch 150, N=2, 2 epochs); "
        "it ended at its own target of 0.04; train further: hvdscale train "
        f"{tmp_path}/s/sweep.yaml --set train.target=0.001 --set train.epochs=4"
    )
    assert one.candidates == ()


def test_a_target_reached_in_some_launches_only(tmp_path: Path) -> None:
    records = [*runs(75, SHORT, 10.0, blocks=2), trained(75, 2, training([0.5, 0.4], target=AIM))]
    one = asked(tmp_path, records, Goal(target=Target("mse", AIM)))
    assert one.refusal is not None
    assert "no point reached mse ≤ 0.04 in all of its trainings (the first: 2 of 3)" in one.refusal


def test_a_target_that_needs_no_training(tmp_path: Path) -> None:
    one = asked(tmp_path, runs(75, SHORT, 10.0), Goal(target=Target("mse", 0.6)))
    assert one.refusal == "mse ≤ 0.6 is reached before the first step; name a harder target"


def test_a_target_without_trainings(tmp_path: Path) -> None:
    results = loaded(tmp_path, windows({(2, 75): 1e4}))
    with pytest.raises(AnalysisError, match=r"--target mse=0\.001: no training is in these"):
        advise([results], Goal(target=Target("mse", 1e-3)))


def test_a_metric_that_no_training_has(tmp_path: Path) -> None:
    results = loaded(tmp_path, runs(75, SHORT, 10.0))
    with pytest.raises(
        AnalysisError, match=r"metric 'mze' \(did you mean 'mse'\?\); there is: mse"
    ):
        advise([results], Goal(target=Target("mze", 1e-3)))


def test_seeds_are_pooled_and_never_chosen(tmp_path: Path) -> None:
    """Seeds need 2, 3 and 5 epochs; blocks of one seed count once."""
    values = {1: SHORT, 2: [0.5, 0.2, 0.1, 0.03], 3: LONG}
    records = [
        trained(75, k, training(v, target=AIM, pace=10.0), seed=seed)
        for seed, v in values.items()
        for k in range(2)
    ]
    one = asked(tmp_path, [*records, *runs(700, LONG, 30.0)])
    (small,) = [c for c in one.candidates if c.batch == 75]
    assert small.epochs == pytest.approx((2 * 3 * 5) ** (1 / 3))
    assert (small.time_s.n, small.time_s.method) == (3, "t, 3 seeds")
    assert "seed" not in small.ask
    assert not any("one seed" in note for note in one.notes)


def test_the_trained_learning_rate_is_asked_for(tmp_path: Path) -> None:
    rate = {"base": 1e-3, "base_batch": 75, "rule": "sqrt"}
    records = [
        *runs(150, SHORT, 10.0, learning_rate=rate),
        *windows({(4, 75): 150_000.0, (2, 150): 80_000.0}),  # measured at the workload's own rate
    ]
    found = by_size(asked(tmp_path, records))
    for candidate in found.values():
        assert candidate.ask["learning_rate.rule"] == "sqrt"
    assert set(found) == {(2, 150), (4, 75)}


def test_a_deadline_may_be_missed_by_the_evaluations(tmp_path: Path) -> None:
    """20.4 s of training, 23.4 s with an evaluation of 1 s after each epoch."""
    records = [*runs(75, SHORT, 10.0, blocks=1), *runs(700, LONG, 6.0, blocks=1)]
    one = asked(tmp_path, records, Goal(deadline_s=21.0))
    assert any("it took 23.0 s wall-clock, which is beyond the deadline" in why for why in one.why)
    later = asked(tmp_path, records, Goal(deadline_s=25.0))
    assert not any("wall-clock" in why for why in later.why)


def test_trainings_have_no_efficiency(tmp_path: Path) -> None:
    one = asked(tmp_path, [*runs(75, SHORT, 10.0), *runs(700, LONG, 6.0)], Goal(min_efficiency=0.5))
    assert one.refusal is not None
    assert one.refusal.startswith("efficiency cannot be judged: trainings have no base")


def a_study(folder: Path) -> Advice:
    sweeps = [
        loaded(folder / "windows", factories.records((1, 2, 4), ("mpi", "gloo"), blocks=4)),
        loaded(
            folder / "trainings",
            [*runs(75, SHORT, 5.5, noise=NOISE), *runs(700, LONG, 1.3, noise=NOISE)],
        ),
    ]
    return advise(sweeps, Goal(deadline_s=9.0))


def test_the_text_of_sweep_and_trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the folders' paths are in the text
    check_golden("advise_training.txt", render_advice(a_study(Path())) + "\n")


class TestCommand:
    def test_text_json_and_figure(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        loaded(tmp_path / "r" / "s", [*runs(75, SHORT, 10.0), *runs(700, LONG, 6.0)])
        flags = ["--results", str(tmp_path / "r"), "--target", "mse=0.04", "--deadline", "1m"]
        assert cli.main(["advise", "s", *flags]) == 0
        assert "ask for: placement 1x2, engine horovod" in capsys.readouterr().out
        assert cli.main(["advise", "s", *flags, "--json", "--out", str(tmp_path / "o")]) == 0
        told = capsys.readouterr()
        (one,) = json.loads(told.out)["answers"]
        assert one["recommended"]["ask"]["batch_size"] == "75"
        assert one["recommended"]["time_s"]["estimate"] == pytest.approx(20 * MEAN_PACE)
        written = sorted(path.name for path in (tmp_path / "o").iterdir())
        assert written == ["pareto.csv", "pareto.png", "pareto.svg"]
        assert told.err.count("written") == 3

    @pytest.mark.parametrize(
        ("flags", "says"),
        [
            (["--deadline", "soon"], "--deadline: 'soon' is no time"),
            (["--target", "mse"], "--target: 'mse' is no METRIC=VALUE"),
            (["--min-efficiency", "2"], "--min-efficiency: 2 is not above 0"),
        ],
    )
    def test_bad_flags(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], says: str
    ) -> None:
        assert cli.main(["advise", str(tmp_path), *flags]) == 2
        told = capsys.readouterr().err
        assert says in told
        assert told.count("\n") == 1
