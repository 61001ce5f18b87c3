"""Stub sweeps whose results are known, and what must hold of their folder at every moment.

A launch is "measured" by the runner's own process, so that a fork of it costs little: what is
killed is then runner and ranks at once, as by the end of a node.
"""

from __future__ import annotations

import gc
import hashlib
import json
import re
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

from harness.clock import utc_now
from harness.config import Base, RunConfig, Sweep
from harness.detect import Host, Machine
from harness.errors import HarnessError
from harness.launch import Command
from harness.record import RunRecord
from harness.runner import point, run_sweep, running
from harness.runner.launcher import Ending
from harness.runner.listing import list_sweep
from harness.runner.progress import PlainReport
from harness.runner.schedule import Planned
from harness.spec import RunSpec
from harness.store import Broken, Store
from harness.store.raw import parquet_bytes
from tests import factories
from tests.unit.stub_sweep import MACHINE, make_sweep

FAILING = 150  # the batch of a point that always fails
BATCHES = (75, 100, FAILING)
BLOCKS = 2
TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")
_RECORD = re.compile(r"([0-9a-f]{16})(?:\.attempt-(\d+))?\.json")
_KNOWN = {
    "sweep.yaml", "rank-0.log", "launcher.log", "table.csv", "table.parquet", "table.sha256",
}  # fmt: skip
_RAW = re.compile(r"[0-9a-f]{16}\.([0-9a-f]{12})\.steps\.parquet")


def steps_of(run_id: str) -> pa.Table:
    """Return the raw steps of a run, the same at every measurement of it."""
    seed = int(run_id, 16)
    return pa.table({"step_s": [(seed >> shift) % 97 / 1000 for shift in range(40)]})


def record_of(launch: RunSpec | Planned, attempt: int) -> RunRecord:
    """Return what a launch measures, whenever it does."""
    block = launch.block
    one = factories.record(launch.config, block.repeat, allocation=block.allocation, sweep="stub")
    own = {"run_id": launch.run_id, "attempt": attempt, "block": block}
    times = {"started_at": utc_now(), "ended_at": utc_now()}
    return one.model_copy(update={**own, **times, "resolved": launch.resolved})


class NoGuard:
    """There is no process to be ended."""

    def __enter__(self) -> NoGuard:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def put_in(module: object, name: str, value: object) -> None:
    """Replace a part of the product in this process."""
    mock.patch.object(module, name, value).start()


def launcher(ledger: Path) -> Callable[..., Ending]:
    """Return a ``run_launch`` that measures at once, and notes in ``ledger`` that it did."""

    def run_launch(argv: tuple[str, ...], *_: Any, **__: Any) -> Ending:
        spec = RunSpec.read(Path(argv[-1]))
        with ledger.open("a") as file:
            file.write(f"{spec.run_id}\n")
        log = spec.log_dir / "rank-0.log"
        if spec.config.batch_size == FAILING:
            _write(log, "Traceback (most recent call last):\nValueError: always\n")
            return Ending(exit_code=1, wall_s=0.0)
        try:
            Store.open(spec.results).commit(record_of(spec, spec.attempt), steps_of(spec.run_id))
        except HarnessError as error:  # as ``bench`` ends
            _write(log, f"hvdscale: error: {error}\n")
            return Ending(exit_code=2, wall_s=0.0)
        return Ending(exit_code=0, wall_s=0.0)

    return run_launch


def _write(log: Path, text: str) -> None:
    with suppress(OSError):  # where there is no room for it, a rank ends all the same
        log.write_text(text)


def machine(host: str = "stub") -> Machine:
    """Return the stub's machine under another name."""
    return replace(MACHINE, hosts=(Host(host, 8, 8),))


def sweep(based: bool = False, short: bool = False) -> Sweep:
    """Return the sweep; with a base where asked, or with two launches only."""
    made = make_sweep(BATCHES[-2:], 1) if short else make_sweep(BATCHES, BLOCKS)
    if not based:
        return made
    keys = {"engine": "horovod", "backend": "gloo", "placement": "1x2"}
    return made.model_copy(update={"point": made.point | keys, "base": Base()})


