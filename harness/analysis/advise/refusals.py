"""Why nothing is recommended, and what would have to give way."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.advise.choose import is_efficient, lower, meets_deadline, upper
from harness.analysis.advise.types import Candidate, Goal
from harness.analysis.advise.words import brief, efficiency_text, percent, span_text


def alone(judged: Sequence[Candidate], goal: Goal) -> str:
    """Say that one point is no choice."""
    if not judged:
        return "nothing to choose from: no point has a known cost"
    (one,) = judged
    limited = goal.deadline_s is not None or goal.min_efficiency is not None
    kept = "; it keeps to the limits" if limited else ""
    missed = f"; it does not keep to the limits: {'; '.join(one.misses)}" if one.misses else kept
    return (
        f"only one point is there, {brief(one)}, so there is nothing to choose from{missed}; "
        "measure others, e.g. with --set 'placement=[1,2,4]'"
    )


def out_of_reach(judged: Sequence[Candidate], goal: Goal) -> str:
    """Say how near the nearest comes, where no candidate keeps to the limits."""
    if goal.min_efficiency is not None and all(one.efficiency is None for one in judged):
        return (
            f"efficiency cannot be judged: {judged[0].no_efficiency}; measure the base (none@1) in "
            "the same blocks, name one that was measured with --base, or leave --min-efficiency out"
        )
    late = all(not meets_deadline(one, goal) for one in judged)
    if goal.deadline_s is not None and late:
        return _too_late(judged, goal.deadline_s)
    wasteful = all(not is_efficient(one, goal) for one in judged)
    if goal.min_efficiency is not None and wasteful:
        best = max(
            (one for one in judged if one.efficiency is not None),
            key=lambda one: lower(one.efficiency) if one.efficiency else 0.0,
        )
        return (
            f"no point is as efficient as {goal.min_efficiency:g} by its interval's lower end; the "
            f"most efficient is {brief(best)} with {efficiency_text(best)}"
        )
    fast = min(
        (one for one in judged if is_efficient(one, goal)), key=lambda one: one.time_s.estimate
    )
    return (
        f"no point keeps to both limits; of those that are efficient enough the fastest is "
        f"{brief(fast)}, {'; '.join(fast.misses)}"
    )


def _too_late(judged: Sequence[Candidate], deadline_s: float) -> str:
    fast = min(judged, key=lambda one: upper(one.time_s))
    over = upper(fast.time_s) - deadline_s
    by = "by its time" if fast.time_s.high is None else "by the upper end of its interval"
    more = ""
    if fast.time_s.estimate <= deadline_s:
        more = "; its estimate does meet it, so more blocks (measure.blocks) may settle it"
    return (
        f"no point meets the deadline of {span_text(deadline_s)}; the fastest is {brief(fast)}, "
        f"{span_text(over)} ({percent(over / deadline_s)}) too late {by}{more}"
    )
