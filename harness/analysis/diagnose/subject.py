"""One point that is diagnosed: its launches, its base's, and what its neighbours say of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import fmean

from harness.analysis.diagnose.facts import Facts
from harness.analysis.diagnose.neighbours import Neighbours
from harness.analysis.diagnose.parts import Account, Ideal, Known, Look, Wire, account
from harness.analysis.diagnose.who import Who, who
from harness.analysis.facets import is_base_point
from harness.analysis.points import Launch, Point
from harness.analysis.scaling import Curve
from harness.stats import BlockKey

_MS = 1e-3
#: A call may wait for the next round of Horovod's loop, and where a rank just missed that one for
#: one more: a small buffer takes two cycles, as isolated all-reduces of a few KiB show.
_CYCLES = 2


@dataclass(frozen=True)
class Subject:
    """A point, with all that is needed to judge it."""

    curve: Curve
    point: Point
    base: Point | None  # None: it has none, or it is the base itself
    other_batch: Point | None
    facts: Facts
    neighbours: Neighbours

    @classmethod
    def of(cls, curve: Curve, point: Point, facts: Facts, neighbours: Neighbours) -> Subject:
        """Look up what a point is held against."""
        base = None if is_base_point(curve, point) else neighbours.base_of(curve)
        other = neighbours.other_batch(curve, point)
        return cls(curve, point, base, other, facts, neighbours)

    @property
    def config(self) -> Mapping[str, str]:
        """Return its config as flat text."""
        return self.neighbours.facts(self.curve)

    @property
    def horovod(self) -> bool:
        """Say whether Horovod's controller coordinates its all-reduces."""
        return self.curve.engine == "horovod"

    @property
    def ranks_on_node(self) -> int:
        """Return the ranks of the fullest node."""
        return max(map(int, self.point.placement.split("+")))

    @property
    def who(self) -> Who | None:
        """Return which rank is late; None where raw steps do not tell."""
        found = map(self.facts.spread, self.launches)
        return who([one for one in found if one is not None])

    @property
    def crowding(self) -> str | None:
        """Say how a node has more ranks, or cores given to them, than cores; None where not."""
        return self.facts.crowding(self.point.launches[0], self.ranks_on_node)

    @property
    def part(self) -> float:
        """Return which part of the base's step the ideal step is."""
        if self.base is None or self.curve.scaling == "weak":
            return 1.0
        return self.base.world_size / self.point.world_size

    @property
    def launches(self) -> tuple[Launch, ...]:
        """Return the launches that count: with a base, those whose block has one, if any has."""
        if self.base is None or self.point.apart:
            return self.point.launches
        return tuple(one for one in self.point.launches if one.speedup is not None)

    def look(self, launch: Launch) -> Look:
        """Return a launch with what its raw steps tell."""
        return Look(launch, self.facts.spread(launch))

    def account(self, launch: Launch) -> Account:
        """Divide one launch's lost time: against its block's base, or the mean of bases apart."""
        if self.base is None:
            return self._account(launch, Ideal(1.0, None), ())
        if self.point.apart:
            mean = mean_launch(self.base.launches)
            return self._account(launch, self._ideal_apart(launch, Look(mean)), self.base.launches)
        theirs = _in_block(self.base, launch.block)
        n, devices = self.point.world_size, self.base.world_size
        efficiency = None if launch.speedup is None else launch.speedup * devices / n
        look = self.look(theirs) if theirs else None
        ideal = Ideal(self.part, look, devices == 1, efficiency)
        return self._account(launch, ideal, (theirs,) if theirs else ())

    def accounts_of_bases(self) -> list[tuple[Launch, Account]]:
        """Return one launch against each base, where bases are apart: how these scatter.

        What an account says beyond that is of this one launch, and its level means nothing here.
        """
        if self.base is None or not self.point.apart:
            return []
        first = self.point.launches[0]
        return [
            (one, self._account(first, self._ideal_apart(first, self.look(one)), (one,)))
            for one in self.base.launches
        ]

    def _account(self, launch: Launch, ideal: Ideal, bases: Sequence[Launch]) -> Account:
        known = Known(
            fixed_s=self.fixed_s(launch),
            wire=self.wire(launch),
            all_wire=not self.horovod,
            telemetry_s=self._telemetry_s(launch, bases),
        )
        return account(self.look(launch), ideal, known)

    def _ideal_apart(self, launch: Launch, theirs: Look) -> Ideal:
        assert self.base is not None  # only then is a point apart
        devices = self.base.world_size
        speedup = launch.throughput_samples_per_s / theirs.launch.throughput_samples_per_s
        return Ideal(self.part, theirs, devices == 1, speedup * devices / self.point.world_size)

    def fixed_s(self, launch: Launch) -> float | None:
        """Return what of a launch's compute does not grow with the batch, in seconds.

        c(B) − B · slope through the nearest other batch in the same block, the slope not below 0;
        on a GPU without one, the time in which no kernel ran though nothing was waited for.
        """
        own = self.look(launch).compute_s
        if own is None:
            return None
        theirs = _in_block(self.other_batch, launch.block) if self.other_batch else None
        other = self.look(theirs).compute_s if theirs else None
        if other is None or self.other_batch is None:
            return self._gpu_idle_s(launch)
        mine, their_batch = self.point.rank_batch, self.other_batch.rank_batch
        slope = max(0.0, (other - own) / (their_batch - mine))
        return own - mine * slope

    def _gpu_idle_s(self, launch: Launch) -> float | None:
        busy = self.facts.row(launch)["gpu_utilisation"]
        if busy is None or launch.data_s is None:
            return None
        waited = launch.data_s + (launch.exposed_sync_s or 0.0)
        return max(0.0, (1.0 - float(busy)) * launch.step_s - waited)

    def wire(self, launch: Launch) -> Wire | None:
        """Return the bounds of what moving the bytes takes; None where nothing bounds it."""
        timeline = self.timeline_wire_s
        if timeline is not None:
            return Wire(timeline, timeline)
        own = launch.allreduce_p50_s
        if own is None:
            return None
        cycle_s = float(self.config["horovod.cycle_time_ms"]) * _MS if self.horovod else 0.0
        found = [(cycle_s, own)]
        for other_ms, point in self.neighbours.other_cycles(self.curve, self.point):
            if point.allreduce_p50_s is not None:
                found.append((other_ms * _MS, point.allreduce_p50_s.estimate))
        most = min(isolated for _, isolated in found)
        # Of the shortest cycle: what a long one scatters by says nothing of the wire.
        cycle_s, isolated = min(found)
        return Wire(min(max(0.0, isolated - _CYCLES * cycle_s), most), most)

    @property
    def timeline_wire_s(self) -> float | None:
        """Return all-reduce + copies of a step in Horovod's timeline; None without one."""
        found = self.point.timeline
        if found is None or "timeline_allreduce_s" not in found:
            return None
        copies = ("timeline_copy_in_s", "timeline_copy_out_s")
        return found["timeline_allreduce_s"] + sum(found.get(name, 0.0) for name in copies)

    def _telemetry_s(self, launch: Launch, bases: Sequence[Launch]) -> float | None:
        own = self.facts.telemetry_s(launch)
        if own is None or self.base is None:
            return None if own is None else own[0]
        costs = [cost[0] for one in bases if (cost := self.facts.telemetry_s(one)) is not None]
        return own[0] - self.part * fmean(costs) if costs else None

    def mean(self, column: str) -> float | None:
        """Return a column of the table, mean over the launches that have it."""
        values = [self.facts.row(one)[column] for one in self.launches]
        kept = [float(value) for value in values if value is not None]
        return fmean(kept) if kept else None


def mean_launch(launches: Sequence[Launch]) -> Launch:
    """Return a launch that has the means of several: what none or some lack is None.

    Its throughput is that of the mean step, so that what is made of both agrees.
    """
    first = launches[0]
    means: dict[str, float | None] = {}
    for field in fields(Launch):
        values = [getattr(one, field.name) for one in launches]
        if all(isinstance(value, int | float) for value in values):
            means[field.name] = fmean(values)
        elif field.name not in ("block", "run_id"):
            means[field.name] = None
    step_s = means["step_s"]
    assert step_s is not None  # every launch has a window
    means["throughput_samples_per_s"] = first.throughput_samples_per_s * first.step_s / step_s
    return replace(first, **means)  # type: ignore[arg-type]


def _in_block(point: Point, block: BlockKey) -> Launch | None:
    """Return the launch of a point in a block; the first where one placement has two."""
    return next((one for one in point.launches if one.block == block), None)
