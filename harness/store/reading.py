"""Bytes to records and back, with every check a file of results must pass."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError as PydanticError
from pydantic_core import from_json, to_json

from harness.config.identity import point_id
from harness.config.models import RunConfig
from harness.errors import StoreError
from harness.record import SCHEMA_VERSION, RunRecord, is_whole
from harness.spec import Resolved
from harness.store.migrate import check_version, migrate


class BrokenError(StoreError):
    """A record that is cut off, altered, or no record at all."""


class MissingError(StoreError):
    """A record that is not there."""


def read_sealed(path: Path) -> dict[str, Any]:
    """Return the plain data of a record whose version and checksum fit; errors as ``read_record``.

    What has the right checksum is what ``RunRecord.sealed`` wrote.
    """
    try:
        text = path.read_bytes()
        data: Any = from_json(text)
    except FileNotFoundError:
        raise MissingError(f"{path}: there is no such record") from None
    except IsADirectoryError:
        raise BrokenError(f"{path}: a folder, no record") from None
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError):
        raise BrokenError(f"{path}: cut off, or no record at all") from None
    if not isinstance(data, dict):
        raise BrokenError(f"{path}: no record at all")
    try:
        # A newer schema may seal its records in another way, so its version is looked at first.
        check_version(data.get("schema_version"), str(path))
        fits = is_whole(text, data)
    except (ValueError, RecursionError) as error:
        raise BrokenError(f"{path}: no record of this schema: {error}") from None
    if not fits:
        raise BrokenError(f"{path}: altered since it was written (wrong checksum)")
    return data


def read_record(path: Path, run_id: str) -> RunRecord:
    """Read and check one file.

    The checksum is of what was written, so it is compared before any migration. Raises
    MissingError, BrokenError, or NewerSchemaError; StoreError where the disk or its rights refuse,
    which is no fault of the record.
    """
    data = read_sealed(path)
    try:
        record = RunRecord.model_validate(migrate(data, str(path)))
    except (PydanticError, ValueError, RecursionError) as error:
        raise BrokenError(f"{path}: no record of this schema: {_first_fault(error)}") from None
    if record.run_id != run_id:
        raise BrokenError(f"{path}: is the record of {record.run_id}, under a wrong name")
    return record


@dataclass(frozen=True)
class Decided:
    """Of a whole record what a sweep that goes on must know; a tenth of the time of all of it."""

    run_id: str
    point_id: str
    config: RunConfig
    resolved: Resolved
    steps_sha256: str | None
    series_sha256: str | None


def read_decided(path: Path, run_id: str) -> Decided:
    """Read and check one file as ``read_record`` does, without making all of it typed.

    What has the right checksum is what ``RunRecord.sealed`` wrote, and the launches of a point
    share the parts that are made typed. What does not fit goes the careful way.
    """
    data = read_sealed(path)
    if data.get("schema_version") == SCHEMA_VERSION and data.get("run_id") == run_id:
        try:
            config, key = _config(to_json(data["config"]))
            resolved = _resolved(to_json(data["resolved"]))
            return Decided(
                run_id, key, config, resolved, data["steps_sha256"], data["series_sha256"]
            )
        except (LookupError, ValueError):
            pass  # sealed and yet no record
    record = read_record(path, run_id)
    return Decided(
        run_id,
        point_id(record.config),
        record.config,
        record.resolved,
        record.steps_sha256,
        record.series_sha256,
    )


@lru_cache(maxsize=16384)
def _config(text: bytes) -> tuple[RunConfig, str]:
    config = RunConfig.model_validate_json(text)
    return config, point_id(config)


@lru_cache(maxsize=1024)
def _resolved(text: bytes) -> Resolved:
    return Resolved.model_validate_json(text)


def _first_fault(error: Exception) -> str:
    """Return the first fault with the field that it is in, for one line."""
    if not isinstance(error, PydanticError):
        return str(error).splitlines()[0]
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'record'}: {first['msg']}"
