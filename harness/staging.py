"""A launch's data brought to the nodes, where scratch is asked for: on all ranks at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import scratch
from harness.clock import told_if_slow
from harness.engines.api import Engine, World
from harness.errors import HarnessError, LaunchError
from harness.measure.seats import Seat, here, nodes_of
from harness.record import DataSource


@dataclass(frozen=True)
class DataPlace:
    """Where a launch finds its data: a folder that every node sees, and one of each node's own."""

    shared: Path
    scratch: str | None = None  # as ``scratch.asked_for`` has it, variables left in


@dataclass(frozen=True)
class RankData:
    """What one rank says of its node's scratch."""

    seat: Seat
    folder: str = ""
    copied_bytes: int = 0
    wall_s: float = 0.0
    error: str = ""


def stage(
    files: Sequence[Path], place: DataPlace, engine: Engine, world: World
) -> tuple[Path, DataSource | None]:
    """Return the folder that this rank reads ``files`` (of the shared folder) from; on all ranks.

    None as source where there are no files. Raises LaunchError on all ranks where any node's
    scratch cannot be used.
    """
    if not files:
        return place.shared, None
    if place.scratch is None:
        return place.shared, DataSource(folder=str(place.shared))
    ranks: list[RankData] = engine.gather(_bring(files, place.shared, place.scratch, world))
    check(ranks)
    source = DataSource(
        folder=ranks[0].folder,
        scratch=place.scratch,
        copied_bytes=sum(one.copied_bytes for one in ranks),
        copy_s=max(one.wall_s for one in ranks),
    )
    return Path(ranks[world.rank].folder), source


def _bring(files: Sequence[Path], shared: Path, asked: str, world: World) -> RankData:
    """Copy the files where this is the rank of its node that does; what fails is no exception,
    because the other ranks wait in a gather.
    """
    seat = here(world)
    try:
        folder = scratch.folder_here(asked, os.environ)
        if world.local_rank != 0:
            return RankData(seat, str(folder / scratch.DATA))
        with told_if_slow(_say, f"copying data to {folder} on node {seat.host}"):
            copied = scratch.copy_data(files, shared, folder)
    except HarnessError as error:
        return RankData(seat, error=str(error))
    return RankData(seat, str(copied.folder), copied.bytes, copied.wall_s)


def check(ranks: Sequence[RankData]) -> None:
    """Raise LaunchError where a node's scratch cannot be used, or its ranks mean other folders."""
    for one in ranks:
        if one.error:
            raise LaunchError(one.error)
    nodes = nodes_of([one.seat for one in ranks])
    for rank, one in enumerate(ranks):
        first = nodes.index(nodes[rank])
        if one.folder != ranks[first].folder:
            raise LaunchError(
                f"scratch on node {one.seat.host}: {ranks[first].folder} for rank {first} and "
                f"{one.folder} for rank {rank}; set {scratch.VARIABLE} to a folder that is the "
                "same for all ranks of a node"
            )


def _say(text: str) -> None:
    print(f"hvdscale: {text}", file=sys.stderr, flush=True)
