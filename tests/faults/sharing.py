"""One results folder and several runners, hosts, names of hosts and clocks."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from datetime import datetime, timedelta, tzinfo
from functools import partial
from pathlib import Path
from typing import Any, Self

from harness import clock
from harness.analysis.collecting import load_arrow
from harness.errors import StoreError
from harness.store import Store
from tests import factories
from tests.faults import disturbed, kills
from tests.faults.checkpoints import Checkpoints
from tests.faults.forks import fork, wait

WRITERS, OWN, SHARED = 64, 2, 4


def two_hosts(folder: str, seed: int, sweeps: int) -> dict[str, int]:
    """Let runners of two hosts share a sweep; one of them, or both, are killed, and run again."""
    root, chance = Path(folder), random.Random(seed)
    expected = kills.undisturbed(root / "undisturbed")
    points = kills.count(root / "counted").points
    found = {"rounds": 0, "late": 0}
    for number in range(sweeps):
        there = kills.place(root / str(number))
        committed: dict[str, bytes] = {}
        for _ in range(4):
            known = len(disturbed.measured(there.ledger))
            plans = [(host, chance.randint(1, 2 * points)) for host in ("one", "two")]
            pids = [fork(partial(_host, there, host, at), there.log) for host, at in plans]
            codes = [wait(pid) for pid in pids]
            told = f"seed {seed}, {there.root}, {plans}, {codes}: {there.log.read_text()[-3000:]}"
            assert set(codes) <= {1, -9}, told
            fresh = disturbed.measured(there.ledger)[known:]
            disturbed.not_twice(fresh, committed)
            committed = disturbed.check(there.folder, committed)
            found["rounds"] += 1
            found["late"] += len(fresh) - len(set(fresh))
        kills.finished(there, expected, f"seed {seed}, {there.root}")
    return found


def _host(there: kills.Place, host: str, at: int, based: bool = False) -> int:
    Checkpoints(there.folder, "kill" if at else "", at, signal.SIGKILL).install()
    return disturbed.run(there.results, there.ledger, host, based)


def many_writers(folder: str) -> dict[str, Any]:
    """Let 64 processes write into one folder at the same moment; return what each was told."""
    root = Path(folder)
    ready, go = os.pipe(), os.pipe()
    pids = [fork(partial(_writer, root, n, ready, go), root / "log") for n in range(WRITERS)]
    for _ in pids:
        os.read(ready[0], 1)
    os.close(go[1])
    codes = [wait(pid) for pid in pids]
    assert codes == [0] * WRITERS, (root / "log").read_text()[-3000:]
    told = [json.loads((root / f"{n}.json").read_text()) for n in range(WRITERS)]
    store = Store.open(root / "stub")
    committed = disturbed.check(store.path)
    winners = Counter(name for one in told for name in one["written"])
    assert set(winners) == set(committed)
    assert set(winners.values()) == {1}
    for number, one in enumerate(told):
        for name in one["written"]:
            assert store.read(name).attempt == 1 + number
            assert store.read_steps(name)["step_s"][0].as_py() == number
    assert not disturbed.temporaries(root)
    return {
        "written": sum(winners.values()),
        "refused": sum(one["refused"] for one in told),
        "attempts": sorted(one["attempt"] for one in told),
    }


def _writer(root: Path, number: int, ready: tuple[int, int], go: tuple[int, int]) -> int:
    import pyarrow as pa

    os.close(go[1])
    os.write(ready[1], b".")
    os.read(go[0], 1)
    store = Store.open(root / "stub", create=True)
    store.save_config("one: text\n")
    written, refused = [], 0
    for repeat in [*range(SHARED), *range(100 * (1 + number), 100 * (1 + number) + OWN)]:
        made = factories.record(factories.config("horovod", 2, backend="mpi"), repeat)
        try:
            record = made.model_copy(update={"attempt": 1 + number})
            store.commit(record, pa.table({"step_s": [float(number), float(repeat)]}))
            written.append(made.run_id)
        except StoreError:
            refused += 1
    attempt, _ = store.claim_attempt("0123456789abcdef")
    found = {"written": written, "refused": refused, "attempt": attempt}
    (root / f"{number}.json").write_text(json.dumps(found))
    return 0


def clock_set_back(folder: str, seed: int) -> dict[str, Any]:
    """Set the clock back by a day at every look at it, and files' times with it; kill twice."""
    root, chance = Path(folder), random.Random(seed)
    expected = kills.undisturbed(root / "undisturbed")
    points = kills.count(root / "counted").points
    there = kills.place(root / "back")
    committed: dict[str, bytes] = {}
    rows: list[int] = []
    known: set[Path] = set()
    for back_days, at in ((0, 2 * points // 3), (1000, points // 2), (2000, 0)):

        def work(back_days: int = back_days, at: int = at) -> int:
            _set_back(back_days)
            Checkpoints(there.folder, "kill" if at else "", at, signal.SIGKILL).install()
            return disturbed.run(there.results, there.ledger)

        _, committed = kills.run_and_check(there, work, committed, f"{back_days} days back")
        for path in set(there.folder.rglob("*")) - known:  # as if it was the file server's clock
            os.utime(path, (time.time() - back_days * 86400 - chance.random(),) * 2)
        known |= set(there.folder.rglob("*"))
        rows.append(load_arrow(there.folder).num_rows)
    assert disturbed.results_of(there.folder) == expected
    records = list(Store.open(there.folder).records())
    assert len(records) == rows[-1]
    return {
        "rows": rows,
        "backwards": sum(record.ended_at < record.started_at for record in records),
        "attempts": sorted(record.attempt for record in records if record.status != "ok"),
        "spread_days": _spread_days([record.started_at for record in records]),
    }


def _set_back(back_days: int) -> None:
    looks = 0

    def now() -> float:
        nonlocal looks
        looks += 1
        return real() - (back_days + looks) * 86400

    class Backwards(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls.fromtimestamp(now(), tz)

    real = time.time
    time.time = now
    disturbed.put_in(clock, "datetime", Backwards)


def _spread_days(times: list[str]) -> int:
    found = [datetime.fromisoformat(one) for one in times]
    return int((max(found) - min(found)) / timedelta(days=1))


def host_renamed(folder: str, seed: int) -> dict[str, Any]:
    """Kill a runner on a host; run the rest when the host has another name."""
    root, chance = Path(folder), random.Random(seed)
    found = {"bases": 0, "kills": 0}
    for number in range(6):
        there = kills.place(root / str(number))
        at = chance.randint(100, 450)
        old = partial(_host, there, "old-name", at, True)
        new = partial(_host, there, "new-name", 0, True)
        code, committed = kills.run_and_check(there, old, {}, f"killed at {at}")
        found["kills"] += code == -9
        code, _ = kills.run_and_check(there, new, committed, f"killed at {at}, renamed")
        assert code == 1, there.log.read_text()
        _all_paired(there.folder, set(committed))
        known = len(disturbed.measured(there.ledger))
        kills.run_and_check(there, new, committed, "once more")
        again = disturbed.measured(there.ledger)[known:]
        # The point that always fails, and its base, in each block.
        assert len(again) == 2 * disturbed.BLOCKS, again
        found["bases"] += sum(r.block.is_base for r in Store.open(there.folder).records())
    return found


def _all_paired(folder: Path, before: set[str]) -> None:
    """Assert that every point has one record a block, a base of the same host beside each new one.

    A point that was measured ``before`` on the old host may have lost its base with it.
    """
    records = [one for one in Store.open(folder).records() if one.status == "ok"]
    points = Counter((r.config.batch_size, r.block.repeat) for r in records if not r.block.is_base)
    good = [batch for batch in disturbed.BATCHES if batch != disturbed.FAILING]
    assert points == {(b, n): 1 for b in good for n in range(disturbed.BLOCKS)}, points
    bases = {(r.config.batch_size, r.block) for r in records if r.block.is_base}
    for one in records:
        if not one.block.is_base and one.run_id not in before:
            same = {(batch, b.repeat, b.allocation) for batch, b in bases}
            assert (one.config.batch_size, one.block.repeat, one.block.allocation) in same
