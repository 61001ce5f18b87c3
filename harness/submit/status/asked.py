"""What a sweep was asked for: points and the ids of their launches, from whoever wrote it down."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from harness.config import RunConfig, run_id
from harness.config.identity import point_id
from harness.runner.labels import label, labels, launch_labels
from harness.runner.listing import asked_points
from harness.store import Store
from harness.submit.status.files import Place, Submitted
from harness.submit.status.judge import Evidence


@dataclass(frozen=True)
class Asked:
    """One point, or base; bases that jobs measure themselves have no runs."""

    point_id: str
    label: str
    base: bool
    runs: tuple[tuple[int, str], ...]  # repeat, run id
    training: bool = False


def asked_for(store: Store, arrays: tuple[Submitted, ...]) -> tuple[Asked, ...]:
    """Return the points of a sweep: as planned, else as submitted, else as measured by hand."""
    planned = asked_points(store)
    if planned is not None:
        return tuple(
            Asked(one.point_id, one.label, one.base, tuple(enumerate(one.runs)), one.training)
            for one in planned
        )
    return _submitted(arrays) if arrays else _measured(store)


def run_ids(asked: Iterable[Asked]) -> Iterator[str]:
    """Yield the ids of all launches."""
    return (name for one in asked for _, name in one.runs)


def with_live(asked: tuple[Asked, ...], known: Evidence) -> tuple[Asked, ...]:
    """Add what jobs are still to launch though nobody asks for it any more."""
    planned = set(run_ids(asked))
    beside = [name for name in known.places if name not in planned and name not in known.done]
    more: dict[str, list[tuple[int, str]]] = {}
    configs: dict[str, tuple[RunConfig, bool]] = {}
    for name in beside:
        place = known.live(name)
        if place is not None:
            key, config = _config(place, name)
            more.setdefault(key, []).append((place.element.repeat, name))
            configs[key] = (config, place.array.manifest.training)
    kept = [
        Asked(
            one.point_id,
            one.label,
            one.base,
            (*one.runs, *more.pop(one.point_id, ())),
            one.training,
        )
        for one in asked
    ]
    new = [
        Asked(key, label(configs[key][0]), False, tuple(runs), configs[key][1])
        for key, runs in more.items()
    ]
    return (*kept, *new)


def _config(place: Place, name: str) -> tuple[str, RunConfig]:
    """Return point id and config of a launch of an element."""
    manifest, element = place.array.manifest, place.element
    for at in (*element.points, *element.timelines):
        if run_id(manifest.configs[at], element.repeat) == name:
            return place.array.point_ids[at], manifest.configs[at]
    raise LookupError(name)


def _submitted(arrays: Iterable[Submitted]) -> tuple[Asked, ...]:
    points: dict[str, RunConfig] = {}
    timelines: dict[str, RunConfig] = {}
    bases: set[str] = set()
    runs: dict[str, dict[int, str]] = {}
    trained: set[str] = set()
    for array in arrays:
        for at, repeat, into in _all(array):
            key, config = array.point_ids[at], array.manifest.configs[at]
            (timelines if into == "timelines" else points)[key] = config
            if into != "bases":
                runs.setdefault(key, {})[repeat] = run_id(config, repeat)
            if into == "bases" or at in array.manifest.bases:
                bases.add(key)
            if array.manifest.training:
                trained.add(key)
    names = launch_labels(points.values(), timelines.values())
    return tuple(
        Asked(
            key, names[key], key in bases, tuple(sorted(runs.get(key, {}).items())), key in trained
        )
        for key in (*points, *timelines)
    )


def _all(array: Submitted) -> Iterator[tuple[int, int, str]]:
    """Yield place of the config, repeat and role of all that the elements of an array launch."""
    for element in array.manifest.elements:
        for into in ("points", "bases", "timelines"):
            for at in getattr(element, into):
                yield at, element.repeat, into


def _measured(store: Store) -> tuple[Asked, ...]:
    configs: dict[str, RunConfig] = {}
    runs: dict[str, dict[str, int]] = {}
    for record in store.records():
        key = point_id(record.config)
        configs[key] = record.config
        runs.setdefault(key, {})[record.run_id] = record.block.repeat
    names = labels(configs.values())
    return tuple(
        Asked(key, names[key], False, tuple((repeat, name) for name, repeat in runs[key].items()))
        for key in configs
    )
