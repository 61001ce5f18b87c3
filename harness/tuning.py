"""Horovod's knobs as environment variables, and back.

Names and defaults: Horovod 0.28.1, ``horovod/common/common.h`` and ``operations.cc``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.config.models import AUTOTUNED, HorovodTuning, RunConfig
from harness.errors import ConfigError, ValidationError

_MIB = 1024 * 1024
#: What makes the numerical libraries of a rank use as many threads as it has cores.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
CYCLE_TIME = "HOROVOD_CYCLE_TIME"  # milliseconds
FUSION_THRESHOLD = "HOROVOD_FUSION_THRESHOLD"  # bytes
ASYNC_COMPLETION = "HOROVOD_ENABLE_ASYNC_COMPLETION"
CACHE_CAPACITY = "HOROVOD_CACHE_CAPACITY"  # tensors
HIERARCHICAL_ALLREDUCE = "HOROVOD_HIERARCHICAL_ALLREDUCE"
TORUS_ALLREDUCE = "HOROVOD_TORUS_ALLREDUCE"
AUTOTUNE = "HOROVOD_AUTOTUNE"
AUTOTUNE_LOG = "HOROVOD_AUTOTUNE_LOG"  # a CSV file, written by rank 0

#: Steps until Horovod's autotuner is done (0.28.1, ``parameter_manager.cc``). It judges a setting
#: by 5 samples of 10 steps, and sees that the last is over when a tensor comes for the 51st time.
#: The first 3 judgements are warm-up. Then 21 settings of fusion threshold and cycle time (a sample
#: more than BAYES_OPT_MAX_SAMPLES), once with the cache off and once with it on. Cycle times of up
#: to 100 ms are among them, so these steps are slower than others.
AUTOTUNE_JUDGEMENTS = 2 * (20 + 1)
AUTOTUNE_STEPS = (3 + AUTOTUNE_JUDGEMENTS) * (5 * 10 + 1)

#: Knobs that change a measurement and that are no one's to set in the environment, at Horovod's own
#: defaults: a config does not have them, or has a key that the environment is not asked for.
NOT_IN_CONFIG = {
    AUTOTUNE: 0.0,
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
#: The variable of each knob that Horovod reads once, when it is initialised.
KNOBS = {
    "cycle_time_ms": CYCLE_TIME,
    "fusion_threshold_mb": FUSION_THRESHOLD,
    "async_completion": ASYNC_COMPLETION,
    "cache_capacity": CACHE_CAPACITY,
    "hierarchical_allreduce": HIERARCHICAL_ALLREDUCE,
    "torus_allreduce": TORUS_ALLREDUCE,
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
    # Those of a launch that autotunes are at their defaults: AUTOTUNE_STEPS counts on it.
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
    "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE",
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE",
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
    "HOROVOD_THREAD_AFFINITY",
    _TIMELINE,
)
#: All ranks of a launch that keeps a timeline must have it when Horovod is initialised; the engine
#: starts and stops the timeline, and asks for cycle marks whatever HOROVOD_TIMELINE_MARK_CYCLES is.
DYNAMIC_TIMELINE = {_TIMELINE: "DYNAMIC"}


def knob_text(value: Any) -> str:
    """Return a knob's value as a config has it: ``true``, ``0.1``, ``fp16``."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def transport(backend: str | None, controller: str | None) -> dict[str, str]:
    """Return the variables that choose Horovod's controller and its operations on the CPU.

    With NCCL nothing of the gradient is reduced on the CPU; what is, goes the controller's way.
    """
    negotiates = controller or ""
    operations = {"mpi": "mpi", "mpi-host": "mpi", "gloo": "gloo"}.get(backend or "", negotiates)
    return {"HOROVOD_CONTROLLER": negotiates, "HOROVOD_CPU_OPERATIONS": operations}


def to_environment(tuning: HorovodTuning) -> dict[str, str]:
    """Return the variables that put ``tuning`` in force; all of them, also at their defaults.

    What autotuning is to choose is left out: a variable that is set at all fixes its knob. It goes
    on choosing with the switches for several nodes as they are, which are set.
    """
    if tuning.autotune:
        free = {KNOBS[name] for name in AUTOTUNED}
        plain = to_environment(tuning.model_copy(update={"autotune": False}))
        return {name: value for name, value in plain.items() if name not in free} | {AUTOTUNE: "1"}
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
    found = [name for name in (AUTOTUNE_LOG, *NEVER_SET) if name in environ]
    found += [
        name
        for name, default in NOT_IN_CONFIG.items()
        if name in environ and _number(environ, name) != default
    ]
    if found:
        name = found[0]
        more = f" (and {', '.join(found[1:])})" if found[1:] else ""
        instead = {
            _TIMELINE: ", and set measure.instruments: [timeline]",
            AUTOTUNE: ", and set horovod.autotune: true",
        }.get(name, "")
        raise ConfigError(
            f"environment: {name}={environ[name]}{more} changes what is measured, and a config has "
            f"no key for it; unset it{instead}"
        )


def check_autotune(config: RunConfig) -> None:
    """Raise ValidationError where a window would begin before the autotuner is done.

    What is measured then is its search, and not what it has found. A training has no window.
    """
    steps = config.measure.warmup_steps
    if not config.horovod.autotune or config.world_size < 2 or config.train is not None:
        return
    if steps < AUTOTUNE_STEPS and config.measure.instruments != ("timeline",):
        raise ValidationError(
            f"horovod.autotune: Horovod tries settings for {AUTOTUNE_STEPS:,} steps, and after "
            f"measure.warmup_steps: {steps} the window would measure them; set "
            f"measure.warmup_steps to {AUTOTUNE_STEPS} or more"
        )


def fixed_by(environ: Mapping[str, str]) -> list[str]:
    """Return the variables that keep the autotuner from choosing what it is there to choose."""
    return [KNOBS[name] for name in AUTOTUNED if KNOBS[name] in environ]


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


def check_free_to_choose(environ: Mapping[str, str], otherwise: str) -> None:
    """Raise ConfigError where ``fixed_by`` names a variable; ``otherwise`` is what else helps."""
    for name in fixed_by(environ)[:1]:
        raise ConfigError(
            f"environment: {name}={environ[name]} would keep Horovod's autotuner from choosing "
            f"it; unset it, or {otherwise}"
        )
