"""Whether the buffers fit, before the first is made: the kernel would end a rank, not say so."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from harness.collectives.api import Control
from harness.collectives.sizes import size_text
from harness.errors import ValidationError

#: Buffers of the full size that a rank holds at once: its own, and the copy that a library makes
#: (a result of Horovod's, a work buffer of MPI's).
_HELD = {
    "all_reduce": 2,
    "broadcast": 2,
    "all_gather": 3,
    "reduce_scatter": 3,
    "all_to_all": 3,
    "send_recv": 3,
    "barrier": 0,
}
_SPARE_BYTES = 256 << 20  # of a rank, for what libraries have already: fusion buffer, channels
_GIB = 1 << 30


def shortage(
    collectives: Sequence[str], largest_bytes: int, control: Control, device: Any
) -> ValidationError | None:
    """Return why the largest size does not fit on this rank's host or GPU; None where it does.

    Called by all ranks: they tell each other where they are.
    """
    collective = max(collectives, key=lambda name: _HELD[name])
    here = socket.gethostname()
    ranks = control.gather(here).count(here)
    if device.type == "cuda":
        import torch

        free_bytes, owner = torch.cuda.mem_get_info(device)[0], f"GPU {device.index} of {here}"
        ranks = 1
    else:
        free_bytes, owner = host_free_bytes(), here
    return judge(collective, largest_bytes, ranks, free_bytes, owner)


def judge(
    collective: str, largest_bytes: int, ranks: int, free_bytes: int, owner: str
) -> ValidationError | None:
    """Return an error where ``ranks`` ranks' buffers exceed ``free_bytes``; pure."""
    held = _HELD[collective]
    needed = ranks * held * largest_bytes
    if not held or needed <= free_bytes - ranks * _SPARE_BYTES:
        return None
    fitting = (free_bytes - ranks * _SPARE_BYTES) // (ranks * held)
    hint = (
        f"end --sizes at {size_text(1 << (fitting.bit_length() - 1))}"
        if fitting >= 4
        else "free some, or use fewer ranks"
    )
    return ValidationError(
        f"--sizes: {collective} of {size_text(largest_bytes)} holds {held} buffers a rank, "
        f"{needed / _GIB:.1f} GiB for {ranks} on {owner}, which has {free_bytes / _GIB:.1f} GiB "
        f"free: {hint}"
    )


def host_free_bytes(
    root: Path = Path("/sys/fs/cgroup"), self_file: str = "/proc/self/cgroup"
) -> int:
    """Return what this process may still take: of the host, and of its control groups (v2)."""
    free = int(psutil.virtual_memory().available)
    return min([free, *_group_free_bytes(root, Path(self_file))])


def _group_free_bytes(root: Path, self_file: Path) -> list[int]:
    try:
        lines = self_file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    name = next((line[3:] for line in lines if line.startswith("0::")), None)
    if name is None:  # version 1, whose limits Slurm and Docker no longer use by default
        return []
    found = []
    folder = root / name.lstrip("/")
    while folder.is_relative_to(root):
        limit, used = _number(folder / "memory.max"), _number(folder / "memory.current")
        if limit is not None and used is not None:
            found.append(max(0, limit - used + _cached(folder / "memory.stat")))
        folder = folder.parent
    return found


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None  # "max": no limit


def _cached(path: Path) -> int:
    """Return the bytes of files that the kernel would give back."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    pairs = dict(line.split(maxsplit=1) for line in lines if " " in line)
    return int(pairs.get("inactive_file", "0"))
