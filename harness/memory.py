"""What memory a process may still take on its host."""

from __future__ import annotations

from pathlib import Path

import psutil


def host_free_bytes(
    root: Path = Path("/sys/fs/cgroup"), self_file: str = "/proc/self/cgroup"
) -> int:
    """Return what this process may still take: of the host, and of its control groups (v2)."""
    free = int(psutil.virtual_memory().available)
    return min([free, *_group_free_bytes(root, Path(self_file))])


def host_total_bytes(
    root: Path = Path("/sys/fs/cgroup"), self_file: str = "/proc/self/cgroup"
) -> int:
    """Return the memory of the host, or of the smallest of its control groups (v2) over us."""
    limits = [_number(folder / "memory.max") for folder in _groups(root, Path(self_file))]
    return min([int(psutil.virtual_memory().total), *(n for n in limits if n is not None)])


def _group_free_bytes(root: Path, self_file: Path) -> list[int]:
    found = []
    for folder in _groups(root, self_file):
        limit, used = _number(folder / "memory.max"), _number(folder / "memory.current")
        if limit is not None and used is not None:
            found.append(max(0, limit - used + _cached(folder / "memory.stat")))
    return found


def _groups(root: Path, self_file: Path) -> list[Path]:
    """Return the control groups (v2) of this process, from its own up to ``root``."""
    try:
        lines = self_file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    name = next((line[3:] for line in lines if line.startswith("0::")), None)
    if name is None:  # version 1, whose limits Slurm and Docker no longer use by default
        return []
    own = root / name.lstrip("/")
    return [folder for folder in (own, *own.parents) if folder.is_relative_to(root)]


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
