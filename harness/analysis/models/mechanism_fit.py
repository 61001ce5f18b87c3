"""How the mechanism's parameters come from a curve's launches; see ``mechanism``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from harness.analysis.models.alpha_beta import (
    NO_ACROSS,
    AllReduceModel,
    Link,
    Timed,
    fit_across,
    fit_inside,
    of_network,
    of_record,
)
from harness.analysis.models.api import Place
from harness.analysis.models.jitter import Jitter
from harness.analysis.models.measured import Measured, StepParts, timeline_parts
from harness.analysis.models.mechanism_inputs import Inputs
from harness.analysis.models.negotiation import growth, messages_across, queue_s
from harness.analysis.models.overlap import Overlap, calibrate
from harness.analysis.models.spread import Draws, Spread, positive
from harness.errors import AnalysisError
from harness.stats import BlockKey


@dataclass(frozen=True, eq=False)
class Fitted:
    """The parameters, each as draws with the estimate first."""

    inputs: Inputs
    spread: Spread
    compute_s: Draws  # weak: of a step at ``inputs.reduced[0]``; strong: what no batch changes
    per_sample_s: Draws  # strong scaling only, else zero
    contention_s: Draws  # a further rank on a node; weak scaling only
    backward_share: Draws  # of compute
    jitter_s: Draws  # standard deviation of a rank's own time
    wait_share: Draws  # measured wait / expected maximum
    queue_s: Draws
    links: AllReduceModel
    overlap: Overlap  # inside a node
    overlap_across: Overlap

    def rank_batch(self, place: Place) -> float:
        """Return the samples of a rank and step at ``place``."""
        curve = self.inputs.curve
        return curve.batch / (place.world_size if curve.scaling == "strong" else 1)

    def parts(self, place: Place) -> dict[str, Draws]:
        """Return the parts of a step at ``place``, in seconds; their sum is the step."""
        n = place.world_size
        compute = self.compute_s + self.per_sample_s * self.rank_batch(place)
        found = {"compute": compute}
        if n == 1:
            return found
        first = max(self.inputs.reduced[0].place.placement)
        allreduce = self.links.parts(place)
        overlap = self.overlap if place.nodes == 1 else self.overlap_across
        exposed = overlap.exposed_s(allreduce.seconds, self.backward_share * compute)
        whole = np.maximum(allreduce.seconds, 1e-300)
        if self.contention_s.any():
            more = self.contention_s * (max(place.placement) - first)
            found["contention"] = np.maximum(more, -compute)
        found["jitter"] = self.wait_share * self._expected_maximum(n)
        if self.inputs.facts.tuning is not None:
            found["cycle"] = self.queue_s
            found["negotiation"] = overlap.exchange_s * growth(self.inputs.facts.controller, n)
            found["negotiation"] = found["negotiation"] + self._given_latency_s(place)
        found["all-reduce latency"] = exposed * (allreduce.latency_s / whole)
        found["all-reduce bandwidth"] = exposed * (allreduce.transfer_s / whole)
        return found

    def _expected_maximum(self, n: int) -> Draws:
        return _expected_maximum(self.inputs.jitter, self.spread, n)

    def _given_latency_s(self, place: Place) -> float:
        """Return what a network that was given adds to an exchange that was measured in a node."""
        network = self.inputs.network
        if network is None or any(one.place.nodes > 1 for one in self.inputs.reduced):
            return 0.0
        return network.latency_s * messages_across(self.inputs.facts.controller, place)


@lru_cache(maxsize=64)
def fit(inputs: Inputs, count: int) -> Fitted:
    """Return the parameters with ``count`` draws of each."""
    every = [*inputs.alone, *inputs.reduced]
    spread = Spread.over((part.block for one in every for part in one.parts), count)
    compute_s, per_sample_s = _compute(inputs, spread)
    links = _links(inputs, spread, count)
    overlap, across = _overlaps(inputs, spread, links)
    return Fitted(
        inputs=inputs,
        spread=spread,
        compute_s=compute_s,
        per_sample_s=per_sample_s,
        contention_s=_contention(inputs, spread),
        backward_share=spread.draws(inputs.reduced[0].by_block(_backward_share)),
        jitter_s=_around(spread, inputs.jitter.deviation_s, inputs.jitter.deviation_by_block()),
        wait_share=_wait_share(inputs, spread),
        queue_s=np.mean([_queue(inputs, one, spread) for one in inputs.reduced], axis=0),
        links=links,
        overlap=overlap,
        overlap_across=across,
    )


def _backward_share(parts: StepParts) -> float:
    return parts.backward_s / parts.local_s


def _local(spread: Spread, one: Measured) -> Draws:
    return spread.draws(one.by_block(lambda part: part.local_s))


def _compute(inputs: Inputs, spread: Spread) -> tuple[Draws, Draws]:
    """Return (a, b) of a + b · batch; (a, 0) with weak scaling."""
    first = _local(spread, inputs.reduced[0])
    if inputs.curve.scaling == "weak":
        return first, np.zeros_like(first)
    points = inputs.reduced
    if len({one.point.rank_batch for one in points}) < 2:
        points = (*inputs.alone, *points)
    batches = np.asarray([float(one.point.rank_batch) for one in points])
    if len(set(batches)) < 2:
        return np.zeros_like(first), first / batches[0]
    times = np.stack([_local(spread, one) for one in points], axis=1)
    off = batches - batches.mean()
    slope = np.maximum(times @ off / (off @ off), 0.0)
    start = np.maximum(times.mean(1) - slope * batches.mean(), 0.0)
    # Where the line would start below zero, it is the one through zero.
    through_zero = times @ batches / (batches @ batches)
    return start, np.where(start > 0, slope, np.maximum(through_zero, 0.0))


def _contention(inputs: Inputs, spread: Spread) -> Draws:
    """Return what a further rank on its node adds to a rank's compute, none below zero."""
    ranks = np.asarray([float(max(one.place.placement)) for one in inputs.reduced])
    off = ranks - ranks[0]
    times = np.stack([_local(spread, one) for one in inputs.reduced], axis=1)
    if inputs.curve.scaling == "strong" or not off.any():
        return np.zeros(len(times))
    return positive((times - times[:, :1]) @ off / (off @ off))


