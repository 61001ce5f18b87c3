"""The shared libraries of this process, and nothing that would load another one."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

_DELETED = " (deleted)"


def loaded_libraries(*stems: str) -> dict[str, str]:
    """Return stem → the first mapped shared library whose file name begins with it."""
    return {stem: paths[0] for stem in stems if (paths := mapped_files([stem]))}


def mapped_files(stems: Iterable[str]) -> list[str]:
    """Return all files mapped into this process whose name begins with one of ``stems``."""
    begins = tuple(stems)
    found: dict[str, None] = {}
    with open(f"/proc/{os.getpid()}/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = line.rstrip("\n").split(maxsplit=5)[-1].removesuffix(_DELETED)
            if os.path.basename(path).startswith(begins):
                found.setdefault(path)
    return list(found)


def opened(path: str) -> ctypes.CDLL:
    """Return a library that is loaded already; OSError where it is not, never a second copy."""
    try:
        return ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError as error:  # dlopen names neither the file nor a reason
        raise OSError(f"{path} is not loaded in this process: {error}") from None
