"""Times, costs and candidates in words."""

from __future__ import annotations

from harness.analysis.advise.types import Candidate
from harness.analysis.texts import BOUNDLESS, NONE, WIDE, digits_text, ratio_text, seconds_text
from harness.stats import Interval

_MINUTES, _HOURS, _DAYS = 99.5, 5970.0, 172800.0  # from here on, in seconds
IS_BASE = "1 (base)"  # an efficiency that is 1 by definition


def span_text(seconds: float) -> str:
    """Return a time in the unit that fits: ``518 µs``, ``42.0 s``, ``12.5 min``, ``3.20 h``."""
    number, unit = _number(seconds, seconds)
    return f"{number} {unit}"


def spans_text(interval: Interval) -> str:
    """Return a time with the ends of its interval: ``12.5 min [12.1, 12.9]``."""
    text = span_text(interval.estimate)
    if interval.low is None or interval.high is None:
        return text
    if not interval.low * BOUNDLESS > interval.high:
        return f"{text} {WIDE}"
    ends = (_number(end, interval.estimate)[0] for end in (interval.low, interval.high))
    return f"{text} [{', '.join(ends)}]"


def hours_text(interval: Interval) -> str:
    """Return device-hours with three digits, plain from a ten-thousandth on."""
    return number_text(interval.estimate)


def number_text(value: float) -> str:
    """Return three digits without an exponent where that stays short."""
    if value >= 999.5:
        return f"{value:,.0f}"
    return digits_text(value) if value >= 1e-4 else f"{value:.2e}"


def device_word(device: str) -> str:
    """Name what a device is."""
    return "a CPU slot" if device == "cpu" else "a GPU"


def efficiency_text(candidate: Candidate) -> str:
    """Return ``E 0.83 [0.81, 0.85]``, or that it is not known."""
    found = candidate.efficiency
    return f"E {share_text(found)}" if found else "E unknown"


def share_text(efficiency: Interval) -> str:
    """Return an efficiency; that of a base is 1 by definition, and no interval is measured."""
    if efficiency.low == efficiency.high == 1.0:
        return IS_BASE
    return ratio_text(efficiency)


def brief(candidate: Candidate) -> str:
    """Return a candidate with its costs: ``N=4, mpi, batch 75 (1.24 min, 0.083 device-hours)``."""
    return (
        f"{candidate.label} ({span_text(candidate.time_s.estimate)}, "
        f"{hours_text(candidate.device_hours)} device-hours)"
    )


def percent(change: float) -> str:
    """Return a share as percent, with a digit more below ten: ``4.2 %``, ``37 %``."""
    value = 100 * change
    return f"{value:.1f} %" if abs(value) < 9.95 else f"{value:.0f} %"


def duration_flag(seconds: float) -> str:
    """Return a time as ``--deadline`` takes it, rounded up: ``2h25m``, ``95s``."""
    if seconds < 120:
        return f"{_up(seconds, 2)}s"
    minutes = int(-(-seconds // 60))
    hours, rest = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (rest, "m")]
    return "".join(f"{count}{unit}" for count, unit in parts if count)


def _up(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}"
    if float(text) < value:
        text = f"{float(text) + 10.0**-digits:.{digits}f}"
    return text.rstrip("0").rstrip(".")


def _number(seconds: float, scale: float) -> tuple[str, str]:
    """Return a time in the unit that fits ``scale``."""
    if scale >= _DAYS:
        return digits_text(seconds / 86400), "days"
    if scale >= _HOURS:
        return digits_text(seconds / 3600), "h"
    if scale >= _MINUTES:
        return digits_text(seconds / 60), "min"
    if scale >= 0.9995:
        return digits_text(seconds), "s"
    unit = seconds_text(scale).rpartition(" ")[2]
    return digits_text(seconds * (1e3 if unit == "ms" else 1e6)), unit


__all__ = [
    "NONE",
    "brief",
    "device_word",
    "duration_flag",
    "efficiency_text",
    "hours_text",
    "number_text",
    "percent",
    "span_text",
    "spans_text",
]
