"""The node: processors, their topology and pace, memory, kernel. Read from /proc and /sys."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path("/")
_CPUS = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"


def collect(root: Path = ROOT) -> dict[str, Any]:
    """Return the facts of this node; what the system does not show has no key.

    ``smt`` is hardware threads a core; ``turbo`` whether the clock may rise above its base.
    """
    found: dict[str, Any] = {
        "kernel": platform.release(),
        "os": _os_name(root),
        "hypervisor": _hypervisor(root),
        "memory_bytes": _memory_bytes(root),
        "numa_nodes": len(numa_cpus(root)) or None,
        "governor": _common(_read_all(root, f"{_CPUS}/cpufreq/policy*/scaling_governor")),
        "turbo": _turbo(root),
        "clocksource": _read(
            root / "sys/devices/system/clocksource/clocksource0/current_clocksource"
        ),
        "transparent_hugepage": _chosen(root / "sys/kernel/mm/transparent_hugepage/enabled"),
    }
    found |= _topology(root)
    return {key: value for key, value in found.items() if value is not None}


def cpu_model(root: Path = ROOT) -> str:
    """Return the processor's name."""
    text = _read(root / "proc/cpuinfo") or ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.processor()


def numa_cpus(root: Path = ROOT) -> dict[int, frozenset[int]]:
    """Return NUMA node → its CPUs; nodes of memory alone have none."""
    found = {}
    for folder in (root / _NODES).glob("node[0-9]*"):
        found[int(folder.name[4:])] = parse_cpus(_read(folder / "cpulist") or "")
    return dict(sorted(found.items()))


def parse_cpus(text: str) -> frozenset[int]:
    """Return the CPUs of the kernel's list format: "0-2,8" is {0, 1, 2, 8}."""
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def cpu_list(cpus: Iterable[int]) -> str:
    """Return CPUs in the kernel's list format."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(f"{a}-{b}" if a != b else f"{a}" for a, b in runs)


def _topology(root: Path) -> dict[str, int]:
    packages, cores = set(), set()
    for folder in (root / _CPUS).glob("cpu[0-9]*/topology"):
        packages.add(_read(folder / "physical_package_id"))
        siblings = _read(folder / "thread_siblings_list")  # one text a core: its hardware threads
        if siblings:
            cores.add(siblings)
    if not cores:
        return {}
    threads = max(len(parse_cpus(siblings)) for siblings in cores)
    return {"sockets": len(packages), "physical_cores": len(cores), "smt": threads}


def _turbo(root: Path) -> bool | None:
    no_turbo = _read(root / _CPUS / "intel_pstate/no_turbo")
    if no_turbo is not None:
        return no_turbo == "0"
    boost = _read(root / _CPUS / "cpufreq/boost")
    return None if boost is None else boost == "1"


def _memory_bytes(root: Path) -> int | None:
    match = re.search(r"^MemTotal:\s+(\d+) kB$", _read(root / "proc/meminfo") or "", re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _hypervisor(root: Path) -> bool | None:
    text = _read(root / "proc/cpuinfo")
    return None if not text else bool(re.search(r"^flags\s*:.*\bhypervisor\b", text, re.MULTILINE))


def _os_name(root: Path) -> str | None:
    text = _read(root / "etc/os-release") or ""
    match = re.search(r'^PRETTY_NAME="?([^"\n]+)', text, re.MULTILINE)
    return match[1] if match else None


def _chosen(path: Path) -> str | None:
    """Return the choice in brackets: "always [madvise] never"."""
    match = re.search(r"\[(\w+)\]", _read(path) or "")
    return match[1] if match else None


def _common(values: Iterable[str]) -> str | None:
    return " / ".join(sorted(set(values))) or None


def _read_all(root: Path, pattern: str) -> list[str]:
    return [text for path in root.glob(pattern) if (text := _read(path))]


def _read(path: Path) -> str | None:
    """Return a file's text; None where the system does not have or does not show it."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
