"""What a node does meanwhile: one process a node that samples it ten times a second.

    with Sampler(pids, uuids) as sampler:      # on one rank of the node
        ...                                    # warm-up, window
        series = sampler.stop()
    telemetry = summarise([(series, window_start_s, window_end_s)], samples)

**What is read.** Of the node: CPU time of all its cores (/proc/stat, which knows of no allocation:
on a shared node other jobs are in it). Of each rank: CPU time of the process with all its threads,
not of its children, and resident memory. Of each rank's GPU, found by UUID, so that
CUDA_VISIBLE_DEVICES misleads nobody: see ``nvml.py``. What a device does not tell is absent.

**Means** are weighted by time and over the window only: samples with start <= t <= end. A sampler
that was starved leaves a longer interval, and no invented sample. Of counters (CPU time, energy)
the difference between the first and the last sample in the window is taken. Under two samples there
is no figure.

**Energy** over the window is the counter's mean rate in it × the window's length (the counter is
read at the sampler's times, not at the window's ends); without a counter, the mean power × length.

**The sampler itself** is a child of one rank, and ends when its standard input does: however the
rank ended. A rank is bound to its cores and a child inherits that, so it moves to cores that the
launcher may use and no rank is bound to; where there are none it shares the ranks'. It is not made
``nice``: then it would run when the ranks rest, and see them resting. Series stay in its memory, 8
bytes a value: about 22 MB an hour for 8 GPUs and 8 ranks, 6 MB an hour for 8 ranks without.

Names are loaded when they are asked for: the sampler must start without numpy and pydantic.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.telemetry.sampler import Sampler
    from harness.telemetry.series import DeviceSeries, NodeSeries
    from harness.telemetry.summary import summarise
    from harness.telemetry.tabulate import table

__all__ = ["Sampler", "NodeSeries", "DeviceSeries", "table", "summarise"]

_HOMES = {
    "Sampler": "sampler",
    "NodeSeries": "series",
    "DeviceSeries": "series",
    "summarise": "summary",
    "table": "tabulate",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
