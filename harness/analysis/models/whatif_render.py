"""Replays as text: a table a curve, what changed in each step, what was assumed or refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.analysis.models.whatif_types import TOGETHER, Rates, Replay
from harness.analysis.texts import NONE, grid_text, rate_text, ratio_text, seconds_text, time_text

_HEAD = ("N", "placement", "with", "step", "times faster", "samples/s", "S", "E")
_TITLE = (
    "A replay, no measurement: each measured step with one thing changed and its parts summed "
    "again.\nIntervals are those of the launches; what is assumed is in none of them."
)


def render_what_if(replays: Sequence[Replay]) -> str:
    """Return replays as a researcher reads them."""
    done = [one for one in replays if one.refused is None]
    parts = [_TITLE]
    for label in dict.fromkeys(one.curve for one in done):
        parts.append("\n".join(_curve([one for one in done if one.curve == label])))
    tail = [*_grouped(done), *_refusals(replays)]
    return "\n\n".join([*parts, "\n".join(tail)])


def _curve(replays: Sequence[Replay]) -> Iterator[str]:
    apart = f"; {replays[0].apart}" if replays[0].apart else ""
    yield f"{replays[0].curve} ({replays[0].scaling} scaling){apart}"
    yield from grid_text([_HEAD, *_rows(replays)])
    yield from _changes(replays)


def _rows(replays: Sequence[Replay]) -> Iterator[tuple[str, ...]]:
    seen: set[str] = set()
    for one in replays:
        place = (str(one.world_size), one.placement)
        if one.placement not in seen:
            seen.add(one.placement)
            yield (*place, "as measured", *_cells(one.measured, NONE))
        assert one.replayed is not None
        yield (*place, _short(one.change), *_cells(one.replayed, ratio_text(one.gain)))


def _cells(rates: Rates, gain: str) -> tuple[str, ...]:
    return (
        time_text(rates.step_s),
        gain,
        rate_text(rates.throughput_samples_per_s),
        ratio_text(rates.speedup),
        ratio_text(rates.efficiency),
    )


def _short(change: str) -> str:
    return TOGETHER if change.startswith(TOGETHER) else change


def _changes(replays: Sequence[Replay]) -> Iterator[str]:
    """Yield each measured step by its parts, and what each change makes of which."""
    seen: set[str] = set()
    for one in replays:
        if one.placement not in seen:
            seen.add(one.placement)
            parts = (f"{part.name} {seconds_text(part.before_s)}" for part in one.parts)
            yield f"  N={one.world_size} as measured: {', '.join(parts)}"
        if _short(one.change) == TOGETHER:
            continue  # each of them is said alone
        changes = [
            f"{part.name} {seconds_text(part.before_s)} → {seconds_text(part.after_s)}"
            for part in one.parts
            if part.is_changed
        ]
        yield f"  N={one.world_size}, {one.change}: {', '.join(changes) or 'nothing changes'}"


def _grouped(replays: Sequence[Replay]) -> Iterator[str]:
    """Yield each assumption once, with the changes that rest on it."""
    found: dict[str, list[str]] = {}
    for one in replays:
        for line in one.assumptions:
            # What all of them together assume is what each of them does.
            if not one.change.startswith(TOGETHER):
                found.setdefault(line, []).append(one.change)
    for line, changes in found.items():
        yield f"assumed, {', '.join(dict.fromkeys(changes))}: {line}"


def _refusals(replays: Sequence[Replay]) -> Iterator[str]:
    found: dict[tuple[str, str], list[str]] = {}
    for one in replays:
        if one.refused is not None:
            where = f"{one.curve}, N={one.world_size}"
            found.setdefault((one.change, one.refused), []).append(where)
    for (change, reason), places in found.items():
        every = sum(one.change == change for one in replays) == len(places)
        yield f"refused, {change}: {reason} ({'everywhere' if every else '; '.join(places)})"
