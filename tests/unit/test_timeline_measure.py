"""A launch for the timeline: who starts and stops it when, and what becomes of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.engines.api import World
from harness.errors import LaunchError
from harness.measure import timeline
from harness.measure.blocks import SETTLE_STEPS
from harness.measure.timeline import RankTimeline, run_timeline, summarise
from tests.unit.fake_engine import FakeEngine, FakeStep
from tests.unit.timeline_file import TimelineFile, file_of

GOLDEN = Path(__file__).parent.parent / "golden" / "timeline"


class Engine(FakeEngine):
    def start_timeline(self, path: Path) -> None:
        self.calls.append(f"start {path}")

    def stop_timeline(self) -> None:
        self.calls.append("stop_timeline")


class Feed:
    shard: Any = None

    def next(self) -> Any:
        return (0,)


def calls_of(rank: int, steps: int) -> list[str]:
    step = FakeStep()
    world = World(rank=rank, size=2, local_rank=rank, local_size=2)
    run_timeline(step, Feed(), Engine(calls=step.calls), world, steps, Path("t.json"))
    return step.calls


def test_the_file_has_the_steps_and_no_others() -> None:
    """Rank 0 opens it when no rank is in a step, and closes it before any is in the next one."""
    settle, steps = ["run"] * SETTLE_STEPS, ["run"] * 4
    plain = [*settle, "synchronise", "barrier", *steps, "synchronise"]
    opened = ["barrier", "start t.json", "barrier"]
    closed = ["stop_timeline", "barrier"]
    written = [*settle, "synchronise", *opened, *steps, "synchronise", *closed]
    assert calls_of(0, 4) == [*plain, *plain, *written, *plain]


def test_other_ranks_do_the_same_without_a_file() -> None:
    own = [call for call in calls_of(0, 4) if "start" not in call and "stop" not in call]
    assert calls_of(1, 4) == own


def test_times_are_a_step_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step takes a second, and what surrounds the timed ones is not in it."""
    now = [0.0]

    def second() -> None:
        now[0] += 1.0 if now[0] >= 1e5 else 1e5  # the first step compiles, connects, allocates

    class Slow(Engine):
        def start_timeline(self, path: Path) -> None:
            now[0] += 100.0

        def stop_timeline(self) -> None:
            now[0] += 1000.0

    monkeypatch.setattr(timeline.time, "perf_counter", lambda: now[0])
    found = run_timeline(
        FakeStep(second), Feed(), Slow(), World(0, 2, 0, 2), steps=5, path=Path("t.json")
    )
    assert found == RankTimeline(plain_s=(1.0, 1.0), timeline_s=1.0)


def test_a_record_of_two_steps() -> None:
    """The unions of the golden file, whose numbers are worked out in test_timeline.py."""
    ranks = [RankTimeline((0.9, 1.0), 1.0), RankTimeline((1.0, 0.8), 1.1)]
    found, overhead, error = summarise(ranks, GOLDEN / "gloo.json", 2)
    assert found.model_dump() == {
        "steps": 2,
        "step_s": 1.1,
        "plain_step_s": 1.0,
        "negotiation_s": pytest.approx(69.5e-6),
        "queue_s": pytest.approx(44e-6),
        "copy_in_s": pytest.approx(17e-6),
        "allreduce_s": pytest.approx(127e-6),
        "copy_out_s": pytest.approx(12.5e-6),
        "cycles": 1.5,
        "tensors": 3,
        "allreduces": 1.5,
        "tensors_fused": 2,
        "file": "gloo.json",
    }
    # The longest rank's block each: 1.0 before and after, 1.1 while it was written.
    assert overhead == pytest.approx(0.1)
    assert error == pytest.approx(0.0)


def test_what_is_not_in_the_file_is_absent() -> None:
    file = TimelineFile()
    file.begin("NEGOTIATE_ALLREDUCE", 0, 1)
    file.end(10, 1)
    file.begin("ALLREDUCE", 20, 1)
    file.begin("MPI_ALLREDUCE", 30, 1)
    file.end(40, 1)
    file.end(50, 1)
    with file_of(file.text()) as path:
        found, _, _ = summarise([RankTimeline((1.0, 1.0), 1.0)], path, 1)
    assert (found.copy_in_s, found.copy_out_s, found.cycles) == (None, None, None)
    assert found.allreduce_s == pytest.approx(10e-6)


def test_a_file_that_is_not_whole_is_no_measurement() -> None:
    ranks = [RankTimeline((1.0, 1.0), 1.0)]
    open_array = (GOLDEN / "gloo.json").read_bytes().removesuffix(b"]")
    with file_of(open_array) as path, pytest.raises(LaunchError, match="cut off, though it was st"):
        summarise(ranks, path, 2)


def test_steps_that_were_lost_are_no_measurement() -> None:
    ranks = [RankTimeline((1.0, 1.0), 1.0)]
    path = GOLDEN / "gloo.json"
    with pytest.raises(LaunchError, match=r"reduced 2 times in 3 steps, and 0 more or less"):
        summarise(ranks, path, 3)
    text = path.read_text().replace('"ts": 440, "pid": 4', '"ts": 440, "pid": 5')
    wanted = "reduced 2 times in 2 steps, and 1 more or less"
    with file_of(text) as uneven, pytest.raises(LaunchError, match=wanted):
        summarise(ranks, uneven, 2)
