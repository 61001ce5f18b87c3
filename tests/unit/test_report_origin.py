"""The allocations of a report: of jobs their array and nodes, of a host its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.analysis.report.document import Table
from harness.analysis.report.origin import machine_blocks
from harness.analysis.results import load_results
from tests import factories

ELEMENT = {
    "job_id": "4713", "array_job_id": "4711", "array_task_id": "2", "restart_count": 0,
    "nodelist": [f"n{number}" for number in range(1, 7)], "nodes": 6,
}  # fmt: skip


@pytest.mark.parametrize(
    ("slurm", "allocation", "hosts"),
    [
        (None, "slurm:4713", "node0"),
        (ELEMENT, "job array 4711, element 2", "n[1-6] (6 nodes)"),
        ({"job_id": "4713", "nodelist": ["n1", "n2"]}, "slurm:4713", "n1, n2"),
        ({"job_id": "4713", "restart_count": 0}, "slurm:4713", "node0"),
    ],
)
def test_an_allocation_is_told_with_its_array_and_nodes(
    slurm: dict[str, Any] | None, allocation: str, hosts: str, tmp_path: Path
) -> None:
    one = factories.record(factories.config("none"), allocation="slurm:4713", slurm=slurm)
    table = next(iter(machine_blocks(load_results(factories.write_results(tmp_path, [one])))))
    assert isinstance(table, Table)
    (row,) = table.rows
    by_column = {column.name: cell.text for column, cell in zip(table.columns, row, strict=True)}
    assert (by_column["Allocation"], by_column["Hosts"]) == (allocation, hosts)
