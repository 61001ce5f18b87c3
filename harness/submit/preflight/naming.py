"""Which of the allocation's nodes this process is on."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence

from harness.ranks import RankPlace


def node_name(
    nodes: Sequence[str],
    place: RankPlace,
    here: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> str:
    """Return the node's name as the launcher was told it.

    By this host's own name; else by Slurm's for it, which only ``srun`` gives to each node anew;
    else by the rank, because launchers fill the nodes in order.
    """
    host = here if here is not None else socket.gethostname()
    if host in nodes:
        return host
    short = [node for node in nodes if node.partition(".")[0] == host.partition(".")[0]]
    if len(short) == 1:
        return short[0]
    slurm = environ.get("SLURMD_NODENAME", "")
    if place.launcher == "srun" and slurm in nodes:
        return slurm
    return nodes[place.rank] if place.rank < len(nodes) else host
