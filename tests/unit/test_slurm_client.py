"""What Slurm's commands print, read: outputs of a real Slurm 22.05, sacct's as documented."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import slurm
from harness.errors import MissingDependencyError
from harness.slurm import Job, SchedulerError, parse_indices

GOLDEN = Path(__file__).parents[1] / "golden" / "slurm"
SEPARATOR = "\x1f"


def golden(name: str) -> str:
    return (GOLDEN / f"{name}.txt").read_text()


def jobs_of(name: str) -> dict[str, Job]:
    """Return jobs of a recorded output of squeue, or of scontrol, by their ids."""
    parse = slurm.parse_queue if name.startswith("queue") else slurm.parse_jobs
    return {job.job_id: job for job in parse(golden(name))}


def test_the_queue_is_read_an_element_a_job() -> None:
    jobs = jobs_of("queue")
    assert list(jobs) == [
        *("1_2", "1_3", "1_4", "1_5", "5_0", "5_2", "6_3", "6_5", "7", "2_0", "2_1"),
        *("1_0", "1_1"),
    ]
    assert jobs["1_1"] == Job(
        *("1_1", "1", 1, "RUNNING"), nodes="n2", comment="hvdscale:sub1:0",
        start="2026-11-28T11:49:00",
    )  # fmt: skip
    assert jobs["5_2"] == Job(
        "5_2", "5", 2, "PENDING", "Resources", comment="x", start="2026-11-28T11:59:00"
    )
    assert jobs["6_3"] == Job("6_3", "6", 3, "PENDING", "Dependency")
    assert jobs["7"] == Job("7", "7", None, "PENDING", "BeginTime", start="2026-11-28T12:49:02")


def test_what_waits_runs_and_is_held() -> None:
    jobs = jobs_of("queue")
    assert {name for name, job in jobs.items() if job.runs} == {"1_0", "1_1"}
    assert {name for name, job in jobs.items() if job.held} == {"2_0", "2_1"}
    assert all(job.live for job in jobs.values())
    completing = jobs_of("queue_completing")["1_0"]
    assert (completing.state, completing.runs, completing.waits) == ("COMPLETING", True, False)
    again = jobs_of("queue_requeued")["1_0"]
    assert (again.state, again.waits, again.reason) == ("PENDING", True, "JobArrayTaskLimit")


@pytest.mark.parametrize(
    ("state", "reason", "held", "waits", "live"),
    [
        ("PENDING", "JobHeldUser", True, True, True),
        ("PENDING", "launch failed requeued held", True, True, True),
        ("REQUEUE_HOLD", "", True, True, True),
        ("PENDING", "DependencyNeverSatisfied", False, False, False),
        ("PENDING", "QOSMaxJobsPerUserLimit", False, True, True),
        ("CANCELLED", "JobHeldUser", False, False, False),
        ("CONFIGURING", "", False, False, True),
        ("NODE_FAIL", "", False, False, False),
    ],
)
def test_states_of_a_job(state: str, reason: str, held: bool, waits: bool, live: bool) -> None:
    job = Job("1", "1", None, state, reason)
    assert (job.held, job.waits, job.live) == (held, waits, live)


def test_a_line_that_is_no_job_is_left_out() -> None:
    line = SEPARATOR.join(["1_2", "1", "2", "RUNNING", "None", "n1", "(null)", "N/A"])
    text = f"slurm_load_jobs: warning\n{line}\n{line}{SEPARATOR}more\n\n"
    assert slurm.parse_queue(text) == (Job("1_2", "1", 2, "RUNNING", nodes="n1"),)


def test_the_controller_s_jobs_elements_that_wait_share_a_line() -> None:
    jobs = jobs_of("jobs")
    assert list(jobs) == ["1_2", "1_3", "1_4", "1_5", "1_1", "1_0"]
    assert jobs["1_4"] == Job(
        *("1_4", "1", 4, "PENDING", "JobArrayTaskLimit"), comment="hvdscale:sub1:0", exit_code=0
    )
    assert jobs["1_0"].nodes == "n1"
    assert jobs["1_0"].start == "2026-11-28T11:49:00"


def test_the_controller_s_jobs_after_a_requeue_and_a_cancel() -> None:
    jobs = jobs_of("jobs_requeued")
    assert list(jobs) == ["1_5", "1_3", "1_2", "1_1", "1_0"]  # 1_4 was cancelled before its start
    cancelled, again = jobs["1_1"], jobs["1_0"]
    assert (cancelled.state, cancelled.exit_code, cancelled.signal) == ("CANCELLED", 0, 15)
    assert cancelled.nodes == "n2"
    assert (again.state, again.restarts, again.waits) == ("PENDING", 1, True)
    assert not any(job.preempted for job in jobs.values())


def test_the_controller_s_jobs_that_failed_or_never_start() -> None:
    failed = jobs_of("jobs_failed")
    assert {(job.state, job.exit_code, job.signal, job.index) for job in failed.values()} == {
        ("FAILED", 3, None, 0),
        ("FAILED", 3, None, 2),
    }
    never = jobs_of("jobs_never")
    assert list(never) == ["6_3", "6_5"]
    assert not any(job.live for job in never.values())


def test_a_reason_has_spaces_whoever_tells_it() -> None:
    (job,) = slurm.parse_jobs("JobId=7 JobState=PENDING Reason=launch_failed_requeued_held X=1")
    assert job.reason == "launch failed requeued held"
    assert job.held


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "120_3|OUT_OF_MEMORY|0:125|n[1-2]",
            [Job("120_3", "120", 3, "OUT_OF_MEMORY", nodes="n[1-2]", exit_code=0, signal=125)],
        ),
        (
            "120_4|CANCELLED by 1000|0:0|None assigned",
            [Job("120_4", "120", 4, "CANCELLED", exit_code=0)],
        ),
        ("121|FAILED|3:0|n1", [Job("121", "121", None, "FAILED", nodes="n1", exit_code=3)]),
        (
            "120_[5-6,9%2]|PENDING|0:0|None assigned",
            [Job(f"120_{i}", "120", i, "PENDING", exit_code=0) for i in (5, 6, 9)],
        ),
        ("120_3.batch|FAILED", []),
        ("", []),
    ],
)
def test_accounts_are_read(line: str, expected: list[Job]) -> None:
    assert list(slurm.parse_accounts(line.replace("|", SEPARATOR))) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", (3,)),
        ("0-2,5,8-12:2%4", (0, 1, 2, 5, 8, 10, 12)),
        ("2-5%2", (2, 3, 4, 5)),
        ("", ()),
        ("N/A", ()),
        ("1-3:0", (1, 2, 3)),
    ],
)
def test_indices(text: str, expected: tuple[int, ...]) -> None:
    assert parse_indices(text) == expected


RANGES = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 50), st.integers(1, 7)), min_size=1, max_size=8
)


@given(RANGES, st.sampled_from(["", "%1", "%64"]))
def test_indices_are_what_the_ranges_stand_for(
    ranges: list[tuple[int, int, int]], throttle: str
) -> None:
    parts, expected = [], []
    for first, length, step in ranges:
        last = first + length
        parts.append(str(first) if not length else f"{first}-{last}" + f":{step}" * (step > 1))
        expected += range(first, last + 1, step)
    assert list(parse_indices(",".join(parts) + throttle)) == expected


@given(st.text(alphabet="0123456789-,:%[]x ", max_size=20))
def test_indices_of_anything_are_numbers(text: str) -> None:
    if all(len(part) < 5 for part in text.replace("-", ",").replace(":", ",").split(",")):
        assert all(index >= 0 for index in parse_indices(text))


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins for Slurm's commands alone on the path; each logs how it was called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setattr(slurm, "_asked_at_s", float("-inf"))
    return folder


def stand_in(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f'#!/bin/sh\necho "{name} $* $SLURM_BITSTR_LEN" >> "$CALLS"\n{body}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def calls(folder: Path) -> list[str]:
    return (folder.parent / "calls").read_text().splitlines()


def test_what_the_controller_forgot_is_asked_of_the_accounts_once(commands: Path) -> None:
    """It knows 120_0 still; 120_1 and all of 130 are in the accounts alone."""
    known = "JobId=121 ArrayJobId=120 ArrayTaskId=0 JobState=FAILED ExitCode=3:0"
    stand_in(commands, "scontrol", f'[ "$4" = 120 ] && echo "{known}" || exit 1')
    rows = ["120_0|COMPLETED|0:0|n1", "120_1|TIMEOUT|0:0|n1", "130_7|NODE_FAIL|1:0|n2"]
    text = "\n".join(rows).replace("|", SEPARATOR)
    stand_in(commands, "sacct", f"cat <<'EOF'\n{text}\nEOF")
    found = {job.job_id: job.state for job in slurm.ended(["120_0", "120_1", "130_7"])}
    assert found == {"120_0": "FAILED", "120_1": "TIMEOUT", "130_7": "NODE_FAIL"}
    asked = [line.split()[0] for line in calls(commands)]
    assert asked == ["scontrol", "scontrol", "sacct"]
    assert "--jobs=120,130" in calls(commands)[-1]


def test_accounts_are_left_alone_where_the_controller_knows_all(commands: Path) -> None:
    known = "JobId=121 ArrayJobId=120 ArrayTaskId=0-9%2 JobState=CANCELLED ExitCode=0:0"
    stand_in(commands, "scontrol", f'echo "{known}"')
    stand_in(commands, "sacct", "exit 1")
    assert len(slurm.ended(["120_0", "120_9"])) == 10
    assert [line.split()[0] for line in calls(commands)] == ["scontrol"]
    assert calls(commands)[0].endswith(" 0")  # of any length, or a long array's indices are cut


def test_a_cluster_without_accounts_forgets(commands: Path) -> None:
    stand_in(commands, "scontrol", "echo Invalid job id >&2; exit 1")
    stand_in(commands, "sacct", "echo Slurm accounting storage is disabled >&2; exit 1")
    assert slurm.ended(["120_0"]) == ()
    assert slurm.ended([]) == ()


def test_a_queue_that_cannot_be_asked_says_why(
    commands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(commands))
    with pytest.raises(MissingDependencyError, match="squeue is not here"):
        slurm.queue()
    stand_in(commands, "squeue", "printf 'slurm_load: no\\n\\nsqueue: error: lost\\n' >&2; exit 1")
    with pytest.raises(SchedulerError, match=r"^squeue: slurm_load: no; error: lost$"):
        slurm.queue()
    stand_in(commands, "squeue", "exit 3")
    with pytest.raises(SchedulerError, match=r"^squeue: exit code 3$"):
        slurm.queue()


@pytest.mark.parametrize("name", ["SBATCH_WAIT", "SBATCH_ARRAY_INX"])
def test_what_a_user_sets_for_sbatch_that_is_not_for_this(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It would stay until the job is over, or make an array of a job; what else is set stays."""
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(f'#!/bin/sh\n[ -z "${{{name}+x}}" ] && echo "${{SBATCH_ACCOUNT}};here"\n')
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.setenv(name, "1")
    monkeypatch.setenv("SBATCH_ACCOUNT", "5")
    assert slurm.submit([], tmp_path / "job.sh") == "5"
