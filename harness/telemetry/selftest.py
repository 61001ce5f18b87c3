"""``python -m harness.telemetry --self-test``: what this machine tells, a line a device."""

from __future__ import annotations

import os
import time

from harness.errors import MissingDependencyError
from harness.record import DeviceTelemetry
from harness.telemetry.nvml import open_devices
from harness.telemetry.sampler import Sampler
from harness.telemetry.series import DeviceSeries, NodeSeries
from harness.telemetry.summary import summarise

SECONDS = 2.0


def self_test() -> int:
    """Sample this process and every GPU that NVML sees through a real sampler; return 0."""
    try:
        uuids = [device.uuid for device in open_devices(None)]
    except MissingDependencyError as error:
        print(f"no GPU: {error}")
        uuids = []
    with Sampler((os.getpid(),), uuids) as sampler:
        start_s = time.time()
        time.sleep(SECONDS)
        end_s = time.time()
        series = sampler.stop()
    (node,) = summarise([(series, start_s, end_s)], samples=1).nodes
    print(_node_line(series, node.samples, node.cpu_utilisation_mean))
    for device, told in zip(series.devices, node.devices, strict=True):
        print(_device_line(device, told))
    return 0


def _node_line(series: NodeSeries, samples: int, utilisation: float | None) -> str:
    share = series.sampler_cpu_s / (series.times_s[-1] - series.times_s[0])
    return (
        f"{series.host}: {samples} samples in {SECONDS:g} s, {series.missed} missed, "
        f"cpu_utilisation {_shown(utilisation)}, the sampler on cores "
        f"{','.join(map(str, series.sampler_cores))} took {share:.2%} of one"
    )


def _device_line(device: DeviceSeries, told: DeviceTelemetry) -> str:
    means = [
        f"utilisation {_shown(told.utilisation_mean)}",
        f"sm_activity {_shown(told.sm_activity_mean)}",
        f"memory_used {_shown(told.memory_used_max_bytes)} bytes",
        f"power {_shown(told.power_mean_w)} W ({device.sources.get('power_w', 'absent')})",
        f"energy {_shown(told.energy_j)} J",
        f"sm_clock {_shown(told.sm_clock_mean_mhz)} MHz",
        f"throttled by {_reasons(told.throttle_reasons)}",
    ]
    absent = "; ".join(f"{column}: {why}" for column, why in device.absent.items())
    return f"{device.index} {device.uuid} {device.name}: {', '.join(means)}" + (
        f"; absent: {absent}" if absent else ""
    )


def _reasons(reasons: tuple[str, ...] | None) -> str:
    return "absent" if reasons is None else ", ".join(reasons) or "nothing"


def _shown(value: float | None) -> str:
    return "absent" if value is None else f"{value:.6g}"
