"""What the runner itself takes for a point: launches are ``true``, with a record beside it."""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.config import RunConfig
from harness.detect import Host, Machine
from harness.launch import Command
from harness.runner import point, run_sweep
from harness.runner.progress import PlainReport
from tests.unit import stub_launch, stub_sweep

BUDGET_MS = 50.0
MACHINE = Machine(hosts=(Host("stub", 8, 8),), device="cpu", modules=frozenset({"torch"}))


@dataclass(frozen=True)
class Overhead:
    """Of every point, between one launch's record and the next, without writing the record."""

    first_ms: float  # mean of the first tenth
    last_ms: float
    mean_ms: float
    median_ms: float
    cpu_ms: float  # of this process, the record included: what a busy machine adds is not in it
    commit_ms: float  # what writing the record, which a rank does, took beside it
    rss_mb: float  # at the end
    growth_mb: float

    def __str__(self) -> str:
        return (
            f"{self.mean_ms:.1f} ms mean, {self.median_ms:.1f} median; first tenth "
            f"{self.first_ms:.1f}, last {self.last_ms:.1f}; {self.cpu_ms:.1f} ms of CPU "
            f"(a record besides {self.commit_ms:.1f} ms)"
        )


def measure(points: int, folder: Path) -> Overhead:
    """Run a sweep of ``points`` points in this process."""
    sweep = stub_sweep.long_sweep(points, "points")
    watch = _Watch()
    real_build, real_launch = point.build, point.run_launch  # type: ignore[attr-defined]
    setattr(point, "build", _build)  # noqa: B010  both names are imported there
    setattr(point, "run_launch", watch.around(real_launch))  # noqa: B010
    try:
        with open(os.devnull, "w") as nobody:
            run_sweep(sweep, MACHINE, folder, report=PlainReport(nobody), data_dir=folder / "data")
    finally:
        setattr(point, "build", real_build)  # noqa: B010
        setattr(point, "run_launch", real_launch)  # noqa: B010
    return watch.overhead()


def _build(config: RunConfig, machine: Machine, *_: Any, **__: Any) -> Command:
    return Command((shutil.which("true") or "/bin/true",), {})


class _Watch:
    """Times and memory at each launch."""

    def __init__(self) -> None:
        self._began: list[float] = []
        self._commit_s: list[float] = []
        self._rss: list[int] = []
        self._cpu_s: list[float] = []

    def around(self, real: Any) -> Any:
        """Return ``real`` with the record of the launch committed before it."""

        def run_launch(argv: Any, env: Any, launch_id: str, log: Path, *rest: Any, **more: Any):  # type: ignore[no-untyped-def]
            began = time.perf_counter()
            stub_launch.commit(log.parent / "run.json")
            self._commit_s.append(time.perf_counter() - began)
            self._began.append(began)
            self._rss.append(_rss_bytes())
            self._cpu_s.append(time.process_time())
            return real(argv, env, launch_id, log, *rest, **more)

        return run_launch

    def overhead(self) -> Overhead:
        """Return the figures."""
        pairs = zip(self._began, self._began[1:], self._commit_s, strict=False)
        own_ms = [1e3 * (after - before - commit_s) for before, after, commit_s in pairs]
        tenth = max(1, len(own_ms) // 10)
        return Overhead(
            first_ms=statistics.fmean(own_ms[:tenth]),
            last_ms=statistics.fmean(own_ms[-tenth:]),
            mean_ms=statistics.fmean(own_ms),
            median_ms=statistics.median(own_ms),
            cpu_ms=1e3 * (self._cpu_s[-1] - self._cpu_s[0]) / len(own_ms),
            commit_ms=1e3 * statistics.fmean(self._commit_s),
            rss_mb=self._rss[-1] / 1e6,
            growth_mb=(self._rss[-1] - self._rss[tenth]) / 1e6,
        )


def _rss_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
