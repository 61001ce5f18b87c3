"""Records whose checksum is right and whose content is not."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.record import RunRecord, digest
from harness.store import Store
from tests import factories

#: What may stand where something else should.
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 10**30, 1.5, 1e308, float("nan"), float("inf"), "", "x" * 300, "\ud800",
    "$(touch PWNED)", "\x1b[31m", [], {}, [[]], {"a": {"b": [1]}}, [1, "2", None],
)  # fmt: skip
Path_ = tuple[str | int, ...]


def whole() -> dict[str, Any]:
    """Return the plain data of a good record of two ranks."""
    made = factories.config("horovod", 2, 75, backend="mpi")
    data: dict[str, Any] = json.loads(factories.with_steadiness(factories.record(made)).text())
    return data


def of_version_1() -> dict[str, Any]:
    """Return the same as the first version wrote it."""
    data = whole() | {"schema_version": 1}
    return data | {"phases": data["phases"] | {"overhead": 0.01}}


def places(data: Any, at: Path_ = ()) -> Iterator[Path_]:
    """Yield where something of ``data`` stands; of a list's places the first two."""
    yield at
    keys: Any = (
        data
        if isinstance(data, dict)
        else range(min(2, len(data) if isinstance(data, list) else 0))
    )
    for key in keys:
        yield from places(data[key], (*at, key))


def put(data: Any, place: Path_, value: Any) -> Any:
    """Return ``data`` with ``value`` in a place; ``data`` is as it was."""
    if not place:
        return value
    changed = copy.copy(data)
    changed[place[0]] = put(data[place[0]], place[1:], value)
    return changed


def sealed(data: Any) -> bytes:
    """Return a record's text with the checksum that this content has, whatever it is."""
    if not isinstance(data, dict):
        return json.dumps(data).encode()
    if data.get("schema_version") == 1:
        return json.dumps({**data, "sha256": digest(data)}).encode()
    rest = {key: value for key, value in data.items() if key != "sha256"}
    text = json.dumps({**rest, "sha256": ""}, indent=1).encode()
    head, key, tail = text.rpartition(b'"sha256": "')
    return head + key + hashlib.sha256(text).hexdigest().encode() + tail


def write_folder(folder: Path, every: int = 1) -> int:
    """Write a sweep of good records and, of all that are hostile, every n-th; return how many."""
    good = factories.records((1, 2, 4), ("mpi",), (75,), blocks=2)
    store = Store.open(factories.write_results(folder, good))
    count = 0
    for number, one in enumerate(_hostile()):
        if number % every:
            continue
        count += 1
        one["run_id"] = f"{count:016x}"
        (store.runs / f"{count:016x}.json").write_bytes(sealed(one))
    return count


def _hostile() -> Iterator[dict[str, Any]]:
    for data in (whole(), of_version_1()):
        for place in places(data):
            if place and place[0] not in ("sha256", "run_id", "schema_version"):
                for value in ODD:
                    yield put(data, place, value)


def is_sealed(text: bytes) -> bool:
    """Say whether the checksum is right, so that a test of content is one of content."""
    return RunRecord.model_validate_json(text).sealed().text() == text
