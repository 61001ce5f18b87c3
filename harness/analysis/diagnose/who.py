"""Which rank is the late one, if it is one rank, over all launches of a point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, exp
from statistics import fmean

from harness.analysis.diagnose.lateness import Spread

#: Chance below which a rank's lead is none: of this many last places, were all ranks alike.
_CHANCE = 0.01


@dataclass(frozen=True)
class Who:
    """The rank that came last most often, of all marked steps of all launches."""

    rank: int
    ranks: int
    share: float  # of the steps in which it was last
    steps: int
    named: bool  # it is this rank, and not chance
    phase: str | None  # in which it exceeds the others most; None where it does in none
    own_s: float | None  # of that phase
    others_s: float | None


def who(spreads: Sequence[Spread]) -> Who | None:
    """Return the rank that is late; None without raw steps.

    It is *named* where it was last in more steps than halfway between chance (1/N) and always, and
    so many would come by chance, of N ranks alike, less than once in a hundred times (binomial, N
    ranks to choose from). Steps are not independent, so this is a threshold, and no test.
    """
    if not spreads:
        return None
    ranks = spreads[0].ranks
    steps = sum(one.steps for one in spreads)
    shares = [sum(one.last[r] * one.steps for one in spreads) / steps for r in range(ranks)]
    rank = max(range(ranks), key=shares.__getitem__)
    share = shares[rank]
    named = share >= 0.5 + 0.5 / ranks and ranks * _tail(share, steps, 1 / ranks) < _CHANCE
    phase = _phase(spreads, rank) if named else None
    own = others = None
    if phase is not None:
        kept = [one.phases[phase] for one in spreads if phase in one.phases]
        own = fmean(one[rank] for one in kept)
        others = fmean(fmean(t for r, t in enumerate(one) if r != rank) for one in kept)
    return Who(rank, ranks, share, steps, named, phase, own, others)


def _phase(spreads: Sequence[Spread], rank: int) -> str | None:
    found = [one.longest_phase(rank) for one in spreads]
    told = [one for one in found if one is not None]
    return max(told, key=lambda one: one[1] - one[2])[0] if told else None


def _tail(share: float, steps: int, chance: float) -> float:
    """Return the chance of at least ``share`` of ``steps``: exact, or Hoeffding's bound of many."""
    least = round(share * steps)
    if steps > 500:
        excess = max(0.0, share - chance)
        return exp(-2 * steps * excess**2)
    return sum(
        comb(steps, k) * chance**k * (1 - chance) ** (steps - k) for k in range(least, steps + 1)
    )
