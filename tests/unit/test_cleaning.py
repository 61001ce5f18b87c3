"""The scratch of a job: removed once, by the last of its runners, and never under another one."""

from __future__ import annotations

import io
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from harness import scratch, slurm
from harness.detect import Host, Machine, Slurm
from harness.runner import cleaning
from harness.runner.cleaning import cleaned
from harness.runner.progress import PlainReport

ONE_NODE = Machine(hosts=(Host("n1", 2, 2),), device="cpu", python="/venv/python")


def in_job(restarts: int = 0, job: str = "4711") -> Machine:
    return replace(ONE_NODE, slurm=Slurm(job, restart_count=restarts))


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Return the data folder, which is not there yet."""
    return tmp_path / "shared" / "data"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the job's scratch, with a copy in it."""
    (tmp_path / "local").mkdir()
    (tmp_path / "original").write_bytes(b"curves")
    monkeypatch.setenv("HVDSCALE_SCRATCH", str(tmp_path / "local"))
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    made = tmp_path / "local" / "hvdscale-4711"
    scratch.copy_data([tmp_path / "original"], tmp_path, made)
    return made


def markers(data_dir: Path) -> list[Path]:
    return [path for path in data_dir.rglob("*") if path.is_file()]


def test_the_last_runner_removes_it(folder: Path, data_dir: Path) -> None:
    said = io.StringIO()
    first, second = (cleaned(in_job(), PlainReport(said), data_dir) for _ in range(2))
    first.__enter__()
    second.__enter__()
    assert len(markers(data_dir)) == 2
    first.__exit__(None, None, None)
    assert (folder / "data" / "original").read_bytes() == b"curves"  # the second one reads it
    second.__exit__(None, None, None)
    assert not folder.exists()
    assert markers(data_dir) == []
    assert said.getvalue() == ""


def test_also_one_that_failed(folder: Path, data_dir: Path) -> None:
    with pytest.raises(KeyboardInterrupt), cleaned(in_job(), PlainReport(io.StringIO()), data_dir):
        raise KeyboardInterrupt
    assert not folder.exists()


def test_another_job_and_a_start_before_do_not_count(folder: Path, data_dir: Path) -> None:
    report = PlainReport(io.StringIO())
    with cleaned(in_job(job="4712"), report, data_dir):
        killed = cleaned(in_job(), report, data_dir)
        killed.__enter__()
        with cleaned(in_job(), report, data_dir):
            pass
        assert folder.exists()  # whether the other one is dead cannot be known here
        with cleaned(in_job(restarts=1), report, data_dir):
            pass
        assert not folder.exists()


def test_of_many_that_end_at_once_one_cleans(
    folder: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleanings: list[str] = []
    monkeypatch.setattr(cleaning, "_clean", lambda machine, there: cleanings.append(there))
    ready, over = threading.Barrier(8), threading.Barrier(8)

    def runner() -> None:
        for _ in range(20):
            with cleaned(in_job(), PlainReport(io.StringIO()), data_dir):
                ready.wait()
            over.wait()

    threads = [threading.Thread(target=runner) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cleanings == [str(folder)] * 20


def test_a_job_of_several_nodes_cleans_them_all(
    folder: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, tuple[str, ...]]] = []
    monkeypatch.setattr(slurm, "on_every_node", lambda *what: asked.append(what))
    two = replace(in_job(), hosts=(Host("n1", 2, 2), Host("n2", 2, 2)))
    with cleaned(two, PlainReport(io.StringIO()), data_dir):
        assert asked == []
    assert asked == [(2, ("/venv/python", "-P", "-m", "harness.scratch", "clean"))]


def test_without_a_marker_it_stays_and_that_is_told(folder: Path, tmp_path: Path) -> None:
    said = io.StringIO()
    with cleaned(in_job(), PlainReport(said), tmp_path / "original"):  # a file
        pass
    assert folder.exists()
    assert f"scratch {folder} will not be removed: " in said.getvalue()


@pytest.mark.parametrize("why", ["no job", "no scratch"])
def test_nothing_is_marked_or_removed(
    folder: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "no scratch":
        monkeypatch.delenv("HVDSCALE_SCRATCH")
    machine = ONE_NODE if why == "no job" else in_job()
    with cleaned(machine, PlainReport(io.StringIO()), data_dir):
        assert not data_dir.exists()
    assert folder.exists()


def test_the_data_folder_is_the_users_where_none_is_given(
    folder: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "HVDSCALE_DATA_DIR", str(data_dir))
    with cleaned(in_job(), PlainReport(io.StringIO())):
        (marker,) = markers(data_dir)
        assert marker.parent == data_dir / ".hvdscale-runners" / "slurm_4711"
    assert not folder.exists()
