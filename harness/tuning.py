"""Horovod's knobs as environment variables, and back.

Names and defaults: Horovod 0.28.1, ``horovod/common/common.h`` and ``operations.cc``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.config.models import HorovodTuning
from harness.errors import ConfigError

_MIB = 1024 * 1024
#: What makes the numerical libraries of a rank use as many threads as it has cores.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
CYCLE_TIME = "HOROVOD_CYCLE_TIME"  # milliseconds
FUSION_THRESHOLD = "HOROVOD_FUSION_THRESHOLD"  # bytes
ASYNC_COMPLETION = "HOROVOD_ENABLE_ASYNC_COMPLETION"
CACHE_CAPACITY = "HOROVOD_CACHE_CAPACITY"  # tensors
HIERARCHICAL_ALLREDUCE = "HOROVOD_HIERARCHICAL_ALLREDUCE"
TORUS_ALLREDUCE = "HOROVOD_TORUS_ALLREDUCE"

#: Knobs that change a measurement and that a config does not have, at Horovod's own defaults.
NOT_IN_CONFIG = {
    "HOROVOD_AUTOTUNE": 0.0,
    "HOROVOD_BATCH_D2D_MEMCOPIES": 1.0,
    "HOROVOD_DISABLE_GROUP_FUSION": 0.0,
    "HOROVOD_DISABLE_NVTX_RANGES": 0.0,
    "HOROVOD_DYNAMIC_PROCESS_SETS": 0.0,
    "HOROVOD_ELASTIC": 0.0,
    "HOROVOD_ENABLE_XLA_OPS": 0.0,
    "HOROVOD_HIERARCHICAL_ALLGATHER": 0.0,
    "HOROVOD_MPI_THREADS_DISABLE": 0.0,
    "HOROVOD_NUM_NCCL_STREAMS": 1.0,
    "HOROVOD_TIMELINE_MARK_CYCLES": 0.0,
}
_SWITCHES = {
    ASYNC_COMPLETION: "async_completion",
    HIERARCHICAL_ALLREDUCE: "hierarchical_allreduce",
    TORUS_ALLREDUCE: "torus_allreduce",
}
_TIMELINE = "HOROVOD_TIMELINE"
#: The same, but without a value that means "off": to be there at all is what changes something.
NEVER_SET = (
    "HOROVOD_ADASUM_MPI_CHUNK_SIZE",
    "HOROVOD_AUTOTUNE_LOG",
    "HOROVOD_THREAD_AFFINITY",
    _TIMELINE,
)
#: All ranks of a launch that keeps a timeline must have it when Horovod is initialised; the engine
#: starts and stops the timeline, and asks for cycle marks whatever HOROVOD_TIMELINE_MARK_CYCLES is.
DYNAMIC_TIMELINE = {_TIMELINE: "DYNAMIC"}


def transport(backend: str | None, controller: str | None) -> dict[str, str]:
    """Return the variables that choose Horovod's controller and its operations on the CPU.

    With NCCL nothing of the gradient is reduced on the CPU; what is, goes the controller's way.
    """
    negotiates = controller or ""
    operations = {"mpi": "mpi", "mpi-host": "mpi", "gloo": "gloo"}.get(backend or "", negotiates)
    return {"HOROVOD_CONTROLLER": negotiates, "HOROVOD_CPU_OPERATIONS": operations}


def to_environment(tuning: HorovodTuning) -> dict[str, str]:
    """Return the variables that put ``tuning`` in force; all of them, also at their defaults."""
    return {
        CYCLE_TIME: repr(tuning.cycle_time_ms),
        FUSION_THRESHOLD: str(round(tuning.fusion_threshold_mb * _MIB)),
        ASYNC_COMPLETION: str(int(tuning.async_completion)),
        CACHE_CAPACITY: str(tuning.cache_capacity),
        HIERARCHICAL_ALLREDUCE: str(int(tuning.hierarchical_allreduce)),
        TORUS_ALLREDUCE: str(int(tuning.torus_allreduce)),
    }


def from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of ``HorovodTuning`` that ``environ`` sets; ConfigError on a bad value."""
    found: dict[str, Any] = {}
    if CYCLE_TIME in environ:
        found["cycle_time_ms"] = _number(environ, CYCLE_TIME)
    if FUSION_THRESHOLD in environ:
        found["fusion_threshold_mb"] = _number(environ, FUSION_THRESHOLD) / _MIB
    if CACHE_CAPACITY in environ:
        found["cache_capacity"] = _whole(environ, CACHE_CAPACITY)
    for name, field in _SWITCHES.items():
        if name in environ:
            found[field] = _whole(environ, name) > 0  # as Horovod reads it
    return found


def check_environment(environ: Mapping[str, str]) -> None:
    """Raise ConfigError where a knob of ``NOT_IN_CONFIG`` or ``NEVER_SET`` is in force.

    Equal configs have equal ids, so they must mean equal measurements.
    """
    found = [name for name in NEVER_SET if name in environ]
    found += [
        name
        for name, default in NOT_IN_CONFIG.items()
        if name in environ and _number(environ, name) != default
    ]
    if found:
        name = found[0]
        more = f" (and {', '.join(found[1:])})" if found[1:] else ""
        instead = ", and set measure.instruments: [timeline]" if name == _TIMELINE else ""
        raise ConfigError(
            f"environment: {name}={environ[name]}{more} changes what is measured, and a config has "
            f"no key for it; unset it{instead}"
        )


def _number(environ: Mapping[str, str], name: str) -> float:
    try:
        return float(environ[name])
    except ValueError:
        raise ConfigError(f"environment: {name}={environ[name]!r} is not a number") from None


def _whole(environ: Mapping[str, str], name: str) -> int:
    # Horovod takes the digits that it finds first: of 1e3 that would be 1.
    try:
        return int(environ[name])
    except ValueError:
        raise ConfigError(f"environment: {name}={environ[name]!r} is not a whole number") from None
