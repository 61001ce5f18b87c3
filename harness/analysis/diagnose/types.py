"""What a diagnosis is. Times are seconds a step; what cannot be told is None, never zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.stats import Interval

#: ``lost``: beyond the ideal step. ``shared``: the base's step has it, too, so it is no loss of
#: scaling, and yet a large part of every step.
Kind = Literal["lost", "shared"]
#: ``shown``: the interval over blocks lies above zero. ``not shown``: it does not. ``one block``:
#: there is no interval, so nothing was tested.
Verdict = Literal["shown", "not shown", "one block"]


def verdict(time_s: Interval) -> Verdict:
    """Say what an interval allows to be said: nothing that it reaches zero with is shown."""
    if time_s.estimate <= 0:
        return "not shown"
    if time_s.low is None:
        return "one block"
    return "shown" if time_s.low > 0 else "not shown"


@dataclass(frozen=True)
class Knob:
    """What to turn: a key of the config (empty: an action beside it), and how."""

    key: str
    action: str


@dataclass(frozen=True)
class Finding:
    """One limiter of one point."""

    limiter: str  # a key of ``limiters.LIMITERS``
    kind: Kind
    time_s: Interval
    share_of_lost: float | None  # None: shared with the base, or no loss is shown
    share_of_step: float
    verdict: Verdict
    evidence: tuple[str, ...]
    knobs: tuple[Knob, ...]


@dataclass(frozen=True)
class Missing:
    """What the records cannot tell, and what would."""

    question: str
    add: str


@dataclass(frozen=True)
class Ranking:
    """All points that the worst were taken from. A point *loses* the part 1 − kept of its step."""

    rule: str
    points: int
    over_half: int  # lose more than half of their step
    over_tenth: int
    unranked: int  # neither base nor phases


@dataclass(frozen=True)
class Diagnosis:
    """One point: what it loses, to what, by which evidence."""

    rank: int  # 1: the worst
    label: str  # of its curve
    workload: str
    scaling: str
    device: str
    world_size: int
    placement: str
    batch: str  # "batch 75" or "global batch 600", as declared
    base: str | None  # what the ideal step is of; None: the point's own compute
    no_base: str | None  # why there is none
    efficiency: Interval | None
    step_s: Interval
    lost_s: Interval | None  # step − ideal step
    findings: tuple[Finding, ...]  # the largest first, those not shown last
    missing: tuple[Missing, ...]
    cautions: tuple[str, ...]
    ranking: Ranking

    @property
    def limits(self) -> tuple[Finding, ...]:
        """Return the findings that may be called limits: all but those not shown."""
        return tuple(one for one in self.findings if one.verdict != "not shown")

    @property
    def loses(self) -> bool:
        """Say whether there is a loss that its interval does not deny, or the paired E's shows.

        Blocks of unlike pace scatter the seconds that are lost, and leave the ratio as it is.
        """
        if self.lost_s is None:
            return False
        most = self.efficiency.high if self.efficiency else None
        paired = most is not None and most < 1.0
        return verdict(self.lost_s) != "not shown" or (paired and self.lost_s.estimate > 0)

    @property
    def ideal_s(self) -> float | None:
        """Return the ideal step in seconds."""
        return None if self.lost_s is None else self.step_s.estimate - self.lost_s.estimate
