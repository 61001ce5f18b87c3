"""Runners that are killed, again and again, until the sweep is done all the same."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults import disturbed
from tests.faults.checkpoints import Checkpoints
from tests.faults.forks import fork, forked, wait

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
#: What a runner may end with: done with a point that failed, told to end, or killed by the signal.
ENDS: dict[int, set[int]] = {
    signal.SIGKILL: {1, -signal.SIGKILL},
    signal.SIGTERM: {1, 130, -signal.SIGTERM},
    signal.SIGINT: {1, 130},
}


@dataclass(frozen=True)
class Place:
    """Where one sweep is, and beside it what is no part of it."""

    root: Path
    short: bool = False  # a sweep of two launches

    def run(self) -> int:
        return disturbed.run(self.results, self.ledger, short=self.short)

    @property
    def results(self) -> Path:
        return self.root / "results"

    @property
    def folder(self) -> Path:
        return self.results / "stub"

    @property
    def ledger(self) -> Path:
        return self.root / "ledger"

    @property
    def log(self) -> Path:
        return self.root / "log"


def place(root: Path, short: bool = False) -> Place:
    root.mkdir(parents=True)
    return Place(root, short)


def undisturbed(root: Path, short: bool = False) -> dict[str, Any]:
    """Return what a sweep finds that nothing disturbs."""
    there = place(root, short)
    assert forked(there.run, there.log) == 1
    disturbed.check(there.folder)
    return disturbed.results_of(there.folder)


def count(root: Path, short: bool = False, links: bool = True) -> Checkpoints:
    """Return the checkpoints and operations that a sweep has, by a run of it."""
    there = place(root, short)
    counted = root / "counted"

    def work() -> int:
        points = watched(Checkpoints(there.folder), links)
        code = there.run()
        found = (points.points, points.reads, points.done, points.labels)
        counted.write_text(json.dumps(found))
        return code

    assert forked(work, there.log) == 1, there.log.read_text()
    number, reads, done, labels = json.loads(counted.read_text())
    return Checkpoints(there.folder, points=number, reads=reads, done=done, labels=labels)


def watched(points: Checkpoints, links: bool = True) -> Checkpoints:
    """Put checkpoints into this process; without ``links`` as on a file system that has none."""
    if not links:
        disturbed.put_in(os, "link", _no_links)
    return points.install()


def _no_links(*_: object) -> None:
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


def killed_in_commits_without_links(folder: str) -> dict[str, int]:
    """Kill a runner at each checkpoint of its commits, where there are no hard links."""
    root = Path(folder)
    expected = undisturbed(root / "undisturbed", short=True)
    labels = count(root / "counted", short=True, links=False).labels
    moments = [at for at, label in enumerate(labels, 1) if "/stub/runs/" in label]
    for at in moments:
        there = place(root / str(at), short=True)

        def work(there: Place = there, at: int = at) -> int:
            watched(Checkpoints(there.folder, "kill", at, signal.SIGKILL), links=False)
            return there.run()

        code, _ = run_and_check(there, work, {}, f"{there.root}: {labels[at - 1]}")
        assert code == -signal.SIGKILL, labels[at - 1]
        finished(there, expected, labels[at - 1])
    return {"kills": len(moments)}


def killed_at_checkpoints(folder: str, seed: int, kills: int) -> dict[str, Any]:
    """Kill runners at ``kills`` checkpoints, chosen by ``seed``; finish and compare each sweep."""
    root, chance = Path(folder), random.Random(seed)
    expected = undisturbed(root / "undisturbed")
    points = count(root / "counted").points
    found = {"kills": 0, "sweeps": 0, "measured": 0}
    while found["kills"] < kills:
        there = place(root / str(found["sweeps"]))
        found["kills"] += _one_sweep(there, chance, points)
        finished(there, expected, f"seed {seed}, {there.root}")
        found["sweeps"] += 1
        found["measured"] += len(disturbed.measured(there.ledger))
    nothing_to_do(there)
    return found


def _one_sweep(there: Place, chance: random.Random, points: int) -> int:
    """Kill runners of one sweep until one comes to its end; return how many were."""
    committed: dict[str, bytes] = {}
    for kills in range(1000):
        # Most soon after the start: a sweep takes many of them then.
        at = chance.randint(1, points if chance.random() < 0.2 else points // 4)
        number = chance.choice(SIGNALS)

        def work(at: int = at, number: int = number) -> int:
            Checkpoints(there.folder, "kill", at, number).install()
            return there.run()

        where = f"{there.root}: signal {number} at checkpoint {at}"
        code, committed = run_and_check(there, work, committed, where)
        assert code in ENDS[number], f"{where}: exit code {code}"
        assert not list(there.folder.glob("quarantine/*")), where
        if "killed at checkpoint" not in there.log.read_text():
            return kills
    raise AssertionError("the sweep never came to its end")


def run_and_check(
    there: Place,
    work: Callable[[], int],
    committed: dict[str, bytes],
    where: str,
    started: Callable[[int], int] = wait,
) -> tuple[int, dict[str, bytes]]:
    """Run ``work`` to its end; assert what holds then. Return its exit code and what is committed.

    ``committed`` was so before; ``where`` tells in an error what is tried. ``started`` gets the pid
    and returns the exit code, when the process has ended.
    """
    there.log.unlink(missing_ok=True)
    known = len(disturbed.measured(there.ledger))
    code = started(fork(work, there.log))
    try:
        disturbed.not_twice(disturbed.measured(there.ledger)[known:], committed)
        return code, disturbed.check(there.folder, committed)
    except Exception as error:
        told = there.log.read_text()[-4000:]
        raise AssertionError(f"{where}: {error}; exit code {code}: {told}") from error


def finished(there: Place, expected: dict[str, Any], where: str) -> None:
    """Run the sweep undisturbed; assert that it is done exactly, and nothing is left to do."""
    committed = disturbed.check(there.folder)
    code, committed = run_and_check(there, there.run, committed, where)
    told = f"{where}: {there.log.read_text()[-2000:]}"
    assert code == 1, told
    assert disturbed.results_of(there.folder) == expected, told


def nothing_to_do(there: Place) -> None:
    """Assert that a run begins nothing but the point that always fails."""
    known = len(disturbed.measured(there.ledger))
    finished(there, disturbed.results_of(there.folder), "once more")
    assert len(disturbed.measured(there.ledger)) - known == disturbed.BLOCKS
