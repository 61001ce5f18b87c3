"""One results folder and many processes, as of the array elements of a cluster."""

from __future__ import annotations

import errno
import multiprocessing
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from harness.errors import StoreError
from harness.record import RunRecord
from harness.store import Broken, Store
from tests import factories

PROCESSES, OWN, SHARED = 8, 13, 12
PATIENCE_S = 200.0  # eight interpreters, beside other work on two cores


@dataclass(frozen=True)
class Outcome:
    """What one process says of itself."""

    process: int
    written: tuple[str, ...]
    refused: tuple[str, ...]
    attempts: tuple[int, ...]  # claimed for one id
    quarantined: tuple[str, ...]


def record_of(repeat: int, process: int) -> RunRecord:
    """Return a record of a launch that says which process it is of."""
    made = factories.record(factories.config("horovod", 2, backend="mpi"), repeat)
    return made.model_copy(update={"attempt": 1 + process})


def raw_of(process: int, repeat: int) -> pa.Table:
    return pa.table({"step_s": [float(process), float(repeat)] * 500})


BROKEN = record_of(900, 0).run_id
CLAIMED = record_of(901, 0).run_id


def element(path: Path, process: int, links: bool, start: Any, answers: Any) -> None:
    """Do what an array element does with the folder, at the same time as all others."""
    if not links:

        def refuse(source: Any, target: Any) -> None:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

        os.link = refuse
    start.wait(PATIENCE_S)
    store = Store.open(path, create=True)
    found: list[Broken] = []
    store.verify([BROKEN], found.append)
    for text in ("asked by all\n", f"asked by {process}\n"):
        store.save_config(text)
    written, refused, attempts = [], [], []
    repeats = [*range(SHARED), *range(100 * (process + 1), 100 * (process + 1) + OWN)]
    for repeat in repeats:
        record = record_of(repeat, process)
        try:
            store.commit(record, raw_of(process, repeat), raw_of(process, -repeat))
        except StoreError:
            refused.append(record.run_id)
        else:
            written.append(record.run_id)
        attempts.append(store.claim_attempt(CLAIMED)[0])
    moved = tuple(one.run_id for one in found)
    answers.put(Outcome(process, tuple(written), tuple(refused), tuple(attempts), moved))


@pytest.mark.slow
@pytest.mark.parametrize("links", [True, False], ids=["hard links", "no hard links"])
def test_every_run_has_one_winner_and_its_own_raw_files(tmp_path: Path, links: bool) -> None:
    path = tmp_path / "results" / "sweep"
    store = Store(path)
    store.runs.mkdir(parents=True)
    (store.runs / f"{BROKEN}.json").write_text('{"cut":')
    context = multiprocessing.get_context("spawn")
    start, answers = context.Barrier(PROCESSES), context.Queue()
    processes = [
        context.Process(target=element, args=(path, n, links, start, answers), daemon=True)
        for n in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    outcomes = [answers.get(timeout=PATIENCE_S) for _ in processes]
    for process in processes:
        process.join(PATIENCE_S)
    assert [process.exitcode for process in processes] == [0] * PROCESSES

    winners = Counter(name for one in outcomes for name in one.written)
    assert set(winners.values()) == {1}
    assert len(winners) == SHARED + PROCESSES * OWN
    assert sum(len(one.refused) for one in outcomes) == SHARED * (PROCESSES - 1)
    assert store.done_ids() == set(winners)
    assert store.verify(winners) == set(winners)
    for one in outcomes:
        for name in one.written:
            record = store.read(name)
            assert record.attempt == 1 + one.process
            assert store.read_steps(name).equals(raw_of(one.process, record.block.repeat))
            series = store.read_series(name)
            assert series is not None
            assert series.equals(raw_of(one.process, -record.block.repeat))
    claimed = sorted(number for one in outcomes for number in one.attempts)
    assert claimed == list(range(1, PROCESSES * (OWN + SHARED) + 1))
    assert sum(one.quarantined.count(BROKEN) for one in outcomes) == 1
    # Who came second had claimed a name, and may have had the first one.
    (kept,) = store.quarantine.glob(f"{BROKEN}*.json")
    assert kept.read_text() == '{"cut":'
    assert "cut off" in kept.with_suffix(".reason.txt").read_text()
    configs = {one.read_text() for one in path.glob("sweep*.yaml")}
    assert configs == {"asked by all\n", *(f"asked by {n}\n" for n in range(PROCESSES))}
    assert (path / "sweep.yaml").is_file()
    assert not list(path.rglob("*.tmp"))
    # Nobody waited for a lock where none is needed.
    assert (path / ".lock").exists() != links
