"""The advice: what to ask for, what it costs and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness.analysis.advise.words import device_word, hours_text, spans_text
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
from harness.analysis.report.said import plain_text
from harness.analysis.results import Results
from harness.analysis.texts import ratio_text

if TYPE_CHECKING:
    from harness.analysis.advise import Answer, Candidate

ANSWERS = 4
CANDIDATES = 20
_HEAD = (
    Column("Candidate", numeric=False),
    Column("Time"),
    Column("Device-hours"),
    Column("E"),
    Column("Cost is", numeric=False),
    Column("Remark", numeric=False),
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
    notes = dict.fromkeys(note for answer in found.answers[:ANSWERS] for note in answer.notes)
    if notes or found.notes:
        yield Paragraph("To mind:")
        yield Bullets(tuple(plain_text(note, results) for note in (*notes, *found.notes)))


def _answer(answer: Answer) -> Iterator[Block]:
    chosen = answer.recommended
    if chosen is None:
        refusal = answer.refusal or "nothing is recommended"
        yield Paragraph(f"No advice: {refusal.rstrip('.')}.")
    else:
        yield Paragraph(
            f"Ask for {_asked(chosen)}. It takes {spans_text(chosen.time_s)} and "
            f"{hours_text(chosen.device_hours)} device-hours for {answer.cost_of}; a device is "
            f"{device_word(chosen.device)}."
        )
    texts = [f"Why: {text}" for text in answer.why]
    if chosen is not None and chosen.source:
        texts.append(f"Its cost is not measured but from: {chosen.source}")
    if answer.provisional:
        texts.append(f"Provisional: {answer.provisional}")
    if answer.runner_up is not None:
        to_win = f"; {answer.to_win}" if answer.to_win else ""
        texts.append(f"Runner-up: {answer.runner_up.label}{to_win}")
    if answer.candidates:
        texts.append(f"Judged by: {answer.objective.text}")
    if answer.next:
        texts.append(f"Worth measuring next: {answer.next}")
    if texts:
        yield Bullets(tuple(texts))
    if len(answer.candidates) > 1:
        yield _others(answer)


def _others(answer: Answer) -> Details:
    shown, total = answer.candidates[:CANDIDATES], len(answer.candidates)
    count = f"{len(shown)} of {total:,}" if len(shown) < total else f"All {total}"
    caption = f"Candidates for {answer.title}, best first; time of {answer.cost_of}"
    rows = tuple(_row(one, answer) for one in shown)
    return Details(f"{count} candidates, with what each costs", (Table(caption, _HEAD, rows),))


def _row(one: Candidate, answer: Answer) -> tuple[Cell, ...]:
    efficiency = one.efficiency.estimate if one.efficiency else None
    said = list(one.misses)
    if one is answer.recommended:
        said.append("advised")
    elif one.label in answer.tied:
        said.append("cannot be told from the best")
    return (
        text_cell(one.label),
        number_cell(spans_text(one.time_s), one.time_s.estimate),
        number_cell(hours_text(one.device_hours), one.device_hours.estimate),
        number_cell(ratio_text(one.efficiency), efficiency),
        text_cell(one.basis),
        text_cell("; ".join(said)),
    )


def _asked(one: Candidate) -> str:
    return ", ".join(f"{key} {value}" for key, value in one.ask.items()) or one.label
