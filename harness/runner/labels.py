"""Names of points for people: what tells one from the others, and no more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from harness.config import RunConfig
from harness.config.identity import canonical, point_id
from harness.config.training import is_training

_NAMED = ("engine", "backend", "placement", "batch_size", "global_batch_size")  # always shown
#: Follow from the engine: a sweep asks for one set, and an engine leaves out what it lacks.
_FOLLOWS = ("measure.instruments",)


def labels(configs: Iterable[RunConfig]) -> dict[str, str]:
    """Return point id → label: engine, backend, placement and batch, then whatever else differs."""
    points = {point_id(config): config for config in configs}
    flat = {key: dict(_flatten(canonical(config))) for key, config in points.items()}
    names = sorted({name for values in flat.values() for name in values})
    varying = [
        name
        for name in names
        if name not in (*_NAMED, *_FOLLOWS)
        and len({repr(values.get(name)) for values in flat.values()}) > 1
    ]
    found = {}
    for key, config in points.items():
        extra = [f"{name}={flat[key][name]}" for name in varying if name in flat[key]]
        found[key] = " ".join([label(config), *extra])
    return found


def launch_labels(launches: Iterable[RunConfig], timelines: Iterable[RunConfig]) -> dict[str, str]:
    """Return point id → label of all launches of a sweep.

    A launch for a timeline is named after what it looks into. Its window is none, and its
    differences from the others in that are not what tells them apart.
    """
    named = {key: f"{text} timeline" for key, text in labels(timelines).items()}
    return named | labels(launches)


def label(config: RunConfig) -> str:
    """Return the short name of one launch: ``stress_strain horovod/mpi 1x2 batch 75 training``."""
    engine = f"{config.engine}/{config.backend}" if config.backend else config.engine
    batch = (
        f"batch {config.batch_size}"
        if config.batch_size is not None
        else f"global batch {config.global_batch_size}"
    )
    suffix = " training" if is_training(config) else ""
    return f"{config.workload.name} {engine} {config.placement} {batch}{suffix}"


def _flatten(data: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
