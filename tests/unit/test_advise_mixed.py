"""What is advised where sweeps or trainings do not fit together: no number of two unlike things."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.analysis.advise import Goal, Target, advise
from harness.analysis.results import load_results
from harness.errors import AnalysisError
from harness.record import RunRecord
from tests import factories
from tests.factories import config, record
from tests.unit.test_advise_training import LONG, SHORT, asked, loaded, runs, trained
from tests.unit.test_train_analysis import training


def _of(samples: int) -> list[RunRecord]:
    """Return a sweep whose config is that of any other, the data behind it having ``samples``."""
    made = [config("none", 1), config("horovod", 2, backend="mpi")]
    found = [record(one, block, is_base=one.world_size == 1) for block in range(2) for one in made]
    facts = [one.workload for one in found]
    return [
        one.model_copy(
            update={"workload": fact.model_copy(update={"train_samples": samples})}
        ).sealed()
        for one, fact in zip(found, facts, strict=True)
        if fact is not None
    ]


def test_epochs_of_unlike_data_are_not_taken_together(tmp_path: Path) -> None:
    a = load_results(factories.write_results(tmp_path / "a", _of(750_000)))
    b = load_results(factories.write_results(tmp_path / "b", _of(1_000)))
    with pytest.raises(AnalysisError, match=r"samples are 1,000 \(b\), 750,000 \(a\)"):
        advise([a, b], Goal())
    assert advise([a], Goal()).answers[0].recommended is not None


def test_one_place_trained_for_two_metrics_is_one_point(tmp_path: Path) -> None:
    """An epoch takes what it takes, so it is no rival of itself."""
    up = training([0.1, 0.5, 0.9], target=0.9, lower=False)
    records = [*runs(75, SHORT, 10.0), *(trained(75, 5 + k, up) for k in range(2))]
    (one,) = advise([loaded(tmp_path, records)], Goal()).answers
    (point,) = one.candidates
    assert len(point.blocks) == 5
    assert one.recommended is None


def test_what_is_trained_further_is_the_sweep_of_the_trainings(tmp_path: Path) -> None:
    windows = [record(config("horovod", 2, backend="mpi"), block) for block in range(2)]
    sweeps = [
        load_results(factories.write_results(tmp_path / "windows", windows)),
        load_results(factories.write_results(tmp_path / "trainings", runs(75, [0.5, 0.3], 10.0))),
    ]
    for one in advise(sweeps, Goal(target=Target("mse", 0.01))).answers:
        assert one.refusal is not None
        if "train further" in one.refusal:
            assert f"hvdscale train {tmp_path}/trainings/sweep.yaml" in one.refusal
            return
    pytest.fail("no answer says to train further")


def test_trainings_that_fell_short_are_not_said_to_have_ended_at_a_target(tmp_path: Path) -> None:
    one = asked(tmp_path, runs(75, [0.5, 0.3], 10.0), Goal(target=Target("mse", 0.01)))
    assert one.refusal is not None
    assert "the best came to 0.3 (global batch 150, N=2, 1 epochs); train further" in one.refusal


def test_trainings_to_several_targets_are_not_said_to_be_none(tmp_path: Path) -> None:
    records = [*runs(75, SHORT, 10.0, target=0.1), *runs(700, LONG, 6.0)]
    (one,) = advise([loaded(tmp_path, records)], Goal()).answers
    assert not any("neither a training" in note for note in one.notes)
    assert any("no training to one target does" in note for note in one.notes)


def test_trainings_without_a_step_are_said_to_tell_nothing(tmp_path: Path) -> None:
    only_first = training([0.5], target=None)
    records = [trained(75, k, only_first) for k in range(2)]
    one = asked(tmp_path / "s", records)
    assert one.recommended is None
    assert one.refusal == (
        "its trainings were evaluated before their first step alone; train longer: hvdscale train "
        f"{tmp_path}/s/sweep.yaml --set train.epochs=10"
    )


def test_an_efficiency_of_one_block_is_no_interval_to_judge_by(tmp_path: Path) -> None:
    """All points have three blocks, the base has one: so has E."""
    made = factories.records((1, 2, 4), ("mpi",), (75,), blocks=3)
    kept = [one for one in made if not (one.block.is_base and one.block.repeat > 0)]
    one = asked(tmp_path, kept, Goal(min_efficiency=0.95 * 0.55))
    assert one.recommended is not None
    assert one.recommended.efficiency is not None
    assert not one.recommended.efficiency.has_interval
    assert one.provisional is not None
    assert "--min-efficiency is judged by an estimate alone" in one.provisional
    free = asked(tmp_path / "free", kept)
    assert free.provisional is not None
    assert "--min-efficiency" not in free.provisional


def test_a_noise_scale_below_one_sample_is_no_zero(tmp_path: Path) -> None:
    quiet = [(1.0, 4.0)] * 2  # tr(Σ), |G|²: a quarter of a sample
    records = [*runs(75, [0.5, 0.3], 10.0, noise=quiet), *runs(700, [0.5, 0.3], 6.0, noise=quiet)]
    (one,) = advise([loaded(tmp_path, records)], Goal()).answers
    assert any("gradient noise scale 0.25 samples" in note for note in one.notes)
