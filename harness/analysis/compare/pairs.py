"""The pairs of a comparison: each quantity's contrast, and the verdict on throughput."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from harness.analysis.compare.contrast import Contrast, difference, holm, ratio, smallest_among
from harness.analysis.compare.items import Item, differing
from harness.analysis.compare.telling import Told, told_by
from harness.analysis.compare.types import Pair, Verdict
from harness.analysis.rows import RATE

#: What is compared beside throughput, without a test: times by B − A, the others by B / A.
TIMES = (
    *("step_s", "data_s", "forward_s", "backward_s", "exposed_sync_s", "transfer_s", "wait_s"),
    *("update_s", "allreduce_p50_s"),
)
RATIOS = ("rank_rss_max_bytes", "gpu_memory_max_bytes", "gpu_power_w", "energy_per_sample_j")


def make_pairs(
    pairs: Sequence[tuple[Item, Item]], axis: str | None, varied: Sequence[str], level: float
) -> tuple[Pair, ...]:
    """Return what each pair of points says; blocks are paired where there is an ``axis``.

    ``varied`` are the keys in which A and B differ by intention: a pair that does not is a control.
    """
    throughput = [_throughput(pair, axis, level) for pair in pairs]
    controls = [bool(varied) and not _differ(pair, varied) for pair in pairs]
    tested = [None if c else one.p_value for one, c in zip(throughput, controls, strict=True)]
    tests = sum(p is not None for p in tested)
    told = told_by(pairs, varied)
    made = []
    for pair, found, p, control in zip(pairs, throughput, holm(tested), controls, strict=True):
        corrected = (found.p_value, 1) if control else (p, tests)
        made.append(_pair(pair, found, corrected, axis, told, level))
    return tuple(made)


def _differ(pair: tuple[Item, Item], keys: Sequence[str]) -> bool:
    one, other = pair
    return any(one.facts.get(key) != other.facts.get(key) for key in keys)


def _pair(
    pair: tuple[Item, Item],
    throughput: Contrast,
    corrected: tuple[float | None, int],  # p, and for how many tests
    axis: str | None,
    told: Told,
    level: float,
) -> Pair:
    one, other = pair
    p_corrected, tests = corrected
    parts = {name: _contrast(one, other, name, axis, level) for name in (*TIMES, *RATIOS)}
    apart = differing(one.facts, other.facts)
    return Pair(
        config=MappingProxyType(told.of(one, other)),
        differs=MappingProxyType({k: v for k, v in apart.items() if k not in told.hidden}),
        world_size=one.point.world_size,
        placement=one.point.placement,
        placement_b=other.point.placement,
        throughput=throughput,
        p_corrected=p_corrected,
        verdict=_verdict(throughput, p_corrected, level),
        smallest=smallest_among(throughput, tests, level),
        control=bool(told.varied) and not _differ(pair, told.varied),
        parts=MappingProxyType({k: v for k, v in parts.items() if v is not None}),
        run_ids=(
            tuple(launch.run_id for launch in one.point.launches),
            tuple(launch.run_id for launch in other.point.launches),
        ),
    )


def _throughput(pair: tuple[Item, Item], axis: str | None, level: float) -> Contrast:
    found = _contrast(*pair, RATE, axis, level)
    assert found is not None  # every launch of a point has a throughput above 0
    return found


def _contrast(
    one: Item, other: Item, column: str, axis: str | None, level: float
) -> Contrast | None:
    """Return the contrast of a column; None where a side has not measured it."""
    by_ratio = column == RATE or column in RATIOS
    a, b = (item.by_block(column, positive=by_ratio) for item in (one, other))
    if not a or not b:
        return None
    compared = ratio if by_ratio else difference
    return compared(a, b, pairable=axis is not None, level=level)


def _verdict(found: Contrast, p_corrected: float | None, level: float) -> Verdict:
    if p_corrected is None:
        return "cannot tell"
    # As written, lest 1 − 0.95 become a little more than 0.05.
    if p_corrected >= round(1 - level, 12):
        return "not shown"
    return "faster" if found.effect.estimate > 1 else "slower"
