"""What is asked of NVML, what is absent, what is an error: against a stand-in for its module."""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.errors import LaunchError, MissingDependencyError
from harness.telemetry import nvml

STUB = Path(__file__).parent / "nvml_stub"
UUIDS = ["GPU-a", "GPU-b"]


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Give a function that puts the stand-in in NVML's place, with what it is to say."""

    def load(**config: Any) -> Any:
        monkeypatch.setenv("HVDSCALE_TEST_NVML", json.dumps({"uuids": UUIDS, **config}))
        monkeypatch.syspath_prepend(str(STUB))
        monkeypatch.delitem(sys.modules, "pynvml", raising=False)
        module = importlib.import_module("pynvml")
        assert module.__file__ == str(STUB / "pynvml.py")
        return module

    yield load
    sys.modules.pop("pynvml", None)


def read(device: nvml.Device, fresh: bool = False) -> dict[str, float]:
    return dict(zip(device.columns, device.read(fresh), strict=True))


def test_a_device_is_found_by_its_uuid_and_tells_in_plain_units(stub: Callable[..., Any]) -> None:
    module = stub()
    module.now = lambda: 2.0
    (device,) = nvml.open_devices(["GPU-b"])
    assert (device.index, device.uuid, device.ranks) == (1, "GPU-b", 1)
    module.now = lambda: 2.3
    assert read(device) == {
        "utilisation": 0.5,
        "memory_used_bytes": 2 << 30,
        "power_w": 400.0,
        "energy_j": pytest.approx(920.0),
        "sm_clock_mhz": 1510.0,
        "throttle_reasons_bits": 5.0,
        "sm_activity": pytest.approx(0.3),
    }
    assert device.absent == {}
    assert device.sources["power_w"] == "NVML_FI_DEV_POWER_INSTANT"


def test_activity_is_never_that_of_a_pause(stub: Callable[..., Any]) -> None:
    module = stub()
    module.now = lambda: 1.0
    (device,) = nvml.open_devices(["GPU-a"])
    module.now = lambda: 50.0
    assert math.isnan(read(device, fresh=True)["sm_activity"])
    module.now = lambda: 50.2
    assert read(device)["sm_activity"] == pytest.approx(0.2)
    module.now = lambda: 50.3
    assert read(device)["sm_activity"] == pytest.approx(0.1)


def test_ranks_that_share_a_device_are_counted(stub: Callable[..., Any]) -> None:
    stub()
    devices = nvml.open_devices(["GPU-b", "GPU-a", "GPU-b"])
    assert [(device.uuid, device.ranks) for device in devices] == [("GPU-b", 2), ("GPU-a", 1)]


def test_without_uuids_it_is_all_of_them(stub: Callable[..., Any]) -> None:
    stub()
    assert [device.uuid for device in nvml.open_devices(None)] == UUIDS


def test_what_an_older_gpu_has_not_is_absent(stub: Callable[..., Any]) -> None:
    stub(no_gpm=True, errors={"POWER_INSTANT": 2, "nvmlDeviceGetTotalEnergyConsumption": 3})
    (device,) = nvml.open_devices(["GPU-a"])
    values = read(device)
    assert set(device.absent) == {"energy_j", "sm_activity"}
    assert not {"energy_j", "sm_activity"} & set(values)
    # The other way to read power is named.
    assert values["power_w"] == 299.0
    assert device.sources["power_w"] == "nvmlDeviceGetPowerUsage"


def test_throttle_reasons_by_their_old_name(stub: Callable[..., Any]) -> None:
    stub(errors={"nvmlDeviceGetCurrentClocksEventReasons": 13})
    (device,) = nvml.open_devices(["GPU-a"])
    assert read(device)["throttle_reasons_bits"] == 0x20


def test_a_moment_without_an_answer_is_nan(stub: Callable[..., Any]) -> None:
    module = stub()
    (device,) = nvml.open_devices(["GPU-a"])
    module.config["errors"] = {"nvmlDeviceGetClockInfo": 15, "SM_UTIL": 3}
    values = read(device)
    assert math.isnan(values["sm_clock_mhz"])
    assert math.isnan(values["sm_activity"])
    assert values["utilisation"] == 0.4


@pytest.mark.parametrize(
    ("config", "uuid", "kind", "words"),
    [
        ({"errors": {"nvmlInit": 12}}, "GPU-a", MissingDependencyError, "utility"),
        ({"errors": {"nvmlInit": 9}}, "GPU-a", MissingDependencyError, "NVIDIA's driver"),
        ({"errors": {"nvmlInit": 18}}, "GPU-a", LaunchError, "NVML does not start"),
        ({"errors": {"nvmlDeviceGetClockInfo": 15}}, "GPU-a", LaunchError, "GetClockInfo of GPU-a"),
        ({}, "GPU-c", LaunchError, "NVML has no GPU GPU-c"),
        ({}, "MIG-a", LaunchError, "split by MIG"),
        ({"instances": ["MIG-x"]}, "GPU-x", LaunchError, "split by MIG"),
        ({"mig": ["GPU-a"]}, "GPU-a", LaunchError, "split by MIG"),
    ],
)
def test_errors_say_what_to_do(
    stub: Callable[..., Any], config: dict[str, Any], uuid: str, kind: type, words: str
) -> None:
    stub(**config)
    with pytest.raises(kind) as caught:
        nvml.open_devices([uuid])
    assert type(caught.value) is kind
    assert words in str(caught.value)


def test_a_gpu_that_knows_no_mig_is_whole(stub: Callable[..., Any]) -> None:
    stub(errors={"nvmlDeviceGetMigMode": 3})
    assert len(nvml.open_devices(["GPU-a"])) == 1


def test_without_the_python_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(MissingDependencyError, match="pip install nvidia-ml-py"):
        nvml.open_devices(["GPU-a"])


@pytest.mark.parametrize(
    ("bits", "names"),
    [
        (0, ()),
        (0x1, ()),
        (0x4 | 0x40, ("sw_power_cap", "hw_thermal_slowdown")),
        (0x2000, ("bit_0x2000",)),
    ],
)
def test_names_of_throttle_reasons(bits: int, names: tuple[str, ...]) -> None:
    assert nvml.throttle_names(bits) == names


def test_the_bits_are_those_of_nvidias_module() -> None:
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    known = {
        name.removeprefix(prefix).lower(): getattr(pynvml, name)
        for prefix in ("nvmlClocksEventReason", "nvmlClocksThrottleReason")
        for name in dir(pynvml)
        if name.startswith(prefix) and not name.endswith(("All", "None", "UserDefinedClocks"))
    }
    ours = {name.replace("_", ""): bit for bit, name in nvml.THROTTLE_REASONS.items()}
    assert known == {**ours, "gpuidle": nvml.IDLE_BIT}
