"""One answer: which candidate, which limit bound, what the others cost, what would change it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.analysis.advise.choose import (
    is_efficient,
    is_feasible,
    log_ratio,
    lower,
    meets_deadline,
    objective_of,
    simplest,
    ties,
    upper,
    value,
)
from harness.analysis.advise.doubts import apart_efficiencies, doubts
from harness.analysis.advise.refusals import alone, out_of_reach
from harness.analysis.advise.types import Answer, Candidate, Goal, Objective
from harness.analysis.advise.words import (
    brief,
    duration_flag,
    percent,
    span_text,
)
from harness.analysis.texts import digits_text, ratio_text
from harness.stats import Interval


@dataclass(frozen=True)
class Question:
    """What an answer is about."""

    title: str
    cost_of: str
    chooses_batch: bool
    notes: tuple[str, ...] = ()


def answer(question: Question, candidates: Sequence[Candidate], goal: Goal) -> Answer:
    """Choose among candidates. One alone, or none that keeps to the limits, is no choice."""
    objective = objective_of(goal)
    judged = [replace(one, misses=_misses(one, goal)) for one in candidates]
    judged.sort(key=lambda one: (bool(one.misses), value(one, objective), one.label))
    notes = (*question.notes, *apart_efficiencies(judged))
    empty = Answer(
        title=question.title, cost_of=question.cost_of, objective=objective,
        chooses_batch=question.chooses_batch, candidates=tuple(judged), recommended=None,
        refusal=None, provisional=None, tied=(), why=(), runner_up=None, to_win=None,
        notes=notes,
    )  # fmt: skip
    fit = [one for one in judged if not one.misses]
    if len(judged) < 2:
        return replace(empty, refusal=alone(judged, goal))
    if not fit:
        return replace(empty, refusal=out_of_reach(judged, goal))
    tied = ties(fit[0], fit, objective)
    chosen = simplest([fit[0], *tied], objective)
    rest = [one for one in fit if one is not chosen]
    runner_up, to_win = _runner_up(chosen, rest, judged, goal, objective)
    provisional = doubts(chosen, rest, goal)
    labels = [one.label for one in (fit[0], *tied) if one is not chosen] if tied else []
    return replace(
        empty,
        recommended=chosen,
        provisional="; ".join(provisional) or None,
        tied=tuple(labels),
        why=tuple(_why(chosen, judged, tied, goal, objective)),
        runner_up=runner_up,
        to_win=to_win,
    )


def unchosen(found: Answer, why: str) -> Answer:
    """Return an answer that lists its candidates and recommends none of them."""
    return replace(
        found, recommended=None, refusal=why, provisional=None, tied=(), why=(), runner_up=None,
        to_win=None, comparable=False,
    )  # fmt: skip


def _misses(one: Candidate, goal: Goal) -> tuple[str, ...]:
    found = []
    if not meets_deadline(one, goal):
        assert goal.deadline_s is not None
        over = upper(one.time_s) - goal.deadline_s
        end = "" if one.time_s.high is None else ", by the upper end"
        found.append(f"{span_text(over)} too late{end}")
    if not is_efficient(one, goal):
        if one.efficiency is None:
            found.append(f"no efficiency: {one.no_efficiency}")
        else:
            end = "E" if one.efficiency.low is None else "E's lower end"
            found.append(f"{end} {digits_text(lower(one.efficiency))} is below the limit")
    return tuple(found)


def _why(
    chosen: Candidate,
    judged: Sequence[Candidate],
    tied: Sequence[Candidate],
    goal: Goal,
    objective: Objective,
) -> list[str]:
    fit = [one for one in judged if not one.misses]
    found = []
    if tied and chosen is not fit[0]:
        found.append(
            f"{brief(fit[0])} is better by the estimate, but cannot be told from it: "
            f"{_ratio_words(fit[0], chosen, objective)}; the smaller is preferred"
        )
    elif tied:
        names = "; ".join(one.label for one in tied[:3])
        more = f"; and {len(tied) - 3} more" if len(tied) > 3 else ""
        found.append(f"not to be told from it, and not smaller: {names}{more}")
    found += _bounds(chosen, judged, goal, objective)
    limit = goal.deadline_s
    if limit is not None and chosen.wall_s is not None and upper(chosen.wall_s) > limit:
        found.append(
            f"with its evaluations it took {span_text(chosen.wall_s.estimate)} wall-clock, which "
            "is beyond the deadline: evaluate less often (train.evaluate_every)"
        )
    fast = min(judged, key=lambda one: one.time_s.estimate)
    cheap = min(judged, key=lambda one: one.device_hours.estimate)
    if fast is cheap and fast is not chosen:
        return [*found, f"fastest and cheapest of all: {_against(fast, chosen)}"]
    if fast is not chosen:
        found.append(f"fastest of all: {_against(fast, chosen)}")
    if cheap is not chosen:
        found.append(f"cheapest of all: {_against(cheap, chosen)}")
    return found


def _bounds(
    chosen: Candidate, judged: Sequence[Candidate], goal: Goal, objective: Objective
) -> list[str]:
    """Say of each limit whether it decided: what would have been chosen without it."""
    found = []
    for flag, free in (
        ("--deadline", replace(goal, deadline_s=None)),
        ("--min-efficiency", replace(goal, min_efficiency=None)),
    ):
        if free == goal:
            continue
        better = [
            one
            for one in judged
            if one.misses
            and is_feasible(one, free)
            and value(one, objective) < value(chosen, objective)
        ]
        if not better:
            found.append(f"{flag} did not bind")
            continue
        # The one that asks least, and the best there would be.
        near = min(better, key=lambda one: _price(one, flag))
        best = min(better, key=lambda one: value(one, objective))
        rest = "" if near is best else f", and in the end {brief(best)}, {_from(best, flag)}"
        found.append(f"{flag} bound: {brief(near)} would be better, {_from(near, flag)}{rest}")
    return found


def _price(one: Candidate, flag: str) -> float:
    """Return how far a limit would have to give way; an unknown efficiency is the dearest."""
    if flag == "--deadline":
        return upper(one.time_s)
    return math.inf if one.efficiency is None else -lower(one.efficiency)


def _from(one: Candidate, flag: str) -> str:
    if flag == "--deadline":
        return f"from {flag} {duration_flag(upper(one.time_s))} on"
    if one.efficiency is None:
        return f"but its efficiency is not known: {one.no_efficiency}"
    return f"from {flag} {_floor(lower(one.efficiency))} down"


def _floor(efficiency: float) -> str:
    """Return an efficiency that a candidate is sure to pass as a limit."""
    digits = 100 if efficiency >= 0.1 else 10_000
    return f"{math.floor(digits * efficiency) / digits:g}"


def _runner_up(
    chosen: Candidate,
    rest: Sequence[Candidate],
    judged: Sequence[Candidate],
    goal: Goal,
    objective: Objective,
) -> tuple[Candidate | None, str | None]:
    """Return the next best that keeps to the limits, else the best of those that do not."""
    if rest:
        second = min(rest, key=lambda one: (value(one, objective), one.label))
        return second, _to_win(second, chosen, objective)
    others = [one for one in judged if one is not chosen]
    second = min(others, key=lambda one: value(one, objective))
    flags = []
    if not meets_deadline(second, goal):
        flags.append(f"--deadline {duration_flag(upper(second.time_s))}")
    if not is_efficient(second, goal) and second.efficiency is not None:
        flags.append(f"--min-efficiency {_floor(lower(second.efficiency))}")
    if not flags or value(second, objective) >= value(chosen, objective):
        return second, f"it does not keep to the limits, and {_to_win(second, chosen, objective)}"
    return second, f"it would win with {' and '.join(flags)}"


def _to_win(second: Candidate, chosen: Candidate, objective: Objective) -> str:
    ratio = log_ratio(second, chosen, objective)
    if ratio is not None and _has_zero(ratio):
        words = _ratio_words(second, chosen, objective)
        return f"it cannot be told from it: {words}; more blocks may tell"
    behind = value(second, objective) - value(chosen, objective)
    if behind <= 0:
        return "it is ahead by the estimate alone"
    return (
        f"it would win if its time fell by {percent(1 - math.exp(-behind / objective.time_power))}"
    )


def _has_zero(ratio: Interval) -> bool:
    return ratio.low is not None and ratio.high is not None and ratio.low <= 0.0 <= ratio.high


def _ratio_words(one: Candidate, other: Candidate, objective: Objective) -> str:
    ratio = log_ratio(one, other, objective)
    assert ratio is not None
    assert ratio.low is not None
    assert ratio.high is not None
    whole = replace(
        ratio, estimate=math.exp(ratio.estimate), low=math.exp(ratio.low), high=_exp(ratio.high)
    )
    return f"ratio of their {objective.quantity} {ratio_text(whole)}"


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf


def _against(one: Candidate, chosen: Candidate) -> str:
    time = one.time_s.estimate / chosen.time_s.estimate
    cost = one.device_hours.estimate / chosen.device_hours.estimate
    return f"{brief(one)}, {_times(time)} the time at {_times(cost)} the device-hours"


def _times(ratio: float) -> str:
    return f"{digits_text(ratio, 2)}×"
