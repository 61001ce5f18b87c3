"""Throughput, epoch time and synchronisation an epoch against the device count, an axes a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from harness.analysis.facets import Facet
from harness.analysis.match import BaseName
from harness.analysis.plots.multiples import Quantity, counts_of, draw_by_batch
from harness.analysis.plots.reference import IDEAL, draw_ideal, of_base
from harness.analysis.plots.series import (
    Look,
    Plot,
    Row,
    batches_an_epoch,
    columns,
    handle,
    identity,
    launch_rows,
    points_of,
    support,
)
from harness.analysis.scaling import Curve, Launch, Point
from harness.stats import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

_Ideal = Callable[[Sequence[Curve]], list[Callable[[float], float]]]


def throughput(facet: Facet, notes: Sequence[str]) -> Plot:
    """Draw samples/s, both axes logarithmic, with the base's throughput × N / its devices."""

    def ideal(curves: Sequence[Curve]) -> list[Callable[[float], float]]:
        return [_linear(base, rate) for base, rate in of_base(curves, lambda _, rate: rate)]

    quantity = Quantity(
        "samples/s",
        lambda point: point.throughput_samples_per_s,
        lambda _, launch: launch.throughput_samples_per_s,
        log=True,
        include=_ends(ideal),
        beside=_beside(ideal),
    )
    said = [*_head(facet, "base's throughput × N"), *notes]
    figure = draw_by_batch(facet.curves, quantity, "Throughput", said, _ideal_handle(facet))
    names = {"throughput_samples_per_s": "throughput_samples_per_s"}
    return Plot(
        figure,
        (
            *_points(facet, "throughput", "samples_per_s", quantity.interval_of),
            *launch_rows(_launches(facet), names),
        ),
    )


def epoch_time_devices(facet: Facet, notes: Sequence[str]) -> Plot:
    """Draw the epoch time, both axes logarithmic, with the base's / N × its devices."""

    def ideal(curves: Sequence[Curve]) -> list[Callable[[float], float]]:
        bases = of_base(curves, lambda curve, rate: _train_samples(curve) / rate)
        return [_inverse(base, epoch_s) for base, epoch_s in bases]

    quantity = Quantity(
        "epoch time",
        lambda point: point.epoch_s,
        lambda _, launch: launch.epoch_s,
        log=True,
        unit="s",
        include=_ends(ideal),
        beside=_beside(ideal),
    )
    said = [
        *_head(facet, "base's epoch time / N"),
        "epoch time = training samples / throughput; without evaluation and checkpoints",
        *notes,
    ]
    title = "Epoch time against device count"
    figure = draw_by_batch(facet.curves, quantity, title, said, _ideal_handle(facet))
    return Plot(
        figure,
        (
            *_points(facet, "epoch", "s", quantity.interval_of),
            *launch_rows(_launches(facet), {"epoch_s": "epoch_s"}),
        ),
    )


def exposed_sync_epoch(facet: Facet, notes: Sequence[str]) -> Plot | None:
    """Draw exposed sync a step × batches an epoch; None where none was measured."""
    measured = [c for c in facet.curves if any(p.exposed_sync_s for p in c.points)]
    if not measured:
        return None
    quantity = Quantity(
        "s an epoch",
        _sync_an_epoch,
        lambda _, launch: _launch_sync_an_epoch(launch),
        log=False,
    )
    said = [
        f"{facet.title}, {facet.batch_text}, {facet.engine_text}",
        "exposed sync a step (of marked steps, mean over ranks) × batches an epoch; "
        "faint, beside: single launches",
        facet.interval_text,
        *notes,
    ]
    title = "Exposed synchronisation an epoch"
    figure = draw_by_batch(measured, quantity, title, said)
    every = [pair for pair in _launches(facet) if pair[1].exposed_sync_s is not None]
    launches = launch_rows(
        every,
        {
            "exposed_sync_epoch_s": _launch_sync_an_epoch,
            "exposed_sync_s": "exposed_sync_s",
            "batches_an_epoch": batches_an_epoch,
        },
    )
    return Plot(figure, (*_sync_points(facet), *launches))


def _sync_an_epoch(point: Point) -> Interval | None:
    found = point.exposed_sync_s
    return found and found.scaled(batches_an_epoch(point.launches[0]))


def _launch_sync_an_epoch(launch: Launch) -> float | None:
    found = launch.exposed_sync_s
    return None if found is None else found * batches_an_epoch(launch)


def _sync_points(facet: Facet) -> list[Row]:
    return [
        {
            "row": "point", **identity(facet, curve, point),
            **columns("exposed_sync_epoch", "s", _sync_an_epoch(point)),
            **columns("exposed_sync", "s", point.exposed_sync_s),
            "batches_an_epoch": batches_an_epoch(point.launches[0]),
            **columns("epoch", "s", point.epoch_s),
            **support(point.exposed_sync_s),
        }
        for curve, point in points_of(facet.curves)
        if point.exposed_sync_s
    ]  # fmt: skip


def _train_samples(curve: Curve) -> float:
    """Return the samples of an epoch, which all launches of a curve have in common."""
    one = curve.points[0].launches[0]
    return one.epoch_s * one.throughput_samples_per_s


def _linear(base: BaseName, rate: float) -> Callable[[float], float]:
    return lambda n: rate * n / base.devices


def _inverse(base: BaseName, epoch_s: float) -> Callable[[float], float]:
    return lambda n: epoch_s * base.devices / n


def _ends(ideal: _Ideal) -> Callable[[Sequence[Curve]], list[float]]:
    """Return what has the ideal inside the limits."""
    return lambda curves: [one(n) for one in ideal(curves) for n in counts_of(curves)]


def _beside(ideal: _Ideal) -> Callable[[Axes, Sequence[Curve], Mapping[str, Look]], None]:
    def draw(ax: Axes, curves: Sequence[Curve], _: Mapping[str, Look]) -> None:
        for one in ideal(curves):
            draw_ideal(ax, one)

    return draw


def _ideal_handle(facet: Facet) -> list[Line2D]:
    return [handle("ideal", **IDEAL)] if any(curve.base for curve in facet.curves) else []


def _head(facet: Facet, ideal: str) -> list[str]:
    based = any(curve.base for curve in facet.curves)
    said = f"{facet.base_text}, ideal: {ideal}" if based else "no ideal: there is no base"
    return [
        f"{facet.title}, {facet.batch_text}, {facet.engine_text}",
        f"{said}; faint, beside: single launches",
        facet.interval_text,
    ]


def _points(
    facet: Facet, name: str, unit: str, interval_of: Callable[[Point], Interval | None]
) -> list[Row]:
    return [
        {
            "row": "point", **identity(facet, curve, point),
            **columns(name, unit, interval_of(point)), **support(interval_of(point)),
        }
        for curve, point in points_of(facet.curves)
    ]  # fmt: skip


def _launches(facet: Facet) -> list[tuple[Row, Launch]]:
    return [
        (identity(facet, curve, point), launch)
        for curve, point in points_of(facet.curves)
        for launch in point.launches
    ]
