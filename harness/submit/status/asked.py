"""What a sweep was asked for: points and the ids of their launches, from whoever wrote it down."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

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
    """Add what jobs have launched, or are still to, though the sweep was edited since.

    Without what they have done a submission would shrink while it is worked off.
    """
    planned = set(run_ids(asked))
    more: dict[str, list[tuple[int, str]]] = {}
    new: dict[str, Asked] = {}
    elements: dict[tuple[str, int, int], dict[str, int]] = {}
    for name in known.places:
        place = None if name in planned else _beside(name, known)
        if place is None:
            continue
        if place.key not in elements:
            elements[place.key] = _launches(place)
        at, manifest = elements[place.key][name], place.array.manifest
        key = place.array.point_ids[at]
        more.setdefault(key, []).append((place.element.repeat, name))
        config, base = manifest.configs[at], at in manifest.bases
        new.setdefault(key, Asked(key, label(config), base, (), manifest.training))
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
    return (*kept, *(replace(new[key], runs=tuple(runs)) for key, runs in more.items()))


def _beside(name: str, known: Evidence) -> Place | None:
    """Return the element that has done a launch, or is to do it; None where neither is so."""
    return known.places[name][-1] if name in known.done else known.live(name)


def _launches(place: Place) -> dict[str, int]:
    """Return run id → place of the config, of all launches of an element."""
    configs, element = place.array.manifest.configs, place.element
    return {run_id(configs[at], element.repeat): at for at in (*element.points, *element.timelines)}


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
