"""``hvdscale timeline FILE``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.cli.timeline import _time, command_timeline
from harness.errors import ConfigError
from harness.timeline import TimelineError
from tests.unit.timeline_file import TimelineFile, file_of

GOLDEN = Path(__file__).parent.parent / "golden" / "timeline"


def printed(capsys: pytest.CaptureFixture[str], path: Path, steps: int | None = None) -> list[str]:
    assert command_timeline(path, False, steps) == 0
    return capsys.readouterr().out.splitlines()


def test_what_a_person_reads(capsys: pytest.CaptureFixture[str]) -> None:
    path = GOLDEN / "gloo.json"
    assert printed(capsys, path) == [
        f"{path}: Horovod's timeline of 75 events",
        "  steps: 2 (most tensors are reduced 2 times)",
        "  a step: 3 tensors reduced, in 1.5 all-reduces of 2 tensors (means)",
        "  span: 591.0 µs a step, from the first request to the last all-reduce",
        "  cycles: 1.5 a step, one every 394.0 µs",
        "",
        "                 a step  of the span  sum over tensors",
        "  negotiation   69.5 µs        11.8%          104.0 µs",
        "  queue         44.0 µs         7.4%           71.5 µs",
        "  copy in       17.0 µs         2.9%           35.5 µs",
        "  all-reduce   127.0 µs        21.5%          275.5 µs",
        "  copy out      12.5 µs         2.1%           26.0 µs",
        "",
        "  a step: time in which at least one tensor was in that state; states overlap.",
    ]


def test_a_file_that_is_cut_off_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    path = GOLDEN / "nccl_cut_off.json"
    lines = printed(capsys, path)
    assert lines[0].endswith("of 48 events, which is cut off")
    assert [line[:14] for line in lines if line.endswith(" µs")] == [
        "  negotiation ",
        "  queue       ",
        "    its data  ",
        "    GPU stream",
        "    set-up    ",
        "  copy in     ",
        "  all-reduce  ",
        "  copy out    ",
    ]
    assert not any("cycles" in line for line in lines)  # one was marked, but not in the span


def test_steps_that_are_given(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, GOLDEN / "gloo.json", steps=4)
    assert lines[1] == "  steps: 4 (as given; most tensors are reduced 2 times)"
    assert lines[2].startswith("  a step: 1.5 tensors reduced, in 0.75 all-reduces of 2 tensors")


def test_tensors_that_are_no_gradients_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    text = (GOLDEN / "gloo.json").read_text().replace('"ts": 440, "pid": 4', '"ts": 440, "pid": 5')
    with file_of(text) as path:
        assert printed(capsys, path)[1].endswith("reduced 2 times, 1 more or less often)")


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_timeline(GOLDEN / "gloo.json", True, None) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["steps"], found["complete"], found["tensors"]) == (2, True, 3)
    assert found["allreduce"]["union_s"] == pytest.approx(127e-6)
    assert found["stream"] is None


def test_an_empty_span_has_no_shares(capsys: pytest.CaptureFixture[str]) -> None:
    """Everything in the same microsecond."""
    file = TimelineFile()
    file.begin("NEGOTIATE_ALLREDUCE", 0, 1)
    file.end(0, 1)
    file.begin("ALLREDUCE", 0, 1)
    file.begin("MPI_ALLREDUCE", 0, 1)
    file.end(0, 1)
    file.end(0, 1)
    with file_of(file.text()) as path:
        assert any(
            line.endswith("0.0 µs            –            0.0 µs") for line in printed(capsys, path)
        )


@pytest.mark.parametrize("steps", [0, -1])
def test_no_steps_at_all_are_refused(steps: int) -> None:
    with pytest.raises(ConfigError, match=f"--steps {steps}: a file has at least one step"):
        command_timeline(GOLDEN / "gloo.json", False, steps)


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    with pytest.raises(TimelineError, match=r"notes\.txt: begins with 'h', where Horovod has"):
        command_timeline(path, False, None)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.0 µs"),
        (9.9994e-4, "999.9 µs"),
        (9.9996e-4, "1.000 ms"),
        (0.015571, "15.571 ms"),
        (12.5, "12,500.000 ms"),
    ],
)
def test_times_have_the_unit_that_fits(seconds: float, text: str) -> None:
    assert _time(seconds) == text
