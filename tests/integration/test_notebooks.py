"""The notebooks run from start to end on the example sets, and have nothing but cells in git."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CELL_TIMEOUT_S = 240  # a cell that hangs; each takes a second or two


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like a clone: what reading a set writes into it stays out of this one."""
    shutil.copytree(ROOT / "results" / "examples", tmp_path / "results" / "examples")
    (tmp_path / "notebooks").mkdir()
    monkeypatch.setenv("PYTHONPATH", os.fspath(ROOT))
    monkeypatch.setenv("IPYTHONDIR", os.fspath(tmp_path / "ipython"))  # no settings of a user's
    return tmp_path


def _run(path: Path, folder: Path) -> nbformat.NotebookNode:
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    resources = {"metadata": {"path": os.fspath(folder)}}
    client = NotebookClient(
        notebook, timeout=CELL_TIMEOUT_S, startup_timeout=CELL_TIMEOUT_S, resources=resources
    )
    return client.execute()


def _outputs(notebook: nbformat.NotebookNode) -> list[Any]:
    return [one for cell in notebook.cells for one in cell.get("outputs", ())]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, clone: Path) -> None:
    found = _outputs(_run(path, clone / "notebooks"))
    # Figures and tables came out, and every cell was reached.
    assert any("image/png" in one.get("data", {}) for one in found)
    assert any(one.get("name") == "stdout" and one["text"].strip() for one in found)
    assert not [one for one in found if one["output_type"] == "error"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_sets_are_found_from_the_root_too(path: Path, clone: Path) -> None:
    (setup,) = [cell for cell in json.loads(path.read_text())["cells"][:2] if "outputs" in cell]
    (line,) = [one for one in setup["source"] if one.startswith("EXAMPLES = ")]
    for folder in (clone, clone / "notebooks"):
        code = f"from pathlib import Path\n{line}print(EXAMPLES.resolve())"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == os.fspath((clone / "results" / "examples").resolve())


@pytest.mark.slow
def test_a_broken_notebook_fails(clone: Path) -> None:
    data = json.loads(NOTEBOOKS[0].read_text(encoding="utf-8"))
    data["cells"] = data["cells"][:2]
    data["cells"][1]["source"] = ["from harness.analysis.results import load_result\n"]
    broken = clone / "notebooks" / "broken.ipynb"
    broken.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(CellExecutionError, match="load_result"):
        _run(broken, clone / "notebooks")


def test_there_are_four() -> None:
    assert [path.stem for path in NOTEBOOKS] == [
        "1_first_look",
        "2_backends",
        "3_batch_accuracy_time",
        "4_predicting_scale",
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_plain_and_without_outputs(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    data = json.loads(text)
    nbformat.validate(data)
    assert text == json.dumps(data, indent=1, ensure_ascii=False) + "\n"
    assert data["metadata"] == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    number = path.stem.partition("_")[0]
    for index, cell in enumerate(data["cells"]):
        assert cell["id"] == f"{number}-{index:02d}"
        assert cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_are_small_and_explained(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    sources = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    assert sources[0][0] == "markdown"
    assert sources[0][1].startswith("# ")
    for kind, source in sources:
        assert max(map(len, source.splitlines())) <= 110
        if kind == "code":
            ast.parse(source)
            assert len(source.splitlines()) <= 25
