"""``hvdscale status``: what files and Slurm's answers say of every launch, put together."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from harness.cli.status import command_status
from harness.config import RunConfig, run_id
from harness.config.identity import point_id
from harness.errors import ConfigError
from harness.record import RunRecord, Status
from harness.slurm import Job
from harness.store.reading import read_sealed
from harness.submit.manifest import ArrayManifest, Element, Jobs, manifest_path
from harness.submit.site import Site
from harness.submit.status import SweepStatus, render, sweep_status
from harness.submit.status.types import STATES, LaunchStatus, State
from harness.submit.status.words import how_ended, why_pending
from tests.factories import _resolved, config, failure, record, timeline, write_results
from tests.unit.test_table import check_golden

SMALL = config("horovod", 2, 75, backend="mpi")
LARGE = config("horovod", 2, 700, backend="mpi")
BASE = config("none", 1, 75)
FIRST = "20261128T115000Z-aaaaaa"
SECOND = "20261128T125000Z-bbbbbb"
ELEMENTS = tuple(Element(repeat=repeat, points=(0, 1), bases=(2,)) for repeat in range(3))


@dataclass
class Slurm:
    """A Slurm that knows these jobs."""

    jobs: Sequence[Job] | None = ()
    over: Sequence[Job] = ()
    problem: str = ""
    asked: list[str] = field(default_factory=list)  # jobs whose end was asked for

    def queue(self) -> tuple[Job, ...] | None:
        return None if self.jobs is None else tuple(self.jobs)

    def ended(self, job_ids: Iterable[str]) -> tuple[Job, ...]:
        self.asked += job_ids
        arrays = {name.partition("_")[0] for name in self.asked}
        return tuple(job for job in self.over if job.array in arrays)


NO_SLURM = Slurm(None, problem="squeue is not here")


@dataclass
class Study:
    """The folder of a sweep of two points and three blocks; each job measures its own base."""

    folder: Path
    configs: tuple[RunConfig, ...] = (SMALL, LARGE, BASE)
    blocks: int = 3

    def __post_init__(self) -> None:
        write_results(self.folder, [])

    def plan(self) -> Study:
        """Write down what was asked for, as ``submit`` does."""
        rows = [
            {
                "point_id": point_id(one),
                "label": f"point {one.global_batch}" if one is not BASE else "none 1x1",
                "base": one is BASE,
                "runs": [run_id(one, r) for r in range(self.blocks)] if one is not BASE else [],
            }
            for one in self.configs
        ]
        data = {"schema_version": 4, "points": rows}
        (self.folder / "points.json").write_text(json.dumps(data))
        return self

    def submit(
        self,
        name: str = FIRST,
        job: str | None = "120",
        elements: Sequence[Element] = ELEMENTS,
        number: int = 0,
    ) -> Study:
        """Write the manifest of an array, and the id that sbatch answered."""
        made = ArrayManifest(
            version="0.1.0", sweep="study", submission=name, number=number,
            site=Site(name="here", nodes=2, cpus_per_node=2), results=self.folder,
            data_dir=Path("/data"), placement=(2,), time_limit_s=600, timeout_s=60.0,
            bases=(2,) if BASE in self.configs else (), configs=self.configs,
            resolved=tuple(_resolved(one, (2,)) for one in self.configs), elements=tuple(elements),
        )  # fmt: skip
        path = manifest_path(self.folder, name, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        made.write(path)
        before = Jobs.read(path.parent)
        answered = {number: job} if job else {}
        before.model_copy(update={"arrays": {**before.arrays, **answered}}).write(path.parent)
        return self

    def done(self, made: RunConfig, *repeats: int, allocation: str | None = None) -> Study:
        """Write records of measurements; with ``allocation`` those of a job's own base."""
        for repeat in repeats:
            one = record(made, repeat)
            if allocation is not None:
                one = one.model_copy(update={"run_id": run_id(made, repeat, allocation)})
            self._write(one, one.run_id)
        return self

    def failed(
        self,
        made: RunConfig,
        repeat: int,
        cause: str = "rank 1: killed by SIGKILL",
        *,
        status: Status = "failed",
        allocation: str = "slurm:123",
        at: str = "2026-11-28T11:59:00.000+00:00",
        attempt: int = 1,
        own: bool = False,
    ) -> Study:
        """Write the record of an attempt; ``own``: at a base that the job measures itself."""
        one = failure(made, repeat, cause=cause, status=status, attempt=attempt)
        name = run_id(made, repeat, allocation) if own else one.run_id
        block = one.block.model_copy(update={"allocation": allocation})
        change = {"block": block, "started_at": at, "run_id": name}
        self._write(one.model_copy(update=change), f"{name}.attempt-{attempt}")
        return self

    def element(self, index: int, at: tuple[RunConfig, int] | None = None, **change: Any) -> Study:
        """Write what element ``index`` of array 120, job 123 + index, says of itself."""
        launch = None
        if at is not None:
            name = run_id(*at)
            launch = {"run_id": name, "label": "a label", "since": "2026-11-28T12:01:00+00:00"}
        data = {
            "schema_version": 1, "job_id": str(123 + index), "array": "120", "index": index,
            "submission": FIRST, "number": 0, "host": "n1", "nodes": ["n1", "n2"],
            "started_at": "2026-11-28T11:58:00+00:00", "restart_count": 0, "state": "running",
            "launch": launch, "done": 1, "failed": 0, "ended_at": None, "reason": "",
        }  # fmt: skip
        path = self.folder / "slurm" / "elements" / f"{123 + index}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data | change))
        return self

    def log(self, index: int, text: str) -> Path:
        """Write the log of a batch script."""
        path = self.folder / "slurm" / "logs" / f"study-1x2-120_{index}.out"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def status(self, slurm: Slurm) -> SweepStatus:
        return sweep_status(self.folder, slurm)

    def _write(self, one: RunRecord, name: str) -> None:
        (self.folder / "runs" / f"{name}.json").write_bytes(one.sealed().text())


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Study(tmp_path / "study").plan()


