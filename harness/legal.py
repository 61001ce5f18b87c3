"""The one table of what goes together, and the choice of what a config left open."""

from __future__ import annotations

from dataclasses import dataclass

from harness.config.models import LAUNCHERS, RunConfig
from harness.config.placement import CURE
from harness.detect import Host, Machine, Mpi
from harness.errors import ValidationError
from harness.spec import Resolved


class CombinationError(ValidationError):
    """An (engine, backend, controller, launcher, placement) that the table does not have.

    Multiplied axes make such points, so a sweep may leave them out; other faults it may not.
    """


@dataclass(frozen=True)
class Row:
    """One legal combination. The order in ``TABLE`` is preference where a column is left open."""

    engine: str
    backend: str | None
    controller: str | None
    launcher: str
    devices: tuple[str, ...] = ("cpu", "cuda")
    across_hosts: bool = True


_GPU = ("cuda",)

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
    # The Gloo controller needs horovodrun's rendezvous server, and Gloo's operations need the Gloo
    # controller: under the MPI controller a process set has no Gloo context (process_set.cc of
    # 0.28.1), and the first all-reduce crashes.
    Row("horovod", "gloo", "gloo", "horovodrun"),
    Row("horovod", "nccl", "mpi", "mpirun", _GPU),
    Row("horovod", "nccl", "mpi", "horovodrun", _GPU),
    Row("horovod", "nccl", "mpi", "srun", _GPU),
    Row("horovod", "nccl", "gloo", "horovodrun", _GPU),
    # torch's wheels have no MPI process group, so DDP has Gloo and NCCL.
    Row("ddp", "gloo", None, "torchrun", across_hosts=False),
    Row("ddp", "gloo", None, "srun"),
    Row("ddp", "nccl", None, "torchrun", _GPU, across_hosts=False),
    Row("ddp", "nccl", None, "srun", _GPU),
)

#: What an engine uses where the config names no backend.
_DEFAULT_BACKEND: dict[tuple[str, str], str | None] = {
    ("none", "cpu"): None,
    ("none", "cuda"): None,
    ("horovod", "cpu"): "mpi",
    ("horovod", "cuda"): "nccl",
    ("ddp", "cpu"): "gloo",
    ("ddp", "cuda"): "nccl",
}


def resolve(config: RunConfig, machine: Machine) -> Resolved:
    """Decide launcher, backend, controller, placement and cores; pure.

    Raises CombinationError where the combination is illegal, ValidationError where the machine is
    too small.
    """
    there = tuple(host for host in machine.hosts if host.slots > 0)
    # A misfit of engine and size is said before a misfit of size and machine.
    _check_single(config)
    slots = [host.slots for host in there]
    placement = config.placement.resolve(slots, config.placement_policy, _more_slots(machine))
    # Both policies, and an explicit placement, use the first hosts in order.
    hosts = there[: len(placement)]
    row = choose(config, machine, len(hosts))
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


def _more_slots(machine: Machine) -> str:
    """Return what to do where a machine has too few slots."""
    if machine.slurm is None:
        return CURE
    if not machine.slurm.job_id:  # a site's, before there is a job
        return "take a smaller placement, or a site with more (hvdscale site ls)"
    return "ask for fewer, or for whole nodes (--exclusive), more of them, or --ntasks-per-node"


def choose(config: RunConfig, machine: Machine, hosts: int = 1) -> Row:
    """Return the first row of ``TABLE`` that fits what the config names and the machine has.

    ``hosts`` is how many hosts the ranks are on. Raises CombinationError where there is no row.
    """
    _check_single(config)
    backend = config.backend or default_backend(config.engine, machine.device)
    of_engine = [r for r in TABLE if r.engine == config.engine and machine.device in r.devices]
    rows = [r for r in of_engine if r.backend == backend]
    if not rows:
        legal = sorted({r.backend or "none" for r in of_engine})
        raise CombinationError(
            f"engine {config.engine} has no backend {backend} on {_device(machine)}; "
            f"it has: {', '.join(legal)}{_why(config.engine, backend)}"
        )
    controller = config.horovod.controller
    fitting = [
        r
        for r in rows
        if config.launcher in (None, r.launcher) and controller in (None, r.controller)
    ]
    if not fitting:
        asked = [f"launcher {config.launcher}"] if config.launcher else []
        asked += [f"controller {controller}"] if controller else []
        default = "" if config.backend or backend is None else " (the default here)"
        raise CombinationError(
            f"engine {config.engine} with backend {backend}{default} cannot use "
            f"{' and '.join(asked)}; "
            f"it can use: {', '.join(sorted({_ways(r) for r in rows}))}"
        )
    wide = [r for r in fitting if hosts == 1 or r.across_hosts]
    if not wide:
        raise CombinationError(
            f"launcher {fitting[0].launcher} starts the ranks of one node, but placement "
            f"{config.placement} is on {hosts}; use launcher: srun inside a Slurm allocation"
        )
    if machine.outside:
        wide = _reaching(wide)
    return _preferred(wide, config, machine, hosts)


