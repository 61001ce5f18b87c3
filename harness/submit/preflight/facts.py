"""What has to be the same on every node of a campaign, as one node finds it.

Nothing here imports a framework: what a package's files say. What is loaded is ``speed``'s to tell.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import harness
from harness.detect import detect_mpi, read_build_marker, usable_cores
from harness.provenance import environment, gpu, host, packages, settings
from harness.provenance.notes import Notes

#: Of a node's hardware and its settings: key of ``provenance.host`` -> how it is called.
_HOST = {
    "kernel": "kernel",
    "os": "operating system",
    "governor": "CPU frequency governor",
    "turbo": "CPU turbo",
    "smt": "hardware threads a core",
    "physical_cores": "physical cores",
    "numa_nodes": "NUMA nodes",
    "transparent_hugepage": "transparent huge pages",
    "clocksource": "clock source",
}
_GPU = {
    "model": "GPU",
    "driver": "NVIDIA driver",
    "cuda_driver": "CUDA of the driver",
    "power_limit_w": "GPU power limit, W",
    "mig": "MIG",
    "persistence": "GPU persistence mode",
    "application_sm_clock_mhz": "application clock, MHz",
    "pcie_width_max": "PCIe lanes of a GPU",
    "nvlinks": "NVLinks up on a GPU",
}


def collect(uuids: Iterable[str], notes: Notes) -> dict[str, str]:
    """Return this node's facts; ``uuids`` are its GPUs. What cannot be known has no key."""
    found: dict[str, str] = {
        "Python": platform.python_version(),
        "interpreter": sys.executable,
        "hvdscale, as running": harness.__version__,
        "CPU model": host.cpu_model(),
        "usable cores": str(usable_cores()),
    }
    found |= packages.collect()
    node = notes.take("host", host.collect)
    found |= {title: str(node[key]) for key, title in _HOST.items() if key in node}
    found |= _horovod(read_build_marker())
    mpi = detect_mpi()
    if mpi is not None:
        found["MPI"] = f"{mpi.library or mpi.flavour} ({mpi.mpirun})"
    found |= _gpus([notes.take("gpu", partial(gpu.collect, uuid)) for uuid in uuids])
    # A variable that one node lacks differs there: "unset" is a value (see ``versions``).
    found |= {f"${name}": value for name, value in settings(environment(os.environ)).items()}
    return found


def _horovod(marker: Mapping[str, Any]) -> dict[str, str]:
    return {"Horovod's build": str(marker["digest"])[:16]} if "digest" in marker else {}


def _gpus(found: list[dict[str, Any]]) -> dict[str, str]:
    """Return what the node's GPUs are, each kind once: "2x A, 2x B"."""
    known = {}
    for key, title in _GPU.items():
        values = [str(one[key]) for one in found if key in one]
        if values:
            counts = {value: values.count(value) for value in sorted(values)}
            known[title] = ", ".join(f"{count}x {value}" for value, count in counts.items())
    return known
