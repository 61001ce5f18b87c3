"""What a GPU tells of itself, through NVML.

- ``utilisation`` (nvmlDeviceGetUtilizationRates): 0..1, share of time in which any kernel ran, over
  the driver's own last period, 1/6 s to 1 s.
- ``sm_activity`` (GPM's SM_UTIL, Hopper and later): 0..1, share of the multiprocessors that were
  busy, since the sample before.
- ``memory_used_bytes`` (nvmlDeviceGetMemoryInfo_v2): of all processes, without what the driver
  reserves.
- ``power_w`` (field POWER_INSTANT, else nvmlDeviceGetPowerUsage, which on most GPUs since Ampere is
  a mean over the last second): which of them it was is kept with the series.
- ``energy_j`` (nvmlDeviceGetTotalEnergyConsumption, Volta and later): a counter since the driver
  was loaded.
- ``sm_clock_mhz`` (nvmlDeviceGetClockInfo).
- ``throttle_reasons_bits`` (nvmlDeviceGetCurrentClocksEventReasons): why the clock is not higher.

Periods and units are those of NVML's reference, under the functions' names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.errors import LaunchError, MissingDependencyError

Read = Callable[[Any, Any], float]  # (the pynvml module, a device's handle) -> value

#: Bits of nvmlClocksEventReasons. That a GPU idles limits its clock too, but nothing is throttled.
THROTTLE_REASONS: Mapping[int, str] = {
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
    0x200: "board_limit",
    0x400: "reliability",
}
IDLE_BIT = 0x001

#: Errors that say "this device, driver or user has no such reading", not that something is broken.
_ABSENT = (
    "NVML_ERROR_NOT_SUPPORTED",
    "NVML_ERROR_NO_PERMISSION",
    "NVML_ERROR_FUNCTION_NOT_FOUND",
    "NVML_ERROR_INVALID_ARGUMENT",  # a field that an older driver does not know
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
)
_WITHOUT_DRIVER = ("NVML_ERROR_LIBRARY_NOT_FOUND", "NVML_ERROR_DRIVER_NOT_LOADED")


def throttle_names(bits: int) -> tuple[str, ...]:
    """Return the names of the reasons in ``bits``, without idleness; an unknown bit by its value.

    >>> throttle_names(0x1 | 0x4 | 0x1000)
    ('sw_power_cap', 'bit_0x1000')
    """
    present = [1 << place for place in range(bits.bit_length()) if bits >> place & 1]
    return tuple(THROTTLE_REASONS.get(b, f"bit_{b:#x}") for b in present if b != IDLE_BIT)


class Device:
    """One physical GPU, and what it tells."""

    def __init__(self, nvml: Any, handle: Any, ranks: int) -> None:
        self.uuid = str(nvml.nvmlDeviceGetUUID(handle))
        self.index = int(nvml.nvmlDeviceGetIndex(handle))
        self.name = str(nvml.nvmlDeviceGetName(handle))
        self.ranks = ranks
        self.sources: dict[str, str] = {}  # by column, the NVML function (or field)
        self.absent: dict[str, str] = {}  # by column, why
        self._nvml, self._handle = nvml, handle
        self._reads: dict[str, Read] = {}
        for column, candidates in _READS.items():
            self._choose(column, candidates)
        self._activity = self._open_activity()

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns that ``read`` gives, in its order."""
        return (*self._reads, *(("sm_activity",) if self._activity else ()))

    def read(self, fresh: bool) -> list[float]:
        """Return a value a column, NaN where the device did not answer this time.

        ``fresh``: the sample before is not to be compared with.
        """
        values = [self._value(read) for read in self._reads.values()]
        if self._activity:
            activity = self._activity
            values.append(self._value(lambda *_: activity.read(fresh)))
        return values

    def _value(self, read: Read) -> float:
        try:
            return read(self._nvml, self._handle)
        except self._nvml.NVMLError:
            return math.nan

    def _choose(self, column: str, candidates: Mapping[str, Read]) -> None:
        for source, read in candidates.items():
            try:
                read(self._nvml, self._handle)
            except self._nvml.NVMLError as error:
                self.absent[column] = _why_absent(self._nvml, error, f"{source} of {self.uuid}")
            else:
                self.sources[column], self._reads[column] = source, read
                self.absent.pop(column, None)
                return

    def _open_activity(self) -> _Activity | None:
        try:
            activity = _Activity(self._nvml, self._handle)
        except self._nvml.NVMLError as error:
            what = f"nvmlGpmSampleGet of {self.uuid}"
            self.absent["sm_activity"] = _why_absent(self._nvml, error, what)
            return None
        self.sources["sm_activity"] = "NVML_GPM_METRIC_SM_UTIL"
        return activity


