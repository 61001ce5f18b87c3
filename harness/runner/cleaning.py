"""Data that was copied to the nodes of a job, removed again when the job's launches are over.

Several runners may be in one job at once (``run A & run B &``, ``srun -N2 hvdscale run``), and all
read the same scratch: the last one removes it. While it runs, each has a marker in the data folder,
which every node sees and no lock is needed for::

    <data>/.hvdscale-runners/<allocation>/<host>-<pid>-<random>

A runner that was killed leaves its marker, and nobody can tell from another node that it is gone:
then this start of the job removes no scratch, and it stays until the site's epilog. So it does
where no marker can be made. A runner that begins at the very moment in which the last one removes
the scratch may have a launch that fails for it, as a record, which the next run does again.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness import scratch, slurm
from harness.detect import Machine
from harness.errors import HarnessError, StoreError
from harness.paths import default_data_dir
from harness.runner.progress import Report

_RUNNERS = ".hvdscale-runners"
_TRIES = 20  # each is lost only to a runner that ends in the same moment
_NOT_EMPTY = (errno.ENOTEMPTY, errno.EEXIST)  # POSIX leaves the choice


@contextmanager
def cleaned(machine: Machine, report: Report, data_dir: Path | None = None) -> Iterator[None]:
    """Remove a job's scratch on all its nodes at the end of its last runner; tell what cannot be.

    ``data_dir`` is the data folder of this runner. Outside a batch system the scratch is the
    user's, and serves the next sweep as well.
    """
    folder = scratch.asked_for(os.environ)
    if folder is None or machine.slurm is None:
        yield
        return
    marker = _marked(machine, data_dir, folder, report)
    try:
        yield
    finally:
        try:
            if marker is not None and _was_last(marker):
                _clean(machine, folder)
        except (HarnessError, OSError) as error:
            report.note(f"scratch {folder} was not removed everywhere: {error}")


def _marked(machine: Machine, data_dir: Path | None, folder: str, report: Report) -> Path | None:
    """Return this runner's marker; None, which is told, where none can be made."""
    try:
        return _mark(data_dir or default_data_dir(), machine.allocation)
    except (HarnessError, OSError) as error:
        report.note(
            f"scratch {folder} will not be removed: other runners of this job could not be told "
            f"that it is in use: {error}"
        )
        return None


def _mark(data_dir: Path, allocation: str) -> Path:
    # Of each start of the job: what a start before left says nothing of this one.
    folder = data_dir / _RUNNERS / _name(allocation)
    marker = folder / f"{_name(socket.gethostname())}-{os.getpid()}-{secrets.token_hex(4)}"
    for _ in range(_TRIES):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            marker.touch(exist_ok=False)
        except FileNotFoundError:  # who was the last has just removed the folder
            continue
        return marker
    raise StoreError(f"{folder}: disappears again and again")


def _was_last(marker: Path) -> bool:
    """Take a marker away; say whether no other was left, to one runner only."""
    marker.unlink(missing_ok=True)
    try:
        marker.parent.rmdir()
    except FileNotFoundError:
        return False  # another one ended in the same moment, and it was the last
    except OSError as error:
        if error.errno in _NOT_EMPTY:
            return False
        raise
    return True


def _name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)


def _clean(machine: Machine, folder: str) -> None:
    if len(machine.hosts) == 1 and not machine.outside:
        scratch.remove_scratch(scratch.folder_here(folder, os.environ))
        return
    program = (machine.python, "-P", "-m", "harness.scratch", "clean")
    slurm.on_every_node(len(machine.hosts), program)
