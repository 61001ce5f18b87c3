"""One rank of ``hvdscale allreduce``: join, check, measure; rank 0 writes the record.

Horovod's background thread goes on with its cycles while the other libraries are measured, as it
does in a program that uses both: measured alone (``--libraries torch``) they can be quicker.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import provenance
from harness.clock import utc_now
from harness.collectives import memory, writing
from harness.collectives.api import agree
from harness.collectives.definitions import moved_bytes
from harness.collectives.joining import Team, join
from harness.collectives.measuring import Times, measure, summarise
from harness.collectives.patterns import make_buffers
from harness.collectives.record import Absent, LibraryFacts
from harness.collectives.sizes import size_text
from harness.collectives.writing import Written
from harness.config.models import RunConfig
from harness.errors import HarnessError
from harness.measure import gate
from harness.provenance import packages
from harness.spec import Resolved

_PROBE_BYTES = 4096
Tell = Callable[[str], object]


@dataclass(frozen=True)
class Request:
    """What was asked for."""

    sizes: tuple[int, ...]  # bytes, ascending
    collectives: tuple[str, ...]
    libraries: tuple[str, ...]
    max_iterations: int


def run(
    config: RunConfig,
    resolved: Resolved,
    request: Request,
    results: Path,
    cores: tuple[int, ...],
    tell: Tell,
) -> Written | None:
    """Measure on all ranks and write on rank 0, below ``results``; None on the other ranks.

    ``tell`` is called on rank 0 with what begins. Raises AgreedError, on every rank alike, where a
    checked result (see measuring.py) is wrong, the buffers do not fit, a backend is not the one
    that was asked for, ranks have other software than rank 0, or nothing can be written.
    """
    started_at, at_start = utc_now(), provenance.at_start()
    team = join(config, resolved, request.libraries)
    leads = team.world.rank == 0
    versions = team.control.gather(packages.software())
    agree(team.control, _fault_of(lambda: gate.check_software(versions)))
    agree(team.control, _fault_of(lambda: writing.prepare(results)) if leads else None)
    short = memory.shortage(request.collectives, request.sizes[-1], team.control, team.device)
    agree(team.control, short)
    libraries = _proven(team)
    times, absent = _measure_all(team, request, tell if leads else _silent)
    ranks = team.control.gather(_of_rank(team, cores, resolved, at_start))
    fields = {
        "started_at": started_at,
        **_asked(resolved, request),
        **_places(team),
        "tuning": config.horovod if any(one.name == "horovod" for one in libraries) else None,
        "libraries": libraries,
        "absent": (*team.absent, *absent),
        "rows": tuple(summarise(one) for one in times),
    }
    written: list[Written] = []

    def write() -> None:
        of_libraries = {name: v for one in libraries for name, v in one.versions.items()}
        fields["provenance"] = provenance.collect(ranks, of_libraries)
        written.append(writing.write(results, times, fields))

    agree(team.control, _fault_of(write) if leads else None)
    team.leave()
    return written[0] if written else None


def _of_rank(
    team: Team, cores: tuple[int, ...], resolved: Resolved, at_start: dict[str, Any]
) -> dict[str, Any]:
    return provenance.of_rank(
        cores,
        resolved.cores_per_rank,
        device_uuid=team.engine.device_uuid(),
        started=at_start,
        engine=team.engine.facts(),
    )


def _asked(resolved: Resolved, request: Request) -> dict[str, Any]:
    return {
        "argv": tuple(sys.argv),
        "launcher": resolved.launcher,
        "device": resolved.device,
        "cores_per_rank": resolved.cores_per_rank,
        "collectives": request.collectives,
        "sizes": request.sizes,
        "max_iterations": request.max_iterations,
    }


def _silent(_: str) -> None:
    pass


def _fault_of(action: Callable[[], object]) -> HarnessError | None:
    try:
        action()
    except HarnessError as error:
        return error
    return None


def _places(team: Team) -> dict[str, Any]:
    names = team.control.gather(socket.gethostname())
    hosts = tuple(dict.fromkeys(names))
    return {
        "hosts": hosts,
        "placement": tuple(names.count(host) for host in hosts),
        "world_size": team.world.size,
    }


def _proven(team: Team) -> tuple[LibraryFacts, ...]:
    """Let every library do one short all-reduce, and say what has moved its bytes."""
    world = team.world
    buffers = make_buffers("all_reduce", _PROBE_BYTES, world.rank, world.size, team.device)
    measure(team.libraries, buffers, team.control, team.barrier, max_iterations=1)
    found: list[LibraryFacts] = []

    def collect() -> None:
        found.extend(library.facts() for library in team.libraries)

    agree(team.control, _fault_of(collect))
    return tuple(found)


def _measure_all(team: Team, request: Request, tell: Tell) -> tuple[list[Times], list[Absent]]:
    times: list[Times] = []
    absent: list[Absent] = []
    for collective in request.collectives:
        able = [library for library in team.libraries if collective not in library.lacks]
        absent += [
            Absent(library=one.name, collective=collective, reason=one.lacks[collective])
            for one in team.libraries
            if one not in able
        ]
        if not able:
            continue
        tell(f"measuring {collective} with {', '.join(library.name for library in able)}")
        sizes, reasons = _sizes(collective, request.sizes, team.world.size)
        absent += [Absent(library="all", collective=collective, reason=text) for text in reasons]
        for size in sizes:
            world = team.world
            buffers = make_buffers(collective, size, world.rank, world.size, team.device)
            times += measure(able, buffers, team.control, team.barrier, request.max_iterations)
    return times, absent


def _sizes(collective: str, asked: tuple[int, ...], ranks: int) -> tuple[list[int], list[str]]:
    """Return the sizes to measure, and why some that were asked for are not."""
    if collective == "barrier":
        return [0], []
    moved = {size: moved_bytes(collective, size, ranks) for size in asked}
    small = [size_text(size) for size, count in moved.items() if count == 0]
    reasons = [f"{', '.join(small)} bytes are not a float32 for each of {ranks} ranks"]
    return sorted({count for count in moved.values() if count}), reasons if small else []
