"""A curve's prediction: what was measured, every model's line, and how far each was from a test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from harness.analysis.models.prediction import CurvePrediction, Line, Tried
from harness.analysis.plots.panel import Panel
from harness.analysis.plots.series import Look, Plot, Row, columns, handle, support
from harness.analysis.plots.style import (
    DASHES,
    INK,
    MARKERS,
    OKABE_ITO,
    device_axis,
    new_figure,
    style,
    unit_axis,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BEYOND = (0, (3, 2))  # dashes of what is extrapolated
_RING = 6.5


def prediction(one: CurvePrediction, notes: Sequence[str] = ()) -> Plot | None:
    """Draw throughput over N: points with intervals, a line a model, the chosen one with its band.

    A line is dashed beyond the largest measured N, which is ringed: models were fitted without it,
    and what each said of it is a cross in its colour. None where nothing could be predicted.
    """
    if one.refused or not one.models:
        return None
    with style():
        look = _looks(one)
        handles = [
            handle("measured", color=INK, marker="o", linestyle="none"),
            handle(f"held out: N = {one.held_out}", color=INK, marker="o", linestyle="none",
                   markersize=_RING, markerfacecolor="none"),
            *(handle(_words(tried, one), color=look[tried.name].colour, marker="x",
                     linestyle=look[tried.name].dashes) for tried in one.models),
        ]  # fmt: skip
        figure, (ax,) = new_figure(1, "Predicted throughput", [*_notes(one), *notes], handles)
        panel = Panel(ax)
        points = Look(INK, "o", "none")
        for point in one.measured:
            panel.intervals([point.world_size], [point.throughput_samples_per_s], points)
        for line in one.lines:
            _draw_line(ax, line, look[line.model], one)
        _draw_tests(ax, one, look)
        panel.fit(log=True, include=_line_rates(one))
        low, high = ax.get_ylim()
        _draw_band(ax, one, look[one.models[0].name].colour)
        ax.set_ylim(low, high)
        unit_axis(ax)
        ax.set_ylabel("samples/s")
        device_axis(ax, sorted({p.world_size for line in one.lines for p in line.points}))
    return Plot(figure, (*_measured(one), *_tests(one), *_line_rows(one)))


def _looks(one: CurvePrediction) -> dict[str, Look]:
    return {
        tried.name: Look(
            OKABE_ITO[i % len(OKABE_ITO)], MARKERS[i % len(MARKERS)], DASHES[i // len(OKABE_ITO)]
        )
        for i, tried in enumerate(one.models)
    }


def _words(tried: Tried, one: CurvePrediction) -> str:
    chosen = ", chosen" if tried is one.models[0] else ""
    errors = ", ".join(f"{100 * test.error:+.1f} %".replace("-", "−") for test in tried.tests)
    return f"{tried.name} ({errors or 'not tested'}{chosen})"


def _notes(one: CurvePrediction) -> list[str]:
    level = one.measured[0].throughput_samples_per_s.level
    return [
        f"{one.title}; {one.label}",
        f"{100 * level:.0f} % intervals; dashed: beyond what was measured; band: that of "
        f"{one.models[0].name}; crosses: fitted without N = {one.held_out}, with their error",
        *one.notes,
    ]


def _draw_line(ax: Axes, line: Line, look: Look, one: CurvePrediction) -> None:
    largest = max(point.world_size for point in one.measured)
    chosen = line.model == one.models[0].name
    for part, dashes in (
        ([p for p in line.points if p.world_size <= largest], look.dashes),
        ([p for p in line.points if p.world_size >= largest], _BEYOND),
    ):
        ax.plot(
            [p.world_size for p in part], [p.throughput_samples_per_s for p in part],
            color=look.colour, linestyle=dashes, linewidth=1.3 if chosen else 0.8, zorder=3,
        )  # fmt: skip


def _draw_band(ax: Axes, one: CurvePrediction, colour: str) -> None:
    shown = [p for p in one.lines[0].points if p.low is not None and p.high is not None]
    ax.fill_between(
        [p.world_size for p in shown], [p.low for p in shown if p.low is not None],
        [p.high for p in shown if p.high is not None],
        color=colour, alpha=0.15, linewidth=0, zorder=1,
    )  # fmt: skip


def _draw_tests(ax: Axes, one: CurvePrediction, look: dict[str, Look]) -> None:
    held = [p for p in one.measured if p.world_size == one.held_out]
    ax.plot(
        [p.world_size for p in held], [p.throughput_samples_per_s.estimate for p in held],
        linestyle="none", marker="o", markersize=_RING, markerfacecolor="none", color=INK, zorder=5,
    )  # fmt: skip
    for tried in one.models:
        ax.plot(
            [test.world_size for test in tried.tests], [test.predicted for test in tried.tests],
            linestyle="none", marker="x", color=look[tried.name].colour, zorder=5,
        )  # fmt: skip


def _line_rates(one: CurvePrediction) -> list[float]:
    """Return the estimates that the axis must hold; a band may reach beyond it."""
    return [point.throughput_samples_per_s for line in one.lines for point in line.points]


def _identity(one: CurvePrediction, row: str) -> Row:
    return {"row": row, "curve": one.label, "scaling": one.scaling}


def _measured(one: CurvePrediction) -> Iterator[Row]:
    for point in one.measured:
        rate = point.throughput_samples_per_s
        yield {
            **_identity(one, "measured"), "model": None, "devices": point.world_size,
            "placement": point.placement, **columns("throughput", "samples_per_s", rate),
            "extrapolated": False, "chosen": None, **support(rate),
        }  # fmt: skip


def _tests(one: CurvePrediction) -> Iterator[Row]:
    for tried in one.models:
        for test in tried.tests:
            yield {
                **_identity(one, "held out"), "model": tried.name, "devices": test.world_size,
                "placement": test.placement, "throughput_samples_per_s": test.predicted,
                "throughput_low_samples_per_s": test.low,
                "throughput_high_samples_per_s": test.high,
                "extrapolated": True, "chosen": tried is one.models[0],
            }  # fmt: skip


def _line_rows(one: CurvePrediction) -> Iterator[Row]:
    largest = max(point.world_size for point in one.measured)
    for line in one.lines:
        for point in line.points:
            yield {
                **_identity(one, "model"), "model": line.model, "devices": point.world_size,
                "placement": point.placement,
                "throughput_samples_per_s": point.throughput_samples_per_s,
                "throughput_low_samples_per_s": point.low,
                "throughput_high_samples_per_s": point.high,
                "extrapolated": point.world_size > largest,
                "chosen": line.model == one.models[0].name,
            }  # fmt: skip