def job(index: int, state: str, reason: str = "", *, array: str = "120", **more: Any) -> Job:
    known = {"comment": f"hvdscale:{FIRST}:0"} | more
    return Job(f"{array}_{index}", array, index, state, reason, **known)


def states(status: SweepStatus) -> dict[str, list[State]]:
    return {one.label: [launch.state for launch in one.launches] for one in status.points}


def launch(status: SweepStatus, made: RunConfig, repeat: int) -> LaunchStatus:
    (found,) = [
        one
        for point in status.points
        for one in point.launches
        if one.run_id == run_id(made, repeat)
    ]
    return found


def test_nothing_is_submitted(study: Study) -> None:
    status = study.done(SMALL, 0).status(NO_SLURM)
    assert states(status)["point 150"] == ["done", "missing", "missing"]
    assert status.notes == ()  # Slurm would know nothing
    assert status.exit_code == 0


def test_every_state_of_a_job_that_lives(study: Study) -> None:
    study.submit().element(0, (LARGE, 0)).done(SMALL, 0)
    slurm = Slurm(
        [
            job(0, "RUNNING", nodes="n[1-2]"),
            job(1, "PENDING", "Resources", start="2026-11-28T13:00:00"),
            job(2, "PENDING", "JobHeldUser"),
        ]
    )
    status = study.status(slurm)
    assert states(status) == {
        "point 150": ["done", "queued", "held"],
        "point 1400": ["running", "queued", "held"],
        "none 1x1": [],
    }
    assert launch(status, LARGE, 0).now
    waits = launch(status, SMALL, 1)
    assert (waits.why, waits.job) == ("Resources: waits for nodes to become free", "120_1")
    assert waits.expected.startswith("2026-11-2")
    assert "scontrol release" in launch(status, SMALL, 2).why
    (running,) = status.jobs
    assert (running.job, running.nodes, running.asked, running.done) == ("120_0", "n[1-2]", 3, 1)
    assert (running.since, running.label) == ("2026-11-28T11:58:00+00:00", "a label")
    assert status.exit_code == 0
    assert slurm.asked == []  # all are in the queue: nobody is asked how they ended


def test_a_launch_that_its_job_has_not_come_to(study: Study) -> None:
    status = study.submit().element(0, (SMALL, 0)).status(Slurm([job(0, "RUNNING")]))
    other = launch(status, LARGE, 0)
    assert (other.state, other.now, other.why) == ("running", False, "its job has not come to it")


def test_a_job_that_has_said_nothing_yet_runs(study: Study) -> None:
    runs = job(1, "RUNNING", nodes="n1", start="2026-11-28T11:58:00")
    status = study.submit().status(Slurm([runs]))
    assert launch(status, SMALL, 1).state == "running"
    assert status.jobs[0].done is None
    assert status.jobs[0].since != ""


def test_a_record_is_right_and_the_queue_late(study: Study) -> None:
    """The queue was asked before the folder was listed."""
    study.submit().element(0, (SMALL, 0)).done(SMALL, 0)
    status = study.status(Slurm([job(0, "RUNNING")]))
    assert launch(status, SMALL, 0).state == "done"


def test_a_launch_that_failed_while_its_job_goes_on(study: Study) -> None:
    study.submit().element(0, (LARGE, 0)).failed(SMALL, 0, allocation="slurm:123")
    status = study.status(Slurm([job(0, "RUNNING")]))
    found = launch(status, SMALL, 0)
    assert (found.state, found.why) == ("failed", "rank 1: killed by SIGKILL")
    assert found.log.endswith(f"logs/{found.run_id}/1")
    assert status.exit_code == 1


def test_a_failure_of_an_earlier_job_is_tried_again(study: Study) -> None:
    """By a job that waits, or that runs and has not come to it."""
    study.submit().element(0, (LARGE, 0))
    study.failed(SMALL, 0, allocation="slurm:99").failed(SMALL, 1, allocation="slurm:99")
    status = study.status(Slurm([job(0, "RUNNING"), job(1, "PENDING", "Priority")]))
    assert launch(status, SMALL, 0).state == "running"
    assert launch(status, SMALL, 1).state == "queued"
    assert launch(status, SMALL, 1).attempts == 1


def test_a_job_that_was_requeued_tries_again(study: Study) -> None:
    """What its file says is of the start before: it is no longer true."""
    study.submit().element(0, state="ended", reason="").failed(SMALL, 0, allocation="slurm:123")
    waits = study.status(Slurm([job(0, "PENDING", "BeginTime")]))
    assert launch(waits, SMALL, 0).state == "queued"
    runs = study.status(Slurm([job(0, "RUNNING")]))
    assert launch(runs, SMALL, 0).state == "running"
    assert runs.jobs[0].done is None


