"""What waiting for the slowest of N ranks costs, from single steps of each rank.

A synchronous step lasts as long as its slowest rank. With N ranks whose own time varies
independently, that is the expected maximum of N draws; of a sample x₁ ≤ … ≤ x_n it is exactly::

    E max = Σ_i x_i · ((i/n)^N − ((i − 1)/n)^N)

(David and Nagaraja, Order Statistics, 2003, section 2.1, for the sample's own distribution.) It
needs no independence of successive steps: each step has its own maximum. That successive steps are
alike only leaves fewer independent ones to know the tail from.

What slows all ranks in the same step is no jitter: nobody waits for it. So a rank's deviations are
shrunk to the variance that ranks do not share, in the shape that they have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.errors import StoreError
from harness.stats import BlockKey

if TYPE_CHECKING:
    import pyarrow as pa

_OWN = ("data_s", "forward_s", "backward_s", "update_s")
_Array = NDArray[np.float64]


@dataclass(frozen=True)
class Jitter:
    """How much a rank's own time differs from the others', by block, and how well it is known."""

    by_block: Mapping[BlockKey, _Array]  # each (samples,), seconds around a mean of zero
    independent: int  # samples, as far as successive steps are not alike
    missing: str | None = None  # why there are no raw steps: then normal, of deviation 1

    @property
    def from_waits(self) -> bool:
        """Say whether there are no raw steps, so that measured waits alone give its size."""
        return self.missing is not None

    @property
    def deviation_s(self) -> float:
        """Return the standard deviation of a rank's own time."""
        return 1.0 if self.from_waits else float(np.std(self._pooled()))

    def deviation_by_block(self) -> dict[BlockKey, float]:
        """Return the same of each block alone; empty without raw steps."""
        return {block: float(np.std(x)) for block, x in self.by_block.items()}

    def expected_s(self, ranks: int) -> float:
        """Return the expected maximum of ``ranks`` draws around a mean of zero."""
        if self.from_waits:
            return expected_normal_maximum(ranks)
        return expected_maximum(self._pooled(), ranks)

    def expected_by_block(self, ranks: int) -> dict[BlockKey, float]:
        """Return the same from the samples of each block alone; empty without raw steps."""
        return {block: expected_maximum(x, ranks) for block, x in self.by_block.items()}

    def _pooled(self) -> _Array:
        return np.concatenate(list(self.by_block.values()))


def expected_maximum(samples: _Array, ranks: int) -> float:
    """Return the expected maximum of ``ranks`` independent draws from ``samples``, (n,)."""
    x = np.sort(samples)
    below = (np.arange(x.size + 1) / x.size) ** ranks
    return float(np.diff(below) @ x)


def expected_normal_maximum(ranks: int) -> float:
    """Return the expected maximum of ``ranks`` standard normal draws."""
    from scipy.special import ndtr

    x = np.linspace(-12.0, 12.0, 4801)
    below = ndtr(x) ** ranks
    # E max = b − ∫_a^b F^N dx where F is 0 at a and 1 at b, by the trapezoidal rule.
    return float(x[-1] - (below[1:] + below[:-1]).sum() / 2 * (x[1] - x[0]))


def own_deviations(own_s: _Array) -> _Array:
    """Return deviations of ranks' own times, (ranks, steps) with 2 ranks or more, as (samples,).

    Around the mean of all, shrunk so that their variance is that of ranks inside a step.
    """
    inside = float(np.var(own_s, axis=0, ddof=1).mean())
    off = (own_s - own_s.mean()).ravel()
    whole = float(off @ off) / max(off.size - 1, 1)
    shrink = 0.0 if whole == 0.0 else min(1.0, np.sqrt(inside / whole))
    found: _Array = off * shrink
    return found


def independent_steps(own_s: _Array) -> float:
    """Return how many independent samples (ranks, steps) are worth: n (1 − ρ) / (1 + ρ) a rank.

    ρ is the lag-1 correlation of a rank's successive steps, none below zero.
    """
    total = 0.0
    for row in own_s:
        off = row - row.mean()
        power = float(off @ off)
        rho = 0.0 if power == 0.0 else float(off[1:] @ off[:-1]) / power
        rho = min(max(rho, 0.0), 0.99)
        total += row.size * (1 - rho) / (1 + rho)
    return total


def read_jitter(
    launches: Sequence[tuple[BlockKey, str]],
    steps: Callable[[str, str], pa.Table],
    scales: Mapping[str, float],
) -> Jitter:
    """Return the jitter of launches, (block, run id), of two ranks or more.

    ``steps(run_id, instrument)`` gives raw steps; ``scales`` lays marked steps on the window.
    Where no launch has them it is a normal distribution's, whose size the measured waits give.
    """
    by_block: dict[BlockKey, list[_Array]] = {}
    independent, missing = 0.0, "no launch has marked steps of two ranks"
    for block, run_id in launches:
        try:
            own_s = _own_times(steps(run_id, "phases"))
        except StoreError as error:
            # What the store advises is of files that one wants back; here the reason is enough.
            own_s, missing = None, str(error).partition("; ")[0]
        if own_s is None:
            continue
        by_block.setdefault(block, []).append(own_deviations(own_s * scales[run_id]))
        independent += independent_steps(own_s)
    if not by_block:
        return Jitter({}, 0, missing)
    joined = {block: np.concatenate(found) for block, found in by_block.items()}
    return Jitter(joined, int(independent))


def _own_times(table: pa.Table) -> _Array | None:
    """Return a launch's times in computing, (ranks, steps); None where they cannot be told."""
    columns = [np.asarray(table[name].to_numpy(), float) for name in _OWN]
    ranks = table["rank"].to_numpy()
    own = np.sum(columns, axis=0)
    rows = [own[ranks == rank] for rank in np.unique(ranks)]
    if len(rows) < 2 or len({row.size for row in rows}) != 1 or rows[0].size < 2:
        return None
    found = np.stack(rows)
    return found if np.isfinite(found).all() else None
