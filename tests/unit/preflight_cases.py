"""Allocations that are measured on paper: nodes and links with planted ailments."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from harness.submit.preflight.record import Clock, NodeReport, Speed, Way

STEP_S = 0.010
BYTES = 1 << 20
GOOD_BYTES_PER_S = 1.25e9
LATENCY_S = 20e-6


def names(count: int) -> tuple[str, ...]:
    return tuple(f"n{number}" for number in range(1, count + 1))


def node(
    name: str,
    factors: Sequence[float] = (1.0,),
    *,
    noise: float = 0.0,
    looks: int = 1,
    seed: int = 1,
    facts: Mapping[str, str] | None = None,
    clocks: Sequence[Clock] = (),
    load: float | None = 0.1,
) -> NodeReport:
    """Return a node whose devices take ``factors`` times as long as they should."""
    rng = np.random.default_rng([seed, *name.encode()])
    speeds = tuple(
        Speed(
            device=device,
            batch=75,
            block_steps=50,
            looks_step_s=tuple(
                tuple(STEP_S * factor * float(np.exp(noise * z)) for z in rng.normal(size=12))
                for _ in range(looks)
            ),
        )
        for device, factor in enumerate(factors)
    )
    return NodeReport(
        node=name,
        facts=dict(facts or {}),
        cores=48,
        load_1min=load,
        speeds=speeds,
        clocks=tuple(clocks),
    )


def mesh(
    count: int,
    slow: Mapping[tuple[str, str], float] | None = None,
    *,
    late: Mapping[tuple[str, str], float] | None = None,
    library: str = "gloo",
    noise: float = 0.0,
    look: int = 0,
    without: Collection[tuple[str, str]] = (),
) -> tuple[Way, ...]:
    """Return every direction of every link; ``slow`` divides bandwidths, ``late`` adds seconds."""
    rng = np.random.default_rng(2)
    found = []
    for source, target in itertools.permutations(names(count), 2):
        rate = GOOD_BYTES_PER_S / (slow or {}).get((source, target), 1.0)
        late_s = LATENCY_S + (late or {}).get((source, target), 0.0)
        z = rng.normal(size=(2, 20))
        way = Way(
            library=library,  # type: ignore[arg-type]
            source=source,
            target=target,
            look=look,
            round_trip_s=tuple(2 * late_s * np.exp(noise * z[0])),
            bytes=BYTES,
            transfer_s=tuple(BYTES / rate * np.exp(noise * z[1, :5])),
        )
        if (source, target) in without:
            way = Way(
                library=way.library, source=source, target=target, look=look, error="timed out"
            )
        found.append(way)
    return tuple(found)


def both(*ends: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return the two directions of a link."""
    one, other = ends
    return (one, other), (other, one)