def test_an_element_that_ended_while_its_job_is_completing(study: Study) -> None:
    study.submit().element(0, state="ended").done(LARGE, 0)
    completing = Slurm([job(0, "COMPLETING")])
    assert launch(study.status(completing), SMALL, 0).why == "its job is ending"
    study.failed(SMALL, 0, "preempted", status="preempted")
    assert launch(study.status(completing), SMALL, 0).state == "queued"
    study.failed(SMALL, 0)
    status = study.status(completing)
    assert launch(status, SMALL, 0).state == "failed"
    assert launch(status, LARGE, 0).state == "done"


ENDS = [
    (Job("", "", 0, "OUT_OF_MEMORY", signal=125), "OUT_OF_MEMORY: its job was ended: out of mem"),
    (Job("", "", 0, "NODE_FAIL", nodes="n[1-2]"), "NODE_FAIL: its job ended because a node failed"),
    (Job("", "", 0, "TIMEOUT"), "TIMEOUT: its job reached its time limit"),
    (Job("", "", 0, "PREEMPTED"), "PREEMPTED: its job was preempted"),
    (Job("", "", 0, "CANCELLED", signal=15), "CANCELLED: its job was cancelled"),
    (
        Job("", "", 0, "CANCELLED", "DependencyNeverSatisfied"),
        "CANCELLED: its job was cancelled by Slurm: DependencyNeverSatisfied: what it was to",
    ),
    (Job("", "", 0, "FAILED", exit_code=3), "FAILED: the job's script ended with exit code 3"),
    (Job("", "", 0, "FAILED", exit_code=0, signal=9), "FAILED: the job's script was ended by sig"),
    (Job("", "", 0, "REVOKED"), "REVOKED: its job ended without it"),
]


@pytest.mark.parametrize(("end", "words"), ENDS, ids=lambda one: getattr(one, "state", ""))
def test_how_a_job_ended_is_why_its_launch_failed(study: Study, end: Job, words: str) -> None:
    study.submit().done(SMALL, 1, 2).done(LARGE, 0, 1, 2)
    log = study.log(0, "starting\nmodule: command not found\n")
    slurm = Slurm([], [replace(end, job_id="120_0", array="120")])
    status = study.status(slurm)
    assert slurm.asked == ["120_0"]
    found = launch(status, SMALL, 0)
    assert (found.state, found.job) == ("failed", "120_0")
    assert found.why.startswith(words)
    (cause,) = status.causes
    assert (cause.count, cause.log) == (1, str(log))
    assert cause.tail == ("starting", "module: command not found")
    assert status.exit_code == 1


def test_the_end_of_a_log_may_say_what_it_was(study: Study) -> None:
    study.submit()
    study.log(1, "x\n" * 9 + "ModuleNotFoundError: No module named 'harness'\nbye\n")
    ends = [job(index, "FAILED", exit_code=1) for index in range(3)]
    (cause,) = study.status(Slurm([], ends)).causes
    assert (cause.count, cause.points) == (6, 2)
    assert cause.likely.startswith("No module named 'harness'")
    assert len(cause.tail) == 5


def test_a_job_that_can_never_start(study: Study) -> None:
    study.submit()
    never = [job(index, "PENDING", "DependencyNeverSatisfied") for index in range(3)]
    status = study.status(Slurm(never))
    assert states(status)["point 150"] == ["never"] * 3
    (cause,) = status.causes
    assert "its job can never start; scancel 120 and submit the sweep again" in cause.why
    assert status.exit_code == 1


def test_a_later_submission_takes_over(study: Study) -> None:
    """Of two jobs one lives; of two that are over the later one tells."""
    study.submit().submit(SECOND, "130")
    ours, later = f"hvdscale:{FIRST}:0", f"hvdscale:{SECOND}:0"
    slurm = Slurm(
        [
            job(0, "PENDING", "DependencyNeverSatisfied", comment=ours),
            job(0, "PENDING", "Priority", array="130", comment=later),
            job(1, "RUNNING", comment=ours),
            job(1, "PENDING", "Priority", array="130", comment=later),
        ],
        [
            job(2, "TIMEOUT", comment=ours),
            job(2, "CANCELLED", array="130", comment=later),
        ],
    )
    status = study.status(slurm)
    assert states(status)["point 150"] == ["queued", "running", "failed"]
    assert launch(status, SMALL, 0).job == "130_0"
    assert launch(status, SMALL, 2).why.startswith("CANCELLED")


def test_the_newest_tells_a_record_or_a_job_s_end(study: Study) -> None:
    study.submit().submit(SECOND, "130")
    study.failed(SMALL, 0, "older", at="2026-11-28T12:00:00.000+00:00", allocation="slurm:123")
    study.failed(SMALL, 1, "newer", at="2026-11-28T13:00:00.000+00:00", allocation="slurm:133")
    ends = [job(i, "TIMEOUT", array="130", comment=f"hvdscale:{SECOND}:0") for i in range(3)]
    status = study.status(Slurm([], ends))
    assert launch(status, SMALL, 0).why.startswith("TIMEOUT")
    assert launch(status, SMALL, 1).why == "newer"


def test_the_newest_attempt_tells(study: Study) -> None:
    for attempt in (1, 2, 10):
        study.failed(SMALL, 0, f"attempt {attempt}", attempt=attempt)
    found = launch(study.status(NO_SLURM), SMALL, 0)
    assert (found.state, found.why, found.attempts) == ("failed", "attempt 10", 10)


