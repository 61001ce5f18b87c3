"""Records of a sweep that was submitted as job arrays: an allocation an element, by the sixty.

An element has one placement and one repeat, in all backends and batches. It measures its bases
itself, or they are elements of an array of their own (``shared_base``). What an allocation's luck
does to all launches in it is a factor that pairs cancel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from harness.config import RunConfig, run_id
from harness.record import RunRecord
from tests.factories import config, record, step_times_s

PLACEMENTS = ("1x2", "1x4", "2x4", "8+2")
BATCHES = (75, 300, 700)
BASE_ARRAY = 900
NODES = 40


def rate(made: RunConfig, nodes: int = 1) -> float:
    """Return the throughput of the factory's model, without luck and noise."""
    return made.global_batch / step_times_s(made, nodes)[0]


def submitted(
    placements: Sequence[str] = PLACEMENTS,
    batches: Sequence[int] = BATCHES,
    repeats: int = 5,
    *,
    backends: Sequence[str] = ("mpi",),
    shared_base: bool = False,
    luck: float = 0.1,
    noise: float = 0.01,
    seed: int = 4,
    luck_of_bases: float = 1.0,
) -> list[RunRecord]:
    """Return the records, those of one element one after the other."""
    return list(
        _records(
            placements, batches, repeats, backends, shared_base, luck, noise, seed, luck_of_bases
        )
    )


def _records(
    placements: Sequence[str],
    batches: Sequence[int],
    repeats: int,
    backends: Sequence[str],
    shared_base: bool,
    luck: float,
    noise: float,
    seed: int,
    luck_of_bases: float,
) -> Iterator[RunRecord]:
    random = np.random.default_rng(seed)
    arrays: list[tuple[int, list[RunConfig]]] = []
    bases = [config("none", 1, batch) for batch in batches]
    for index, placement in enumerate(placements):
        points = [
            config("horovod", placement, batch, backend=backend)
            for backend in backends
            for batch in batches
        ]
        arrays.append((100 * (index + 1), points if shared_base else [*bases, *points]))
    if shared_base:
        arrays.append((BASE_ARRAY, bases))
    for array, configs in arrays:
        for repeat in range(repeats):
            factor = float(np.exp(random.normal(0, luck))) * (
                luck_of_bases if array == BASE_ARRAY else 1.0
            )
            for order, made in enumerate(configs):
                jitter = float(np.exp(random.normal(0, noise)))
                yield element_record(array, repeat, made, factor * jitter, order)


def element_record(
    array: int, repeat: int, made: RunConfig, factor: float, order: int = 0, suffix: str = ""
) -> RunRecord:
    """Return the record of a launch in element ``repeat`` of an array; a base has its own id."""
    is_base = made.engine == "none"
    allocation = f"slurm:{array + repeat}{suffix}"
    nodes = len(made.placement.devices or (1,))
    host = (array // 100 * 5 + repeat) % NODES
    slurm = {
        "job_id": str(array + repeat), "array_job_id": str(array), "array_task_id": str(repeat),
        "partition": "alpha", "restart_count": 1 if suffix else 0,
        "nodelist": [f"node{host + k:02d}" for k in range(nodes)],
    }  # fmt: skip
    more = {"run_id": run_id(made, repeat, allocation)} if is_base else {}
    return record(
        made, repeat, factor=factor, is_base=is_base, allocation=allocation, order=order,
        slurm=slurm, **more,
    )  # fmt: skip
