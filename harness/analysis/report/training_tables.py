"""Tables of trainings: what a metric came to, and how long a target took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.analysis.report.document import (
    Block,
    Bullets,
    Cell,
    Column,
    Table,
    Terms,
    number_cell,
    text_cell,
)
from harness.analysis.texts import NONE, digits_text, time_text
from harness.analysis.training import TrainedPoint
from harness.analysis.training_table import intervals_text, targets_text, title, value_text
from harness.stats import Interval

_HEAD = (Column("Configuration", numeric=False), Column("N"), Column("Global batch"))


def training_blocks(points: Sequence[TrainedPoint]) -> Iterator[Block]:
    """Yield the terms and a table for each workload, framework, scaling, device and metric."""
    groups: dict[tuple[str, ...], list[TrainedPoint]] = {}
    for point in points:
        key = (point.workload, point.framework, point.scaling, point.device, point.metric)
        groups.setdefault(key, []).append(point)
    if groups:
        yield Terms(
            (
                ("Training", "time in training steps alone, without evaluations and checkpoints"),
                ("Wall-clock", "with evaluations and checkpoints"),
                ("Noise scale", "the batch, in samples, beyond which a larger one gains little "
                 "(McCandlish et al. 2018); before the first step → at the end"),
            )
        )  # fmt: skip
    for group in groups.values():
        yield _table(group)
        mixed = tuple(f"{p.label}: unlike launches mixed: {p.unlike}" for p in group if p.unlike)
        if mixed:
            yield Bullets(mixed)


def _table(points: Sequence[TrainedPoint]) -> Table:
    metric = points[0].metric
    names = (f"{metric} at the end", "Epochs", "Training", "Wall-clock", "Reached")
    target = ("Epochs to target", "Training to target", "Wall-clock to target", "Noise scale")
    caption = f"{title(points[0])}; {targets_text(points)}; {metric} on the test split"
    return Table(
        f"{caption}; {intervals_text(points)}",
        (*_HEAD, *map(Column, (*names, *target))),
        tuple(map(_row, points)),
    )


def _row(point: TrainedPoint) -> tuple[Cell, ...]:
    reached = point.reached
    hits = NONE if reached is None else f"{reached} of {len(point.launches)}"
    return (
        text_cell(point.label),
        number_cell(str(point.world_size), point.world_size),
        number_cell(f"{point.global_batch:,}", point.global_batch),
        number_cell(value_text(point.value), point.value.estimate),
        _number(point.epochs),
        _time(point.train_s),
        _time(point.wall_s),
        number_cell(hits, reached),
        _number(point.epochs_to_target),
        _time(point.train_s_to_target),
        _time(point.wall_s_to_target),
        number_cell(_noise(point), point.last_noise),
    )


def _number(found: Interval | None) -> Cell:
    return Cell(NONE) if found is None else number_cell(f"{found.estimate:.3g}", found.estimate)


def _time(found: Interval | None) -> Cell:
    return number_cell(time_text(found), None if found is None else found.estimate)


def _noise(point: TrainedPoint) -> str:
    ends = (point.first_noise, point.last_noise)
    if all(end is None for end in ends):
        return NONE
    return " → ".join(NONE if end is None else digits_text(end, 2) if end < 99.5 else f"{end:,.0f}"
                      for end in ends)  # fmt: skip
