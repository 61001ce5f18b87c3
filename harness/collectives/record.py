"""What is kept of one ``hvdscale allreduce``: a JSON record, raw times in a Parquet beside it.

Times are in seconds, sizes in bytes. What was not measured is None or absent, never zero.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from harness.bounded import UnfitError, read_file
from harness.config.models import Frozen, HorovodTuning
from harness.errors import StoreError
from harness.record import BackendProof, digest
from harness.store.migrate import check_version

SCHEMA_VERSION = 3  # versions 1 and 2 lacked knobs of Horovod, which were at their defaults

#: Name of its file.
RECORD = "record.json"
#: Columns of the Parquet file: one row a library, collective, size, iteration and rank.
TIME_COLUMNS = ("library", "collective", "bytes", "iteration", "rank", "time_s")


class Row(Frozen):
    """One collective of one size by one library; an iteration lasts as long as its slowest rank."""

    library: str
    collective: str
    bytes: int  # moved, as collectives/definitions.py counts; 0 for a barrier
    iterations: int
    latency_p50_s: float
    latency_p99_s: float
    latency_min_s: float
    latency_max_s: float
    algbw_bytes_per_s: float | None  # bytes / p50; None for a barrier
    busbw_bytes_per_s: float | None


class LibraryFacts(Frozen):
    """One library as it ran here: what moved its bytes, and how that is known."""

    name: str
    proof: BackendProof
    versions: dict[str, str]


class Absent(Frozen):
    """A library that was left out, or a collective that a library does not have; and why."""

    library: str
    collective: str | None = None  # None: the library as a whole
    reason: str


class CollectivesRecord(Frozen):
    """One command: every library, collective and size of one launch."""

    schema_version: int = SCHEMA_VERSION
    kind: Literal["allreduce"] = "allreduce"
    run_id: str
    started_at: str  # ISO 8601, UTC
    ended_at: str
    argv: tuple[str, ...]
    launcher: str
    hosts: tuple[str, ...]
    placement: tuple[int, ...]  # ranks on each of ``hosts``
    world_size: int
    device: Literal["cpu", "cuda"]
    dtype: Literal["float32"] = "float32"
    cores_per_rank: int
    tuning: HorovodTuning | None  # of Horovod in this launch; None without it
    libraries: tuple[LibraryFacts, ...]
    absent: tuple[Absent, ...] = ()
    collectives: tuple[str, ...]  # asked for
    sizes: tuple[int, ...]  # asked for
    max_iterations: int
    rows: tuple[Row, ...]
    provenance: dict[str, Any] = Field(default_factory=dict)
    times_sha256: str = ""  # of the Parquet file
    sha256: str = ""  # of this record, with this field empty

    def sealed(self) -> CollectivesRecord:
        """Return the record with its own checksum filled in."""
        return self.model_copy(update={"sha256": digest(self.model_dump(mode="json"))})


def read_record(path: Path) -> CollectivesRecord:
    """Return the record in ``path``.

    Raises StoreError where it is broken or was changed, NewerSchemaError, which is one too, where
    a newer hvdscale wrote it.
    """
    data = _plain(path)
    try:
        # A newer schema may seal its records in another way, so its version is looked at first.
        check_version(data.get("schema_version"), str(path), newest=SCHEMA_VERSION)
    except ValueError as error:
        raise StoreError(f"{path}: {error}; measure again") from None
    if data.get("sha256") != digest(data):
        raise StoreError(f"{path}: changed since it was written (wrong checksum); measure again")
    data["schema_version"] = SCHEMA_VERSION
    try:
        return CollectivesRecord.model_validate_json(json.dumps(data))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise StoreError(f"{path}: {place}: {first['msg']}") from None


def _plain(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(read_file(path))
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from None
    except UnfitError as error:
        raise StoreError(f"{path}: {error}: not a record of hvdscale allreduce") from None
    except (ValueError, RecursionError):
        raise StoreError(f"{path}: no JSON; measure again") from None
    if not isinstance(data, dict) or data.get("kind") != "allreduce":
        raise StoreError(f"{path}: not a record of hvdscale allreduce")
    return data
