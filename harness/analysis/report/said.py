"""What the other answers say, where the data support one; else their sentence stands there."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from harness.analysis.report.document import Block, Paragraph
from harness.analysis.results import Results
from harness.errors import AnalysisError

_SWEEP = "sweep.yaml"


def or_sentence(results: Results, make: Callable[[Results], Iterable[Block]]) -> tuple[Block, ...]:
    """Return the blocks that ``make`` gives; where the data cannot support them, why."""
    try:
        return tuple(make(results))
    except AnalysisError as error:
        return (Paragraph(sentence(error, results)),)


def sentence(error: AnalysisError, results: Results) -> str:
    """Return an error's text as a sentence, with the sweep's name in the place of its path.

    A path says nothing to a colleague, and the same records should give the same page wherever they
    lie.
    """
    text = plain_text(str(error), results)
    return f"{text[:1].upper()}{text[1:]}".rstrip(".") + "."


def plain_text(text: str, results: Results) -> str:
    """Return ``text`` with the sweep's name in the place of its folder's path.

    But for the sweep's file, which commands name: it has its path from where the report was made,
    and ``RESULTS`` for the folder above where that would be a path from the root.
    """
    folder, said = str(results.folder), results.name
    parts = text.split(f"{folder}/{_SWEEP}")
    path = f"RESULTS/{said}" if results.folder.is_absolute() else folder
    return f"{path}/{_SWEEP}".join(part.replace(folder, said) for part in parts)


def first_line(text: str) -> str:
    """Return the first line of an answer made for a terminal: there the answer stands."""
    return text.strip().partition("\n")[0].strip()
