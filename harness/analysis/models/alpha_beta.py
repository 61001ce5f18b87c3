"""The time of an all-reduce anywhere, from all-reduces measured somewhere: latency and bandwidth.

A flat ring of N ranks sends 2(N−1) messages of bytes / N one after the other, each as slow as its
slowest link (Patarasu and Yuan, Bandwidth optimal all-reduce algorithms, 2009)::

    2(N − 1)·α + 2(N − 1)/N · bytes / β

Hierarchical over n nodes of d ranks: reduce-scatter and all-gather inside, 2(d−1)·α + 2(d−1)/d ·
bytes / β with α, β of the links inside, and between nodes a ring of n with bytes / d.

From a sweep's isolated all-reduces of one size at several N, α and 1/β are least squares, none
below zero. From a result of ``hvdscale allreduce`` they are piecewise in size: α is that of the
smallest size, and 1/β what the time of a size, interpolated between measured ones, has beyond it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.analysis.models.api import Network, Place
from harness.analysis.models.spread import Draws, bounded_pair
from harness.collectives.record import CollectivesRecord, Row
from harness.errors import AnalysisError


@dataclass(frozen=True)
class Link:
    """Latency of a message and seconds a byte of one kind of link; draws, the estimate first."""

    alpha_s: Draws
    s_per_byte: Draws
    origin: str  # where they are from, for a reader


@dataclass(frozen=True)
class Timed:
    """All-reduces measured at one place: seconds, draws."""

    place: Place
    seconds: Draws


@dataclass(frozen=True)
class Parts:
    """An all-reduce's two parts in seconds; draws."""

    latency_s: Draws
    transfer_s: Draws

    @property
    def seconds(self) -> Draws:
        """Return the whole."""
        return self.latency_s + self.transfer_s


@dataclass(frozen=True)
class AllReduceModel:
    """An all-reduce of the gradient's bytes at any place. A link that is not known is None."""

    count_bytes: float
    inside: Link | None  # of a node
    across: Link | None  # between nodes
    hierarchical: bool = False

    def parts(self, place: Place) -> Parts:
        """Return latency and transfer at ``place``; AnalysisError where its links are not known."""
        n = place.world_size
        if n == 1:
            size = len((self.inside or self.across or _NO_LINK).alpha_s)
            return Parts(np.zeros(size), np.zeros(size))
        if place.nodes == 1:
            return _ring(_known(self.inside, _NO_INSIDE), n, self.count_bytes)
        across = _known(self.across, NO_ACROSS)
        largest = max(place.placement)
        if not self.hierarchical or largest == 1:
            return _ring(across, n, self.count_bytes)
        within = _ring(_known(self.inside, _NO_INSIDE), largest, self.count_bytes)
        between = _ring(across, place.nodes, self.count_bytes / largest)
        return Parts(within.latency_s + between.latency_s, within.transfer_s + between.transfer_s)


_NO_LINK = Link(np.zeros(1), np.zeros(1), "")
_NO_INSIDE = (
    "nothing is known of links inside a node: measure at two device counts or more of one node, or "
    "give a result of hvdscale allreduce (--allreduce DIR)"
)
NO_ACROSS = (
    "nothing is predicted across nodes without two-node data: measure a placement of two nodes "
    "(e.g. --set placement=[1x4,2x4]), or give the network: --inter-node-us 3 --inter-node-gbs 25"
)


def fit_inside(timed: Sequence[Timed], count_bytes: float) -> Link | None:
    """Return the link inside a node from all-reduces of one node; None below two device counts."""
    here = [one for one in timed if one.place.nodes == 1 and one.place.world_size > 1]
    if len({one.place.world_size for one in here}) < 2:
        return None
    return _least_squares(here, count_bytes, "the sweep's isolated all-reduces of one node")


def fit_across(
    timed: Sequence[Timed], inside: Link | None, count_bytes: float, hierarchical: bool
) -> Link | None:
    """Return the link between nodes from all-reduces across nodes; None where they cannot tell.

    One placement across nodes cannot tell latency from bandwidth: then both are worse than inside
    a node by one and the same factor.
    """
    there = [one for one in timed if one.place.nodes > 1]
    if not there:
        return None
    if len({_coefficients(one.place, count_bytes, hierarchical) for one in there}) > 1:
        origin = "the sweep's isolated all-reduces across nodes"
        return _least_squares(there, count_bytes, origin, hierarchical, inside)
    if inside is None:
        return None
    alike = AllReduceModel(count_bytes, inside, inside, hierarchical)
    measured = np.mean([one.seconds for one in there], axis=0)
    as_inside = alike.parts(there[0].place).seconds
    within = _within(inside, there[0].place, count_bytes, hierarchical)
    factor = np.maximum(measured - within, 0.0) / np.maximum(as_inside - within, 1e-12)
    return Link(
        inside.alpha_s * factor,
        inside.s_per_byte * factor,
        "one placement across nodes: latency and bandwidth worse than inside a node by one factor",
    )


