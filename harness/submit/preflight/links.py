"""The links of this rank, measured: ``python -m harness.submit.preflight.links TASK``.

A program of its own, started on every node by ``rank``. What it has found is in its file after
every pair, so that a link or node that goes down takes nothing with it.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import psutil

from harness import watchdog
from harness.collectives import network
from harness.errors import HarnessError
from harness.ranks import find_place
from harness.submit.preflight.answers import Keeper, linked_path
from harness.submit.preflight.exchange import Wire, follow, lead
from harness.submit.preflight.naming import node_name
from harness.submit.preflight.plan import Task
from harness.submit.preflight.record import Way
from harness.submit.preflight.wires import MpiWire, gloo_wire, nccl_wire

_GOING_S = 5.0  # for a round after one in which somebody was missing

Connect = Callable[[int, str], Wire]  # (the other rank, the pair's name)


def main(path: Path) -> int:
    """Measure what the task asks for; 1 where it could not be begun."""
    task = Task.read(path)
    watchdog.start(task.timeout_s)
    place = find_place(os.environ)
    if place is None or place.size != len(task.nodes):
        size = place.size if place else 0
        print(f"preflight: {size} ranks were started, not {len(task.nodes)}", file=sys.stderr)
        return 1
    keeper = Keeper(linked_path(task.folder, place.rank), node_name(task.nodes, place))
    keeper.keep()
    try:
        (_mpi if task.stage == "mpi" else _torch)(task, place.rank, keeper)
    except (HarnessError, RuntimeError, OSError) as error:
        print(f"preflight: {error}", file=sys.stderr)
        return 1
    keeper.keep(finished=True)
    return 0


class _Known:
    """Answers what ``network.choose`` asks the other ranks, without asking them."""

    def __init__(self, nodes: tuple[str, ...], rank: int) -> None:
        here = socket.gethostname()
        self._hosts = [here if place == rank else node for place, node in enumerate(nodes)]

    def gather(self, value: Any) -> list[Any]:
        return list(self._hosts)

    def barrier(self) -> None:
        raise NotImplementedError


def _torch(task: Task, rank: int, keeper: Keeper) -> None:
    import torch.distributed as dist

    home = network.choose(_Known(task.nodes, rank))
    keeper.keep(
        interface=home.interface, address=home.address, interface_bits_per_s=_speed(home.interface)
    )
    c10d: Any = dist
    patience = timedelta(seconds=task.limits.patience_s)
    # On all addresses of the first node; the others know it by its name.
    first = home.address if rank == 0 else task.nodes[0]
    store = c10d.TCPStore(
        first, task.port, len(task.nodes), rank == 0, timeout=patience, wait_for_workers=False
    )
    meet = _Meeting(store, len(task.nodes), task.limits.patience_s)
    if task.stage == "nccl":
        _nccl(task, rank, keeper, store, meet)
        return

    def connect(peer: int, name: str) -> Wire:
        return gloo_wire(store, rank, peer, name, task.limits.patience_s)

    _rounds(task, rank, keeper, connect, meet.at)
    meet.leave(rank)


def _nccl(task: Task, rank: int, keeper: Keeper, store: Any, meet: _Meeting) -> None:
    import torch
    import torch.distributed as dist

    c10d: Any = dist
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl",
        store=c10d.PrefixStore("nccl", store),
        rank=rank,
        world_size=len(task.nodes),
        timeout=timedelta(seconds=2 * task.limits.patience_s),
    )
    _rounds(task, rank, keeper, lambda peer, _: nccl_wire(peer, device), meet.at)
    # Once all together: how collectives are connected is in NCCL's log, and sends are another way.
    dist.all_reduce(torch.ones(1 << 20, device=device))
    torch.cuda.synchronize(device)
    dist.destroy_process_group()
    meet.leave(rank)


class _Meeting:
    """Ranks wait for each other, but not for ever, and not again for who did not come."""

    def __init__(self, store: Any, size: int, patience_s: float) -> None:
        self._store, self._size, self._patience_s = store, size, patience_s

    def at(self, name: str) -> None:
        """Return when all have come to ``name``, or patience is over."""
        key = f"meet-{name}"
        self._store.add(key, 1)
        self._until_all(key)

    def leave(self, rank: int) -> None:
        """Say good-bye; rank 0, whose the store is, waits for all of them."""
        self._store.add("left", 1)
        if rank == 0:
            self._until_all("left")

    def _until_all(self, key: str) -> None:
        deadline = time.monotonic() + self._patience_s
        while self._store.add(key, 0) < self._size:
            if time.monotonic() > deadline:
                self._patience_s = min(self._patience_s, _GOING_S)
                return
            time.sleep(0.002)


def _rounds(
    task: Task, rank: int, keeper: Keeper, connect: Connect, meet: Callable[[str], None]
) -> None:
    for number, pairs in enumerate(task.rounds):
        meet(f"round-{number}")
        for pair in pairs:
            if rank in pair:
                peer = pair[1] if pair[0] == rank else pair[0]
                keeper.keep(ways=(*keeper.found.ways, _way(task, rank, peer, connect)))


def _way(task: Task, rank: int, peer: int, connect: Connect) -> Way:
    low, high = sorted((rank, peer))
    # By rank: only all answers together tell which node each rank is on.
    way = Way(library=_library(task), source=str(rank), target=str(peer), look=task.look)
    try:
        wire = connect(peer, f"{low}-{high}")
        if rank == low:
            found = lead(wire, task.limits)
            follow(wire)
        else:
            follow(wire)
            found = lead(wire, task.limits)
    except (RuntimeError, OSError, ValueError) as error:  # torch has no family of its own
        text = " ".join(str(error).split()) or type(error).__name__
        return way.model_copy(update={"error": text[:300]})
    measured = {
        "round_trip_s": _rounded(found.round_trip_s),
        "bytes": found.bytes,
        "transfer_s": _rounded(found.transfer_s),
    }
    return way.model_copy(update=measured)


def _library(task: Task) -> Literal["gloo", "nccl", "mpi"]:
    assert task.stage != "speed"  # another program's
    return task.stage


def _rounded(values_s: tuple[float, ...]) -> tuple[float, ...]:
    """To 10 ns: thousands of pairs are kept."""
    return tuple(max(1e-8, round(value, 8)) for value in values_s)


def _mpi(task: Task, rank: int, keeper: Keeper) -> None:
    from mpi4py import MPI

    from harness.provenance import mpi

    comm = MPI.COMM_WORLD
    if comm.size != len(task.nodes):
        raise RuntimeError(
            f"MPI sees {comm.size} rank(s) of {len(task.nodes)}: the launcher does not speak this "
            "MPI (srun needs --mpi=pmix for Open MPI, pmi2 for MPICH)"
        )
    library = str(mpi.collect().get("library", MPI.Get_library_version()))
    keeper.keep(facts={"library": library.partition(", package")[0]})
    _rounds(task, rank, keeper, lambda peer, _: MpiWire(comm, peer), lambda _: comm.Barrier())
    comm.Barrier()
    keeper.keep(finished=True)
    MPI.Finalize()


def _speed(interface: str) -> float | None:
    """Return what the interface can do by its driver's word, bits/s; None where it does not say."""
    stats = psutil.net_if_stats().get(interface)  # asked of this network, whatever /sys shows
    return stats.speed * 1e6 if stats is not None and stats.speed > 0 else None


if __name__ == "__main__":
    code = main(Path(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # what is left is libraries' own ends, in which a thread can abort
