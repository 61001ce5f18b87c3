"""What each node trains, and what starts the programs on the nodes; pure but for host names."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.config import RunConfig, Sweep
from harness.config.expand import expand
from harness.config.faults import validated
from harness.detect import Machine
from harness.errors import ValidationError
from harness.legal import is_here
from harness.submit.preflight.plan import Stage
from workloads import registry

_SAMPLES = {False: 20_000, True: 1_024}  # by whether they are images: enough for some batches
_LENGTH = 1_000_000  # of a synthetic text
_BATCH = {"cpu": 2, "cuda": 64}  # of images: a core takes seconds for a few
_MEASURE = {"warmup_steps": 4, "window_s": 5.0, "min_steps": 5, "instruments": []}


def trained_config(sweep: Sweep | None, workload: str | None, device: str) -> RunConfig:
    """Return what one device of each node trains, with engine none in torch.

    Of a sweep it is the first point's workload, batch size and execution; named, or without a
    sweep, a workload at its defaults: ``resnet`` on GPUs, where a small model would measure the
    host, and ``stress_strain`` on CPUs. The data are made smaller where they can be. ConfigError
    or WorkloadError where that is none.
    """
    if sweep is not None and workload is None:
        point = expand(sweep).points[0]
        name, options = point.workload.name, dict(point.workload.options)
        batch = point.rank_batch
        execution: dict[str, Any] = point.execution.model_dump()
    else:
        name = workload or ("resnet" if device == "cuda" else "stress_strain")
        info = registry.info(name)
        options, execution = {}, {}
        batch = _BATCH[device] if info.image_inputs else info.learning_rate_batch
    data = {
        "workload": {
            "name": name,
            "framework": "torch",
            **options,
            **_smaller(name, options, batch),
        },
        "engine": "none",
        "placement": "1x1",
        "batch_size": batch,
        "execution": execution,
        "measure": _MEASURE,
    }
    return validated(RunConfig, data, f"preflight of {name}")


def _smaller(name: str, options: Mapping[str, Any], batch: int) -> dict[str, int]:
    info = registry.info(name)
    asked = {"samples": max(_SAMPLES[info.image_inputs], 4 * batch), "length": _LENGTH}
    if "length" in info.options:
        asked["length"] = max(_LENGTH, 4 * batch * int(options.get("sequence", 1024)))
    found = {}
    for key, most in asked.items():
        option = info.options.get(key)
        if option is not None:
            found[key] = min(int(options.get(key, option.default)), most)
    return found


def starting_config(machine: Machine, nodes: Sequence[str], stage: Stage) -> RunConfig:
    """Return a point whose launch starts one program on each of ``nodes``.

    One node that is this one needs no launcher. Else what the site prefers, or srun, or the MPI's
    own; for the stage ``mpi`` as ranks of an MPI job. ValidationError where nothing can.
    """
    data: dict[str, Any] = {
        "workload": {"name": "stress_strain"},  # never loaded: only its launch is asked for
        "placement": f"{len(nodes)}x1",
        "cores_per_rank": "share",
        "batch_size": 1,
    }
    mpi = _MPI[machine.device]
    if stage == "mpi":
        preferred = {"launcher": "mpirun"} if machine.launcher == "mpirun" else {}
        return validated(RunConfig, data | mpi | preferred, "preflight")
    if len(nodes) == 1 and (machine.slurm is None or _is_here(nodes[0])):
        return validated(RunConfig, data | {"engine": "none", "launcher": "inline"}, "preflight")
    nccl = {"backend": "nccl"} if stage == "nccl" else {}  # its environment is then the campaign's
    ways = {
        "srun": {"engine": "ddp", "backend": "gloo", "launcher": "srun"},
        "mpirun": mpi | {"launcher": "mpirun"},
        "horovodrun": {"engine": "horovod", "backend": "gloo", "launcher": "horovodrun"},
    }
    first = [name for name in ways if name == machine.launcher]
    for name in (*first, *ways):
        if is_here(name, machine):
            return validated(RunConfig, data | ways[name] | nccl, "preflight")
    raise ValidationError(
        "preflight: neither srun, mpirun nor horovodrun is here to start a program on each node"
    )


_MPI: dict[str, dict[str, Any]] = {
    "cpu": {"engine": "horovod", "backend": "mpi", "horovod": {"controller": "mpi"}},
    "cuda": {"engine": "horovod", "backend": "mpi-host", "horovod": {"controller": "mpi"}},
}


def of_nodes(machine: Machine, nodes: Sequence[str]) -> Machine:
    """Return the machine with only these of its hosts."""
    return replace(machine, hosts=tuple(host for host in machine.hosts if host.name in nodes))


def no_mpi(machine: Machine) -> str:
    """Say why MPI cannot be measured between these nodes; "" where it can."""
    if "mpi4py" not in machine.modules:
        return "mpi: mpi4py is not installed"
    if machine.mpi is None:
        return "mpi: there is no mpirun here"
    if machine.launcher == "horovodrun":
        return "mpi: the site's launcher is horovodrun, which starts no MPI program of its own"
    return ""


def _is_here(node: str) -> bool:
    return node.partition(".")[0] == socket.gethostname().partition(".")[0]
