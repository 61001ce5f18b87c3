"""What a launcher is given and what it returns."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from harness.config.models import RunConfig
from harness.detect import Machine, Mpi
from harness.errors import MissingDependencyError
from harness.spec import Resolved


@dataclass(frozen=True)
class Command:
    """One process to start, whose descendants are the ranks."""

    argv: tuple[str, ...]
    env: Mapping[str, str]  # what is added to the inherited environment

    def __str__(self) -> str:
        """Return the command as a line that a POSIX shell runs unchanged."""
        added = [f"{name}={shlex.quote(value)}" for name, value in sorted(self.env.items())]
        return " ".join([*added, shlex.join(self.argv)])


@dataclass(frozen=True)
class Launch:
    """One launch with everything decided."""

    config: RunConfig
    machine: Machine
    resolved: Resolved
    python: str  # interpreter of every rank
    program: tuple[str, ...]  # what follows the interpreter
    run_file: str
    timeout_s: float

    @property
    def rank_argv(self) -> tuple[str, ...]:
        """Return the command of one rank.

        -P: what lies in the working folder is no module of ours, whatever its name.
        """
        return (self.python, "-P", *self.program)

    @property
    def one_host(self) -> bool:
        """Say whether all ranks are on one host."""
        return len(self.resolved.placement) == 1

    @property
    def here(self) -> bool:
        """Say whether all ranks are on the host of the process that starts them."""
        return self.one_host and not self.machine.outside

    @property
    def even(self) -> bool:
        """Say whether every host has as many ranks as the others."""
        return len(set(self.resolved.placement)) == 1

    @property
    def host_names(self) -> tuple[str, ...]:
        """Return the hosts as a launcher is told them.

        "localhost" resolves where a machine's own name may not (containers); a launcher that cannot
        resolve a name takes it for a remote one.
        """
        return ("localhost",) if self.here else self.resolved.hosts

    @property
    def host_counts(self) -> str:
        """Return the hosts with their ranks, "a:8,b:2"."""
        pairs = zip(self.host_names, self.resolved.placement, strict=True)
        return ",".join(f"{name}:{ranks}" for name, ranks in pairs)

    def launcher_path(self, name: str) -> str:
        """Return the path of a launcher; MissingDependencyError where it is not here."""
        path = self.machine.launchers.get(name)
        if path is None:
            raise MissingDependencyError(f"launcher {name} is not on this machine's PATH")
        return path

    def mpi(self) -> Mpi:
        """Return the machine's MPI; MissingDependencyError where there is none."""
        if self.machine.mpi is None:
            raise MissingDependencyError(
                f"launcher {self.resolved.launcher} needs an MPI, and none was found"
            )
        return self.machine.mpi
