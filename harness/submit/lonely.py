"""Bases that nothing done can be divided by: edited after their points were done, or all failed."""

from __future__ import annotations

from harness.config import run_id
from harness.runner import schedule
from harness.store import Store
from harness.submit.packing import Wanted


def lonely_bases(asked: Wanted, store: Store, done: set[str], blocks: int) -> tuple[str, ...]:
    """Return the ids of bases that were measured beside none of the points that are done.

    A base that its jobs measure is launched with points that are missing, so of a base whose points
    are all done no job has one any more. Whose point is still to come is left out.
    """
    measured, allocation_of = store.done_ids(), schedule.allocations(store)
    lonely: dict[str, bool] = {}
    for point, base in asked.base_of.items():
        if point == base or lonely.get(base) is False:
            continue
        for repeat in range(blocks):
            name = run_id(asked.points[point], repeat)
            if name not in done:
                lonely[base] = False  # its job measures one
                break
            own = run_id(asked.bases[base], repeat, allocation_of(name))
            if own in measured or run_id(asked.bases[base], repeat) in measured:
                lonely[base] = False
                break
            lonely[base] = True
    return tuple(base for base, alone in lonely.items() if alone)
