"""A results folder of a sweep that is done, as large as one likes, without a launch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from harness.config import Sweep, parse_sweep, sweep_to_yaml
from harness.config.identity import point_id
from harness.detect import Machine
from harness.record import RunRecord
from harness.runner.labels import launch_labels
from harness.runner.listing import write_points
from harness.runner.schedule import Work, block_launches, planned
from harness.store import Store
from tests.factories import record

SLOTS = 24
COUNTS = tuple(range(1, SLOTS + 1))  # of ranks
EMPTY = b'"sha256": ""'


def large_sweep(records: int, name: str = "large") -> Sweep:
    """Return a sweep of 96 points and two bases, with blocks for at least so many records."""
    launches = 2 * 2 * len(COUNTS) + 2
    return parse_sweep(
        {
            "name": name,
            "workload": {"name": "stress_strain", "samples": 200_000},
            "engine": "horovod",
            "backend": ["mpi", "gloo"],
            "placement": list(COUNTS),
            "batch_size": [75, 700],
            "cores_per_rank": 1,
            "base": "none@1",
            "measure": {"blocks": -(-records // launches)},
        }
    )


def write_done(sweep: Sweep, machine: Machine, results: Path) -> tuple[Work, int]:
    """Write the records of all launches of ``sweep``; return its work, and how many there are.

    They are written directly: the store puts each on disk for good, which takes its time.
    """
    work = planned(sweep, machine, results)
    store = Store.open(work.folder, create=True)
    count = 0
    for name, text in _files(work):
        (store.runs / name).write_bytes(text)
        count += 1
    store.save_config(sweep_to_yaml(sweep))
    write_points(work, store, launch_labels(work.plan.launches, work.plan.timelines), work.blocks)
    return work, count


def _files(work: Work) -> Iterator[tuple[str, bytes]]:
    made: dict[str, RunRecord] = {}
    for repeat in range(work.blocks):
        for launch in block_launches(work, repeat):
            key = point_id(launch.config)
            if key not in made:
                made[key] = record(launch.config, resolved=launch.resolved, sweep=work.sweep.name)
            own = {"run_id": launch.run_id, "block": launch.block, "sha256": ""}
            text = made[key].model_copy(update=own).text()
            seal = hashlib.sha256(text).hexdigest()
            yield f"{launch.run_id}.json", text.replace(EMPTY, b'"sha256": "%s"' % seal.encode())
