"""As ``kills``, with launches that are processes: killed by the clock, at any moment."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from harness.config import RunConfig
from harness.detect import Machine
from harness.launch import Command
from harness.runner import point, run_sweep
from harness.runner.interrupts import Interrupts
from harness.runner.launcher import Guard
from harness.runner.point import Done, Place, launch_point
from harness.runner.progress import PlainReport
from harness.runner.schedule import Planned
from harness.store.raw import parquet_bytes, raw_path
from tests import proc
from tests.faults import disturbed, kills
from tests.faults.forks import fork, wait

PROGRAM = Path(__file__).with_name("quick_launch.py")
VARIABLE = "HVDSCALE_TEST_RUNNER"  # carried by all processes that a runner of ours starts
SLEEP_S = 0.02
HANG_S = 600.0  # of a rank that only its end ends
GONE_S = 60.0


def run(there: kills.Place, sleep_s: float = SLEEP_S) -> int:
    """Run the sweep in this process, with its guard, launchers and ranks.

    A rank commits, or fails, after ``sleep_s``.
    """
    os.environ[VARIABLE] = str(there.root)
    current: list[Planned] = []

    def build(config: RunConfig, _: Machine, run_file: str, *__: Any, **___: Any) -> Command:
        argv = _prepared(there, current[-1], Path(run_file))
        return Command((*argv, str(sleep_s)), {})

    def launch(planned: Planned, place: Place, guard: Guard, interrupts: Interrupts) -> Done:
        current.append(planned)
        with there.ledger.open("a") as file:
            file.write(f"{planned.run_id}\n")
        return launch_point(planned, place, guard, interrupts)

    disturbed.put_in(point, "build", build)
    done = run_sweep(
        disturbed.sweep(),
        disturbed.machine(),
        there.results,
        report=PlainReport(sys.stderr),
        data_dir=there.results,
        launch=launch,
    )
    return done.exit_code


def _prepared(there: kills.Place, planned: Planned, run_file: Path) -> tuple[str, ...]:
    """Write down what a launch will measure; return what starts it."""
    program = (sys.executable, "-I", "-S", str(PROGRAM))
    target = there.folder / "runs" / f"{planned.run_id}.json"
    if planned.config.batch_size == disturbed.FAILING:
        return (*program, "fails", "-", str(target))
    attempt = int(run_file.parent.name)
    folder = there.root / "prepared" / f"{planned.run_id}-{attempt}"
    folder.mkdir(parents=True)
    raw = parquet_bytes(disturbed.steps_of(planned.run_id))
    digest = hashlib.sha256(raw).hexdigest()
    steps = raw_path(folder, planned.run_id, "steps", digest)
    steps.write_bytes(raw)
    record = disturbed.record_of(planned, attempt).model_copy(update={"steps_sha256": digest})
    (folder / "record").write_bytes(record.sealed().text())
    return (*program, str(folder / "record"), str(steps), str(target))


def left(there: kills.Place) -> list[str]:
    """Return the processes that runners of ``there`` have started and that are there still."""
    mark = f"{VARIABLE}={there.root}"
    return [proc.command_line(pid) for pid in proc.pids() if mark in proc.environ(pid)]


def _all_gone(there: kills.Place) -> None:
    deadline = time.monotonic() + GONE_S
    while found := left(there):
        assert time.monotonic() < deadline, f"left: {found}"
        time.sleep(0.01)


def killed_by_the_clock(folder: str, seed: int, count: int) -> dict[str, Any]:
    """Kill ``count`` runners, each after a time chosen by ``seed``; finish and compare."""
    root, chance = Path(folder), random.Random(seed)
    first = kills.place(root / "undisturbed")
    began = time.monotonic()
    assert wait(fork(lambda: run(first), first.log)) == 1, first.log.read_text()
    longest_s = time.monotonic() - began
    disturbed.check(first.folder)
    expected = disturbed.results_of(first.folder)
    found = {"kills": 0, "sweeps": 0, "measured": 0}
    while found["kills"] < count:
        there = kills.place(root / str(found["sweeps"]))
        found["kills"] += _one_sweep(there, chance, longest_s)
        assert disturbed.results_of(there.folder) == expected, f"seed {seed}, {there.root}"
        found["sweeps"] += 1
        found["measured"] += len(disturbed.measured(there.ledger))
    return found


def _one_sweep(there: kills.Place, chance: random.Random, longest_s: float) -> int:
    committed: dict[str, bytes] = {}
    for killed in range(1000):
        after_s, number = chance.random() ** 2 * longest_s, chance.choice(kills.SIGNALS)
        sleep_s = HANG_S if chance.random() < 0.4 else SLEEP_S
        code, committed = kills.run_and_check(
            there, partial(run, there, sleep_s), committed,
            f"{there.root}: signal {number} after {after_s:.4f} s",
            started=_killer(there, after_s, number),
        )  # fmt: skip
        assert code in kills.ENDS[number], f"exit code {code}: {there.log.read_text()}"
        if code == 1:  # it came to its end before
            return killed
    raise AssertionError("the sweep never came to its end")


def _killer(there: kills.Place, after_s: float, number: signal.Signals) -> Callable[[int], int]:
    """Return what awaits a runner: killed with all that it started."""

    def end(pid: int) -> int:
        time.sleep(after_s)  # the moment itself is what is tried
        os.kill(pid, number)
        code = wait(pid)
        _all_gone(there)
        return code

    return end
