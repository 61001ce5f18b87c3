"""What makes an answer provisional: estimates without intervals, and efficiencies without pairs."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.advise.types import Candidate, Goal
from harness.analysis.advise.words import IS_BASE, share_text
from harness.analysis.apart import apart_sentence
from harness.analysis.scaling import Apart


def doubts(chosen: Candidate, rest: Sequence[Candidate], goal: Goal) -> list[str]:
    """Return why a choice is provisional: ``rest`` are the others that keep to the limits."""
    found = (
        _provisional(chosen, rest),
        _bare_efficiency(chosen, goal),
        _judged_apart(chosen, goal),
    )
    return [text for text in found if text]


def _provisional(chosen: Candidate, rest: Sequence[Candidate]) -> str | None:
    bare = [one for one in (chosen, *rest) if not one.time_s.has_interval]
    if not bare:
        return None
    of = "all points have" if len(bare) == 1 + len(rest) else f"{_points(len(bare))}"
    return (
        f"by estimates alone: {of} one block and so no interval, and no difference from "
        "them can be told from noise; run more blocks (measure.blocks: 5)"
    )


def _bare_efficiency(chosen: Candidate, goal: Goal) -> str | None:
    """Say that the limit was judged by one block's efficiency, whose base ran in no other."""
    efficiency = chosen.efficiency
    if goal.min_efficiency is None or efficiency is None or efficiency.has_interval:
        return None
    if chosen.apart:
        return (
            "--min-efficiency is judged by an estimate alone: the point or its base has a single "
            "value, so E has no interval; measure more blocks"
        )
    return (
        "--min-efficiency is judged by an estimate alone: its base is in one block, so E has no "
        "interval; run the base in every block"
    )


def _judged_apart(chosen: Candidate, goal: Goal) -> str | None:
    """Say that the limit was judged by an efficiency whose base nothing pairs with the point."""
    if goal.min_efficiency is None or chosen.efficiency is None or chosen.apart is None:
        return None
    said = apart_sentence(chosen.apart, "whose")
    return f"--min-efficiency is judged by an E {said}; measure the base in the same jobs"


def apart_efficiencies(judged: Sequence[Candidate]) -> tuple[str, ...]:
    """Return a note on efficiencies whose base is apart: of all that have one, or of how many."""
    with_e = [one for one in judged if one.efficiency and share_text(one.efficiency) != IS_BASE]
    found: dict[Apart, int] = {}
    for one in with_e:
        if one.apart is not None:
            found[one.apart] = found.get(one.apart, 0) + 1
    return tuple(
        f"E of {'all points' if count == len(with_e) else f'{count} of {len(with_e)} points'}: "
        f"{apart_sentence(apart)}"
        for apart, count in found.items()
    )


def _points(count: int) -> str:
    return "1 point has" if count == 1 else f"{count} points have"
