"""A GPU as NVML describes it, by a stand-in for nvidia-ml-py."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from harness import provenance
from harness.provenance import gpu
from harness.provenance.notes import UnknownError

UUID = "GPU-0123"


class NVMLError(Exception):
    pass


def stand_in(calls: list[str], **changed: Any) -> SimpleNamespace:
    """Return what stands in for ``pynvml``: an H100 that does not tell its application clocks."""

    def answer(name: str, value: Any) -> Any:
        def query(*_: Any) -> Any:
            calls.append(name)
            if isinstance(value, Exception):
                raise value
            return value

        return query

    answers: dict[str, Any] = {
        "nvmlInit": None,
        "nvmlShutdown": None,
        "nvmlDeviceGetUUID": UUID,
        "nvmlDeviceGetName": b"NVIDIA H100",  # as older releases give it
        "nvmlSystemGetDriverVersion": "580.159.04",
        "nvmlSystemGetCudaDriverVersion_v2": 13010,
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=80 << 30),
        "nvmlDeviceGetEnforcedPowerLimit": 650_000,
        "nvmlDeviceGetMigMode": [0, 0],
        "nvmlDeviceGetPersistenceMode": 1,
        "nvmlDeviceGetMaxPcieLinkGeneration": 5,
        "nvmlDeviceGetMaxPcieLinkWidth": 16,
        "nvmlDeviceGetMaxClockInfo": 1980,
        "nvmlDeviceGetApplicationsClock": NVMLError("Not Supported"),
        "nvmlDeviceGetPciInfo": SimpleNamespace(busId="0000FFFF:00:06.0"),
    } | changed
    made = {name: answer(name, value) for name, value in answers.items()}
    states = {0: 1, 1: 1, 2: 0}

    def link(_: Any, number: int) -> int:
        if number not in states:
            raise NVMLError("no such link")
        return states[number]

    def by_uuid(uuid: bytes) -> object:
        if uuid != UUID.encode():
            raise NVMLError("Not Found")
        return object()

    made |= {"nvmlDeviceGetNvLinkState": link, "nvmlDeviceGetHandleByUUID": by_uuid}
    return SimpleNamespace(NVMLError=NVMLError, NVML_CLOCK_SM=1, NVML_CLOCK_MEM=2, **made)


def test_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setitem(sys.modules, "pynvml", stand_in(calls))
    assert gpu.collect(UUID) == {
        "uuid": UUID,
        "model": "NVIDIA H100",
        "driver": "580.159.04",
        "cuda_driver": "13.1",
        "memory_bytes": 80 << 30,
        "power_limit_w": 650.0,
        "mig": False,
        "persistence": True,
        "nvlinks": 2,
        "pcie_generation_max": 5,
        "pcie_width_max": 16,
        "max_sm_clock_mhz": 1980,
        "max_memory_clock_mhz": 1980,
        "bus": "0000FFFF:00:06.0",
    }
    assert (calls[0], calls[-1]) == ("nvmlInit", "nvmlShutdown")


def test_a_query_that_this_release_lacks_is_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    module = stand_in([])
    del module.nvmlDeviceGetMigMode
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert "mig" not in gpu.collect(UUID)


def test_another_device_is_a_reason_and_nvml_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setitem(sys.modules, "pynvml", stand_in(calls))
    with pytest.raises(UnknownError, match="GPU-9: Not Found"):
        gpu.collect("GPU-9")
    assert calls == ["nvmlInit", "nvmlShutdown"]


def test_no_driver_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    module = stand_in([], nvmlInit=NVMLError("Driver Not Loaded"))
    monkeypatch.setitem(sys.modules, "pynvml", module)
    with pytest.raises(UnknownError, match="the driver does not answer: Driver Not Loaded"):
        gpu.collect(UUID)


def test_a_rank_on_a_gpu_without_nvml_has_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if it were not installed
    found = provenance.of_rank((0,), 1, device_uuid=UUID)
    assert "gpu" not in found
    assert [
        line for line in found["notes"] if line.startswith("gpu: nvidia-ml-py is not installed")
    ]


def test_a_rank_on_a_cpu_has_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = provenance.of_rank((0,), 1)
    assert "gpu" not in found
    assert not [line for line in found.get("notes", ()) if line.startswith("gpu")]
