"""Says of a step that found no memory how large its batch was, and what to lower."""

from __future__ import annotations

import re

import torch

from harness.errors import LaunchError

_ASKED_GPU = re.compile(r"Tried to allocate ([\d.]+ \w+)")
#: torch's allocator on the CPU has no exception of its own.
_ASKED_CPU = re.compile(r"DefaultCPUAllocator: can't allocate memory: you tried to allocate (\d+)")
_LOWER = "lower batch_size, or raise execution.accumulate"


def raise_if_memory(error: Exception, batch: int, more: str = "") -> None:
    """Raise LaunchError where ``error`` is a lack of memory in a step of ``batch`` samples.

    ``more`` is what else the user may do.
    """
    said = str(error)
    if isinstance(error, torch.OutOfMemoryError):
        asked = _ASKED_GPU.search(said)
        raise LaunchError(_told("GPU", asked[1] if asked else "more", batch) + more) from error
    found = _ASKED_CPU.search(said)
    if found is not None:
        raise LaunchError(
            _told("host", f"{int(found[1]) / 2**20:.4g} MiB", batch) + more
        ) from error
    if isinstance(error, MemoryError):
        raise LaunchError(_told("host", "more", batch) + more) from error


def _told(where: str, asked: str, batch: int) -> str:
    return (
        f"the {where}'s memory is full: a step with a batch of {batch} samples on this rank asked "
        f"for {asked}; {_LOWER}"
    )
