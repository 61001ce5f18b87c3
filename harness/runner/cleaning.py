"""Data that was copied to the nodes of a job, removed again when the job's launches are over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from harness import scratch, slurm
from harness.detect import Machine
from harness.errors import HarnessError
from harness.runner.progress import Report


@contextmanager
def cleaned(machine: Machine, report: Report) -> Iterator[None]:
    """Remove a job's scratch on all its nodes at the end; what cannot be removed is told.

    Outside a batch system the folder is the user's, and serves the next sweep as well.
    """
    try:
        yield
    finally:
        folder = scratch.asked_for(os.environ)
        if folder is not None and machine.slurm is not None:
            try:
                _clean(machine, folder)
            except (HarnessError, OSError) as error:
                report.note(f"scratch {folder} was not removed everywhere: {error}")


def _clean(machine: Machine, folder: str) -> None:
    if len(machine.hosts) == 1 and not machine.outside:
        scratch.remove_scratch(scratch.folder_here(folder, os.environ))
        return
    program = (machine.python, "-P", "-m", "harness.scratch", "clean")
    slurm.on_every_node(len(machine.hosts), program)
