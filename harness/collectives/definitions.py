"""What each collective is, what its size means, and how bandwidth follows from its time.

Sizes and bandwidths are those of nccl-tests (``doc/PERFORMANCE.md``, and ``*GetBw`` in ``src/``):

=================  ======================================================  ====================
collective         size S of N ranks                                       busbw / algbw
=================  ======================================================  ====================
all_reduce         the buffer of every rank, reduced in place              2 (N−1) / N
broadcast          the buffer of every rank, rank 0's sent in place        1
all_gather         what every rank receives; it sends S / N                (N−1) / N
reduce_scatter     what every rank gives; it receives S / N                (N−1) / N
all_to_all         what every rank gives, and receives; S / N to each      (N−1) / N
send_recv          what every rank sends to the next, and receives from    1
                   the one before
barrier            nothing: latency only                                   –
=================  ======================================================  ====================

algbw = S / time, with the median of the iterations. The four that are divided by N move the largest
multiple of N float32 that is not above the size asked for; the record has the bytes moved.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.collectives.sizes import ELEMENT_BYTES
from harness.errors import ConfigError, did_you_mean

COLLECTIVES = (
    "all_reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "send_recv",
    "barrier",
)
LIBRARIES = ("horovod", "torch", "mpi4py")
_DIVIDED = ("all_gather", "reduce_scatter", "all_to_all")


def bus_factor(collective: str, ranks: int) -> float:
    """Return busbw / algbw of a collective over ``ranks``; ValueError where it moves nothing."""
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if collective in _DIVIDED:
        return (ranks - 1) / ranks
    if collective in ("broadcast", "send_recv"):
        return 1.0
    raise ValueError(f"{collective} has no bandwidth")


def moved_bytes(collective: str, asked_bytes: int, ranks: int) -> int:
    """Return the size S that is measured for a size asked for; 0 where it is under an element."""
    if collective == "barrier":
        return 0
    unit = ELEMENT_BYTES * (ranks if collective in _DIVIDED else 1)
    return asked_bytes - asked_bytes % unit


def parse_names(text: str, known: Sequence[str], flag: str) -> tuple[str, ...]:
    """Return the names of a comma-separated list, each once, in its order; ``all`` is all.

    Raises ConfigError on a name that is not in ``known``.
    """
    names = [name.strip().replace("-", "_") for name in text.split(",")]
    if names == ["all"]:
        return tuple(known)
    for name in names:
        if name not in known:
            raise ConfigError(
                f"{flag}: '{name[:40]}' is none of {', '.join(known)}, all"
                f"{did_you_mean(name, known)}"
            )
    return tuple(dict.fromkeys(names))
