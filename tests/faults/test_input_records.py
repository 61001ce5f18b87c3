"""Records and timelines of any content: read, or refused in one line; and what is made of them."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import HarnessError
from harness.record import RunRecord
from harness.store import Store
from harness.store.reading import BrokenError, read_record
from tests import factories
from tests.faults import hostile_records as hostile
from tests.faults.bounded import Outcome, bounded, command
from tests.faults.hostile_commands import verified

WHOLE, FIRST = hostile.whole(), hostile.of_version_1()
PLACES = list(hostile.places(WHOLE))
DEEP = 100_000
FULL = bool(os.environ.get("HVDSCALE_FAULTS_FULL"))  # every type in every field, not four
TABLES_BYTES = 3 << 30  # pandas and matplotlib map much that they never touch


def test_the_checksums_of_these_tests_are_right(tmp_path: Path) -> None:
    for data in (WHOLE, FIRST):
        path = tmp_path / "r.json"
        path.write_bytes(hostile.sealed(data))
        assert read_record(path, data["run_id"]).window is not None


@pytest.mark.parametrize("data", [WHOLE, FIRST], ids=["this version", "version 1"])
def test_every_field_of_every_other_type(tmp_path: Path, data: dict[str, Any]) -> None:
    path, refused = tmp_path / "r.json", 0
    random.seed(1)
    for place in hostile.places(data):
        if place == ("sha256",):
            continue
        for value in hostile.ODD if FULL else random.sample(hostile.ODD, 4):
            path.write_bytes(hostile.sealed(hostile.put(data, place, value)))
            try:
                read_record(path, data["run_id"])
            except HarnessError as error:
                refused += 1
                assert "\n" not in str(error), (place, value)  # noqa: PT017
    assert refused > (1000 if FULL else 200)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.sampled_from(PLACES), _JSON), min_size=1, max_size=4), st.integers(-1, 7)
)
def test_several_fields_at_once(
    tmp_path: Path, changes: list[tuple[hostile.Path_, Any]], version: int
) -> None:
    data: Any = WHOLE | {"schema_version": version}
    for place, value in changes:
        try:
            data = hostile.put(data, place, value)
        except (KeyError, IndexError, TypeError):
            continue  # a change before this one took the place away
    path = tmp_path / "r.json"
    path.write_bytes(hostile.sealed(data))
    try:
        read_record(path, WHOLE["run_id"])
    except HarnessError as error:
        assert "\n" not in str(error)  # noqa: PT017


def _with(content: bytes) -> bytes:
    """Return a good record in whose provenance ``content`` stands, under the right checksum."""
    data = hostile.put(WHOLE, ("provenance",), {"facts": "HERE"}) | {"sha256": ""}
    text = json.dumps(data, indent=1).encode().replace(b'"HERE"', content)
    return text[: text.rindex(b'""')] + b'"%s"\n}' % hashlib.sha256(text).hexdigest().encode()


BOMBS = {
    "nothing": b"",
    "no JSON": b"\x80\x04K\x01.",  # a pickle
    "UTF-16": hostile.sealed(WHOLE).decode().encode("utf-16"),
    "a nul byte": hostile.sealed(WHOLE) + b"\0",
    "cut off": hostile.sealed(WHOLE)[:-200],
    "a list": b"[]",
    "deep": b"[" * DEEP + b"]" * DEEP,
    "deep inside": _with(b'{"a":' * DEEP + b"1" + b"}" * DEEP),
    "a million keys": _with(json.dumps({str(n): n for n in range(1_000_000)}).encode()),
    "a million digits": _with(b"9" * 1_000_000),
    "a large exponent": _with(b"1e999999999"),
    "not a number": _with(b"NaN"),
    "a wrong checksum": hostile.sealed(WHOLE).replace(b'"attempt": 1', b'"attempt": 2'),
    "duplicate keys": b'{"status": "ok", ' + hostile.sealed(WHOLE).lstrip()[1:],
}


#: Odd, and yet of the types that a record has: provenance is whatever a machine told.
TAKEN = ("a million keys", "a large exponent", "not a number")


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_taken_or_set_aside(tmp_path: Path, name: str) -> None:
    store = Store.open(tmp_path / "s", create=True)
    path = store.runs / f"{WHOLE['run_id']}.json"
    path.write_bytes(BOMBS[name])
    found = bounded(verified, (str(store.path),), memory_bytes=1 << 30)
    assert (found.code, found.fault) == (0 if name in TAKEN else 1, "")
    assert path.exists() is (name in TAKEN)
    if name not in TAKEN:
        assert re.search(rf"{path.name}: .*the point counts as missing", found.stdout)


class TestWhatIsNoFile:
    def test_a_pipe(self, tmp_path: Path) -> None:
        store = Store.open(tmp_path / "s", create=True)
        os.mkfifo(store.runs / f"{WHOLE['run_id']}.json")
        found = bounded(verified, (str(store.path),))
        assert (found.code, found.fault) == (1, "")
        assert "no regular file" in found.stdout

    def test_a_gigabyte_of_one_line(self, tmp_path: Path) -> None:
        store = Store.open(tmp_path / "s", create=True)
        with (store.runs / f"{WHOLE['run_id']}.json").open("wb") as file:
            file.truncate(1 << 30)
        found = bounded(verified, (str(store.path),), memory_bytes=256 << 20)
        assert (found.code, found.fault) == (1, "")
        assert "larger than 64 MiB" in found.stdout

    def test_raw_samples_that_are_a_pipe(self, tmp_path: Path) -> None:
        store = Store.open(tmp_path / "s", create=True)
        record = RunRecord.model_validate(WHOLE | {"steps_sha256": "0" * 64}).sealed()
        (store.runs / f"{record.run_id}.json").write_bytes(record.text())
        os.mkfifo(store.runs / f"{record.run_id}.{'0' * 12}.steps.parquet")
        found = bounded(verified, (str(store.path),))
        assert (found.code, found.fault) == (1, "")
        assert "raw steps are no regular file" in found.stdout

    @pytest.mark.parametrize("name", ["sweep.json", "points.json"])
    def test_files_beside_the_records(self, tmp_path: Path, name: str) -> None:
        folder = factories.write_results(tmp_path / "s", factories.records((1, 2), blocks=1))
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
        found = command("ls", str(folder))
        assert found.fault == ""
        assert found.is_refusal or found.code == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of good records among hundreds that only their checksum makes records."""
    made = tmp_path_factory.mktemp("hostile") / "s"
    assert hostile.write_folder(made, every=11) > 500
    return made


