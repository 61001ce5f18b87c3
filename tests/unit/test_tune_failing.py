"""A search in which launches fail: it ends, says why, and keeps to its time."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.config import RunConfig
from harness.errors import LaunchError
from harness.store import Store
from harness.tuner import state
from tests.unit.tune_stub import WALL_S, Launches, Notes, request, tuned


def nothing_runs(config: RunConfig, repeat: int) -> float | None:
    return None


def test_where_nothing_runs_the_search_ends_soon(tmp_path: Path) -> None:
    launches, notes = Launches(nothing_runs), Notes()
    with pytest.raises(LaunchError, match=r"none of 5 trials gave a measurement; .* it crashed"):
        tuned(request(trials=None), launches, tmp_path, notes)
    assert len(launches.asked) == 5
    attempts = list(Store.open(tmp_path / "tune-stress_strain").attempts())
    assert len(attempts) == 5  # each with its cause
    assert "none of 5 settings has run: it crashed" in notes.lines


def test_once_the_cause_is_mended_it_goes_on(tmp_path: Path) -> None:
    with pytest.raises(LaunchError):
        tuned(request(), Launches(nothing_runs), tmp_path)
    mended = Launches(lambda config, repeat: 100.0)
    assert tuned(request(), mended, tmp_path).winner is not None
    assert len(mended.asked) >= 12


def test_what_fails_takes_of_the_budget_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = Launches(nothing_runs)
    monkeypatch.setattr(state.time, "monotonic", lambda: launches.now_s)
    with pytest.raises(LaunchError, match="none of 3 trials"):
        tuned(request(trials=None, budget_s=2.5 * WALL_S), launches, tmp_path)
    assert len(launches.asked) == 3


def test_some_failures_among_settings_that_run_end_nothing(tmp_path: Path) -> None:
    def odd_ones_fail(config: RunConfig, repeat: int) -> float | None:
        default = config.horovod.cycle_time_ms == 1.0 and config.horovod.groups == 0
        return 100.0 if default else None

    launches = Launches(odd_ones_fail)
    tuned(request(trials=9), launches, tmp_path)
    assert len(launches.asked) >= 9
