"""Which point of A belongs to which point of B: equal in all but what is compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from harness.analysis.compare.items import Facts, Item, differing
from harness.errors import AnalysisError

#: Says nothing beside the placement as it was resolved.
_ALWAYS_FREE = ("placement_policy",)
#: What follows from another value of an axis, and so may differ with it: the nearest match counts.
_FOLLOWS: dict[str, tuple[str, ...]] = {
    "engine": ("backend", "launcher", "horovod.", "ddp.", "measure.instruments"),
    "backend": ("launcher", "horovod.controller"),
    "launcher": ("horovod.controller",),
    "horovod.controller": ("launcher",),
    "placement_policy": ("placement",),
    "scaling": ("batch_size", "global_batch_size"),
}
#: Between sweeps: how long and with what beside it a window was measured.
_OF_SWEEPS = ("measure.",)
#: What two sweeps must have in common for their throughputs to have anything to do with each other.
_SAME_WORK = ("workload.name", "scaling")
_SHOWN = 4


@dataclass(frozen=True)
class Matched:
    """The pairs, what has no like on the other side, and in what all pairs differ by intention."""

    pairs: tuple[tuple[Item, Item], ...]
    only_a: tuple[Item, ...]
    only_b: tuple[Item, ...]
    varied: tuple[str, ...]  # keys


def match_values(a: Sequence[Item], b: Sequence[Item], key: str) -> Matched:
    """Match the points of one sweep that differ in ``key``, and in what follows from it."""
    free = (key, *_FOLLOWS.get(key, ()), *_ALWAYS_FREE)
    # Between scalings the declared batch cannot be equal; the work of a rank can.
    by_batch = key == "scaling"

    def hard(item: Item) -> tuple[object, ...]:
        extra = item.point.world_size if key == "placement_policy" else None
        return (_key(item.asked, free), item.point.rank_batch if by_batch else None, extra)

    pairs = _pairs(a, b, hard, lambda one, other: _distance(one.asked, other.asked, free, key))
    return _matched(a, b, pairs, (key,), free)


def match_sweeps(a: Sequence[Item], b: Sequence[Item]) -> Matched:
    """Match the points of two sweeps by their whole configs, ``measure`` excepted.

    Where nothing but plain steps has its exact like, keys that have one value in each sweep and not
    the same are taken to be what is compared: they and what follows from them may differ.
    """
    free: tuple[str, ...] = (*_OF_SWEEPS, *_ALWAYS_FREE)
    pairs = _between(a, b, free)
    if any(one.facts["engine"] != "none" for one, _ in pairs):
        return _matched(a, b, pairs, (), free)
    paired = {id(item) for pair in pairs for item in pair}
    rest_a, rest_b = ([one for one in side if id(one) not in paired] for side in (a, b))
    varied = _constants(rest_a, rest_b, free)
    if varied:
        follows = [name for key in varied for name in _FOLLOWS.get(key, ())]
        free = (*free, *varied, *follows)
        pairs = [*pairs, *_between(rest_a, rest_b, free)]
    return _matched(a, b, pairs, varied, free)


def _between(a: Sequence[Item], b: Sequence[Item], free: Sequence[str]) -> list[tuple[Item, Item]]:
    return _pairs(
        a,
        b,
        lambda item: _key(item.facts, free),
        lambda one, other: _distance(one.facts, other.facts, free, ""),
    )


def _pairs(
    a: Sequence[Item],
    b: Sequence[Item],
    hard: Callable[[Item], object],
    distance: Callable[[Item, Item], int],
) -> list[tuple[Item, Item]]:
    """Return the pairs with equal ``hard`` keys that are nearest to each other, ties all of them.

    Mutually nearest: NCCL under Horovod is paired with NCCL under DDP, and MPI, for which DDP has
    only a farther match, with nothing as long as that match has a nearer one.
    """
    groups: dict[object, list[Item]] = {}
    for item in b:
        groups.setdefault(hard(item), []).append(item)
    found = []
    fellows: dict[object, list[Item]] = {}
    for item in a:
        fellows.setdefault(hard(item), []).append(item)
    for item in a:
        key = hard(item)
        there = groups.get(key, [])
        least = min((distance(item, other) for other in there), default=0)
        for other in there:
            nearest = min(distance(one, other) for one in fellows[key])
            if distance(item, other) == least == nearest:
                found.append((item, other))
    return found


def _matched(
    a: Sequence[Item],
    b: Sequence[Item],
    pairs: Sequence[tuple[Item, Item]],
    varied: tuple[str, ...],
    free: Sequence[str],
) -> Matched:
    if not pairs:
        raise AnalysisError(f"no point of A has its like in B: {_nearest(a, b, free)}")
    paired = {id(item) for pair in pairs for item in pair}
    for one, other in pairs:
        if one.facts["workload.name"] != other.facts["workload.name"]:
            raise AnalysisError(
                f"A is {one.facts['workload.name']} and B {other.facts['workload.name']}: samples "
                "of two workloads cannot be compared"
            )
    return Matched(
        pairs=tuple(pairs),
        only_a=tuple(item for item in a if id(item) not in paired),
        only_b=tuple(item for item in b if id(item) not in paired),
        varied=varied,
    )


def _constants(a: Sequence[Item], b: Sequence[Item], free: Sequence[str]) -> tuple[str, ...]:
    """Return the keys that have one value in ``a``, one in ``b``, and not the same."""

    def constants(side: Sequence[Item]) -> dict[str, str]:
        values: dict[str, set[str]] = {}
        for item in side:
            for key, value in item.facts.items():
                values.setdefault(key, set()).add(value)
        return {key: next(iter(found)) for key, found in values.items() if len(found) == 1}

    ours, theirs = constants(a), constants(b)
    apart = differing(ours, theirs)
    kept = (*_SAME_WORK, "placement")
    return tuple(key for key in sorted(apart) if key not in kept and not _is_free(key, free))


def _key(facts: Facts, free: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((k, value) for k, value in facts.items() if not _is_free(k, free)))


def _distance(a: Facts, b: Facts, free: Sequence[str], axis: str) -> int:
    """Return in how many keys that may differ two points do, the axis excepted."""
    return sum(_is_free(key, free) and key != axis for key in differing(a, b))


def _is_free(key: str, free: Iterable[str]) -> bool:
    return any(key.startswith(name) if name.endswith(".") else key == name for name in free)


def _nearest(a: Sequence[Item], b: Sequence[Item], free: Sequence[str]) -> str:
    """Say in what the two points differ that come nearest to a match."""

    def apart(one: Item, other: Item) -> list[str]:
        keys = sorted(set(one.facts) | set(other.facts))
        return [
            f"{key} ({one.facts.get(key, 'none')}, {other.facts.get(key, 'none')})"
            for key in keys
            if not _is_free(key, free) and one.facts.get(key) != other.facts.get(key)
        ]

    found = min((apart(one, other) for one in a for other in b), key=len, default=[])
    if not found:
        return "in each pair a rank's batch or the device count is another"
    more = f", and {len(found) - _SHOWN} more keys" if len(found) > _SHOWN else ""
    return f"the two nearest differ in {', '.join(found[:_SHOWN])}{more}"
