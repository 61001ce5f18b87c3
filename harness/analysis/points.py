"""One point of a curve: its launches, and what they say together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot
from statistics import fmean
from types import MappingProxyType

from harness.analysis.columns import OVERHEAD_ERRORS, OVERHEADS
from harness.analysis.rows import (
    LAUNCH_COLUMNS,
    RATE,
    TELEMETRY_COLUMNS,
    TIMELINE_COLUMNS,
    Row,
    block_of,
    means_by_block,
    rates_by_block,
)
from harness.analysis.welch import log_ratio_interval
from harness.stats import (
    BlockKey,
    Interval,
    geometric_interval,
    log_mean_interval,
    log_signed_rank_interval,
    mean_interval,
    paired_log_ratios,
)


@dataclass(frozen=True)
class Launch:
    """One good launch of a point; ``speedup`` is against the base of its own block.

    What was not measured is None. Times are those of a step, the epoch's excepted.
    """

    block: BlockKey
    run_id: str
    throughput_samples_per_s: float
    step_s: float  # of the window
    speedup: float | None  # None where its block has no base
    epoch_s: float
    data_s: float | None
    forward_s: float | None
    backward_s: float | None
    exposed_sync_s: float | None
    transfer_s: float | None
    wait_s: float | None
    update_s: float | None
    phase_sum_s: float | None
    allreduce_p50_s: float | None
    ablation_difference_s: float | None
    interference_s: float | None
    skew_s: float | None
    clock_wait_s: float | None
    feed_warm_s: float | None
    feed_cold_s: float | None
    allreduce_bytes: int | None = None  # of the isolated all-reduce
    busbw_bytes_per_s: float | None = None
    cpu_utilisation: float | None = None  # telemetry; 0 to 1, mean over nodes
    rank_cpu_cores: float | None = None
    gpu_utilisation: float | None = None  # 0 to 1, mean over devices
    gpu_power_w: float | None = None  # of all devices


@dataclass(frozen=True)
class Steadiness:
    """How steady the windows of a point were, over the launches that were judged."""

    launches: int  # judged
    too_short: int  # for a test of drift
    drifting: int
    largest_change: float | None  # of the drifting ones, relative, with its sign
    with_outliers: int
    outliers: int  # steps, of all ranks and launches
    outlier_time_share: float  # mean over launches


@dataclass(frozen=True)
class Point:
    """One point of a curve. What was measured in no launch is None, never zero.

    ``apart``: none of its blocks has a base, and S is of two means that nothing pairs; see
    ``welch``. Then no launch has a speedup.
    """

    world_size: int
    nodes: int
    placement: str
    rank_batch: int
    launches: tuple[Launch, ...]  # in the order of their blocks
    throughput_samples_per_s: Interval
    step_s: Interval  # of the window
    epoch_s: Interval
    speedup: Interval | None
    efficiency: Interval | None
    check: Interval | None  # signed-rank, of S; of the throughput where there is no S
    data_s: Interval | None
    forward_s: Interval | None
    backward_s: Interval | None
    exposed_sync_s: Interval | None
    transfer_s: Interval | None
    wait_s: Interval | None
    update_s: Interval | None
    phase_sum_s: Interval | None
    allreduce_p50_s: Interval | None
    ablation_difference_s: Interval | None
    interference_s: Interval | None
    interference_error_s: float | None  # standard error, from the scatter of each launch's blocks
    skew_s: Interval | None
    clock_wait_s: Interval | None
    feed_warm_s: Interval | None
    feed_cold_s: Interval | None
    skew_unresolved: int  # launches whose skew is below the clocks' error
    steadiness: Steadiness | None
    overheads: Mapping[str, tuple[float, ...]]  # of each instrument, by launch, relative
    overhead_errors: Mapping[str, float]  # standard errors of their means, where launches can tell
    telemetry: Mapping[str, float]  # by TELEMETRY_COLUMNS, mean over launches
    timeline: Mapping[str, float] | None  # by TIMELINE_COLUMNS, mean over launches
    sequential: bool  # a launch is of a sweep with ci_target
    allreduce_bytes: Interval | None = None  # of the isolated all-reduce
    busbw_bytes_per_s: Interval | None = None
    cpu_utilisation: Interval | None = None  # of these telemetry has only means
    rank_cpu_cores: Interval | None = None
    gpu_utilisation: Interval | None = None
    gpu_power_w: Interval | None = None
    apart: bool = False  # S is not of pairs

    @property
    def unpaired(self) -> int:
        """Return how many launches have no base in their block, and so no part in S."""
        return 0 if self.apart else sum(launch.speedup is None for launch in self.launches)

    @property
    def phases_minus_step(self) -> float | None:
        """Return mean sum of the phases / mean window's step − 1, over launches that have both.

        None where a phase could not be marked, or none was.
        """
        pairs = [
            (one.phase_sum_s, one.step_s) for one in self.launches if one.phase_sum_s is not None
        ]
        if not pairs:
            return None
        sums, steps = zip(*pairs, strict=True)
        return fmean(sums) / fmean(steps) - 1.0


def make_point(
    rows: Sequence[Row],
    timelines: Sequence[Row],
    base_rates: Mapping[BlockKey, float],
    base_devices: int,
    level: float,
) -> Point:
    """Return the point of ``rows``, its good launches in the order of their blocks.

    ``timelines`` are the launches for its timeline; ``base_rates`` the base's throughput by block,
    to be paired with it where any block is the same.
    """
    rates = rates_by_block(rows)
    logs = paired_log_ratios(rates, base_rates)
    apart = bool(base_rates) and not logs
    sequential = any(row["sequential"] for row in rows)

    def marked(interval: Interval) -> Interval:
        return interval.sequential() if sequential else interval

    def mean(values: Mapping[BlockKey, float]) -> Interval | None:
        return marked(mean_interval(values, level)) if values else None

    speedup = marked(log_mean_interval(logs, level)) if logs else None
    if apart:
        speedup = marked(log_ratio_interval(rates, base_rates, level))
    first, n = rows[0], int(rows[0]["world_size"])
    launches = tuple(_launch(row, base_rates.get(block_of(row))) for row in rows)
    step_s = mean_interval(_steps_by_block(launches), level)
    means = {name: mean(means_by_block(rows, name)) for name in LAUNCH_COLUMNS if name != "epoch_s"}
    return Point(
        world_size=n,
        nodes=first["nodes"],
        placement=first["placement"],
        rank_batch=first["rank_batch"],
        launches=launches,
        throughput_samples_per_s=marked(geometric_interval(rates, level)),
        step_s=marked(step_s),
        epoch_s=marked(geometric_interval(rates_by_block(rows, "epoch_s"), level)),
        speedup=speedup,
        efficiency=speedup.scaled(base_devices / n) if speedup else None,
        check=None
        if apart  # it is of pairs, or of one sample
        else log_signed_rank_interval(logs or paired_log_ratios(rates, _ones(rates)), level),
        skew_unresolved=sum(row["skew_resolved"] is False for row in rows),
        steadiness=_steadiness(rows),
        interference_error_s=_error_of_mean(rows, "interference_error_s"),
        overheads=_overheads([*rows, *timelines]),
        overhead_errors=_overhead_errors([*rows, *timelines]),
        telemetry=_means(rows, TELEMETRY_COLUMNS),
        timeline=_means(timelines, TIMELINE_COLUMNS) or None,
        sequential=sequential,
        apart=apart,
        **means,
    )


def _ones(rates: Mapping[BlockKey, float]) -> dict[BlockKey, float]:
    return dict.fromkeys(rates, 1.0)


def _launch(row: Row, base_rate: float | None) -> Launch:
    rate = float(row[RATE])
    return Launch(
        block=block_of(row),
        run_id=row["run_id"],
        throughput_samples_per_s=rate,
        step_s=row["wall_s"] / row["steps"],
        speedup=None if base_rate is None else rate / base_rate,
        **{name: row[name] for name in LAUNCH_COLUMNS},
    )


def _steps_by_block(launches: Sequence[Launch]) -> dict[BlockKey, float]:
    values: dict[BlockKey, list[float]] = {}
    for launch in launches:
        values.setdefault(launch.block, []).append(launch.step_s)
    return {block: fmean(v) for block, v in values.items()}


def _steadiness(rows: Sequence[Row]) -> Steadiness | None:
    judged = [row for row in rows if row["drifting"] is not None]
    if not judged:
        return None
    changes = [row["drift_change"] for row in judged if row["drifting"]]
    return Steadiness(
        launches=len(judged),
        too_short=sum(row["drift_p_value"] is None for row in judged),
        drifting=len(changes),
        largest_change=max(changes, key=abs, default=None),
        with_outliers=sum(row["outliers"] > 0 for row in judged),
        outliers=sum(row["outliers"] for row in judged),
        outlier_time_share=fmean(row["outlier_time_share"] for row in judged),
    )


def _overheads(rows: Sequence[Row]) -> Mapping[str, tuple[float, ...]]:
    found = {}
    for column, name in OVERHEADS.items():
        values = tuple(row[column] for row in rows if row[column] is not None)
        if values:
            found[name] = values
    return MappingProxyType(found)


def _means(rows: Sequence[Row], columns: Sequence[str]) -> Mapping[str, float]:
    """Return the mean over launches of each column that any of them has."""
    found = {}
    for column in columns:
        values = [row[column] for row in rows if row[column] is not None]
        if values:
            found[column] = fmean(values)
    return MappingProxyType(found)


def _overhead_errors(rows: Sequence[Row]) -> Mapping[str, float]:
    found = {name: _error_of_mean(rows, column) for column, name in OVERHEAD_ERRORS.items()}
    return MappingProxyType({name: error for name, error in found.items() if error is not None})


def _error_of_mean(rows: Sequence[Row], column: str) -> float | None:
    """Return the standard error of a mean over launches from those of each; None without any."""
    errors = [row[column] for row in rows if row[column] is not None]
    return hypot(*errors) / len(errors) if errors else None
