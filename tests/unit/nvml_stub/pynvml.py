"""Stands in for nvidia-ml-py on machines without a GPU: the functions that telemetry calls.

``HVDSCALE_TEST_NVML``, JSON: ``uuids`` of the GPUs; ``errors``, error code by function;
``mig``, UUIDs of GPUs in MIG mode; ``instances``, UUIDs of MIG instances.
"""

from __future__ import annotations

import json
import os
import time
from types import SimpleNamespace

NVML_SUCCESS = 0
NVML_ERROR_INVALID_ARGUMENT = 2
NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_NO_PERMISSION = 4
NVML_ERROR_NOT_FOUND = 6
NVML_ERROR_DRIVER_NOT_LOADED = 9
NVML_ERROR_LIBRARY_NOT_FOUND = 12
NVML_ERROR_FUNCTION_NOT_FOUND = 13
NVML_ERROR_GPU_IS_LOST = 15
NVML_CLOCK_SM = 1
NVML_FI_DEV_POWER_INSTANT = 186
NVML_GPM_METRIC_SM_UTIL = 2
NVML_GPM_METRICS_GET_VERSION = 1
nvmlMemory_v2 = 0x02000028

config = json.loads(os.environ.get("HVDSCALE_TEST_NVML", "{}"))
now = time.monotonic


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(f"NVML error {value}")
        self.value = value


def _check(function):
    if code := config.get("errors", {}).get(function):
        raise NVMLError(code)


def power_w(handle):
    return 300.0 + 100.0 * handle


def nvmlInit():
    _check("nvmlInit")
    print("a library that prints", flush=True)


def nvmlDeviceGetCount():
    return len(config["uuids"])


def nvmlDeviceGetHandleByIndex(index):
    return index


def nvmlDeviceGetHandleByUUID(uuid):
    if uuid in config.get("instances", ()):
        return -1
    if uuid not in config["uuids"]:
        raise NVMLError(NVML_ERROR_NOT_FOUND)
    return config["uuids"].index(uuid)


def nvmlDeviceGetUUID(handle):
    return config["uuids"][handle]


def nvmlDeviceGetIndex(handle):
    return handle


def nvmlDeviceGetName(handle):
    return "Stub GPU"


def nvmlDeviceGetMigMode(handle):
    _check("nvmlDeviceGetMigMode")
    return [int(config["uuids"][handle] in config.get("mig", ())), 0]


def nvmlDeviceGetUtilizationRates(handle):
    _check("nvmlDeviceGetUtilizationRates")
    return SimpleNamespace(gpu=40 + 10 * handle, memory=5)


def nvmlDeviceGetMemoryInfo(handle, version=None):
    _check("nvmlDeviceGetMemoryInfo")
    assert version == nvmlMemory_v2
    return SimpleNamespace(used=(1 + handle) << 30)


def nvmlDeviceGetFieldValues(handle, fields):
    assert fields == [NVML_FI_DEV_POWER_INSTANT]
    code = config.get("errors", {}).get("POWER_INSTANT", NVML_SUCCESS)
    value = SimpleNamespace(uiVal=round(1000 * power_w(handle)))
    return [SimpleNamespace(nvmlReturn=code, value=value)]


def nvmlDeviceGetPowerUsage(handle):
    _check("nvmlDeviceGetPowerUsage")
    return round(1000 * power_w(handle)) - 1000


def nvmlDeviceGetTotalEnergyConsumption(handle):
    _check("nvmlDeviceGetTotalEnergyConsumption")
    return round(1000 * power_w(handle) * now())


def nvmlDeviceGetClockInfo(handle, kind):
    _check("nvmlDeviceGetClockInfo")
    assert kind == NVML_CLOCK_SM
    return 1500 + 10 * handle


def nvmlDeviceGetCurrentClocksEventReasons(handle):
    _check("nvmlDeviceGetCurrentClocksEventReasons")
    return 0x1 | 0x4


def nvmlDeviceGetCurrentClocksThrottleReasons(handle):
    return 0x20


def nvmlGpmQueryDeviceSupport(handle):
    _check("nvmlGpmQueryDeviceSupport")
    return SimpleNamespace(isSupportedDevice=int(not config.get("no_gpm", False)))


def nvmlGpmSampleAlloc():
    return SimpleNamespace(at_s=None)


def nvmlGpmSampleGet(handle, sample):
    _check("nvmlGpmSampleGet")
    sample.at_s = now()
    return sample


def c_nvmlGpmMetricsGet_t():
    metric = SimpleNamespace(metricId=0, nvmlReturn=NVML_SUCCESS, value=0.0)
    return SimpleNamespace(metrics=[metric])


def nvmlGpmMetricsGet(request):
    """Take a tenth of a second as 10 % of activity, so that a test sees which samples it is of."""
    assert request.numMetrics == 1
    assert request.metrics[0].metricId == NVML_GPM_METRIC_SM_UTIL
    assert request.sample1 is not request.sample2
    request.metrics[0].nvmlReturn = config.get("errors", {}).get("SM_UTIL", NVML_SUCCESS)
    request.metrics[0].value = 100.0 * (request.sample2.at_s - request.sample1.at_s)
    return request
