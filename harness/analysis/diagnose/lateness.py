"""Who comes late: what the raw marked steps of every rank tell about one launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

#: Phases in which a rank can be long by itself.
OWN = ("data_s", "forward_s", "backward_s", "update_s")


@dataclass(frozen=True)
class Spread:
    """The ranks of one launch, over its marked steps; times are means of a step, in rank order."""

    steps: int
    own_s: tuple[float, ...]  # step − exposed sync
    phases: dict[str, tuple[float, ...]]  # of OWN, those that could be marked
    last: tuple[float, ...]  # share of the steps in which a rank came last; they add up to 1

    @property
    def ranks(self) -> int:
        """Return how many ranks there are."""
        return len(self.own_s)

    @property
    def reference(self) -> int:
        """Return the typical rank: the lower median by its own time, of two the faster one."""
        order = sorted(range(self.ranks), key=lambda rank: self.own_s[rank])
        return order[(self.ranks - 1) // 2]

    def uneven_s(self, phase: str) -> float:
        """Return a phase's mean over ranks − the reference rank's; 0 where it was not marked."""
        found = self.phases.get(phase)
        return float(np.mean(found)) - found[self.reference] if found else 0.0

    def longest_phase(self, rank: int) -> tuple[str, float, float] | None:
        """Return the phase in which ``rank`` exceeds the others most: its name, own and theirs."""
        excess = []
        for name, found in self.phases.items():
            others = float(np.mean([t for r, t in enumerate(found) if r != rank]))
            excess.append((found[rank] - others, name, found[rank], others))
        if not excess:
            return None
        gained, name, own, others = max(excess)
        return (name, own, others) if gained > 0 else None


def spread(steps: pa.Table) -> Spread | None:
    """Return what the rows of the marked steps (``record.STEP_COLUMNS``) say of their ranks.

    None where there is one rank, or exposed sync could not be marked.
    """
    ranks = np.asarray(steps["rank"].to_pylist(), dtype=np.int64)
    count = len(np.unique(ranks))
    if count < 2 or len(ranks) % count:
        return None
    order = np.argsort(ranks, kind="stable")

    def column(name: str) -> NDArray[np.float64]:
        values = np.asarray(steps[name].to_pylist(), dtype=np.float64)
        shaped: NDArray[np.float64] = values[order].reshape(count, -1)
        return shaped

    exposed = column("exposed_sync_s")
    own = column("step_s") - exposed
    if not (np.isfinite(own).all() and own.size):
        return None
    # The last to arrive waits least; ties are shared out.
    least = exposed == exposed.min(axis=0)
    shares = (least / least.sum(axis=0)).mean(axis=1)
    marked = {name: column(name) for name in OWN}
    return Spread(
        steps=own.shape[1],
        own_s=tuple(own.mean(axis=1).tolist()),
        phases={
            name: tuple(values.mean(axis=1).tolist())
            for name, values in marked.items()
            if np.isfinite(values).all()
        },
        last=tuple(shares.tolist()),
    )
