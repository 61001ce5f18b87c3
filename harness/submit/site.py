"""What a cluster's partition is and wants: the part of a submission that no sweep knows.

A site stands for the machine on a login node, where nothing of it can be seen. Inside a job the
machine itself is looked at, and a launch that would then be decided otherwise is refused.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from harness.config.models import Count, Frozen, Natural
from harness.detect import LAUNCHERS, MODULES, Host, Machine, Mpi, Slurm

Backend = Literal["nccl", "mpi", "mpi-host", "gloo"]

_TIME = re.compile(r"(?:(\d{1,3})-)?(?:(\d{1,5}):)?(\d{1,4}):(\d{2})|(\d{1,6})", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def parse_time_s(value: object) -> int:
    """Read Slurm's own forms of a time, in seconds: minutes, mm:ss, hh:mm:ss, d-hh:mm:ss."""
    match = None if isinstance(value, bool) else _TIME.fullmatch(str(value).strip())
    if match is None:
        raise ValueError(f"{value!r} is not a time: write minutes, hh:mm:ss or d-hh:mm:ss")
    days, hours, minutes, seconds, alone = match.groups()
    if alone is not None:
        return 60 * int(alone)
    return ((24 * int(days or 0) + int(hours or 0)) * 60 + int(minutes)) * 60 + int(seconds)


def time_text(seconds: int) -> str:
    """Return a time as ``sbatch --time`` takes it, in whole minutes, rounded up."""
    minutes = -(-seconds // 60)
    days, hours = minutes // 1440, minutes // 60 % 24
    return f"{days}-{hours:02d}:{minutes % 60:02d}:00" if days else f"{hours}:{minutes % 60:02d}:00"


def _seconds(value: object) -> object:
    return value if value is None else parse_time_s(value)


def _positive(value: int) -> int:
    if value <= 0:
        raise ValueError("should be above 0")
    return value


def _one_line(value: str) -> str:
    if any(character in value for character in "\n\r\0"):
        raise ValueError("should be one line")
    return value


def _site_name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(f"'{value}' is no name: letters, digits, dot, dash and underscore")
    return value


def _variables(value: dict[str, str]) -> dict[str, str]:
    for name in value:
        if not _VARIABLE.fullmatch(name):
            raise ValueError(f"'{name}' is no name of a variable")
    return value


def _exact(seconds: int) -> str:
    # Not a number: that would be read as minutes again.
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


#: A time as Slurm writes it; kept in seconds.
Seconds = Annotated[
    int,
    BeforeValidator(_seconds),
    AfterValidator(_positive),
    PlainSerializer(_exact, return_type=str),
]
Line = Annotated[str, AfterValidator(_one_line)]


class Site(Frozen):
    """One partition of a cluster, and how its jobs are to be asked for and set up."""

    name: Annotated[str, AfterValidator(_site_name)]
    title: Line = ""
    partition: Line | None = None
    account: Line | None = None
    qos: Line | None = None
    constraint: Line | None = None
    nodes: Count  # the most that one job may have
    cpus_per_node: Count  # logical CPUs, as Slurm counts them
    gpus_per_node: Natural = 0
    gres: Line = "gpu"  # the name of a GPU in GRES: "gpu", "gpu:a100"
    exclusive: bool = True  # whole nodes: neighbours disturb what is measured
    memory: Line = "0"  # of a node, as ``--mem`` takes it; "0" is all
    launcher: Literal["srun", "mpirun", "horovodrun"] | None = "srun"
    mpi: Literal["openmpi", "mpich", "intel"] = "openmpi"  # the ranks', which srun is to speak
    mpi_is_cuda_aware: bool = False
    mpi_plugins: tuple[Line, ...] = ("pmix", "pmi2")  # what ``srun --mpi=list`` names there
    interface: Line | None = None  # that ranks meet over; None: the only one
    setup: tuple[str, ...] = ()  # lines of shell before anything: module load …
    environment: Annotated[dict[str, Line], AfterValidator(_variables)] = Field(
        default_factory=dict
    )
    python: Line | None = None  # interpreter of every rank; None: the one that submits
    python_by_backend: dict[Backend, Line] = Field(default_factory=dict)
    time_per_point: Seconds | None = None  # a launch with its start; None: estimated
    time_per_job: Seconds = 3600  # about what an element may take
    max_time: Seconds | None = None  # the partition's limit
    max_array_size: Count = 1001  # Slurm's default: indices up to 1000
    scratch: Line | None = None  # node-local folder for data, $VARIABLES are the node's
    data_dir: Line | None = None  # shared folder for data; None: the user's default
    options: tuple[Line, ...] = ()  # more options of sbatch, one each: "--reservation=bench"

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """Return what a rank drives there."""
        return "cuda" if self.gpus_per_node else "cpu"

    @property
    def devices_per_node(self) -> int:
        """Return how many ranks a node takes: its GPUs, else its CPUs."""
        return self.gpus_per_node or self.cpus_per_node

    def machine(self, python: str) -> Machine:
        """Return what an allocation of all ``nodes`` would look like from inside.

        ``python`` is the interpreter of ranks where the site names none. What is installed there
        cannot be known here, so everything is; a job that lacks it fails, and says so.
        """
        host = Host("", self.cpus_per_node, self.devices_per_node)
        return Machine(
            hosts=tuple(
                Host(f"node{number}", host.cores, host.slots) for number in range(self.nodes)
            ),
            device=self.device,
            python=self.python or python,
            mpi=Mpi(self.mpi, "", "mpirun", cuda_aware=self.mpi_is_cuda_aware),
            slurm=Slurm("", mpi_plugins=self.mpi_plugins),
            launchers={name: name for name in LAUNCHERS},
            modules=frozenset(MODULES),
            interfaces=(self.interface,) if self.interface else (),
            python_by_backend=dict[str, str](self.python_by_backend.items()),
            launcher=self.launcher,
        )
