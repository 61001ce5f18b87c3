"""Launches of a tuning without ranks: throughput is a function of the config."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.config import RunConfig
from harness.launch.environment import AUTOTUNE_FILE
from harness.record import RunError, RunRecord
from harness.runner.point import Done, Place
from harness.runner.schedule import Planned
from harness.tuner.outcome import Outcome
from harness.tuner.request import Request, request_data
from harness.tuner.run import tune
from tests import factories
from tests.unit.stub_sweep import MACHINE

FLAGS = {"backend": "gloo", "placement": "1x2", "batch_size": 20}
SETTINGS = ("workload.samples=400", "cores_per_rank=1")
WALL_S = 10.0
LOG = "names\n" + "0,0,0, 0,5,4,20.181\n" * 42 + "0,0,0, 1,2.5,25.7,74.3\n"

#: Samples a second of a launch; None: it fails.
Rate = Callable[[RunConfig, int], float | None]


class Notes:
    """A report that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def begin(self, name: str, total: int, done: int) -> None:
        """See ``Report``."""

    def launching(self, label: str) -> None:
        """See ``Report``."""

    def finished(self, label: str, record: RunRecord, wall_s: float) -> None:
        """See ``Report``."""

    def note(self, text: str) -> None:
        """See ``Report``."""
        self.lines.append(text)


class Launches:
    """Stands in for the runner's launches; ``asked`` has the config and repeat of each."""

    def __init__(self, rate: Rate, *, interrupt_at: int = 0, log: str = LOG) -> None:
        self.asked: list[tuple[RunConfig, int]] = []
        self.limits_s: list[float] = []
        self.now_s = 0.0  # of a clock that only launches move
        self._rate = rate
        self._interrupt_at = interrupt_at
        self._log = log

    def __call__(self, launch: Planned, place: Place, guard: Any, interrupts: Any) -> Done:
        self.asked.append((launch.config, launch.block.repeat))
        self.limits_s.append(place.timeout_s)
        attempt, log_dir = place.store.claim_attempt(launch.run_id)
        if len(self.asked) == self._interrupt_at:
            interrupts.notice(signal.SIGINT)
            return Done(self._failed(launch, place, attempt, "cancelled", "interrupted"), 1.0)
        if launch.problem:
            return Done(self._failed(launch, place, attempt, "failed", launch.problem), 0.0)
        self.now_s += WALL_S
        rate = self._rate(launch.config, launch.block.repeat)
        if rate is None:
            return Done(self._failed(launch, place, attempt, "failed", "it crashed"), WALL_S)
        if launch.config.horovod.autotune:
            (log_dir / AUTOTUNE_FILE).write_text(self._log)
        record = self._record(launch, attempt, throughput=rate)
        return Done(place.store.commit(record, None), WALL_S)

    def _failed(
        self, launch: Planned, place: Place, attempt: int, status: str, cause: str
    ) -> RunRecord:
        error = RunError(cause=cause)
        parts = {"status": status, "error": error, "window": None}
        return place.store.add_failure(self._record(launch, attempt, **parts))

    @staticmethod
    def _record(launch: Planned, attempt: int, **parts: Any) -> RunRecord:
        return factories.record(
            launch.config,
            launch.block.repeat,
            attempt=attempt,
            resolved=launch.resolved,
            block=launch.block,
            **parts,
        )


def request(*overrides: str, **settings: Any) -> Request:
    """Return a request on the stub's machine; ``settings`` are fields of it."""
    flags: Mapping[str, Any] = {**FLAGS, **settings.pop("flags", {})}
    machine = settings.pop("machine", MACHINE)
    data = request_data("stress_strain", flags, [*SETTINGS, *overrides], machine)
    kept = {"budget_s": 1e6, "trials": 12, "blocks": 3, "autotune": False, **settings}
    return Request(data=data, **kept)


def tuned(
    asked: Request, launches: Launches, results: Path, report: Notes | None = None, **more: Any
) -> Outcome:
    """Tune with launches of the stub."""
    keys = {"data_dir": results / "data", "environ": {}, **more}
    machine = keys.pop("machine", MACHINE)
    notes = report or Notes()
    return tune(asked, machine, results, report=notes, launch=launches, **keys)
