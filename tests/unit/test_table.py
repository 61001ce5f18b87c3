from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from harness.analysis import render_table
from harness.analysis.table import seconds_text
from harness.errors import AnalysisError
from tests import factories
from tests.factories import config, failure, record

GOLDEN = Path(__file__).parents[1] / "golden" / "analysis"


def check_golden(name: str, found: str) -> None:
    """Compare with the kept file; ``REGENERATE_GOLDEN=1`` writes it anew: read the difference."""
    path = GOLDEN / name
    if os.environ.get("REGENERATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8")


def test_the_table_of_a_sweep(tmp_path: Path) -> None:
    made = config("horovod", 2, 75, backend="gloo")
    records = [
        *factories.records((1, 2, 16), blocks=3),
        failure(made, 0),  # measured by a later attempt
        failure(config("horovod", 4, 75, backend="gloo"), 0, status="timeout", cause="600 s\nover"),
    ]
    folder = factories.write_results(tmp_path / "s", records)
    check_golden("table.txt", render_table(folder) + "\n")


def test_strong_and_weak_scaling_have_tables_of_their_own(tmp_path: Path) -> None:
    records = [
        *factories.records((1, 2), ("mpi",), (75,), blocks=1),
        *factories.records((1, 2), ("mpi",), (600,), blocks=1, scaling="strong"),
    ]
    weak, strong = render_table(factories.write_results(tmp_path / "s", records)).split("\n\n")
    assert "weak scaling, CPU, batch a rank constant" in weak
    assert "global batch 600" not in weak
    assert "strong scaling, CPU, global batch constant" in strong
    assert "one block: no interval" in strong
    assert "[" not in strong


def test_a_missing_base_is_said_where_the_speedup_would_be(tmp_path: Path) -> None:
    records = factories.records((1, 2), ("mpi",), (75,), blocks=2, base=None, noise=0.0)
    text = render_table(factories.write_results(tmp_path / "s", records))
    assert "no speedup: no launch is its base none@1" in text
    cells = re.split(r"  +", text.splitlines()[-1].strip())
    assert cells[3:5] == ["–", "–"]
    assert cells[5:] == ["300 µs", "210 µs", "90.0 µs", "180 µs"]


def test_launches_without_a_base_are_counted(tmp_path: Path) -> None:
    made = config("horovod", 2, backend="mpi")
    records = [record(made, 0), record(made, 1), record(config("none"), 0, is_base=True)]
    text = render_table(factories.write_results(tmp_path / "s", records))
    assert "1 launch has no base in the block and no part in S" in text


def test_failures_alone_are_listed_with_their_causes(tmp_path: Path) -> None:
    folder = factories.write_results(tmp_path / "s", [failure(config("none"), cause="x" * 500)])
    text = render_table(folder)
    assert text.startswith("no measurements yet")
    assert "1 launch without a measurement:" in text
    assert max(map(len, text.splitlines())) < 260


def test_a_file_that_cannot_be_read_is_listed(tmp_path: Path) -> None:
    folder = factories.write_results(tmp_path / "s", [record(config("none"))])
    (folder / "runs" / "deadbeef.json").write_text("{")
    assert "deadbeef unreadable: " in render_table(folder)


def test_an_empty_sweep_says_so(tmp_path: Path) -> None:
    assert render_table(factories.write_results(tmp_path / "s", [])) == "no measurements yet"


def test_unlike_machines_are_refused_unless_wanted(tmp_path: Path) -> None:
    other = {**factories.PROVENANCE, "cpu_model": "Old CPU"}
    records = [record(config("none"), 0), record(config("none"), 1, provenance=other)]
    folder = factories.write_results(tmp_path / "s", records)
    with pytest.raises(AnalysisError, match="cpu_model is"):
        render_table(folder)
    assert "none, batch 75" in render_table(folder, mixed=True)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (518.2e-6, "518 µs"), (999.6e-6, "1.00 ms"), (1.25e-3, "1.25 ms"), (0.9996, "1.00 s"),
        (87.94e-6, "87.9 µs"), (0.5, "500 ms"), (12.345, "12.3 s"), (4321.0, "4,321 s"),
        (0.0, "0.00 µs"),
    ],
)  # fmt: skip
def test_times_have_the_unit_that_fits(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text
