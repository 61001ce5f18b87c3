"""Horovod's own timeline of two real ranks, started and stopped around a number of steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.errors import LaunchError
from harness.timeline import read_summary
from tests.integration.ranks import point, run_program

STEPS = 4
GRADIENTS = 8  # weights and biases of two convolutions and two linear layers
BACKENDS = {"gloo": "GLOO_ALLREDUCE", "mpi": "MPI_ALLREDUCE"}


@pytest.fixture(scope="module", params=BACKENDS)
def found(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, data_dir: Path
) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("timeline")
    measure = {"instruments": ["timeline"], "timeline_steps": STEPS}
    config = point("horovod", request.param, 2, measure=measure)
    answers = run_program("timeline", config, folder, data_dir, str(STEPS))
    return {"backend": request.param, "ranks": answers, "file": folder / "timeline.json"}


def test_every_gradient_is_reduced_once_a_step(found: dict[str, Any]) -> None:
    timeline = found["ranks"][0]["timeline"]
    assert timeline["steps"] == STEPS
    assert timeline["tensors"] == GRADIENTS
    assert 1 <= timeline["allreduces"] <= GRADIENTS
    assert timeline["tensors_fused"] == pytest.approx(GRADIENTS / timeline["allreduces"])
    assert timeline["cycles"] > 1


def test_time_is_within_the_step(found: dict[str, Any]) -> None:
    answer = found["ranks"][0]
    timeline, step_s = answer["timeline"], answer["step_s"]
    assert 0 < timeline["allreduce_s"] < step_s
    assert 0 < timeline["negotiation_s"] < step_s
    assert 0 < timeline["queue_s"] < step_s
    busy_s = [timeline[f"{name}_s"] or 0.0 for name in ("copy_in", "allreduce", "copy_out")]
    assert sum(busy_s) < step_s  # one after the other on a CPU
    summary = read_summary(found["file"], STEPS)
    assert summary.allreduce is not None
    assert summary.allreduce.names == (BACKENDS[found["backend"]],)
    # It leaves out the first step's forward; but the ranks of it do not begin at the same time.
    assert summary.span_s < 1.5 * step_s


def test_the_file_has_the_steps_between_start_and_stop_alone(found: dict[str, Any]) -> None:
    """What was there before the start is gone, and nothing is added after the stop."""
    answer = found["ranks"][0]
    assert answer["before"] == "left from before"
    assert answer["grew_bytes"] == 0
    assert answer["reduced_steps"] > 3 * STEPS  # of which only some are in the file
    events = json.loads(found["file"].read_text())  # whole: the array is closed
    assert [event["ph"] for event in events[:2]] == ["M", "M"]
    begun = [event for event in events if event.get("name") == BACKENDS[found["backend"]]]
    assert len(begun) == GRADIENTS * STEPS


def test_all_ranks_had_the_variable_and_stayed_alike(found: dict[str, Any]) -> None:
    assert [rank["variable"] for rank in found["ranks"]] == ["DYNAMIC", "DYNAMIC"]
    assert len({rank["checksum"] for rank in found["ranks"]}) == 1


def test_it_keeps_to_the_trace_format_that_perfetto_reads(found: dict[str, Any]) -> None:
    """Fields that the Trace Event Format asks for in events of these types."""
    wanted = {
        "M": {"name", "pid", "args"},
        "B": {"name", "ts", "pid"},
        "E": {"ts", "pid"},
        "X": {"name", "ts", "dur", "pid"},
        "i": {"name", "ts", "s"},
    }
    for event in json.loads(found["file"].read_text()):
        assert wanted[event["ph"]] <= set(event), event


def engine() -> Any:
    from harness.engines.horovod_torch import HorovodTorch

    return HorovodTorch.__new__(HorovodTorch)


def test_without_the_variable_it_cannot_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import horovod.torch as hvd

    def refused(path: str, mark_cycles: bool) -> None:
        raise ValueError("Set HOROVOD_TIMELINE=DYNAMIC to enable dynamic timeline usage.")

    monkeypatch.setattr(hvd, "start_timeline", refused)
    with pytest.raises(LaunchError, match="all ranks had HOROVOD_TIMELINE=DYNAMIC"):
        engine().start_timeline(tmp_path / "t.json")


def test_a_file_that_horovod_cannot_open_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Horovod itself says so in its log, and nothing more."""
    import horovod.torch as hvd

    monkeypatch.setattr(hvd, "start_timeline", lambda path, mark_cycles: None)
    with pytest.raises(LaunchError, match=r"could not open .*none/t\.json"):
        engine().start_timeline(tmp_path / "none" / "t.json")