def test_an_id_that_was_never_stored(study: Study) -> None:
    """sbatch answered, and what asked it was gone: the job's comment says whose it is."""
    study.submit(job=None)
    other = job(1, "RUNNING", array="140", comment="hvdscale:20261128T115000Z-cccccc:0")
    status = study.status(Slurm([job(0, "PENDING", "Priority"), other]))
    assert states(status)["point 150"] == ["queued", "missing", "missing"]


def test_a_comment_of_the_site_s_own_leaves_the_stored_id(study: Study) -> None:
    status = study.submit().status(Slurm([job(0, "RUNNING", comment="project 7")]))
    assert launch(status, SMALL, 0).state == "running"


def test_an_array_of_another_cluster_with_the_same_id(study: Study) -> None:
    other = job(0, "RUNNING", comment="hvdscale:20250101T000000Z-dddddd:0")
    assert study.submit().status(Slurm([other])).counts()["running"] == 0


def test_an_array_that_sbatch_refused_is_missing(study: Study) -> None:
    slurm = Slurm([])
    status = study.submit(job=None).status(slurm)
    assert launch(status, SMALL, 0).why == "no launch of it has come to an end"
    assert slurm.asked == []
    assert study.status(NO_SLURM).counts() == Counter(missing=6)


def test_jobs_that_slurm_forgot(study: Study) -> None:
    study.submit().element(0, (SMALL, 0))
    study.element(1, state="ended", reason="time limit").log(2, "gone\n")
    status = study.failed(LARGE, 1, "its record", allocation="slurm:124").status(Slurm([]))
    assert states(status)["point 150"] == ["failed", "missing", "failed"]
    gone = launch(status, SMALL, 0).why
    assert gone.startswith("its job is gone in the middle of a launch (on n1, n2)")
    assert launch(status, SMALL, 1).why == "its job ended without it: time limit"
    assert "before it came to a launch" in launch(status, SMALL, 2).why
    assert launch(status, LARGE, 1).why == "its record"


def test_a_job_that_was_cancelled_before_it_began_and_forgotten(study: Study) -> None:
    found = launch(study.submit().status(Slurm([])), SMALL, 0)
    assert (found.state, found.why) == ("missing", "its job is gone, and never began")


def test_a_job_that_ended_well_without_a_launch(study: Study) -> None:
    """Its record may have been put into quarantine since."""
    ends = [job(index, "COMPLETED", exit_code=0) for index in range(3)]
    status = study.submit().status(Slurm([], ends))
    assert launch(status, SMALL, 0).why == "its job ended without it"
    assert status.counts() == Counter(missing=6)


def test_a_job_whose_time_was_near_says_so_itself(study: Study) -> None:
    """Its exit code is that of a failure, and Slurm knows no more."""
    study.submit().element(0, state="ended", reason="time limit")
    status = study.status(Slurm([], [job(0, "FAILED", exit_code=1)]))
    found = launch(status, SMALL, 0)
    assert (found.state, found.why) == ("missing", "its job ended without it: time limit")


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("CANCELLED", "failed"),
        ("PREEMPTED", "failed"),
        ("FAILED", "missing"),
        ("COMPLETED", "missing"),
    ],
)
def test_a_job_that_ended_in_order_before_a_launch(study: Study, state: str, expected: str) -> None:
    """A cancelled job's runner ends in order, too; one with a failed launch has an exit code."""
    study.submit().element(0, state="ended", failed=1).failed(LARGE, 0)
    status = study.status(Slurm([], [job(0, state, exit_code=1 if state == "FAILED" else 0)]))
    found = launch(status, SMALL, 0)
    assert found.state == expected
    assert found.why.startswith(state if expected == "failed" else "its job ended without it")
    assert launch(status, LARGE, 0).why == "rank 1: killed by SIGKILL"


def test_without_slurm_the_files_tell(study: Study) -> None:
    study.submit().element(0, (SMALL, 0)).element(1, state="ended", reason="time limit")
    status = study.failed(LARGE, 1, allocation="slurm:124").status(NO_SLURM)
    assert states(status) == {
        "point 150": ["running", "missing", "submitted"],
        "point 1400": ["running", "failed", "submitted"],
        "none 1x1": [],
    }
    assert launch(status, SMALL, 0).now
    assert status.jobs[0].nodes == "n1,n2"
    assert status.jobs[0].state == ""
    assert status.notes == ("Slurm was not asked: squeue is not here",)


def test_what_is_done_needs_no_slurm(study: Study) -> None:
    status = study.submit().done(SMALL, 0, 1, 2).done(LARGE, 0, 1, 2).status(NO_SLURM)
    assert status.notes == ()
    assert status.counts() == Counter(done=6)


def test_bases_that_jobs_measured_are_counted_by_job_and_restart(study: Study) -> None:
    study.submit().element(0, restart_count=1).element(1, state="ended")
    study.done(BASE, 0, allocation="slurm:123").done(BASE, 0, allocation="slurm:123.r1")
    study.failed(BASE, 1, "a bad base", allocation="slurm:124", own=True)
    status = study.status(Slurm([job(0, "RUNNING")], [job(1, "COMPLETED")]))
    (base,) = [one for one in status.points if one.base]
    assert base.launches == ()
    assert base.in_jobs is not None
    assert (base.in_jobs.done, base.in_jobs.failed) == (2, 1)
    assert [one.why for one in status.causes if one.state == "failed"] == [
        "a job's own base: a bad base"
    ]
    assert status.exit_code == 0  # no point failed


