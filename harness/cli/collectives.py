"""``hvdscale allreduce``: the ranks' place and settings, the measurement, table and plots."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from harness.errors import ConfigError, HarnessError

if TYPE_CHECKING:
    from harness.collectives.driver import Request
    from harness.collectives.record import CollectivesRecord
    from harness.collectives.writing import Written
    from harness.config import RunConfig
    from harness.ranks import RankPlace
    from harness.spec import Resolved

SIZES = "4K:1G"
_MAX_ITERATIONS = 10**6


def command_allreduce(
    sizes: str,
    backend: str | None,
    collectives: str,
    libraries: str,
    iterations: int,
    results: Path,
    as_json: bool,
    *,
    tuning: str | None = None,
) -> NoReturn:
    """Be one rank of ``LAUNCHER hvdscale allreduce``; rank 0 prints. Ends the process with 0.

    ``tuning`` is a tuning preset of Horovod, by its name or its file.

    Raises HarnessError on rank 0 only, as ``harness.byhand`` does: one mistake is one line.
    """
    from harness.ranks import find_place

    place = find_place(os.environ)
    rank = place.rank if place else 0
    with _told_by_rank_0(rank, (HarnessError,)):
        request = _request(sizes, collectives, libraries, iterations)
        config, resolved = _settled(place, backend, request, tuning)
    from harness import affinity
    from harness.collectives import driver
    from harness.collectives.api import AgreedError

    assert place is not None  # checked by _settled
    cores = affinity.bind(resolved, place.local_rank)
    with _told_by_rank_0(rank, (AgreedError,)):
        written = driver.run(config, resolved, request, results, cores, _say)
    if written is not None:
        _report(written, as_json)
    # As after a rank of a sweep (cli/ranks.py): all is written and every world is left, and what
    # remains is the destruction of libraries, in which a thread of Gloo's can abort a good launch.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@contextmanager
def _told_by_rank_0(rank: int, kinds: tuple[type[HarnessError], ...]) -> Iterator[None]:
    """Let rank 0 alone speak of an error that all ranks have.

    The others wait before they end, because a launcher ends all ranks with the first.
    """
    from harness.byhand import PATIENCE_S

    try:
        yield
    except kinds as error:
        if rank == 0:
            raise
        time.sleep(PATIENCE_S)
        sys.exit(error.exit_code)


def _request(sizes: str, collectives: str, libraries: str, iterations: int) -> Request:
    from harness.collectives.definitions import COLLECTIVES, LIBRARIES, parse_names
    from harness.collectives.driver import Request
    from harness.collectives.sizes import parse_sizes

    if not 1 <= iterations <= _MAX_ITERATIONS:
        raise ConfigError(f"--iterations: {iterations} is not from 1 to {_MAX_ITERATIONS:,}")
    return Request(
        sizes=parse_sizes(sizes),
        collectives=parse_names(collectives, COLLECTIVES, "--collectives"),
        libraries=parse_names(libraries, LIBRARIES, "--libraries"),
        max_iterations=iterations,
    )


def _settled(
    place: RankPlace | None, backend: str | None, request: Request, tuning: str | None
) -> tuple[RunConfig, Resolved]:
    """Decide backend, controller and threads as for ``bench`` by hand, and put them in force."""
    from harness import byhand, legal, options
    from harness.collectives import joining

    if place is None or place.size < 2:
        raise ConfigError(
            "allreduce: needs at least 2 ranks, started by a launcher: "
            "horovodrun -np 2 hvdscale allreduce (or mpirun, torchrun, srun)"
        )
    joining.choose(request.libraries, place.launcher)
    # Only what it says of engine, backend and threads is used: no workload is loaded.
    flags = {"backend": backend, "batch_size": 1}
    overrides = () if tuning is None else (f"horovod.preset={json.dumps(tuning)}",)
    config = byhand.config_of("stress_strain", flags, overrides, place, os.environ)
    machine = byhand.machine_of(config, place)
    resolved = legal.resolve(config, machine)
    if tuning is not None:
        if config.engine != "horovod":
            raise ConfigError(f"--tuning is for Horovod, which {place.launcher} starts none of")
        if "horovod" not in request.libraries:
            raise ConfigError("--tuning is for Horovod, which --libraries leaves out; add horovod")
        if config.horovod.autotune:
            raise ConfigError(
                f"--tuning {tuning}: with autotune Horovod would try settings while it is timed; "
                "give what it has found instead"
            )
        options.check_options(config, resolved, machine)
    if resolved.device == "cuda":
        # torch's own NCCL must say what it is, also beside a Horovod that uses none.
        as_ddp = config.model_copy(update={"engine": "ddp"})
        byhand.set_environment(as_ddp, resolved.model_copy(update={"backend": "nccl"}))
    byhand.set_environment(config, resolved)
    return config, resolved


def _say(text: str) -> None:
    print(f"hvdscale: {text}", file=sys.stderr, flush=True)


def _report(written: Written, as_json: bool) -> None:
    """Print the table (or the record) and write it and its figures beside the record."""
    from harness.analysis.collectives import csv_text, render
    from harness.collectives.record import RECORD
    from harness.collectives.writing import TIMES
    from harness.store import write_atomic
    from harness.store.files import named_errors

    record, folder = written.record, written.folder
    table = render(record)
    paths = [folder / RECORD, folder / TIMES, folder / "table.txt"]
    with named_errors(folder, "written"):
        write_atomic(paths[-1], f"{table}\n".encode())
        for collective in dict.fromkeys(row.collective for row in record.rows):
            paths.append(folder / f"{collective}.csv")
            write_atomic(paths[-1], csv_text(record, collective).encode())
        paths += _figures(record, folder)
    if as_json:
        print(record.model_dump_json(indent=1), flush=True)
        return
    print("\n".join([table, "", *map(str, paths)]), flush=True)


def _figures(record: CollectivesRecord, folder: Path) -> list[Path]:
    try:
        import_module("matplotlib")
    except ImportError as error:
        _say(f"no figures: they need matplotlib ({error}); pip install 'hvdscale[analysis]'")
        return []
    from harness.analysis.plots.collectives import draw
    from harness.analysis.plots.style import figure_bytes, style
    from harness.store import write_atomic

    written = []
    for collective in record.collectives:
        with style():
            figure = draw(record, collective)
            for kind in ("png", "svg") if figure is not None else ():
                assert figure is not None
                written.append(folder / f"{collective}.{kind}")
                write_atomic(written[-1], figure_bytes(figure, kind))
    return written
