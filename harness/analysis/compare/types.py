"""What a comparison is, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.analysis.compare.contrast import Contrast
from harness.analysis.compare.items import Facts

Verdict = Literal["faster", "slower", "not shown", "cannot tell"]


@dataclass(frozen=True)
class Side:
    """One side of a comparison. Of its launches, those that are in a pair."""

    name: str  # "backend=mpi", or the sweep's name
    sweep: str
    folder: Path
    launches: int
    failed: int  # launches of this side that no attempt measured, in a pair or not
    allocations: tuple[str, ...]
    first_started_at: str
    last_started_at: str

    def is_apart_from(self, other: Side) -> bool:
        """Say whether one of the two lies in an allocation that the other has no equal part in.

        Then the difference of two allocations is in the ratio, and no scatter tells how much.
        """
        alone = 1 in (len(self.allocations), len(other.allocations))
        return alone and self.allocations != other.allocations


@dataclass(frozen=True)
class Unlike:
    """One thing of hardware or software in which the two sides differ."""

    key: str
    a: tuple[str, ...]
    b: tuple[str, ...]


@dataclass(frozen=True)
class Pair:
    """One point of each side. ``differs`` is in what they do beside what is compared.

    ``p_corrected`` is throughput's p, corrected for the number of pairs (Holm). ``verdict`` says
    how B is: faster or slower where that is below 1 − level, *not shown* where it is not, *cannot
    tell* where blocks are too few for a test. ``smallest`` is what would have been called a
    difference, relative, the correction included. ``parts`` have no test of their own.

    A *control* does not differ in what the others are compared by: two sweeps with different
    backends have the same plain step. It is no part of the answer and not corrected.
    """

    config: Facts  # what tells the pair from others: {"batch_size": "75"}; "mpi / gloo" of two
    differs: Mapping[str, tuple[str, str]]
    world_size: int
    placement: str
    placement_b: str
    throughput: Contrast
    p_corrected: float | None
    verdict: Verdict
    smallest: float | None
    control: bool
    parts: Mapping[str, Contrast]  # by the column's name
    run_ids: tuple[tuple[str, ...], tuple[str, ...]]

    @property
    def where(self) -> str:
        """Return the pair in a few words, e.g. ``batch_size=75, N = 2``."""
        words = [f"{key}={value}" for key, value in self.config.items()]
        where = f"N = {self.world_size}"
        if self.placement != str(self.world_size):
            where += f" ({self.placement})"
        return ", ".join([*words, where])


@dataclass(frozen=True)
class Comparison:
    """The answer to "is B faster than A?", point by point."""

    a: Side
    b: Side
    axis: str | None  # the key that was asked for; None where two sweeps are compared
    varied: Mapping[str, tuple[str, str]]  # in what A and B differ by intention, where all pairs do
    pairs: tuple[Pair, ...]
    only_a: tuple[str, ...]  # points without their like
    only_b: tuple[str, ...]
    unlike: tuple[Unlike, ...]
    notes: tuple[str, ...]  # what a reader must know to believe it
    level: float

    @property
    def compared(self) -> tuple[Pair, ...]:
        """Return the pairs that the answer is about."""
        return tuple(pair for pair in self.pairs if not pair.control)
