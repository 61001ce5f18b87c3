"""Says of a step that found no memory how large its batch was, and what to lower."""

from __future__ import annotations

import re

import torch

from harness.engines.failures import memory_is_full
from harness.errors import LaunchError

_ASKED_GPU = re.compile(r"Tried to allocate ([\d.]+ \w+)")
#: torch's allocator on the CPU has no exception of its own.
_ASKED_CPU = re.compile(r"DefaultCPUAllocator: can't allocate memory: you tried to allocate (\d+)")


def raise_if_memory(error: Exception, batch: int, more: str = "") -> None:
    """Raise LaunchError where ``error`` is a lack of memory in a step of ``batch`` samples.

    ``more`` is what else the user may do.
    """
    said = str(error)
    if isinstance(error, torch.OutOfMemoryError):
        asked = _ASKED_GPU.search(said)
        wanted = asked[1] if asked else "more"
        raise LaunchError(memory_is_full("GPU", wanted, batch, more)) from error
    found = _ASKED_CPU.search(said)
    if found is not None:
        wanted = f"{int(found[1]) / 2**20:.4g} MiB"
        raise LaunchError(memory_is_full("host", wanted, batch, more)) from error
    if isinstance(error, MemoryError):
        raise LaunchError(memory_is_full("host", "more", batch, more)) from error
