"""A comparison for a terminal: the answer first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from harness.analysis.compare.contrast import Contrast
from harness.analysis.compare.types import Comparison, Pair, Side, Unlike
from harness.analysis.texts import (
    BOUNDLESS,
    NONE,
    WIDE,
    digits_text,
    line_text,
    rate_text,
    ratio_text,
)

_HEAD = ("N", "placement", "A samples/s", "B samples/s", "B / A", "p", "B is", "could show")
_TIMES = {
    "step_s": "step",
    "data_s": "data",
    "forward_s": "forward",
    "backward_s": "backward",
    "exposed_sync_s": "exposed sync",
    "transfer_s": "transfer",
    "wait_s": "wait",
    "update_s": "update",
    "allreduce_p50_s": "isolated all-reduce",
}
_RATIOS = {
    "rank_rss_max_bytes": "resident memory",
    "gpu_memory_max_bytes": "GPU memory",
    "gpu_power_w": "power",
    "energy_per_sample_j": "energy a sample",
}
_SHOWN = 3
_ROUNDING = 1e-9


def render_comparison(comparison: Comparison) -> str:
    """Return the comparison as text: the answer, how it was tested, each point, then notes."""
    lines = [f"{_answer(comparison)}{_unlike(comparison.unlike)}", *_sides(comparison)]
    lines.append(_tested(comparison))
    lines += ["", *_points(comparison.pairs)]
    for names, title, cell in (
        (_TIMES, "a step, B − A", _time_text),
        (_RATIOS, "B / A, not tested", _ratio_text),
    ):
        if any(name in pair.parts for pair in comparison.pairs for name in names):
            lines += ["", *_parts(comparison.pairs, names, title, cell)]
    notes = [*_also_differs(comparison.pairs), *comparison.notes, *_without_like(comparison)]
    lines += ["", *(f"- {note}" for note in notes)] if notes else []
    return "\n".join(lines)


def _answer(comparison: Comparison) -> str:
    """Say at how many points B is faster and slower, and by how much."""
    pairs = comparison.compared
    told = [pair for pair in pairs if pair.verdict != "cannot tell"]
    if not told:
        return f"Whether B differs from A cannot be told: {_all_of(len(pairs))} one block."
    parts = []
    for verdict in ("faster", "slower"):
        found = [pair for pair in told if pair.verdict == verdict]
        if found:
            parts.append(f"{verdict} at {_of(len(found), len(pairs))} ({_range(found)})")
    unshown = [pair for pair in told if pair.verdict == "not shown"]
    if not parts:
        text = f"No difference is shown at {_any_of(len(unshown), len(pairs))}"
        text += _could_show([pair.smallest or 0.0 for pair in unshown])
    else:
        text = f"B is {' and '.join(parts)}"
        text += (
            ", or its allocation is: each side has its own"
            if comparison.a.is_apart_from(comparison.b)
            else ""
        )
        text += f"; at {len(unshown)} no difference is shown" if unshown else ""
    blind = len(pairs) - len(told)
    return f"{text}; at {blind} it cannot be told." if blind else f"{text}."


def _all_of(count: int) -> str:
    return "the only point has" if count == 1 else f"all {count} points have"


def _of(count: int, total: int) -> str:
    if total == 1:
        return "the only point"
    return f"all {total} points" if count == total else f"{count} of {total} points"


def _any_of(count: int, total: int) -> str:
    return f"any of {total} points" if 1 < total == count else _of(count, total)


def _could_show(smallest: Sequence[float]) -> str:
    """Say which differences these blocks could have shown, the least one and the largest."""
    least, widest = min(smallest), max(smallest)
    if widest >= BOUNDLESS - 1:
        return ""
    ends = list(dict.fromkeys((_percent(least), _percent(widest))))
    which = "by the point" if len(ends) > 1 else "there"
    return f"; the smallest that could have been: {' to '.join(ends)} {which}"


def _range(pairs: Sequence[Pair]) -> str:
    changes = sorted((pair.throughput.effect.estimate - 1 for pair in pairs), key=abs)
    first, last = _signed_percent(changes[0]), _signed_percent(changes[-1])
    return first if len(pairs) == 1 or first == last else f"{first} to {last}"


def _unlike(unlike: Sequence[Unlike]) -> str:
    if not unlike:
        return ""
    shown = [f"{one.key} ({_either(one.a)} / {_either(one.b)})" for one in unlike[:_SHOWN]]
    more = f", and {len(unlike) - _SHOWN} more keys" if len(unlike) > _SHOWN else ""
    return f" On unlike hardware or software (A / B): {', '.join(shown)}{more}."


def _either(values: Sequence[str]) -> str:
    return " or ".join(values) or "unknown"


def _sides(comparison: Comparison) -> Iterator[str]:
    varied = comparison.varied if comparison.axis is None else {}
    for index, (name, side) in enumerate(zip("AB", (comparison.a, comparison.b), strict=True)):
        values = [f"{key}={value[index]}" for key, value in varied.items()]
        of = "" if comparison.axis is None else f" of {side.sweep}"
        yield f"{name}: {', '.join([side.name, *values])}{of}{_extent(side)}"


def _extent(side: Side) -> str:
    launches = "1 launch" if side.launches == 1 else f"{side.launches} launches"
    where = len(side.allocations)
    return f"; {launches} in {'one allocation' if where == 1 else f'{where} allocations'}"


def _tested(comparison: Comparison) -> str:
    found = [pair.throughput for pair in comparison.pairs]
    methods = sorted({one.effect.method for one in found})
    text = f"B / A of samples/s: {'; '.join(methods)}"
    tested = sum(pair.throughput.p_value is not None for pair in comparison.compared)
    if not tested:
        return text
    level = f"{comparison.level:.0%}".replace("%", " %")
    how = f"{level} intervals; p of the logarithms, two-sided"
    if tested > 1:
        how += f", corrected for {tested} points (Holm)"
    text = f"{text}; {how}; real where p < {1 - comparison.level:.3g}"
    if any(WIDE in ratio_text(one.effect) for one in found):
        text += f"; {WIDE}: ends more than {BOUNDLESS:.0f} times apart"
    return text


def _points(pairs: Sequence[Pair]) -> Iterator[str]:
    rows = [_cells(pair) for pair in pairs]
    yield from _grid(pairs, _HEAD, rows)


def _cells(pair: Pair) -> tuple[str, ...]:
    found = pair.throughput
    return (
        str(pair.world_size),
        _placement(pair),
        rate_text(found.a),
        rate_text(found.b),
        ratio_text(found.effect),
        _p_text(pair.p_corrected),
        "?" if pair.verdict == "cannot tell" else pair.verdict,
        NONE if pair.smallest is None else _percent(pair.smallest),
    )


def _placement(pair: Pair) -> str:
    if pair.placement == pair.placement_b:
        return pair.placement
    return f"{pair.placement} / {pair.placement_b}"


def _parts(
    pairs: Sequence[Pair],
    names: dict[str, str],
    title: str,
    cell: Callable[[Contrast | None], str],
) -> Iterator[str]:
    there = [name for name in names if any(name in pair.parts for pair in pairs)]
    yield f"{title}:"
    head = ("N", "placement", *(names[name] for name in there))
    rows = [
        (
            str(pair.world_size),
            _placement(pair),
            *(cell(pair.parts.get(name)) for name in there),
        )
        for pair in pairs
    ]
    yield from _grid(pairs, head, rows)


def _grid(
    pairs: Sequence[Pair], head: Sequence[str], rows: Sequence[Sequence[str]]
) -> Iterator[str]:
    """Yield rows under a heading for each config."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    yield "  " + line_text(head, widths)
    for heading, group in groupby(zip(pairs, rows, strict=True), key=lambda one: _heading(one[0])):
        if heading:
            yield heading
        yield from (f"  {line_text(row, widths)}" for _, row in group)


