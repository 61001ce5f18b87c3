"""What a record of this version is, down to every field: a version has a meaning only so."""

from __future__ import annotations

from typing import Any

from harness.record import SCHEMA_VERSION, STEP_COLUMNS, RunRecord
from tests.pinning import assert_pinned

RULE = (
    f"Records of version {SCHEMA_VERSION} are not what was pinned. Any new, changed or dropped "
    "field (of the config, too) raises SCHEMA_VERSION in harness/record.py, with a step in "
    "harness/store/migrate.py and a golden record; then write the new version's file with "
    "REGENERATE_GOLDEN=1. Files of older versions stay as they are."
)


def test_the_schema_of_this_version_is_what_was_pinned() -> None:
    schema = RunRecord.model_json_schema(mode="serialization")
    data = {"record": bare(schema), "step_columns": STEP_COLUMNS}
    assert_pinned(f"records/schema-v{SCHEMA_VERSION}.json", data, RULE)


def bare(schema: Any, names: bool = False) -> Any:
    """Return a JSON schema without titles and docstrings; below ``properties`` are field names."""
    if isinstance(schema, list):
        return [bare(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: bare(value, key in ("properties", "$defs") and not names)
        for key, value in schema.items()
        if names or key not in ("title", "description")
    }