def _expected_maximum(jitter: Jitter, spread: Spread, n: int) -> Draws:
    """Return the expected maximum: of all samples, with the spread that single blocks have."""
    return _around(spread, jitter.expected_s(n), jitter.expected_by_block(n))


def _around(spread: Spread, estimate: float, by_block: Mapping[BlockKey, float]) -> Draws:
    """Return draws around ``estimate``, with the spread of blocks; without any where none is."""
    if not by_block:
        return np.full(1 + len(spread.weights), estimate)
    off = spread.draws(by_block)
    return positive(off + (estimate - off[0]))


def _wait_share(inputs: Inputs, spread: Spread) -> Draws:
    """Return measured waits over expected maxima, least squares through zero."""
    waits = [spread.draws(one.by_block(lambda part: part.wait_s)) for one in inputs.reduced]
    maxima = [
        _expected_maximum(inputs.jitter, spread, one.place.world_size) for one in inputs.reduced
    ]
    x, y = np.stack(maxima), np.stack(waits)
    share: Draws = (x * y).sum(0) / np.maximum((x * x).sum(0), 1e-300)
    return share


def _queue(inputs: Inputs, one: Measured, spread: Spread) -> Draws:
    """Return half a cycle, as far as a point's exposed transfer has room for it."""
    transfer = _transfer(one, spread)
    tuning = inputs.facts.tuning
    return np.minimum(transfer, queue_s(tuning.cycle_time_ms)) if tuning else 0.0 * transfer


