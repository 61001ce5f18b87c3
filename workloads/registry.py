"""The workloads by name, each a lazy ``"module:Class"``: listing them imports no framework.

An installed package adds its own by an entry point of the group ``hvdscale.workloads``.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

from workloads.api import OptionValue, Workload, WorkloadError, WorkloadInfo

WORKLOADS: dict[str, str] = {
    "lstm": "workloads.lstm:Lstm",
    "resnet": "workloads.resnet:ResNet",
    "stress_strain": "workloads.stress_strain:StressStrain",
}
GROUP = "hvdscale.workloads"


@lru_cache(maxsize=1)
def _targets() -> dict[str, str]:
    """Return ``"module:Class"`` by name; WorkloadError where two have one name."""
    found = dict(WORKLOADS)
    for point in entry_points(group=GROUP):
        if found.setdefault(point.name, point.value) != point.value:
            raise WorkloadError(
                f"workload '{point.name}' is both {found[point.name]} and {point.value}; rename "
                f"one, or uninstall its package (entry points of {GROUP})"
            )
    return found


def names() -> tuple[str, ...]:
    """Return the names of all workloads, sorted."""
    return tuple(sorted(_targets()))


def find(name: str) -> type[Workload]:
    """Return the class of a workload; WorkloadError, with the near name, where it is unknown."""
    target = _targets().get(name)
    if target is None:
        near = get_close_matches(name, names(), n=1)
        hint = f" (did you mean '{near[0]}'?)" if near else ""
        raise WorkloadError(f"unknown workload '{name}'{hint}; known: {', '.join(names())}")
    module, _, attribute = target.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise WorkloadError(f"workload '{name}' ({target}) cannot be loaded: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Workload)):
        raise WorkloadError(f"workload '{name}' ({target}) is no class of workloads.api.Workload")
    return found


def info(name: str) -> WorkloadInfo:
    """Return what is known of a workload without a framework or its data."""
    return find(name).info


def create(name: str, options: Mapping[str, OptionValue], data_dir: Path) -> Workload:
    """Make a workload at ``options`` (checked), with its data under ``data_dir``."""
    return find(name)(options, data_dir)
