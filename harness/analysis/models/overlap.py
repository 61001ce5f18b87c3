"""What of an all-reduce is exposed, calibrated where it was measured.

Two forms, of one parameter each:

- *share*: the exposed part is a constant share of the isolated all-reduce, since what is left when
  the backward pass ends is the last fused buffer's. It never hides more than a backward pass.
- *budget*: a constant time is hidden, since the backward pass leaves so much room.

Where two placements or more were measured, the one with the smaller error is taken. From a single
one across nodes only negotiation is taken, with the overlap of those inside a node; from a single
one alone *share*, with as much of the exposed part as the all-reduce can have.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.analysis.models.spread import Draws, bounded_pair, positive

_Matrix = NDArray[np.float64]  # (draws, points)


@dataclass(frozen=True)
class Overlap:
    """The exposed part of an all-reduce, and what one unit of negotiation's growth costs; draws."""

    form: str  # share or budget
    level: Draws  # the share, or the hidden seconds
    exchange_s: Draws
    why: str

    def exposed_s(self, allreduce_s: Draws, backward_s: Draws) -> Draws:
        """Return what of ``allreduce_s`` a backward pass of ``backward_s`` does not hide."""
        if self.form == "budget":
            return np.maximum(allreduce_s - np.minimum(self.level, backward_s), 0.0)
        return np.maximum(self.level * allreduce_s, allreduce_s - backward_s)


def calibrate(
    allreduce_s: _Matrix,
    backward_s: _Matrix,
    exposed_s: _Matrix,
    growth: NDArray[np.float64],
    exchange_s: Draws | None,
    like: Overlap | None = None,
) -> Overlap:
    """Return the form that explains ``exposed_s``, all of shape (draws, points).

    ``growth`` (points,) is how negotiation grows, zero without Horovod; ``exchange_s`` its cost
    where a timeline gave it, else it is what the all-reduce does not explain. ``like`` is the
    overlap that a single point is taken to have.
    """
    if allreduce_s.shape[1] == 1:
        rest_s, one_allreduce_s = exposed_s[:, 0], allreduce_s[:, 0]
        law = float(growth[0])
        return _of_one(one_allreduce_s, backward_s[:, 0], rest_s, law, exchange_s, like)
    g = np.broadcast_to(growth, allreduce_s.shape)
    if exchange_s is not None:
        exposed_s = np.maximum(exposed_s - exchange_s[:, None] * g, 0.0)
        g = np.zeros_like(allreduce_s)
    # Without negotiation the all-reduce is all there is, also where it takes longer than alone.
    most = 1.0 if growth.any() and exchange_s is None else np.inf
    share, by_share = bounded_pair(allreduce_s, g, exposed_s, most)
    one = Overlap("share", share, by_share if exchange_s is None else exchange_s, "")
    hidden, by_hidden = bounded_pair(np.ones_like(g), -g, allreduce_s - exposed_s)
    other = Overlap("budget", hidden, by_hidden if exchange_s is None else exchange_s, "")
    errors = [
        _error(form, pair, allreduce_s, backward_s, exposed_s, g)
        for form, pair in ((one, by_share), (other, by_hidden))
    ]
    best = other if errors[1] < 0.99 * errors[0] else one
    what = "a constant share" if best is one else "a constant hidden time"
    why = f"{what} fits {allreduce_s.shape[1]} placements best"
    return Overlap(best.form, best.level, best.exchange_s, why)


def _of_one(
    allreduce_s: Draws,
    backward_s: Draws,
    exposed_s: Draws,
    law: float,
    exchange_s: Draws | None,
    like: Overlap | None,
) -> Overlap:
    """Return what one placement says: it cannot tell negotiation from the all-reduce by itself."""
    if exchange_s is None and law > 0 and like is not None:
        rest_s = exposed_s - like.exposed_s(allreduce_s, backward_s)
        if rest_s[0] >= 0:
            why = "the overlap of one node"
            return Overlap(like.form, like.level, positive(rest_s) / law, why)
    given_s = exchange_s if exchange_s is not None else np.zeros_like(exposed_s)
    left_s = positive(exposed_s - given_s * law)
    share = left_s / np.maximum(allreduce_s, 1e-300)
    why = "one placement: a constant share"
    if exchange_s is not None or law == 0:
        return Overlap("share", np.where(allreduce_s > 0, share, 0.0), given_s, why)
    share = np.where(allreduce_s > 0, np.minimum(share, 1.0), 0.0)
    return Overlap("share", share, positive(left_s - share * allreduce_s) / law, why)


def _error(
    form: Overlap,
    exchange_s: Draws,
    allreduce_s: _Matrix,
    backward_s: _Matrix,
    exposed_s: _Matrix,
    growth: _Matrix,
) -> float:
    """Return the sum of squares of what the form leaves unexplained of the estimates."""
    found = [
        form.exposed_s(allreduce_s[:, i], backward_s[:, i])[0] + exchange_s[0] * growth[0, i]
        for i in range(allreduce_s.shape[1])
    ]
    return float(((np.asarray(found) - exposed_s[0]) ** 2).sum())