def default_backend(engine: str, device: str) -> str | None:
    """Return what an engine uses where the config names no backend."""
    return _DEFAULT_BACKEND[engine, device]


def cores_per_rank(config: RunConfig, placement: tuple[int, ...], hosts: tuple[Host, ...]) -> int:
    """Return the cores of one rank: at least 1.

    ``fixed``: a node's cores / its devices, the same at every N. ``share``: its cores / the ranks
    on it. The least over the nodes used, so that all ranks are alike.
    """
    if isinstance(config.cores_per_rank, int):
        return config.cores_per_rank
    divisors = placement if config.cores_per_rank == "share" else tuple(h.slots for h in hosts)
    shares = (host.cores // ranks for host, ranks in zip(hosts, divisors, strict=True))
    return max(1, min(shares))


def slurm_mpi_plugin(engine: str, mpi: Mpi | None) -> str:
    """Return what ``srun --mpi`` must be for the ranks' MPI; "none" for a run without MPI.

    Open MPI speaks PMIx only (4 and 5, as Debian and PyPI build them), MPICH and Intel MPI PMI-2.
    """
    if engine != "horovod":
        return "none"
    return "pmi2" if mpi is not None and mpi.flavour in ("mpich", "intel") else "pmix"


def is_here(launcher: str, machine: Machine) -> bool:
    """Say whether ``machine`` has what ``launcher`` is started by."""
    if launcher == "inline":
        return True
    if launcher == "torchrun":  # started as a module of torch
        return "torch" in machine.modules
    if launcher == "mpirun":
        return machine.mpi is not None
    return launcher in machine.launchers


def _check_single(config: RunConfig) -> None:
    if config.engine == "none" and config.world_size != 1:
        raise CombinationError(
            f"engine none is one device without distribution, but placement {config.placement} "
            "has more; leave it out with exclude: [{engine: none, placement: ...}]"
        )


def _reaching(rows: list[Row]) -> list[Row]:
    """Leave out what starts ranks on its own host, which is none of the allocation's."""
    found = [r for r in rows if r.launcher not in ("inline", "torchrun")]
    if not found:
        raise ValidationError(
            f"launcher {rows[0].launcher} starts ranks on the host it is on, and this one is none "
            "of the allocation's nodes; use launcher: srun, or a shell on a node (srun --pty bash)"
        )
    return found


def _preferred(rows: list[Row], config: RunConfig, machine: Machine, hosts: int) -> Row:
    """The site's; else the first that is here, and across an allocation's hosts srun where it can.

    It can where it speaks the ranks' MPI. A site's launcher that is not here is named as missing.
    """
    if machine.launcher is not None and machine.launcher not in LAUNCHERS:
        raise ValidationError(
            f"HVDSCALE_LAUNCHER: '{machine.launcher}' is none of: {', '.join(LAUNCHERS)}"
        )
    if machine.mpi is None:  # Gloo negotiates as well, where something else moves the bytes
        rows = [r for r in rows if r.controller != "mpi"] or rows
    of_site = next((r for r in rows if r.launcher == machine.launcher), None)
    if of_site is not None:
        return of_site
    there = [r for r in rows if is_here(r.launcher, machine)]
    if not there:
        return rows[0]  # validation names what is missing
    slurm = next((r for r in there if r.launcher == "srun"), None)
    if slurm is not None and (hosts > 1 or machine.outside) and _srun_works(slurm, machine):
        return slurm
    return next((r for r in there if r.launcher != "srun"), there[0])


def _srun_works(row: Row, machine: Machine) -> bool:
    plugin = slurm_mpi_plugin(row.engine, machine.mpi)
    return machine.slurm is not None and plugin in ("none", *machine.slurm.mpi_plugins)


def _ways(row: Row) -> str:
    return row.launcher + (f" with controller {row.controller}" if row.controller else "")


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
