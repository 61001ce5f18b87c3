"""A sweep from its file to its plots, on real ranks, through the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.compute as pc
import pytest

from harness.record import STEP_COLUMNS, RunRecord
from harness.store import Store
from tests.requirements import require_modules, require_mpi

ROOT = Path(__file__).parents[2]

SWEEP = """\
name: whole
workload: {name: stress_strain, samples: 2000}
engine: horovod
backend: [mpi, gloo]
placement: 1x2
batch_size: 75
cores_per_rank: 1
measure: {warmup_steps: 2, window_s: 0.2, min_steps: 5, blocks: 1, timeout_s: 200}
base: none@1
"""


class Results:
    """A folder with the sweep's file, in which commands are run."""

    def __init__(self, folder: Path, data_dir: Path) -> None:
        self.folder = folder
        self.env = os.environ | {"PYTHONPATH": str(ROOT), "HVDSCALE_DATA_DIR": str(data_dir)}
        (folder / "whole.yaml").write_text(SWEEP)

    def start(self, *argv: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "harness", *argv],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def hvdscale(self, *argv: str) -> tuple[str, str]:
        process = self.start(*argv)
        out, err = process.communicate(timeout=280)
        assert process.returncode == 0, err
        return out, err

    @property
    def store(self) -> Store:
        return Store.open(self.folder / "results" / "whole")

    def by_backend(self) -> dict[str | None, RunRecord]:
        return {record.config.backend: record for record in self.store.records()}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> Results:
    require_modules("torch", "horovod")
    require_mpi()
    made = Results(tmp_path_factory.mktemp("whole"), data_dir)
    out, _ = made.hvdscale("run", "whole.yaml", "--slots", "2")
    assert "3 measured, 0 done before" in out
    return made


def test_every_launch_is_measured(results: Results) -> None:
    records = results.by_backend()
    assert set(records) == {None, "mpi", "gloo"}
    assert {record.status for record in records.values()} == {"ok"}
    for backend, record in records.items():
        assert record.window is not None
        assert record.window.throughput_samples_per_s > 0
        assert record.backend is not None
        assert record.backend.proven == backend
        assert record.block.is_base == (backend is None)
        assert record.block.repeat == 0
        assert record.window.gradient_allreduce == (backend is not None)
    assert sorted(record.block.order for record in records.values()) == [0, 1, 2]
    assert len({record.block.allocation for record in records.values()}) == 1


def test_raw_steps_of_every_rank_lie_beside_the_record(results: Results) -> None:
    record = results.by_backend()["mpi"]
    assert record.window is not None
    steps = results.store.read_steps(record.run_id)
    assert tuple(steps.column_names) == STEP_COLUMNS
    window = steps.filter(pc.equal(steps["instrument"], "none"))
    assert window.num_rows == 2 * record.window.steps
    assert set(window["rank"].to_pylist()) == {0, 1}


def test_every_launch_left_its_logs(results: Results) -> None:
    for record in results.by_backend().values():
        folder = results.store.logs / record.run_id / "1"
        names = {path.name for path in folder.iterdir()}
        ranks = {f"rank-{rank}.log" for rank in range(record.config.world_size)}
        assert names == {"run.json", "launcher.log", *ranks}


def test_a_second_run_starts_nothing(results: Results) -> None:
    before = {path: path.stat().st_mtime_ns for path in results.store.runs.iterdir()}
    out, _ = results.hvdscale("run", "whole.yaml", "--slots", "2")
    assert "0 measured, 3 done before" in out
    assert {path: path.stat().st_mtime_ns for path in results.store.runs.iterdir()} == before


def test_the_config_beside_the_results_says_the_same_sweep(results: Results) -> None:
    kept = results.folder / "results" / "whole" / "sweep.yaml"
    out, _ = results.hvdscale("run", str(kept), "--slots", "2", "--dry-run")
    assert out == ""  # nothing missing


def test_listed_collected_and_plotted(results: Results) -> None:
    (listed,) = json.loads(results.hvdscale("ls", "--json")[0])
    assert [(p["done"], p["asked"]) for p in listed["points"]] == [(1, 1)] * 3
    table, _ = results.hvdscale("collect", "whole")
    for word in ("none@1", "mpi", "gloo"):
        assert word in table
    plots, _ = results.hvdscale("plot", "whole")
    paths = [results.folder / line for line in plots.splitlines()]
    assert {"speedup.png", "speedup.svg"} <= {path.name for path in paths}
    assert all(path.stat().st_size > 0 for path in paths)


def test_ctrl_c_then_only_what_is_missing(results: Results) -> None:
    """Two blocks instead of one: three new launches, of which an interrupt lets at least one be."""
    argv = ["run", "whole.yaml", "--slots", "2", "--set", "measure.blocks=2"]
    runner = results.start(*argv)
    deadline = time.monotonic() + 200
    while len(results.store.done_ids()) < 4 and time.monotonic() < deadline:
        time.sleep(0.2)
    runner.send_signal(signal.SIGINT)
    out, _ = runner.communicate(timeout=60)
    assert runner.returncode == 130
    assert "interrupted" in out
    kept = results.store.done_ids()
    assert 4 <= len(kept) < 6
    out, _ = results.hvdscale(*argv)
    assert f"{6 - len(kept)} measured, {len(kept)} done before" in out
    assert kept < results.store.done_ids()
