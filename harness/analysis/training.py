"""What trainings came to, point by point: the metric at the end, and how long a target took.

A launch is one training; the launches of a point are its blocks. They have one seed, so what they
differ in is time, and what little a parallel sum does to a weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from harness.analysis.labels import label_curves
from harness.analysis.match import curve_key
from harness.analysis.unlike import refuse_unlike, what_differs
from harness.stats import LEVEL, BlockKey, Interval, mean_interval

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]


@dataclass(frozen=True)
class Moment:
    """One evaluation of one training."""

    step: int
    epoch: float
    train_s: float
    wall_s: float
    value: float  # of the metric
    reached: bool | None  # None without a target
    gradient_norm_sq: float | None
    noise_trace: float | None


@dataclass(frozen=True)
class Trained:
    """One training."""

    block: BlockKey
    run_id: str
    moments: tuple[Moment, ...]  # in the order of their steps; there is one at least

    @property
    def hit(self) -> Moment | None:
        """Return the first evaluation that reached the target."""
        return next((moment for moment in self.moments if moment.reached), None)


@dataclass(frozen=True)
class TrainedPoint:
    """The trainings of one point. Times to the target are of the launches that reached it."""

    label: str  # of its config, the placement left out
    workload: str
    framework: str
    engine: str
    backend: str | None
    device: str
    scaling: str
    world_size: int
    nodes: int
    placement: str
    rank_batch: int
    global_batch: int
    metric: str
    lower_is_better: bool
    target: float | None
    launches: tuple[Trained, ...]  # in the order of their blocks
    value: Interval  # of the metric at the end
    epochs: Interval  # trained
    train_s: Interval
    wall_s: Interval
    reached: int | None  # launches; None without a target
    epochs_to_target: Interval | None
    train_s_to_target: Interval | None
    wall_s_to_target: Interval | None
    first_noise: float | None  # samples, before the first step
    last_noise: float | None  # at the last evaluation
    unlike: str | None  # what differs between its launches' machines, where they were mixed


def trainings(
    table: pa.Table, evaluations: pa.Table, *, level: float = LEVEL, mixed: bool = False
) -> tuple[TrainedPoint, ...]:
    """Return the trained points of a sweep, in a stable order.

    ``table`` and ``evaluations`` are what ``collect`` makes. Raises AnalysisError where a point's
    launches ran on unlike hardware or software and ``mixed`` is False.
    """
    launches = _launches(evaluations)
    if not launches:
        return ()
    provenance = dict(
        zip(table["run_id"].to_pylist(), table["provenance"].to_pylist(), strict=True)
    )
    groups: dict[tuple[Any, ...], list[list[Row]]] = {}
    for rows in launches:
        first = rows[0]
        key = (curve_key(first["config"]), first["backend"], first["device"], first["placement"])
        groups.setdefault(key, []).append(rows)
    curves = list(dict.fromkeys(key[:3] for key in groups))
    labels = dict(zip(curves, label_curves(curves), strict=True))
    made = []
    for key, group in groups.items():
        of_launches = [{"provenance": provenance.get(rows[0]["run_id"])} for rows in group]
        differing = what_differs(of_launches)
        label = labels[key[:3]]
        if not mixed:
            refuse_unlike(f"the training {label} on {key[3]}", differing)
        made.append(_point(label, group, differing, level))
    return tuple(sorted(made, key=_order))


def noise_of(moments: Iterable[Moment | None]) -> float | None:
    """Return the noise scale in samples from several estimates: means, then their ratio.

    None where nobody estimated it, or noise hides the gradient.
    """
    known = [
        (one.noise_trace, one.gradient_norm_sq)
        for one in moments
        if one is not None and one.noise_trace is not None and one.gradient_norm_sq is not None
    ]
    if not known:
        return None
    trace, norm = (fmean(values) for values in zip(*known, strict=True))
    return trace / norm if norm > 0 else None


def _launches(evaluations: pa.Table) -> list[list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in evaluations.to_pylist():
        found.setdefault(row["run_id"], []).append(row)
    return [sorted(rows, key=lambda row: int(row["step"])) for rows in found.values()]


def _point(label: str, group: list[list[Row]], unlike: str | None, level: float) -> TrainedPoint:
    first = group[0][0]
    launches = tuple(sorted(map(_trained, group), key=lambda one: (one.block, one.run_id)))
    hits = {one.block: one.hit for one in launches}
    ends = {one.block: one.moments[-1] for one in launches}

    def mean(moments: Mapping[BlockKey, Moment | None], of: Callable[[Moment], float]) -> Any:
        values = {block: of(one) for block, one in moments.items() if one is not None}
        return mean_interval(values, level) if values else None

    return TrainedPoint(
        label=label,
        **{name: first[name] for name in _KEPT},
        launches=launches,
        value=mean(ends, lambda one: one.value),
        epochs=mean(ends, lambda one: one.epoch),
        train_s=mean(ends, lambda one: one.train_s),
        wall_s=mean(ends, lambda one: one.wall_s),
        reached=None if first["target"] is None else sum(hit is not None for hit in hits.values()),
        epochs_to_target=mean(hits, lambda one: one.epoch),
        train_s_to_target=mean(hits, lambda one: one.train_s),
        wall_s_to_target=mean(hits, lambda one: one.wall_s),
        first_noise=noise_of(one.moments[0] for one in launches),
        last_noise=noise_of(ends.values()),
        unlike=unlike,
    )


_KEPT = (
    *("workload", "framework", "engine", "backend", "device", "scaling", "world_size", "nodes"),
    *("placement", "rank_batch", "global_batch", "metric", "lower_is_better", "target"),
)


def _trained(rows: Sequence[Row]) -> Trained:
    first = rows[0]
    return Trained(
        block=(first["allocation"], first["repeat"]),
        run_id=first["run_id"],
        moments=tuple(
            Moment(**{name: row[name] for name in Moment.__dataclass_fields__}) for row in rows
        ),
    )


def _order(point: TrainedPoint) -> tuple[Any, ...]:
    return (
        point.workload,
        point.framework,
        point.scaling != "weak",
        point.device,
        point.metric,
        point.engine != "none",
        point.engine,
        point.backend or "",
        point.rank_batch if point.scaling == "weak" else point.global_batch,
        point.label,
        point.world_size,
        point.nodes,
        point.placement,
    )
