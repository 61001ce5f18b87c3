"""Where a report's numbers were measured: hosts, and jobs by the hundred in few lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.report.document import Paragraph, Table
from harness.analysis.report.jobs import allocation_blocks, nodes_text, ranges_text
from harness.analysis.results import load_results
from harness.record import RunRecord
from tests import factories
from tests.factories import config, record
from tests.unit.submitted import submitted


def rows(records: list[RunRecord], folder: Path) -> list[list[str]]:
    """Return the cells of the table of allocations."""
    results = load_results(factories.write_results(folder / "s", records))
    table = next(one for one in allocation_blocks(results) if isinstance(one, Table))
    return [[cell.text for cell in row] for row in table.rows]


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([7], "7"),
        ([3, 1, 2, 2], "1-3"),
        ([0, 1, 5, 7, 8], "0-1, 5, 7-8"),
        (range(0, 200, 2), "0, 2, 4, 6, 8, 10, 12, 14 + 92 more"),
        ([*range(0, 16, 2), *range(20, 30)], "0, 2, 4, 6, 8, 10, 12, 14 + 10 more"),
    ],
)
def test_ranges(numbers: list[int], text: str) -> None:
    assert ranges_text(numbers) == text


@given(st.sets(st.integers(0, 300), max_size=40))
def test_ranges_hold_every_number_once(numbers: set[int]) -> None:
    found: list[int] = []
    for part in filter(None, ranges_text(numbers, most=1000).split(", ")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    assert found == sorted(numbers)


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        (["node1", "node0", "node1"], "node1, node0"),
        ([f"node{k:02d}" for k in range(1, 21)], "node[01-20] (20 nodes)"),
        (
            [f"gpu{k}" for k in range(8)] + [f"a{k}-hs" for k in (1, 2, 5)],
            "a[1-2,5]-hs, gpu[0-7] (11 nodes)",
        ),
        (["n1.a", "n2.a", "x", "y", "z", "w3", "w4"], "n[1-2].a, w[3-4], x, y + 1 more"),
        # What no host is called, as a job whose list of nodes could not be read has it.
        (["n[1-99999999]", "a", "b", "c", "d"], "n[1-99999999], a, b, c + 1 more"),
    ],
)
def test_nodes(hosts: list[str], text: str) -> None:
    assert nodes_text(hosts) == text


def test_two_hundred_jobs_are_a_line_an_array(tmp_path: Path) -> None:
    found = rows(submitted(batches=(75,), repeats=50), tmp_path)
    assert [row[0] for row in found] == [
        f"job array {array} (alpha), elements 0-49" for array in (100, 200, 300, 400)
    ]
    assert {(row[1], row[2]) for row in found} == {("100", "50")}
    assert found[0][5] == "node[00-39] (40 nodes)"


def test_elements_that_are_missing_and_restarts_are_told(tmp_path: Path) -> None:
    from tests.unit.submitted import element_record

    made = config("horovod", "1x2", backend="mpi")
    records = [element_record(100, k, made, 1.0) for k in (0, 1, 2, 5)]
    records.append(element_record(100, 5, config("none"), 1.0, suffix=".r1"))
    ((name, launches, blocks, *_),) = rows(records, tmp_path)
    assert name == "job array 100 (alpha), elements 0-2, 5; 1 restart"
    assert (launches, blocks) == ("5", "5")


def test_jobs_without_an_array_have_a_row_each_while_they_are_few(tmp_path: Path) -> None:
    made = config("horovod", 2, backend="mpi")

    def jobs(count: int) -> list[RunRecord]:
        return [
            record(made, k, allocation=f"slurm:{k + 10}", slurm={"job_id": str(k + 10)})
            for k in range(count)
        ]

    few = rows(jobs(2), tmp_path / "few")
    assert [row[0] for row in few] == ["slurm:10", "slurm:11"]
    ((name, *_),) = rows(jobs(60), tmp_path / "many")
    assert name == "jobs 10-69"


def test_a_host_and_what_no_record_tells_of(tmp_path: Path) -> None:
    made = config("horovod", 2, backend="mpi")
    placed = {"hosts": ("real7",), "ranks_per_host": (2,), "local_ranks": (0, 1)}
    from harness.record import Placed

    records = [record(made, 0), record(made, 1, allocation="slurm:9", placed=Placed(**placed))]
    found = rows(records, tmp_path)
    assert [(row[0], row[5]) for row in found] == [("local:node0", "node0"), ("slurm:9", "real7")]


def test_a_record_that_is_gone_leaves_its_row(tmp_path: Path) -> None:
    folder = factories.write_results(tmp_path / "s", [record(config("none"))])
    results = load_results(folder)
    for file in (folder / "runs").iterdir():
        file.unlink()
    (table,) = allocation_blocks(results)
    assert [cell.text for cell in table.rows[0]][:3] == ["local:node0", "1", "1"]


def test_many_hosts_are_cut_with_a_count(tmp_path: Path) -> None:
    records = [
        record(config("none"), 0, allocation=f"local:h{k}", run_id=f"{k:016x}") for k in range(33)
    ]
    results = load_results(factories.write_results(tmp_path / "s", records))
    table, rest = allocation_blocks(results)
    assert len(table.rows) == 30
    assert rest == Paragraph("3 more allocations in table.csv of the results folder.")


def test_launches_that_do_not_say_when_they_ran(tmp_path: Path) -> None:
    made = factories.records(counts=(1, 2), backends=("mpi",), batches=(75,), blocks=2)
    made = [one.model_copy(update={"started_at": None}).sealed() for one in made]
    ((_, launches, _, began, ended, *_),) = rows(made, tmp_path)
    assert (launches, began) == (f"{len(made)}", "")
    assert ended
