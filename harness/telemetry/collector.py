"""One sample of a node: its CPU, the ranks' processes, their GPUs; in the sampler's process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import psutil

from harness.errors import LaunchError

if TYPE_CHECKING:
    from harness.telemetry.nvml import Device

NODE_COLUMNS = ("cpu_busy_s", "cpu_total_s")  # counters, over all cores of the node
RANK_COLUMNS = ("cpu_s", "rss_bytes")


class Collector:
    """Reads everything once, always in the same order: node, ranks, devices.

    Raises LaunchError where a rank's process is not there.
    """

    def __init__(self, pids: Sequence[int], devices: Sequence[Device]) -> None:
        self.devices = tuple(devices)
        self.pids = tuple(pids)
        self._ranks = [_process(pid) for pid in pids]

    @property
    def width(self) -> int:
        """Return how many values ``read`` gives."""
        ranks = len(self.pids) * len(RANK_COLUMNS)
        return len(NODE_COLUMNS) + ranks + sum(len(device.columns) for device in self.devices)

    def read(self, fresh: bool) -> list[float]:
        """Return a sample, NaN for what did not answer; ``fresh``: the first, or after a pause."""
        values = _node()
        for rank in self._ranks:
            values += _rank(rank)
        for device in self.devices:
            values += device.read(fresh)
        return values


def _process(pid: int) -> psutil.Process:
    try:
        return psutil.Process(pid)
    except psutil.Error as error:
        raise LaunchError(
            f"telemetry: the rank with pid {pid} cannot be seen from this host's first rank "
            f"({error}): ranks in containers of their own have no pids in common"
        ) from error


def _node() -> list[float]:
    """Return busy and total CPU seconds since boot, as psutil's cpu_percent counts them.

    A virtual machine's time is in ``user`` already; waiting for a disk is not being busy.
    """
    times = psutil.cpu_times()
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return [total - times.idle - getattr(times, "iowait", 0.0), total]


def _rank(process: psutil.Process) -> list[float]:
    try:
        with process.oneshot():
            times = process.cpu_times()
            return [times.user + times.system, float(process.memory_info().rss)]
    except psutil.Error:
        return [math.nan, math.nan]  # it ended: the launch is failing, and says why itself