def test_a_table_is_made_of_what_is_sound(folder: Path) -> None:
    found = command(
        "collect", str(folder), "--base", "none@1", "--mixed", memory_bytes=TABLES_BYTES
    )
    assert (found.code, found.fault) == (0, "")
    import pyarrow.parquet as pq

    table = pq.read_table(folder / "table.parquet", columns=["status"])
    statuses = table["status"].to_pylist()
    assert statuses.count("unreadable") > 100
    assert statuses.count("ok") > 8


@pytest.mark.parametrize(
    "argv",
    [["ls"], ["status"], ["diagnose", "--base", "none@1", "--mixed"],
     ["predict", "--devices", "8", "--base", "none@1", "--mixed"],
     ["compare", "backend=mpi", "backend=gloo", "--mixed"]],
    ids=lambda argv: argv[0],
)  # fmt: skip
def test_no_command_breaks_over_them(folder: Path, argv: list[str]) -> None:
    name, *more = argv
    found: Outcome = command(name, str(folder), *more, memory_bytes=TABLES_BYTES)
    assert found.fault == ""
    assert found.is_refusal or found.code == 0, found.stderr[-500:]


EVENT = '{"ph": "B", "pid": 1, "ts": %s, "name": "NEGOTIATE_ALLREDUCE"}'
TIMELINES: dict[str, tuple[str, str]] = {
    "empty": ("", "is empty"),
    "deep": ("[" + '{"a":' * DEEP, "nested too deeply|longer than"),
    "lists": ("[" * DEEP, "is no JSON object"),
    "cut off in the middle": (f"[{EVENT % 1}, " + (EVENT % 2)[:40], "no all-reduce ends"),
    "out of order": (f"[{EVENT % 9}, {EVENT % 3}]", "before that of the event before it"),
    "not a number": (f"[{EVENT % 'NaN'}]", "has no time"),
    "infinity": (f"[{EVENT % 'Infinity'}]", "has no time"),
    "a large exponent": (f"[{EVENT % '1e999999999'}]", "has no time"),
    "a million digits": (f"[{EVENT % ('9' * 1_000_000)}]", "too long|longer than"),
    "a name of a megabyte": (f'[{{"name": "{"x" * (1 << 20)}"}}]', "longer than"),
    "a tensor of a large number": (
        '[{"ph": "B", "pid": 99999999999999999999, "ts": 1, "name": "NEGOTIATE_ALLREDUCE"}]',
        "number of a tensor",
    ),
    "nul bytes": ("\0" * 1000, "begins with"),
}


@pytest.mark.parametrize("name", TIMELINES)
def test_a_timeline_that_is_none(tmp_path: Path, name: str) -> None:
    content, words = TIMELINES[name]
    path = tmp_path / "timeline.json"
    path.write_text(content)
    found = command("timeline", str(path))
    assert found.fault == ""
    assert found.is_refusal, found.stderr[:300]
    assert re.search(words, found.stderr), found.stderr[:300]


def test_a_timeline_of_a_gigabyte_of_one_line(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    with path.open("wb") as file:
        file.write(b'[{"name": "')
        file.truncate(1 << 30)
    found = command("timeline", str(path), memory_bytes=128 << 20)
    assert found.is_refusal, (found.fault, found.stderr[:300])


def test_a_broken_record_is_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(hostile.sealed(hostile.put(FIRST, ("phases", "data_s"), "slow")))
    with pytest.raises(BrokenError, match=r"r\.json: no record of this schema: "):
        read_record(path, FIRST["run_id"])
