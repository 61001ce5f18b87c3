"""The advice: what to ask for, what it costs and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness.analysis.report.document import (
    Block,
    Bullets,
    Cell,
    Column,
    Details,
    Heading,
    Paragraph,
    Table,
    Terms,
    counted,
    number_cell,
    text_cell,
)
from harness.analysis.results import Results

if TYPE_CHECKING:
    from harness.analysis.advise import Answer, Candidate

ANSWERS = 4
CANDIDATES = 20
_HEAD = (
    Column("Configuration", numeric=False),
    Column("N"),
    Column("Time"),
    Column("Device-hours"),
    Column("E"),
    Column("Cost is", numeric=False),
)


def advice_blocks(results: Results) -> Iterator[Block]:
    """Yield each answer with its reasons, and what else could be asked for."""
    from harness.analysis.advise import Goal, advise

    found = advise([results], Goal())
    if found.answers:
        yield Terms((("Device-hours", "devices × hours: what a training costs a shared cluster"),))
    for answer in found.answers[:ANSWERS]:
        yield Heading(answer.title)
        yield from _answer(answer)
    if len(found.answers) > ANSWERS:
        more = counted(len(found.answers) - ANSWERS, "more answer")
        yield Paragraph(f"{more}: hvdscale advise prints all of them.")
    if found.notes:
        yield Bullets(found.notes)


def _answer(answer: Answer) -> Iterator[Block]:
    chosen = answer.recommended
    if chosen is None:
        yield Paragraph(answer.refusal or "Nothing is recommended.")
    else:
        yield Paragraph(
            f"Ask for {_asked(chosen)}: {answer.cost_of} takes {_time(chosen)} and "
            f"{_hours(chosen)} device-hours. Chosen as the {answer.objective.text}."
        )
    yield from (Paragraph(text) for text in (answer.provisional, answer.next) if text)
    texts = [*answer.why]
    if answer.tied:
        texts.append(f"Cannot be told from it: {'; '.join(answer.tied)}")
    if answer.runner_up is not None:
        to_win = f"; {answer.to_win}" if answer.to_win else ""
        texts.append(f"Runner-up: {_asked(answer.runner_up)}, {_time(answer.runner_up)}{to_win}")
    texts += answer.notes
    if texts:
        yield Bullets(tuple(texts))
    if len(answer.candidates) > 1:
        yield _others(answer)


def _others(answer: Answer) -> Details:
    shown = answer.candidates[:CANDIDATES]
    count = f"{len(shown)} of {len(answer.candidates):,}" if len(shown) < len(
        answer.candidates
    ) else f"All {len(shown)}"  # fmt: skip
    table = Table(
        f"Candidates, best first; time of {answer.cost_of}", _HEAD, tuple(map(_row, shown))
    )
    return Details(f"{count} candidates, with what each costs", (table,))


def _row(one: Candidate) -> tuple[Cell, ...]:
    from harness.analysis.texts import ratio_text

    efficiency = one.efficiency.estimate if one.efficiency else None
    return (
        text_cell(one.label),
        number_cell(str(one.world_size), one.world_size),
        number_cell(_time(one), one.time_s.estimate),
        number_cell(_hours(one), one.device_hours.estimate),
        number_cell(ratio_text(one.efficiency), efficiency),
        text_cell(one.basis),
    )


def _asked(one: Candidate) -> str:
    return one.label


def _time(one: Candidate) -> str:
    from harness.analysis.advise.words import spans_text

    return spans_text(one.time_s)


def _hours(one: Candidate) -> str:
    from harness.analysis.advise.words import hours_text

    return hours_text(one.device_hours)
