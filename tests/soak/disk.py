"""A small disk of one's own, and a disk that is full."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SIZE = "6m"
_LEFT_BYTES = 300_000  # at most, of a disk that is called full
_FILLER = "filler"


@contextmanager
def small_disk(folder: Path, wanted: bool) -> Iterator[None]:
    """Mount a few megabytes at ``folder`` where ``wanted``."""
    folder.mkdir(parents=True)
    if not wanted:
        yield
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "soak", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def full_disk(folder: Path, wanted: bool, dice: random.Random) -> Iterator[None]:
    """Fill the small disk nearly, where ``wanted``; what filled it is removed afterwards."""
    if not wanted:
        yield
        return
    filler = folder / _FILLER
    free = shutil.disk_usage(folder).free
    filler.write_bytes(bytes(max(0, free - dice.randrange(_LEFT_BYTES))))
    try:
        yield
    finally:
        filler.unlink()
