"""Signals that ask to end while no launch runs: while a sweep's data is made."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness import slurm
from harness.config.identity import point_id
from harness.detect import Machine, Slurm
from harness.runner import data, point, schedule
from harness.runner.launcher import run_launch
from harness.runner.progress import PlainReport
from harness.runner.sweep import Summary
from harness.store import Store
from harness.submit.element import FOLDER, run_element
from harness.submit.manifest import ArrayManifest, Element
from harness.submit.site import Site
from tests.unit import stub_sweep
from tests.unit.stub_sweep import MACHINE, fake_build, make_sweep

ENDS = [(signal.SIGTERM, 130), (signal.SIGHUP, 130), (signal.SIGUSR1, 1)]


class Making:
    """A workload whose data takes long, and during which this process gets signals."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self.numbers = numbers
        self.said: list[str] = []

    def __call__(self, *_: object) -> Making:
        return self

    def prepare(self) -> None:
        self.said.append("began")
        try:
            os.kill(os.getpid(), self.numbers[0])
            time.sleep(30)
            self.said.append("made")
        finally:
            for number in self.numbers[1:]:
                os.kill(os.getpid(), number)
            self.said.append("tidied up")


@pytest.fixture(autouse=True)
def handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test before has left: no signal is ignored, and none of them ends pytest."""
    monkeypatch.setattr(point, "build", fake_build(lambda config: "ok"))
    for number, _ in ENDS:
        assert signal.getsignal(number) == signal.SIG_DFL


def making(monkeypatch: pytest.MonkeyPatch, *numbers: signal.Signals) -> Making:
    made = Making(*numbers)
    monkeypatch.setattr(data, "registry", SimpleNamespace(create=made))
    return made


def element(results: Path, machine: Machine) -> Summary:
    """Run an element of one point."""
    work = schedule.planned(make_sweep(), MACHINE, results)
    manifest = ArrayManifest(
        version="0",
        sweep="stub",
        submission="s1",
        number=0,
        site=Site(name="here", nodes=1, cpus_per_node=8),
        results=work.folder,
        data_dir=results,
        placement=(1,),
        time_limit_s=600,
        timeout_s=240.0,
        configs=tuple(work.plan.points),
        resolved=tuple(work.plan.resolved[point_id(config)] for config in work.plan.points),
        elements=(Element(repeat=0, points=(0,), bases=()),),
    )
    manifest.write(results / "array-0.json")
    return run_element(results / "array-0.json", 0, PlainReport(sys.stderr), machine=machine)


def told(results: Path, job: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((results / "stub" / FOLDER / f"{job}.json").read_text())
    return found


@pytest.mark.parametrize(("number", "code"), ENDS)
def test_the_making_ends_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    # The second and third do not break off the tidying up after the first.
    made = making(monkeypatch, number, number, signal.SIGTERM)
    summary = stub_sweep.run(make_sweep(), tmp_path)
    assert made.said == ["began", "tidied up"]
    assert summary.exit_code == code
    assert summary.time_was_near == (number == signal.SIGUSR1)
    assert (summary.ok, summary.failed) == (0, 0)
    assert Store.open(tmp_path / "stub").attempts() == set()
    assert signal.getsignal(number) == signal.SIG_DFL


def test_ctrl_c_is_an_exception(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = making(monkeypatch, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        stub_sweep.run(make_sweep(), tmp_path)
    assert made.said == ["began", "tidied up"]
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


@pytest.mark.parametrize(
    ("number", "reason"),
    [(signal.SIGTERM, "asked to end"), (signal.SIGUSR1, "time limit")],
)
def test_an_element_says_that_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, reason: str
) -> None:
    making(monkeypatch, number)
    element(tmp_path, replace(MACHINE, slurm=None))
    said = told(tmp_path, f"local-{os.getpid()}")
    assert (said["state"], said["reason"], said["done"]) == ("ended", reason, 0)


def test_an_ignored_signal_stays_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of ``nohup``."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    try:
        made = making(monkeypatch, signal.SIGHUP)
        assert stub_sweep.run(make_sweep(), tmp_path).ok == 1
    finally:
        signal.signal(signal.SIGHUP, before)
    assert made.said == ["began", "made", "tidied up"]


RESTARTED = {"state": "COMPLETING", "restarts": 1}
ENDED = {"state": "COMPLETING"}
AGAIN = "interrupted; Slurm starts the job again for the rest"
BY_HAND = "interrupted; run it again for the rest"


def slurm_says(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> list[str]:
    """Let Slurm tell of the job; what it was asked for is returned."""
    asked: list[str] = []

    def job(name: str, timeout_s: float = 60) -> slurm.Job:
        asked.append(name)
        return slurm.Job(job_id="5_1", array="5", index=1, **fields)

    monkeypatch.setattr(slurm, "job", job)
    return asked


@pytest.mark.parametrize(
    ("number", "fields", "text"),
    [
        (signal.SIGTERM, RESTARTED, AGAIN),
        (signal.SIGTERM, ENDED, BY_HAND),
        (signal.SIGHUP, RESTARTED, BY_HAND),  # from no batch system
        (signal.SIGUSR1, RESTARTED, "the job's time was over; run it again for the rest"),
    ],
)
@pytest.mark.parametrize("when", ["data", "launch"])
def test_a_job_that_slurm_starts_again_is_not_to_be_run_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    fields: dict[str, Any],
    text: str,
    when: str,
) -> None:
    asked = slurm_says(monkeypatch, **fields)
    if when == "data":
        making(monkeypatch, number)
    else:
        monkeypatch.setattr(point, "build", fake_build(lambda config: "hang"))

        def signalled(*what: Any, **more: Any) -> Any:
            os.kill(os.getpid(), number)
            return run_launch(*what, **more)

        monkeypatch.setattr(point, "run_launch", signalled)
    own = Slurm("6", array_job_id="5", array_task_id="1")
    summary = element(tmp_path, replace(MACHINE, slurm=own))
    assert summary.text().splitlines()[0].endswith(f", {text}")
    assert summary.exit_code == (1 if number == signal.SIGUSR1 else 130)
    assert len(asked) <= 1  # it has little time
