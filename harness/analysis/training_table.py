"""The table of trainings for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.analysis.texts import NONE, digits_text, line_text, time_text
from harness.analysis.training import TrainedPoint
from harness.stats import Interval

_HEAD = ("N", "placement", "global batch", "epochs", "training")
_TARGET = ("reached", "to target: epochs", "training", "wall-clock")
_NOISE = "noise scale"


def training_table(points: Sequence[TrainedPoint]) -> Iterator[list[str]]:
    """Yield the lines of each part: one a workload, framework, scaling, device and metric.

    The metric is that of the test split at the end; times to the target are means over the launches
    that reached it, evaluated as often as the sweep asked for. The noise scale is before the first
    step, and at the end.
    """
    groups: dict[tuple[str, ...], list[TrainedPoint]] = {}
    for point in points:
        key = (point.workload, point.framework, point.scaling, point.device, point.metric)
        groups.setdefault(key, []).append(point)
    for group in groups.values():
        yield list(_part(group))


def title(point: TrainedPoint) -> str:
    """Return what all points of a part share."""
    device = {"cpu": "CPU", "cuda": "GPU"}.get(point.device, point.device)
    return f"training of {point.workload} ({point.framework}), {point.scaling} scaling, {device}"


def targets_text(points: Sequence[TrainedPoint]) -> str:
    """Return ``target mse ≤ 0.002``, all that there are, or that there is none."""
    found = dict.fromkeys(
        f"{'≤' if point.lower_is_better else '≥'} {point.target:g}"
        for point in points
        if point.target is not None
    )
    return f"target {points[0].metric} {', '.join(found)}" if found else "no target"


def intervals_text(points: Sequence[TrainedPoint]) -> str:
    """Say what intervals rest on."""
    found = [point.train_s for point in points]
    methods = sorted({one.method for one in found if one.has_interval})
    texts = [f"{100 * found[0].level:.0f} % intervals: {', '.join(methods)}"] if methods else []
    single = any(not one.has_interval for one in found)
    return "; ".join([*texts, *(["one block: no interval"] if single else [])])


def _part(points: Sequence[TrainedPoint]) -> Iterator[str]:
    metric = points[0].metric
    yield title(points[0])
    yield f"{targets_text(points)}; {metric} on the test split at the end; {intervals_text(points)}"
    aimed = any(point.reached is not None for point in points)
    if any(point.reached not in (None, 0, len(point.launches)) for point in points):
        yield "epochs and times to target are means over the launches that reached it"
    noisy = any(p.first_noise is not None or p.last_noise is not None for p in points)
    head = (*_HEAD, metric, *(_TARGET if aimed else ()), *((_NOISE,) if noisy else ()))
    grid = [_cells(point, aimed, noisy) for point in points]
    widths = [max(len(row[i]) for row in (head, *grid)) for i in range(len(head))]
    yield "  " + line_text(head, widths)
    label = None
    for point, row in zip(points, grid, strict=True):
        if point.label != label:
            label = point.label
            yield label
        yield "  " + line_text(row, widths)
        if point.unlike:
            yield f"  - unlike launches mixed: {point.unlike}"


def _cells(point: TrainedPoint, aimed: bool, noisy: bool) -> list[str]:
    cells = [
        str(point.world_size),
        point.placement,
        str(point.global_batch),
        f"{point.epochs.estimate:.3g}",
        time_text(point.train_s),
        value_text(point.value),
    ]
    if aimed:
        epochs = point.epochs_to_target
        cells += [
            NONE if point.reached is None else f"{point.reached} of {len(point.launches)}",
            NONE if epochs is None else f"{epochs.estimate:.3g}",
            time_text(point.train_s_to_target),
            time_text(point.wall_s_to_target),
        ]
    if noisy:
        ends = (point.first_noise, point.last_noise)
        known = any(end is not None for end in ends)
        cells.append(" → ".join(map(_samples, ends)) if known else NONE)
    return cells


def value_text(found: Interval) -> str:
    """Return a metric, with half of its interval where launches differ in it."""
    text = f"{found.estimate:.4g}"
    if found.low is None or found.high is None:
        return text
    half = (found.high - found.low) / 2
    # Equal values leave a rounding error of their mean.
    return f"{text} ±{half:.2g}" if half > 1e-9 * abs(found.estimate) else text


def _samples(noise_scale: float | None) -> str:
    if noise_scale is None:
        return NONE
    return digits_text(noise_scale, 2) if noise_scale < 99.5 else f"{noise_scale:,.0f}"
