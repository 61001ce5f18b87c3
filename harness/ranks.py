"""Which rank this process is, from the environment that its launcher made.

Needed before a framework is imported: to name the log, and to take cores. The engine's own runtime
has the last word on rank and size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class RankPlace:
    """Where a launcher put this process."""

    launcher: str
    rank: int
    size: int
    local_rank: int
    local_size: int = 0  # ranks on this host; 0 where the launcher does not tell


# In the order of asking: horovodrun --mpi and torchrun under srun set an outer launcher's variables
# too, and the innermost one is right. Under mpirun inside a Slurm job SLURM_LOCALID is 0 on every
# rank, so Slurm comes last.
_VARIABLES: tuple[tuple[str, str, str, str, str], ...] = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    (
        "mpirun",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
)


def find_place(environ: Mapping[str, str]) -> RankPlace | None:
    """Return this process's place, or None where no launcher started it."""
    for launcher, *names in _VARIABLES:
        rank, size, local_rank, local_size = (environ.get(name, "") for name in names)
        if rank.isdigit() and size.isdigit():
            local = int(local_rank) if local_rank.isdigit() else 0
            here = int(local_size) if local_size.isdigit() else 0
            return RankPlace(launcher, int(rank), int(size), local, here)
    return None
