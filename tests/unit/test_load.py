"""What a long sweep costs: counts that do not depend on how fast a machine is."""

from __future__ import annotations

import gc
import io
import os
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import bounded
from harness.detect import detect_machine
from harness.runner import launcher, point, run_sweep
from harness.runner.launcher import Ending
from harness.runner.progress import PlainReport
from harness.store import Store, folder
from tests.bench.folders import large_sweep, write_done
from tests.unit import stub_launch, stub_sweep

HOST = stub_sweep.MACHINE
#: A point's: an entry of a set, and a few strings that pydantic keeps for a while. What a record
#: takes in memory is ten times as much, and a config two times.
GROWTH_BYTES = 1000


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Let launches be a commit in this process; what is in the list is called after each."""
    after: list[Callable[[], None]] = []

    def run_launch(argv: object, env: object, launch_id: str, log: Path, *_: Any, **__: Any) -> Any:
        stub_launch.commit(log.parent / "run.json")
        for call in after:
            call()
        return Ending(exit_code=0, wall_s=0.0)

    monkeypatch.setattr(point, "build", stub_sweep.fake_build(lambda config: "ok"))
    monkeypatch.setattr(point, "run_launch", run_launch)
    assert launcher.run_launch is not run_launch
    return after


def run(points: int, results: Path) -> None:
    with open(os.devnull, "w") as nobody:
        report = PlainReport(nobody)
        found = run_sweep(
            stub_sweep.long_sweep(points), HOST, results, report=report, data_dir=results / "data"
        )
    assert (found.ok, found.failed) == (points, 0)


class Counted:
    """Calls of functions of ``os`` below a folder, by name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, below: Path) -> None:
        self.calls: Counter[str] = Counter()
        self._below = str(below)
        for name in ("scandir", "listdir", "open", "fsync"):
            monkeypatch.setattr(os, name, self._counting(name, getattr(os, name)))

    def _counting(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(what: Any = ".", *rest: Any, **more: Any) -> Any:
            if name == "fsync" or str(what).startswith(self._below):
                self.calls[name] += 1
                if name in ("scandir", "listdir"):
                    self.calls[f"{name} runs"] += Path(what).name == "runs"
            return real(what, *rest, **more)

        return call


def test_a_point_costs_the_same_however_many_there_were(
    tmp_path: Path, launched: list[Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    for points in (20, 30, 40):
        results = tmp_path / str(points)
        with monkeypatch.context() as patch:
            counted = Counted(patch, results / "stub")
            run(points, results)
        counts.append(counted.calls)
    few, more, most = counts
    assert most - more == more - few
    ten = more - few
    assert ten["scandir runs"] == ten["listdir runs"] == 0
    assert ten["scandir"] + ten["listdir"] == 10  # of its own logs
    assert ten["fsync"] == 40  # run.json and the record, each with the name in its folder


def test_memory_does_not_grow_with_points(
    tmp_path: Path, launched: list[Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: dict[int, int] = {}
    seen = Counter[str]()

    def look() -> None:
        seen["points"] += 1
        if seen["points"] in (300, 600):
            gc.collect()
            sizes[seen["points"]] = tracemalloc.get_traced_memory()[0]
        if seen["points"] == 290:
            tracemalloc.start()

    launched.append(look)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    try:
        run(600, tmp_path)
    finally:
        tracemalloc.stop()
    assert sizes[600] - sizes[300] < 300 * GROWTH_BYTES


def test_a_large_folder_that_is_done_is_listed_twice_and_each_record_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = HOST.__class__(
        hosts=(stub_sweep.Host("stub", 24, 24),),
        device="cpu",
        launchers=HOST.launchers,
        modules=HOST.modules,
        mpi=detect_machine().mpi,
    )
    sweep = large_sweep(500)
    _, count = write_done(sweep, machine, tmp_path)
    read: Counter[str] = Counter()
    real = bounded._open

    def counting(path: Path | str) -> int:
        read[Path(path).name] += Path(path).parent.name == "runs"
        return real(path)

    monkeypatch.setattr(bounded, "_open", counting)
    monkeypatch.setattr(
        folder, "read_record", lambda *_: pytest.fail("a whole record was made typed")
    )
    with monkeypatch.context() as patch:
        counted = Counted(patch, tmp_path / "large")
        found = run_sweep(sweep, machine, tmp_path, report=PlainReport(io.StringIO()))
    assert (found.ok, found.skipped) == (0, count)
    assert sum(read.values()) == count
    assert set(read.values()) <= {0, 1}
    assert counted.calls["scandir runs"] + counted.calls["listdir runs"] <= 2
    assert Store.open(tmp_path / "large").sound_ids() == Store.open(tmp_path / "large").done_ids()
