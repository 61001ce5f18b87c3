"""Advice for a terminal: the answer first, then why, then every candidate."""

from __future__ import annotations

from collections.abc import Iterator

from harness.analysis.advise.types import Advice, Answer, Candidate
from harness.analysis.advise.words import (
    device_word,
    efficiency_text,
    hours_text,
    share_text,
    spans_text,
)
from harness.analysis.texts import NONE, line_text

_ROWS = 12  # of the table of candidates, at most


def render_advice(advice: Advice) -> str:
    """Return the text of all answers, and what is to be said of all once below them."""
    blocks = ["\n".join(_answer(one)) for one in advice.answers]
    shared = dict.fromkeys(note for one in advice.answers for note in one.notes)
    notes = [*shared, *advice.notes]
    if notes:
        blocks.append("\n".join(["notes", *(f"  - {note}" for note in notes)]))
    return "\n\n".join(blocks)


def _answer(one: Answer) -> Iterator[str]:
    yield one.title
    best = one.recommended
    if best is None:
        yield f"  no advice: {one.refusal}"
    else:
        yield from _recommended(one, best)
    if one.candidates:
        yield f"  judged by: {one.objective.text}"
    if one.next:
        yield f"  worth measuring next: {one.next}"
    if len(one.candidates) > 1:
        yield ""
        yield from _table(one)


def _recommended(one: Answer, best: Candidate) -> Iterator[str]:
    ask = ", ".join(f"{key} {value}" for key, value in best.ask.items())
    yield f"  ask for: {ask}"
    how = "" if best.basis == "measured" else f" ({best.basis})"
    yield (
        f"  costs: {spans_text(best.time_s)} and {hours_text(best.device_hours)} device-hours for "
        f"{one.cost_of}{how}; a device is {device_word(best.device)}"
    )
    details = [efficiency_text(best)] if best.efficiency else []
    if best.epochs is not None and best.epoch_s is not None:
        details.append(f"{best.epochs:.3g} epochs of {spans_text(best.epoch_s)}")
    if best.wall_s is not None:
        details.append(f"{spans_text(best.wall_s)} wall-clock with evaluations")
    if details:
        yield f"  that is: {'; '.join(details)}"
    if best.source:
        yield f"  its cost is not measured but from: {best.source}"
    if one.provisional:
        yield f"  provisional: {one.provisional}"
    for reason in one.why:
        yield f"  why: {reason}"
    if one.runner_up is not None:
        yield f"  runner-up: {one.runner_up.label}; {one.to_win}"


def _table(one: Answer) -> Iterator[str]:
    candidates = one.candidates
    basis = any(c.basis != "measured" for c in candidates)
    head = ["candidate", "time", "device-hours", "E", *(["basis"] if basis else []), ""]
    grid = [head, *(_row(c, one, basis) for c in candidates[:_ROWS])]
    widths = [max(len(row[i]) for row in grid) for i in range(len(head))]
    for row in grid:
        first, *rest = row
        last = rest.pop()
        line = f"  {first.ljust(widths[0])}  {line_text(rest, widths[1:-1])}"
        yield f"{line}  {last}".rstrip()
    if len(candidates) > _ROWS:
        yield f"  and {len(candidates) - _ROWS} more, see --json"


def _row(candidate: Candidate, one: Answer, basis: bool) -> list[str]:
    said = list(candidate.misses)
    if candidate is one.recommended:
        said.append("← advised")
    elif candidate.label in one.tied:
        said.append("tie")
    return [
        candidate.label,
        spans_text(candidate.time_s),
        hours_text(candidate.device_hours),
        share_text(candidate.efficiency) if candidate.efficiency else NONE,
        *([candidate.basis] if basis else []),
        "; ".join(said),
    ]
