"""``mpirun`` of Open MPI 4 and 5, MPICH and Intel MPI.

MPI's binding is off on purpose: every rank binds itself, alike under all launchers. Ranks fill the
hosts in order, as the placement says. On other hosts an MPI starts a daemon, through ``srun`` in an
allocation of Slurm and through ``ssh`` elsewhere, and ranks have that daemon's environment: MPICH
and Intel MPI hand all of their own on (``-genvall``), Open MPI what it is told.
"""

from __future__ import annotations

from collections.abc import Iterable

from harness.errors import ValidationError
from harness.launch.api import Command, Launch
from harness.launch.environment import daemon_environment, rank_environment
from harness.processes import MARKER


def command(launch: Launch) -> Command:
    """Return the ``mpirun`` of the machine's MPI, in that MPI's own syntax."""
    flavour = launch.mpi().flavour
    if flavour == "openmpi":
        return _openmpi(launch)
    if flavour == "mpich":
        return _mpich(launch)
    if flavour == "intel":
        return _intel(launch)
    raise ValidationError(
        f"launcher mpirun: {launch.mpi().mpirun} is neither Open MPI, MPICH nor Intel MPI "
        f"(it says: {launch.mpi().library or 'nothing'}); put one of those first on the PATH"
    )


def openmpi_environment(launch: Launch) -> dict[str, str]:
    """Return what Open MPI's ranks need where there are more of them than cores.

    Hosts are given with as many slots as ranks, so Open MPI does not notice, and a rank that waits
    would spin on a core that the awaited one needs.
    """
    return {} if launch.resolved.bind else {"OMPI_MCA_mpi_yield_when_idle": "1"}


def _openmpi(launch: Launch) -> Command:
    mpi = launch.mpi()
    env = rank_environment(launch) | openmpi_environment(launch)
    argv = [mpi.mpirun]
    if launch.machine.euid == 0:
        argv.append("--allow-run-as-root")
    argv += ["-np", str(launch.resolved.world_size), "--host", launch.host_counts]
    argv += ["--bind-to", "none"]
    if launch.resolved.bind:
        argv += ["--map-by", "slot"]
    elif mpi.major >= 5:
        argv += ["--map-by", "slot:OVERSUBSCRIBE"]  # the modifier of PRRTE, its run-time
    else:
        argv += ["--map-by", "slot", "--oversubscribe"]
    # What is new here, and on other hosts what these ranks have without being told.
    names = {*env} if launch.here else {*env, *launch.machine.exported, MARKER}
    return Command((*argv, *_exports(names), *launch.rank_argv), env | daemon_environment(launch))


def _exports(names: Iterable[str]) -> list[str]:
    return [token for name in sorted(names) for token in ("-x", name)]


def _mpich(launch: Launch) -> Command:
    env = rank_environment(launch) | daemon_environment(launch)
    argv = [launch.mpi().mpirun, "-genvall", "-n", str(launch.resolved.world_size)]
    argv += ["-hosts", launch.host_counts, "-bind-to", "none"]
    return Command((*argv, *launch.rank_argv), env)


def _intel(launch: Launch) -> Command:
    """Intel's ``-hosts`` has no counts: equal ones go by ``-ppn``, others by argument sets."""
    env = rank_environment(launch) | daemon_environment(launch) | {"I_MPI_PIN": "off"}
    argv = [launch.mpi().mpirun, "-genvall"]
    if launch.even:
        argv += ["-hosts", ",".join(launch.host_names), "-ppn", str(launch.resolved.placement[0])]
        argv += ["-n", str(launch.resolved.world_size), *launch.rank_argv]
        return Command(tuple(argv), env)
    for host, ranks in zip(launch.host_names, launch.resolved.placement, strict=True):
        separator = [":"] if "-host" in argv else []
        argv += [*separator, "-host", host, "-n", str(ranks), *launch.rank_argv]
    return Command(tuple(argv), env)
