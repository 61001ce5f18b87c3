"""Bytes to records and back, with every check a file of results must pass."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError as PydanticError
from pydantic_core import from_json, to_json

from harness.bounded import UnfitError, read_file
from harness.config.models import RunConfig
from harness.errors import StoreError
from harness.record import SCHEMA_VERSION, RunRecord, is_whole
from harness.spec import Resolved
from harness.store.migrate import NewerSchemaError, check_version, migrate

#: What a migration, a model or a reader raises over data that only its checksum makes a record.
NO_RECORD = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)

_MEMO = 16384  # parts at a time, of some kilobytes each


class BrokenError(StoreError):
    """A record that is cut off, altered, or no record at all."""


class MissingError(StoreError):
    """A record that is not there."""


def read_sealed(path: Path) -> dict[str, Any]:
    """Return the plain data of a record whose version and checksum fit; errors as ``read_record``.

    What has the right checksum is what ``RunRecord.sealed`` wrote.
    """
    try:
        text = read_file(path)
        data: Any = from_json(text)
    except FileNotFoundError:
        if path.is_symlink():
            raise BrokenError(f"{path}: a link to nothing") from None
        raise MissingError(f"{path}: there is no such record") from None
    except IsADirectoryError:
        raise BrokenError(f"{path}: a folder, no record") from None
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise BrokenError(f"{path}: a link to itself") from None
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
    except UnfitError as error:
        raise BrokenError(f"{path}: {error}, no record") from None
    except (ValueError, RecursionError):
        raise BrokenError(f"{path}: cut off, or no record at all") from None
    if not isinstance(data, dict):
        raise BrokenError(f"{path}: no record at all")
    try:
        # A newer schema may seal its records in another way, so its version is looked at first.
        fits = _is_of_this_schema(text, data, str(path)) and is_whole(text, data)
    except (ValueError, RecursionError) as error:
        raise BrokenError(f"{path}: no record of this schema: {error}") from None
    if not fits:
        raise BrokenError(f"{path}: altered since it was written (wrong checksum)")
    return data


def _is_of_this_schema(text: bytes, data: dict[str, Any], where: str) -> bool:
    """Say whether a record's version is one that it was sealed with, as far as that can be known.

    Raises NewerSchemaError for a newer one; but what was sealed with an earlier one is no newer
    record: a bit of its version was flipped.
    """
    try:
        check_version(data.get("schema_version"), where)
    except NewerSchemaError:
        if any(map(is_whole, *_earlier(text, data))):
            return False
        raise
    return True


def _earlier(text: bytes, data: dict[str, Any]) -> tuple[list[bytes], list[dict[str, Any]]]:
    """Return texts and plain data as they would be with each version that is known here."""
    versions = range(1, SCHEMA_VERSION + 1)
    field = b'"schema_version": %d'
    found = field % data["schema_version"]
    return (
        [text.replace(found, field % version, 1) for version in versions],
        [data | {"schema_version": version} for version in versions],
    )


def read_record(path: Path, run_id: str) -> RunRecord:
    """Read and check one file.

    The checksum is of what was written, so it is compared before any migration. Raises
    MissingError, BrokenError, or NewerSchemaError; StoreError where the disk or its rights refuse,
    which is no fault of the record.
    """
    data = read_sealed(path)
    try:
        record = RunRecord.model_validate(migrate(data, str(path)))
    except NO_RECORD as error:
        raise BrokenError(f"{path}: no record of this schema: {_first_fault(error)}") from None
    if record.run_id != run_id:
        raise BrokenError(f"{path}: is the record of {record.run_id}, under a wrong name")
    return record


@dataclass(frozen=True)
class Decided:
    """Of a whole record what a sweep that goes on must know; a tenth of the time of all of it."""

    run_id: str
    config: RunConfig
    resolved: Resolved
    steps_sha256: str | None
    series_sha256: str | None


class Memo:
    """Typed parts that records share, for as long as many are read one after the other."""

    def __init__(self) -> None:
        self._configs: dict[bytes, RunConfig] = {}
        self._resolved: dict[bytes, Resolved] = {}

    def config(self, data: Any) -> RunConfig:
        """Return a config from plain data."""
        text = to_json(data)
        if text not in self._configs:
            _make_room(self._configs)
            self._configs[text] = RunConfig.model_validate_json(text)
        return self._configs[text]

    def resolved(self, data: Any) -> Resolved:
        """Return what was decided from plain data."""
        text = to_json(data)
        if text not in self._resolved:
            _make_room(self._resolved)
            self._resolved[text] = Resolved.model_validate_json(text)
        return self._resolved[text]


def read_decided(path: Path, run_id: str, memo: Memo | None = None) -> Decided:
    """Read and check one file as ``read_record`` does, without making all of it typed.

    What has the right checksum is what ``RunRecord.sealed`` wrote, and the launches of a point
    share the parts that are made typed. What does not fit goes the careful way.
    """
    data = read_sealed(path)
    if data.get("schema_version") == SCHEMA_VERSION and data.get("run_id") == run_id:
        known = memo or Memo()
        try:
            config = known.config(data["config"])
            resolved = known.resolved(data["resolved"])
            sums = data["steps_sha256"], data["series_sha256"]
            if all(one is None or isinstance(one, str) for one in sums):
                return Decided(run_id, config, resolved, *sums)
        except NO_RECORD:
            pass  # sealed and yet no record
    record = read_record(path, run_id)
    return Decided(
        run_id, record.config, record.resolved, record.steps_sha256, record.series_sha256
    )


def _make_room(parts: dict[bytes, Any]) -> None:
    if len(parts) >= _MEMO:
        parts.clear()


def _first_fault(error: Exception) -> str:
    """Return the first fault with the field that it is in, for one line."""
    if not isinstance(error, PydanticError):
        return (str(error).splitlines() or [type(error).__name__])[0]
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'record'}: {first['msg']}"