def warm() -> None:
    """Import what a run imports on its way."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "place"
        place.mkdir()
        run(place / "results", place / "ledger", based=True)
    mock.patch.stopall()
    gc.collect()
    gc.freeze()  # a fork would copy what the collector marks


def run(
    results: Path,
    ledger: Path,
    host: str = "stub",
    based: bool = False,
    short: bool = False,
) -> int:
    """Run the sweep in this process, as on ``host``; return the exit code the command would."""
    put_in_stub(ledger, host)
    try:
        report, data_dir = PlainReport(sys.stderr), ledger.parents[1]
        asked = sweep(based, short)
        done = run_sweep(asked, machine(host), results, report=report, data_dir=data_dir)
        print(done.text(), file=sys.stderr)
        return done.exit_code
    except HarnessError as error:
        print(f"hvdscale: error: {error}", file=sys.stderr)
        return error.exit_code


def put_in_stub(ledger: Path, host: str = "stub") -> None:
    """Let what this process launches be measured at once, as on ``host``."""

    def build(config: RunConfig, _: Machine, run_file: str, *__: Any, **___: Any) -> Command:
        return Command(("stub", run_file), {})

    put_in(socket, "gethostname", lambda: host)
    put_in(point, "build", build)
    put_in(point, "run_launch", launcher(ledger))
    put_in(running, "Guard", NoGuard)


def measured(ledger: Path) -> list[str]:
    """Return the ids of all measurements that were begun, in their order."""
    return ledger.read_text().split() if ledger.exists() else []


def results_of(folder: Path) -> dict[str, Any]:
    """Return what a sweep found out, without what differs between two runs of it.

    By run id: the record, its raw steps' checksum in it; of a point that failed the cause.
    """
    found: dict[str, Any] = {}
    for record in Store.open(folder).records():
        if record.status == "cancelled":
            continue
        if record.status != "ok":
            assert record.error is not None
            assert found.setdefault(record.run_id, record.error.cause) == record.error.cause
            continue
        plain = json.loads(record.text())
        for name in ("attempt", "started_at", "ended_at", "sha256"):
            del plain[name]
        del plain["block"]["allocation"], plain["resolved"]["hosts"]  # they say on which host
        assert not isinstance(found.get(record.run_id), dict)
        found[record.run_id] = plain
    return found


def check(folder: Path, before: dict[str, bytes] | None = None) -> dict[str, bytes]:
    """Assert what holds at every moment; return the committed records, whose bytes stay so.

    Everything that has a name is whole; what a crash left unfinished is hidden and ends in .tmp.
    """
    committed: dict[str, bytes] = {}
    for path in folder.rglob("*"):
        if path.is_file() and not TEMPORARY.fullmatch(path.name):
            _check_file(path, committed)
    for run_id, data in (before or {}).items():
        assert committed.get(run_id) == data, f"the record of {run_id} is another one, or gone"
    if (folder / "sweep.json").exists():
        broken: list[Broken] = []
        store = Store.open(folder)
        assert store.verify(committed, broken.append) == set(committed) == store.done_ids()
        assert broken == [], broken
        list_sweep(folder).text()
    return committed


def _check_file(path: Path, committed: dict[str, bytes]) -> None:
    data = path.read_bytes()
    if path.parent.name == "runs":
        raw, record = _RAW.fullmatch(path.name), _RECORD.fullmatch(path.name)
        assert raw or record, f"{path}: what is this?"
        if raw:
            assert hashlib.sha256(data).hexdigest().startswith(raw[1]), f"{path}: not whole"
        elif record and not record[2]:
            committed[record[1]] = data
        elif record:
            Store(path.parents[1]).read_failure(record[1], int(record[2]))
    elif path.parent.name == "quarantine":
        run_id = path.name.partition(".")[0]
        assert list(path.parent.glob(f"{run_id}*.reason.txt")), f"{path}: why is it here?"
    elif path.suffix == ".json":
        json.loads(data)
    else:
        assert path.name in _KNOWN or path.name.endswith("lock"), f"{path}: what is this?"


def temporaries(folder: Path) -> list[str]:
    """Return what crashes left."""
    return [str(path) for path in folder.rglob("*") if TEMPORARY.fullmatch(path.name)]


def not_twice(entries: Iterable[str], done: Iterable[str]) -> None:
    """Assert that nothing that was recorded was measured again."""
    twice = set(entries) & set(done)
    assert not twice, f"recorded, and measured again: {sorted(twice)}"


def raw_size(run_id: str) -> int:
    """Return how much room the raw steps of a run take."""
    return len(parquet_bytes(steps_of(run_id)))