def test_bases_of_jobs_that_wrote_no_file_are_told_by_their_records(study: Study) -> None:
    study.done(BASE, 0, 2, allocation="slurm:77")
    study.failed(config("none", 1, 9), 0, "of another sweep in this folder")
    status = study.status(NO_SLURM)
    (base,) = [one for one in status.points if one.base]
    assert base.in_jobs is not None
    assert (base.in_jobs.done, base.in_jobs.failed) == (2, 0)
    assert {one.state for one in status.causes} == {"missing"}


def test_a_base_that_is_a_point_too_is_none_beside(tmp_path: Path) -> None:
    both = (SMALL, BASE)
    study = Study(tmp_path / "study", both, 1)
    study.submit(elements=[Element(repeat=0, points=(0, 1), bases=(1,))]).element(0)
    study.done(BASE, 0)
    status = study.status(Slurm([job(0, "RUNNING")]))
    base = next(one for one in status.points if one.point_id == point_id(BASE))
    assert [one.state for one in base.launches] == ["done"]
    assert base.base
    assert base.in_jobs is None


def test_what_nobody_wrote_down_follows_from_the_manifests(study: Study) -> None:
    (study.folder / "points.json").unlink()
    look = timeline(SMALL).config
    study.configs = (*study.configs, look)
    elements = [
        Element(repeat=0, points=(0,), bases=(2,), timelines=(3,)),
        Element(repeat=2, points=(0,), bases=(2,)),
    ]
    status = study.submit(elements=elements).done(look, 0).status(Slurm([job(1, "RUNNING")]))
    found = {one.label: [(r.repeat, r.state) for r in one.launches] for one in status.points}
    assert found == {
        "stress_strain horovod/mpi 2 batch 75": [(0, "missing"), (2, "running")],
        "stress_strain none 1 batch 75": [],
        "stress_strain horovod/mpi 2 batch 75 timeline": [(0, "done")],
    }


def test_jobs_of_what_nobody_asks_for_any_more(study: Study) -> None:
    """The sweep was edited: what still is in the queue is shown, what is not is no longer."""
    old, dropped = config("horovod", 2, 9, backend="mpi"), config("horovod", 2, 8, backend="mpi")
    study.configs = (old, dropped, BASE)
    elements = [Element(repeat=0, points=(0,)), Element(repeat=0, points=(1,))]
    status = study.submit(elements=elements).status(Slurm([job(0, "PENDING", "Priority")]))
    labels = [one.label for one in status.points]
    assert labels == [
        "point 150",
        "point 1400",
        "none 1x1",
        "stress_strain horovod/mpi 2 batch 9",
    ]
    assert states(status)[labels[3]] == ["queued"]


def test_what_an_earlier_submission_has_done_stays_asked_for(tmp_path: Path) -> None:
    """The sweep was edited while it waited: it does not shrink as it is worked off."""
    small, large = config("horovod", 2, 9, backend="mpi"), config("horovod", 2, 8, backend="mpi")
    old = Study(tmp_path / "study", (small, large, BASE), 2)
    elements = [Element(repeat=repeat, points=(0, 1, 2)) for repeat in range(2)]
    old.submit(elements=elements)
    study = Study(old.folder, (SMALL,), 2).plan()
    study.submit(SECOND, "130", [Element(repeat=repeat, points=(0,)) for repeat in range(2)])
    second = [
        job(i, "PENDING", "Priority", array="130", comment=f"hvdscale:{SECOND}:0") for i in (0, 1)
    ]
    waiting = [job(i, "PENDING", "Priority") for i in (0, 1)]
    before = study.status(Slurm([*waiting, *second]))
    assert before.counts() == Counter(queued=8)
    study.done(small, 0).done(BASE, 0).done(large, 0)
    status = study.status(Slurm([waiting[1], *second]))
    assert status.counts() == Counter(queued=5, done=3)
    by_id = {one.point_id: one for one in status.points}
    assert [one.state for one in by_id[point_id(small)].launches] == ["done", "queued"]
    assert [one.state for one in by_id[point_id(SMALL)].launches] == ["queued", "queued"]
    assert by_id[point_id(BASE)].base
    assert not by_id[point_id(small)].base
    study.done(small, 1).done(BASE, 1).done(large, 1).done(SMALL, 0, 1)
    assert study.status(Slurm([])).counts() == Counter(done=8)


def test_a_repeat_that_nobody_asks_for_any_more_is_done(study: Study) -> None:
    """Fewer blocks than were submitted: of the same point."""
    study.blocks = 1
    status = study.plan().submit().done(SMALL, 2).status(Slurm([]))
    assert states(status) == {
        "point 150": ["missing", "done"],
        "point 1400": ["missing"],
        "none 1x1": [],
    }


PREEMPTED = "Slurm took the nodes back, and starts the job again later"


