"""``hvdscale allreduce`` typed behind each launcher, with real libraries."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from harness.collectives.definitions import COLLECTIVES, bus_factor
from harness.collectives.record import CollectivesRecord, read_record
from tests.integration.test_by_hand import Typed, typed
from tests.requirements import require_modules

SIZES = (4096, 16384, 65536)
COMMAND = ["hvdscale", "allreduce", "--sizes", "4K:64K:4", "--iterations", "4"]
#: By launcher: what is measured with which backend and controller, and what is left out.
EXPECTED = {
    "mpirun": (
        {"horovod": ("mpi", "mpi"), "torch": ("gloo", None), "mpi4py": ("mpi", None)},
        {("horovod", "send_recv")},
    ),
    "horovodrun --gloo": (
        {"horovod": ("gloo", "gloo"), "torch": ("gloo", None)},
        {("mpi4py", None), ("horovod", "send_recv")},
    ),
    "torchrun": ({"torch": ("gloo", None)}, {("horovod", None), ("mpi4py", None)}),
}


@dataclass(frozen=True)
class Measured:
    launcher: str
    seen: Typed
    folder: Path
    record: CollectivesRecord


@pytest.fixture(scope="module", params=EXPECTED)
def measured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, data_dir: Path
) -> Measured:
    """Measure all collectives of three small sizes, once a launcher."""
    require_modules("torch", "mpi4py")
    launcher = str(request.param)
    folder = tmp_path_factory.mktemp("allreduce")
    environ = {}
    if launcher != "mpirun":  # figures are drawn once, and once there is nothing to draw them
        (folder / "lib").mkdir()
        (folder / "lib" / "matplotlib.py").write_text("raise ImportError('left out')\n")
        path = [str(folder / "lib"), os.environ.get("PYTHONPATH", "")]
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    seen = typed(launcher, [*COMMAND, "--collectives", "all"], folder, data_dir, **environ)
    assert seen.code == 0, seen.said
    (run,) = (folder / "results" / "allreduce").iterdir()
    return Measured(launcher, seen, run, read_record(run / "record.json"))


def test_every_library_is_proven_and_what_is_missing_has_a_reason(measured: Measured) -> None:
    backends, absent = EXPECTED[measured.launcher]
    record = measured.record
    proofs = {one.name: (one.proof.proven, one.proof.controller) for one in record.libraries}
    assert proofs == backends
    assert {(one.library, one.collective) for one in record.absent} == absent
    assert all(one.reason in measured.seen.out for one in record.absent)
    assert (record.world_size, record.placement, record.device) == (2, (2,), "cpu")
    assert record.launcher == measured.launcher.split()[0]
    assert record.hosts == (os.uname().nodename,)
    assert record.provenance["packages"]["torch"]


def test_every_collective_and_size_has_a_row_of_every_library(measured: Measured) -> None:
    backends, absent = EXPECTED[measured.launcher]
    wanted = {
        (library, collective, size)
        for library in backends
        for collective in COLLECTIVES
        for size in ((0,) if collective == "barrier" else SIZES)
        if (library, collective) not in absent
    }
    rows = measured.record.rows
    assert {(row.library, row.collective, row.bytes) for row in rows} == wanted
    assert len(rows) == len(wanted)
    for row in rows:
        assert 0 < row.latency_min_s <= row.latency_p50_s <= row.latency_p99_s
        assert row.latency_p99_s <= row.latency_max_s
        assert 1 <= row.iterations <= 4
        if row.bytes:
            assert row.busbw_bytes_per_s == pytest.approx(
                row.bytes / row.latency_p50_s * bus_factor(row.collective, 2)
            )


def test_the_raw_times_are_those_of_the_rows(measured: Measured) -> None:
    times = pq.read_table(measured.folder / "times.parquet").to_pylist()
    for row in measured.record.rows:
        key = (row.library, row.collective, row.bytes)
        mine = [t for t in times if (t["library"], t["collective"], t["bytes"]) == key]
        assert len(mine) == 2 * row.iterations
        slowest = [
            max(t["time_s"] for t in mine if t["iteration"] == i) for i in range(row.iterations)
        ]
        assert max(slowest) == pytest.approx(row.latency_max_s)
        assert min(slowest) == pytest.approx(row.latency_min_s)


def test_the_table_is_printed_once_with_the_files(measured: Measured) -> None:
    out, drawn = measured.seen.out, measured.launcher == "mpirun"
    assert out.count("N = 2 (2 on ") == 1
    assert out.count(f"results/allreduce/{measured.record.run_id}/record.json") == 1
    assert (measured.folder / "table.txt").read_text() != ""
    assert (measured.folder / "all_reduce.csv").is_file()
    assert (measured.folder / "all_reduce.png").is_file() == drawn
    assert (measured.folder / "all_reduce.svg").is_file() == drawn
    assert ("no figures: they need matplotlib (left out)" in measured.seen.said) != drawn


def test_mpi_alone_leads_where_horovod_is_not_asked_for(tmp_path: Path, data_dir: Path) -> None:
    """And what only the ranks together know to be a mistake is still said once."""
    require_modules("torch", "mpi4py")
    argv = [*COMMAND[:2], "--libraries", "torch,mpi4py", "--sizes", "4K,1024G"]
    seen = typed("mpirun", argv, tmp_path, data_dir)
    assert seen.code == 2, seen.said
    assert seen.said.count("hvdscale: error: ") == 1, seen.said
    assert "--sizes: all_reduce of 1024G holds 2 buffers a rank, " in seen.err
    assert " for 2 on " in seen.err
    assert not list(tmp_path.rglob("record.json"))
