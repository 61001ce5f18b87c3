"""Numbers as tables show them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.stats import Interval

NONE = "–"
#: Beyond this half width the interval of a geometric mean is too lopsided for one "±".
_LOPSIDED = 0.25
#: An interval whose ends are so many times apart says only that blocks are too few.
BOUNDLESS = 100.0
WIDE = "[wide]"


def grid_text(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of equal length, their head first, as lines with right-justified columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [line_text(row, widths) for row in rows]


def line_text(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Return the cells of a row, each right-justified to its width."""
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def digits_text(value: float, digits: int = 3) -> str:
    """Three digits, zeros included, so that a column of them says how much is known."""
    return f"{value:#.{digits}g}".removesuffix(".")


def time_text(interval: Interval | None) -> str:
    """Return a time with half of its interval: ``1.23 ms ±0.10 ms``."""
    if interval is None:
        return NONE
    if interval.low is None or interval.high is None:
        return seconds_text(interval.estimate)
    half_s = (interval.high - interval.low) / 2
    # Equal values leave a rounding error of their mean.
    half_s = half_s if half_s > 1e-9 * abs(interval.estimate) else 0.0
    return f"{seconds_text(interval.estimate)} ±{seconds_text(half_s, digits=2)}"


def seconds_text(seconds: float, digits: int = 3) -> str:
    """Return a time with three digits and the unit that fits, e.g. ``518 µs``."""
    if seconds == 0.0:
        return "0 s"
    rounded_up = 1 - 0.5 * 10.0**-digits  # 999.6 µs would print as 1e+03 µs
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
        if abs(seconds) < limit * rounded_up:
            value = seconds * factor
            # 120 µs of two digits would print as 1.2e+02 µs.
            text = digits_text(value, digits) if abs(value) < 10**digits else f"{value:,.0f}"
            return f"{text} {unit}"
    return f"{digits_text(seconds, digits)} s" if abs(seconds) < 99.5 else f"{seconds:,.0f} s"


def rate_text(interval: Interval) -> str:
    """Return a throughput with its interval: ``12,345 ±1.2 %``, or its ends where lopsided."""
    half = interval.relative_half_width
    if half is None or interval.low is None or interval.high is None:
        return f"{interval.estimate:,.0f}"
    if half > _LOPSIDED:
        return f"{interval.estimate:,.0f} {_ends(interval, '{:,.0f}'.format)}"
    return f"{interval.estimate:,.0f} ±{100 * half:.1f} %"


def ratio_text(interval: Interval | None) -> str:
    """Return a ratio with the ends of its interval: ``1.23 [1.20, 1.26]``."""
    if interval is None:
        return NONE
    if interval.low is None or interval.high is None:
        return digits_text(interval.estimate)
    return f"{digits_text(interval.estimate)} {_ends(interval, digits_text)}"


def slope_text(interval: Interval | None) -> str:
    """Return a slope with the ends of its interval, of which the lower one may be below zero."""
    if interval is None:
        return NONE
    values = (interval.estimate, interval.low, interval.high)
    estimate, *ends = (digits_text(one) for one in values if one is not None)
    return f"{estimate} [{', '.join(ends)}]".replace("-", "−") if ends else estimate


def _ends(interval: Interval, text_of: Callable[[float], str]) -> str:
    """Return ``[low, high]`` of a geometric mean, or that it bounds nothing."""
    assert interval.low is not None
    assert interval.high is not None
    if not interval.low * BOUNDLESS > interval.high:
        return WIDE
    return f"[{text_of(interval.low)}, {text_of(interval.high)}]"