@pytest.mark.parametrize("reason", ["", "asked to end"])
@pytest.mark.parametrize(
    ("end", "expected", "words"),
    [
        (job(0, "CANCELLED", restarts=1), "failed", "CANCELLED: its job was cancelled"),
        (job(0, "PREEMPTED"), "failed", "PREEMPTED: its job was preempted"),
        (job(0, "COMPLETED", restarts=1), "missing", "its job ended without it"),
        (None, "failed", "its job was preempted at it, and is gone"),
    ],
    ids=lambda one: getattr(one, "state", None),
)
def test_a_preempted_job_that_has_ended_since(
    study: Study, end: Job | None, expected: str, words: str, reason: str
) -> None:
    """It was to start again, and was held and cancelled, say."""
    study.submit().element(0, state="ended", reason=reason)
    study.failed(SMALL, 0, PREEMPTED, status="preempted")
    study.log(0, f"[1/3] preempted: {PREEMPTED}\n")
    waits = study.status(Slurm([job(0, "PENDING", "JobHeldUser", restarts=1)]))
    assert launch(waits, SMALL, 0).state == "held"
    status = study.status(Slurm([], [end] if end else []))
    found = launch(status, SMALL, 0)
    assert (found.state, found.why[: len(words)]) == (expected, words)
    assert "starts the job again" not in render(status)
    other = launch(status, LARGE, 0)  # that it had not come to
    if end is not None:
        assert (other.state, other.why) == (found.state, found.why)


def test_a_timeout_is_told_unless_its_job_started_again(study: Study) -> None:
    """At its time limit a job ends, and the record says so; a start later says more."""
    study.submit().element(0, state="ended", reason="time limit")
    study.failed(SMALL, 0, "the time limit was near", status="timeout")
    over = study.status(Slurm([], [job(0, "FAILED", exit_code=1)]))
    assert launch(over, SMALL, 0).why == "the time limit was near"
    study.element(0, state="ended", restart_count=1)
    for restarts in (0, 1):  # accounts know of none
        again = study.status(Slurm([], [job(0, "CANCELLED", restarts=restarts)]))
        assert launch(again, SMALL, 0).why.startswith("CANCELLED")
    study.failed(SMALL, 0, "real", attempt=2)
    failed = study.status(Slurm([], [job(0, "CANCELLED", restarts=1)]))
    assert launch(failed, SMALL, 0).why == "real"


@pytest.mark.parametrize("reason", ["", "asked to end"])
def test_a_preempted_job_in_a_copy_without_slurm(study: Study, reason: str) -> None:
    """It may wait to start again: neither it nor what it had not come to is lost."""
    study.submit().element(0, state="ended", failed=1, reason=reason)
    study.failed(SMALL, 0, PREEMPTED, status="preempted")
    status = study.status(NO_SLURM)
    assert [launch(status, made, 0).state for made in (SMALL, LARGE)] == ["submitted"] * 2
    assert launch(status, SMALL, 0).why == (
        "its job was preempted; Slurm was not asked whether it starts again"
    )
    assert status.exit_code == 0
    study.element(0, (LARGE, 0), restart_count=1)  # it does
    status = study.status(NO_SLURM)
    assert [launch(status, made, 0).state for made in (SMALL, LARGE)] == ["running"] * 2


def test_a_base_that_failed_is_told_as_long_as_a_point_needs_it(study: Study) -> None:
    study.submit().element(0, state="ended")
    study.failed(BASE, 0, "a bad base", allocation="slurm:123", own=True)

    def told(*jobs: Job) -> bool:
        return "a bad base" in render(study.status(Slurm(jobs)))

    assert told()  # nobody is to do its points
    study.submit(SECOND, "130", ELEMENTS[:1])
    later = job(0, "PENDING", "Priority", array="130", comment=f"hvdscale:{SECOND}:0")
    assert not told(later)  # with a base of its own
    study.done(SMALL, 0)  # of other nodes than the base
    assert not told(later)
    study.done(LARGE, 0)
    assert not told()
    one = record(LARGE, 0)
    block = one.block.model_copy(update={"allocation": "slurm:123"})
    study._write(one.model_copy(update={"block": block}), one.run_id)
    assert told()  # it has no base


def test_a_base_that_failed_in_a_job_that_goes_on(study: Study) -> None:
    study.submit().element(0, (SMALL, 0))
    study.failed(BASE, 0, "a bad base", allocation="slurm:123", own=True)
    assert "a bad base" in render(study.status(Slurm([job(0, "RUNNING")])))
    # The next start has its own.
    assert "a bad base" not in render(study.status(Slurm([job(0, "PENDING", "BeginTime")])))
    study.element(0, (SMALL, 0), restart_count=1)
    assert "a bad base" not in render(study.status(Slurm([job(0, "RUNNING")])))


@pytest.mark.parametrize("status", ["preempted", "cancelled"])
def test_a_base_that_its_job_s_end_ended_is_no_failure(study: Study, status: Status) -> None:
    """Nothing was measured beside it, and the end is told of its points."""
    study.submit().element(0, state="ended", reason="asked to end")
    study.failed(BASE, 0, "its cause", status=status, own=True)
    text = render(study.status(Slurm([], [job(0, "CANCELLED")])))
    assert "its cause" not in text
    assert "  2 (of 2 points)  CANCELLED: its job was cancelled\n" in text


def test_a_sweep_run_without_slurm(tmp_path: Path) -> None:
    """There is no plan either: the records tell."""
    kept = [record(SMALL, 0), failure(SMALL, 1, cause="why not"), failure(LARGE, 0, cause="no")]
    folder = write_results(tmp_path / "hand", kept)
    status = sweep_status(folder, NO_SLURM)
    assert sorted(states(status).values()) == [["done", "failed"], ["failed"]]
    assert {one.why for one in status.causes} == {"why not", "no"}
    assert status.exit_code == 1


