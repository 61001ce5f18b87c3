"""The files of ``hvdscale allreduce``: written, read back, and refused."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from harness.analysis.collectives import fit_ring
from harness.collectives import writing
from harness.collectives.record import (
    SCHEMA_VERSION,
    TIME_COLUMNS,
    CollectivesRecord,
    read_record,
)
from harness.errors import StoreError
from harness.record import digest
from harness.store.migrate import NewerSchemaError
from tests.pinning import GOLDEN, assert_pinned, assert_within
from tests.unit.test_collectives_output import RANKS, fields, made_times
from tests.unit.test_record_schema import bare


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    times = made_times()
    first, second = (writing.write(tmp_path, times, fields(times)) for _ in range(2))
    assert first.folder != second.folder
    assert first.folder.parent == tmp_path / "allreduce"
    assert read_record(first.folder / "record.json") == first.record
    table = pq.read_table(first.folder / "times.parquet").to_pydict()
    assert tuple(table) == TIME_COLUMNS
    assert len(table["time_s"]) == len(times) * RANKS * 5
    mine = [
        time_s
        for library, what, size, iteration, rank, time_s in zip(*table.values(), strict=True)
        if (library, what, size, iteration, rank) == ("torch", "all_reduce", 65536, 2, 3)
    ]
    assert mine == [
        next(t for t in times if t.library == "torch" and t.bytes == 65536).rank_s[3, 2]
    ]


def test_a_record_that_was_changed_is_newer_or_foreign_is_refused(tmp_path: Path) -> None:
    times = made_times()
    path = writing.write(tmp_path, times, fields(times)).folder / "record.json"
    data = json.loads(path.read_text())
    for changes, said in (
        ({"world_size": 5}, "wrong checksum"),
        ({"schema_version": 4}, "schema version 4, but this hvdscale reads up to 3; update"),
        ({"schema_version": 0}, "schema_version 0 is not a version; measure again"),
        ({"schema_version": True}, "schema_version True is not a version"),
        ({"schema_version": "1"}, "schema_version '1' is not a version"),
        ({"kind": "bench"}, "not a record of hvdscale allreduce"),
    ):
        path.write_text(json.dumps({**data, **changes}))
        with pytest.raises(StoreError, match=said):
            read_record(path)
    unversioned = {key: value for key, value in data.items() if key != "schema_version"}
    path.write_text(json.dumps(unversioned))
    with pytest.raises(StoreError, match="schema_version None is not a version"):
        read_record(path)
    path.write_text(json.dumps(data | {"schema_version": 4}))
    with pytest.raises(NewerSchemaError):
        read_record(path)
    path.write_text("{")
    with pytest.raises(StoreError, match="no JSON"):
        read_record(path)
    lacking = {key: value for key, value in data.items() if key != "hosts"}
    path.write_text(json.dumps({**lacking, "sha256": digest(lacking)}))
    with pytest.raises(StoreError, match="hosts: Field required"):
        read_record(path)
    with pytest.raises(StoreError, match="cannot be read"):
        read_record(tmp_path / "none.json")


@pytest.mark.parametrize("version", [1, 2])
def test_the_golden_record_of_an_earlier_version_is_read(version: int) -> None:
    path = GOLDEN / "records" / f"collectives-v{version}.json"
    golden = json.loads(path.read_text())
    assert golden.pop("schema_version") == version
    read = read_record(path)
    assert_within(golden, json.loads(read.model_dump_json()))
    assert read.tuning is not None
    assert {one.name for one in read.libraries} == {"horovod", "torch", "mpi4py"}
    assert fit_ring(read) is not None


SCHEMA_RULE = (
    f"Records of hvdscale allreduce of version {SCHEMA_VERSION} are not what was pinned. Any new, "
    "changed or dropped field raises SCHEMA_VERSION in harness/collectives/record.py, with a step "
    "that reads the version before and a golden record; then write the new version's file with "
    "REGENERATE_GOLDEN=1. Files of older versions stay as they are."
)


def test_the_schema_of_this_version_is_what_was_pinned() -> None:
    schema = CollectivesRecord.model_json_schema(mode="serialization")
    data = {"record": bare(schema), "time_columns": TIME_COLUMNS}
    assert_pinned(f"records/collectives-schema-v{SCHEMA_VERSION}.json", data, SCHEMA_RULE)


def test_a_folder_that_cannot_be_made_is_known_before_time_is_spent(tmp_path: Path) -> None:
    (tmp_path / "allreduce").write_text("a file")
    with pytest.raises(StoreError, match="allreduce: cannot be made"):
        writing.prepare(tmp_path)
