"""The NCCL in this process: what is loaded, not what something was built with."""

from __future__ import annotations

import ctypes
from typing import Any

from harness.provenance.libraries import mapped_files, opened
from harness.provenance.notes import UnknownError

STEM = "libnccl.so"


def collect() -> dict[str, Any]:
    """Return version and path of the loaded NCCL; nothing without one.

    With two of them loaded (a framework's, and another that Horovod is linked to) the second is
    under ``others``: which one a call goes to is the loader's choice.
    """
    found = [{"version": version_of(path), "path": path} for path in mapped_files([STEM])]
    if not found:
        return {}
    return found[0] | ({"others": found[1:]} if found[1:] else {})


def version_of(path: str) -> str:
    """Return a loaded NCCL's own word, ``"2.28.9"``; UnknownError where it gives none."""
    code = ctypes.c_int()
    # ncclGetVersion(int *): no communicator and no device is needed.
    status = opened(path).ncclGetVersion(ctypes.byref(code))
    if status != 0:
        raise UnknownError(f"ncclGetVersion of {path} returned {status}")
    return version_text(code.value)


def version_text(code: int) -> str:
    """Return NCCL_VERSION_CODE as text: 22809 is 2.28.9, and 2708 (before 2.9) is 2.7.8.

    As ``NCCL_VERSION(X, Y, Z)`` of nccl.h makes it.
    """
    thousands = 10_000 if code >= 10_000 else 1_000
    major, rest = divmod(code, thousands)
    return f"{major}.{rest // 100}.{rest % 100}"