def test_files_that_cannot_be_read_are_said_and_the_rest_is_shown(study: Study) -> None:
    study.submit().submit(SECOND, "130")
    manifest = manifest_path(study.folder, FIRST, 0)
    manifest.write_text(manifest.read_text().replace('"time_limit_s":600', '"time_limit_s":601'))
    (manifest.parent / "jobs.json").write_text("[]")
    study.element(0)
    (study.folder / "slurm" / "elements" / "9.json").write_text("{")
    later = job(0, "RUNNING", array="130", comment=f"hvdscale:{SECOND}:0")
    status = study.status(Slurm([later]))
    assert launch(status, SMALL, 0).state == "running"
    assert len(status.notes) == 2
    assert "jobs.json" in status.notes[0]
    assert "array-0.json: changed since it was submitted" in status.notes[1]


def test_a_broken_record_of_a_failure_is_said(study: Study) -> None:
    name = run_id(SMALL, 0)
    (study.folder / "runs" / f"{name}.attempt-1.json").write_text("{")
    found = launch(study.status(NO_SLURM), SMALL, 0)
    assert found.state == "failed"
    assert found.why.startswith("its record cannot be used: ")


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Resources", "Resources: waits for nodes to become free"),
        ("Priority", "Priority: other jobs are before it in the queue"),
        ("Dependency", "Dependency: waits for another job to end"),
        ("QOSMaxJobsPerUserLimit", "QOSMaxJobsPerUserLimit: a limit of its QOS for one user"),
        ("AssocGrpNodeLimit", "AssocGrpNodeLimit: a limit of its account is reached"),
        ("BeginTime", "BeginTime: waits for its earliest start"),
        ("ReqNodeNotAvail, UnavailableNodes:n1", "ReqNodeNotAvail, UnavailableNodes:n1: nodes th"),
        ("SomethingNew", "SomethingNew"),
        ("", "Slurm has not looked at it yet"),
    ],
)
def test_why_a_job_waits(reason: str, words: str) -> None:
    assert why_pending(reason).startswith(words)


def test_what_says_itself_why_is_not_said_twice() -> None:
    reason = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher partitions"
    assert why_pending(reason) == reason


def test_words_do_not_hide_slurm_s_own() -> None:
    assert how_ended(Job("1", "1", None, "DEADLINE")).startswith("DEADLINE")


def whole(study: Study) -> SweepStatus:
    """A sweep in which there is some of everything; its path is as a user has it."""
    study.blocks = 5
    elements = [Element(repeat=repeat, points=(0, 1), bases=(2,)) for repeat in range(5)]
    study.plan().submit(elements=elements).element(0, (LARGE, 0), failed=1)
    study.element(1, state="ended", reason="time limit")
    study.done(SMALL, 1).done(BASE, 0, allocation="slurm:123").failed(SMALL, 0)
    study.log(4, "slurmstepd: error: x\n/bin/bash: module: command not found\n")
    slurm = Slurm(
        [
            job(0, "RUNNING", nodes="n[1-2]"),
            job(2, "PENDING", "Resources", start="2026-11-28T13:00:00"),
            job(3, "PENDING", "JobHeldUser"),
        ],
        [job(4, "FAILED", exit_code=127)],
    )
    return study.status(slurm)


def test_the_text_of_a_status(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "harness.submit.status.judge.as_utc", lambda text: f"{text}Z" if text else ""
    )
    root = str(study.folder.parent)
    status = whole(study)
    plain = render(status, zone=UTC).replace(root, "results")
    verbose = render(status, verbose=True, zone=UTC).replace(root, "results")
    check_golden("../slurm/status.txt", plain + "\n")
    check_golden("../slurm/status_verbose.txt", verbose + "\n")


def test_json_has_everything(study: Study) -> None:
    status = whole(study)
    data = json.loads(json.dumps(status.as_dict()))
    assert data["launches"] == {state: status.counts()[state] for state in STATES}
    assert data["name"] == "study"
    row = data["points"][0]["launches"][0]
    assert (row["run_id"], row["state"]) == (run_id(SMALL, 0), "failed")
    assert data["jobs"][0]["run_id"] == run_id(LARGE, 0)


def test_points_that_are_alike_share_a_row(tmp_path: Path) -> None:
    configs = tuple(config("horovod", 2, 10 + at, backend="mpi") for at in range(60))
    study = Study(tmp_path / "study", configs, 2).plan().done(configs[7], 0)
    status = study.status(NO_SLURM)
    lines = render(status).splitlines()
    assert lines[0] == "study: 60 points, 120 launches: 1/120 done, 119 missing"
    assert lines[2].split() == ["point", "20,", "and", "58", "more", "0/2", "2"]
    assert lines[3].split() == ["point", "34", "1/2", "1"]
    assert (
        sum(line.startswith("  point ") for line in render(status, verbose=True).splitlines()) > 60
    )


