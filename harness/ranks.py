"""Which rank this process is, from the environment that its launcher made.

Needed before a framework is imported: to name the log, and to take cores. The engine's own runtime
has the last word on rank and size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.detect import parse_counts
from harness.digits import whole


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
    # The number of a step's tasks, not of the job's: a batch script is no rank, and has the latter.
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
)


#: What a launcher sets for each rank, and nothing outside may have set for all of them. Slurm's and
#: PMI's are not here: a batch system's are about the job as well.
_OF_RANKS = frozenset(
    name for _, *names in _VARIABLES for name in names if not name.startswith(("SLURM_", "PMI_"))
) - {""}


def without_place(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without another launch's ranks, for a launcher that starts a new one.

    Many a job's script exports RANK and LOCAL_RANK. Handed on by a launcher that sets others, they
    would tell all ranks the same: one log for all, and the same cores.
    """
    return {name: value for name, value in environ.items() if name not in _OF_RANKS}


def find_place(environ: Mapping[str, str]) -> RankPlace | None:
    """Return this process's place, or None where no launcher started it."""
    for launcher, *names in _VARIABLES:
        numbers = [_number(environ.get(name, "")) for name in names]
        rank, size, local_rank, local_size = numbers
        # All three, because srun --mpi=pmi2 sets PMI_RANK and PMI_SIZE too, and no local rank.
        if rank is None or size is None or local_rank is None:
            continue
        if launcher == "srun":
            local_size = _slurm_local_size(environ)
        return RankPlace(launcher, rank, size, local_rank, local_size or 0)
    return None


def _number(text: str) -> int | None:
    return whole(text)


def _slurm_local_size(environ: Mapping[str, str]) -> int | None:
    """Return the step's tasks on this node, from "2(x2),1" and the node's place in it."""
    counts = parse_counts(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    node = _number(environ.get("SLURM_NODEID", ""))
    return counts[node] if node is not None and node < len(counts) else None
