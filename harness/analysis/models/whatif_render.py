"""Replays as text: a table a curve, what changed in each step, what was assumed, what was refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.analysis.models.whatif_types import Rates, Replay
from harness.analysis.texts import NONE, grid_text, rate_text, ratio_text, seconds_text, time_text

_HEAD = ("N", "placement", "with", "step", "faster by", "samples/s", "S", "E")
_TITLE = (
    "A replay, no measurement: each measured step with one thing changed and its parts summed "
    "again.\nIntervals are those of the launches; what is assumed is in none of them."
)


def render_what_if(replays: Sequence[Replay]) -> str:
    """Return replays as a researcher reads them."""
    labels = dict.fromkeys(one.curve for one in replays)
    parts = [_TITLE]
    parts += ["\n".join(_curve([one for one in replays if one.curve == label])) for label in labels]
    return "\n\n".join(parts)


def _curve(replays: Sequence[Replay]) -> Iterator[str]:
    yield f"{replays[0].curve} ({replays[0].scaling} scaling)"
    done = [one for one in replays if one.refused is None]
    if done:
        yield from grid_text([_HEAD, *_rows(done)])
        yield from _changes(done)
        yield from _grouped("assumed", done)
    yield from _refusals([one for one in replays if one.refused is not None])


def _rows(replays: Sequence[Replay]) -> Iterator[tuple[str, ...]]:
    seen: set[str] = set()
    for one in replays:
        place = (str(one.world_size), one.placement)
        if one.placement not in seen:
            seen.add(one.placement)
            yield (*place, "as measured", *_cells(one.measured, NONE))
        assert one.replayed is not None
        yield (*place, one.change, *_cells(one.replayed, ratio_text(one.gain)))


def _cells(rates: Rates, gain: str) -> tuple[str, ...]:
    return (
        time_text(rates.step_s),
        gain,
        rate_text(rates.throughput_samples_per_s),
        ratio_text(rates.speedup),
        ratio_text(rates.efficiency),
    )


def _changes(replays: Sequence[Replay]) -> Iterator[str]:
    for one in replays:
        changes = [
            f"{part.name} {seconds_text(part.before_s)} → {seconds_text(part.after_s)}"
            for part in one.parts
            if part.is_changed
        ]
        yield f"  N={one.world_size}, {one.change}: {', '.join(changes) or 'nothing changes'}"


def _grouped(word: str, replays: Sequence[Replay]) -> Iterator[str]:
    """Yield each assumption once, with the changes that rest on it."""
    found: dict[str, list[str]] = {}
    for one in replays:
        for line in one.assumptions:
            found.setdefault(line, []).append(one.change)
    for line, changes in found.items():
        yield f"  {word} ({', '.join(dict.fromkeys(changes))}): {line}"


def _refusals(replays: Sequence[Replay]) -> Iterator[str]:
    found: dict[tuple[str, str], list[str]] = {}
    for one in replays:
        found.setdefault((one.change, one.refused or ""), []).append(f"N={one.world_size}")
    for (change, reason), places in found.items():
        yield f"  refused: {change} at {', '.join(places)}: {reason}"
