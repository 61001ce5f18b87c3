"""From one point to the command that starts its ranks: pure, one file a launcher.

``build`` looks at nothing but its arguments, so that a dry run prints exactly what a run starts,
and tests compare tokens. A new launcher is one file with a ``command`` function and one line below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from harness.config.models import RunConfig
from harness.detect import Machine
from harness.launch import horovodrun, inline, mpirun, srun, torchrun
from harness.launch.api import Command, Launch
from harness.legal import resolve
from harness.spec import Resolved

__all__ = ["Command", "LAUNCHERS", "Launch", "build"]

LAUNCHERS: Mapping[str, Callable[[Launch], Command]] = MappingProxyType(
    {
        "inline": inline.command,
        "horovodrun": horovodrun.command,
        "mpirun": mpirun.command,
        "srun": srun.command,
        "torchrun": torchrun.command,
    }
)


def build(
    config: RunConfig,
    machine: Machine,
    run_file: str,
    resolved: Resolved | None = None,
    *,
    timeout_s: float = 600.0,
    program: Sequence[str] = (),
) -> Command:
    """Return what starts the ranks of ``config`` on ``machine``; pure.

    ``run_file`` is the RunSpec that every rank reads. ``timeout_s`` is the launch's time limit:
    Horovod gives up on a missing rank before it. ``program`` replaces what follows the Python
    interpreter and its ``-P`` (``-m harness bench --run RUN_FILE``).

    Raises ValidationError where the point cannot run here, MissingDependencyError where the
    launcher is not on this machine.
    """
    decided = resolved if resolved is not None else resolve(config, machine)
    launch = Launch(
        config=config,
        machine=machine,
        resolved=decided,
        python=machine.python_by_backend.get(decided.backend or "", machine.python),
        program=tuple(program) or ("-m", "harness", "bench", "--run", run_file),
        run_file=run_file,
        timeout_s=timeout_s,
    )
    return LAUNCHERS[decided.launcher](launch)
