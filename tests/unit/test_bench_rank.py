"""One rank of a launch: from a RunSpec to a record and its raw steps, on the engine ``none``."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import bench, clock, raw
from harness.analysis.unlike import shared_provenance
from harness.config import RunConfig, run_id
from harness.engines.api import PHASES
from harness.measure.phases import Marked
from harness.measure.window import RankWindow
from harness.record import STEP_COLUMNS, DataSource, Placed
from harness.spec import BlockRef, Resolved, RunSpec
from harness.store import Store

STEPS, MARKED, REDUCED = 4, 3, 5


def table(marked: bool = True, reduced: bool = True, synchronised: bool = True) -> Any:
    """Return the raw steps of two ranks, the second of which is a little later."""
    # Columns: the step, data, forward, backward, exposed sync, update.
    phases = [
        Marked(np.tile([10.0, 1, 2, 3, 4 + rank, 5], (MARKED, 1)), np.full(MARKED, 6.0 + rank))
        for rank in range(2)
    ]
    plain = {
        "none": [np.arange(STEPS) + rank / 10 for rank in range(2)],
        "allreduce": [np.full(REDUCED, 0.5) if reduced else None] * 2,
    }
    return raw.step_table(plain, phases if marked else [], synchronised=synchronised)


def rows(made: Any, instrument: str, rank: int) -> list[Mapping[str, Any]]:
    found = made.to_pylist()
    return [row for row in found if (row["instrument"], row["rank"]) == (instrument, rank)]


def test_the_raw_steps_have_the_columns_of_the_schema() -> None:
    made = table()
    assert tuple(made.column_names) == STEP_COLUMNS
    types = {name: str(made.schema.field(name).type) for name in STEP_COLUMNS}
    assert types == {
        "instrument": "string",
        "rank": "int32",
        "step": "int32",
        **dict.fromkeys(STEP_COLUMNS[3:], "double"),
    }
    assert made.num_rows == 2 * (STEPS + MARKED + REDUCED)
    assert (set(STEP_COLUMNS[3:]) - set(PHASES)) == {"step_s", "transfer_s", "wait_s", "ready_s"}


def test_the_raw_steps_of_every_rank() -> None:
    made = table()
    window = rows(made, "none", 1)
    assert [row["step"] for row in window] == list(range(STEPS))
    assert [row["step_s"] for row in window] == [0.1, 1.1, 2.1, 3.1]
    assert all(row[name] is None for row in window for name in STEP_COLUMNS[4:])
    late = rows(made, "phases", 1)
    assert len(late) == MARKED
    assert {name: late[0][name] for name in STEP_COLUMNS[3:]} == {
        "step_s": 10.0,
        "data_s": 1.0,
        "forward_s": 2.0,
        "backward_s": 3.0,
        "exposed_sync_s": 5.0,
        "transfer_s": 4.0,
        "wait_s": 1.0,
        "update_s": 5.0,
        "ready_s": 7.0,
    }
    assert rows(made, "phases", 0)[0]["wait_s"] == 0.0
    assert [row["step_s"] for row in rows(made, "allreduce", 0)] == [0.5] * REDUCED


def test_what_was_not_measured_is_null_and_not_zero() -> None:
    made = table(reduced=False, synchronised=False)
    (first, *_) = rows(made, "phases", 0)
    assert (first["exposed_sync_s"], first["transfer_s"], first["wait_s"]) == (None, None, None)
    assert first["update_s"] == 5.0
    assert rows(made, "allreduce", 0) == []
    plain = table(marked=False, reduced=False, synchronised=False)
    assert tuple(plain.column_names) == STEP_COLUMNS
    assert set(plain["instrument"].to_pylist()) == {"none"}


@pytest.fixture
def spec(tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> RunSpec:
    """Return a small point, with this process's output and time limit left as they are."""
    pytest.importorskip("torch")
    monkeypatch.setattr(bench, "_redirect_output", lambda path: None)
    monkeypatch.setattr(bench.watchdog, "start", lambda timeout_s: None)
    monkeypatch.setattr(clock, "NOTE_AFTER_S", 600.0)  # data that take long get a line of their own
    for name in ("RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    config = RunConfig.model_validate(
        {
            "workload": {"name": "stress_strain", "samples": 200},
            "engine": "none",
            "batch_size": 10,
            "cores_per_rank": 1,
            "measure": {"warmup_steps": 2, "window_s": 0.01, "min_steps": 7},
        }
    )
    return RunSpec(
        run_id=run_id(config, 2),
        attempt=3,
        sweep=Store.open(tmp_path / "sweep", create=True).name,
        config=config,
        resolved=Resolved(
            launcher="inline",
            backend=None,
            controller=None,
            placement=(1,),
            hosts=("n1",),
            device="cpu",
            cores_per_rank=1,
            bind=False,
        ),
        block=BlockRef(repeat=2, allocation="local:n1", order=1),
        results=tmp_path / "sweep",
        log_dir=tmp_path,
        data_dir=data_dir,
        timeout_s=60,
    )


def run(spec: RunSpec) -> int:
    path = spec.log_dir / "run.json"
    path.write_bytes(spec.text())
    return bench.run_spec(path)


