"""Files that are large, cut off, of another program, or hostile."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.timeline import Summary, TimelineError, account, events, read_summary
from tests.unit.timeline_file import TimelineFile, file_of, summary_of

GOLDEN = Path(__file__).parent.parent / "golden" / "timeline"
WHOLE = (GOLDEN / "gloo.json").read_bytes()
#: The first all-reduces end here.
FIRST_END = WHOLE.index(b'"ts": 400') + len(b'"ts": 400, "pid": 2, "args": {"dtype": "float32"')


def refusal(content: str | bytes) -> str:
    """Return the one line that ``content`` is refused with, after the file's name."""
    with file_of(content) as path:
        with pytest.raises(TimelineError) as caught:
            read_summary(path)
        text = str(caught.value)
        assert text.startswith(f"{path}: ")
        assert "\n" not in text
        assert len(text) < 400
        return text.removeprefix(f"{path}: ")


def test_cut_off_anywhere_it_still_reads() -> None:
    counts = []
    for length in [*range(0, len(WHOLE) - 90, 7), *range(len(WHOLE) - 90, len(WHOLE))]:
        content = WHOLE[:length]
        if length < FIRST_END:
            assert refusal(content).startswith(("is empty", "no all-reduce ends", "a trace of"))
            continue
        if b'"ts": 400, "pid": 2, "args": {"dtype": "float32", "shape": "[2]"}}' not in content:
            continue
        found = summary_of(content)
        assert not found.complete
        counts.append((found.events, found.tensors * found.steps))
    assert counts == sorted(counts)
    assert counts[0][1] == 1
    assert counts[-1][1] == 6


CUT = """
    { {" {"a {"a" {"a": {"a":" {"a":"\\ {"a":"\\u {"a":"\\u00e {"a":t {"a":fals {"a":n {"a":N {"a":-
    {"a":-I {"a":1 {"a":1. {"a":1.5 {"a":1e {"a":1E+ {"a":1, {"a":[ {"a":[1 {"a":[1, {"a":{ {"a":{}
"""


@pytest.mark.parametrize(
    "rest", [*CUT.encode().split(), b'{"a": \n', '{"a": "\u00e4'.encode()[:-1]]
)
def test_every_place_in_an_event_is_a_place_to_be_cut_at(rest: bytes) -> None:
    found = summary_of(WHOLE.removesuffix(b"]") + b"," + rest)
    assert (found.complete, found.tensors) == (False, 3)


def test_an_array_that_is_left_open_after_a_comma() -> None:
    """As Horovod did before 0.20."""
    found = summary_of(WHOLE.removesuffix(b"]") + b",\n")
    assert not found.complete
    assert found.tensors == 3


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 64, 4096])
def test_what_is_read_at_once_changes_nothing(
    chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = summary_of(WHOLE)
    monkeypatch.setattr(events, "_CHUNK_BYTES", chunk_bytes)
    assert summary_of(WHOLE) == wanted
    assert summary_of(WHOLE.replace(b",\n", b" ,\t\r\n  ")) == wanted


def long_file(path: Path, steps: int) -> int:
    """Write ``steps`` steps of four tensors into one line; return its bytes."""
    file = TimelineFile()
    file.begin("NEGOTIATE_ALLREDUCE", 10, 1, 2, 3, 4)
    file.end(20, 1, 2, 3, 4)
    file.begin("ALLREDUCE", 30, 1, 2, 3, 4)
    file.begin("GLOO_ALLREDUCE", 40, 1, 2, 3, 4)
    file.end(50, 1, 2, 3, 4)
    file.end(60, 1, 2, 3, 4)
    *_, of_step = file.text().removesuffix("]").split("}},\n")  # after what names the tensors
    parts = of_step.split('"ts": ')
    with path.open("w") as out:
        out.write("[")
        for step in range(steps):
            out.write("," * bool(step) + f'"ts": {step + 1}'.join(parts))
    return path.stat().st_size


def test_memory_is_bounded(tmp_path: Path) -> None:
    """A line of more than 3.5 MB in less than 2 MB."""
    path = tmp_path / "long.json"
    size_bytes = long_file(path, 4000)
    assert size_bytes > 3_500_000
    tracemalloc.start()
    try:
        found = read_summary(path)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.steps == 4000
    assert peak_bytes < 2_000_000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        (" \n\t ", "is empty"),
        ("[", "a trace of another program: none of its 0 events"),
        ("[]", "a trace of another program: none of its 0 events"),
        ('{"traceEvents": []}', "begins with '{'"),
        ("\x00" * 100, r"begins with '\x00'"),
        (b"\x1f\x8b\x08\x00", r"begins with '\x1f'"),
        ("[1, 2]", "event 1 is no JSON object"),
        ('["a"]', "event 1 is no JSON object"),
        ("[{}, nonsense]", "event 2 is no JSON object"),
        ("[{},,{}]", "event 2 is no JSON object"),
        ("[{} {}]", "event 1 '{' follows where a comma should"),
        ('[{"ph": "B" "name": 1}, {}]', "event 1 is no JSON (Expecting ',' delimiter)"),
        # Horovod does not escape names.
        ('[{"name": "a"b"}]', "event 1 is no JSON (Expecting ',' delimiter)"),
        ('[{"name": "a\\q"}]', "event 1 is no JSON (Invalid"),
        ('[{"ts": 1.x', "event 1 is no JSON"),
        ('[{"ts": trx', "event 1 is no JSON"),
        ('[{"name": "a\x00b"}]', "event 1 is no JSON (Invalid control character at)"),
        ("[{}]]", "has more after the end"),
        ("[{}]\x00", "has more after the end"),
        ('[{"a": ' + "9" * 5000 + "}]", "event 1 has a number that is too long"),
        ('[{"a": ' + "[" * 60_000 + "1", "event 1 is nested too deeply"),
        ("[" * 500_000, "event 1 is no JSON object"),
        ('[{"a": "' + "x" * 500_000 + '"}]', "event 1 is longer than 65536 characters"),
        ('[{"a": "' + "x" * 100_000 + '"},{}]', "event 1 is longer than 65536 characters"),
        ('[{},{},{"a": "' + "x" * 500_000, "event 3 is longer than 65536 characters"),
    ],
)
def test_what_is_no_array_of_events_is_refused(content: str | bytes, message: str) -> None:
    assert message in refusal(content)


