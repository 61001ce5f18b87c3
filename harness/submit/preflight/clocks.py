"""Clocks and throttling of a node's devices, sampled while they train.

A GPU's by NVML (``telemetry.nvml``). A CPU's from the kernel: the fastest core of each sample, as
one of them trains and the others may sleep; and whether it counted thermal throttling meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import psutil

from harness.errors import HarnessError
from harness.provenance.notes import Notes
from harness.submit.preflight.record import Clock
from harness.telemetry.nvml import Device, open_devices, throttle_names

PERIOD_S = 0.2
#: Why a clock is low that is not itself an ailment: GPUs under load live at their power limit.
_THROTTLE_COUNTS = "sys/devices/system/cpu/cpu[0-9]*/thermal_throttle/*_throttle_count"


class Sampler(Protocol):
    """Reads the clocks of a node's devices."""

    def sample(self) -> None:
        """Read all of them once."""

    def clocks(self) -> tuple[Clock, ...]:
        """Return what was read."""


def sampler(device: str, notes: Notes) -> Sampler:
    """Return what reads this node's clocks; without an NVML that answers a note says so."""
    if device != "cuda":
        return CpuSampler()
    try:
        return GpuSampler(open_devices(None))
    except HarnessError as error:
        notes.add("clocks", str(error))
        return CpuSampler()


class CpuSampler:
    """The processor's clock, by the kernel's cpufreq or /proc/cpuinfo."""

    def __init__(
        self, root: Path = Path("/"), read: Callable[[], list[tuple[float, float]]] | None = None
    ) -> None:
        self._root, self._read = root, read or _frequencies
        self._mhz: list[float] = []
        self._max_mhz = 0.0
        self._before = self._throttled()

    def sample(self) -> None:
        """Read the fastest core's clock."""
        found = self._read()
        current = max((now for now, _ in found), default=0.0)
        if current > 0:
            self._mhz.append(round(current, 1))
        self._max_mhz = max([self._max_mhz, *(most for _, most in found)])

    def clocks(self) -> tuple[Clock, ...]:
        """Return one clock; its throttling is all or none: the kernel only counts it."""
        throttle = {"thermal": 1.0} if self._throttled() > self._before else {}
        if not self._mhz and not throttle:
            return ()
        most = self._max_mhz or None
        return (Clock(device="CPU", mhz=tuple(self._mhz), max_mhz=most, throttle=throttle),)

    def _throttled(self) -> int:
        total = 0
        for path in self._root.glob(_THROTTLE_COUNTS):
            try:
                total += int(path.read_text())
            except (OSError, ValueError):
                continue
        return total


def _frequencies() -> list[tuple[float, float]]:
    """Return (now, at most) of each core in MHz; none where the kernel does not tell."""
    try:
        return [(one.current, one.max) for one in psutil.cpu_freq(percpu=True) or ()]
    except (OSError, NotImplementedError, AttributeError):
        return []


class GpuSampler:
    """The clocks of all GPUs that this job sees."""

    def __init__(self, devices: tuple[Device, ...]) -> None:
        self._devices = devices
        self._mhz: list[list[float]] = [[] for _ in devices]
        self._reasons: list[list[tuple[str, ...]]] = [[] for _ in devices]

    def sample(self) -> None:
        """Read clock and throttle reasons of every GPU."""
        for place, device in enumerate(self._devices):
            row = dict(zip(device.columns, device.read(False), strict=True))
            mhz, bits = row.get("sm_clock_mhz", math.nan), row.get("throttle_reasons_bits")
            if not math.isnan(mhz):
                self._mhz[place].append(mhz)
            if bits is not None and not math.isnan(bits):
                self._reasons[place].append(throttle_names(int(bits)))

    def clocks(self) -> tuple[Clock, ...]:
        """Return a clock a GPU."""
        return tuple(
            Clock(device=f"GPU {device.index}", mhz=tuple(mhz), throttle=shares(reasons))
            for device, mhz, reasons in zip(self._devices, self._mhz, self._reasons, strict=True)
        )


def shares(samples: list[tuple[str, ...]]) -> dict[str, float]:
    """Return reason -> the share of samples that have it."""
    names = sorted({name for sample in samples for name in sample})
    return {
        name: round(sum(name in sample for sample in samples) / len(samples), 3) for name in names
    }
