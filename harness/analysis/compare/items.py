"""The points of a sweep with the facts by which they are matched and told apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean, geometric_mean
from types import MappingProxyType
from typing import Any

from harness.analysis.match import flat
from harness.analysis.results import Results
from harness.analysis.scaling import Curve, Point
from harness.errors import AnalysisError
from harness.stats import BlockKey

Facts = Mapping[str, str]

#: Columns of the table that a launch of a point does not keep.
_TELEMETRY = ("rank_rss_max_bytes", "gpu_memory_max_bytes", "gpu_power_w", "energy_per_sample_j")
_COLUMNS = (
    *("run_id", "kind", "status", "started_at", "provenance", "config", "engine", "backend"),
    *("launcher", "controller", "device", "placement"),
    *_TELEMETRY,
)


@dataclass(frozen=True)
class Item:
    """One point of a sweep.

    ``facts`` is its whole config as flat text (``{"execution.precision": "bf16", …}``), with the
    device, the placement as resolved, and backend, launcher and controller in force; ``asked`` is
    the same, but launcher and controller are absent where the config left them open.
    """

    point: Point
    curve: Curve
    facts: Facts
    asked: Facts
    rows: tuple[Mapping[str, Any], ...] = field(repr=False)  # its launches', of ``_COLUMNS``

    def by_block(self, column: str, *, positive: bool = False) -> dict[BlockKey, float]:
        """Return the value of each block that has one; the mean where it has several launches.

        With ``positive`` the mean is geometric, and there are no values where one is not above 0.
        """
        found: dict[BlockKey, list[float]] = {}
        for launch, row in zip(self.point.launches, self.rows, strict=True):
            value = row[column] if column in _TELEMETRY else getattr(launch, column)
            if value is not None:
                found.setdefault(launch.block, []).append(float(value))
        if positive and any(value <= 0 for values in found.values() for value in values):
            return {}
        mean = geometric_mean if positive else fmean
        return {key: v[0] if len(v) == 1 else mean(v) for key, v in found.items()}


@dataclass(frozen=True)
class Items:
    """All points of a sweep, and the configs of launches that were never measured."""

    results: Results
    points: tuple[Item, ...]
    failed: tuple[Facts, ...]

    def values(self, key: str) -> tuple[str, ...]:
        """Return the values of a fact that the points have, those of few letters first."""
        found = {item.facts[key] for item in self.points if key in item.facts}
        return tuple(sorted(found, key=lambda value: (len(value), value)))


def items_of(results: Results) -> Items:
    """Return the points of a sweep; AnalysisError where nothing was measured."""
    if results.trainings and not results.curves:
        raise AnalysisError(
            f"compare: {results.folder} holds trainings only, and compare reads windows: "
            "measure the same configs with hvdscale run"
        )
    found = results.require_curves("compare")
    rows = _rows(results)
    measured = {row["run_id"]: row for row in rows if row["status"] == "ok"}
    points = tuple(_item(curve, point, measured) for curve in found for point in curve.points)
    missing = {
        row["run_id"]: _facts(row["config"], row)
        for row in rows
        if row["run_id"] not in measured and row["config"] is not None and row["kind"] == "bench"
    }
    return Items(results, points, tuple(missing.values()))


def differing(a: Facts, b: Facts, keys: Iterable[str] | None = None) -> dict[str, tuple[str, str]]:
    """Return the facts of which both sides have a value, and not the same.

    What only one of two engines has (a backend, Horovod's tuning) is no difference of its own.
    """
    wanted = a if keys is None else keys
    return {key: (a[key], b[key]) for key in wanted if key in a and key in b and a[key] != b[key]}


def _item(curve: Curve, point: Point, measured: Mapping[str, Mapping[str, Any]]) -> Item:
    rows = tuple(measured[launch.run_id] for launch in point.launches)
    asked = dict(flat(curve.config)) | {"device": curve.device, "placement": point.placement}
    asked.pop("backend", None)
    if curve.backend:
        asked["backend"] = curve.backend
    facts = asked | _in_force(rows[0])
    return Item(point, curve, MappingProxyType(facts), MappingProxyType(asked), rows)


def _facts(config: str, row: Mapping[str, Any]) -> Facts:
    found = flat(config) | _in_force(row)
    for name in ("backend", "device", "placement"):
        if row[name] is not None:
            found[name] = row[name]
    return MappingProxyType(found)


def _in_force(row: Mapping[str, Any]) -> dict[str, str]:
    names = {"launcher": "launcher", "controller": "horovod.controller"}
    return {key: row[name] for name, key in names.items() if row[name] is not None}


def _rows(results: Results) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = results.table.select(list(_COLUMNS)).to_pylist()
    return rows
