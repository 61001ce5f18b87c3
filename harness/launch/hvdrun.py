"""``horovodrun`` without its question to the frameworks; a program, imported by nothing.

Before it starts the ranks, ``horovodrun`` imports TensorFlow or torch in a process of its own, only
to ask what Horovod was built with: two to five seconds of every launch. A build that
``hvdscale build-horovod`` has proven says so in a file beside it. With another build the question
is put as ever.
"""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace

from horovod.runner import gloo_run, launch, mpi_run
from horovod.runner.common.util import env

from harness.detect import exported_names, read_build_marker
from harness.provenance.environ import is_secret

_OF_THE_JOB = re.compile(r"SLURM_(JOB|ARRAY|CLUSTER|RESTART|CPUS|NNODES|NTASKS)\w*")


def answer_from_marker() -> None:
    """Let the launcher know what is known of a proven build."""
    marker = read_build_marker()
    if not marker.get("proven"):
        return
    mpi = marker.get("mpi") is not None
    launch.gloo_built = lambda verbose=False: True  # the builder makes none without it
    launch.mpi_built = lambda verbose=False: mpi


def keep_secrets() -> None:
    """Let no command of the launcher's have variables that its rank does not need."""
    gloo_run.env_util = SimpleNamespace(is_exportable=_is_handed_on)


def keep_commands() -> None:
    """Let no name of a variable become a command: mpirun's line goes to a shell as it is."""
    mpi_run.env_util = SimpleNamespace(is_exportable=_is_name)


def _is_name(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None and bool(
        env.is_exportable(name)
    )


def _is_handed_on(name: str) -> bool:
    known = exported_names({name: ""}) or _OF_THE_JOB.fullmatch(name)
    return bool(known) and bool(env.is_exportable(name)) and not is_secret(name)


if __name__ == "__main__":
    answer_from_marker()
    keep_secrets()
    keep_commands()
    sys.exit(launch.run_commandline())
