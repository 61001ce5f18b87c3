"""What a page is made of: plain data, so that a section is a pure function and the page a template.

Every text is plain text. The template escapes it; nothing here holds HTML.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

_MINUS = re.compile(r"(?<!\w)-(?=[\d.])")


@dataclass(frozen=True)
class Paragraph:
    """Running text; ``muted`` is for what stands beside the point."""

    kind: ClassVar[str] = "paragraph"
    text: str
    muted: bool = False


@dataclass(frozen=True)
class Heading:
    """A heading inside a section."""

    kind: ClassVar[str] = "heading"
    text: str


@dataclass(frozen=True)
class Bullets:
    """Sentences, each on its own."""

    kind: ClassVar[str] = "bullets"
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Terms:
    """Words with their meanings of one line, where a reader meets them first."""

    kind: ClassVar[str] = "terms"
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Quote:
    """Text whose lines and columns are kept."""

    kind: ClassVar[str] = "quote"
    text: str


@dataclass(frozen=True)
class KeyFigure:
    """One number of the answer."""

    label: str
    value: str
    detail: str


@dataclass(frozen=True)
class KeyFigures:
    """The numbers of the answer."""

    kind: ClassVar[str] = "figures"
    figures: tuple[KeyFigure, ...]


@dataclass(frozen=True)
class Cell:
    """A cell and what it is sorted by; None (nothing was measured) comes last either way."""

    text: str
    sort: float | str | None = None


@dataclass(frozen=True)
class Column:
    """The head of a column; numbers are set right and sorted as numbers."""

    name: str
    numeric: bool = True


@dataclass(frozen=True)
class Table:
    """A table that a reader can sort; the first cell of a row names it."""

    kind: ClassVar[str] = "table"
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Image:
    """A figure as a ``data:`` URI; ``width`` and ``height`` are in CSS pixels."""

    kind: ClassVar[str] = "image"
    caption: str
    alt: str
    source: str
    width: int
    height: int


@dataclass(frozen=True)
class Gallery:
    """Figures side by side where there is room."""

    kind: ClassVar[str] = "gallery"
    images: tuple[Image, ...]


@dataclass(frozen=True)
class Details:
    """What few readers want: closed on a screen, open in print."""

    kind: ClassVar[str] = "details"
    summary: str
    blocks: tuple[Block, ...]


Block = Paragraph | Heading | Bullets | Terms | Quote | KeyFigures | Table | Gallery | Details


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it; ``name`` is its anchor."""

    name: str
    title: str
    blocks: tuple[Block, ...]
    parts: tuple[Section, ...] = ()


def text_cell(text: str | None) -> Cell:
    """Return a cell of text, sorted by it."""
    return Cell("–") if text is None else Cell(text, text)


def number_cell(text: str, value: float | None) -> Cell:
    """Return a cell whose ``text`` shows ``value``, with a true minus."""
    return Cell(_MINUS.sub("−", text), value)


def counted(count: int, one: str, several: str | None = None) -> str:
    """Return ``1 launch``, ``2 launches``: ``several`` is ``one`` with an s where not given."""
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"


def and_text(words: Sequence[str], shown: int = 6) -> str:
    """Return ``a, b and c``; of more than ``shown`` the first, and how many more there are."""
    if len(words) > shown:
        return f"{', '.join(words[:shown])} and {len(words) - shown:,} more"
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"
