"""The table of ``hvdscale allreduce``, its ring and its figures."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.collectives import csv_text, fit_ring, render
from harness.analysis.plots.collectives import draw
from harness.analysis.plots.style import figure_bytes, style
from harness.cli import collectives as command
from harness.collectives.measuring import Times, summarise
from harness.collectives.record import (
    Absent,
    CollectivesRecord,
    LibraryFacts,
    Row,
)
from harness.collectives.sizes import MAX_BYTES
from harness.collectives.writing import Written
from harness.record import BackendProof
from tests.unit.test_table import check_golden

RANKS = 4
ALPHA_S, LINK = 20e-6, 2e9


def ring_s(count_bytes: int, ranks: int = RANKS) -> float:
    return 2 * (ranks - 1) * ALPHA_S + 2 * (ranks - 1) / ranks * count_bytes / LINK


def times_of(library: str, collective: str, count_bytes: int, slower: float) -> Times:
    seconds = ring_s(count_bytes) * slower
    spread = np.linspace(0.9, 1.1, 5)
    ranks = np.linspace(0.8, 1.0, RANKS)
    return Times(library, collective, count_bytes, seconds * ranks[:, None] * spread[None, :])


def facts(name: str, backend: str, controller: str | None = None) -> LibraryFacts:
    proof = BackendProof(requested=backend, proven=backend, controller=controller, evidence={})
    return LibraryFacts(name=name, proof=proof, versions={name: "1"})


def made_times() -> list[Times]:
    slower = {"horovod": 3.0, "torch": 2.0, "mpi4py": 1.0}
    sizes = (4096, 65536, 1 << 20)
    every = [("all_reduce", size, name) for size in sizes for name in slower]
    every += [("send_recv", 4096, "torch"), ("send_recv", 4096, "mpi4py")]
    every += [("barrier", 0, name) for name in slower]
    return [times_of(name, what, size, slower[name]) for what, size, name in every]


def fields(times: list[Times]) -> dict[str, Any]:
    return {
        "started_at": "2026-01-01T00:00:00.000+00:00", "argv": ("hvdscale", "allreduce"),
        "launcher": "mpirun", "hosts": ("node1", "node2"), "placement": (3, 1),
        "world_size": RANKS, "device": "cpu", "cores_per_rank": 1, "tuning": None,
        "libraries": (facts("horovod", "mpi", "mpi"), facts("torch", "gloo"),
                      facts("mpi4py", "mpi")),
        "absent": (Absent(library="horovod", collective="send_recv", reason="no send"),),
        "collectives": ("all_reduce", "send_recv", "barrier"), "sizes": (4096, 65536, 1 << 20),
        "max_iterations": 5, "rows": tuple(summarise(one) for one in times),
    }  # fmt: skip


@pytest.fixture
def record() -> CollectivesRecord:
    kept = fields(made_times())
    return CollectivesRecord(run_id="r", ended_at="2026-01-01T00:01:00.000+00:00", **kept)


def test_the_table(record: CollectivesRecord) -> None:
    check_golden("collectives.txt", render(record) + "\n")


def test_the_numbers_behind_the_figure(record: CollectivesRecord) -> None:
    text = csv_text(record, "all_reduce")
    check_golden("collectives.csv", text)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 9
    for row in rows:
        assert float(row["busbw_bytes_per_s"]) / float(row["algbw_bytes_per_s"]) == pytest.approx(
            1.5
        )
        assert float(row["ring_s"]) <= float(row["latency_p50_s"]) * (1 + 1e-9)


def test_a_collective_that_nobody_has_is_a_dash(record: CollectivesRecord) -> None:
    asked = record.model_copy(update={"collectives": ("all_to_all",)})
    assert "\nall_to_all: –\n" in render(asked)


def test_the_ring_is_made_of_the_best_median_and_the_best_bandwidth(
    record: CollectivesRecord,
) -> None:
    ring = fit_ring(record)
    assert ring is not None
    latency_s, wire_s = ring_s(4096), 1.5 * (1 << 20) / ring.bandwidth_bytes_per_s
    assert ring.alpha_s == pytest.approx(latency_s / 6)
    assert wire_s == pytest.approx(ring_s(1 << 20))
    assert ring.seconds(4096) == pytest.approx(latency_s)
    assert ring.seconds(1 << 20) == pytest.approx(ring_s(1 << 20))
    assert ring.corner_bytes == pytest.approx(latency_s / wire_s * (1 << 20))
    assert ring.seconds(0.9 * ring.corner_bytes) == pytest.approx(latency_s)
    assert ring.seconds(1.1 * ring.corner_bytes) == pytest.approx(1.1 * latency_s)
    assert ring.text == (
        "ring's lower bound: the larger of 2(N−1)·α and 2(N−1)/N·bytes/B with "
        "α = 20.5 µs (mpi4py, 4K), B = 1.74 GB/s (mpi4py, 1M); no measured median is below it; "
        "α and B are the best any library reached"
    )


def row(library: str, count_bytes: int, seconds: float) -> Row:
    return Row(
        library=library, collective="all_reduce", bytes=count_bytes, iterations=1,
        latency_p50_s=seconds, latency_p99_s=seconds, latency_min_s=seconds,
        latency_max_s=seconds, algbw_bytes_per_s=1.0, busbw_bytes_per_s=1.0,
    )  # fmt: skip


@pytest.mark.parametrize("rows", [[], [row("torch", 4096, 1.0), row("mpi4py", 4096, 2.0)]])
def test_no_ring_of_fewer_than_two_sizes(rows: list[Row], record: CollectivesRecord) -> None:
    assert fit_ring(record.model_copy(update={"rows": tuple(rows)})) is None


def test_each_part_of_the_ring_is_of_the_library_that_is_best_at_it(
    record: CollectivesRecord,
) -> None:
    rows = [row("horovod", 4096, 2e-3), row("torch", 4096, 1e-3),
            row("horovod", 1 << 20, 5e-3), row("torch", 1 << 20, 9e-3)]  # fmt: skip
    ring = fit_ring(record.model_copy(update={"rows": tuple(rows)}))
    assert ring is not None
    assert (ring.quickest, ring.widest) == (rows[1], rows[2])


MEDIANS = st.lists(
    st.tuples(
        st.sampled_from(("horovod", "torch", "mpi4py")),
        st.integers(1, MAX_BYTES // 4),
        st.floats(1e-7, 1e4),
    ),
    min_size=2,
    max_size=20,
    unique_by=lambda made: made[1],
)


@given(MEDIANS, st.integers(2, 4096))
def test_no_median_is_below_the_ring_whatever_the_times(
    medians: list[tuple[str, int, float]], ranks: int
) -> None:
    rows = tuple(row(name, 4 * count, seconds) for name, count, seconds in medians)
    kept = fields(made_times()) | {"rows": rows, "world_size": ranks}
    ring = fit_ring(CollectivesRecord(run_id="r", ended_at="", **kept))
    assert ring is not None
    reached = [ring.seconds(one.bytes) / one.latency_p50_s for one in rows]
    assert max(reached) <= 1 + 1e-12
    assert ring.seconds(ring.quickest.bytes) == pytest.approx(ring.quickest.latency_p50_s)
    assert ring.seconds(ring.widest.bytes) == pytest.approx(ring.widest.latency_p50_s)
    assert ring.alpha_s > 0


def test_the_figure_says_what_it_shows(record: CollectivesRecord) -> None:
    with style():
        figure = draw(record, "all_reduce")
        assert figure is not None
        svg = figure_bytes(figure, "svg").decode()
        again = draw(record, "all_reduce")
        assert again is not None
        assert figure_bytes(again, "svg").decode() == svg
    latency, bandwidth = figure.axes
    for part in ("N = 4 (3+1 on node1, node2), CPU", "horovod, mpi, mpi controller", "torch, gloo",
                 ">ring's lower bound<", "α = 20.5 µs", ">64K<", "× 1.5"):  # fmt: skip
        assert part in svg
    lines = {line.get_color(): line for line in latency.get_lines()}
    assert len(lines) == 4
    quickest = lines["#009E73"]
    assert list(quickest.get_xdata()) == [4096, 65536, 1 << 20]
    np.testing.assert_allclose(quickest.get_ydata(), [ring_s(n) for n in quickest.get_xdata()])
    ring = fit_ring(record)
    assert ring is not None
    drawn = next(line for line in latency.get_lines() if line.get_linestyle() == "--")
    assert list(drawn.get_xdata()) == [4096, ring.corner_bytes, 1 << 20]
    np.testing.assert_allclose(drawn.get_ydata(), [ring_s(4096), ring_s(4096), ring_s(1 << 20)])
    busbw = next(line for line in bandwidth.get_lines() if line.get_color() == "#009E73")
    np.testing.assert_allclose(busbw.get_ydata(), [1.5 * n / ring_s(n) for n in busbw.get_xdata()])


def test_one_size_draws_no_ring_and_a_barrier_nothing(record: CollectivesRecord) -> None:
    one = tuple(row for row in record.rows if row.bytes in (0, 4096))
    with style():
        figure = draw(record.model_copy(update={"rows": one}), "all_reduce")
        assert figure is not None
        svg = figure_bytes(figure, "svg").decode()
        assert draw(record, "barrier") is None
    assert "lower bound" not in svg
    assert "does not tell its latency and bandwidth apart" in " ".join(svg.split())


def report(record: CollectivesRecord, folder: Path, capsys: Any, as_json: bool) -> tuple[str, str]:
    command._report(Written(record, folder), as_json)
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_table_and_paths_are_printed_and_every_file_is_there(
    record: CollectivesRecord, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, err = report(record, tmp_path, capsys, as_json=False)
    assert out.startswith(render(record))
    assert err == ""
    told = {Path(line).name for line in out.splitlines() if line.startswith(str(tmp_path))}
    found = {path.name for path in tmp_path.iterdir()}
    assert told - {"record.json", "times.parquet"} == found  # those two were written before
    assert {"table.txt", "all_reduce.csv", "all_reduce.png", "all_reduce.svg"} < found
    assert "barrier.png" not in found


def test_without_matplotlib_all_but_the_figures_is_there(
    record: CollectivesRecord,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    out, err = report(record, tmp_path, capsys, as_json=True)
    assert CollectivesRecord.model_validate_json(out) == record
    assert "pip install 'hvdscale[analysis]'" in err
    assert {path.name for path in tmp_path.iterdir()} == {
        "table.txt", "all_reduce.csv", "send_recv.csv", "barrier.csv",
    }  # fmt: skip
