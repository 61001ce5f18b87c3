"""The state of sweeps: what was asked for, what is done, what failed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.config import RunConfig, run_id
from harness.config.identity import point_id
from harness.errors import StoreError
from harness.record import SCHEMA_VERSION
from harness.runner.labels import labels
from harness.store import Store, write_atomic

if TYPE_CHECKING:
    from harness.runner.schedule import Work

POINTS_FILE = "points.json"


@dataclass(frozen=True)
class PointState:
    """One point (or base) of a sweep and what there is of it."""

    point_id: str
    label: str
    base: bool
    asked: int | None  # launches; None where nobody planned them (measured by hand)
    done: int
    failed_attempts: int

    def summary(self) -> str:
        """Return the state in words."""
        parts = [f"{self.done} done" if self.asked is None else f"{self.done}/{self.asked} done"]
        parts += [f"{self.failed_attempts} failed attempts"] if self.failed_attempts else []
        return ", ".join([*parts, *(["base"] if self.base else [])])


@dataclass(frozen=True)
class SweepState:
    """One sweep's folder."""

    name: str
    path: str
    created: str
    points: tuple[PointState, ...]

    def summary(self) -> str:
        """Return the sums in words."""
        done = sum(point.done for point in self.points)
        asked = sum(point.asked or point.done for point in self.points)
        failed = sum(point.failed_attempts for point in self.points)
        tail = f", {failed} failed attempts" if failed else ""
        return f"{len(self.points)} points, {done}/{asked} launches done{tail}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return asdict(self)


def write_points(work: Work, store: Store, names: Mapping[str, str], blocks: int) -> None:
    """Write down what a sweep was asked for last; listing then needs neither it nor its machine."""
    bases = {point_id(base) for base in work.plan.bases if base is not None}
    points = [
        {
            "point_id": point_id(config),
            "label": names[point_id(config)],
            "base": point_id(config) in bases,
            "runs": [run_id(config, repeat) for repeat in range(blocks)],
        }
        for config in work.plan.launches
    ]
    data = {"schema_version": SCHEMA_VERSION, "points": points}
    try:
        write_atomic(store.path / POINTS_FILE, json.dumps(data, indent=1).encode())
    except OSError as error:
        place = store.path / POINTS_FILE
        raise StoreError(f"{place}: cannot be written: {error.strerror}") from error


def list_sweep(folder: Path) -> SweepState:
    """Return the state of a sweep's folder; StoreError where it cannot be read."""
    store = Store.open(folder)
    created = json.loads((folder / "sweep.json").read_bytes()).get("created", "")
    points = _planned_points(store)
    if points is None:
        points = _found_points(store)
    return SweepState(store.name, str(folder), created, points)


def _planned_points(store: Store) -> tuple[PointState, ...] | None:
    path = store.path / POINTS_FILE
    try:
        data = json.loads(path.read_bytes())
        entries = [(p["point_id"], p["label"], p["base"], p["runs"]) for p in data["points"]]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path}: not what hvdscale wrote; run the sweep again") from error
    done = store.done_ids()
    failed: dict[str, int] = {}
    for name, _ in store.attempts():
        failed[name] = failed.get(name, 0) + 1
    return tuple(
        PointState(
            point_id=key,
            label=text,
            base=base,
            asked=len(runs),
            done=sum(name in done for name in runs),
            failed_attempts=sum(failed.get(name, 0) for name in runs),
        )
        for key, text, base, runs in entries
    )


def _found_points(store: Store) -> tuple[PointState, ...]:
    """Measured by hand: there is no plan, and the records say what there is."""
    configs: dict[str, RunConfig] = {}
    done: dict[str, int] = {}
    failed: dict[str, int] = {}
    for record in store.records():
        key = point_id(record.config)
        configs[key] = record.config
        count = done if record.status == "ok" else failed
        count[key] = count.get(key, 0) + 1
    names = labels(configs.values())
    return tuple(
        PointState(key, names[key], False, None, done.get(key, 0), failed.get(key, 0))
        for key in configs
    )