def test_a_rank_writes_a_record_and_its_raw_steps(spec: RunSpec) -> None:
    assert run(spec) == 0
    store = Store.open(spec.results)
    record = store.read(spec.run_id)
    assert record.sealed() == record
    assert (record.status, record.attempt, record.block) == ("ok", 3, spec.block)
    assert (record.config, record.resolved) == (spec.config, spec.resolved)
    window, phases = record.window, record.phases
    assert window is not None
    assert phases is not None
    assert window.steps >= 7
    assert window.samples == 10 * window.steps
    assert window.throughput_samples_per_s == pytest.approx(window.samples / window.wall_s)
    assert (window.bytes_reduced, window.gradient_allreduce) == (0, False)
    assert (phases.exposed_sync_s, record.allreduce) == (None, None)
    assert record.overheads == {
        "phases": pytest.approx(phases.step_s * window.steps / window.wall_s - 1)
    }
    assert record.started_at <= record.ended_at
    steps = store.read_steps(spec.run_id)
    assert steps["instrument"].to_pylist() == ["none"] * window.steps + ["phases"] * phases.steps


def test_the_record_says_where_it_was(spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    assert run(spec) == 0
    record = Store.open(spec.results).read(spec.run_id)
    host = socket.gethostname()
    assert record.placed == Placed(hosts=(host,), ranks_per_host=(1,), local_ranks=(0,))
    assert record.slurm == {"job_id": "4711", "restart_count": 0, "nodelist": ["n1", "n2"]}
    assert record.data_source == DataSource(folder=str(spec.data_dir))


def test_another_placement_than_asked_for_is_a_failure(
    spec: RunSpec, capfd: pytest.CaptureFixture[str]
) -> None:
    resolved = spec.resolved.model_copy(update={"placement": (1, 1), "hosts": ("n1", "n2")})
    assert run(spec.model_copy(update={"resolved": resolved})) == 1
    assert Store.open(spec.results).done_ids() == set()
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(
        f"hvdscale: error: placement: asked for 1+1, got 1 on {socket.gethostname()}; "
    )


def test_files_are_read_from_scratch(
    spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODES_OWN", str(tmp_path))
    seen: list[Path] = []
    real = bench.make_feed

    def watched(config: Any, info: Any, samples: Any, *more: Any) -> Any:
        seen.extend(samples.files())
        return real(config, info, samples, *more)

    monkeypatch.setattr(bench, "make_feed", watched)
    assert run(spec.model_copy(update={"scratch": "$NODES_OWN/hvdscale-1"})) == 0
    folder = tmp_path / "hvdscale-1" / "data"
    (file,) = seen
    assert file.parent == folder
    record = Store.open(spec.results).read(spec.run_id)
    assert record.data_source is not None
    assert record.data_source.folder == str(folder)
    assert record.data_source.scratch == "$NODES_OWN/hvdscale-1"
    assert record.data_source.copied_bytes == file.stat().st_size


@pytest.mark.parametrize(
    ("data", "scratch", "told"),
    [
        ("disk", "$TMPDIR", {"read_from": "scratch"}),
        ("disk", None, {"read_from": "shared folder"}),
        ("device", "$TMPDIR", None),  # read once, before anything is timed
    ],
)
def test_launches_that_read_each_step_elsewhere_are_unlike(
    spec: RunSpec, data: str, scratch: str | None, told: dict[str, str] | None
) -> None:
    config = spec.config.model_copy(update={"data": data})
    source = DataSource(folder="/x", scratch=scratch)
    found = bench._with_source(bench.Measured({"provenance": {"a": 1}}, None), config, source)
    assert found.fields["data_source"] == source
    assert found.fields["provenance"] == {"a": 1} | ({"data": told} if told else {})
    shared = shared_provenance(found.fields["provenance"])
    assert shared == ({"data.read_from": told["read_from"]} if told else {})


def test_no_instruments_no_phases(spec: RunSpec) -> None:
    measure = spec.config.measure.model_copy(update={"instruments": ()})
    config = spec.config.model_copy(update={"measure": measure})
    plain = spec.model_copy(update={"config": config, "run_id": run_id(config, 2)})
    assert run(plain) == 0
    record = Store.open(spec.results).read(plain.run_id)
    assert record.phases is None


def test_a_failure_is_one_line_and_leaves_no_record(
    spec: RunSpec, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.window, "planned_steps", lambda measure, step_s: 5)
    real = bench.window.run_window

    def diverged(*arguments: Any) -> RankWindow:
        found = real(*arguments)
        found.losses[3] = np.nan
        return found

    monkeypatch.setattr(bench.window, "run_window", diverged)
    assert run(spec) == 1
    assert Store.open(spec.results).done_ids() == set()
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("hvdscale: error: the loss of rank 0 is nan at step 3 of the window")


def test_a_fault_of_ours_is_a_traceback(
    spec: RunSpec, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "measure", lambda *arguments: 1 / 0)
    assert run(spec) == 1
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_the_world_is_left_after_a_success_only(spec: RunSpec) -> None:
    class Counted:
        stopped = 0

        def start(self) -> str:
            return "world"

        def stop(self) -> None:
            self.stopped += 1

    for error, stopped in ((None, 1), (RuntimeError("x"), 0)):
        joined = bench.joined(spec.config, spec.resolved)
        joined._engine = engine = Counted()  # type: ignore[assignment]
        assert joined.__enter__() == (engine, "world")
        joined.__exit__(type(error) if error else None, error, None)
        assert engine.stopped == stopped
