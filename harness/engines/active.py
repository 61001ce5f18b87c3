"""An option that is asked for is what runs: evidence for each, or a LaunchError.

What can be known before a launch is refused there (``harness.options``). This is the rest: what a
rank alone can see, once its engine stands. No framework in here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from harness import tuning
from harness.config.models import HorovodTuning
from harness.errors import LaunchError


@dataclass(frozen=True)
class Finding:
    """One option, as a config writes it, and what shows whether it is in force."""

    option: str
    active: bool
    evidence: str


@dataclass(frozen=True)
class HorovodRuntime:
    """What the running Horovod says of itself; ``nccl`` is 0 where it was built without."""

    size: int
    local_size: int
    nccl: int
    mpi: bool

    @classmethod
    def of(cls, hvd: Any) -> HorovodRuntime:
        """Ask ``horovod.torch`` or ``horovod.tensorflow``, once initialised."""
        return cls(
            int(hvd.size()), int(hvd.local_size()), int(hvd.nccl_built()), bool(hvd.mpi_enabled())
        )


def require(findings: Iterable[Finding]) -> dict[str, str]:
    """Return the evidence by option; raise LaunchError for the first that is not active."""
    found: dict[str, str] = {}
    for finding in findings:
        if not finding.active:
            raise LaunchError(
                f"{finding.option} was asked for, but is not active: {finding.evidence}"
            )
        found[finding.option] = finding.evidence
    return found


def of_horovod(
    wanted: HorovodTuning, runtime: HorovodRuntime, environ: Mapping[str, str]
) -> list[Finding]:
    """Return a finding for each knob that is not at its default, or not what was asked for.

    ``environ`` is that of this process when Horovod was initialised: a launcher that does not hand
    it on to the ranks leaves Horovod at its defaults, and says nothing.
    """
    ours, defaults = tuning.to_environment(wanted), tuning.to_environment(HorovodTuning())
    findings = []
    for field, name in tuning.KNOBS.items():
        if name not in ours:  # chosen at run time
            continue
        there = environ.get(name, defaults[name])
        if ours[name] != defaults[name] or there != ours[name]:
            option = f"horovod.{field}: {_written(getattr(wanted, field))}"
            origin = "" if name in environ else " (not set; Horovod's default)"
            findings.append(Finding(option, there == ours[name], f"{name}={there}{origin}"))
    return [*findings, *_autotune(wanted, environ), *_operations(wanted, runtime)]


def _autotune(wanted: HorovodTuning, environ: Mapping[str, str]) -> list[Finding]:
    """Say whether the autotuner runs, and what it may choose: a variable that is set fixes it."""
    there = environ.get(tuning.AUTOTUNE, "0")
    if not wanted.autotune and there == "0":
        return []
    fixed = tuning.fixed_by(environ)
    told = f"{tuning.AUTOTUNE}={there}, {', '.join(fixed) or 'nothing'} fixed by the environment"
    active = wanted.autotune and there == "1" and not fixed
    return [Finding(f"horovod.autotune: {_written(wanted.autotune)}", active, told)]


def _operations(wanted: HorovodTuning, runtime: HorovodRuntime) -> list[Finding]:
    """Say whether the operation that a flag is for has been made and is preferred.

    Horovod 0.28.1, ``operations.cc``: NCCL's hierarchical all-reduce is made where NCCL is built in
    and MPI enabled, the torus where NCCL is; both flags are dropped where all ranks are on a node.
    """
    if runtime.size == 1:
        return []
    nccl = bool(runtime.nccl)
    spread = runtime.size != runtime.local_size
    told = (
        f"NCCL {'built in' if nccl else 'not built in'}, MPI "
        f"{'enabled' if runtime.mpi else 'not enabled'}, {runtime.local_size} of {runtime.size} "
        "ranks on this node"
    )
    needed = {
        "async_completion": nccl,
        "hierarchical_allreduce": nccl and runtime.mpi and spread,
        "torus_allreduce": nccl and spread and not wanted.hierarchical_allreduce,
    }
    return [
        Finding(f"horovod.{field} (operation)", active, told)
        for field, active in needed.items()
        if getattr(wanted, field)
    ]


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
