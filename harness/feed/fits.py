"""Whether a whole training set fits into memory, asked before the first byte is copied there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from harness.errors import ValidationError
from harness.memory import host_free_bytes, host_total_bytes
from harness.ranks import find_place
from workloads.api import Batch, Samples

CHUNK_BYTES = 64 << 20  # what is read at once, beside the place it goes to
_GIB = 1 << 30


@dataclass(frozen=True)
class Room:
    """Memory that a set is to go into."""

    owner: str  # "GPU 0", "the host"
    free_bytes: int
    total_bytes: int
    ranks: int  # that put a set each into it


def host_room() -> Room:
    """Return the room of this rank's host."""
    place = find_place(os.environ)
    ranks = max(1, place.local_size) if place is not None else 1
    return Room("the host", host_free_bytes(), host_total_bytes(), ranks)


def set_bytes(samples: Samples) -> int:
    """Return the bytes of the whole set as arrays; one sample is read for it."""
    inputs, targets = first(samples)
    return len(samples) * int(inputs.nbytes + targets.nbytes)


def first(samples: Samples) -> Batch:
    """Return the first sample, as a batch of one."""
    return samples.gather(np.zeros(1, dtype=np.int64))


def check_fits(kind: str, samples: Samples, room: Room) -> None:
    """Raise ValidationError where the set does not fit into ``room``.

    What is free is less once other ranks have begun to copy, so it is compared with one set, and
    the sets of all ranks with what there is at all. Training needs memory beside it, which nobody
    knows beforehand: a set that only just fits is let through.
    """
    needed = set_bytes(samples)
    size = f"data: {kind}: {len(samples)} training samples are {needed / _GIB:.2f} GiB"
    cure = "use data: disk, or fewer samples"
    if needed > room.free_bytes:
        raise ValidationError(
            f"{size}, but {room.owner} has {room.free_bytes / _GIB:.2f} GiB free; {cure}"
        )
    if room.ranks * needed > room.total_bytes:
        raise ValidationError(
            f"{size} for each of {room.ranks} ranks, but {room.owner} has "
            f"{room.total_bytes / _GIB:.2f} GiB in all; {cure}, or fewer ranks a node"
        )


def chunks(samples: Samples) -> Iterator[tuple[int, Batch]]:
    """Yield the whole set in order as (index of the first, copies of some samples)."""
    arrays = samples.arrays()
    at_once = max(1, CHUNK_BYTES * len(samples) // max(1, set_bytes(samples)))
    for start in range(0, len(samples), at_once):
        stop = min(start + at_once, len(samples))
        if arrays is None:
            yield start, samples.gather(np.arange(start, stop, dtype=np.int64))
        else:
            inputs, targets = (np.array(array[start:stop]) for array in arrays)
            yield start, (inputs, targets)
