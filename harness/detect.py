"""What this machine or allocation has. Never part of a RunConfig or of its id.

A ``Machine`` is plain data: pure functions (validation, launch commands) take it, and tests write
one down by hand. Only ``detect_machine`` looks at the world.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Host:
    """One node: its name, the logical CPUs this process may use, and how many ranks it takes."""

    name: str
    cores: int
    slots: int  # devices: GPUs where there are any, else CPU slots (one a core unless told)


@dataclass(frozen=True)
class Mpi:
    """The MPI that an ``mpirun`` belongs to."""

    flavour: str  # "openmpi" | "mpich" | "intel" | "unknown"
    version: str  # "5.0.11"
    mpirun: str  # absolute path
    library: str = ""  # first line of what the launcher calls itself
    cuda_aware: bool = False
    source: str = "system"  # "system" | "wheel" (inside this Python's environment)

    @property
    def major(self) -> int:
        """Return the major version, 0 where it is unknown."""
        head = self.version.split(".", 1)[0]
        return int(head) if head.isdigit() else 0


@dataclass(frozen=True)
class Slurm:
    """The allocation this process runs in."""

    job_id: str
    version: str = ""
    array_job_id: str = ""
    array_task_id: str = ""
    partition: str = ""
    mpi_plugins: tuple[str, ...] = ()  # what ``srun --mpi=list`` names


@dataclass(frozen=True)
class Machine:
    """Everything about the place of a run that launching and validating need."""

    hosts: tuple[Host, ...]
    device: str  # "cpu" | "cuda"
    python: str = sys.executable
    mpi: Mpi | None = None
    slurm: Slurm | None = None
    launchers: Mapping[str, str] = field(default_factory=dict)  # name -> absolute path
    modules: frozenset[str] = frozenset()  # importable: torch, tensorflow, horovod, mpi4py
    interfaces: tuple[str, ...] = ()  # network interfaces that are up, without loopback
    euid: int = field(default_factory=os.geteuid)
    python_by_backend: Mapping[str, str] = field(default_factory=dict)

    @property
    def slots(self) -> int:
        """Return how many ranks fit on all hosts together."""
        return sum(host.slots for host in self.hosts)
