"""A diagnosis in words, the answer first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.analysis.diagnose.evidence import percent_text
from harness.analysis.diagnose.limiters import LIMITERS
from harness.analysis.diagnose.types import Diagnosis, Finding, Ranking
from harness.analysis.diagnose.worst import BY_SHARE
from harness.analysis.texts import NONE, grid_text, ratio_text, seconds_text
from harness.stats import Interval

#: A limiter below both is named in one line with the others.
_SMALL_OF_LOST, _SMALL_OF_STEP = 0.05, 0.02
#: Of a step: less than this is the rounding of differences.
_NOTHING = 1e-6
#: Named in the first sentences.
_NAMED = 2


def render_diagnosis(diagnoses: Sequence[Diagnosis]) -> str:
    """Return the answer, then each point with its evidence and knobs."""
    if not diagnoses:
        return "nothing was diagnosed"
    parts = ["\n".join(_answer(diagnoses))]
    parts += ["\n".join(_point(one)) for one in diagnoses]
    return "\n\n".join(parts)


def _answer(diagnoses: Sequence[Diagnosis]) -> Iterator[str]:
    ranking, first = diagnoses[0].ranking, diagnoses[0]
    yield f"{_count(ranking)} The worst, {_name(first)}, {_limited(first)}."
    yield f"worst: {ranking.rule}; {_unranked(ranking)}times are those of a step."


def _count(ranking: Ranking) -> str:
    total = ranking.points
    points = "1 point" if total == 1 else f"{total} points"
    based = ranking.rule != BY_SHARE
    of = "of the step" if based else "of the step outside compute that grows with the batch"
    one, many = ("loses", "lose") if based else ("spends", "spend")
    for count, words in ((ranking.over_half, "half"), (ranking.over_tenth, "a tenth")):
        if count:
            return f"{count} of {points} {one if count == 1 else many} more than {words} {of}."
    if ranking.unranked == total:
        return f"{points}, of which the records say too little to rank them."
    return f"None of {points} {one} more than a tenth {of}."


def _unranked(ranking: Ranking) -> str:
    if not ranking.unranked:
        return ""
    verb = "has" if ranking.unranked == 1 else "have"
    return f"{ranking.unranked} of {ranking.points} {verb} neither base nor phases; "


def _name(one: Diagnosis) -> str:
    nodes = f" ({one.placement})" if "+" in one.placement else ""
    return f"{one.label} at N={one.world_size}{nodes}"


def _limited(one: Diagnosis) -> str:
    lost = one.lost_s
    if lost is None:
        loss = "has a loss that cannot be told"
    elif one.loses:
        loss = f"loses {percent_text(lost.estimate / one.step_s.estimate)}"
    else:
        loss = "has no loss that is shown"
    return f"{loss}: {_by_what(one)}"


def _by_what(one: Diagnosis) -> str:
    limits = [each for each in one.limits if _is_told(each)]
    if not one.findings:
        return "what limits it, the records do not tell"
    if not limits:
        return "no limiter of any size is shown"
    named = ", then ".join(
        f"{LIMITERS[each.limiter].title} ({_share(each)})" for each in limits[:_NAMED]
    )
    untested = all(each.verdict == "one block" for each in limits[:_NAMED])
    return f"limited by {named}" + (" (one block: not tested)" if untested else "")


def _share(one: Finding) -> str:
    if one.share_of_lost is not None:
        return f"{percent_text(one.share_of_lost)} of it"
    if one.kind == "shared":
        return f"{percent_text(one.share_of_step)} of the step, the base's too"
    return f"{percent_text(one.share_of_step)} of the step"


def _point(one: Diagnosis) -> Iterator[str]:
    yield f"{one.rank}. {_name(one)}: {_limited(one)}"
    yield f"   {_against(one)}"
    told = [each for each in one.limits if _is_told(each)]
    yield from (f"   {line}" for line in _table(told))
    for each in told:
        yield f"   {each.limiter}: {LIMITERS[each.limiter].meaning}"
        yield from (f"     - {text}" for text in each.evidence)
        for knob in each.knobs:
            yield f"     > {knob.key}: {knob.action}" if knob.key else f"     > {knob.action}"
    small = [each for each in one.limits if not _is_told(each)]
    if small:
        yield f"   small: {_listed(small)}"
    denied = [e for e in one.findings if e.verdict == "not shown" and not _is_nothing(e, one)]
    if denied:
        yield f"   not shown: {_listed(denied)}"
    for text in one.cautions:
        yield f"   caution: {text}"
    for open_ in one.missing:
        yield f"   not told: {open_.question}; would tell: {open_.add}"


def _against(one: Diagnosis) -> str:
    step = f"step {interval_text(one.step_s)}"
    if one.lost_s is None or one.ideal_s is None:
        return f"{step}, no ideal step: {one.no_base}, and no phases"
    if one.base is None:
        whose = f"its own compute; no base: {one.no_base}"
    else:
        whose = f"of {one.base}, {one.scaling} scaling; E {ratio_text(one.efficiency)}"
    return f"{step}, ideal {seconds_text(one.ideal_s)} ({whose}), lost {interval_text(one.lost_s)}"


def _table(findings: Sequence[Finding]) -> list[str]:
    if not findings:
        return []
    rows = [("limiter", "a step", "of the loss", "of the step", "")]
    for one in findings:
        of_lost = NONE if one.share_of_lost is None else percent_text(one.share_of_lost)
        note = "in the base's step, too" if one.kind == "shared" else ""
        rows.append(
            (
                one.limiter,
                interval_text(one.time_s),
                of_lost,
                percent_text(one.share_of_step),
                note,
            )
        )
    return grid_text(rows)


def _is_told(one: Finding) -> bool:
    of_lost = one.share_of_lost or 0.0
    return of_lost >= _SMALL_OF_LOST or one.share_of_step >= _SMALL_OF_STEP


def _is_nothing(one: Finding, of: Diagnosis) -> bool:
    """Say whether a time and its ends are what rounding leaves of zero."""
    ends = (one.time_s.estimate, one.time_s.low or 0.0, one.time_s.high or 0.0)
    return max(map(abs, ends)) < _NOTHING * of.step_s.estimate


def _listed(findings: Sequence[Finding]) -> str:
    return ", ".join(f"{one.limiter} {interval_text(one.time_s)}" for one in findings)


def interval_text(interval: Interval) -> str:
    """Return a time with the ends of its interval: ``1.23 ms [1.20 ms, 1.26 ms]``."""
    if interval.low is None or interval.high is None:
        return _minus(seconds_text(interval.estimate))
    ends = f"[{seconds_text(interval.low)}, {seconds_text(interval.high)}]"
    return _minus(f"{seconds_text(interval.estimate)} {ends}")


def _minus(text: str) -> str:
    return text.replace("-", "−")