@pytest.mark.parametrize("chunk_bytes", [1000, 1 << 18])
def test_characters_are_not_parsed_again_and_again(
    chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the last comma that looks like one between events is inside of one."""
    nested = '{"args": {"a": {}, "b": "' + "x" * 150 + '"}, "c": 1}'
    content = "[" + "{}," * 1000 + ",".join([nested] * 2000) + "]"
    taken: list[int] = []
    loads = json.loads

    def counting(text: str) -> Any:
        taken.append(len(text))
        return loads(text)

    monkeypatch.setattr(events, "_CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(json, "loads", counting)
    with file_of(content) as path:
        assert sum(1 for _ in events.Events(path)) == 3000
    assert sum(taken) < 1.1 * len(content)


def test_many_events_at_a_time_again_after_one_that_was_hard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    easy = '{"ph": "M", "name": "process_sort_index", "pid": 0},' * 20_000
    hard = '{"args": {"a": {}, "b": "' + "x" * 65_000 + '"}},'
    alone: list[int] = []
    parse = events._parse

    def counting(text: str, at: int) -> Any:
        alone.append(at)
        return parse(text, at)

    monkeypatch.setattr(events, "_parse", counting)
    with file_of(f"[{hard}{easy}{hard}{easy}]") as path:
        assert sum(1 for _ in events.Events(path)) == 40_002
    assert len(alone) < 10_000


def test_a_malformed_event_is_not_taken_for_the_end() -> None:
    """Whatever comes after it, and however much."""
    broken = WHOLE.replace(b'"ts": 1100, ', b'"ts": 1100 ', 1)
    number = json.loads(WHOLE).index(
        {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 1100, "pid": 2}
    )
    assert refusal(broken).startswith(f"event {number + 1} is no JSON")


def event(**changes: Any) -> str:
    """Return a timeline that has one event more, of tensor 2, after its last."""
    made = {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 2000, "pid": 2} | changes
    kept = {key: value for key, value in made.items() if value is not ...}
    return WHOLE.decode().removesuffix("]") + "," + json.dumps(kept) + "]"


NO_TIME = "has no time (ts) that is a number of microseconds"
NO_PID = "has no number of a tensor (pid) from 0 to 4194303"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ts": ...}, NO_TIME),
        ({"ts": "2000"}, NO_TIME),
        ({"ts": True}, NO_TIME),
        ({"ts": -1}, NO_TIME),
        ({"ts": 10**30}, NO_TIME),
        ({"ts": float("nan")}, NO_TIME),
        ({"ts": float("inf")}, NO_TIME),
        ({"ts": None, "ph": "E"}, NO_TIME),
        ({"ts": None, "ph": "i", "name": "CYCLE_START"}, NO_TIME),
        ({"ts": 1289}, "has a time (ts) before that of the event before it"),
        ({"pid": ...}, NO_PID),
        ({"pid": "2"}, NO_PID),
        ({"pid": True}, NO_PID),
        ({"pid": -1}, NO_PID),
        ({"pid": 2**22}, NO_PID),
        ({"pid": [], "ph": "E"}, NO_PID),
        ({"name": ...}, "begins something without a name"),
        ({"name": 5}, "begins something without a name"),
    ],
)
def test_an_event_that_horovod_does_not_write_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    number = len(json.loads(WHOLE)) + 1
    assert refusal(event(**changes)) == f"event {number} {message}"


def test_what_nobody_needs_is_not_looked_at() -> None:
    assert summary_of(event(ph="X", ts="never", pid=None)).tensors == 3
    assert summary_of(event(ph=["B"])).tensors == 3
    assert summary_of(event(ph="M", args=[])).tensors == 3
    assert summary_of(event(ph="i", name="another mark", ts=None)).tensors == 3
    assert summary_of(event(ts=2000.5)).tensors == 3


def test_what_never_ends_is_refused_before_it_fills_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = TimelineFile()
    for n in range(9):
        file.begin("NEGOTIATE_ALLREDUCE", n, 1)
    assert "is the 9th that one tensor has open at once" in refusal(file.text())
    monkeypatch.setattr(account, "_MAX_OPEN", 3)
    file = TimelineFile()
    file.begin("NEGOTIATE_ALLREDUCE", 0, 1, 2, 3, 4)
    assert "leaves more than 3 tensors open at once" in refusal(file.text())


def test_a_trace_of_another_program_is_refused_in_one_line() -> None:
    """Whatever it has for a process and a time: it is not Horovod's to be checked."""
    other = [
        {"ph": "B", "name": "step", "ts": 500, "pid": "python", "tid": 1},
        {"ph": "E", "ts": 400, "pid": "python", "tid": 1},
        {"ph": "X", "name": "aten::conv1d", "ts": 3.5, "dur": 7, "pid": 12, "tid": "x"},
        {"ph": "B", "ts": None},
    ]
    found = refusal(json.dumps(other))
    assert found.startswith("a trace of another program: none of its 4 events is a NEGOTIATE_")
    assert found.endswith("a timeline of Horovod is wanted")


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(TimelineError, match="cannot be read: No such file"):
        read_summary(tmp_path / "none.json")
    with pytest.raises(TimelineError, match="is no regular file"):
        read_summary(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TimelineError, match="is no regular file"):  # and nobody waits for a writer
        read_summary(tmp_path / "pipe")


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_in_one_line(content: bytes) -> None:
    assert refusal(content)


def outcome(content: str | bytes) -> Summary | str:
    """Return the summary, or the line that ``content`` is refused with."""
    with file_of(content) as path:
        try:
            return read_summary(path)
        except TimelineError as error:
            return str(error).removeprefix(f"{path}: ")


@settings(max_examples=300)
@given(st.integers(0, len(WHOLE)), st.integers(0, 60), st.binary(max_size=60))
def test_damage_anywhere_is_read_or_refused(at: int, removed: int, added: bytes) -> None:
    found = outcome(WHOLE[:at] + added + WHOLE[at + removed :])
    if isinstance(found, str):
        assert found
        assert "\n" not in found
    else:
        assert found.complete or at + removed >= len(WHOLE) - 1  # nothing is skipped in silence


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
fields = st.fixed_dictionaries(
    {},
    optional={
        "ph": st.sampled_from(["B", "E", "i", "X", "M"]) | scalars,
        "name": st.sampled_from(
            ["NEGOTIATE_ALLREDUCE", "ALLREDUCE", "QUEUE", "GLOO_ALLREDUCE", "CYCLE_START"]
        )
        | scalars,
        "ts": st.integers(0, 50) | scalars,
        "pid": st.integers(0, 3) | scalars,
        "args": scalars | st.lists(scalars, max_size=2),
    },
)


@given(st.lists(fields | scalars, max_size=12))
def test_any_events_are_read_or_refused(made: list[Any]) -> None:
    found = outcome(json.dumps(made))
    if isinstance(found, Summary):
        assert found.complete
        assert found.events == len(made)
        assert found.tensors > 0
    else:
        assert found
