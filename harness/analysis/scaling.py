"""Speedup, efficiency, epoch time and exposed sync of every point, as curves over the device count.

Base and point are paired inside a block (one allocation, one repeat)::

    S = throughput / throughput(base)        geometric mean over blocks
    E = S · base devices / N

The fitted slope is the least-squares slope of S against N, with an intercept, block by block. It is
another number than E (a curve may be straight and yet far below the ideal) and stands beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean
from typing import TYPE_CHECKING, Any

from harness.analysis.labels import label_curves
from harness.analysis.match import DEFAULT_BASE, BaseName, curve_key, is_base_of, own_launcher
from harness.analysis.unlike import refuse_unlike
from harness.errors import AnalysisError
from harness.stats import (
    LEVEL,
    BlockKey,
    Interval,
    geometric_interval,
    line_fit,
    log_mean_interval,
    mean_interval,
    paired_log_ratios,
)

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Row = dict[str, Any]
RATE = "throughput_samples_per_s"


@dataclass(frozen=True)
class Launch:
    """One good launch of a point; ``speedup`` is against the base of its own block."""

    block: BlockKey
    run_id: str
    throughput_samples_per_s: float
    epoch_s: float
    speedup: float | None  # None where its block has no base
    exposed_sync_s: float | None
    transfer_s: float | None
    wait_s: float | None
    allreduce_p50_s: float | None


@dataclass(frozen=True)
class Point:
    """One point of a curve. What was measured in no launch is None, never zero."""

    world_size: int
    nodes: int
    placement: str
    rank_batch: int
    launches: tuple[Launch, ...]  # in the order of their blocks
    throughput_samples_per_s: Interval
    epoch_s: Interval
    speedup: Interval | None
    efficiency: Interval | None
    exposed_sync_s: Interval | None
    transfer_s: Interval | None
    wait_s: Interval | None
    allreduce_p50_s: Interval | None

    @property
    def unpaired(self) -> int:
        """Return how many launches have no base in their block."""
        return sum(launch.speedup is None for launch in self.launches)


@dataclass(frozen=True)
class Curve:
    """The points of one config over the device count, in order of N, then nodes."""

    label: str  # what tells it from the other curves
    workload: str
    framework: str
    engine: str
    backend: str | None
    scaling: str  # weak or strong; never both
    batch: int  # declared: of a rank (weak) or of all ranks (strong)
    device: str
    config: str  # JSON of what its points share
    base: BaseName | None  # None: nothing to divide by
    note: str | None  # why there is no base
    points: tuple[Point, ...]
    slope: Interval | None  # of S against N; None below three device counts

    @property
    def batch_text(self) -> str:
        """Return the declared batch in words, e.g. ``batch 75`` or ``global batch 600``."""
        return f"{'batch' if self.scaling == 'weak' else 'global batch'} {self.batch}"


@dataclass(frozen=True)
class Failure:
    """A launch that gave no measurement, and whether a later attempt did."""

    run_id: str
    attempt: int | None
    status: str
    cause: str
    what: str  # engine, backend, N and batch; empty for a file that cannot be read
    repaired: bool


def curves(
    table: pd.DataFrame | pa.Table, *, base: str | None = None, level: float = LEVEL, mixed: bool = False
) -> tuple[Curve, ...]:
    """Return the curves of a table made by ``collect`` or ``frame``, in a stable order.

    The table may be in pandas, or in Arrow as it lies on disk (a second less for the command line).

    ``base`` names what speedup divides by (``horovod@1``); None takes what the records were
    measured with, or ``none@1`` where none is marked. Failed launches are in no curve: see
    ``failures``. Raises AnalysisError where the records have several bases and none was named, or
    where a curve's launches ran on unlike hardware or software and ``mixed`` is False.
    """
    rows = _good(table)
    name = BaseName.parse(base) if base else _marked_base(rows)
    bases = _Bases(name, rows)
    groups: dict[tuple[str, Any, Any], list[Row]] = {}
    for row in rows:
        if row["kind"] == "bench":
            groups.setdefault((curve_key(row["config"]), row["backend"], row["device"]), []).append(
                row
            )
    labels = label_curves([(key[0], key[1], key[2]) for key in groups])
    made = []
    for (key, group), label in zip(groups.items(), labels, strict=True):
        made.append(_curve(key[0], label, group, bases, level, mixed))
    return tuple(sorted(made, key=_order))


def failures(table: pd.DataFrame | pa.Table) -> tuple[Failure, ...]:
    """Return the launches that gave no measurement, in the order of their files."""
    rows = _rows(table)
    done = {row["run_id"] for row in rows if row["status"] == "ok"}
    return tuple(
        Failure(
            run_id=row["run_id"],
            attempt=row["attempt"],
            status=row["status"],
            cause=row["cause"] or "no cause was recorded",
            what=_what(row),
            repaired=row["run_id"] in done,
        )
        for row in rows
        if row["status"] != "ok"
    )


class _Bases:
    """The launches of the base, and which of them a curve is divided by."""

    def __init__(self, name: BaseName, rows: Sequence[Row]) -> None:
        self.name = name
        self._by_config: dict[str, list[Row]] = {}
        for row in rows:
            if (row["engine"], row["world_size"]) == (name.engine, name.devices):
                self._by_config.setdefault(row["config"], []).append(row)

    def of(self, rows: Sequence[Row]) -> tuple[list[Row], str | None]:
        """Return the launches that are the base of a curve with ``rows``, or none and the reason.

        Configs that fit may differ in how their placement is written and in nothing else: a point
        without Horovod cannot tell which of two tunings of Horovod should be its base.
        """
        point = rows[0]["config"]
        fitting = [c for c in self._by_config if is_base_of(c, point)]
        if not fitting:
            return [], f"no launch is its base {self.name}"
        # A plain step that was asked for under srun is a point, and not the base of the others.
        fitting = [c for c in fitting if own_launcher(c)] or fitting
        if len({curve_key(config) for config in fitting}) > 1:
            return [], f"{len(fitting)} configs of {self.name} could be its base"
        blocks = {_block(row) for row in rows}
        found = [row for c in fitting for row in self._by_config[c] if _block(row) in blocks]
        return found, None if found else f"no block has both it and its base {self.name}"


def _curve(
    key: str, label: str, rows: list[Row], all_bases: _Bases, level: float, mixed: bool
) -> Curve:
    bases, note = all_bases.of(rows)
    if not mixed:
        refuse_unlike(f"the curve {label}", [*rows, *bases])
    groups: dict[tuple[int, int, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["world_size"], row["nodes"], row["placement"]), []).append(row)
    base_rates = _per_block(bases, RATE)
    points = tuple(
        _point(sorted(groups[place], key=_block), base_rates, all_bases.name.devices, level)
        for place in sorted(groups)
    )
    first = rows[0]
    return Curve(
        label=label,
        workload=first["workload"],
        framework=first["framework"],
        engine=first["engine"],
        backend=first["backend"],
        scaling=first["scaling"],
        batch=first["batch_size"] if first["scaling"] == "weak" else first["global_batch_size"],
        device=first["device"],
        config=key,
        base=all_bases.name if bases else None,
        note=note,
        points=points,
        slope=_slope(points, level),
    )


def _point(
    rows: Sequence[Row], base_rates: Mapping[BlockKey, float], base_devices: int, level: float
) -> Point:
    rates = _per_block(rows, RATE)
    logs = paired_log_ratios(rates, base_rates)
    speedup = log_mean_interval(logs, level) if logs else None
    n = int(rows[0]["world_size"])
    return Point(
        world_size=n,
        nodes=rows[0]["nodes"],
        placement=rows[0]["placement"],
        rank_batch=rows[0]["rank_batch"],
        launches=tuple(_launch(row, base_rates.get(_block(row))) for row in rows),
        throughput_samples_per_s=geometric_interval(rates, level),
        epoch_s=geometric_interval(_per_block(rows, "epoch_s"), level),
        speedup=speedup,
        efficiency=speedup.scaled(base_devices / n) if speedup else None,
        exposed_sync_s=_mean(rows, "exposed_sync_s", level),
        transfer_s=_mean(rows, "transfer_s", level),
        wait_s=_mean(rows, "wait_s", level),
        allreduce_p50_s=_mean(rows, "allreduce_p50_s", level),
    )


def _per_block(rows: Iterable[Row], column: str) -> dict[BlockKey, float]:
    """Return the value of each block: the geometric mean where it has several launches.

    One launch is usual; two are where one placement is written in two ways (``1`` and ``1x1``).
    """
    values: dict[BlockKey, list[float]] = {}
    for row in rows:
        values.setdefault(_block(row), []).append(float(row[column]))
    return {block: v[0] if len(v) == 1 else geometric_mean(v) for block, v in values.items()}


def _launch(row: Row, base_rate: float | None) -> Launch:
    rate = float(row[RATE])
    return Launch(
        block=_block(row),
        run_id=row["run_id"],
        throughput_samples_per_s=rate,
        epoch_s=row["epoch_s"],
        speedup=None if base_rate is None else rate / base_rate,
        exposed_sync_s=row["exposed_sync_s"],
        transfer_s=row["transfer_s"],
        wait_s=row["wait_s"],
        allreduce_p50_s=row["allreduce_p50_s"],
    )


def _mean(rows: Iterable[Row], column: str, level: float) -> Interval | None:
    values: dict[BlockKey, list[float]] = {}
    for row in rows:
        if row[column] is not None:
            values.setdefault(_block(row), []).append(float(row[column]))
    means = {block: fmean(v) for block, v in values.items()}
    return mean_interval(means, level) if means else None


def _slope(points: Sequence[Point], level: float) -> Interval | None:
    """Fit S against N in each block that has every device count, and average over those blocks.

    Where no block has all (each placement in an allocation of its own), one line goes through the
    points' means, without an interval. None below three device counts: through two points a line
    is no fit, and its slope says no more than they do.
    """
    shown = [point for point in points if point.speedup]
    counts = {point.world_size for point in shown}
    if len(counts) < 3:
        return None
    by_block: dict[BlockKey, list[tuple[int, float]]] = {}
    for point in shown:
        for launch in point.launches:
            if launch.speedup is not None:
                by_block.setdefault(launch.block, []).append((point.world_size, launch.speedup))
    slopes = {
        block: line_fit([n for n, _ in pairs], [s for _, s in pairs])[0]
        for block, pairs in by_block.items()
        if {n for n, _ in pairs} == counts
    }
    if slopes:
        return mean_interval(slopes, level)
    means = [(p.world_size, p.speedup.estimate) for p in shown if p.speedup]
    slope, _ = line_fit([n for n, _ in means], [s for _, s in means])
    return Interval(slope, None, None, level, len(means), "line through the means: no interval")


def _marked_base(rows: Iterable[Row]) -> BaseName:
    marked = {BaseName(row["engine"], row["world_size"]) for row in rows if row["is_base"]}
    if len(marked) > 1:
        names = sorted(map(str, marked))
        raise AnalysisError(
            f"the records have several bases, {', '.join(names)}; choose one, "
            f"e.g. --base {names[0]} (in Python: base='{names[0]}')"
        )
    return marked.pop() if marked else DEFAULT_BASE


def _good(table: pd.DataFrame | pa.Table) -> list[Row]:
    return [row for row in _rows(table) if row["status"] == "ok" and row["epoch_s"] is not None]


def _rows(table: pd.DataFrame | pa.Table) -> list[Row]:
    """Return the rows with None for what is missing, in an order that is always the same.

    Column by column: pandas' own way to rows takes four times as long.
    """
    columns = _arrow_columns(table) if hasattr(table, "to_pydict") else _pandas_columns(table)
    values = zip(*columns.values(), strict=True)
    rows = [dict(zip(columns, row, strict=True)) for row in values]
    return sorted(
        rows, key=lambda row: (row["run_id"], row["allocation"] or "", row["attempt"] or 0)
    )


def _arrow_columns(table: pa.Table) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = table.to_pydict()
    return columns


def _pandas_columns(table: pd.DataFrame) -> dict[str, list[Any]]:
    return {
        str(name): column.astype(object).where(column.notna(), None).tolist()
        for name, column in table.items()
    }


def _block(row: Row) -> BlockKey:
    return (row["allocation"], int(row["repeat"]))


def _what(row: Row) -> str:
    if row["engine"] is None:
        return ""
    words = [row["engine"], row["backend"] or "", f"N={row['world_size']}"]
    batch = row["batch_size"]
    words.append(f"batch {batch}" if batch else f"global batch {row['global_batch_size']}")
    return " ".join(word for word in words if word)


def _order(curve: Curve) -> tuple[Any, ...]:
    return (
        curve.workload,
        curve.framework,
        curve.scaling != "weak",
        curve.engine != "none",
        curve.engine,
        curve.backend or "",
        curve.batch,
        curve.config,
    )
