"""Horovod's own launcher: over its Gloo rendezvous server, or over the MPI it was built with.

It hands its whole environment to the ranks (``gloo_run.py``; ``-x`` for each variable in
``mpi_run.py``), and under ``--gloo`` sets controller and CPU operations to Gloo itself. Hosts that
resolve to this machine need no ssh.
"""

from __future__ import annotations

from pathlib import Path

from harness.launch.api import Command, Launch
from harness.launch.environment import daemon_environment, rank_environment
from harness.launch.mpirun import openmpi_environment

# horovodrun finds "mpirun" by the PATH only, and the right one (that of Horovod's build) may be in
# an environment that is not activated. The PATH at run time is not known here, so a shell puts the
# folder in front of it; the arguments stay arguments.
_WITH_FOLDER_FIRST = 'PATH="$1:$PATH"; export PATH; shift; exec "$@"'


def command(launch: Launch) -> Command:
    """Return ``horovodrun`` with the controller that was decided."""
    env = rank_environment(launch)
    # Its cache under the home folder would carry answers from one launch to the next.
    argv = [*_program(launch), "--disable-cache", "-np", str(launch.resolved.world_size)]
    argv += ["-H", launch.host_counts]
    if launch.resolved.controller == "gloo":
        return Command((*argv, "--gloo", *launch.rank_argv), env)
    mpi = launch.mpi()
    env |= daemon_environment(launch)
    argv.append("--mpi")
    if mpi.flavour == "openmpi":
        # By itself it writes "-bind-to none", which Open MPI 5 takes for the program's name.
        argv.append("--binding-args=--bind-to none --map-by slot")
        env |= openmpi_environment(launch)
    shell = ["/bin/sh", "-c", _WITH_FOLDER_FIRST, "sh", str(Path(mpi.mpirun).parent)]
    return Command((*shell, *argv, *launch.rank_argv), env)


def _program(launch: Launch) -> tuple[str, ...]:
    """Return ``horovodrun`` as ``hvdrun`` starts it, in the environment that the ranks are of."""
    launch.launcher_path("horovodrun")  # its absence is told before anything starts
    return (launch.python, "-P", "-m", "harness.launch.hvdrun")
