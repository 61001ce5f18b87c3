"""One sample of a node: its CPU, the ranks' processes, their GPUs; in the sampler's process.

From /proc by files that stay open: a tenth of what psutil takes, and what is read is that process's
or nothing, never that of a later one with its pid.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.errors import LaunchError

if TYPE_CHECKING:
    from harness.telemetry.nvml import Device

NODE_COLUMNS = ("cpu_busy_s", "cpu_total_s")  # counters, over all cores of the node
RANK_COLUMNS = ("cpu_s", "rss_bytes")

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Collector:
    """Reads everything once, always in the same order: node, ranks, devices.

    Raises LaunchError where a rank's process is not there.
    """

    def __init__(self, pids: Sequence[int], devices: Sequence[Device]) -> None:
        self.devices = tuple(devices)
        self._node = os.open("/proc/stat", os.O_RDONLY | os.O_CLOEXEC)
        self._ranks = [_open_process(pid) for pid in pids]

    @property
    def width(self) -> int:
        """Return how many values ``read`` gives."""
        ranks = len(self._ranks) * len(RANK_COLUMNS)
        return len(NODE_COLUMNS) + ranks + sum(len(device.columns) for device in self.devices)

    def read(self, fresh: bool) -> list[float]:
        """Return a sample, NaN for what did not answer; ``fresh``: the first, or after a pause."""
        values = parse_node(os.pread(self._node, 512, 0))
        for rank in self._ranks:
            values += _rank(rank)
        for device in self.devices:
            values += device.read(fresh)
        return values


def _open_process(pid: int) -> int:
    try:
        return os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise LaunchError(
            f"telemetry: the rank with pid {pid} cannot be seen from its node's first rank "
            f"({error.strerror}): ranks in containers of their own have no pids in common"
        ) from error


def _rank(descriptor: int) -> list[float]:
    try:
        return parse_process(os.pread(descriptor, 4096, 0))
    except ProcessLookupError:
        return [math.nan, math.nan]  # it ended: the launch is failing, and says why itself


def parse_node(text: bytes) -> list[float]:
    """Return busy and total CPU seconds since boot, of the first line of /proc/stat.

    Its fields (proc(5)): user, nice, system, idle, iowait, irq, softirq, steal, and the guests'
    time, which is in user and nice already. Waiting for a disk is not being busy.
    """
    ticks = [int(word) for word in text.split(b"\n", 1)[0].split()[1:9]]
    total = sum(ticks)
    return [(total - ticks[3] - ticks[4]) * _TICK_S, total * _TICK_S]


def parse_process(text: bytes) -> list[float]:
    """Return CPU seconds and resident bytes, of /proc/PID/stat.

    CPU time (fields 14 and 15) is that of all threads, ended ones too. A process that ended and
    is not waited for has no memory any more: both are NaN.
    """
    # The name, in brackets, may hold anything; the fields after it are numbered from 3.
    fields = text.rpartition(b")")[2].split()
    if fields[0] in (b"Z", b"X"):
        return [math.nan, math.nan]
    return [(int(fields[11]) + int(fields[12])) * _TICK_S, float(int(fields[21]) * _PAGE_BYTES)]
