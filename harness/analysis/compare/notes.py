"""What a reader must know before believing a comparison, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.analysis.compare.contrast import Contrast
from harness.analysis.compare.items import Item, differing
from harness.analysis.compare.types import Pair, Side
from harness.analysis.texts import digits_text
from harness.stats import SEQUENTIAL_NOTE, Interval

Pairs = Sequence[tuple[Item, Item]]
#: Keys that change what is computed, so that a step of A is not worth a step of B.
_ARITHMETIC = (
    *("execution.precision", "execution.accumulate", "horovod.compression", "horovod.op"),
    *("batch_size", "global_batch_size", "scaling"),
)
_OF_ARITHMETIC = ("learning_rate.", "workload.options.")


def notes_of(
    pairs: Pairs,
    made: Sequence[Pair],
    sides: tuple[Side, Side],
    lacking: Sequence[str] | None,
) -> Iterator[str]:
    """Yield the notes, those first that could turn the answer round.

    ``lacking`` are the keys in which two sweeps differ, where some pairs do not (none where all
    do); None where both sides are of one sweep.
    """
    contrasts = [pair.throughput for pair in made]
    yield from _side_by_side(contrasts, sides, of_sweeps=lacking is not None)
    yield from _controls(made, lacking or ())
    yield from _one_block(contrasts)
    yield from _arithmetic(pairs)
    yield from _measured_otherwise(pairs)
    yield from _shared(pairs)
    yield from _unused(contrasts)
    yield from _failed(sides)
    yield from _unsteady(pairs)
    yield from _disagreeing(made)
    if any(item.point.sequential for pair in pairs for item in pair):
        yield SEQUENTIAL_NOTE


def _controls(made: Sequence[Pair], lacking: Sequence[str]) -> Iterator[str]:
    if lacking:
        low, high = (f(p.throughput.effect.estimate for p in made if p.control) for f in (min, max))
        yield (
            f"controls do not differ in {', '.join(lacking)}: their B / A, {digits_text(low)} to "
            f"{digits_text(high)}, is what else changed between the sweeps"
        )


def _side_by_side(
    contrasts: Sequence[Contrast], sides: tuple[Side, Side], *, of_sweeps: bool
) -> Iterator[str]:
    """Say where a difference of the machine's state cannot be told from one of A and B."""
    a, b = sides
    if not of_sweeps and all(found.test == "paired t" for found in contrasts):
        return
    if not of_sweeps:
        apart = a.is_apart_from(b)
        untold = ", and no test can tell it from the difference of A and B" if apart else ""
        yield (
            "unpaired points: their two sides have fewer than two blocks in common, so what else "
            f"changed between their blocks is in the ratio{untold}"
        )
        return
    when = f"A {_period(a)}, B {_period(b)}"
    if len(a.allocations) > 1 and len(b.allocations) > 1:
        yield f"not measured side by side ({when})"
        return
    single = [n for n, side in (("A", a), ("B", b)) if len(side.allocations) == 1]
    yield (
        f"not measured side by side ({when}), and {' and '.join(single)} in a single "
        "allocation: "
        "what else changed between the sweeps is in the ratio, and no test can tell it from the "
        "difference of A and B; where both fit into one sweep, its blocks pair them"
    )


def _period(side: Side) -> str:
    first, last = side.first_started_at[:16], side.last_started_at[:16]
    return first if first == last else f"{first} to {last}"


def _one_block(contrasts: Sequence[Contrast]) -> Iterator[str]:
    alone = sum(found.p_value is None for found in contrasts)
    if alone:
        which = "all points" if alone == len(contrasts) else f"{alone} of {len(contrasts)} points"
        yield (
            f"cannot tell at {which}: one block has no scatter to test against; run the sweep "
            "with measure.blocks: 3 or more (5 is the default)"
        )


def _arithmetic(pairs: Pairs) -> Iterator[str]:
    found = {
        key
        for one, other in pairs
        for key in differing(one.facts, other.facts)
        if key in _ARITHMETIC or key.startswith(_OF_ARITHMETIC)
    }
    if found:
        yield (
            f"{', '.join(sorted(found))}: A and B train differently, so samples/s alone do not say "
            "which is better; compare accuracy, too (hvdscale train)"
        )


def _measured_otherwise(pairs: Pairs) -> Iterator[str]:
    found: dict[str, tuple[str, str]] = {}
    for one, other in pairs:
        apart = differing(one.facts, other.facts)
        found |= {key: value for key, value in apart.items() if key.startswith("measure.")}
    if found:
        named = ", ".join(f"{key} ({a} / {b})" for key, (a, b) in sorted(found.items()))
        yield f"measured differently: {named}"


def _shared(pairs: Pairs) -> Iterator[str]:
    for side, name in ((0, "A"), (1, "B")):
        points = [id(pair[side]) for pair in pairs]
        several = sum(points.count(point) > 1 for point in set(points))
        if several:
            yield (
                f"{several} {_points(several)} of {name} {_have(several)} several matches, "
                "each of which is listed; such rows share launches"
            )


def _unused(contrasts: Sequence[Contrast]) -> Iterator[str]:
    a, b = (sum(found.unused[side] for found in contrasts) for side in (0, 1))
    if a or b:
        yield f"{a} blocks of A and {b} of B have no partner in the other and no part in a ratio"


def _failed(sides: tuple[Side, Side]) -> Iterator[str]:
    found = [f"{side.failed} of {n}" for n, side in zip("AB", sides, strict=True) if side.failed]
    if found:
        yield (
            f"launches that were never measured: {', '.join(found)}; what is compared are those "
            "that survived"
        )


def _unsteady(pairs: Pairs) -> Iterator[str]:
    for side, name in ((0, "A"), (1, "B")):
        points = {id(pair[side]): pair[side].point for pair in pairs}.values()
        judged = [point.steadiness for point in points if point.steadiness]
        drifting = sum(one.drifting for one in judged)
        if drifting:
            launches = sum(one.launches for one in judged)
            yield f"{drifting} of {launches} windows of {name} drift: hvdscale collect says where"


def _disagreeing(made: Sequence[Pair]) -> Iterator[str]:
    found = [
        pair.where
        for pair in made
        if pair.throughput.check is not None
        and _holds_one(pair.throughput.check) != _holds_one(pair.throughput.effect)
    ]
    if found:
        yield (
            f"the signed-rank check and the t interval disagree on whether 1 is possible: look at "
            f"the launches of {'; '.join(found)}"
        )


def _holds_one(interval: Interval) -> bool:
    assert interval.low is not None
    assert interval.high is not None
    return interval.low <= 1 <= interval.high


def _points(count: int) -> str:
    return "point" if count == 1 else "points"


def _have(count: int) -> str:
    return "has" if count == 1 else "have"
