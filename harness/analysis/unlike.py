"""Refusing to draw one curve through unlike machines or software."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from harness.errors import AnalysisError
from harness.provenance import interfaces, settings

#: Provenance that two launches of one curve must have in common: hardware, and software that is
#: part of what is measured; a name of a mapping means all of its keys. Hosts, processes, devices'
#: ids and paths are not: they differ from launch to launch.
SHARED_PROVENANCE = (
    "harness.version", "python", "packages", "versions", "kernel", "cpu_model", "cores",
    "gpu.model", "gpu.driver", "gpu.cuda_driver", "gpu.memory_bytes", "gpu.power_limit_w",
    "gpu.mig", "nccl.version", "mpi.library", "mpi.cuda_aware", "horovod.version",
    "horovod.build.digest", "data.read_from",
)  # fmt: skip
#: The same of each node, of all nodes together.
_SHARED_OF_NODES = (
    "sockets", "physical_cores", "smt", "numa_nodes", "governor", "turbo", "clocksource",
    "transparent_hugepage",
)  # fmt: skip
#: Reads and writes records, and is in no step.
_UNINVOLVED = frozenset({"packages.pyarrow"})

#: What the shell set and no config has. Unlike any other key it is complete: a variable that it
#: lacks was not set.
SETTINGS = "settings"
_UNSET = "unset"
_SHOWN = 3


def shared_provenance(provenance: Mapping[str, Any], launcher: str = "") -> dict[str, Any]:
    """Return what two launches of one curve must have in common: ``{"packages.torch": "2.13.0"}``.

    Values are texts, and that of ``SETTINGS`` a mapping. Keys that an older record does not have,
    or that an engine has no use for, are missing in what is returned, too. ``launcher`` is the one
    that started the ranks: what it sets by itself is no setting.
    """
    kept: dict[str, str] = {}
    for head, tails in _SHARED_BY_HEAD.items():
        found = provenance.get(head)
        for tail in tails if found is not None else ():
            value = _at(found, tail)
            name = ".".join((head, *tail))
            if isinstance(value, dict):
                kept |= {f"{name}.{key}": str(inner) for key, inner in value.items()}
            elif value is not None:
                kept[name] = str(value)
    kept |= _of_nodes(provenance.get("nodes"))
    shared: dict[str, Any] = {key: kept[key] for key in kept if key not in _UNINVOLVED}
    environment = provenance.get("environment")
    if isinstance(environment, Mapping):
        shared[SETTINGS] = settings(environment, launcher)
        if len(provenance.get("hosts") or ()) > 1:
            chosen = interfaces(environment)
            shared |= {f"environment.{name}": value or _UNSET for name, value in chosen.items()}
    return shared


def _by_head(names: Iterable[str]) -> dict[str, tuple[tuple[str, ...], ...]]:
    """Sort dotted names by their first part: ten thousand records are looked into for them."""
    found: dict[str, tuple[tuple[str, ...], ...]] = {}
    for name in names:
        head, *tail = name.split(".")
        found[head] = (*found.get(head, ()), tuple(tail))
    return found


def _at(provenance: Any, parts: tuple[str, ...]) -> Any:
    """Return what is at a path of keys; None where there is nothing, or another shape.

    Plain dictionaries only, as JSON has them: to ask for any mapping takes four times as long.
    """
    value: Any = provenance
    for part in parts:
        value = value.get(part) if isinstance(value, dict) else None
    return value


_SHARED_BY_HEAD = _by_head(SHARED_PROVENANCE)


def _of_nodes(nodes: Any) -> dict[str, str]:
    if not isinstance(nodes, Mapping):
        return {}
    found: dict[str, str] = {}
    for key in _SHARED_OF_NODES:
        values = {str(node[key]) for node in nodes.values() if node.get(key) is not None}
        if values:
            found[f"node.{key}"] = " / ".join(sorted(values))
    return found


def differences(provenances: Iterable[str]) -> dict[str, dict[str, int]]:
    """Return each key that has several values, with the number of launches of each value.

    ``provenances`` are JSON texts as the table has them. A key that a record lacks says nothing,
    so it is compared among those that have it; but see ``SETTINGS``.
    """
    parsed = [(json.loads(text), launches) for text, launches in Counter(provenances).items()]
    variables = {name for shared, _ in parsed for name in shared.get(SETTINGS, ())}
    found: dict[str, Counter[str]] = {}
    for shared, launches in parsed:
        for key, value in _flat(shared, variables).items():
            found.setdefault(key, Counter())[value] += launches
    return {key: dict(counts) for key, counts in sorted(found.items()) if len(counts) > 1}


def _flat(shared: Mapping[str, Any], variables: Iterable[str]) -> dict[str, str]:
    flat = {key: value for key, value in shared.items() if key != SETTINGS}
    if SETTINGS in shared:
        was_set = shared[SETTINGS]
        flat |= {f"environment.{name}": was_set.get(name, _UNSET) for name in variables}
    return flat


def what_differs(rows: Iterable[Mapping[str, Any]]) -> str | None:
    """Name what differs between the machines and software of ``rows``; None where nothing does."""
    unlike = differences(row["provenance"] or "{}" for row in rows)
    if not unlike:
        return None
    parts = [_named(key, counts) for key, counts in list(unlike.items())[:_SHOWN]]
    more = f", and {len(unlike) - _SHOWN} more keys" if len(unlike) > _SHOWN else ""
    return f"{'; '.join(parts)}{more}"


def refuse_unlike(what: str, differing: str | None) -> None:
    """Raise AnalysisError where ``what`` has launches of which ``what_differs`` named something."""
    if differing is None:
        return
    raise AnalysisError(
        f"{what} has launches on unlike hardware or software: {differing}; "
        "keep them in results folders of their own, or mix them on purpose with --mixed "
        "(in Python: mixed=True)"
    )


def _named(key: str, counts: Mapping[str, int]) -> str:
    values = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{value} ({count})" for value, count in values[:_SHOWN])
    return f"{key} is {shown}" + (", ..." if len(values) > _SHOWN else "")
