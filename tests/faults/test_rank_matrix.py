"""What a user is promised of a rank that fails, for each way of failing and each launcher.

Shown elsewhere: more ways and torchrun in ``test_rank_faults.py``, srun beside Slurm's tests. With
HVDSCALE_TEST_FAULT_MATRIX=all every way is tried under every launcher, and who is late is so by the
seconds that HVDSCALE_TEST_LATE_S says (4 by default).
"""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faults.matrix import BATCHES, QUICK, FaultSweep, Outcome, ended, expected
from tests.faults.small_sweep import ENGINES

ALL = os.environ.get("HVDSCALE_TEST_FAULT_MATRIX") == "all"
#: Launcher → faults of one sweep. What the launcher has no part in is tried under one.
ENDING = {
    "mpirun": ("segv", "forward", "nan", "shape", "versions"),
    "horovodrun": ("leave", "late"),
}
#: Launcher and fault of sweeps that wait for their end, all at once.
WAITING = [
    ("mpirun", "hang"),
    ("horovodrun", "hang"),
    ("horovodrun", "stop"),
    ("horovodrun", "absent"),
]
#: Their time limit. Gloo waits for a rank that never comes for half of it; the others must come to
#: their window.
LIMIT_S = 120
if ALL:
    ENDING = dict.fromkeys(ENGINES, QUICK)
    WAITING = [(launcher, fault) for launcher in ENDING for fault in ("hang", "stop", "absent")]
CASES = [(name, fault) for name, faults in ENDING.items() for fault in faults] + [
    (f"{launcher} {fault}", fault) for launcher, fault in WAITING
]


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> dict[str, FaultSweep]:
    root = tmp_path_factory.mktemp("matrix")
    made = {
        name: FaultSweep(root / name, data_dir, name, faults) for name, faults in ENDING.items()
    }
    for launcher, fault in WAITING:
        name = f"{launcher} {fault}"
        made[name] = FaultSweep(root / f"{launcher}-{fault}", data_dir, launcher, (fault,), LIMIT_S)
    return made


@pytest.fixture(scope="module")
def outcomes(sweeps: dict[str, FaultSweep]) -> dict[str, Outcome]:
    """Run all sweeps: those that wait beside those that end.

    A time limit counts from the launch on, so launches that have a short one start one by one.
    """
    waiting: dict[str, subprocess.Popen[str]] = {}
    with ExitStack() as stack:
        for name in (name for name in sweeps if name not in ENDING):
            waiting[name] = sweeps[name].begin()
            stack.enter_context(ended(waiting[name]))
            sweeps[name].wait_for_strike(waiting[name])
        done = {name: sweeps[name].end(sweeps[name].begin()) for name in ENDING}
        return done | {name: sweeps[name].end(running) for name, running in waiting.items()}


@pytest.mark.parametrize(("name", "fault"), CASES)
def test_the_cause_is_the_rank_and_what_became_of_it(
    outcomes: dict[str, Outcome], sweeps: dict[str, FaultSweep], name: str, fault: str
) -> None:
    sweep, record = sweeps[name], outcomes[name].records[fault]
    status, cause = expected(sweep.launcher, fault, sweep.timeout_s)
    said = record.error.cause if record.error is not None else ""
    assert (record.status, bool(re.fullmatch(cause, said))) == (status, True), said


@pytest.mark.parametrize(("name", "fault"), [case for case in CASES if case[1] != "late"])
def test_a_failure_is_recorded_with_its_evidence(
    outcomes: dict[str, Outcome], sweeps: dict[str, FaultSweep], name: str, fault: str
) -> None:
    record, logs = outcomes[name].records[fault], outcomes[name].logs[fault]
    assert record.sealed() == record  # by its checksum it is whole
    assert record.window is None
    error = outcomes[name].error(fault)
    ranks = {"0"} if fault == "absent" else {"0", "1"}
    assert set(error.rank_tails) == ranks
    assert {path.name for path in logs.glob("rank-*.log")} == {f"rank-{n}.log" for n in ranks}
    assert (logs / "launcher.log").is_file()
    if fault in ("segv", "leave", "shape", "stop", "hang"):
        assert f"rank 1: now comes {fault}\n" in (logs / "rank-1.log").read_text()


@pytest.mark.parametrize("name", dict(CASES))
def test_the_rest_is_done_and_no_process_is_left(
    outcomes: dict[str, Outcome], sweeps: dict[str, FaultSweep], name: str
) -> None:
    found = outcomes[name]
    assert found.exit_code == 1
    assert set(found.records) == set(sweeps[name].faults)
    assert found.left == []
    good = {fault for fault, record in found.records.items() if record.status == "ok"}
    assert good == {"late"} & set(sweeps[name].faults)
    # What the next run will leave alone, and no other.
    assert sweeps[name].store.done_ids() == {found.records[fault].run_id for fault in good}
    assert list(sweeps[name].store.quarantine.iterdir()) == []


def test_the_next_run_does_exactly_what_is_missing(
    outcomes: dict[str, Outcome], sweeps: dict[str, FaultSweep]
) -> None:
    before, sweep = outcomes["horovodrun"], sweeps["horovodrun"]
    failed = {f: record for f, record in before.records.items() if record.status != "ok"}
    good = before.records["late"].run_id
    done, launches = sweep.store.runs / f"{good}.json", sweep.store.logs / good
    bytes_before = done.read_bytes()
    again = sweep.end(sweep.begin(faulty=False))
    assert again.exit_code == 0
    assert {record.status for record in again.records.values()} == {"ok"}
    assert done.read_bytes() == bytes_before
    assert [path.name for path in launches.iterdir()] == ["1"]  # it was not launched again
    for fault, record in failed.items():
        assert again.records[fault].attempt == record.attempt + 1
        # The failure is kept beside it.
        assert sweep.store.read_failure(record.run_id, record.attempt) == record


def test_every_fault_is_tried() -> None:
    here = {fault for _, fault in CASES}
    elsewhere = {"kill", "raise", "garbage", "memory"}  # test_rank_faults.py
    elsewhere |= {"balloon"}  # test_memory_limit.py
    assert here | elsewhere == set(BATCHES)
