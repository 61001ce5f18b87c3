"""What of a config is a choice, what is the job, and what changes what the job learns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from harness.analysis.labels import label_curves
from harness.analysis.match import flat, parsed

#: How a point was measured, and where it was: no choices of a job's, or said otherwise.
_LEFT_OUT = ("measure", "train", "seed", "placement", "placement_policy")
#: Keys that change what is computed, so that an epoch of one is no epoch of the other: like a batch
#: size they cannot be chosen by speed alone. With the value where a config has none of them.
_NUMERICS = {
    "execution.precision": "fp32",
    "execution.accumulate": "1",
    "horovod.compression": "none",
    "horovod.op": "average",
    "deterministic": "False",
}
_BATCHES = ("batch_size", "global_batch_size")
_SAID = ("placement", "engine", "backend", *_BATCHES)

#: (config JSON, backend in force, device), as labels take it
Named = tuple[str, str | None, str]


@lru_cache(maxsize=4096)
def speed_config(config: str) -> str:
    """Return what of a config a step's time depends on, the place of its ranks left out."""
    data = {k: v for k, v in parsed(config).items() if k not in (*_LEFT_OUT, "learning_rate")}
    return json.dumps(data, sort_keys=True)


@lru_cache(maxsize=4096)
def rate_of(config: str) -> str:
    """Return the learning rate of a config as JSON; without it nothing is reached, or slower."""
    return json.dumps(parsed(config).get("learning_rate", {}), sort_keys=True)


def with_rate(config: str, rate: str) -> str:
    """Return a config with the learning rate that ``rate_of`` gave."""
    found = json.loads(rate)
    return json.dumps(
        dict(parsed(config)) | ({"learning_rate": found} if found else {}), sort_keys=True
    )


def seed_of(config: str) -> int:
    """Return the seed."""
    return int(parsed(config).get("seed", 1))


@lru_cache(maxsize=4096)
def facts(config: str) -> Mapping[str, str]:
    """Return a config as flat text with its defaults."""
    return MappingProxyType(flat(config))


def job_of(config: str) -> tuple[tuple[str, str], ...]:
    """Return the job: workload, framework and every option; those of two jobs never compete."""
    return tuple(
        sorted((key, value) for key, value in facts(config).items() if key.startswith("workload."))
    )


def numerics_of(config: str) -> tuple[tuple[str, str], ...]:
    """Return what of a config, batch and learning rate excepted, changes what is learned."""
    found = facts(config)
    return tuple((key, found.get(key, default)) for key, default in _NUMERICS.items())


def numerics_text(numerics: Sequence[tuple[str, str]]) -> str:
    """Return the keys that are not at their defaults, e.g. ``execution.precision bf16``."""
    return ", ".join(f"{key} {value}" for key, value in numerics if _NUMERICS[key] != value)


def job_names(jobs: Sequence[tuple[tuple[str, str], ...]]) -> list[str]:
    """Return a name for each job: workload and framework, and the options in which jobs differ."""
    found = []
    for job in jobs:
        own = dict(job)
        more = [
            f"{key.removeprefix('workload.options.')} {value}"
            for key, value in job
            if key.startswith("workload.options.")
            and any(dict(other).get(key) != value for other in jobs)
        ]
        name = f"{own['workload.name']} ({own['workload.framework']})"
        found.append(", ".join([name, *more]))
    return found


def options_of(config: str) -> int:
    """Count the keys of tuning that are not at their defaults: fewer is simpler."""
    data = parsed(config)
    plain = ("workload", "engine", "backend", "scaling", "learning_rate", *_BATCHES, *_LEFT_OUT)
    return sum(
        len(value) if isinstance(value, Mapping) else 1
        for key, value in data.items()
        if key not in plain
    )


def asks(configs: Sequence[Named], placements: Sequence[str]) -> list[Mapping[str, str]]:
    """Return for each candidate the keys to ask for: those always said, and all that differ.

    So is a learning rate that is not the workload's own, and ``scaling`` where it is no default.
    """
    found = [dict(facts(config)) for config, _, _ in configs]
    for one, (_, backend, _) in zip(found, configs, strict=True):
        one.pop("backend", None)
        one |= {"backend": backend} if backend else {}
    keys = list(dict.fromkeys(key for one in found for key in one))
    default = facts(with_rate(speed_config(configs[0][0]), "{}"))
    differing = [
        key
        for key in keys
        if key not in _SAID
        and key not in ("scaling", "seed", "placement_policy")
        and not key.startswith(("measure.", "train."))
        and _differs(key, found, default)
    ]
    return [
        MappingProxyType(
            {"placement": _placement(placement)}
            | ({"scaling": "strong"} if one["scaling"] == "strong" else {})
            | {key: one[key] for key in (*_SAID[1:], *sorted(differing)) if key in one}
        )
        for one, placement in zip(found, placements, strict=True)
    ]


def _differs(key: str, found: Sequence[Mapping[str, str]], default: Mapping[str, str]) -> bool:
    if key.startswith("learning_rate."):
        return any(one.get(key) != default.get(key) for one in found)
    # What an engine has no use for is not another value of it.
    return len({one[key] for one in found if key in one}) > 1


def labels(configs: Sequence[Named], places: Sequence[tuple[int, int, str]]) -> list[str]:
    """Return a label for each candidate: its devices, and what tells its config from the others.

    ``places`` are (devices, nodes, placement).
    """
    several = {n for n, _, _ in places if len({p for m, _, p in places if m == n}) > 1}
    heads = [
        f"N={n}" + (f" ({placement})" if nodes > 1 or n in several else "")
        for n, nodes, placement in places
    ]
    kinds = list(dict.fromkeys(configs))
    named = dict(zip(kinds, label_curves(kinds), strict=True))
    return [f"{head}, {named[config]}" for head, config in zip(heads, configs, strict=True)]


def _placement(placement: str) -> str:
    """Write devices of each node as a sweep takes them: ``1x4``, ``2x4``, ``8+2``."""
    devices = placement.split("+")
    return f"{len(devices)}x{devices[0]}" if len(set(devices)) == 1 else placement
