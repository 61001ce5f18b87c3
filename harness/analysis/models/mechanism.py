"""The mechanism of a synchronous step, built of measured parts, each grown by its own law::

    step(N) = compute + contention + jitter + cycle + negotiation + exposed all-reduce

- *compute*: data, forward, backward and update of a rank at the smallest N with an all-reduce; with
  strong scaling a + b · (a rank's batch).
- *contention* (weak scaling): how compute grows with the ranks of a node, a line, none below zero.
- *jitter*: the expected maximum over N ranks of a rank's own time (``jitter``), times what measured
  waits are of it.
- *cycle*, *negotiation*: Horovod's agreement (``negotiation``).
- *exposed all-reduce*: latency and bandwidth (``alpha_beta``), as far as not hidden (``overlap``).

Every part is measured at the N that there are; that it grows by its law is assumed, and each term
says so. Draws of the parameters are Student's over blocks (``spread``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.analysis.models.api import Model, Network, Parameter, Place, Term
from harness.analysis.models.mechanism_fit import Fitted, fit
from harness.analysis.models.mechanism_inputs import Inputs, gather
from harness.analysis.models.mechanism_words import notes_of, parameters_of, terms_of
from harness.analysis.results import Results
from harness.analysis.scaling import Curve
from harness.collectives.record import CollectivesRecord

_LEAST = 0.01  # of a step that a draw may be
_COUNT = 1000  # draws behind the parameters' intervals


@dataclass(frozen=True)
class Mechanism:
    """A curve's mechanism; a Model."""

    inputs: Inputs
    fitted: Fitted
    parameters: Sequence[Parameter]
    notes: Sequence[str]
    name: str = "mechanism"
    formula: str = (
        "step(N) = compute + contention + jitter(N) + cycle/2 + negotiation(N) + exposed part of "
        "[2(N−1)·α + 2(N−1)/N·bytes/β]"
    )

    def step_s(self, place: Place) -> float:
        """Return the expected time of a step; AnalysisError where a link is not known."""
        return float(sum(term.time_s for term in self.terms(place)))

    def terms(self, place: Place) -> Sequence[Term]:
        """Return the parts of ``step_s``."""
        return terms_of(self.inputs, self.fitted, place)

    def draws_s(self, place: Place, count: int) -> NDArray[np.float64]:
        """Return the step for ``count`` plausible sets of parameters.

        All alike where there is one block: it cannot tell, and a note says so.
        """
        fitted = fit(self.inputs, count)
        whole: NDArray[np.float64] = np.sum(list(fitted.parts(place).values()), axis=0)
        # Student's t of two blocks has tails below zero, where no time is.
        floor: NDArray[np.float64] = np.maximum(whole[1:], _LEAST * whole[0])
        return floor


def fit_mechanism(
    results: Results,
    curve: Curve,
    *,
    network: Network | None = None,
    allreduce: CollectivesRecord | None = None,
) -> Model:
    """Return the mechanism of ``curve``, or of one without its largest N.

    ``network`` joins nodes in place of what was measured across them; ``allreduce`` gives latency
    and bandwidth of its own kind of link. AnalysisError where the curve has too little: no phases,
    one device, or N = 1 and 2 alone, which cannot show dependence on N.
    """
    inputs = gather(results, curve, network, allreduce)
    fitted = fit(inputs, _COUNT)
    return Mechanism(inputs, fitted, parameters_of(inputs, fitted), notes_of(inputs, fitted))
