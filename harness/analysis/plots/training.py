"""The metric of trainings against epochs and against training time, a batch size a line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from harness.analysis.plots.series import Plot, Row, handle
from harness.analysis.plots.style import (
    DASHES,
    INK,
    MARKERS,
    OKABE_ITO,
    log_ticks,
    new_figure,
)
from harness.analysis.training import Moment, Trained, TrainedPoint
from harness.analysis.training_table import targets_text, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LOG_FROM = 8.0  # times the least value: from there on a linear axis hides the end of a training
_MARKS = 12  # on a line at most: more hide it
_TARGET: dict[str, Any] = {"color": INK, "linestyle": (0, (4, 3)), "linewidth": 0.8}


def training(points: Sequence[TrainedPoint], notes: Sequence[str]) -> Plot:
    """Draw the trainings of one workload, framework, scaling, device and metric.

    One line a point, through the means over its launches as far as all of them went, and every
    launch beside it, thin. The colour tells the batch, the dashes and markers what else differs.
    """
    metric = points[0].metric
    looks = _looks(points)
    handles = [handle(name_of(point, points), **looks[i]) for i, point in enumerate(points)]
    if any(point.target is not None for point in points):
        handles.append(handle("target", **_TARGET))
    figure, (epochs, times) = new_figure(
        2,
        f"{metric} against epochs and training time",
        [
            title(points[0]),
            f"{targets_text(points)}; on the test split; thin: single launches",
            "training time: steps alone, without evaluations, checkpoints and noise estimates",
            *notes,
        ],
        handles,
    )
    for ax, x_of in ((epochs, _epoch), (times, _time)):
        for point, look in zip(points, looks, strict=True):
            _draw(ax, point, look, x_of)
        _finish(ax, points)
        ax.set_ylabel(metric)
    epochs.set_xlabel("epochs")
    times.set_xlabel("training time in s")
    return Plot(figure, tuple(row for point in points for row in _rows(point, points)))


def name_of(point: TrainedPoint, points: Sequence[TrainedPoint]) -> str:
    """Return what tells a point from the others: its label, and where its ranks are."""
    same_count = [other for other in points if other.world_size == point.world_size]
    if len({other.world_size for other in points}) == 1 and _places(same_count) == 1:
        return point.label
    place = f" ({point.placement})" if _places(same_count) > 1 else ""
    return f"{point.label}, N={point.world_size}{place}"


def log_fits(points: Sequence[TrainedPoint]) -> bool:
    """Say whether a logarithmic axis fits the metric: positive, and over a wide range."""
    values = [one.value for p in points for launch in p.launches for one in launch.moments]
    values += [point.target for point in points if point.target is not None]
    return min(values) > 0 and max(values) / min(values) >= _LOG_FROM


def _places(points: Sequence[TrainedPoint]) -> int:
    return len({point.placement for point in points})


def _epoch(moment: Moment) -> float:
    return moment.epoch


def _time(moment: Moment) -> float:
    return moment.train_s


def _looks(points: Sequence[TrainedPoint]) -> list[dict[str, Any]]:
    """Return each point's look; a new kind and device count has other dashes, and a marker."""
    batches = list(dict.fromkeys(_batch(point) for point in points))
    kinds = list(dict.fromkeys(_kind(point) for point in points))
    return [
        {
            "color": OKABE_ITO[batches.index(_batch(point)) % len(OKABE_ITO)],
            "linestyle": DASHES[kinds.index(_kind(point)) % len(DASHES)],
            "marker": MARKERS[index % len(MARKERS)],
        }
        for index, point in enumerate(points)
    ]


def _batch(point: TrainedPoint) -> int:
    return point.rank_batch if point.scaling == "weak" else point.global_batch


def _kind(point: TrainedPoint) -> tuple[str, str | None, int, str]:
    return (point.engine, point.backend, point.world_size, point.placement)


def means(
    launches: Sequence[Trained], x_of: Callable[[Moment], float]
) -> list[tuple[float, float]]:
    """Return (x, value), means over launches, at every step that all of them evaluated."""
    shared = set.intersection(*({one.step for one in launch.moments} for launch in launches))
    by_step: dict[int, list[Moment]] = {step: [] for step in sorted(shared)}
    for launch in launches:
        for moment in launch.moments:
            if moment.step in shared:
                by_step[moment.step].append(moment)
    return [
        (fmean(x_of(one) for one in found), fmean(one.value for one in found))
        for found in by_step.values()
    ]


def _draw(
    ax: Axes, point: TrainedPoint, look: dict[str, Any], x_of: Callable[[Moment], float]
) -> None:
    if len(point.launches) > 1:
        for launch in point.launches:
            ax.plot(
                [x_of(one) for one in launch.moments],
                [one.value for one in launch.moments],
                color=look["color"], linewidth=0.5, alpha=0.45, zorder=2,
            )  # fmt: skip
    pairs = means(point.launches, x_of)
    every = -(-len(pairs) // _MARKS)
    ax.plot([x for x, _ in pairs], [y for _, y in pairs], zorder=4, markevery=every, **look)


def _finish(ax: Axes, points: Sequence[TrainedPoint]) -> None:
    if log_fits(points):
        ax.set_yscale("log")
        log_ticks(ax)
    ax.set_xlim(left=0.0)
    for target in sorted({point.target for point in points if point.target is not None}):
        ax.axhline(target, zorder=1, **_TARGET)


def _rows(point: TrainedPoint, points: Sequence[TrainedPoint]) -> list[Row]:
    identity = {
        "line": name_of(point, points), "workload": point.workload,
        "framework": point.framework, "engine": point.engine, "backend": point.backend,
        "device": point.device, "scaling": point.scaling, "rank_batch": point.rank_batch,
        "global_batch": point.global_batch, "devices": point.world_size, "nodes": point.nodes,
        "placement": point.placement, "metric": point.metric, "target": point.target,
    }  # fmt: skip
    drawn = zip(means(point.launches, _epoch), means(point.launches, _time), strict=True)
    return [
        *(
            {"row": "mean", **identity, "epoch": epoch, "train_s": time_s, "value": value}
            for (epoch, value), (time_s, _) in drawn
        ),
        *(
            {
                "row": "launch", **identity, "epoch": one.epoch, "train_s": one.train_s,
                "value": one.value, "step": one.step, "wall_s": one.wall_s,
                "run_id": launch.run_id, "allocation": launch.block[0], "repeat": launch.block[1],
            }
            for launch in point.launches
            for one in launch.moments
        ),
    ]  # fmt: skip
