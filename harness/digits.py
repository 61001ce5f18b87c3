"""Whole numbers in text that somebody else wrote."""

from __future__ import annotations

#: Python itself refuses thousands of digits; no count, id or size of this program has more.
MAX_DIGITS = 18


def whole(text: str) -> int | None:
    """Return the number that ``text`` is; None for what is none, or has more digits than any id.

    Digits of other scripts are none: ``"²".isdigit()`` is true, and ``int`` refuses it.
    """
    fits = 0 < len(text) <= MAX_DIGITS and text.isascii() and text.isdigit()
    return int(text) if fits else None
