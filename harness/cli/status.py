"""``hvdscale status``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.listing import sweep_folder, sweep_folders
from harness.errors import StoreError

if TYPE_CHECKING:
    from harness.submit.status import Scheduler, SweepStatus


def command_status(sweep: str | None, results: Path, as_json: bool, verbose: bool) -> int:
    """Print the status of a sweep, or of all below ``results``.

    The exit code is 1 where a point failed, or its job never starts, and nothing is queued for it.
    Of several sweeps, one that cannot be read is named with its fault, and the exit code is 1.
    """
    from harness.submit.status import AskSlurm, sweep_status

    slurm = AskSlurm()
    if sweep is not None:
        found = [sweep_status(sweep_folder(sweep, results), slurm)]
        faults: list[tuple[Path, StoreError]] = []
    else:
        found, faults = _all(sweep_folders(results), slurm)
    if as_json:
        rows = [one.as_dict() for one in found]
        rows += [{"name": p.name, "path": str(p), "error": str(error)} for p, error in faults]
        print(json.dumps(rows, indent=1))
    else:
        for one in found:
            print(_text(one, verbose, alone=sweep is not None))
        for path, error in faults:
            print(f"{path.name}: cannot be read: {error}")
    return max([int(bool(faults)), *(one.exit_code for one in found)])


def _all(
    folders: list[Path], slurm: Scheduler
) -> tuple[list[SweepStatus], list[tuple[Path, StoreError]]]:
    from harness.submit.status import sweep_status

    found, faults = [], []
    for folder in folders:
        try:
            found.append(sweep_status(folder, slurm))
        except StoreError as error:
            faults.append((folder, error))
    return found, faults


def _text(status: SweepStatus, verbose: bool, *, alone: bool) -> str:
    """Return the whole status; of one sweep among several that is over, a line."""
    from harness.submit.status.text import headline, render

    over = sum(status.counts().values()) == status.counts()["done"]
    if over and not alone and not verbose and not status.notes:
        return headline(status)
    return render(status, verbose=verbose)