def _transfer(one: Measured, spread: Spread) -> Draws:
    return spread.draws(one.by_block(lambda part: part.transfer_s))


def _links(inputs: Inputs, spread: Spread, count: int) -> AllReduceModel:
    facts, record = inputs.facts, inputs.allreduce
    cycle_s = facts.tuning.cycle_time_ms / 1e3 if facts.tuning else 0.0
    # Each of the isolated all-reduces, called one after the other, waits for a whole cycle.
    timed = [
        Timed(one.place, np.maximum(spread.draws(one.isolated_s) - cycle_s, 0.0))
        for one in inputs.reduced
    ]
    hierarchical = bool(facts.tuning and facts.tuning.hierarchical_allreduce)
    given: Link | None = None
    if record is not None:
        curve = inputs.curve
        given = of_record(record, curve.backend, curve.device, facts.count_bytes, 1 + count)
    of_one_node = record is not None and len(record.placement) == 1
    inside = given if of_one_node else fit_inside(timed, facts.count_bytes)
    if inputs.network is not None:
        across: Link | None = of_network(inputs.network, 1 + count)
    elif given is not None and not of_one_node:
        across = given
    else:
        across = fit_across(timed, inside, facts.count_bytes, hierarchical)
    return AllReduceModel(facts.count_bytes, inside, across, hierarchical)


def _overlaps(inputs: Inputs, spread: Spread, links: AllReduceModel) -> tuple[Overlap, Overlap]:
    """Return the overlap inside a node and across nodes; one for both where one was measured."""
    groups: dict[bool, list[Measured]] = {False: [], True: []}
    for one in inputs.reduced:
        if _is_known(links, one.place):
            groups[one.place.nodes > 1].append(one)
    if not any(groups.values()):
        raise AnalysisError(f"{inputs.curve.label}: {NO_ACROSS}")
    inside = _overlap(inputs, spread, links, groups[False]) if groups[False] else None
    # A network that was given is not the one that was measured across.
    if not groups[True] or (inputs.network is not None and inside is not None):
        assert inside is not None
        return inside, inside
    across = _overlap(inputs, spread, links, groups[True], inside)
    return inside or across, across


def _overlap(
    inputs: Inputs,
    spread: Spread,
    links: AllReduceModel,
    points: Sequence[Measured],
    like: Overlap | None = None,
) -> Overlap:
    controller = inputs.facts.controller

    def stacked(value: Callable[[Measured], Draws]) -> NDArray[np.float64]:
        return np.stack([value(one) for one in points], axis=1)

    exposed = stacked(lambda one: _transfer(one, spread) - _queue(inputs, one, spread))
    laws = [growth(controller, one.place.world_size) for one in points]
    if inputs.facts.tuning is None:
        laws = [0.0] * len(points)
    return calibrate(
        stacked(lambda one: links.parts(one.place).seconds),
        stacked(lambda one: spread.draws(one.by_block(lambda part: part.backward_s))),
        exposed,
        np.asarray(laws),
        _timeline_exchange(exposed, laws, points),
        like,
    )


def _timeline_exchange(
    exposed_s: NDArray[np.float64], laws: Sequence[float], points: Sequence[Measured]
) -> Draws | None:
    """Return an exchange's cost from timelines; None without any."""
    shares = [timeline_parts(one.point) for one in points]
    found = [
        share.exposed_negotiation_s(exposed_s[:, at]) / laws[at]
        for at, share in enumerate(shares)
        if share is not None and laws[at] > 0
    ]
    return np.mean(found, axis=0) if found else None


def _is_known(links: AllReduceModel, place: Place) -> bool:
    """Say whether the links that an all-reduce at ``place`` needs are known."""
    if place.nodes == 1:
        return links.inside is not None
    needs_inside = links.hierarchical and max(place.placement) > 1
    return links.across is not None and (links.inside is not None or not needs_inside)
