"""The state of sweeps: what was asked for, what is done, what failed."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from harness.bounded import MAX_LIST_BYTES, read_file
from harness.config import RunConfig, run_id
from harness.config.identity import point_id
from harness.errors import StoreError
from harness.record import SCHEMA_VERSION
from harness.runner.labels import labels
from harness.store import Store, write_atomic
from harness.store.migrate import check_version

if TYPE_CHECKING:
    from harness.runner.schedule import Work

log = logging.getLogger(__name__)

POINTS_FILE = "points.json"
#: Of the trainings: whoever asks for windows and whoever asks for trainings write side by side.
TRAININGS_FILE = "points-train.json"


class AskedPoint(BaseModel):
    """A point (or base) as a sweep was asked for last, with its launches, block by block."""

    point_id: str
    label: str
    base: bool
    runs: tuple[str, ...]
    training: bool = False


class _PointsFile(BaseModel):
    schema_version: int
    points: tuple[AskedPoint, ...]


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
        parts += [_in_vain(self.failed_attempts)] if self.failed_attempts else []
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
        tail = f", {_in_vain(failed)}" if failed else ""
        points = "1 point" if len(self.points) == 1 else f"{len(self.points)} points"
        return f"{points}, {done}/{asked} launches done{tail}"

    def text(self) -> str:
        """Return the sweep and its points, a line each."""
        width = max((len(point.label) for point in self.points), default=0)
        lines = [f"  {point.label:<{width}}  {point.summary()}" for point in self.points]
        return "\n".join([f"{self.name}: {self.summary()}", *lines])

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return asdict(self)


def _in_vain(attempts: int) -> str:
    """Say how many attempts gave nothing: failures, and what a user interrupted."""
    return f"{attempts} attempt{'' if attempts == 1 else 's'} without a measurement"


def write_points(
    work: Work, store: Store, names: Mapping[str, str], blocks: int, *, own_bases: bool = False
) -> None:
    """Write down what a sweep was asked for last; listing then needs neither it nor its machine.

    A folder may have windows and trainings of one sweep: what was asked for of the other stays.
    With ``own_bases`` each job measures the bases that it needs: how many nobody knows before, so
    those that are no points have no runs here.
    """
    bases = {point_id(base) for base in work.plan.bases if base is not None}
    points = {point_id(point) for point in work.plan.points}
    unplanned = bases - points if own_bases else set()
    mine = tuple(
        AskedPoint(
            point_id=point_id(config),
            label=names[point_id(config)],
            base=point_id(config) in bases,
            runs=tuple(
                run_id(config, repeat) for repeat in repeats if point_id(config) not in unplanned
            ),
            training=work.training,
        )
        for configs, repeats in (
            (work.plan.launches, range(blocks)),
            (work.plan.timelines, range(1)),  # in the first block only
        )
        for config in configs
    )
    path = store.path / (TRAININGS_FILE if work.training else POINTS_FILE)
    if not work.training and not (store.path / TRAININGS_FILE).exists():
        # Earlier versions had both in one file.
        mine += tuple(point for point in _read_points(path) or () if point.training)
    data = _PointsFile(schema_version=SCHEMA_VERSION, points=mine)
    try:
        write_atomic(path, data.model_dump_json(indent=1).encode())
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from error


def list_sweep(folder: Path) -> SweepState:
    """Return the state of a sweep's folder; StoreError where it cannot be read."""
    store = Store.open(folder)
    created = json.loads(read_file(folder / "sweep.json")).get("created")
    points = _planned_points(store)
    if points is None:
        points = _found_points(store)
    return SweepState(store.name, str(folder), created if isinstance(created, str) else "", points)


def _read_points(path: Path) -> tuple[AskedPoint, ...] | None:
    """Return what a sweep was asked for last; None where nobody wrote it down, or not we."""
    try:
        plan = _PointsFile.model_validate_json(read_file(path, MAX_LIST_BYTES), strict=True)
        check_version(plan.schema_version, str(path))
    except FileNotFoundError:
        return None
    except (ValueError, IsADirectoryError):  # pydantic's error is a ValueError
        log.warning("%s: not what hvdscale wrote; the records tell what there is", path)
        return None
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
    return plan.points


def asked_points(store: Store) -> tuple[AskedPoint, ...] | None:
    """Return the points of windows, then of trainings; None where neither was written down."""
    both = _read_points(store.path / POINTS_FILE)
    trainings = _read_points(store.path / TRAININGS_FILE)
    if trainings is None:
        return both
    return (*(point for point in both or () if not point.training), *trainings)


def _planned_points(store: Store) -> tuple[PointState, ...] | None:
    points = asked_points(store)
    if points is None:
        return None
    done = store.sound_ids()
    failed: dict[str, int] = {}
    for name, _ in store.attempts():
        failed[name] = failed.get(name, 0) + 1
    beside = _bases_beside(store, points, done)
    return tuple(
        PointState(
            point_id=point.point_id,
            label=point.label,
            base=point.base,
            asked=len(point.runs) if point.runs else None,
            done=sum(name in done for name in point.runs) + beside[point.point_id],
            failed_attempts=sum(failed.get(name, 0) for name in point.runs),
        )
        for point in points
    )


def _bases_beside(store: Store, points: Iterable[AskedPoint], done: set[str]) -> Counter[str]:
    """Return point id → launches of bases that jobs measured for themselves, on ids of their own.

    Which jobs there were is not written down: the records tell whose they are.
    """
    bases = {point.point_id for point in points if point.base}
    found: Counter[str] = Counter()
    for name in done.difference(*(point.runs for point in points)) if bases else ():
        key = point_id(store.read(name).config)
        if key in bases:
            found[key] += 1
    return found


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
