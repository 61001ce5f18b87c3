"""What a sampler brings home."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]


@dataclass(frozen=True)
class DeviceSeries:
    """One GPU; ``columns`` has what it tells, (samples,) each, NaN where it did not answer.

    Names and units are those of ``nvml.py``. ``sm_activity`` is of the time since the sample
    before, ``energy_j`` a counter, the others are of the moment.
    """

    index: int  # NVML's
    uuid: str
    name: str
    ranks: int  # that compute on it
    columns: Mapping[str, Column]
    sources: Mapping[str, str] = field(default_factory=dict)  # by column, the NVML function
    absent: Mapping[str, str] = field(default_factory=dict)  # by column, why it is not there


@dataclass(frozen=True)
class NodeSeries:
    """One node; arrays are (samples,), or (ranks, samples) in the order of the ranks' pids."""

    host: str
    interval_s: float  # wanted; ``times_s`` has when samples were taken
    times_s: Column  # seconds since the epoch, on this node's clock
    segment: Column  # grows by one at every pause: samples of two have a gap between them
    cpu_busy_s: Column  # counters, of all cores of the node together
    cpu_total_s: Column
    rank_cpu_s: Column  # counter; NaN once the rank's process has ended
    rank_rss_bytes: Column
    devices: tuple[DeviceSeries, ...] = ()
    missed: int = 0  # samples that were due while the sampler did not run
    sampler_cores: tuple[int, ...] = ()  # where it was allowed to run
    sampler_cpu_s: float = 0.0  # what it took itself, its start left out
