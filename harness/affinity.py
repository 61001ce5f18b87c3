"""Cores of a rank: each local rank keeps to its own, where there are enough."""

from __future__ import annotations

import os

from harness.errors import LaunchError
from harness.spec import Resolved


def cores_of(local_rank: int, cores_per_rank: int, available: list[int]) -> list[int]:
    """Return the cores of a local rank: the ``local_rank``-th run of ``cores_per_rank``."""
    start = local_rank * cores_per_rank
    return available[start : start + cores_per_rank]


def bind(resolved: Resolved, local_rank: int) -> tuple[int, ...]:
    """Bind this process, and what it starts, to its cores; return those it may use.

    Where a launcher (srun) has already left it exactly its share, nothing is changed.
    """
    available = sorted(os.sched_getaffinity(0))
    if resolved.bind and len(available) > resolved.cores_per_rank:
        wanted = cores_of(local_rank, resolved.cores_per_rank, available)
        if len(wanted) == resolved.cores_per_rank:
            os.sched_setaffinity(0, wanted)
    bound = tuple(sorted(os.sched_getaffinity(0)))
    if resolved.bind and len(bound) != resolved.cores_per_rank:
        raise LaunchError(
            f"local rank {local_rank} was to have {resolved.cores_per_rank} core(s) to itself, but "
            f"of those left to it ({', '.join(map(str, available))}) it got {len(bound)}: start it "
            "unbound, or with fewer ranks"
        )
    return bound
