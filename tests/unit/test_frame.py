from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from harness import provenance
from harness.analysis import collecting, load, reading, writing
from harness.analysis.collecting import collect
from harness.analysis.columns import COLUMNS
from harness.analysis.frame import frame, shared_provenance
from harness.errors import AnalysisError, StoreError
from harness.record import (
    ClockCheck,
    DeviceTelemetry,
    FeedTimes,
    NodeTelemetry,
    RunRecord,
    Telemetry,
)
from harness.store import Store
from harness.store.migrate import migrate
from tests import factories


def _stale(folder: Path, name: str, text: str) -> None:
    (folder / "runs" / name).write_text(text, encoding="utf-8")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that ``collect`` opens, in order."""
    opened: list[str] = []
    true = reading._row

    def counted(store: Store, source: reading.Source) -> dict[str, object]:
        opened.append(source.file)
        return true(store, source)

    monkeypatch.setattr(reading, "_row", counted)
    return opened


def test_a_row_has_what_its_record_says() -> None:
    made = factories.config("horovod", 10, 75, backend="gloo")
    record = factories.record(made, 2, node=8, throughput=1500.0, order=4, attempt=3)
    (row,) = frame([record]).to_dict("records")
    assert row["world_size"] == 10
    assert (row["nodes"], row["placement"]) == (2, "8+2")
    assert (row["rank_batch"], row["global_batch"]) == (75, 750)
    assert (row["repeat"], row["order"], row["attempt"]) == (2, 4, 3)
    assert row["throughput_samples_per_s"] == 1500.0
    assert row["epoch_s"] == 500.0  # 750,000 samples
    assert row["exposed_sync_s"] == record.phases.exposed_sync_s
    assert row["transfer_s"] + row["wait_s"] == pytest.approx(row["exposed_sync_s"])
    assert row["phase_step_s"] == record.phases.step_s
    assert row["allreduce_p50_s"] == record.allreduce.latency_p50_s
    assert row["rank_wall_min_s"] == min(record.window.rank_wall_s)
    assert json.loads(row["config"])["backend"] == "gloo"


FEED = FeedTimes(
    batches=200, batch_bytes=900, files=1, file_bytes=10_000, warm_s=2e-3, cold_batches=200,
    cold_s=9e-3, cached_warm=1.0, cached_cold=0.0,
)  # fmt: skip


def test_a_row_has_what_instruments_found() -> None:
    made = factories.config("horovod", 2, backend="gloo")
    record = factories.record(
        made,
        sequential=True,
        ablation=factories.ablation(500e-6, 420e-6),
        overheads={"phases": 0.01, "ablation": -0.02, "telemetry": 0.07},
        clocks=ClockCheck(
            method="host", offsets_s=(0.0, 0.0), error_s=1e-6, drift=0.0,
            skew_s=90e-6, wait_s=45e-6, resolved=True,
        ),
        feed=FEED,
    )  # fmt: skip
    record = factories.with_steadiness(
        record, change=0.04, p_value=1e-4, drifting=True, outliers=3, outlier_time_share=0.01
    )
    (row,) = frame([record]).to_dict("records")
    assert (row["sequential"], row["drifting"], row["outliers"]) == (True, True, 3)
    assert (row["drift_change"], row["drift_p_value"]) == (0.04, 1e-4)
    assert row["outlier_time_share"] == 0.01
    assert row["phase_sum_s"] == record.phases.sum_s
    assert row["ablation_difference_s"] == 500e-6
    assert row["interference_s"] == pytest.approx(80e-6)
    assert (row["skew_s"], row["clock_wait_s"]) == (90e-6, 45e-6)
    assert (row["feed_batch_bytes"], row["feed_warm_s"], row["feed_cold_s"]) == (900, 2e-3, 9e-3)
    assert (row["clock_error_s"], row["skew_resolved"]) == (1e-6, True)
    overheads = [row[f"{name}_overhead"] for name in ("phase", "ablation", "telemetry")]
    assert overheads == [0.01, -0.02, 0.07]
    for absent in ("timeline_overhead", "timeline_steps", "cpu_utilisation", "gpu_power_w"):
        assert pd.isna(row[absent])


def test_a_timeline_is_a_row_without_a_window() -> None:
    record = factories.timeline(factories.config("horovod", 2, backend="gloo"))
    (row,) = frame([record]).to_dict("records")
    assert (row["kind"], row["timeline_steps"]) == ("timeline", 20)
    assert row["timeline_negotiation_s"] == record.timeline.negotiation_s
    assert row["timeline_allreduces"] == record.timeline.allreduces
    assert row["timeline_overhead"] == 0.02
    assert pd.isna(row["throughput_samples_per_s"])


def test_what_telemetry_was_not_told_is_missing() -> None:
    """As in a window of fewer than two samples, and of a device that names no reasons."""
    device = DeviceTelemetry(
        index=0, uuid="GPU-1", name="H100", samples=1, utilisation_mean=None,
        sm_activity_mean=None, memory_used_max_bytes=None, power_mean_w=None, energy_j=None,
        energy_per_sample_j=None, sm_clock_mean_mhz=None, throttle_reasons=None,
    )  # fmt: skip
    node = NodeTelemetry(
        host="n", samples=1, interval_s=0.1, cpu_utilisation_mean=None,
        rank_cpu_mean=(None, None), rank_rss_max_bytes=(None, 5), devices=(device,),
    )  # fmt: skip
    told = Telemetry(nodes=(node,), power_mean_w=None, energy_per_sample_j=None)
    made = factories.config("horovod", 2, backend="gloo")
    (row,) = frame([factories.record(made, telemetry=told)]).to_dict("records")
    assert row["rank_rss_max_bytes"] == 5
    for name in ("cpu_utilisation", "gpu_sm_activity", "gpu_memory_max_bytes",
                 "gpu_throttle_reasons"):  # fmt: skip
        assert pd.isna(row[name]), name


def test_telemetry_is_averaged_over_what_it_is_of() -> None:
    device = DeviceTelemetry(
        index=0, uuid="GPU-0", name="Test GPU", samples=50, utilisation_mean=0.6,
        sm_activity_mean=None, memory_used_max_bytes=None, power_mean_w=300.0, energy_j=None,
        energy_per_sample_j=None, sm_clock_mean_mhz=None, throttle_reasons=("SwPowerCap",),
    )  # fmt: skip
    other = device.model_copy(update={"index": 1, "uuid": "GPU-1", "utilisation_mean": 0.8})
    nodes = tuple(
        NodeTelemetry(
            host=host, samples=50, interval_s=0.1, cpu_utilisation_mean=cpu,
            rank_cpu_mean=(1.0, 1.5), rank_rss_max_bytes=(10, rss), devices=devices,
        )
        for host, cpu, rss, devices in (("a", 0.2, 30, (device,)), ("b", 0.4, 20, (other,)))
    )  # fmt: skip
    found = Telemetry(nodes=nodes, power_mean_w=600.0, energy_per_sample_j=0.5)
    made = factories.config("horovod", 2, backend="gloo")
    (row,) = frame([factories.record(made, telemetry=found)]).to_dict("records")
    assert row["cpu_utilisation"] == pytest.approx(0.3)
    assert row["rank_cpu_cores"] == pytest.approx(1.25)
    assert row["rank_rss_max_bytes"] == 30
    assert row["gpu_utilisation"] == pytest.approx(0.7)
    assert (row["gpu_power_w"], row["energy_per_sample_j"]) == (600.0, 0.5)
    assert row["gpu_throttle_reasons"] == "SwPowerCap"
    bare = Telemetry(
        nodes=tuple(node.model_copy(update={"devices": ()}) for node in nodes),
        power_mean_w=None, energy_per_sample_j=None,
    )  # fmt: skip
    (row,) = frame([factories.record(made, telemetry=bare)]).to_dict("records")
    for absent in ("gpu_utilisation", "gpu_power_w", "gpu_throttle_reasons"):
        assert pd.isna(row[absent])


def test_a_record_of_schema_1_has_its_overhead_where_the_others_are(tmp_path: Path) -> None:
    golden = Path(__file__).parents[1] / "golden" / "records" / "v1.json"
    data = json.loads(golden.read_text())
    record = RunRecord.model_validate(migrate(dict(data), "v1.json"))
    (row,) = frame([record]).to_dict("records")
    assert row["phase_overhead"] == data["phases"]["overhead"]
    assert row["phase_sum_s"] == record.phases.sum_s
    assert row["sequential"] is False


def test_strong_scaling_declares_the_global_batch() -> None:
    table = frame([factories.record(factories.config("horovod", 4, 600, scaling="strong"))])
    assert table["batch_size"].isna().all()
    assert table[["global_batch_size", "rank_batch", "global_batch"]].values.tolist() == [
        [600, 150, 600]
    ]


def test_what_was_not_measured_is_missing_and_not_zero() -> None:
    table = frame(
        [factories.record(factories.config("none")), factories.failure(factories.config("none"))]
    )
    assert table["exposed_sync_s"].isna().all()
    assert table["allreduce_p50_s"].isna().all()
    assert table["throughput_samples_per_s"].isna().tolist() == [False, True]
    assert table["status"].tolist() == ["ok", "failed"]
    assert "SIGKILL" in table["cause"][1]


def test_columns_and_their_types_do_not_depend_on_the_records() -> None:
    empty, full = frame([]), frame(factories.records((1, 2), blocks=1))
    assert list(empty.columns) == list(full.columns) == list(COLUMNS)
    assert empty.dtypes.equals(full.dtypes)


def test_shared_provenance_keeps_hardware_and_software_only() -> None:
    """Of what a launch really collects, so that a renamed key is seen here."""
    found = provenance.collect([provenance.of_rank((0,), 1)], {"torch": "2.13.0"})
    kept = shared_provenance(found)
    assert {"python", "kernel", "cpu_model", "cores", "harness.version", "versions.torch"} <= set(
        kept
    )
    assert "packages.numpy" in kept
    for volatile in ("hosts", "ranks", "environment", "executable", "commit", "pyarrow"):
        assert not any(volatile in key for key in kept)
    assert shared_provenance({}) == {}
    assert shared_provenance({"python": None, "harness": "0.1", "packages": {}}) == {}


def test_collect_writes_one_row_a_record_as_parquet_and_csv(tmp_path: Path) -> None:
    records = [*factories.records((1, 2), blocks=2), factories.failure(factories.config("none"), 9)]
    path = collect(factories.write_results(tmp_path / "s", records))
    assert path == tmp_path / "s" / "table.parquet"
    table = load(tmp_path / "s")
    assert len(table) == len(records)
    assert table["file"].is_monotonic_increasing
    assert sorted(table["run_id"]) == sorted(record.run_id for record in records)
    lines = (tmp_path / "s" / "table.csv").read_text().splitlines()
    assert len(lines) == len(records) + 1
    assert lines[0].split(",")[:4] == ["file", "file_bytes", "file_mtime_ns", "sweep"]


def test_the_fast_way_of_reading_gives_what_the_typed_record_gives(tmp_path: Path) -> None:
    records = factories.records((1, 16), blocks=1)
    table = load(factories.write_results(tmp_path / "s", records))
    typed = frame(sorted(records, key=lambda record: record.run_id))
    assert table[list(COLUMNS)].equals(typed)


def test_collect_reads_only_what_is_new(tmp_path: Path, reads: list[str]) -> None:
    first = factories.records((1, 2), blocks=2)
    folder = factories.write_results(tmp_path / "s", first)
    collect(folder)
    assert len(reads) == len(first)
    before = (folder / "table.parquet").stat().st_mtime_ns
    reads.clear()
    collect(folder)
    assert reads == []
    assert (folder / "table.parquet").stat().st_mtime_ns == before
    third = factories.record(factories.config("none", 1, 75), 7)
    factories.write_results(folder, [third])
    collect(folder)
    assert reads == [f"{third.run_id}.json"]
    assert len(load(folder)) == len(first) + 1


def test_collect_sees_replaced_and_removed_files(tmp_path: Path, reads: list[str]) -> None:
    made = factories.config("none")
    folder = factories.write_results(tmp_path / "s", factories.records((1, 2), blocks=1))
    one = factories.record(made, 0, throughput=1.0)
    path = folder / "runs" / f"{one.run_id}.json"
    collect(folder)
    reads.clear()
    factories.write_results(folder, [one])
    os.utime(path, ns=(1, 1))
    table = load(folder).set_index("run_id")
    assert reads == [path.name]
    assert table.loc[one.run_id, "throughput_samples_per_s"] == 1.0
    path.unlink()
    assert one.run_id not in set(load(folder)["run_id"])


@pytest.mark.parametrize("content", [b"", b"no parquet", b"PAR1\0\0\0\0PAR1"])
def test_a_broken_table_is_made_anew(tmp_path: Path, content: bytes) -> None:
    folder = factories.write_results(tmp_path / "s", factories.records((1,), blocks=1))
    collect(folder).write_bytes(content)
    assert len(load(folder)) == 6


def test_a_table_of_another_version_is_made_anew(
    tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = factories.write_results(tmp_path / "s", factories.records((1,), blocks=1))
    collect(folder)
    reads.clear()
    monkeypatch.setattr(collecting, "TABLE_VERSION", collecting.TABLE_VERSION + 1)
    collect(folder)
    assert len(reads) == 6


def test_a_file_that_is_no_record_is_a_row_that_says_so(tmp_path: Path) -> None:
    record = factories.record(factories.config("none"))
    folder = factories.write_results(tmp_path / "s", [record])
    text = (folder / "runs" / f"{record.run_id}.json").read_text()
    _stale(folder, "cutoff.json", text[: len(text) // 2])
    _stale(folder, "altered.json", text.replace('"attempt": 1', '"attempt": 2'))
    _stale(folder, "renamed.json", text)
    _stale(folder, ".hidden.json.123.tmp", "{")
    table = load(folder).set_index("run_id")
    assert table["status"].to_dict() == {
        record.run_id: "ok", "cutoff": "unreadable", "altered": "unreadable",
        "renamed": "unreadable",
    }  # fmt: skip
    assert "cut off" in table.loc["cutoff", "cause"]
    assert "wrong checksum" in table.loc["altered", "cause"]
    assert "wrong name" in table.loc["renamed", "cause"]


def test_a_record_of_a_newer_schema_is_refused_by_name(tmp_path: Path) -> None:
    folder = factories.write_results(tmp_path / "s", [factories.record(factories.config("none"))])
    _stale(folder, "new.json", json.dumps({"schema_version": 99}))
    with pytest.raises(StoreError, match=r"new\.json: schema version 99"):
        collect(folder)
    assert not (folder / "table.parquet").exists()


def test_no_results_and_no_permission_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreError, match="no results here"):
        collect(tmp_path / "nothing")
    folder = factories.write_results(tmp_path / "s", [factories.record(factories.config("none"))])

    def refuse(path: Path, data: bytes) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(writing, "write_atomic", refuse)
    with pytest.raises(AnalysisError, match="cannot be written: Permission denied"):
        collect(folder)


def test_an_empty_sweep_has_an_empty_table(tmp_path: Path) -> None:
    assert len(load(factories.write_results(tmp_path / "s", []))) == 0


def test_a_record_without_provenance_still_has_a_row() -> None:
    bare = factories.record(factories.config("none"), provenance={})
    assert isinstance(bare, RunRecord)
    assert frame([bare])["provenance"].tolist() == ["{}"]


def test_collect_imports_neither_a_framework_nor_matplotlib(tmp_path: Path) -> None:
    folder = factories.write_results(tmp_path / "s", [factories.record(factories.config("none"))])
    heavy = "torch", "tensorflow", "horovod", "matplotlib", "scipy"
    code = (
        "import sys\nfrom harness.analysis import collect\n"
        f"collect({str(folder)!r})\n"
        f"sys.exit(','.join(set(sys.modules) & set({heavy!r})) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
