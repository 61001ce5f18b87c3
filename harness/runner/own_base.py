"""Launches of a job that measures its own bases: one of many that share a sweep.

Every allocation measures its own base, so that what differs between two jobs (other nodes, other
neighbours, another hour) does not look like scaling. Such a base has an id of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from harness.config import RunConfig, run_id
from harness.config.identity import point_id
from harness.runner.schedule import Planned, shuffled
from harness.spec import BlockRef, Resolved


@dataclass(frozen=True)
class Part:
    """Some points of one block, and the bases that they are divided by."""

    repeat: int
    points: tuple[RunConfig, ...]
    bases: tuple[RunConfig, ...] = ()
    timelines: tuple[RunConfig, ...] = ()
    is_base: frozenset[str] = frozenset()  # ids of those points that are bases, too
    sequential: bool = False
    problems: Mapping[str, str] = field(default_factory=dict)  # by point id: why it cannot start


def part_launches(
    part: Part,
    allocation: str,
    resolved: Mapping[str, Resolved],
    is_done: Callable[[str], bool],
) -> Iterator[Planned]:
    """Yield the launches of ``part`` in ``allocation``, in its block's shuffled order.

    ``resolved`` is by point id. Where no point is missing there is nothing to divide: no base is
    measured either.
    """
    ids = [run_id(config, part.repeat) for config in (*part.points, *part.timelines)]
    if all(is_done(name) for name in ids):
        return
    points = {point_id(config) for config in part.points}
    extra = [base for base in part.bases if point_id(base) not in points]
    beside = {point_id(base) for base in extra}
    ordered = shuffled((*part.points, *extra, *part.timelines), part.repeat)
    for order, config in enumerate(ordered):
        key = point_id(config)
        own = allocation if key in beside else None
        block = BlockRef(
            repeat=part.repeat,
            allocation=allocation,
            order=order,
            is_base=key in beside or key in part.is_base,
            sequential=part.sequential,
        )
        yield Planned(
            run_id=run_id(config, part.repeat, own),
            config=config,
            resolved=resolved[key],
            block=block,
            problem=part.problems.get(key, ""),
        )


def distinct(configs: Sequence[RunConfig]) -> tuple[RunConfig, ...]:
    """Return configs without those that are one point."""
    return tuple({point_id(config): config for config in configs}.values())
