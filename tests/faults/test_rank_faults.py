"""Real ranks under real launchers, one of which fails in each of the ways ranks fail."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.processes import MARKER
from harness.record import RunError, RunRecord
from harness.store import Store
from tests.faults.small_sweep import SWEEP
from tests.requirements import require_modules, require_mpi

ROOT = Path(__file__).parents[2]
INJECT = Path(__file__).with_name("inject")
FAULTS = {75: "kill", 76: "raise", 77: "garbage", 78: "leave", 79: "stop", 700: "memory"}
GOOD = 80
HERE = ["kill", "raise", "garbage", "leave", "memory"]  # those that end by themselves

#: Horovod's threads ask each other so rarely because each asking keeps the cores of all ranks.
CYCLE = "horovod: {cycle_time_ms: 20}\n"


@dataclass(frozen=True)
class Outcome:
    """What a sweep with faults left, by the name of the fault; ``good`` has none."""

    exit_code: int
    records: dict[str, RunRecord]
    logs: dict[str, Path]
    left: list[str]  # command lines of processes that outlived it

    def error(self, fault: str) -> RunError:
        found = self.records[fault].error
        assert found is not None
        return found


def run_sweep(
    folder: Path,
    data_dir: Path,
    engine: str,
    backend: str,
    launcher: str,
    faults: list[str],
    *,
    good: bool = True,
    timeout_s: float = 150,
) -> Outcome:
    require_modules("torch", *(["horovod"] if engine == "horovod" else []))
    if backend == "mpi":
        require_mpi()
    batches = {batch: fault for batch, fault in FAULTS.items() if fault in faults}
    text = SWEEP.format(
        name="faults",
        engine=engine,
        backend=backend,
        launcher=launcher,
        batches=[*batches, GOOD] if good else list(batches),
        blocks=1,
        timeout_s=timeout_s,
        more=CYCLE if engine == "horovod" else "",
    )
    (folder / "faults.yaml").write_text(text)
    path = os.pathsep.join([str(INJECT), str(ROOT)])
    options = ["--results", str(folder), "--slots", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "harness", "run", str(folder / "faults.yaml"), *options],
        env={
            **os.environ,
            "PYTHONPATH": path,
            "HVDSCALE_DATA_DIR": str(data_dir),
            "HVDSCALE_TEST_FAULTS": ",".join(f"{b}={fault}" for b, fault in batches.items()),
        },
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    store = Store.open(folder / "faults")
    records = {FAULTS.get(r.config.rank_batch, "good"): r for r in store.records()}
    logs = {name: store.logs / r.run_id / str(r.attempt) for name, r in records.items()}
    return Outcome(done.returncode, records, logs, left_over(folder))


def left_over(folder: Path) -> list[str]:
    """Return the processes of launches below ``folder``, by the run file they were given."""
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            marked = f"{MARKER}=".encode() in (process / "environ").read_bytes()
        except OSError:
            continue
        if marked and any(str(folder) in word for word in words):
            found.append(" ".join(words))
    return found


@pytest.fixture(scope="module")
def mpirun(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> Outcome:
    folder = tmp_path_factory.mktemp("mpirun")
    return run_sweep(folder, data_dir, "horovod", "mpi", "mpirun", HERE)


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
    found = run_sweep(
        tmp_path, data_dir, "horovod", "mpi", "mpirun", ["stop"], good=False, timeout_s=30
    )
    assert found.exit_code == 1
    assert found.records["stop"].status == "timeout"
    assert re.search(r"rank 1 \(process \d+\) was stopped \(SIGSTOP", found.error("stop").cause)
    assert set(found.error("stop").rank_tails) == {"0", "1"}
    assert found.left == []


def test_horovodrun(tmp_path: Path, data_dir: Path) -> None:
    found = run_sweep(tmp_path, data_dir, "horovod", "gloo", "horovodrun", ["kill", "raise"])
    assert found.exit_code == 1
    assert found.records["good"].status == "ok"
    # On a busy machine horovodrun sees rank 0, which lost its peer, first: no signal is told then.
    told = ("rank 1 ended with signal SIGKILL", "rank 1 ended without a word")
    assert found.error("kill").cause.startswith(told)
    assert found.error("raise").cause == "rank 1: ValueError: a fault on purpose"
    assert set(found.error("kill").rank_tails) == {"0", "1"}
    assert found.left == []


def test_torchrun(tmp_path: Path, data_dir: Path) -> None:
    found = run_sweep(tmp_path, data_dir, "ddp", "gloo", "torchrun", ["kill", "raise"])
    assert found.exit_code == 1
    assert found.records["good"].status == "ok"
    assert found.error("kill").cause.startswith("rank 1 ended with signal SIGKILL")
    assert found.error("raise").cause == "rank 1: ValueError: a fault on purpose"
    assert set(found.error("raise").rank_tails) == {"0", "1"}
    assert found.left == []
