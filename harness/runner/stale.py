"""Done launches that were decided otherwise than the same sweep would decide them now.

A run id leaves out what the machine decides, so that a sweep goes on wherever it is started again.
A machine with other slots, another MPI or a GPU may decide otherwise, and what was measured there
is then no answer to what is asked here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.config.identity import point_id
from harness.errors import StoreError
from harness.record import RunRecord
from harness.runner.labels import launch_labels
from harness.spec import Resolved
from harness.store.reading import Decided
from harness.validate import Plan

#: What makes two measurements two, with the key of a sweep that pins it. Hosts and binding are
#: not here: a sweep goes on in another allocation, and binding follows from cores and ranks.
_PINNED_BY: Mapping[str, str | None] = {
    "launcher": "launcher",
    "backend": "backend",
    "controller": "horovod.controller",
    "placement": "placement",
    "device": None,
    "cores_per_rank": "cores_per_rank",
}


def stale_check(plan: Plan, folder: Path) -> Callable[[RunRecord | Decided], None]:
    """Return what raises StoreError for a record that ``plan`` would now measure otherwise."""
    names = launch_labels(plan.launches, plan.timelines)

    def check(record: RunRecord | Decided) -> None:
        key = point_id(record.config)
        planned = plan.resolved.get(key)
        if planned is None:
            return  # of another sweep in the same folder
        for field, stored, wanted in differences(record.resolved, planned):
            pinned_by = _PINNED_BY[field]
            cure = f", or name the value in the sweep ({pinned_by})" if pinned_by else ""
            raise StoreError(
                f"{names[key]} (run {record.run_id} in {folder}): it was measured with "
                f"{field} {stored}, and would now be with {wanted}; "
                f"use another --results{cure}"
            )

    return check


def differences(one: Resolved, other: Resolved) -> tuple[tuple[str, str, str], ...]:
    """Return what makes two decisions two measurements: field, the one's value, the other's."""
    pairs = ((field, getattr(one, field), getattr(other, field)) for field in _PINNED_BY)
    return tuple((field, _text(a), _text(b)) for field, a, b in pairs if a != b)


def _text(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value)