class _Activity:
    """Share of busy multiprocessors between two samples of NVML's GPU performance monitoring."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        self._nvml, self._handle = nvml, handle
        self._before, self._now = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
        nvml.nvmlGpmSampleGet(handle, self._before)
        self._request = nvml.c_nvmlGpmMetricsGet_t()
        self._request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = 1
        self._request.metrics[0].metricId = nvml.NVML_GPM_METRIC_SM_UTIL

    def read(self, fresh: bool) -> float:
        self._nvml.nvmlGpmSampleGet(self._handle, self._now)
        request = self._request
        request.sample1, request.sample2 = self._before, self._now
        self._before, self._now = self._now, self._before
        if fresh:
            return math.nan
        self._nvml.nvmlGpmMetricsGet(request)
        metric = request.metrics[0]
        # The call succeeds where a metric does not.
        return metric.value / 100.0 if metric.nvmlReturn == self._nvml.NVML_SUCCESS else math.nan


def open_devices(uuids: Sequence[str] | None) -> tuple[Device, ...]:
    """Return the GPUs of the ranks' UUIDs, each once, or with None all that NVML sees.

    Raises MissingDependencyError without nvidia-ml-py or NVIDIA's driver, LaunchError where a UUID
    names no whole GPU of this host.
    """
    nvml = _initialise()
    try:
        if uuids is None:
            count = int(nvml.nvmlDeviceGetCount())
            return tuple(Device(nvml, nvml.nvmlDeviceGetHandleByIndex(i), 1) for i in range(count))
        return tuple(
            Device(nvml, _handle(nvml, uuid), uuids.count(uuid)) for uuid in dict.fromkeys(uuids)
        )
    except nvml.NVMLError as error:
        raise LaunchError(f"telemetry: NVML does not open the GPUs: {error}") from error


def _initialise() -> Any:
    try:
        import pynvml
    except ImportError as error:
        raise MissingDependencyError(
            f"telemetry of GPUs needs nvidia-ml-py ({error}): pip install nvidia-ml-py"
        ) from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if error.value in _codes(pynvml, _WITHOUT_DRIVER):
            raise MissingDependencyError(
                f"telemetry of GPUs: {error} (libnvidia-ml.so.1); it comes with NVIDIA's driver, "
                "and into a container with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
            ) from error
        raise LaunchError(f"telemetry: NVML does not start: {error}") from error
    return pynvml


def _handle(nvml: Any, uuid: str) -> Any:
    """Return the handle of a whole GPU.

    Under MIG CUDA's UUID is the instance's or the GPU's, and of an instance NVML tells neither
    power nor clocks; the GPU's are those of all its instances, whoever has them.
    """
    if uuid.startswith("MIG-"):
        raise _mig_error(uuid)
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    except nvml.NVMLError as error:
        if _is_instance(nvml, uuid):
            raise _mig_error(uuid) from error
        raise LaunchError(
            f"telemetry: NVML has no GPU {uuid} ({error}), though a rank computes on it: are all "
            "of the ranks' GPUs in this container?"
        ) from error
    if _in_mig_mode(nvml, handle):
        raise _mig_error(uuid)
    return handle


def _is_instance(nvml: Any, uuid: str) -> bool:
    try:
        nvml.nvmlDeviceGetHandleByUUID("MIG-" + uuid.removeprefix("GPU-"))
    except nvml.NVMLError:
        return False
    return True


def _in_mig_mode(nvml: Any, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError:
        return False  # GPUs without MIG do not know the question


def _mig_error(uuid: str) -> LaunchError:
    return LaunchError(
        f"telemetry: {uuid} is an instance of a GPU split by MIG, which has no power, energy, "
        "clock or utilisation of its own: leave telemetry out of measure.instruments"
    )


def _codes(nvml: Any, names: Sequence[str]) -> tuple[int, ...]:
    return tuple(getattr(nvml, name) for name in names if hasattr(nvml, name))


def _why_absent(nvml: Any, error: Any, what: str) -> str:
    if error.value not in _codes(nvml, _ABSENT):
        raise LaunchError(f"telemetry: {what}: {error}") from error
    return str(error)


def _instant_power(nvml: Any, handle: Any) -> float:
    field = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_POWER_INSTANT])[0]
    if field.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(field.nvmlReturn)
    return float(field.value.uiVal) / 1000.0  # mW


#: By column: ways to read it, by name, the best first.
_READS: Mapping[str, Mapping[str, Read]] = {
    "utilisation": {
        "nvmlDeviceGetUtilizationRates": lambda nvml, handle: (
            nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100.0
        )
    },
    "memory_used_bytes": {
        "nvmlDeviceGetMemoryInfo_v2": lambda nvml, handle: float(
            nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used
        )
    },
    "power_w": {
        "NVML_FI_DEV_POWER_INSTANT": _instant_power,
        "nvmlDeviceGetPowerUsage": lambda nvml, handle: (
            nvml.nvmlDeviceGetPowerUsage(handle) / 1000.0
        ),
    },
    "energy_j": {
        "nvmlDeviceGetTotalEnergyConsumption": lambda nvml, handle: (
            nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000.0
        )
    },
    "sm_clock_mhz": {
        "nvmlDeviceGetClockInfo": lambda nvml, handle: float(
            nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
        )
    },
    # One reading under its new name and its old one (drivers before 535).
    "throttle_reasons_bits": {
        "nvmlDeviceGetCurrentClocksEventReasons": lambda nvml, handle: float(
            nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
        ),
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda nvml, handle: float(
            nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        ),
    },
}
