"""The choice among candidates: limits, objective, what noise leaves undecided, the runner-up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from harness.analysis.advise.types import Candidate, Factor, Goal, Objective
from harness.stats import BlockKey, Interval, mean_interval

CHEAPEST = Objective(
    "cheapest", 1, 1, "device-hours",
    "fewest device-hours among those that meet the deadline "
    "(by the upper end of their time's interval)",
)  # fmt: skip
FASTEST = Objective(
    "fastest", 1, 0, "time",
    "fastest among those that are efficient enough (by the lower end of E's interval)",
)  # fmt: skip
KNEE = Objective(
    "knee", 2, 1, "time × device-hours",
    "least time × device-hours: the knee, beyond which a device more costs more efficiency than "
    "it gives speed (Eager, Zahorjan & Lazowska 1989)",
)  # fmt: skip
_BASES = ("measured", "computed", "noise scale")


def objective_of(goal: Goal) -> Objective:
    """Return what is made least: with a deadline cost, with a least efficiency time, else both."""
    if goal.deadline_s is not None:
        return CHEAPEST
    return FASTEST if goal.min_efficiency is not None else KNEE


def value(candidate: Candidate, objective: Objective) -> float:
    """Return ln(time^p · devices^q), by the estimate; smaller is better."""
    return objective.time_power * math.log(
        candidate.time_s.estimate
    ) + objective.device_power * math.log(candidate.world_size)


def upper(interval: Interval) -> float:
    """Return the upper end, or the estimate where there is no interval."""
    return interval.estimate if interval.high is None else interval.high


def lower(interval: Interval) -> float:
    """Return the lower end, or the estimate where there is no interval."""
    return interval.estimate if interval.low is None else interval.low


def meets_deadline(candidate: Candidate, goal: Goal) -> bool:
    """Say whether the time's unfavourable end is inside the deadline; with none, anything is."""
    return goal.deadline_s is None or upper(candidate.time_s) <= goal.deadline_s


def is_efficient(candidate: Candidate, goal: Goal) -> bool:
    """Say whether the efficiency's unfavourable end is high enough; an unknown one is not."""
    if goal.min_efficiency is None:
        return True
    return candidate.efficiency is not None and lower(candidate.efficiency) >= goal.min_efficiency


def is_feasible(candidate: Candidate, goal: Goal) -> bool:
    """Say whether it keeps to all limits."""
    return meets_deadline(candidate, goal) and is_efficient(candidate, goal)


def log_ratio(a: Candidate, b: Candidate, objective: Objective) -> Interval | None:
    """Return ln of what is made least, ``a`` against ``b``, with its interval; None without one.

    Blocks that both have are compared in pairs (Student's t, allocations being the outer level).
    Where two blocks or more are not shared, the half widths of both intervals are added in
    quadrature, which is a little wide. What the factors do not know is added likewise; factors of
    one source move together.
    """
    found = _paired(a, b) or _unpaired(a, b)
    if found is None or found.low is None or found.high is None:
        return None
    centre = found.estimate
    below, above = centre - found.low, found.high - centre
    for shift, down, up in _factor_ratios(a.factors, b.factors):
        centre += shift
        below, above = math.hypot(below, down), math.hypot(above, up)
    power = objective.time_power
    centre = power * centre + objective.device_power * math.log(a.world_size / b.world_size)
    return replace(found, estimate=centre, low=centre - power * below, high=centre + power * above)


def ties(best: Candidate, others: Sequence[Candidate], objective: Objective) -> list[Candidate]:
    """Return those of ``others`` whose ratio to the best has 1 inside its interval."""
    found = []
    for one in others:
        ratio = None if one is best else log_ratio(one, best, objective)
        if ratio is not None and ratio.low is not None and ratio.low <= 0.0:
            found.append(one)
    return found


def simplest(candidates: Sequence[Candidate], objective: Objective) -> Candidate:
    """Return the smallest: fewest devices, nodes, assumptions, options; then the better one."""
    return min(
        candidates,
        key=lambda one: (
            one.world_size,
            one.nodes,
            _BASES.index(one.basis),
            one.engine != "none",
            one.options,
            value(one, objective),
            one.label,
        ),
    )


def _paired(a: Candidate, b: Candidate) -> Interval | None:
    mine, other = _logs(a), _logs(b)
    shared = {key: mine[key] - other[key] for key in mine if key in other}
    return mean_interval(shared) if len(shared) > 1 else None


def _unpaired(a: Candidate, b: Candidate) -> Interval | None:
    found = [mean_interval(_logs(one)) for one in (a, b)]
    if any(one.low is None or one.high is None for one in found):
        return None
    halves = [one.high - one.estimate for one in found if one.high is not None]
    centre, half = found[0].estimate - found[1].estimate, math.hypot(*halves)
    return replace(
        found[0], estimate=centre, low=centre - half, high=centre + half,
        n=min(one.n for one in found), method="no blocks in common: intervals in quadrature",
    )  # fmt: skip


def _logs(candidate: Candidate) -> dict[BlockKey, float]:
    values: dict[BlockKey, list[float]] = {}
    for block in candidate.blocks:
        values.setdefault(block.pair, []).append(math.log(block.time_s))
    return {key: sum(found) / len(found) for key, found in values.items()}


def _factor_ratios(
    mine: Sequence[Factor], others: Sequence[Factor]
) -> list[tuple[float, float, float]]:
    """Return for each source (ln ratio, how far below, how far above it may be)."""
    found = []
    for source in dict.fromkeys(factor.source for factor in (*mine, *others)):
        logs = [0.0, 0.0, 0.0]
        for sign, factors in ((1, mine), (-1, others)):
            for factor in factors:
                if factor.source == source:
                    values = (factor.estimate, *factor.ends)
                    logs = [x + sign * math.log(v) for x, v in zip(logs, values, strict=True)]
        found.append((logs[0], logs[0] - min(logs), max(logs) - logs[0]))
    return found
