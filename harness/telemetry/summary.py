"""Means of a node's series over the window, as the record keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.record import DeviceTelemetry, NodeTelemetry, Telemetry
from harness.telemetry.nvml import throttle_names
from harness.telemetry.series import Column, DeviceSeries, NodeSeries

MIN_COVERED = 0.5  # of the window by samples, for energy to be told of the whole of it


class Within:
    """The samples of a window: start <= t <= end, both in seconds since the epoch.

    Every figure needs two of them, with no pause in between, and is None without.
    """

    def __init__(self, series: NodeSeries, start_s: float, end_s: float) -> None:
        self._inside = (series.times_s >= start_s) & (series.times_s <= end_s)
        self._times_s = series.times_s[self._inside]
        self._segment = series.segment[self._inside]
        self._window_s = end_s - start_s
        self.all_samples = len(series.times_s)
        self.samples = int(self._inside.sum())

    def rate(self, counter: Column) -> float | None:
        """Return a counter's growth a second; None where it went backwards: it was set anew."""
        growth, span_s, _ = self._steps(counter)
        if span_s.size == 0 or bool((growth < 0.0).any()):
            return None
        return float(growth.sum() / span_s.sum())

    def share(self, part: Column, whole: Column) -> float | None:
        """Return the growth of one counter in that of another, 0..1.

        Each may step back for a moment: the kernel's account of waiting for a disk does (proc(5)).
        Where nothing rests, that and rounding carry the part past the whole.
        """
        growth, total = self._steps(part)[0].sum(), self._steps(whole)[0].sum()
        return float(np.clip(growth / total, 0.0, 1.0)) if total > 0.0 else None

    def mean(self, values: Column) -> float | None:
        """Return the mean over time of what was read at the samples, linear between them."""
        _, span_s, middle = self._steps(values)
        return float((middle * span_s).sum() / span_s.sum()) if span_s.size else None

    def mean_of_intervals(self, values: Column) -> float | None:
        """Return the mean over time of values that each cover the time since the sample before."""
        latest = values[self._inside][1:]
        span_s = np.diff(self._times_s)
        told = (np.diff(self._segment) == 0) & ~np.isnan(latest)
        if not told.any():
            return None
        return float((latest[told] * span_s[told]).sum() / span_s[told].sum())

    def largest(self, values: Column) -> int | None:
        """Return the largest value, a count."""
        told = values[self._inside]
        told = told[~np.isnan(told)]
        return int(told.max()) if told.size >= 2 else None

    def over_window(self, per_second: float | None, values: Column) -> float | None:
        """Return a rate × the window's length, if the samples of ``values`` cover enough of it."""
        _, span_s, _ = self._steps(values)
        if per_second is None or span_s.sum() < MIN_COVERED * self._window_s:
            return None
        return per_second * self._window_s

    def bits(self, values: Column) -> int | None:
        """Return all bits that were set in any sample; None where no sample has them."""
        told = values[self._inside]
        known = told[~np.isnan(told)]
        return int(np.bitwise_or.reduce(known.astype(np.int64))) if len(known) else None

    def _steps(
        self, values: Column
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return growth, seconds and middle of each pair of neighbours that both have a value."""
        told = ~np.isnan(values[self._inside])
        known, times_s = values[self._inside][told], self._times_s[told]
        paired = np.diff(self._segment[told]) == 0
        middle = (known[1:] + known[:-1]) / 2.0
        return np.diff(known)[paired], np.diff(times_s)[paired], middle[paired]


def summarise(nodes: Sequence[tuple[NodeSeries, float, float]], samples: int) -> Telemetry:
    """Return means over each node's window (series, start and end in seconds since the epoch).

    ``samples``: of all ranks in the window. Energy a sample = joules of all devices / samples of
    all ranks; of one device, its joules / the samples of the ranks that compute on it. A total is
    None where one device does not tell its part.
    """
    ranks = sum(len(series.rank_cpu_s) for series, _, _ in nodes)
    told = [_node(series, Within(series, *window), samples / ranks) for series, *window in nodes]
    devices = [device for node in told for device in node.devices]
    energy_j = _total([device.energy_j for device in devices])
    return Telemetry(
        nodes=tuple(told),
        power_mean_w=_total([device.power_mean_w for device in devices]),
        energy_per_sample_j=None if energy_j is None else energy_j / samples,
    )


def _node(series: NodeSeries, within: Within, rank_samples: float) -> NodeTelemetry:
    fields: dict[str, Any] = {
        "host": series.host,
        "samples": within.samples,
        "interval_s": series.interval_s,
        "cpu_utilisation_mean": within.share(series.cpu_busy_s, series.cpu_total_s),
        "rank_cpu_mean": tuple(within.rate(rank) for rank in series.rank_cpu_s),
        "rank_rss_max_bytes": tuple(within.largest(rank) for rank in series.rank_rss_bytes),
        "devices": tuple(_device(each, within, rank_samples) for each in series.devices),
    }
    return NodeTelemetry.model_validate(fields)


def _device(device: DeviceSeries, within: Within, rank_samples: float) -> DeviceTelemetry:
    absent = np.full(within.all_samples, np.nan)
    column = {name: device.columns.get(name, absent) for name in _COLUMNS}
    power_w = within.mean(column["power_w"])
    throttle_bits = within.bits(column["throttle_reasons_bits"])
    energy_j = within.over_window(within.rate(column["energy_j"]), column["energy_j"])
    if "energy_j" not in device.columns:
        energy_j = within.over_window(power_w, column["power_w"])
    return DeviceTelemetry(
        index=device.index,
        uuid=device.uuid,
        name=device.name,
        samples=within.samples,
        utilisation_mean=within.mean(column["utilisation"]),
        sm_activity_mean=within.mean_of_intervals(column["sm_activity"]),
        memory_used_max_bytes=within.largest(column["memory_used_bytes"]),
        power_mean_w=power_w,
        energy_j=energy_j,
        energy_per_sample_j=None if energy_j is None else energy_j / (device.ranks * rank_samples),
        sm_clock_mean_mhz=within.mean(column["sm_clock_mhz"]),
        throttle_reasons=None if throttle_bits is None else throttle_names(throttle_bits),
    )


_COLUMNS = (
    "utilisation",
    "sm_activity",
    "memory_used_bytes",
    "power_w",
    "energy_j",
    "sm_clock_mhz",
    "throttle_reasons_bits",
)


def _total(parts: Sequence[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if known and len(known) == len(parts) else None
