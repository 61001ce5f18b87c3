"""The workloads by name, each a lazy ``"module:Class"``: listing them imports no framework."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

from workloads.api import OptionValue, Workload, WorkloadError, WorkloadInfo

WORKLOADS: dict[str, str] = {
    "stress_strain": "workloads.stress_strain:StressStrain",
}


def names() -> tuple[str, ...]:
    """Return the names of all workloads, sorted."""
    return tuple(sorted(WORKLOADS))


def find(name: str) -> type[Workload]:
    """Return the class of a workload; WorkloadError, with the near name, where it is unknown."""
    target = WORKLOADS.get(name)
    if target is None:
        near = get_close_matches(name, list(WORKLOADS), n=1)
        hint = f" (did you mean '{near[0]}'?)" if near else ""
        raise WorkloadError(f"unknown workload '{name}'{hint}; known: {', '.join(names())}")
    module, _, attribute = target.partition(":")
    found: type[Workload] = getattr(import_module(module), attribute)
    return found


def info(name: str) -> WorkloadInfo:
    """Return what is known of a workload without a framework or its data."""
    return find(name).info


def create(name: str, options: Mapping[str, OptionValue], data_dir: Path) -> Workload:
    """Make a workload at ``options`` (checked), with its data under ``data_dir``."""
    return find(name)(options, data_dir)
