"""Whether a step is bound by launching kernels, and how much of it a graph would take away.

Two kinds of evidence, the first that is there:

1. GPU utilisation, the share of time in which any kernel ran. What of a step is neither busy nor
   exposed sync is the host's time between kernels.
2. Two batch sizes whose steps last alike though one is at least twice the other: the device was not
   what they waited for. It then needs at most its share of the step of the largest batch.

On a CPU nothing is launched, so there is nothing to take away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.match import parsed
from harness.analysis.models.measured import step_parts
from harness.analysis.scaling import Curve, Point

_BUSY = 0.8  # a device busier than this is not waiting for the host
_LARGER = 2.0  # times the batch
_ALIKE = 1.1  # times the step, at most
_BATCHES = ("batch_size", "global_batch_size")


@dataclass(frozen=True)
class Graph:
    """What replaying a step as one graph may take away, and why; or why not."""

    words: str = ""
    refused: str | None = None
    busy: float | None = None  # share of a step in which the device computed or reduced
    device_s: float | None = None  # at most what it needs to compute a step

    def kept(self, step_s: float, compute_s: float) -> float:
        """Return which part of a step's computing stays; ``step_s`` has the exposed sync in it."""
        if self.busy is not None:
            idle_s = max((1.0 - self.busy) * step_s - (step_s - compute_s), 0.0)
            return max(1.0 - idle_s / compute_s, 0.0) if compute_s > 0 else 1.0
        assert self.device_s is not None
        return min(self.device_s / compute_s, 1.0) if compute_s > 0 else 1.0


def graph_of(curve: Curve, point: Point, curves: Sequence[Curve]) -> Graph:
    """Return what a graph would do to a point; ``curves`` may hold the same with other batches."""
    if curve.device == "cpu":
        return Graph(refused="a CPU launches no kernels, so a graph has nothing to take away")
    execution = dict(parsed(curve.config).get("execution", {}))
    if execution.get("graph"):
        return Graph(refused="the step is one graph already (execution.graph)")
    busy = point.telemetry.get("gpu_utilisation")
    if busy is not None:
        return _by_utilisation(busy)
    found = _by_batches(curve, point, curves)
    if found is not None:
        return found
    return Graph(
        refused="nothing shows that the step is launch-bound: measure GPU utilisation "
        "(measure.instruments: [phases, telemetry]) or a batch twice as large"
    )


def _by_utilisation(busy: float) -> Graph:
    if busy > _BUSY:
        return Graph(
            refused=f"the step is not launch-bound: a kernel ran in {100 * busy:.0f} % of the time"
        )
    return Graph(
        f"a kernel ran in {100 * busy:.0f} % of the time; the rest that is not exposed sync is the "
        "host's time between kernels, and a graph has none",
        busy=busy,
    )


def _by_batches(curve: Curve, point: Point, curves: Sequence[Curve]) -> Graph | None:
    """Compare with the same point at larger batches; None where there is none to compare."""
    mine = _compute_s(point)
    larger = {
        other.rank_batch: compute_s
        for one in curves
        if _but_for_batch(one) == _but_for_batch(curve)
        for other in one.points
        if other.placement == point.placement
        and other.rank_batch >= _LARGER * point.rank_batch
        and (compute_s := _compute_s(other)) is not None
    }
    if mine is None or not larger:
        return None
    nearest, largest = min(larger), max(larger)
    if larger[nearest] > _ALIKE * mine:
        return Graph(
            refused=f"the step is not launch-bound: a batch of {nearest} takes "
            f"{larger[nearest] / mine:.2g} times as long to compute as one of {point.rank_batch}"
        )
    device_s = min(compute_s * point.rank_batch / batch for batch, compute_s in larger.items())
    return Graph(
        f"batches of {point.rank_batch} and {nearest} take as long to compute, so the host is "
        f"waited for; the device is taken to need its share of the batch of {largest}: the best "
        "case, since small batches use it less well",
        device_s=device_s,
    )


def _compute_s(point: Point) -> float | None:
    parts = [step_parts(launch) for launch in point.launches]
    times = [one.local_s - one.data_s for one in parts if one is not None]
    return sum(times) / len(times) if times else None


def _but_for_batch(curve: Curve) -> tuple[object, ...]:
    config = {key: value for key, value in parsed(curve.config).items() if key not in _BATCHES}
    return (repr(sorted(config.items())), curve.backend, curve.device)
