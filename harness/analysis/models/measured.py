"""What the mechanism starts from: a curve's launches, their phases laid on the window's step.

Phases are of other steps than the window, and marking them costs something. So each phase counts by
its share: ``phase · window's step / sum of the phases``, and the parts add up to the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from harness.analysis.match import parsed
from harness.analysis.models.api import Place
from harness.analysis.models.spread import Draws
from harness.analysis.results import Results
from harness.analysis.scaling import Curve, Launch, Point
from harness.config.models import HorovodTuning
from harness.errors import AnalysisError
from harness.stats import BlockKey

FloatOrDraws = TypeVar("FloatOrDraws", float, Draws)
NEED_PHASES = (
    "needs the phases of a step: run the sweep with measure.instruments: [phases] (where forward "
    "and backward cannot be marked apart there are none: TensorFlow with execution.compile, DDP "
    "with execution.graph)"
)
#: Phases that are further from the window's step than this are named.
_APART = 0.1


@dataclass(frozen=True)
class StepParts:
    """One launch's step by its phases; seconds, they add up to the window's step."""

    block: BlockKey
    run_id: str
    step_s: float
    scale: float  # window's step / sum of the phases
    data_s: float
    forward_s: float
    backward_s: float
    update_s: float
    wait_s: float  # zero where one rank trains alone
    transfer_s: float

    @property
    def local_s(self) -> float:
        """Return what a rank does on its own."""
        return self.data_s + self.forward_s + self.backward_s + self.update_s


@dataclass(frozen=True)
class Facts:
    """What a curve's records say once: bytes as they are sent, controller, Horovod's tuning."""

    count_bytes: float
    controller: str | None
    tuning: HorovodTuning | None  # None without Horovod


@dataclass(frozen=True)
class Measured:
    """One point: its launches' parts, and its isolated all-reduces by block."""

    point: Point
    place: Place
    parts: tuple[StepParts, ...]
    isolated_s: Mapping[BlockKey, float]

    def by_block(self, value: Callable[[StepParts], float]) -> dict[BlockKey, float]:
        """Return a value of each block; the mean where it has several launches."""
        found: dict[BlockKey, list[float]] = {}
        for one in self.parts:
            found.setdefault(one.block, []).append(value(one))
        return {block: sum(values) / len(values) for block, values in found.items()}


def step_parts(launch: Launch) -> StepParts | None:
    """Return a launch's step by its phases; None where a phase was not measured."""
    whole_s = launch.phase_sum_s
    phases = (launch.data_s, launch.forward_s, launch.backward_s, launch.update_s)
    if whole_s is None or whole_s <= 0 or any(phase is None for phase in phases):
        return None
    # Nothing is synchronised where one rank trains alone, so nobody waits.
    exposed = launch.exposed_sync_s is not None
    if exposed and (launch.transfer_s is None or launch.wait_s is None):
        return None
    scale = launch.step_s / whole_s
    data, forward, backward, update = ((phase or 0.0) * scale for phase in phases)
    return StepParts(
        block=launch.block,
        run_id=launch.run_id,
        step_s=launch.step_s,
        scale=scale,
        data_s=data,
        forward_s=forward,
        backward_s=backward,
        update_s=update,
        wait_s=(launch.wait_s or 0.0) * scale if exposed else 0.0,
        transfer_s=(launch.transfer_s or 0.0) * scale if exposed else 0.0,
    )


def marked_apart(point: Point) -> Iterator[str]:
    """Say so where marked steps are far from the window's: their shares may be others, too."""
    apart = point.phases_minus_step or 0.0
    if abs(apart) > _APART:
        yield (
            f"marked steps took {100 * apart:+.0f} % of the window's at N = {point.world_size}: "
            "phases count by their share of it".replace("-", "−")
        )


def measured_points(curve: Curve) -> tuple[Measured, ...]:
    """Return the points whose phases were measured; AnalysisError where none was."""
    found = []
    for point in curve.points:
        parts = tuple(filter(None, map(step_parts, point.launches)))
        if parts:
            isolated: dict[BlockKey, float] = {
                one.block: one.allreduce_p50_s
                for one in point.launches
                if one.allreduce_p50_s is not None
            }
            found.append(Measured(point, Place.of(point), parts, isolated))
    if not found:
        raise AnalysisError(f"{curve.label}: the mechanism {NEED_PHASES}")
    return tuple(found)


def facts_of(results: Results, curve: Curve) -> Facts:
    """Return what the records of a curve say once."""
    row = _row_of(results, [one.run_id for p in curve.points for one in p.launches])
    sent = row["allreduce_bytes"] or row["gradient_bytes"]
    tuning = None
    if curve.engine == "horovod":
        tuning = HorovodTuning.model_validate(dict(parsed(curve.config).get("horovod", {})))
    return Facts(float(sent or 0), row["controller"], tuning)


def _row_of(results: Results, run_ids: Sequence[str]) -> dict[str, Any]:
    """Return the table's row of the last launch: the most ranks, so it has reduced something."""
    import pyarrow.compute as pc

    names = ["run_id", "status", "allreduce_bytes", "gradient_bytes", "controller"]
    table = results.table.select(names)
    found = table.filter(pc.equal(table["run_id"], run_ids[-1])).to_pylist()
    good = [row for row in found if row["status"] == "ok"]
    if not good:
        raise AnalysisError(f"{run_ids[-1]}: no record of it in {results.folder}")
    row: dict[str, Any] = good[-1]
    return row


@dataclass(frozen=True)
class TimelineParts:
    """What a timeline says of a step: its negotiation without waiting, and its last operation.

    Most of a timeline's negotiation lies behind the backward pass, other ranks' lateness is in it,
    and operations before the last one are mostly hidden. So of what is exposed, the last operation
    is all-reduce, and the rest is negotiation as far as the timeline has any.
    """

    negotiation_s: float
    operation_s: float  # all but negotiation / operations

    def exposed_negotiation_s(self, exposed_s: FloatOrDraws) -> FloatOrDraws:
        """Return negotiation's part of an exposed transfer that has no wait for a cycle in it."""
        room_s = np.maximum(exposed_s - self.operation_s, 0.0)
        found: FloatOrDraws = np.minimum(room_s, self.negotiation_s)
        return found


def timeline_parts(point: Point) -> TimelineParts | None:
    """Return what a point's timelines say; None without one."""
    timeline = point.timeline
    if timeline is None or "timeline_negotiation_s" not in timeline:
        return None
    wait_s = point.wait_s.estimate if point.wait_s else 0.0
    states = ("queue", "copy_in", "allreduce", "copy_out")
    rest_s = sum(timeline.get(f"timeline_{state}_s", 0.0) for state in states)
    operations = max(timeline.get("timeline_allreduces", 1.0), 1.0)
    negotiation_s = max(timeline["timeline_negotiation_s"] - wait_s, 0.0)
    return TimelineParts(negotiation_s, rest_s / operations)
