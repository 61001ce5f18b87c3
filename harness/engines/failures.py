"""What engines say alike of a step that cannot be run; no framework in here."""

from __future__ import annotations


def memory_is_full(where: str, asked: str, batch: int, more: str = "") -> str:
    """Say how large the batch was that found no memory ``where`` (GPU, host), and what to lower.

    ``more`` is what else the user may do.
    """
    return (
        f"the {where}'s memory is full: a step with a batch of {batch} samples on this rank asked "
        f"for {asked}; lower batch_size, or raise execution.accumulate{more}"
    )
