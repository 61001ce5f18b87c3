"""Records of earlier versions, brought up to date step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from harness.errors import StoreError
from harness.record import SCHEMA_VERSION

Migration = Callable[[dict[str, Any]], dict[str, Any]]


def _to_2(data: dict[str, Any]) -> dict[str, Any]:
    """Overheads of all instruments in one place; the phases' sum beside them."""
    phases = data.get("phases")
    if not isinstance(phases, Mapping):
        return data
    kept = {name: value for name, value in phases.items() if name != "overhead"}
    parts = [phases.get(name) for name in ("data_s", "forward_s", "backward_s", "update_s")]
    known = [part for part in parts if part is not None]
    sync_s = phases.get("exposed_sync_s") or 0.0  # absent where nothing was synchronised
    kept["sum_s"] = sum(known) + sync_s if len(known) == len(parts) else None
    overheads = {"phases": phases["overhead"]} if "overhead" in phases else {}
    return {**data, "phases": kept, "overheads": overheads}


def _to_3(data: dict[str, Any]) -> dict[str, Any]:
    """Training has a place of its own; the field before it was never filled."""
    return {name: value for name, value in data.items() if name != "evaluations"}


def _to_4(data: dict[str, Any]) -> dict[str, Any]:
    """The placement that was got and where data was read are new, and were not known before."""
    return data


def _to_5(data: dict[str, Any]) -> dict[str, Any]:
    """Knobs of DDP, of cuDNN and of Horovod's autotuner are new, and were at their defaults."""
    return data


#: From version → what makes a record of it one of the next version.
MIGRATIONS: Mapping[int, Migration] = {1: _to_2, 2: _to_3, 3: _to_4, 4: _to_5}


class NewerSchemaError(StoreError):
    """Something was written by a newer version than this one."""


def check_version(version: object, where: str, newest: int = SCHEMA_VERSION) -> int:
    """Return a schema version that this version can read.

    Raises NewerSchemaError by name for a newer one, ValueError for what is no version at all.
    """
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ValueError(f"schema_version {version!r} is not a version")
    if version > newest:
        raise NewerSchemaError(
            f"{where}: schema version {version}, but this hvdscale reads up to {newest}; "
            "update hvdscale, or choose another --results"
        )
    return version


def migrate(
    data: dict[str, Any],
    where: str,
    steps: Mapping[int, Migration] = MIGRATIONS,
    newest: int = SCHEMA_VERSION,
) -> dict[str, Any]:
    """Return a record's plain data in the newest schema.

    Raises NewerSchemaError for a newer record, ValueError for one without a version.
    """
    version = check_version(data.get("schema_version"), where, newest)
    while version < newest:
        data = steps[version](data) | {"schema_version": version + 1}
        version += 1
    return data
