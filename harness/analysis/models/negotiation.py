"""What Horovod's agreement on a tensor costs: waiting for its cycle, and the exchange of requests.

Horovod's background thread looks at requests once a cycle (``RunLoopOnce`` in
``horovod/common/operations.cc`` sleeps for what is left of ``HOROVOD_CYCLE_TIME``). The request
of the last gradient comes at any moment of a cycle, so it waits for half of one on average, and
nothing hides that. An all-reduce called again and again waits for a whole one, since each call
follows the cycle in which the one before was done.

Then all ranks exchange which tensors they have: every cycle two bitwise all-reduces, and a gather
to rank 0 with a broadcast back where a tensor is new (``controller.cc``). Over MPI these are
``MPI_Allreduce``, ``MPI_Gather`` and ``MPI_Bcast`` (``mpi/mpi_controller.cc``), of small messages
in trees: about log2 N messages one after the other. Over Gloo they are ``gloo::allreduce``
(``gloo/gloo_controller.cc``), a ring by default: 2(N − 1) messages one after the other. All as of
Horovod 0.28.1.
"""

from __future__ import annotations

import math

from harness.analysis.models.api import Place


def growth(controller: str | None, ranks: int) -> float:
    """Return how the exchange grows: N − 1 with Gloo's controller, log2 N with MPI's."""
    return float(ranks - 1) if controller == "gloo" else math.log2(ranks)


def growth_text(controller: str | None) -> str:
    """Return the law in words."""
    return "N − 1 (Gloo's ring)" if controller == "gloo" else "log2 N (MPI's trees)"


def messages_across(controller: str | None, place: Place) -> float:
    """Return how many messages of one exchange go between nodes, one after the other.

    A ring is as slow as its slowest link in each of its 2(N − 1) steps; a tree crosses between
    nodes log2(nodes) times there and back.
    """
    if place.nodes == 1:
        return 0.0
    if controller == "gloo":
        return 2.0 * (place.world_size - 1)
    return 2.0 * math.log2(place.nodes)


def queue_s(cycle_time_ms: float) -> float:
    """Return what a request waits for the next cycle on average: half of one."""
    return cycle_time_ms / 2e3
