"""Every instrument through the command line, on real ranks: to record, table and plots."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.record import RunRecord
from harness.store import Store
from tests.requirements import require_modules

ROOT = Path(__file__).parents[2]
SWEEP = """\
name: all
workload: {name: stress_strain, samples: 2000}
engine: horovod
backend: gloo
placement: 1x2
batch_size: 20
cores_per_rank: 1
measure: {warmup_steps: 2, window_s: 2, min_steps: 50, blocks: 1, timeout_s: 200,
          timeline_steps: 5, instruments: [phases, ablation, clocks, telemetry, timeline]}
base: none@1
"""


def hvdscale(folder: Path, data_dir: Path, *argv: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "harness", *argv],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "HVDSCALE_DATA_DIR": str(data_dir)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> Path:
    require_modules("torch", "horovod")
    folder = tmp_path_factory.mktemp("instruments")
    (folder / "all.yaml").write_text(SWEEP)
    hvdscale(folder, data_dir, "run", "all.yaml", "--slots", "2")
    return folder / "results" / "all"


@pytest.fixture(scope="module")
def records(sweep: Path) -> dict[str, RunRecord]:
    found = list(Store.open(sweep).records())
    assert [record.status for record in found] == ["ok"] * 3
    return {
        "timeline" if one.kind == "timeline" else one.config.engine: one for one in found
    }  # fmt: skip


def test_each_instrument_is_in_the_record(records: dict[str, RunRecord]) -> None:
    record = records["horovod"]
    assert set(record.overheads) == {"phases", "ablation", "telemetry"}
    assert set(record.overhead_errors) == {"ablation", "telemetry"}
    assert record.phases is not None
    assert record.ablation is not None
    assert record.ablation.interference_s == pytest.approx(
        record.ablation.difference_s - record.phases.exposed_sync_s
    )
    assert record.clocks is not None
    assert record.clocks.error_s == 0.0  # one host
    assert record.clocks.skew_s >= record.clocks.wait_s > 0.0
    assert record.window is not None
    assert record.window.steadiness is not None


def test_the_base_has_what_its_engine_offers(records: dict[str, RunRecord]) -> None:
    base = records["none"]
    assert set(base.overheads) == {"phases", "telemetry"}
    assert (base.ablation, base.clocks, base.timeline) == (None, None, None)


def test_one_sampler_a_node_tells_of_both_ranks(sweep: Path, records: dict[str, RunRecord]) -> None:
    record = records["horovod"]
    assert record.telemetry is not None
    (node,) = record.telemetry.nodes
    assert len(node.rank_cpu_mean) == len(node.rank_rss_max_bytes) == 2
    assert node.samples >= 5
    assert all(rss is not None and rss > 50e6 for rss in node.rank_rss_max_bytes)
    series = Store.open(sweep).read_series(record.run_id)
    assert series is not None
    assert set(series["subject"].to_pylist()) == {"node", "rank"}


def test_the_timeline_is_a_launch_of_its_own(sweep: Path, records: dict[str, RunRecord]) -> None:
    record = records["timeline"]
    assert record.window is None
    assert record.timeline is not None
    assert (record.timeline.steps, record.timeline.tensors) == (5, 8)
    assert set(record.overheads) == {"timeline"}
    logs = sweep / "logs" / record.run_id / str(record.attempt)
    assert (logs / record.timeline.file).is_file()


def test_raw_samples_of_all(sweep: Path, records: dict[str, RunRecord]) -> None:
    steps = Store.open(sweep).read_steps(records["horovod"].run_id)
    assert set(steps["instrument"].to_pylist()) == {
        "none", "phases", "allreduce", "ablation", "ablation_without", "telemetry",
        "telemetry_without",
    }  # fmt: skip


def test_table_and_figures(sweep: Path, data_dir: Path) -> None:
    folder = sweep.parents[1]
    text = hvdscale(folder, data_dir, "collect", "all")
    assert "interference" in text
    assert "timeline, a step: negotiation" in text
    drawn = hvdscale(folder, data_dir, "plot", "all", "--format", "png").splitlines()
    assert {Path(line).stem for line in drawn} == {
        "speedup", "efficiency", "throughput", "exposed_sync", "exposed_sync_epoch", "phases",
        "phase_shares", "epoch_time", "epoch_time_devices", "batches", "allreduce", "utilisation",
    }  # fmt: skip


def test_nothing_is_missing_then(sweep: Path, data_dir: Path) -> None:
    out = hvdscale(sweep.parents[1], data_dir, "run", "all.yaml", "--slots", "2")
    assert "0 measured, 3 done before" in out
