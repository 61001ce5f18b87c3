"""Whether the buffers fit, before the first is made: the kernel would end a rank, not say so."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from harness.collectives.api import Control
from harness.collectives.sizes import size_text
from harness.errors import ValidationError
from harness.memory import host_free_bytes

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