def test_thousands_of_points_and_the_files_that_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of what is done are not opened, nor those of failures that a job makes good."""
    count = 10_000
    configs = tuple(config("horovod", 2, 10 + at, backend="mpi") for at in range(count))
    study = Study(tmp_path / "study", configs, 1).plan()
    chunks = [tuple(range(at, at + 100)) for at in range(0, count, 100)]
    study.submit(elements=[Element(repeat=0, points=chunk) for chunk in chunks])
    study.failed(configs[-1], 0, "why").failed(configs[1500], 0)
    for made in configs[:1000]:
        (study.folder / "runs" / f"{run_id(made, 0)}.json").touch()
    opened: list[str] = []

    def read(path: Path) -> dict[str, Any]:
        opened.append(path.name)
        return read_sealed(path)

    monkeypatch.setattr("harness.submit.status.sweep.read_sealed", read)
    waiting = [job(index, "PENDING", "Priority") for index in range(80)]
    status = study.status(Slurm(waiting, [job(index, "TIMEOUT") for index in range(80, 100)]))
    assert status.counts() == Counter(done=1000, queued=7000, failed=2000)
    assert opened == [f"{run_id(configs[-1], 0)}.attempt-1.json"]
    assert len(render(status).splitlines()) < 20


@pytest.mark.parametrize(
    ("collect", "line"),
    [
        (job(0, "PENDING", "Dependency"), "waits (Dependency: waits for another job to end)"),
        (
            job(0, "PENDING", "DependencyNeverSatisfied"),
            "can never start, scancel it; waits (DependencyNeverSatisfied: what it was to follow "
            "did not end as it should have)",
        ),
        (job(0, "RUNNING", nodes="n1"), "runs on n1"),
        (None, ""),
    ],
)
def test_the_job_that_collects(study: Study, collect: Job | None, line: str) -> None:
    study.submit()
    folder = manifest_path(study.folder, FIRST, 0).parent
    Jobs.read(folder).model_copy(update={"collect": "121"}).write(folder)
    jobs = [replace(collect, job_id="121", array="121", index=None)] if collect else []
    status = study.status(Slurm([job(0, "RUNNING"), *jobs]))
    assert status.collect == (f"job 121 {line}" if line else "")
    assert (f"\ncollect and report: job 121 {line}\n" in render(status)) == bool(line)


def test_of_several_jobs_that_collect_the_last_is_named(study: Study) -> None:
    for name, array, collect in ((FIRST, "120", "121"), (SECOND, "130", "131")):
        study.submit(name, array)
        folder = manifest_path(study.folder, name, 0).parent
        Jobs.read(folder).model_copy(update={"collect": collect}).write(folder)
    waiting = [
        Job(name, name, None, "PENDING", "Dependency") for name in ("131", "121", "999")
    ]  # squeue has the oldest last, or first
    for jobs in (waiting, waiting[::-1]):
        assert study.status(Slurm(jobs)).collect.startswith("job 131 waits")
    assert study.status(Slurm(waiting[1:])).collect.startswith("job 121 waits")


def test_when_all_is_done_table_and_report_are_named(study: Study) -> None:
    table, report = study.folder / "table.csv", study.folder / "report.html"
    table.touch()
    study.submit().done(SMALL, 0, 1, 2).done(LARGE, 0, 1)
    assert study.status(Slurm([])).written == ()  # not of all
    study.done(LARGE, 2)
    assert render(study.status(Slurm([]))).endswith(f"\ncollected: {table}")
    report.touch()
    assert render(study.status(Slurm([]))).endswith(f"\ncollected: {table}, {report}")
    table.unlink()
    report.unlink()
    assert "collected" not in render(study.status(Slurm([])))


def test_an_element_that_is_run_by_hand_is_no_job(study: Study) -> None:
    """It says that it runs; what Slurm says of the element's own job counts."""
    study.submit().element(0, (SMALL, 0), array="", job_id="local-1")
    found = launch(study.status(Slurm([], [job(0, "TIMEOUT")])), SMALL, 0)
    assert (found.state, found.why.split(":")[0]) == ("failed", "TIMEOUT")


@pytest.mark.parametrize("index", [-1, 3, 10**9])
def test_an_element_that_the_array_does_not_have(study: Study, index: int) -> None:
    """Its file is not what was written, or somebody sent the script with an array of his own."""
    study.submit().element(index, (SMALL, 0))
    slurm = Slurm([job(index, "RUNNING")])
    for status in (study.status(NO_SLURM), study.status(slurm)):
        assert status.jobs == ()
        assert status.counts()["running"] == 0


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """Stand in for Slurm where the command asks it."""
    slurm = Slurm([])
    monkeypatch.setattr("harness.slurm.queue", slurm.queue)
    monkeypatch.setattr("harness.slurm.ended", slurm.ended)
    return slurm


def test_the_command_by_name_path_and_for_all(
    study: Study, asked: Slurm, capsys: pytest.CaptureFixture[str]
) -> None:
    study.done(SMALL, 0, 1, 2).done(LARGE, 0, 1, 2)
    results = study.folder.parent
    write_results(results / "other", [failure(SMALL, 0, cause="why not")])
    assert command_status("study", results, False, False) == 0
    assert "6/6 done" in capsys.readouterr().out
    assert command_status(str(study.folder), Path("nowhere"), True, False) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["launches"]["done"] == 6
    assert command_status(None, results, False, False) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("other: 1 point, 1 launch: 0/1 done, 1 failed")
    assert lines[-1] == "study: 2 points, 6 launches: 6/6 done"
    with pytest.raises(ConfigError, match=r"no results of 'studi'.*; run or submit it first"):
        command_status("studi", results, False, False)


def test_the_command_names_what_it_cannot_read(
    study: Study, asked: Slurm, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = study.folder.parent / "broken"
    shutil.copytree(study.folder, broken)
    (broken / "sweep.json").write_text("{")
    assert command_status(None, study.folder.parent, False, False) == 1
    assert "broken: cannot be read: " in capsys.readouterr().out
    assert command_status(None, study.folder.parent, True, False) == 1
    assert [row.get("error") is None for row in json.loads(capsys.readouterr().out)] == [
        True,
        False,
    ]
