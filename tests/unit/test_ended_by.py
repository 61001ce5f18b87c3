"""Why a launch ended: what asked for it, and what ``srun`` says of its tasks."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

import pytest

from harness import slurm
from harness.detect import Host, Machine, Slurm
from harness.errors import HarnessError
from harness.runner.diagnose import INTERRUPTED, Verdict, diagnose
from harness.runner.ended_by import ended_by
from harness.runner.interrupts import TIME_NEAR
from harness.runner.launcher import Ending
from harness.runner.logs import Logs, RankLog
from harness.runner.srun_log import TaskEnd, first_failed

# As Slurm 22.05 shows a job while it is being ended: COMPLETING, whatever for.
ENDING: dict[str, Any] = {"job_id": "5_1", "array": "5", "index": 1, "state": "COMPLETING"}


ALONE = Machine(hosts=(Host("n1", 2, 2),), device="cpu")


def in_job(restart_count: int = 0) -> Machine:
    own = Slurm("6", array_job_id="5", array_task_id="1", restart_count=restart_count)
    return replace(ALONE, slurm=own)


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let Slurm say something of a job; what it was asked for is returned."""

    def answer(**fields: Any) -> list[str]:
        asked: list[str] = []

        def job(name: str, timeout_s: float = 60) -> slurm.Job:
            assert timeout_s <= 15  # Slurm kills 30 s after it asked
            asked.append(name)
            return slurm.Job(**ENDING | fields)

        monkeypatch.setattr(slurm, "job", job)
        return asked

    return answer


@pytest.mark.parametrize(
    ("fields", "restart_count", "status", "words"),
    [
        ({}, 0, "cancelled", "scancel"),
        ({"restarts": 1}, 1, "cancelled", "scancel"),  # it was requeued before, not now
        ({"restarts": 1}, 0, "preempted", "starts the job again"),
        ({"restarts": 2, "preempted": True}, 1, "preempted", "starts the job again"),
        ({"state": "PENDING", "restarts": 1}, 0, "preempted", "starts the job again"),
        ({"preempted": True}, 0, "preempted", "the next submission"),
        ({"state": "RUNNING", "preempted": True}, 0, "preempted", "the next submission"),
        ({"reason": "TimeLimit"}, 0, "timeout", "was over"),
        ({"state": "TIMEOUT"}, 0, "timeout", "was over"),
        ({"reason": "NodeDown"}, 0, "failed", "a node of the job went down"),
        ({"state": "RUNNING"}, 0, "cancelled", "its job was not"),
    ],
)
def test_sigterm_in_a_job(
    say: Any, fields: dict[str, Any], restart_count: int, status: str, words: str
) -> None:
    asked = say(**fields)
    found = ended_by(signal.SIGTERM, in_job(restart_count))
    assert found.status == status
    assert words in found.cause
    assert asked == ["5_1"]  # not "6", which may be the whole array's number


def test_the_warning_is_of_the_time_limit_or_of_a_preemption(say: Any) -> None:
    say(state="RUNNING")
    assert ended_by(TIME_NEAR, in_job()).status == "timeout"
    say(state="RUNNING", preempted=True)
    assert ended_by(TIME_NEAR, in_job()).status == "preempted"


def test_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: Any, **__: Any) -> None:
        raise HarnessError("scontrol is not here")

    monkeypatch.setattr(slurm, "job", silent)
    assert "did not say why" in ended_by(signal.SIGTERM, in_job()).cause
    assert ended_by(TIME_NEAR, in_job()).status == "timeout"


def test_outside_of_a_job_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "job", None)
    for machine in (ALONE, in_job()):
        assert ended_by(signal.SIGINT, machine) == INTERRUPTED
        assert "terminal was closed (SIGHUP)" in ended_by(signal.SIGHUP, machine).cause
    assert ended_by(signal.SIGTERM, ALONE).cause == "the runner was asked to end (SIGTERM)"
    assert ended_by(TIME_NEAR, ALONE).status == "timeout"


# As srun prints them.
DEAD_RANK = """\
srun: cluster configuration lacks support for cpu binding
srun: error: n2: task 1: Killed
srun: launch/slurm: _step_signal: Terminating StepId=1.0
slurmstepd-n1: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-28T12:37:59 ***
srun: error: n1: task 0: Terminated
srun: Force Terminated StepId=1.0"""
TERMINATED = "srun: error: n1: task 0: Terminated\nsrun: Force Terminated StepId=1.0"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (DEAD_RANK, TaskEnd("1", "n2", -9)),
        (TERMINATED, None),
        ("\n".join([TERMINATED, DEAD_RANK]), TaskEnd("1", "n2", -9)),
        (
            "srun: error: node-7: task 12: Segmentation fault (core dumped)",
            TaskEnd("12", "node-7", -11),
        ),
        ("srun: error: n[1-2]: tasks 2-3,5: Exited with exit code 3", TaskEnd("2", "n[1-2]", 3)),
        ("srun: error: Unable to create step for job 1: Requested node is busy", None),
    ],
)
def test_the_task_that_failed_first(text: str, expected: TaskEnd | None) -> None:
    assert first_failed(text.splitlines()) == expected


def test_a_dead_rank_on_another_node_is_named_with_its_node() -> None:
    """Also where the other rank says that it lost it."""
    follower = ("Traceback (most recent call last):", "RuntimeError: Connection closed by peer")
    expected = "rank 1 on n2 ended with signal SIGKILL: killed from outside, often for memory"
    for ranks in ((), (RankLog(0, follower, 1.0),)):
        logs = Logs(ranks, tuple(DEAD_RANK.splitlines()))
        verdict = diagnose(Ending(exit_code=-15, wall_s=1.0), logs, 60.0, 2)
        assert (verdict.status, verdict.cause) == ("failed", expected)


def test_a_node_that_went_down_is_named() -> None:
    logs = Logs((), ("srun: error: Node failure on n2", "srun: forcing job termination"))
    ending = Ending(exit_code=None, wall_s=1.0, interrupted=True)
    verdict = diagnose(ending, logs, 60.0, 2, Verdict("preempted", "taken"))
    assert verdict == Verdict("preempted", "taken (node n2 failed)")
