"""Where the ranks of a launch really are: nodes, told apart by what the ranks themselves see."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from harness.engines.api import World
from harness.record import Placed

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Seat:
    """One rank's place, as it sees it."""

    host: str  # the host's own name, short or fully qualified; a container may have one of its own
    kernel: str  # of the running kernel, other on every machine; "" where it is not told
    local_rank: int
    local_size: int = 0  # ranks on its node as the launcher's variables have it; 0: not told


def here(world: World, local_size: int = 0) -> Seat:
    """Return this rank's seat."""
    return Seat(socket.gethostname(), _kernel(), world.local_rank, local_size)


def _kernel() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:  # a sandbox without it: names then tell nodes apart
        return ""


def nodes_of(seats: Sequence[Seat]) -> tuple[int, ...]:
    """Return the number of each rank's node, in the order of their first ranks.

    Every node has one rank of local rank 0. So a kernel with one of those is one node, whatever its
    containers call it; of several nodes in one kernel (namespaces) each has its name, or, where
    they share that too, begins with its local rank 0.
    """
    firsts = Counter(seat.kernel for seat in seats if seat.local_rank == 0)
    numbers: dict[tuple[str, str, int], int] = {}
    seen: dict[tuple[str, str], Seat] = {}
    resets: Counter[tuple[str, str]] = Counter()
    found = []
    for seat in seats:
        name = "" if seat.kernel and firsts[seat.kernel] == 1 else seat.host
        before = seen.get((seat.kernel, name))
        if before is not None and seat.local_rank <= before.local_rank:
            resets[seat.kernel, name] += 1
        seen[seat.kernel, name] = seat
        key = (seat.kernel, name, resets[seat.kernel, name])
        found.append(numbers.setdefault(key, len(numbers)))
    return tuple(found)


def placed(seats: Sequence[Seat]) -> Placed:
    """Return the placement that ranks have, its nodes in the order of their first ranks."""
    nodes = nodes_of(seats)
    counts = Counter(nodes)
    return Placed(
        hosts=tuple(seats[nodes.index(number)].host for number in sorted(counts)),
        ranks_per_host=tuple(counts[number] for number in sorted(counts)),
        local_ranks=tuple(seat.local_rank for seat in seats),
    )


def runs(seats: Sequence[Seat]) -> tuple[tuple[str, int], ...]:
    """Return (host, ranks) in the order of ranks, one node after the other; one may come again."""
    together = groupby(zip(nodes_of(seats), seats, strict=True), key=lambda one: one[0])
    parts = [[seat for _, seat in part] for _, part in together]
    return tuple((part[0].host, len(part)) for part in parts)