def _heading(pair: Pair) -> str:
    words = ", ".join(f"{key}={value}" for key, value in pair.config.items())
    return f"{words} (control)" if pair.control else words


def _time_text(found: Contrast | None) -> str:
    """Return ``−310 ±50 µs``, both in the unit that fits the larger."""
    if found is None:
        return NONE
    # Of equal times their means leave a rounding error.
    nothing = _ROUNDING * max(abs(found.a.estimate), abs(found.b.estimate))
    change, half = (
        0.0 if value is None or abs(value) <= nothing else value
        for value in (found.effect.estimate, found.smallest)
    )
    factor, unit = _unit(max(abs(change), half))
    sign = "+" if change > 0 else "−" if change < 0 else ""
    text = f"{sign}{_plain(abs(change) * factor)}"
    return f"{text} {unit}" if found.smallest is None else f"{text} ±{_plain(half * factor)} {unit}"


def _unit(seconds: float) -> tuple[float, str]:
    if seconds == 0.0 or seconds >= 1.0:
        return 1.0, "s"
    return (1e3, "ms") if seconds >= 1e-3 else (1e6, "µs")


def _plain(value: float) -> str:
    """Return two digits behind the point below 10, one below 100, and none above."""
    digits = 0 if value >= 99.95 or value == 0.0 else 1 if value >= 9.995 else 2
    return f"{value:,.{digits}f}"


def _ratio_text(found: Contrast | None) -> str:
    return ratio_text(None if found is None else found.effect)


def _p_text(p: float | None) -> str:
    if p is None:
        return NONE
    return "<0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def _percent(change: float) -> str:
    """Return a relative change with two digits, or all before the point."""
    if change >= BOUNDLESS - 1:
        return WIDE
    return f"{100 * change:,.0f} %" if change >= 0.0995 else f"{digits_text(100 * change, 2)} %"


def _signed_percent(change: float) -> str:
    return f"{'+' if change >= 0 else '−'}{_percent(abs(change))}"


def _also_differs(pairs: Sequence[Pair]) -> Iterator[str]:
    """Name what follows from the axis and differs with it; of ``measure`` the notes say more."""
    found: dict[str, set[tuple[str, str]]] = {}
    for pair in pairs:
        for key, values in pair.differs.items():
            if not key.startswith("measure."):
                found.setdefault(key, set()).add(values)
    if found:
        named = ", ".join(
            f"{key} ({'; '.join(f'{a} / {b}' for a, b in sorted(values))})"
            for key, values in sorted(found.items())
        )
        yield f"also different (A / B): {named}"


def _without_like(comparison: Comparison) -> Iterator[str]:
    for name, other, points in (
        ("A", "B", comparison.only_a),
        ("B", "A", comparison.only_b),
    ):
        if points:
            more = f"; and {len(points) - _SHOWN} more" if len(points) > _SHOWN else ""
            named = "; ".join(points[:_SHOWN])
            yield f"only in {name}, without their like in {other}: {named}{more}"
