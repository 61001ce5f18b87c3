"""A rank's GPU, as NVIDIA's management library (NVML) describes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.provenance.notes import UnknownError

#: What two ranks of one curve have in common; the rest is one device's own.
COMMON = ("model", "driver", "cuda_driver", "memory_bytes", "power_limit_w", "mig")
_MAX_NVLINKS = 18


def collect(uuid: str | None) -> dict[str, Any]:
    """Return the facts of the device with this UUID; nothing for None, which is a CPU.

    Clocks are in MHz: ``max_``, what the device can do; ``application_``, what it was told to hold,
    where that exists. Raises UnknownError without nvidia-ml-py or a driver that answers.
    """
    if uuid is None:
        return {}
    try:
        import pynvml
    except ModuleNotFoundError:
        raise UnknownError(
            "nvidia-ml-py is not installed, so model, driver and clocks are not known"
        ) from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise UnknownError(f"the driver does not answer: {error}") from None
    try:
        return _facts(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid.encode()))
    except pynvml.NVMLError as error:
        raise UnknownError(f"{uuid}: {error}") from None
    finally:
        pynvml.nvmlShutdown()


def _facts(nvml: Any, handle: Any) -> dict[str, Any]:
    def ask(name: str, *arguments: Any) -> Any:
        """Return a query's answer; None for what this device or this nvidia-ml-py does not have."""
        query: Callable[..., Any] | None = getattr(nvml, name, None)
        if query is None:
            return None
        try:
            return query(*arguments)
        except nvml.NVMLError:
            return None

    memory, limit_mw = (
        ask("nvmlDeviceGetMemoryInfo", handle),
        ask("nvmlDeviceGetEnforcedPowerLimit", handle),
    )
    mode = ask("nvmlDeviceGetMigMode", handle)
    found = {
        "uuid": _text(nvml.nvmlDeviceGetUUID(handle)),
        "model": _text(ask("nvmlDeviceGetName", handle)),
        "driver": _text(ask("nvmlSystemGetDriverVersion")),
        "cuda_driver": _cuda(ask("nvmlSystemGetCudaDriverVersion_v2")),
        "memory_bytes": memory.total if memory is not None else None,
        "power_limit_w": limit_mw / 1000 if limit_mw is not None else None,
        "mig": bool(mode[0]) if mode is not None else None,
        "persistence": _switch(ask("nvmlDeviceGetPersistenceMode", handle)),
        "nvlinks": _nvlinks(ask, handle),
        "pcie_generation_max": ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        "pcie_width_max": ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
        **_clocks(nvml, ask, handle),
        **_place(ask("nvmlDeviceGetPciInfo", handle)),
    }
    return {key: value for key, value in found.items() if value is not None}


def _clocks(nvml: Any, ask: Callable[..., Any], handle: Any) -> dict[str, int | None]:
    kinds = {"sm": nvml.NVML_CLOCK_SM, "memory": nvml.NVML_CLOCK_MEM}
    found = {}
    for name, kind in kinds.items():
        found[f"max_{name}_clock_mhz"] = ask("nvmlDeviceGetMaxClockInfo", handle, kind)
        found[f"application_{name}_clock_mhz"] = ask("nvmlDeviceGetApplicationsClock", handle, kind)
    return found


def _nvlinks(ask: Callable[..., Any], handle: Any) -> int | None:
    """Return how many NVLinks are up; None where the device has none to ask."""
    states = [ask("nvmlDeviceGetNvLinkState", handle, link) for link in range(_MAX_NVLINKS)]
    known = [state for state in states if state is not None]
    return sum(known) if known else None


def _place(pci: Any) -> dict[str, Any]:
    """Return the bus id, and the NUMA node that the bus hangs on: a far one costs bandwidth."""
    if pci is None:
        return {}
    bus = _text(pci.busId) or ""
    # NVML writes a domain of eight digits, Linux one of four.
    folder = Path("/sys/bus/pci/devices") / bus.lower().removeprefix("0000")
    try:
        node = int((folder / "numa_node").read_text())
    except (OSError, ValueError):
        node = -1
    return {"bus": bus, "numa_node": node if node >= 0 else None}


def _cuda(code: int | None) -> str | None:
    """Return CUDA's version code as text: 13000 is 13.0 (cuda.h)."""
    return None if code is None else f"{code // 1000}.{code % 1000 // 10}"


def _switch(state: int | None) -> bool | None:
    return None if state is None else bool(state)


def _text(value: Any) -> str | None:
    """Return a string: older releases of nvidia-ml-py give bytes."""
    if value is None:
        return None
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