def of_network(network: Network, draws: int) -> Link:
    """Return the link between nodes that a user gave."""
    return Link(
        np.full(draws, network.latency_s),
        np.full(draws, 1.0 / network.bandwidth_bytes_per_s),
        "the network as it was given",
    )


def of_record(
    record: CollectivesRecord, backend: str | None, device: str, count_bytes: float, draws: int
) -> Link:
    """Return the link that a result of ``hvdscale allreduce`` shows for ``count_bytes``.

    Of its libraries one without Horovod's cycle that moves its bytes by ``backend`` comes first.
    Raises AnalysisError where none does, or it ran on another kind of device.
    """
    if record.device != device:
        raise AnalysisError(
            f"the all-reduces given ran on {record.device}, the sweep on {device}: measure them on "
            "the same device with hvdscale allreduce"
        )
    rows, cycle_s = _rows(record, backend)
    times = {row.bytes: max(row.latency_p50_s - cycle_s, 0.0) for row in rows}
    sizes = sorted(times)
    n = record.world_size
    if len(sizes) < 2 or n < 2:
        raise AnalysisError(
            "the all-reduces given are of one size or one rank: latency and bandwidth need two "
            "sizes or more of two ranks or more"
        )
    latency_s = min(times.values())
    beyond = [max(times[size] - latency_s, 0.0) / size for size in sizes]
    # Piecewise: seconds a byte at each measured size, between them by interpolation of times.
    extra_s = np.interp(count_bytes, sizes, [b * s for b, s in zip(beyond, sizes, strict=True)])
    per_byte = beyond[-1] if count_bytes > sizes[-1] else float(extra_s) / count_bytes
    return Link(
        np.full(draws, latency_s / (2 * (n - 1))),
        np.full(draws, per_byte * n / (2 * (n - 1))),
        f"hvdscale allreduce, {rows[0].library}, N = {n}, one launch: no interval",
    )


def _rows(record: CollectivesRecord, backend: str | None) -> tuple[list[Row], float]:
    """Return a library's all-reduces and the cycle of Horovod that lies in each."""
    proven = {one.name: one.proof.proven for one in record.libraries}
    there = {row.library for row in record.rows if row.collective == "all_reduce"}
    fitting = sorted(
        (name for name in there if proven.get(name) == backend), key=lambda n: n == "horovod"
    )
    if not fitting:
        had = ", ".join(f"{name} over {proven.get(name)}" for name in sorted(there)) or "none"
        raise AnalysisError(f"the all-reduces given have none over {backend}; they have: {had}")
    name = fitting[0]
    rows = [row for row in record.rows if (row.collective, row.library) == ("all_reduce", name)]
    tuning = record.tuning if name == "horovod" else None
    return rows, 0.0 if tuning is None else tuning.cycle_time_ms / 1e3


def _ring(link: Link, ranks: int, count_bytes: float) -> Parts:
    return Parts(
        2 * (ranks - 1) * link.alpha_s, 2 * (ranks - 1) / ranks * count_bytes * link.s_per_byte
    )


def _coefficients(
    place: Place, count_bytes: float, hierarchical: bool = False
) -> tuple[float, float]:
    """Return what α and 1/β of the slower link are multiplied by."""
    n, part = place.world_size, count_bytes
    if hierarchical and place.nodes > 1:
        n, part = place.nodes, count_bytes / max(place.placement)
    return 2.0 * (n - 1), 2.0 * (n - 1) / n * part


def _within(inside: Link | None, place: Place, count_bytes: float, hierarchical: bool) -> Draws:
    """Return what a hierarchical all-reduce takes inside nodes; zero of a flat ring."""
    if not hierarchical or inside is None or max(place.placement) == 1:
        return np.zeros(1)
    return _ring(inside, max(place.placement), count_bytes).seconds


def _least_squares(
    timed: Sequence[Timed],
    count_bytes: float,
    origin: str,
    hierarchical: bool = False,
    inside: Link | None = None,
) -> Link:
    pairs = [_coefficients(one.place, count_bytes, hierarchical) for one in timed]
    seconds = [
        np.maximum(one.seconds - _within(inside, one.place, count_bytes, hierarchical), 0.0)
        for one in timed
    ]
    y = np.stack(seconds, axis=1)
    # Relative errors count alike: a launch at N = 2 tells as much as one at N = 64.
    weight = 1.0 / np.maximum(y[:1], 1e-9)
    a = np.asarray([[pair[0] for pair in pairs]]) * weight
    b = np.asarray([[pair[1] for pair in pairs]]) * weight
    shape = y.shape
    alpha_s, s_per_byte = bounded_pair(
        np.broadcast_to(a, shape), np.broadcast_to(b, shape), y * weight
    )
    return Link(alpha_s, s_per_byte, origin)


def _known(link: Link | None, otherwise: str) -> Link:
    if link is None:
        raise AnalysisError(otherwise)
    return link
