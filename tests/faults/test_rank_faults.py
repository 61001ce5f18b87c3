"""Real ranks under real launchers, one of which fails in each of the ways ranks fail."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.faults.matrix import FaultSweep, Outcome

HERE = ("kill", "raise", "garbage", "leave", "memory")  # those that end by themselves
TIMEOUT_S = 150
#: Horovod's threads ask each other so rarely because each asking keeps the cores of all ranks.
CYCLE = "horovod: {cycle_time_ms: 20}\n"


@pytest.fixture(scope="module")
def mpirun(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> Outcome:
    folder = tmp_path_factory.mktemp("mpirun")
    return FaultSweep(folder, data_dir, "mpirun", HERE, TIMEOUT_S, good=True, more=CYCLE).run()


class TestMpirun:
    def test_the_sweep_goes_on_and_says_so(self, mpirun: Outcome) -> None:
        assert mpirun.exit_code == 1
        assert set(mpirun.records) == {*HERE, "good"}
        assert mpirun.records["good"].status == "ok"

    def test_no_process_is_left(self, mpirun: Outcome) -> None:
        assert mpirun.left == []

    def test_a_killed_rank(self, mpirun: Outcome) -> None:
        assert mpirun.records["kill"].status == "failed"
        assert mpirun.error("kill").cause.startswith("rank 1 ended with signal SIGKILL")

    def test_an_exception_on_one_rank(self, mpirun: Outcome) -> None:
        assert mpirun.records["raise"].status == "failed"
        assert mpirun.error("raise").cause == "rank 1: ValueError: a fault on purpose"

    def test_garbage(self, mpirun: Outcome) -> None:
        assert mpirun.error("garbage").cause == "rank 1 ended with exit code 7"
        text = "".join(mpirun.error("garbage").rank_tails["1"])
        assert "\\x1b[31mred\\x07" in text
        assert all(c.isprintable() or c == "\t" for c in text)

    def test_a_rank_that_leaves_with_exit_code_0(self, mpirun: Outcome) -> None:
        assert mpirun.records["leave"].status == "failed"
        assert mpirun.error("leave").cause.startswith("rank 1 left before its time")

    def test_a_batch_that_the_hosts_memory_has_no_room_for(self, mpirun: Outcome) -> None:
        assert mpirun.records["memory"].status == "failed"
        assert re.fullmatch(
            r"rank 1: the host's memory is full: a step with a batch of 700 samples on this rank "
            r"asked for [\d.]+ MiB; lower batch_size, or raise execution\.accumulate",
            mpirun.error("memory").cause,
        )

    @pytest.mark.parametrize("fault", HERE)
    def test_each_rank_left_its_last_lines(self, mpirun: Outcome, fault: str) -> None:
        tails = mpirun.error(fault).rank_tails
        assert set(tails) == {"0", "1"}
        if fault != "garbage":
            assert any(f"now comes {fault}" in line for line in tails["1"])
        assert mpirun.records[fault].window is None
        assert (mpirun.logs[fault] / "rank-1.log").is_file()


def test_a_stopped_rank_ends_with_its_time(tmp_path: Path, data_dir: Path) -> None:
    # With MPI the stopped rank stops Horovod's coordinator too, so no stall is reported.
    found = FaultSweep(tmp_path, data_dir, "mpirun", ("stop",), timeout_s=45, more=CYCLE).run()
    assert found.exit_code == 1
    assert found.records["stop"].status == "timeout"
    assert re.search(r"rank 1 \(process \d+\) was stopped \(SIGSTOP", found.error("stop").cause)
    assert set(found.error("stop").rank_tails) == {"0", "1"}
    assert found.left == []


def test_horovodrun(tmp_path: Path, data_dir: Path) -> None:
    faults = ("kill", "raise")
    found = FaultSweep(
        tmp_path, data_dir, "horovodrun", faults, TIMEOUT_S, good=True, more=CYCLE
    ).run()
    assert found.exit_code == 1
    assert found.records["good"].status == "ok"
    # On a busy machine horovodrun sees rank 0, which lost its peer, first: no signal is told then.
    told = ("rank 1 ended with signal SIGKILL", "rank 1 ended without a word")
    assert found.error("kill").cause.startswith(told)
    assert found.error("raise").cause == "rank 1: ValueError: a fault on purpose"
    assert set(found.error("kill").rank_tails) == {"0", "1"}
    assert found.left == []


def test_torchrun(tmp_path: Path, data_dir: Path) -> None:
    faults = ("kill", "raise")
    found = FaultSweep(tmp_path, data_dir, "torchrun", faults, TIMEOUT_S, good=True).run()
    assert found.exit_code == 1
    assert found.records["good"].status == "ok"
    assert found.error("kill").cause.startswith("rank 1 ended with signal SIGKILL")
    assert found.error("raise").cause == "rank 1: ValueError: a fault on purpose"
    assert set(found.error("raise").rank_tails) == {"0", "1"}
    assert found.left == []
