"""Backends against each other, where a sweep has several."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING

from harness.analysis.report.document import (
    Block,
    Bullets,
    Cell,
    Column,
    Heading,
    Paragraph,
    Table,
    Terms,
    counted,
    number_cell,
    text_cell,
)
from harness.analysis.report.said import first_line, plain_text, sentence
from harness.analysis.results import Results
from harness.analysis.texts import NONE, rate_text, ratio_text
from harness.errors import AnalysisError

if TYPE_CHECKING:
    from harness.analysis.compare import Comparison, Pair

PAIRS_OF_BACKENDS = 3
POINTS = 100
_TERMS = (
    ("B / A", "throughput of B divided by that of A, paired in blocks where both are in the same"),
    ("p", "the chance of at least such a difference if there were none, corrected for the number "
     "of points (Holm); two-sided t-test of the logarithms"),
    ("Could show", "the smallest change that these blocks would just have told from none"),
)  # fmt: skip
_HEAD = (
    Column("Point", numeric=False),
    Column("A samples/s"),
    Column("B samples/s"),
    Column("B / A"),
    Column("p"),
    Column("B is", numeric=False),
    Column("Could show"),
)


def comparison_blocks(results: Results) -> Iterator[Block]:
    """Yield a comparison of each pair of backends; one that cannot be made says why."""
    backends = sorted({curve.backend for curve in results.curves if curve.backend})
    pairs = list(combinations(backends, 2))
    if not pairs:
        return
    yield Terms(_TERMS)
    for a, b in pairs[:PAIRS_OF_BACKENDS]:
        yield Heading(f"{b} against {a}")
        yield from _pair(results, f"backend={a}", f"backend={b}")
    if len(pairs) > PAIRS_OF_BACKENDS:
        more = counted(len(pairs) - PAIRS_OF_BACKENDS, "more pair")
        yield Paragraph(f"{more} of backends: hvdscale compare SWEEP backend=A backend=B.")


def _pair(results: Results, a: str, b: str) -> Iterator[Block]:
    from harness.analysis.compare import compare_values, render_comparison

    try:
        found = compare_values(results, a, b)
    except AnalysisError as error:
        yield Paragraph(sentence(error, results))
        return
    yield Paragraph(f"A is {a}, B is {b}. {first_line(render_comparison(found))}")
    yield _table(found)
    if len(found.pairs) > POINTS:
        more = counted(len(found.pairs) - POINTS, "more point")
        yield Paragraph(f"{more}: hvdscale compare prints all of them.")
    if found.notes:
        yield Bullets(tuple(plain_text(note, results) for note in found.notes))


def _table(found: Comparison) -> Table:
    rows = tuple(map(_row, found.pairs[:POINTS]))
    return Table(f"{found.b.name} (B) against {found.a.name} (A)", _HEAD, rows)


def _row(pair: Pair) -> tuple[Cell, ...]:
    told = pair.throughput
    p = pair.p_corrected
    return (
        text_cell(pair.where),
        number_cell(rate_text(told.a), told.a.estimate),
        number_cell(rate_text(told.b), told.b.estimate),
        number_cell(ratio_text(told.effect), told.effect.estimate),
        number_cell(NONE if p is None else "<0.001" if p < 0.001 else f"{p:.3f}", p),
        text_cell(pair.verdict),
        number_cell(_change(told.smallest), told.smallest),
    )


def _change(smallest: float | None) -> str:
    return NONE if smallest is None else f"{100 * smallest:.2g} %" if smallest < 1 else ">100 %"
