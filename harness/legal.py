"""The one table of what goes together, and the choice of what a config left open."""

from __future__ import annotations

from dataclasses import dataclass

from harness.config.models import RunConfig
from harness.detect import Host, Machine
from harness.errors import ValidationError
from harness.spec import Resolved


@dataclass(frozen=True)
class Row:
    """One legal combination. Order in ``TABLE`` is preference where a config leaves a column open."""

    engine: str
    backend: str | None
    controller: str | None
    launcher: str
    devices: tuple[str, ...] = ("cpu", "cuda")


_BOTH = ("cpu", "cuda")
_GPU = ("cuda",)
_CPU = ("cpu",)

TABLE: tuple[Row, ...] = (
    Row("none", None, None, "inline"),
    Row("none", None, None, "srun"),
    # Horovod's MPI operations need its MPI controller: the communicator is the controller's.
    Row("horovod", "mpi", "mpi", "mpirun"),
    Row("horovod", "mpi", "mpi", "horovodrun"),
    Row("horovod", "mpi", "mpi", "srun"),
    Row("horovod", "mpi-host", "mpi", "mpirun", _GPU),
    Row("horovod", "mpi-host", "mpi", "horovodrun", _GPU),
    Row("horovod", "mpi-host", "mpi", "srun", _GPU),
    # The Gloo controller needs horovodrun's rendezvous server.
    Row("horovod", "gloo", "gloo", "horovodrun"),
    # Gloo's operations over the MPI controller: MPI negotiates, Gloo moves the bytes.
    Row("horovod", "gloo", "mpi", "mpirun"),
    Row("horovod", "gloo", "mpi", "srun"),
    Row("horovod", "nccl", "mpi", "mpirun", _GPU),
    Row("horovod", "nccl", "mpi", "horovodrun", _GPU),
    Row("horovod", "nccl", "mpi", "srun", _GPU),
    Row("horovod", "nccl", "gloo", "horovodrun", _GPU),
    # torch's wheels have no MPI process group, so DDP has Gloo and NCCL.
    Row("ddp", "gloo", None, "torchrun"),
    Row("ddp", "gloo", None, "srun"),
    Row("ddp", "nccl", None, "torchrun", _GPU),
    Row("ddp", "nccl", None, "srun", _GPU),
)

#: What each engine can do beside the plain fp32 step.
_DEFAULT_BACKEND = {("horovod", "cuda"): "nccl", ("horovod", "cpu"): "mpi", ("ddp", "cuda"): "nccl"}


def resolve(config: RunConfig, machine: Machine) -> Resolved:
    """Decide launcher, backend, controller, placement and cores; pure.

    Raises ValidationError where the combination is illegal or the machine too small.
    """
    row = choose(config, machine)
    slots = [host.slots for host in machine.hosts]
    placement = config.placement.resolve(slots, config.placement_policy)
    hosts = _hosts_used(config, placement, machine)
    cores = cores_per_rank(config, placement, hosts)
    fits = all(n * cores <= host.cores for n, host in zip(placement, hosts, strict=True))
    return Resolved(
        launcher=row.launcher,
        backend=row.backend,
        controller=row.controller,
        placement=placement,
        hosts=tuple(host.name for host in hosts),
        device="cuda" if machine.device == "cuda" else "cpu",
        cores_per_rank=cores,
        bind=fits,
    )


def choose(config: RunConfig, machine: Machine) -> Row:
    """Return the first row of ``TABLE`` that fits what the config names and the machine has."""
    if config.engine == "none" and config.world_size != 1:
        raise ValidationError(
            f"engine none is one device without distribution, but placement {config.placement} "
            "has more; leave it out with exclude: [{engine: none, placement: ...}]"
        )
    backend = config.backend or default_backend(config.engine, machine.device)
    rows = [r for r in TABLE if r.engine == config.engine and r.backend == backend]
    rows = [r for r in rows if machine.device in r.devices]
    if not rows:
        legal = sorted({r.backend or "none" for r in TABLE if r.engine == config.engine
                        and machine.device in r.devices})
        raise ValidationError(
            f"engine {config.engine} has no backend {backend} on {_device(machine)}; "
            f"it has: {', '.join(legal)}{_why(config.engine, backend)}"
        )
    controller = config.horovod.controller
    fitting = [r for r in rows if config.launcher in (None, r.launcher)]
    fitting = [r for r in fitting if controller in (None, r.controller)]
    if not fitting:
        legal = sorted({f"{r.launcher}" + (f" with controller {r.controller}" if r.controller
                        else "") for r in rows})
        asked = [f"launcher {config.launcher}"] if config.launcher else []
        asked += [f"controller {controller}"] if controller else []
        raise ValidationError(
            f"engine {config.engine} with backend {backend} cannot use {' and '.join(asked)}; "
            f"it can use: {', '.join(legal)}"
        )
    return _preferred(fitting, config, machine)


def default_backend(engine: str, device: str) -> str | None:
    """Return what an engine uses where the config names no backend."""
    if engine == "none":
        return None
    return _DEFAULT_BACKEND.get((engine, device), "gloo")


def cores_per_rank(config: RunConfig, placement: tuple[int, ...], hosts: tuple[Host, ...]) -> int:
    """Return the cores of one rank: at least 1.

    ``fixed``: a node's cores / its devices, the same at every N. ``share``: its cores / the ranks on
    it. The least over the nodes used, so that all ranks are alike.
    """
    if isinstance(config.cores_per_rank, int):
        return config.cores_per_rank
    divisors = placement if config.cores_per_rank == "share" else tuple(h.slots for h in hosts)
    shares = (host.cores // ranks for host, ranks in zip(hosts, divisors, strict=True))
    return max(1, min(shares))


def _hosts_used(
    config: RunConfig, placement: tuple[int, ...], machine: Machine
) -> tuple[Host, ...]:
    if config.placement.devices:
        return machine.hosts[: len(placement)]
    if config.placement_policy == "spread":
        used = min(len(machine.hosts), config.placement.count)
        return machine.hosts[:used]
    return machine.hosts[: len(placement)]


def _preferred(rows: list[Row], config: RunConfig, machine: Machine) -> Row:
    """Inside an allocation of several nodes srun is first, if its MPI plugin speaks our MPI's."""
    there = [r for r in rows if r.launcher == "inline" or r.launcher in machine.launchers]
    if not there:
        return rows[0]  # validate names the launcher that is missing
    outside = [r for r in there if r.launcher != "srun"]
    if machine.slurm is None or not _srun_fits(machine):
        return (outside or there)[0]
    if config.launcher is None and len(machine.hosts) > 1:
        return next((r for r in there if r.launcher == "srun"), there[0])
    return (outside or there)[0]


def _srun_fits(machine: Machine) -> bool:
    return machine.slurm is not None and "pmix" in " ".join(machine.slurm.mpi_plugins)


def _device(machine: Machine) -> str:
    return "a GPU" if machine.device == "cuda" else "a CPU"


def _why(engine: str, backend: str | None) -> str:
    if engine == "ddp" and backend in ("mpi", "mpi-host"):
        return " (torch's wheels have no MPI process group)"
    if backend == "nccl":
        return " (NCCL moves GPU memory only)"
    if backend == "mpi-host":
        return " (mpi-host stages GPU tensors; on a CPU the backend is mpi)"
    return ""
