"""What a replay is: a point, what was changed, and what follows."""

from __future__ import annotations

from dataclasses import dataclass

from harness.stats import Interval

#: In place of a change: all that were asked for, or those of them that were not refused.
TOGETHER = "together"


@dataclass(frozen=True)
class Part:
    """One part of a step in seconds, mean over launches, as measured and as replayed."""

    name: str
    before_s: float
    after_s: float

    @property
    def is_changed(self) -> bool:
        """Say whether the replay has another time here."""
        return abs(self.after_s - self.before_s) > 1e-12 + 1e-9 * self.before_s


@dataclass(frozen=True)
class Rates:
    """A step, and what follows from it; intervals are over blocks."""

    step_s: Interval
    throughput_samples_per_s: Interval
    speedup: Interval | None  # against the base as it was measured; None without one
    efficiency: Interval | None


@dataclass(frozen=True)
class Replay:
    """A measured point with one thing changed (or all): computed from its parts, not measured."""

    curve: str
    scaling: str
    world_size: int
    placement: str
    change: str
    measured: Rates
    replayed: Rates | None  # None where it was refused
    gain: Interval | None  # measured step / replayed step
    parts: tuple[Part, ...]  # their sums are the two steps, of launches that have phases
    assumptions: tuple[str, ...]
    refused: str | None  # why the records cannot support it
    apart: str | None = None  # what is to be said of S and E whose base is not in the same blocks
    is_measurement: bool = False  # for readers of JSON: never
