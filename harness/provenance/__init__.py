"""Where a measurement comes from: one collector a source (a module's ``collect``).

``of_rank`` runs on every rank after its window, ``collect`` on rank 0 over all of them. None of the
collectors may fail a run: what one cannot tell has no key, and where that is worth knowing there is
a line under ``notes``.
"""

from __future__ import annotations

import os
import platform
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import harness
from harness.provenance import (
    binding,
    container,
    git,
    gpu,
    horovod_facts,
    host,
    load,
    mpi,
    nccl,
    packages,
)
from harness.provenance.environ import ENVIRONMENT, environment, interfaces, settings
from harness.provenance.notes import Notes

__all__ = [
    "ENVIRONMENT",
    "at_start",
    "collect",
    "environment",
    "interfaces",
    "of_rank",
    "settings",
]

_NODE = "node"  # moved from each rank to the launch's ``nodes``, once a host
_NOTES = "notes"  # the same, to ``notes``
_SHARED = ("nccl", "mpi", "horovod")  # the launch's, as rank 0 has it; a rank's where it differs


def at_start() -> dict[str, Any]:
    """Return what only a rank's start can tell: the load before the ranks are the load."""
    notes = Notes()
    return {"load_at_start": notes.take("load", load.collect), _NOTES: notes.lines}


def of_rank(
    cores: tuple[int, ...],
    threads: int,
    *,
    device_uuid: str | None = None,
    started: Mapping[str, Any] | None = None,
    engine: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what differs between ranks: host, process, cores, device, libraries loaded.

    ``cores`` is what the rank was bound to and ``threads`` what it was to use; ``device_uuid`` its
    GPU as NVML writes it; ``started`` what ``at_start`` gave; ``engine`` what only the framework
    can tell (``{"torch_threads": 1}``), kept as it is.
    """
    notes = Notes()
    before = dict(started or {})
    notes.lines += before.pop(_NOTES, [])
    found: dict[str, Any] = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "cores": cores,
        "threads": threads,
        "node_cores": os.cpu_count(),
        **notes.take("cpu", lambda: {"cpu_model": host.cpu_model()}),
        "binding": notes.take("binding", lambda: binding.collect(notes, cores)),
        "engine": dict(engine or {}),
        "gpu": notes.take("gpu", lambda: gpu.collect(device_uuid)),
        "nccl": notes.take("nccl", nccl.collect),
        "mpi": notes.take("mpi", mpi.collect),
        "horovod": notes.take("horovod", horovod_facts.collect),
        "settings": notes.take("environment", lambda: settings(environment(os.environ))),
        _NODE: notes.take("host", host.collect) | before,
        _NOTES: notes.lines,
    }
    return _without_empty(found)


def collect(
    rank_facts: Sequence[Mapping[str, Any]], engine_versions: Mapping[str, str]
) -> dict[str, Any]:
    """Return a launch's provenance as plain data; ``rank_facts`` is every rank's ``of_rank``."""
    notes = Notes()
    notes.lines += _notes_of_ranks(rank_facts)
    _add_unlike(notes, rank_facts)
    nodes = _nodes(rank_facts)
    found = {
        "harness": {"version": harness.__version__, **notes.take("git", git.collect)},
        "python": platform.python_version(),
        "packages": notes.take("packages", packages.collect),
        "versions": dict(engine_versions),
        "kernel": _common(nodes.values(), "kernel") or platform.release(),
        "hosts": sorted({str(facts["host"]) for facts in rank_facts}),
        "cpu_model": _common(rank_facts, "cpu_model"),
        "cores": _common(rank_facts, "node_cores"),
        "nodes": nodes,
        "gpu": _common_gpu(rank_facts),
        **{key: rank_facts[0][key] for key in _SHARED if rank_facts[0].get(key)},
        "ranks": [_of_one(facts, rank_facts[0]) for facts in rank_facts],
        "environment": environment(os.environ),
        "container": notes.take("container", container.collect),
        "executable": sys.executable,
        _NOTES: notes.lines,
    }
    # An empty environment is a fact: nothing was set.
    return _without_empty(found) | {key: found[key] for key in ("versions", "environment")}


def _nodes(rank_facts: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return host → its facts, as its first rank found them."""
    found: dict[str, dict[str, Any]] = {}
    for facts in rank_facts:
        if facts.get(_NODE):
            found.setdefault(str(facts["host"]), dict(facts[_NODE]))
    return found


def _common_gpu(rank_facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    devices = [facts["gpu"] for facts in rank_facts if facts.get("gpu")]
    common = {key: _common(devices, key) for key in gpu.COMMON}
    return {key: value for key, value in common.items() if value is not None}


def _of_one(facts: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    """Return a rank's own facts: what it has in common with rank 0 is said once, of the launch."""
    said = {_NODE, _NOTES, "settings"}
    return {
        key: value
        for key, value in facts.items()
        if key not in said and not (key in _SHARED and value == first.get(key))
    }


def _notes_of_ranks(rank_facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return each different note once, with the first host or rank that made it."""
    found: dict[str, int] = {}
    for rank, facts in enumerate(rank_facts):
        for line in facts.get(_NOTES, ()):
            found.setdefault(line, rank)
    return [f"{line} (rank {rank}, {rank_facts[rank]['host']})" for line, rank in found.items()]


def _add_unlike(notes: Notes, rank_facts: Sequence[Mapping[str, Any]]) -> None:
    """Add a note for each rank with other settings or libraries than rank 0."""
    first = rank_facts[0]
    there: Mapping[str, str] = first.get("settings") or {}
    for rank, facts in enumerate(rank_facts):
        here: Mapping[str, str] = facts.get("settings") or {}
        for name in sorted({*here, *there}):
            mine, others = here.get(name, "unset"), there.get(name, "unset")
            if mine != others:
                notes.add("environment", f"{name} is {mine} on rank {rank}, {others} on rank 0")
        for key in _SHARED:
            if facts.get(key) != first.get(key):
                notes.add(key, f"rank {rank}'s is not that of rank 0")


def _common(facts: Iterable[Mapping[str, Any]], key: str) -> Any:
    """Return what all have, or all that they have where they differ; None where none has it."""
    found = {each[key] for each in facts if each.get(key) is not None}
    return found.pop() if len(found) == 1 else " / ".join(sorted(map(str, found))) or None


def _without_empty(found: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if value not in ({}, [])}
